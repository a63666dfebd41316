package fib

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sort"
)

// neighbors are the known neighbors of one family in the order of their
// addresses.
type neighbors struct{ list []hopKey }

func (h hopKey) compare(g hopKey) int {
	return cmp.Or(h.addr.Compare(g.addr), cmp.Compare(h.port, g.port))
}

func (ns *neighbors) add(h hopKey) {
	if i, ok := slices.BinarySearchFunc(ns.list, h, hopKey.compare); !ok {
		ns.list = slices.Insert(ns.list, i, h)
	}
}

func (ns *neighbors) remove(h hopKey) {
	if i, ok := slices.BinarySearchFunc(ns.list, h, hopKey.compare); ok {
		ns.list = slices.Delete(ns.list, i, i+1)
	}
}

// within returns the neighbors whose address lies in k.
func (ns *neighbors) within(k key) []hopKey {
	at := func(i int) key { return keyOfAddr(ns.list[i].addr) }
	hi, lo := k.last()
	from := sort.Search(len(ns.list), func(i int) bool { return !at(i).less(key{k.hi, k.lo, 0}) })
	to := from + sort.Search(len(ns.list)-from, func(i int) bool {
		a := at(from + i)
		return a.hi > hi || a.hi == hi && a.lo > lo
	})
	return ns.list[from:to]
}

func (r *RIB) neighborsOf(f *family) *neighbors {
	if f.family == 4 {
		return &r.neighbors[0]
	}
	return &r.neighbors[1]
}

// SetNeighbor tells the RIB a neighbor's Ethernet address: routes through it
// forward from the next Commit on, and if it is on a connected network of the
// port, its own address does. The error wraps ErrFull if there is no room for the
// host route: the neighbor is known then, and routes through it forward.
func (r *RIB) SetNeighbor(port uint16, a netip.Addr, mac [6]byte) error {
	if int(port) >= len(r.adj.ports) {
		return fmt.Errorf("fib: neighbor %v: no port %d", a, port)
	}
	if err := checkNeighbor(a); err != nil {
		return fmt.Errorf("fib: neighbor %v: %w", a, err)
	}
	f := r.family(a)
	k := hopKey{port, a}
	h := r.adj.hop(k)
	if h.known && h.mac == mac {
		return nil
	}
	known := h.known
	h.mac, h.known = mac, true
	r.adj.dirty = append(r.adj.dirty, h.adjs...)
	if known {
		return nil
	}
	r.adj.groups.touchMembers(h.adjs)
	r.neighborsOf(f).add(k)
	return r.hostRoute(f, k)
}

// VerifyNeighbor says whether workers are to tell when they send packets to a
// neighbor: one that is not known to be there any more. The error wraps
// ErrNoNeighbor if it is not known at all.
func (r *RIB) VerifyNeighbor(port uint16, a netip.Addr, verify bool) error {
	h := r.adj.hops[hopKey{port, a}]
	if h == nil || !h.known {
		return fmt.Errorf("fib: neighbor %v on port %d: %w", a, port, ErrNoNeighbor)
	}
	if h.verify != verify {
		h.verify = verify
		r.adj.dirty = append(r.adj.dirty, h.adjs...)
	}
	return nil
}

// Via returns the adjacency of a route through a neighbor: to forward to it, or
// to resolve it.
func (r *RIB) Via(port uint16, a netip.Addr) Adjacency {
	w := want{kind: Via, family: 6, port: port}
	if a.Is4() {
		w.family = 4
	}
	w.setAddr(a)
	if r.adj.hops[w.hopKey()] == nil {
		return Adjacency{Action: Resolve, Family: w.family, Port: port, MTU: r.adj.ports[port].MTU, Neighbor: w.addr}
	}
	return r.adj.render(&w)
}

// RemoveNeighbor forgets a neighbor: routes through it wait for it to be
// resolved again. The error wraps ErrNoNeighbor if it is not known.
func (r *RIB) RemoveNeighbor(port uint16, a netip.Addr) error {
	k := hopKey{port, a}
	h := r.adj.hops[k]
	if h == nil || !h.known {
		return fmt.Errorf("fib: neighbor %v on port %d: %w", a, port, ErrNoNeighbor)
	}
	h.known, h.verify = false, false
	f := r.family(a)
	r.neighborsOf(f).remove(k)
	r.adj.dirty = append(r.adj.dirty, h.adjs...)
	r.adj.groups.touchMembers(h.adjs)
	err := r.hostRoute(f, k)
	r.adj.prune(k)
	return err
}

// network returns the number of the route that packets to a would follow if no
// neighbor were known, or 0.
func (f *family) network(k key) uint32 {
	n := f.deepest(k)
	if n == 0 || f.entries[n].origin != Neighbor {
		return n
	}
	if m := f.entries[n].next; m != 0 {
		return m
	}
	return f.deepest(k.cut(k.len - 1))
}

// hostRoute makes the host route of a neighbor, or changes or removes it: it
// exists if the neighbor is known and packets to its address would otherwise
// follow an on-link route of its port, whose MTU it has.
func (r *RIB) hostRoute(f *family, h hopKey) error {
	k := keyOfAddr(h.addr)
	at := f.index.find(f.entries, k)
	if at != 0 && f.entries[at].origin != Neighbor {
		at = 0
	}
	var w want
	if hop := r.adj.hops[h]; hop != nil && hop.known {
		if n := f.network(k); n != 0 {
			if net := &r.adj.wants[f.entries[n].adj]; net.kind == OnLink && net.port == h.port {
				w = want{kind: Via, family: f.family, port: h.port, mtu: net.mtu}
				w.setAddr(h.addr)
			}
		}
	}
	switch {
	case w.kind != Via:
		if at != 0 && r.adj.wants[f.entries[at].adj].port == h.port {
			adj := f.entries[at].adj
			f.unlink(at)
			r.adj.put(adj)
		}
	case at == 0:
		if f.len() >= f.max {
			return fmt.Errorf("fib: neighbor %v: %w: %d routes", h.addr, ErrFull, f.max)
		}
		f.link(f.alloc(entry{key: k, origin: Neighbor, adj: r.adj.get(w)}))
	default:
		adj, old := r.adj.get(w), f.entries[at].adj
		f.readj(at, adj)
		r.adj.put(old)
	}
	return nil
}

// onLink reports whether packets to some address within k may follow an on-link
// route of k or one that covers k.
func (r *RIB) onLink(f *family, k key) bool {
	if len(r.neighborsOf(f).list) == 0 {
		return false
	}
	for {
		n := f.deepest(k)
		if n == 0 {
			return false
		}
		e := &f.entries[n]
		for m := n; m != 0; m = f.entries[m].next {
			if f.entries[m].origin != Neighbor {
				return r.adj.wants[f.entries[m].adj].kind == OnLink
			}
		}
		if e.len == 0 {
			return false
		}
		k = e.key.cut(e.len - 1)
	}
}

// review makes the host routes of the neighbors within k right after a change
// of a route to k. Before is what onLink said before it.
func (r *RIB) review(f *family, k key, before bool) error {
	if !before && !r.onLink(f, k) {
		return nil
	}
	var err error
	for _, h := range r.neighborsOf(f).within(k) {
		err = cmp.Or(err, r.hostRoute(f, h))
	}
	return err
}
