package fib

import "net/netip"

// ConnectedRoutes returns the routes that follow from address a of a port, for
// instance 198.18.0.205/24: the network on the link; the address itself;
// IPv4's directed broadcast, but not in /31 (RFC 3021) and /32; and IPv6's
// subnet-router anycast address (RFC 4291, 2.6.1), but not in /127 (RFC 6164)
// and /128. A network of one address has no route of its own. The network's
// address in IPv4, an old form of broadcast (RFC 1812, 4.2.3.1), is treated as
// one.
func ConnectedRoutes(port uint16, a netip.Prefix) []Route {
	addr, full := a.Addr(), a.Addr().BitLen()
	host := func(a netip.Addr, kind Kind) Route {
		return Route{Prefix: netip.PrefixFrom(a, full), Origin: Connected, Kind: kind, Port: port}
	}
	rts := []Route{host(addr, Local)}
	if a.Bits() == full {
		return rts
	}
	rts = append(rts, Route{Prefix: a.Masked(), Origin: Connected, Kind: OnLink, Port: port})
	if a.Bits() == full-1 {
		return rts
	}
	k := keyOf(a.Masked())
	if first := a.Masked().Addr(); first != addr {
		if addr.Is4() {
			rts = append(rts, host(first, Broadcast))
		} else {
			rts = append(rts, host(first, Local))
		}
	}
	if addr.Is4() {
		hi, lo := k.last()
		if last := addrOf(4, hi, lo); last != addr {
			rts = append(rts, host(last, Broadcast))
		}
	}
	return rts
}
