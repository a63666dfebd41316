package control

import (
	"encoding/binary"
	"net/netip"

	"nmfwd/fib"
)

// Connected returns the routes that follow from an address of the router on a
// port: the address itself, the network that it lies in, the network's directed
// broadcast address (RFC 919; none for /31, RFC 3021, and /32), and its
// subnet-router anycast address (RFC 4291, 2.6.1).
func Connected(a netip.Prefix, port uint16) []fib.Route {
	host := func(x netip.Addr) netip.Prefix { return netip.PrefixFrom(x, x.BitLen()) }
	routes := []fib.Route{{Prefix: host(a.Addr()), Kind: fib.Local, Origin: fib.Connected, Port: port}}
	if !a.IsSingleIP() {
		routes = append(routes, fib.Route{Prefix: a.Masked(), Kind: fib.OnLink, Origin: fib.Connected, Port: port})
	}
	if b := Broadcast(a); b.IsValid() && b != a.Addr() {
		routes = append(routes, fib.Route{Prefix: host(b), Kind: fib.Broadcast, Origin: fib.Connected, Port: port})
	}
	if b := SubnetRouter(a); b.IsValid() && b != a.Addr() {
		routes = append(routes, fib.Route{Prefix: host(b), Kind: fib.Local, Origin: fib.Connected, Port: port})
	}
	return routes
}

// Broadcast returns the directed broadcast address of the network of a, or the
// zero Addr where there is none.
func Broadcast(a netip.Prefix) netip.Addr {
	if !a.Addr().Is4() || a.Bits() > 30 {
		return netip.Addr{}
	}
	b := a.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])|(1<<(32-a.Bits())-1))
	return netip.AddrFrom4(b)
}

// SubnetRouter returns the subnet-router anycast address of the network of a,
// or the zero Addr where there is none: for IPv4, and for point-to-point links
// (RFC 6164, 5.1).
func SubnetRouter(a netip.Prefix) netip.Addr {
	if a.Addr().Is4() || a.Bits() > 126 {
		return netip.Addr{}
	}
	return a.Masked().Addr()
}
