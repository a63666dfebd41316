// Package neigh keeps the neighbors of the router, for ARP and NDP alike: which
// MAC address an IPv4 or IPv6 address on the link of a port has (RFC 826), and
// whether it still answers (RFC 4861, 7.3).
//
// Control owns a [Table] and is alone in calling it; only [Table.Count] and
// [Table.Conflicts] may be called from other goroutines. The table keeps no
// clock and sends nothing: time is an argument, and what has to be done is
// queued as [Event].
//
// What is believed. A neighbor comes into the table because a packet is for it,
// because a route goes by it, or because it asked for an address of the router
// and is on a network of the port; what nobody asked for makes no entry. An
// entry changes as RFC 4861, 7.2.5 and appendix C say, for ARP too. Nothing
// received changes a static entry or says where an address of the router is: it
// is counted as a [Conflict].
package neigh

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"nmfwd/wire"
)

// A State is the state of an entry: those of RFC 4861, section 7.3.2, the end
// of a resolution without an answer, and that of an entry which never changes
// by itself.
type State uint8

const (
	Incomplete State = iota // solicited, no answer yet: the MAC address is unknown
	Reachable               // known to work a short time ago
	Stale                   // worked once, to be verified when used
	Delay                   // used while stale: waits for a hint before it is probed
	Probe                   // being verified by unicast solicitations
	Failed                  // no answer to the last solicitation
	Static                  // set by the configuration

	NumStates = int(Static) + 1
)

var stateNames = [NumStates]string{"incomplete", "reachable", "stale", "delay", "probe", "failed", "static"}

// String returns the name of s in metrics.
func (s State) String() string {
	if int(s) < NumStates {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// A Conflict is a contradiction between a received frame and what the router
// knows for certain.
type Conflict uint8

const (
	NoConflict         Conflict = iota
	StaticConflict              // another MAC address claims the address of a static entry
	OwnAddressConflict          // a MAC address not ours claims an address of the router (RFC 5227, 2.4; RFC 4862, 5.4.4)

	NumConflicts = int(OwnAddressConflict) + 1
)

var conflictNames = [NumConflicts]string{"none", "static", "own_address"}

// String returns the name of c in metrics.
func (c Conflict) String() string {
	if int(c) < NumConflicts {
		return conflictNames[c]
	}
	return fmt.Sprintf("conflict(%d)", uint8(c))
}

// A Source says who finds out the neighbors of a port.
type Source uint8

const (
	Link   Source = iota // the router itself, by ARP and Neighbor Discovery
	System               // the host stack, whose table is followed and which is asked
)

// A Port is what address resolution knows of a port of the router. It is not
// changed once made; a reload makes a new one.
type Port struct {
	Num     uint16         // number of the port
	MAC     wire.MAC       // the port's own MAC address, the one that answers carry
	MACs    []wire.MAC     // further MAC addresses of the router: of its other ports and of virtual routers
	Addrs   []netip.Addr   // the router's unicast addresses on the port, link-local ones included
	Anycast []netip.Addr   // its anycast addresses: those of the subnet-router (RFC 4291, 2.6.1)
	Nets    []netip.Prefix // the networks on the port, masked
	Host    bool           // a host stack owns the addresses and answers for them
	Source  Source         // who finds out the neighbors
}

// Owns reports whether a is a unicast address of the router on the port.
// Addresses of other ports are not: the router answers for an address only on
// the link that it belongs to (the strong model of RFC 1122, 3.3.4.2), so that
// a host never sends to a port that the routing did not mean.
func (p *Port) Owns(a netip.Addr) bool { return slices.Contains(p.Addrs, a) }

// IsOwnMAC reports whether mac is a MAC address of the router.
func (p *Port) IsOwnMAC(mac wire.MAC) bool { return mac == p.MAC || slices.Contains(p.MACs, mac) }

// OnLink reports whether a can be a neighbor on the port: it lies in a network
// of the port or is link-local, and is neither an address of the router nor the
// network's own or broadcast address.
func (p *Port) OnLink(a netip.Addr) bool {
	if !isNeighbor(a) || p.Owns(a) || slices.Contains(p.Anycast, a) {
		return false
	}
	for _, n := range p.Nets {
		if n.Contains(a) {
			return !a.Is4() || n.Bits() >= 31 || a != n.Addr() && n.Contains(a.Next())
		}
	}
	return a.Is6() && a.IsLinkLocalUnicast()
}

// A Key names a neighbor: link-local addresses mean something on one port only.
type Key struct {
	Port uint16
	Addr netip.Addr
}

func (k Key) compare(l Key) int {
	return cmp.Or(cmp.Compare(k.Port, l.Port), k.Addr.Compare(l.Addr))
}

// An Entry is a neighbor.
type Entry struct {
	Key
	MAC   wire.MAC
	State State
}

// ErrFull says that the table holds as many entries as it may.
var ErrFull = errors.New("neighbor table is full")

// isNeighbor reports whether a station can have the address a.
func isNeighbor(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && !a.Is4In6() && a.Zone() == "" &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// IsUnicast reports whether mac can be the MAC address of one station: it is
// neither zero nor a group address, broadcast included. A router must not
// believe that another is at a group address (RFC 1812, 3.3.2).
func IsUnicast(mac wire.MAC) bool { return mac&wire.Group == 0 && mac != 0 }

func familyIndex(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}
