package fib

import "net/netip"

// An Action says what happens to a packet that matched an adjacency.
type Action uint8

// The actions. NoRoute is zero: a table without routes drops everything.
const (
	NoRoute   Action = iota // no route matched
	Forward                 // rewrite and send
	Local                   // an address of the router
	Broadcast               // directed broadcast of a connected network (RFC 2644)
	Glean                   // on a connected network, neighbor unknown
	Resolve                 // through a gateway, neighbor unknown
	Blackhole               // discard silently
	Reject                  // discard with an ICMP error
)

// An Adjacency is the result of a lookup: all that a worker needs to send a
// packet on, in one cache line.
type Adjacency struct {
	Action   Action   // what to do
	Family   uint8    // 4 or 6
	HeadLen  uint8    // bytes of Head in use: 14, or 18 with a VLAN tag
	_        uint8    //
	Port     uint16   // egress port number; for Local and Broadcast the port that owns the address
	MTU      uint16   // largest IP packet in bytes: of the route, or else of the port
	Head     [18]byte // Ethernet header as sent: destination, source, EtherType
	_        [6]byte  //
	Neighbor [16]byte // the neighbor's address: an IPv4 address in the first 4 bytes. Zero for Glean: the packet's destination
	_        [16]byte // keeps the size of a cache line
}

// NeighborAddr returns the address that has to be resolved or was resolved for
// a; it is invalid where the packet's own destination is meant.
func (a *Adjacency) NeighborAddr() netip.Addr {
	if a.Neighbor == [16]byte{} {
		return netip.Addr{}
	}
	if a.Family == 4 {
		return netip.AddrFrom4([4]byte(a.Neighbor[:4]))
	}
	return netip.AddrFrom16(a.Neighbor)
}
