package fib

import (
	"fmt"
	"slices"
)

// Load adds many routes at once, as Add does one by one; of two routes with the
// same prefix and origin the later one counts. All are checked first: on an
// error of that none is added. Only ErrFull may come later, where host routes of
// neighbors take the room: then r is not to be used. It is fastest when rts is in
// the order of All. The patricia trees are filled later, beside all else: when Fill
// is called, or Lookup or the removal of a route needs them.
func (r *RIB) Load(rts []Route) error {
	var n4, n6 int
	for i := range rts {
		if err := r.check(&rts[i]); err != nil {
			return err
		}
		if rts[i].Prefix.Addr().Is4() {
			n4++
		} else {
			n6++
		}
	}
	if n4+r.v4.len() > r.v4.max || n6+r.v6.len() > r.v6.max {
		return fmt.Errorf("fib: %w: %d IPv4 and %d IPv6 routes besides %d and %d", ErrFull, n4, n6, r.v4.len(), r.v6.len())
	}
	for _, h := range []struct {
		f *family
		n int
	}{{&r.v4, n4}, {&r.v6, n6}} {
		if err := r.load(h.f, h.n, rts); err != nil {
			return err
		}
	}
	return nil
}

// Fill begins to fill the patricia trees with what Load added, unless something
// has needed them before, and returns channels that are closed when they have it.
func (r *RIB) Fill() (done []<-chan struct{}) {
	for _, f := range []*family{&r.v4, &r.v6} {
		if f.fill(); !f.ready() {
			done = append(done, f.filling)
		}
	}
	return done
}

// load adds the n routes of family f among rts.
func (r *RIB) load(f *family, n int, rts []Route) error {
	mine := func(rt *Route) bool { return r.family(rt.Prefix.Addr()) == f }
	if n < f.index.len/16 || n < blockSize {
		for i := range rts {
			if mine(&rts[i]) {
				if err := r.Add(rts[i]); err != nil {
					return err
				}
			}
		}
		return nil
	}

	f.wait()
	f.entries = slices.Grow(f.entries, n)
	added := make([]uint32, 0, n)
	var w want
	var adj uint32
	inOrder := true
	for i := range rts {
		rt := &rts[i]
		if !mine(rt) {
			continue
		}
		if nw := r.adj.want(rt); len(added) == 0 || nw != w {
			w = nw
			adj = r.adj.get(w)
		} else {
			r.adj.refs[adj]++
		}
		m := f.alloc(entry{key: keyOf(rt.Prefix), origin: rt.Origin, adj: adj})
		r.count(f, f.entries[m].key, adj, 1)
		if l := len(added); l > 0 && !f.entries[added[l-1]].key.less(f.entries[m].key) {
			inOrder = false
		}
		added = append(added, m)
	}
	if !inOrder {
		slices.SortStableFunc(added, func(a, b uint32) int {
			switch {
			case f.entries[a].key.less(f.entries[b].key):
				return -1
			case f.entries[b].key.less(f.entries[a].key):
				return 1
			}
			return 0
		})
	}

	// Merge with what is there. Heads are put into the order of origins.
	all := make([]uint32, 0, f.index.len+n)
	changed := make([]uint32, 0, n)
	at := place{}
	for i := 0; i < len(added); {
		k := f.entries[added[i]].key
		m := f.index.at(at)
		for m != 0 && f.entries[m].key.less(k) {
			all = append(all, m)
			at = f.index.next(at)
			m = f.index.at(at)
		}
		head := uint32(0)
		if m != 0 && f.entries[m].key == k {
			head = m
			at = f.index.next(at)
		}
		for ; i < len(added) && f.entries[added[i]].key == k; i++ {
			head = r.merge(f, head, added[i])
		}
		all = append(all, head)
		changed = append(changed, head)
	}
	for m := f.index.at(at); m != 0; m = f.index.at(at) {
		all = append(all, m)
		at = f.index.next(at)
	}
	f.index.fill(all)
	f.all = true

	f.missing = changed

	if len(r.neighborsOf(f).list) > 0 {
		return r.review(f, key{}, true)
	}
	return nil
}

// merge puts entry n among the routes of its prefix, the first of which is
// head, and returns the new first one.
func (r *RIB) merge(f *family, head, n uint32) uint32 {
	e := &f.entries[n]
	p := &head
	for *p != 0 && f.entries[*p].origin < e.origin {
		p = &f.entries[*p].next
	}
	if old := *p; old != 0 && f.entries[old].origin == e.origin {
		e.next = f.entries[old].next
		r.count(f, e.key, f.entries[old].adj, -1)
		r.adj.put(f.entries[old].adj)
		f.free = append(f.free, old)
	} else {
		e.next = *p
		f.count[e.origin]++
	}
	*p = n
	return head
}
