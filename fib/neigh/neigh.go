// Package neigh keeps the neighbors of the router, for ARP and NDP alike: which
// MAC address an IPv4 or IPv6 address on the link of a port has (RFC 826,
// RFC 4861).
//
// Control owns a [Table] and is alone in calling it; only [Table.Count] and
// [Table.Conflicts] may be called from other goroutines. Entries come from the
// configuration and are static: no frame ever changes them. What a frame claims
// is compared with the table by [Table.Claim], and a claim that contradicts the
// table is counted.
package neigh

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	"nmfwd/dataplane/wire"
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

	numConflicts = int(OwnAddressConflict) + 1
)

var conflictNames = [numConflicts]string{"none", "static", "own_address"}

// String returns the name of c in metrics.
func (c Conflict) String() string {
	if int(c) < numConflicts {
		return conflictNames[c]
	}
	return fmt.Sprintf("conflict(%d)", uint8(c))
}

// A Port is what address resolution knows of a port of the router. It is not
// changed once made; a reload makes a new one.
type Port struct {
	Num     uint16       // number of the port
	MAC     wire.MAC     // the port's own MAC address, the one that answers carry
	MACs    []wire.MAC   // further MAC addresses of the router: of its other ports and of virtual routers
	Addrs   []netip.Addr // the router's unicast addresses on the port, link-local ones included
	Anycast []netip.Addr // its anycast addresses: those of the subnet-router (RFC 4291, 2.6.1)
	Host    bool         // a host stack owns the addresses and answers for them
}

// Owns reports whether a is a unicast address of the router on the port.
// Addresses of other ports are not: the router answers for an address only on
// the link that it belongs to (the strong model of RFC 1122, 3.3.4.2), so that
// a host never sends to a port that the routing did not mean.
func (p *Port) Owns(a netip.Addr) bool { return slices.Contains(p.Addrs, a) }

// IsOwnMAC reports whether mac is a MAC address of the router.
func (p *Port) IsOwnMAC(mac wire.MAC) bool { return mac == p.MAC || slices.Contains(p.MACs, mac) }

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

// A Change is a difference that a call made to the table: what forwarding has
// to be told.
type Change struct {
	Key
	MAC     wire.MAC // the new MAC address
	Removed bool     // the neighbor is no longer known, MAC is zero
}

// ErrFull says that the table holds as many entries as it may.
var ErrFull = errors.New("neighbor table is full")

// A Table holds the neighbors of the router.
type Table struct {
	max       int
	entries   map[Key]Entry
	counts    [2][NumStates]atomic.Int64 // by familyIndex
	conflicts [][numConflicts]atomic.Uint64
}

// New returns an empty table for the ports 0 to ports-1 that holds at most max
// entries.
func New(ports, max int) *Table {
	return &Table{
		max:       max,
		entries:   map[Key]Entry{},
		conflicts: make([][numConflicts]atomic.Uint64, ports),
	}
}

// Lookup returns the entry of addr on port.
func (t *Table) Lookup(port uint16, addr netip.Addr) (Entry, bool) {
	e, ok := t.entries[Key{port, addr}]
	return e, ok
}

// Len returns the number of entries.
func (t *Table) Len() int { return len(t.entries) }

// All returns the entries, ordered by port and address.
func (t *Table) All() []Entry {
	return slices.SortedFunc(maps.Values(t.entries), func(a, b Entry) int { return a.compare(b.Key) })
}

// Count returns the number of entries of an address family, 4 or 6, in state s.
// It may be called from any goroutine.
func (t *Table) Count(family int, s State) int {
	return int(t.counts[familyIndex(family == 6)][s].Load())
}

// Conflicts returns how many conflicts of kind c were seen on port. It may be
// called from any goroutine.
func (t *Table) Conflicts(port uint16, c Conflict) uint64 { return t.conflicts[port][c].Load() }

// Set makes mac the MAC address of k and the entry static. It reports whether
// that is news to forwarding. An error says why k or mac cannot be a neighbor,
// or is [ErrFull].
func (t *Table) Set(k Key, mac wire.MAC) (changed bool, err error) {
	if err := t.check(k, mac); err != nil {
		return false, err
	}
	old, known := t.entries[k]
	if !known && len(t.entries) >= t.max {
		return false, fmt.Errorf("neighbor %s: %w (%d entries)", k.Addr, ErrFull, t.max)
	}
	t.put(Entry{k, mac, Static})
	return !known || old.MAC != mac, nil
}

// Remove removes the static entry of k and reports whether there was one.
func (t *Table) Remove(k Key) bool {
	e, ok := t.entries[k]
	if ok {
		t.drop(e)
	}
	return ok
}

// Replace makes static the entries of the table, in place of all that there
// were, and max the number that it may hold. It returns what this changed,
// ordered by port and address. When one of them cannot be set, nothing is
// changed.
func (t *Table) Replace(static map[Key]wire.MAC, max int) ([]Change, error) {
	if len(static) > max {
		return nil, fmt.Errorf("%d neighbors: %w (%d entries)", len(static), ErrFull, max)
	}
	for k, mac := range static {
		if err := t.check(k, mac); err != nil {
			return nil, err
		}
	}

	t.max = max
	var changes []Change
	for k, e := range t.entries {
		if _, ok := static[k]; !ok {
			t.drop(e)
			changes = append(changes, Change{Key: k, Removed: true})
		}
	}
	for k, mac := range static {
		old, known := t.entries[k]
		t.put(Entry{k, mac, Static})
		if !known || old.MAC != mac {
			changes = append(changes, Change{Key: k, MAC: mac})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return a.compare(b.Key) })
	return changes, nil
}

// Claim compares with the table what a frame received on p says: that addr is
// at mac. A claim that contradicts it is counted and changes nothing. A static
// entry is contradicted by any other MAC address, an address of the router by
// one that is not the router's.
func (t *Table) Claim(p *Port, addr netip.Addr, mac wire.MAC) Conflict {
	c := NoConflict
	if p.Owns(addr) {
		if !p.IsOwnMAC(mac) {
			c = OwnAddressConflict
		}
	} else if e, ok := t.Lookup(p.Num, addr); ok && e.MAC != mac {
		c = StaticConflict
	}
	if c != NoConflict {
		t.conflicts[p.Num][c].Add(1)
	}
	return c
}

func (t *Table) put(e Entry) {
	if old, ok := t.entries[e.Key]; ok {
		t.counts[familyIndex(old.Addr.Is6())][old.State].Add(-1)
	}
	t.entries[e.Key] = e
	t.counts[familyIndex(e.Addr.Is6())][e.State].Add(1)
}

func (t *Table) drop(e Entry) {
	delete(t.entries, e.Key)
	t.counts[familyIndex(e.Addr.Is6())][e.State].Add(-1)
}

func (t *Table) check(k Key, mac wire.MAC) error {
	a := k.Addr
	switch {
	case int(k.Port) >= len(t.conflicts):
		return fmt.Errorf("neighbor %s: no port %d", a, k.Port)
	case !a.IsValid(), a.IsUnspecified(), a.IsLoopback(), a.IsMulticast(), a.Is4In6(), a.Zone() != "",
		a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("neighbor %s: not the address of a neighbor", a)
	case !IsUnicast(mac):
		b := mac.Bytes()
		return fmt.Errorf("neighbor %s: %s is not a unicast MAC address", a, net.HardwareAddr(b[:]))
	}
	return nil
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
