package fib

import (
	"encoding/binary"
	"net/netip"
)

// aliases are the first indexes of FIB.Adj. Routes of up to aliasBits bits are
// not spread over the tables: a leaf without a longer route holds the alias of
// the eighth of the address space that it is in, and the adjacency there is a
// copy of the one of the route that covers the eighth, or NoRoute. So a change
// of a default route, or of 0.0.0.0/1, or of 2000::/3, changes a few
// adjacencies and no table.
const (
	aliasBits = 3
	aliases4  = 0                    // first one of IPv4
	aliases6  = 1 << aliasBits       // first one of IPv6
	aliases   = 2 * (1 << aliasBits) // number for both
)

// A PortAttr is what adjacencies take from a port.
type PortAttr struct {
	MAC [6]byte // source of frames that leave by the port
	MTU uint16  // largest IP packet, bytes

	// Name tells ports apart where that has to outlast a restart. It is not
	// changed by SetPort.
	Name string

	// Of a VLAN.
	TCI     uint16 // IEEE 802.1Q tag control information (PCP, DEI, VID), 0 for untagged frames
	On      uint16 // number of the port that the VLAN is on
	KeepPCP bool   // a packet that came with a tag keeps its priority
}

// A want is what routes ask of an adjacency; routes that ask the same share it.
type want struct {
	kind   Kind
	family uint8
	port   uint16
	mtu    uint16 // 0 for the port's
	group  uint32 // number, for Group
	addr   [16]byte
}

// A hopKey names a neighbor: the same address may live on several ports.
type hopKey struct {
	port uint16
	addr netip.Addr
}

// A hop is a neighbor that is known, or that adjacencies lead to.
type hop struct {
	mac    [6]byte
	known  bool
	verify bool     // tell when packets are sent to it
	adjs   []uint32 // adjacencies that lead to it
}

// adjacencies are the adjacencies in use, each with the number of its routes.
type adjacencies struct {
	ports []PortAttr
	down  []bool // ports without a link
	hops  map[hopKey]*hop
	ids   map[want]uint32
	wants []want // by index of the adjacency
	refs  []uint32
	free  []uint32
	dirty []uint32 // to be written at the next commit
	out   copies[Adjacency]

	groups groups
}

func (a *adjacencies) init(ports []PortAttr) {
	a.ports = append([]PortAttr(nil), ports...)
	a.down = make([]bool, len(ports))
	a.hops = make(map[hopKey]*hop)
	a.ids = make(map[want]uint32)
	a.wants = make([]want, aliases)
	a.refs = make([]uint32, aliases)
	a.out.make = func(n, c int) []Adjacency { return make([]Adjacency, n, c) }
	a.groups.init()
}

func (w *want) hopKey() hopKey {
	if w.family == 4 {
		return hopKey{w.port, netip.AddrFrom4([4]byte(w.addr[:4]))}
	}
	return hopKey{w.port, netip.AddrFrom16(w.addr)}
}

// hop returns the neighbor, made if it was not there.
func (a *adjacencies) hop(k hopKey) *hop {
	h := a.hops[k]
	if h == nil {
		h = new(hop)
		a.hops[k] = h
	}
	return h
}

// prune forgets the neighbor if nothing needs it.
func (a *adjacencies) prune(k hopKey) {
	if h := a.hops[k]; h != nil && !h.known && len(h.adjs) == 0 {
		delete(a.hops, k)
	}
}

// get returns the adjacency for w with one more user.
func (a *adjacencies) get(w want) uint32 {
	n, ok := a.ids[w]
	if !ok {
		if l := len(a.free); l > 0 {
			n, a.free = a.free[l-1], a.free[:l-1]
			a.wants[n] = w
		} else {
			n = uint32(len(a.wants))
			a.wants = append(a.wants, w)
			a.refs = append(a.refs, 0)
		}
		a.ids[w] = n
		a.dirty = append(a.dirty, n)
		switch w.kind {
		case Via:
			h := a.hop(w.hopKey())
			h.adjs = append(h.adjs, n)
		case Group:
			a.open(w.group)
		}
	}
	a.refs[n]++
	return n
}

// put gives one user of adjacency n back.
func (a *adjacencies) put(n uint32) {
	a.refs[n]--
	if a.refs[n] > 0 {
		return
	}
	w := a.wants[n]
	delete(a.ids, w)
	a.free = append(a.free, n)
	switch w.kind {
	case Group:
		a.close(w.group)
	case Via:
		k := w.hopKey()
		h := a.hops[k]
		for i, m := range h.adjs {
			if m == n {
				h.adjs = append(h.adjs[:i], h.adjs[i+1:]...)
				break
			}
		}
		a.prune(k)
	}
}

// render returns the adjacency that w means now.
func (a *adjacencies) render(w *want) Adjacency {
	r := Adjacency{Action: w.kind, Family: w.family, Port: w.port, Group: w.group}
	if w.kind != Via && w.kind != OnLink {
		return r
	}
	p := &a.ports[w.port]
	r.MTU = p.MTU
	if w.mtu != 0 && w.mtu < r.MTU {
		r.MTU = w.mtu
	}
	if w.kind == OnLink {
		return r
	}
	r.Neighbor = w.addr
	h := a.hops[w.hopKey()]
	if !h.known {
		r.Action = Resolve
		return r
	}
	if h.verify {
		r.Action = Verify
	}
	copy(r.Head[0:6], h.mac[:])
	copy(r.Head[6:12], p.MAC[:])
	r.Out = w.port
	n := 12
	if p.TCI != 0 {
		r.Out, r.KeepPCP = p.On, p.KeepPCP
		if r.Action == Forward {
			r.Action = Tagged
		}
		binary.BigEndian.PutUint16(r.Head[n:], 0x8100)
		binary.BigEndian.PutUint16(r.Head[n+2:], p.TCI)
		n += 4
	}
	etherType := uint16(0x0800)
	if w.family == 6 {
		etherType = 0x86dd
	}
	binary.BigEndian.PutUint16(r.Head[n:], etherType)
	r.HeadLen = uint8(n + 2)
	return r
}

// An alias says which adjacency is copied, 0 for none, and whether it is that of a
// default route.
type alias struct {
	adj       uint32
	isDefault bool
}

// commit returns the adjacencies of generation gen.
func (a *adjacencies) commit(gen, reclaimed uint64, from *[aliases]alias) []Adjacency {
	a.out.edit(len(a.wants), reclaimed)
	for _, n := range a.dirty {
		if a.refs[n] > 0 {
			a.out.set(n, a.render(&a.wants[n]))
		}
	}
	a.dirty = a.dirty[:0]
	for i, f := range from {
		r := Adjacency{Family: 4}
		if i >= aliases6 {
			r.Family = 6
		}
		if f.adj != 0 {
			r = a.render(&a.wants[f.adj])
			r.Default = f.isDefault
		}
		if a.out.next[i] != r {
			a.out.set(uint32(i), r)
		}
	}
	return a.out.publish(gen)
}
