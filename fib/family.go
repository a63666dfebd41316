package fib

import "slices"

// An entry is a route of the RIB in a compact form, named by its number.
type entry struct {
	key
	origin Origin
	adj    uint32
	next   uint32 // the less preferred route of the same prefix, 0 for none
}

// A family holds the routes of one address family. Entry 0 is not used.
type family struct {
	family  uint8 // 4 or 6
	alias   uint32
	entries []entry
	free    []uint32
	index   sorted
	tree    tree
	missing []uint32      // first routes of prefixes that the tree lacks, later ones instead of earlier
	filling chan struct{} // closed when the tree has those that it lacked
	count   [NumOrigins]int
	max     int
	behind  int   // most routes that may lie behind an origin
	dirty   []key // prefixes whose adjacency changed since the last commit
	all     bool  // dirty stands for all prefixes
}

// ready reports whether the tree has all routes.
func (f *family) ready() bool {
	if len(f.missing) > 0 {
		return false
	}
	if f.filling == nil {
		return true
	}
	select {
	case <-f.filling:
		f.filling = nil
		return true
	default:
		return false
	}
}

// fill begins to fill the tree with what it lacks. The key of a route that is the
// first one of its prefix stays as it is until the route is removed, which waits.
func (f *family) fill() {
	if len(f.missing) == 0 {
		return
	}
	done := make(chan struct{})
	missing, entries := f.missing, f.entries
	f.missing, f.filling = nil, done
	go func() {
		defer close(done)
		for _, n := range missing {
			f.tree.set(entries[n].key, n)
		}
	}()
}

// wait returns the tree when it has all routes.
func (f *family) wait() tree {
	f.fill()
	if f.filling != nil {
		<-f.filling
		f.filling = nil
	}
	return f.tree
}

// set makes n the first route of its prefix in the tree, now or when that is
// filled.
func (f *family) set(n uint32) {
	if len(f.missing) > 0 {
		f.missing = append(f.missing, n)
		return
	}
	f.wait().set(f.entries[n].key, n)
}

// len returns the number of routes.
func (f *family) len() int { return len(f.entries) - 1 - len(f.free) }

// deepest returns the number of the longest prefix that covers k, or 0.
func (f *family) deepest(k key) uint32 {
	if !f.ready() {
		return f.index.deepest(f.entries, k)
	}
	n, _ := f.tree.deepest(k)
	return n
}

// covering returns the numbers of the preferred routes of all prefixes that cover
// k, shortest first.
func (f *family) covering(k key) []uint32 {
	if f.ready() {
		return f.tree.covering(nil, k)
	}
	var up []uint32
	for {
		n := f.index.deepest(f.entries, k)
		if n == 0 {
			break
		}
		up = append(up, n)
		if f.entries[n].len == 0 {
			break
		}
		k = f.entries[n].cut(f.entries[n].len - 1)
	}
	slices.Reverse(up)
	return up
}

// inherited returns the adjacency that holds in region where no longer route
// does.
func (f *family) inherited(region key) uint32 {
	if n := f.deepest(region); n != 0 && f.entries[n].len > aliasBits {
		return f.entries[n].adj
	}
	return f.alias + uint32(region.hi>>(64-aliasBits))
}

// aliased fills in what each alias copies.
func (f *family) aliased(to []alias) {
	for i := range to {
		k := key{uint64(i) << (64 - aliasBits), 0, aliasBits}
		to[i] = alias{}
		if n := f.index.deepest(f.entries, k); n != 0 {
			to[i] = alias{f.entries[n].adj, f.entries[n].len == 0}
		}
	}
}

// alloc returns the number of a new entry.
func (f *family) alloc(e entry) uint32 {
	if l := len(f.free); l > 0 {
		n := f.free[l-1]
		f.free = f.free[:l-1]
		f.entries[n] = e
		return n
	}
	f.entries = append(f.entries, e)
	return uint32(len(f.entries) - 1)
}

// route returns the number of the route with prefix k and origin o, or 0.
func (f *family) route(k key, o Origin) uint32 {
	n := f.index.find(f.entries, k)
	for n != 0 && f.entries[n].origin != o {
		n = f.entries[n].next
	}
	return n
}

// link adds entry n to the routes of its prefix, none of which has its origin.
func (f *family) link(n uint32) {
	e := &f.entries[n]
	f.count[e.origin]++
	head := f.index.find(f.entries, e.key)
	if head == 0 || e.origin < f.entries[head].origin {
		e.next = head
		f.index.set(f.entries, n)
		f.set(n)
		if head == 0 || f.entries[head].adj != e.adj {
			f.touch(e.key)
		}
		return
	}
	p := &f.entries[head]
	for p.next != 0 && f.entries[p.next].origin < e.origin {
		p = &f.entries[p.next]
	}
	e.next, p.next = p.next, n
}

// unlink removes entry n from the routes of its prefix and frees it.
func (f *family) unlink(n uint32) {
	f.wait() // for n may be missing in the tree, and soon be the number of another route
	e := f.entries[n]
	f.count[e.origin]--
	head := f.index.find(f.entries, e.key)
	switch {
	case head != n:
		p := &f.entries[head]
		for p.next != n {
			p = &f.entries[p.next]
		}
		p.next = e.next
	case e.next != 0:
		f.index.set(f.entries, e.next)
		f.set(e.next)
		if f.entries[e.next].adj != e.adj {
			f.touch(e.key)
		}
	default:
		f.index.remove(f.entries, e.key)
		f.wait().remove(e.key)
		f.touch(e.key)
	}
	f.free = append(f.free, n)
}

// readj gives entry n another adjacency.
func (f *family) readj(n, adj uint32) {
	e := &f.entries[n]
	if e.adj == adj {
		return
	}
	e.adj = adj
	if f.index.find(f.entries, e.key) == n {
		f.touch(e.key)
	}
}

// touch notes that the adjacency of prefix k changed.
func (f *family) touch(k key) {
	if k.len > aliasBits && !f.all {
		f.dirty = append(f.dirty, k)
	}
}
