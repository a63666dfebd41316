package fib

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
)

// An Origin says where a route came from. Of routes to the same prefix the one
// with the smallest Origin is used; the others wait.
type Origin uint8

// The origins, preferred first.
const (
	Neighbor  Origin = iota // host route of a neighbor on a connected network, made by the RIB itself
	Connected               // follows from a port's addresses
	Static                  // configured
	Kernel                  // learned from the system's table

	NumOrigins = int(Kernel) + 1
)

var originNames = [...]string{"neighbor", "connected", "static", "kernel"}

// String returns the origin's name as metrics print it.
func (o Origin) String() string {
	if int(o) < NumOrigins {
		return originNames[o]
	}
	return fmt.Sprintf("origin %d", uint8(o))
}

// A Kind is the action that a route asks for: Via, OnLink, Local, Broadcast,
// Blackhole, Reject, Unreachable, Throw or Host.
type Kind = Action

// The kinds of routes that lead to a neighbor.
const (
	Via    Kind = Forward // to a gateway
	OnLink Kind = Glean   // to the destination itself, a neighbor on the port
)

// A Route is one entry of the RIB. A prefix has at most one route of each
// Origin.
type Route struct {
	Prefix  netip.Prefix // without host bits
	Origin  Origin       // Connected, Static or Kernel
	Kind    Kind         //
	Gateway netip.Addr   // Via only: of the prefix's family, without zone
	Port    uint16       // egress port number; used by Via, OnLink, Local and Broadcast
	MTU     uint16       // largest IP packet in bytes, 0 for the port's; used by Via and OnLink

	// Hops are gateways that share the flows, for Via and in place of Gateway and
	// Port (RFC 2991). Hops that are the same add up their weights; that they
	// are in another order makes no difference. They are not changed once given.
	Hops []Hop
}

// hops returns the gateways of a route of kind Via.
func (rt *Route) hops() []Hop {
	if rt.Hops != nil {
		return rt.Hops
	}
	return []Hop{{Gateway: rt.Gateway, Port: rt.Port}}
}

// String returns the route on one line.
func (rt Route) String() string {
	s := rt.Prefix.String()
	switch rt.Kind {
	case Via:
		for _, h := range rt.hops() {
			s += fmt.Sprintf(" via %v port %d", h.Gateway, h.Port)
			if h.Weight > 1 {
				s += fmt.Sprintf(" weight %d", h.Weight)
			}
		}
	case OnLink:
		s += fmt.Sprintf(" on-link port %d", rt.Port)
	case Local, Broadcast:
		s += fmt.Sprintf(" %v port %d", rt.Kind, rt.Port)
	default:
		s += " " + rt.Kind.String()
	}
	if rt.MTU != 0 {
		s += fmt.Sprintf(" mtu %d", rt.MTU)
	}
	return s + " " + rt.Origin.String()
}

// A key is a prefix: its address in the leftmost bits of hi and lo, whatever
// the family, and its length.
type key struct {
	hi, lo uint64
	len    uint8
}

// less is the order of the sorted index: by address, and a covering prefix
// before those that it covers.
func (k key) less(l key) bool {
	if k.hi != l.hi {
		return k.hi < l.hi
	}
	if k.lo != l.lo {
		return k.lo < l.lo
	}
	return k.len < l.len
}

// last returns the last address of k, as if it had 128 bits.
func (k key) last() (hi, lo uint64) {
	mhi, mlo := mask(k.len)
	return k.hi | ^mhi, k.lo | ^mlo
}

// covers reports whether l lies within k.
func (k key) covers(l key) bool {
	mhi, mlo := mask(k.len)
	return k.len <= l.len && (k.hi^l.hi)&mhi == 0 && (k.lo^l.lo)&mlo == 0
}

// cut returns the prefix of k that is n bits long.
func (k key) cut(n uint8) key {
	mhi, mlo := mask(n)
	return key{k.hi & mhi, k.lo & mlo, n}
}

// common returns how many leading bits k and l share.
func (k key) common(l key) uint8 {
	n := bits.LeadingZeros64(k.hi ^ l.hi)
	if n == 64 {
		n += bits.LeadingZeros64(k.lo ^ l.lo)
	}
	return min(uint8(n), k.len, l.len)
}

func mask(n uint8) (hi, lo uint64) {
	if n <= 64 {
		return ^uint64(0) << (64 - n), 0
	}
	return ^uint64(0), ^uint64(0) << (128 - n)
}

func keyOf(p netip.Prefix) key {
	k := keyOfAddr(p.Addr())
	k.len = uint8(p.Bits())
	return k
}

func keyOfAddr(a netip.Addr) key {
	if a.Is4() {
		b := a.As4()
		return key{uint64(binary.BigEndian.Uint32(b[:])) << 32, 0, 32}
	}
	b := a.As16()
	return key{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:]), 128}
}

func addrOf(family uint8, hi, lo uint64) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], hi)
	if family == 4 {
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	binary.BigEndian.PutUint64(b[8:], lo)
	return netip.AddrFrom16(b)
}

func prefixOf(family uint8, k key) netip.Prefix {
	return netip.PrefixFrom(addrOf(family, k.hi, k.lo), int(k.len))
}
