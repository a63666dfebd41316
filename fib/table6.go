package fib

import "math/bits"

// The IPv6 table is a search structure over the upper 64 bits of the address,
// and for the few values of these that longer routes tell apart a further one
// of the same form over the lower 64 bits.
//
// It starts with a root for the first 16 bits. An entry is the index of an
// adjacency or names a node and its form:
//
//	31   30 29    28  26 25          0
//	+------+-----+------+-------------+
//	| form | low | bits | line        |
//	+------+-----+------+-------------+
//
// Nodes lie in lines of 16 words, one cache line. A chunk is indexed by the
// next bits+minStride bits of the address. A narrow node is one line: seven
// boundaries of 32 bits, in ascending order from word 1 on, and in words 8 to
// 15 the entries of the ranges before, between and after them; unused places
// repeat the last range with the largest boundary. A wide node is two lines:
// seven boundaries of 64 bits from word 2 on, lower half first, and the
// entries in words 16 to 23. Boundaries are shifted left by the number of bits
// that chunks above have used. Low means that the node, before anything else,
// goes on with the lower 64 bits.
const (
	rootBits6 = 16

	form6   = 3 << 30
	leaf6   = 0 << 30
	chunk6  = 1 << 30
	narrow6 = 2 << 30
	wide6   = 3 << 30

	low6      = 1 << 29
	strideAt6 = 26
	line6     = 1<<strideAt6 - 1

	minStride = 4 // a chunk of one line
	maxStride = 8
	fanOut    = 8  // ranges of a narrow or wide node
	lineClass = 4  // class of a line
	fanMax    = 64 // most ranges that a fan of narrow or wide nodes holds
)

// A Table6 is the compiled table of IPv6.
type Table6 struct {
	root  *[1 << rootBits6]uint32
	words []uint32
}

func (t *Table6) set(root, words []uint32) {
	t.root, t.words = (*[1 << rootBits6]uint32)(root), words[:len(words):len(words)]
}

// Lookup returns the index of the adjacency for the destination whose upper and
// lower 64 bits are hi and lo.
func (t *Table6) Lookup(hi, lo uint64) uint32 {
	e := t.root[hi>>(64-rootBits6)]
	if e >= chunk6 {
		e = t.walk(e, hi<<rootBits6, lo)
	}
	return e
}

// walk goes on from entry e, whose node tells apart the leftmost bits of x.
func (t *Table6) walk(e uint32, x, lo uint64) uint32 {
	for {
		if e&low6 != 0 {
			x = lo
		}
		at := e & line6 << lineClass
		switch e >> 30 {
		case chunk6 >> 30:
			stride := e>>strideAt6&7 + minStride
			e = t.words[uint64(at)+x>>(64-stride)]
			x <<= stride
		case narrow6 >> 30:
			l := (*[16]uint32)(t.words[at:])
			k := uint32(x >> 32)
			n := ge(k, l[1]) + ge(k, l[2]) + ge(k, l[3]) + ge(k, l[4]) + ge(k, l[5]) + ge(k, l[6]) + ge(k, l[7])
			e = l[8+n&7]
		case wide6 >> 30:
			l := (*[32]uint32)(t.words[at:])
			n := uint32(0)
			for i := 2; i < 16; i += 2 {
				_, borrow := bits.Sub64(x, uint64(l[i])|uint64(l[i+1])<<32, 0)
				n += 1 - uint32(borrow)
			}
			e = l[16+n&7]
		default:
			return e
		}
	}
}

// ge returns 1 if a >= b, else 0, without a branch.
func ge(a, b uint32) uint32 {
	return uint32((uint64(a)-uint64(b))>>63) ^ 1
}

// each yields the first address and the adjacency of each range of addresses
// that the table tells apart, in order.
func (t *Table6) each(yield func(hi, lo uint64, adj uint32) bool) {
	ok := true
	for i, e := range t.root {
		if !ok {
			return
		}
		base := uint64(i) << (64 - rootBits6)
		t.ranges(e, base, base, rootBits6, func(hi uint64, e uint32) {
			if !ok {
				return
			}
			if e&low6 == 0 {
				ok = yield(hi, 0, e)
				return
			}
			t.ranges(e&^low6, 0, 0, 0, func(lo uint64, e uint32) {
				ok = ok && yield(hi, lo, e)
			})
		})
	}
}

// ranges emits what entry e holds: the starts of its ranges, the first one at
// from. Chunks above e have used depth bits, which are those of base. Entries
// that go on with the lower bits are emitted like leaves.
func (t *Table6) ranges(e uint32, base, from uint64, depth uint, emit func(start uint64, e uint32)) {
	if e < chunk6 || e&low6 != 0 {
		emit(from, e)
		return
	}
	n := node6{t.words, e}
	if e&form6 == chunk6 {
		stride := n.stride()
		for i := uint64(0); i < 1<<stride; i++ {
			b := base | i<<(64-depth-stride)
			t.ranges(t.words[n.at()+uint32(i)], b, max(b, from), depth+stride, emit)
		}
		return
	}
	n.fan(func(i int, boundary uint64, child *uint32) {
		if i > 0 {
			from = base | boundary>>depth
		}
		t.ranges(*child, base, from, depth, emit)
	})
}

// A node6 is the node that an entry names.
type node6 struct {
	words []uint32
	e     uint32
}

func (n node6) at() uint32   { return n.e & line6 << lineClass }
func (n node6) stride() uint { return uint(n.e>>strideAt6&7 + minStride) }

// class returns the size of the node's chunk in the pool.
func (n node6) class() uint8 {
	switch n.e & form6 {
	case chunk6:
		return uint8(n.stride())
	case narrow6:
		return lineClass
	}
	return lineClass + 1
}

// children returns the entries of the node, in words.
func (n node6) children() []uint32 {
	switch n.e & form6 {
	case chunk6:
		return n.words[n.at():][:1<<n.stride()]
	case narrow6:
		return n.words[n.at():][8:16]
	}
	return n.words[n.at():][16:24]
}

// boundary returns the start of range i of a narrow or wide node.
func (n node6) boundary(i int) uint64 {
	if n.e&form6 == narrow6 {
		return uint64(n.words[n.at():][i]) << 32
	}
	w := n.words[n.at():][2*i:]
	return uint64(w[0]) | uint64(w[1])<<32
}

// fan calls f for the ranges of a narrow or wide node.
func (n node6) fan(f func(i int, boundary uint64, child *uint32)) {
	c := n.children()
	for i := range c {
		if i > 0 && c[i] == c[i-1] { // unused
			return
		}
		f(i, n.boundary(i), &c[i])
	}
}

// A step is a range of 64-bit values that starts at key and ends before the
// next one. Its entry is a leaf, or goes on with the lower bits.
type step struct {
	key uint64
	e   uint32
}

// A builder6 makes the versions of the IPv6 table.
type builder6 struct {
	root  copies[uint32]
	pool  pool
	gen   uint64 // being made
	steps []step
	lows  []step
}

// size returns the bytes of all versions.
func (b *builder6) size() int {
	return 4 * (cap(b.root.cur)*(1+len(b.root.old)) + len(b.pool.words))
}

// slot makes the root's entry i from the ranges within it.
func (b *builder6) slot(i uint32, spans []span) {
	b.drop(b.root.next[i])
	if e := b.high(spans, rootBits6); e != b.root.next[i] {
		b.root.set(i, e)
	}
}

// high returns the entry for a cell of the upper bits, whose first depth bits
// are used, from its ranges.
func (b *builder6) high(spans []span, depth uint) uint32 {
	s := b.steps[:0]
	base := spans[0].hi
	end := base | ^uint64(0)>>depth
	for len(spans) > 0 {
		hi := spans[0].hi
		n := 1 // spans that start in the same hi
		for n < len(spans) && spans[n].hi == hi {
			n++
		}
		if n == 1 && spans[0].lo == 0 {
			s = add(s, hi, spans[0].adj)
		} else {
			var e uint32 // in force where hi starts
			if spans[0].lo != 0 {
				e = s[len(s)-1].e
			}
			s = add(s, hi, b.low(e, spans[:n]))
			if hi != end {
				s = add(s, hi+1, spans[n-1].adj)
			}
		}
		spans = spans[n:]
	}
	b.steps = s
	return b.node(s, base, depth)
}

// add appends a step, or changes or lengthens the last one.
func add(s []step, key uint64, e uint32) []step {
	if n := len(s); n > 0 && s[n-1].key == key {
		s = s[:n-1]
	}
	if n := len(s); n > 0 && s[n-1].e == e {
		return s
	}
	return append(s, step{key, e})
}

// low returns the entry for one value of the upper bits: e holds at its start
// unless the first span starts there.
func (b *builder6) low(e uint32, spans []span) uint32 {
	s := add(b.lows[:0], 0, e)
	for _, p := range spans {
		s = add(s, p.lo, p.adj)
	}
	b.lows = s
	r := b.node(s, 0, 0)
	if r >= chunk6 {
		r |= low6
	}
	return r
}

// node returns the entry for a cell that starts at base and is 64-depth bits
// wide. steps[0] holds at base, the others start in the cell.
func (b *builder6) node(steps []step, base uint64, depth uint) uint32 {
	n := len(steps)
	if n == 1 {
		return steps[0].e
	}
	if n <= fanOut {
		return b.leafNode(steps, depth)
	}
	stride := min(uint(bits.Len(uint(n-1))), maxStride, 64-depth)
	stride = max(stride, minStride)
	width := uint64(1) << (64 - depth - stride)
	if n <= fanMax && skewed(steps, base, width) {
		return b.fanNode(steps, depth)
	}
	at := b.pool.alloc(uint8(stride))
	for i := uint32(0); i < 1<<stride; i++ {
		start := base + uint64(i)*width
		if len(steps) > 1 && steps[1].key == start {
			steps = steps[1:]
		}
		n := 1
		for n < len(steps) && steps[n].key-start < width {
			n++
		}
		e := b.node(steps[:n], start, depth+stride)
		b.pool.words[at+i] = e
		steps = steps[n-1:]
	}
	return chunk6 | uint32(stride-minStride)<<strideAt6 | at>>lineClass
}

// skewed reports whether three quarters of the steps would be in one entry of
// a chunk whose entries are width wide.
func skewed(steps []step, base, width uint64) bool {
	run, most := 0, 0
	last := uint64(0)
	for _, s := range steps[1:] {
		if i := (s.key - base) / width; i != last {
			run, last = 0, i
		}
		run++
		most = max(most, run)
	}
	return most*4 >= len(steps)*3
}

// fanNode returns the entry for a cell as a tree of narrow and wide nodes.
func (b *builder6) fanNode(steps []step, depth uint) uint32 {
	per := 1 // ranges below each entry: all but the last ones are full
	for per*fanOut < len(steps) {
		per *= fanOut
	}
	if per == 1 {
		return b.leafNode(steps, depth)
	}
	var top [fanOut]step
	n := 0
	for ; len(steps) > 0; n++ {
		m := min(per, len(steps))
		e := steps[0].e
		if m > 1 {
			e = b.fanNode(steps[:m], depth)
		}
		top[n] = step{steps[0].key, e}
		steps = steps[m:]
	}
	return b.leafNode(top[:n], depth)
}

// leafNode returns the entry for up to fanOut ranges, narrow if their
// boundaries allow.
func (b *builder6) leafNode(steps []step, depth uint) uint32 {
	form, class := uint32(narrow6), uint8(lineClass)
	for _, s := range steps[1:] {
		if uint32(s.key<<depth) != 0 {
			form, class = wide6, lineClass+1
		}
	}
	at := b.pool.alloc(class)
	n := node6{b.pool.words, form | at>>lineClass}
	clear(n.words[at:][:1<<class])
	c := n.children()
	for i := range fanOut {
		k := ^uint64(0)
		if i < len(steps) {
			k = steps[i].key << depth
			c[i] = steps[i].e
		} else {
			c[i] = c[i-1]
		}
		if i == 0 {
			k = 0
		}
		if form == narrow6 {
			n.words[at+uint32(i)] = uint32(k >> 32)
		} else {
			n.words[at+uint32(2*i)], n.words[at+uint32(2*i)+1] = uint32(k), uint32(k>>32)
		}
	}
	return n.e
}

// drop retires the node that e names and all below.
func (b *builder6) drop(e uint32) {
	if e < chunk6 {
		return
	}
	n := node6{b.pool.words, e}
	last := uint32(0)
	for _, c := range n.children() {
		if c != last { // unused ranges repeat the last one
			b.drop(c)
		}
		last = c
	}
	b.pool.retire(n.at(), n.class(), b.gen)
}
