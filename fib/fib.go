// Package fib holds the routes of both families and the tables that packets
// are looked up in.
//
// The RIB has every route, in patricia trees with a sorted index beside them,
// and the neighbors and ports that adjacencies are made of. One goroutine owns
// it. Commit compiles what changed into a FIB, which is immutable: any number
// of goroutines may read it without locks, and older ones stay valid until
// Reclaim says that nobody reads them any more.
//
// A lookup is the longest match (RFC 1812, 5.2.4.3) over all routes and all
// neighbors on connected networks at once, and its result is an index of an
// Adjacency: one cache line with all that forwarding needs.
package fib

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
)

// An Action says what happens to a packet that matched an adjacency.
type Action uint8

// The actions. NoRoute is zero: a table without routes drops everything.
const (
	NoRoute     Action = iota // no route matched
	Forward                   // rewrite and send
	Local                     // an address of the router
	Broadcast                 // directed broadcast of a connected network (RFC 2644)
	Glean                     // on a connected network, neighbor unknown
	Resolve                   // through a gateway, neighbor unknown
	Blackhole                 // discard silently
	Reject                    // discard with an ICMP error: prohibited
	Unreachable               // discard with an ICMP error: unreachable
	Throw                     // as if no route matched, though a shorter one does
	Verify                    // as Forward, and tell that the neighbor is in use
	Tagged                    // rewrite and send with a VLAN tag
	Host                      // leave to the host stack of the port that it came in by
	Group                     // one of several adjacencies, chosen by the flow: see FIB.Path
)

var actionNames = [...]string{"no route", "forward", "local", "broadcast", "glean", "resolve", "blackhole", "reject", "unreachable", "throw", "verify", "tagged", "host", "group"}

// String returns the action's name.
func (a Action) String() string {
	if int(a) < len(actionNames) {
		return actionNames[a]
	}
	return fmt.Sprintf("action %d", uint8(a))
}

// An Adjacency is the result of a lookup: all that a worker needs to send a
// packet on, in one cache line.
type Adjacency struct {
	Action   Action   // what to do
	Family   uint8    // 4 or 6
	HeadLen  uint8    // bytes of Head in use: 14 for Forward, 18 for Tagged, either for Verify, else 0
	KeepPCP  bool     // with a tag: a packet that came with one keeps its priority
	Port     uint16   // egress port number; for Local and Broadcast the port that owns the address
	MTU      uint16   // largest IP packet in bytes: the smaller of the route's and the port's
	Head     [18]byte // Ethernet header as sent: destination, source, tag if any, EtherType
	Out      uint16   // number of the port that frames leave by: Port, or the one that the VLAN Port is on
	Group    uint32   // for Group: its number
	Neighbor [16]byte // the neighbor's address: an IPv4 address in the first 4 bytes. Zero for Glean: the packet's destination
	Default  bool     // it is that of a default route
	_        [15]byte // keeps the size of a cache line
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

// String returns what a does on one line.
func (a *Adjacency) String() string {
	switch a.Action {
	case Forward, Verify, Tagged:
		return fmt.Sprintf("%v port %d mtu %d neighbor %v head %x", a.Action, a.Port, a.MTU, a.NeighborAddr(), a.Head[:a.HeadLen])
	case Resolve:
		return fmt.Sprintf("resolve port %d mtu %d neighbor %v", a.Port, a.MTU, a.NeighborAddr())
	case Glean:
		return fmt.Sprintf("glean port %d mtu %d", a.Port, a.MTU)
	case Local, Broadcast:
		return fmt.Sprintf("%v port %d", a.Action, a.Port)
	}
	return a.Action.String()
}

// More is greater than all indexes of adjacencies: Table6.First returns it, or a
// greater value, to say that Lookup is to be asked.
const More = 1 << 29

// A FIB is one published state of the forwarding tables. It never changes.
type FIB struct {
	Gen uint64 // 1 for the first one that a RIB published, then counting
	V4  Table4
	V6  Table6
	Adj []Adjacency // what lookups index

	Sources Sources // what Local and Broadcast adjacencies are for, in IPv4

	Buckets []uint32   // indexes of adjacencies, Buckets of each group
	Groups  [][]Member // by number of the group
}

// Lookup returns the adjacency for dst, as workers find it.
func (f *FIB) Lookup(dst netip.Addr) *Adjacency {
	if dst.Is4() {
		b := dst.As4()
		return &f.Adj[f.V4.Lookup(binary.BigEndian.Uint32(b[:]))]
	}
	b := dst.As16()
	hi, lo := binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
	e := f.V6.First(hi)
	if e >= More {
		e = f.V6.Lookup(hi, lo)
	}
	return &f.Adj[e]
}

// Dump writes both tables as sorted lists of address ranges that share an
// adjacency, one a line: the first address and the adjacency. Equal dumps mean
// that the tables forward every packet alike, whatever they look like inside.
func (f *FIB) Dump(w io.Writer) error {
	var err error
	line := func() func(netip.Addr, uint32) bool {
		var last *Adjacency
		var text string
		return func(first netip.Addr, adj uint32) bool {
			a := &f.Adj[adj]
			if last == nil || *last != *a {
				if s := f.describe(a); s != text {
					text = s
					_, err = fmt.Fprintf(w, "%v %s\n", first, s)
				}
			}
			last = a
			return err == nil
		}
	}
	v4 := line()
	f.V4.each(func(first, adj uint32) bool {
		return v4(addrOf(4, uint64(first)<<32, 0), adj)
	})
	if err != nil {
		return err
	}
	v6 := line()
	f.V6.each(func(hi, lo uint64, adj uint32) bool {
		return v6(addrOf(6, hi, lo), adj)
	})
	return err
}
