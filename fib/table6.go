package fib

import "math/bits"

// The IPv6 table is a search structure over the upper 64 bits of the address,
// and for the few values of these that longer routes tell apart a further one
// of the same form over the lower 64 bits.
//
// It starts with a root for 16 bits: the first ones, or in a small table those
// behind the bits that all routes share, the origin. An entry is the index of an
// adjacency or names a node and its form:
//
//	 31  30  29  28  27 26                0
//	+---+---+---+-----------------------------+
//	| 0 | 0 | 0 | adjacency                   | leaf
//	+---+---+---+-------+---------------------+
//	| 1 | stride        | line                | chunk
//	| 0 | 1 | 0   0   0 | line                | narrow
//	| 0 | 0 | 1 | 0   0 | line                | wide
//	| 0 | 0 | 1 | 1   0 | line                | low
//	+---+---+---+-------+---------------------+
//
// Nodes lie in lines of 16 words, one cache line. A chunk is indexed by the
// next stride bits of the address. A narrow node is one line: seven boundaries
// of 32 bits, in ascending order from word 1 on, and in words 8 to 15 the
// entries of the ranges before, between and after them; unused places repeat
// the last range with the largest boundary. A wide node is two lines: seven
// boundaries of 64 bits from word 2 on, lower half first, and the entries in
// words 16 to 23. Boundaries are shifted left by the number of bits that chunks
// above have used. A low node goes on with the lower 64 bits, and skips those
// that all of them share where longer routes are: hosts are numbered from one end
// or share a vendor. Word 0 is the entry behind the bits skipped, word 1 the
// leaf of all other addresses, words 2 and 3 have the bits skipped, lower half
// first and the rest zero, word 4 their number. One below a chunk of the lower
// bits skips from their start, too.
const (
	rootBits6  = 16
	maxOrigin6 = 64 - rootBits6

	chunk6  = 1 << 31
	narrow6 = 1 << 30
	wide6   = 1 << 29
	low6    = 1<<29 | 1<<28
	leaves6 = More // entries below are leaves

	strideAt6 = 27
	line6     = 1<<strideAt6 - 1

	minStride = 4 // a chunk of one line
	maxStride = 12
	sparse    = 1  // chunks have up to 1<<sparse times as many entries as there are ranges, rounded up
	fanOut    = 8  // ranges of a narrow or wide node
	fanMax    = 64 // most ranges of the lower bits that a fan of these holds
	lineClass = 4  // class of a line
)

// form6 returns the form of the node that e names: one of the constants above,
// 0 for a leaf.
func form6(e uint32) uint32 {
	switch {
	case e >= chunk6:
		return chunk6
	case e >= narrow6:
		return narrow6
	}
	return e & low6
}

// A Table6 is the compiled table of IPv6.
type Table6 struct {
	root  []uint32 // the last entry is for what is not behind the origin
	base  uint64   // the origin
	shift uint8    // bits of the upper half after those of the root
	words []uint32
}

func (t *Table6) set(root, words []uint32, origin key) {
	*t = Table6{root, origin.hi, 64 - rootBits6 - origin.len, words[:len(words):len(words)]}
}

// First returns the index of the adjacency for destinations whose upper 64 bits
// are hi if it is found at once, as it is for large blocks and in small tables,
// or else More or a greater value: then Lookup is to be asked.
func (t *Table6) First(hi uint64) uint32 {
	return t.root[min((hi-t.base)>>t.shift, 1<<rootBits6)]
}

// walkSafe goes on from entry e, whose node tells apart the leftmost bits of x.
// walk leaves to it what is long.
func (t *Table6) walkSafe(e uint32, x, lo uint64) uint32 {
	for {
		at := uint64(e&line6) << lineClass
		switch form6(e) {
		case chunk6:
			stride := e >> strideAt6 & 15
			e = t.words[at+x>>(64-stride)]
			x <<= stride
		case narrow6:
			k := uint32(x >> 32)
			n := uint64(0)
			for n < fanOut-1 && k >= t.words[at+n+1] {
				n++
			}
			e = t.words[at+fanOut+n]
		case wide6:
			n := uint64(0)
			for n < fanOut-1 && x >= uint64(t.words[at+2*n+2])|uint64(t.words[at+2*n+3])<<32 {
				n++
			}
			e = t.words[at+2*fanOut+n]
		case low6:
			n := node6{t.words, e}
			skip := n.skip()
			if (lo^n.shared())>>(64-skip) != 0 {
				return n.outside()
			}
			x, e = lo<<skip, t.words[at]
		default:
			return e
		}
	}
}

// each yields the first address and the adjacency of each range of addresses
// that the table tells apart, in order.
func (t *Table6) each(yield func(hi, lo uint64, adj uint32) bool) {
	for i := range uint64(1) << aliasBits {
		first := i << (64 - aliasBits)
		part := t.root[:1<<rootBits6]
		behind := t.shift < 64-rootBits6 // there is an origin
		switch {
		case !behind:
			part = part[i<<(rootBits6-aliasBits):][:1<<(rootBits6-aliasBits)]
		case t.base>>(64-aliasBits) != i:
			if !yield(first, 0, aliases6+uint32(i)) {
				return
			}
			continue
		default:
			if t.base != first && !yield(first, 0, aliases6+uint32(i)) {
				return
			}
			first = t.base
		}
		if !t.eachSlot(part, first, yield) {
			return
		}
		if end := first + uint64(len(part))<<t.shift; end<<aliasBits != 0 && !yield(end, 0, aliases6+uint32(i)) {
			return
		}
	}
}

// eachSlot is each for a part of the root that starts with address first.
func (t *Table6) eachSlot(part []uint32, first uint64, yield func(hi, lo uint64, adj uint32) bool) bool {
	ok := true
	for i, e := range part {
		if !ok {
			return false
		}
		base := first + uint64(i)<<t.shift
		t.ranges(e, base, base, 64-uint(t.shift), false, func(hi uint64, e uint32) {
			if !ok {
				return
			}
			if form6(e) != low6 {
				ok = yield(hi, 0, e)
				return
			}
			t.ranges(e, 0, 0, 0, true, func(lo uint64, e uint32) {
				ok = ok && yield(hi, lo, e)
			})
		})
	}
	return ok
}

// ranges emits what entry e holds: the starts of its ranges, the first one at
// from. Nodes above e have used depth bits, which are those of base. Unless they
// are of the lower half, entries that go on with it are emitted like leaves.
func (t *Table6) ranges(e uint32, base, from uint64, depth uint, lower bool, emit func(start uint64, e uint32)) {
	n := node6{t.words, e}
	switch form := form6(e); {
	case form == 0 || form == low6 && !lower:
		emit(from, e)
	case form == low6:
		skip, first := n.skip(), n.shared()
		if first > from {
			emit(from, n.outside())
		}
		t.ranges(t.words[n.at()], first, first, skip, lower, emit)
		if last := first | ^uint64(0)>>skip; last < base|^uint64(0)>>depth {
			emit(last+1, n.outside())
		}
	case form == chunk6:
		stride := n.stride()
		for i := uint64(0); i < 1<<stride; i++ {
			b := base | i<<(64-depth-stride)
			t.ranges(t.words[n.at()+uint32(i)], b, max(b, from), depth+stride, lower, emit)
		}
	default:
		n.fan(func(i int, boundary uint64, child *uint32) {
			if i > 0 {
				from = base | boundary>>depth
			}
			t.ranges(*child, base, from, depth, lower, emit)
		})
	}
}

// A node6 is the node that an entry names.
type node6 struct {
	words []uint32
	e     uint32
}

func (n node6) at() uint32   { return n.e & line6 << lineClass }
func (n node6) stride() uint { return uint(n.e >> strideAt6 & 15) }

// class returns the size of the node's chunk in the pool.
func (n node6) class() uint8 {
	switch form6(n.e) {
	case chunk6:
		return uint8(n.stride())
	case wide6:
		return lineClass + 1
	}
	return lineClass
}

// outside, shared and skip return what a low node has besides its entry.
func (n node6) outside() uint32 { return n.words[n.at()+1] }
func (n node6) skip() uint      { return uint(n.words[n.at()+4]) }
func (n node6) shared() uint64 {
	w := n.words[n.at():]
	return uint64(w[2]) | uint64(w[3])<<32
}

// children returns the entries of the node that may name others, in words.
func (n node6) children() []uint32 {
	w := n.words[n.at():]
	switch form6(n.e) {
	case chunk6:
		return w[:1<<n.stride()]
	case narrow6:
		return w[fanOut : 2*fanOut]
	case wide6:
		return w[2*fanOut : 3*fanOut]
	}
	return w[:1]
}

// boundary returns the start of range i of a narrow or wide node.
func (n node6) boundary(i int) uint64 {
	if form6(n.e) == narrow6 {
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
	family *family
	origin key
	root   copies[uint32]
	pool   pool
	gen    uint64 // being made
	steps  []step
	lows   []step
	lower  bool // at the lower 64 bits
}

// size returns the bytes of all versions.
func (b *builder6) size() int {
	return 4 * (cap(b.root.cur)*(1+len(b.root.old)) + len(b.pool.words))
}

// slot makes the root's entry i from the ranges within it.
func (b *builder6) slot(i uint32, spans []span) {
	old := b.root.next[i]
	b.drop(old)
	e := spans[0].adj
	if len(spans) > 1 {
		e = b.high(spans, uint(b.origin.len)+rootBits6)
	}
	if e != old {
		b.root.set(i, e)
	}
}

// update returns the entry in place of e for cell, after changes within p, which
// lies in cell. Lower says that e is at the lower 64 bits. Only the nodes on the
// way to p are made again, and below p all.
func (b *builder6) update(s *sweep, e uint32, cell, p key, lower bool) uint32 {
	switch form6(e) {
	case chunk6:
		return b.updateChunk(s, e, cell, p, lower)
	case low6:
		n := node6{b.pool.words, e}
		inner := n.children()[0]
		within := key{cell.hi, n.shared(), 64 + uint8(n.skip())}
		if form6(inner) != chunk6 || !within.covers(p) {
			break
		}
		child := b.update(s, inner, within, p, true)
		if child == inner {
			return e
		}
		b.retire(e)
		if child < leaves6 {
			return b.make(s, cell, lower)
		}
		at := b.pool.alloc(lineClass)
		w := b.pool.words[at:][:1<<lineClass]
		copy(w, b.pool.words[n.at():])
		w[0] = child
		return low6 | at>>lineClass
	case narrow6, wide6:
		// A way to a longer route's upper half that stays.
		if p.len <= 64 || lower {
			break
		}
		n := node6{b.pool.words, e}
		c := n.children()
		i := 0
		for i+1 < len(c) && c[i+1] != c[i] && p.hi<<cell.len >= n.boundary(i+1) {
			i++
		}
		old := c[i]
		if form6(old) != low6 {
			break
		}
		child := b.update(s, old, p.cut(64), p, false)
		if child == old {
			return e
		}
		if form6(child) != low6 {
			for j := range c {
				if c[j] != old && (j == 0 || c[j] != c[j-1]) {
					b.drop(c[j])
				}
			}
			b.retire(e)
			return b.make(s, cell, lower)
		}
		at := b.pool.alloc(n.class())
		m := node6{b.pool.words, e&^line6 | at>>lineClass}
		copy(m.words[at:][:1<<n.class()], m.words[n.at():])
		for j, c := range m.children() {
			if c == old {
				m.children()[j] = child
			}
		}
		b.retire(e)
		return m.e
	}
	return b.rebuild(s, e, cell, lower)
}

// updateChunk is update of a chunk.
func (b *builder6) updateChunk(s *sweep, e uint32, cell, p key, lower bool) uint32 {
	n := node6{b.pool.words, e}
	stride := n.stride()
	bits, used := p.hi, uint(cell.len)
	if lower {
		bits, used = p.lo, used-64
	}
	first := bits << used >> (64 - stride)
	count := uint64(1)
	if end := cell.len + uint8(stride); p.len < end {
		count <<= end - p.len
	}
	var changed [1 << maxStride]uint32
	same := true
	for i := first; i < first+count; i++ {
		c := key{cell.hi, cell.lo, cell.len + uint8(stride)}
		if lower {
			c.lo |= i << (64 - used - stride)
		} else {
			c.hi |= i << (64 - used - stride)
		}
		old := b.pool.words[uint64(n.at())+i]
		if p.len > c.len {
			changed[i-first] = b.update(s, old, c, p, lower)
		} else {
			changed[i-first] = b.rebuild(s, old, c, lower)
		}
		same = same && changed[i-first] == old
	}
	if same {
		return e
	}
	at := b.pool.alloc(n.class())
	w := b.pool.words[at:][:1<<stride]
	copy(w, b.pool.words[n.at():])
	copy(w[first:], changed[:count])
	b.retire(e)
	e = e&^line6 | at>>lineClass
	// A chunk that a node could replace goes.
	runs := 1
	for i := range w {
		if w[i] >= leaves6 {
			return e
		}
		if i > 0 && w[i] != w[i-1] {
			runs++
		}
	}
	if runs > fanOut {
		return e
	}
	return b.rebuild(s, e, cell, lower)
}

// rebuild returns the entry for cell made from its routes, in place of e.
func (b *builder6) rebuild(s *sweep, e uint32, cell key, lower bool) uint32 {
	b.drop(e)
	return b.make(s, cell, lower)
}

// make returns the entry for cell made from its routes.
func (b *builder6) make(s *sweep, cell key, lower bool) uint32 {
	s.start(b.family, cell)
	spans := s.cell(cell)
	if !lower {
		return b.high(spans, uint(cell.len))
	}
	l := b.lows[:0]
	for _, p := range spans {
		l = add(l, p.lo, p.adj)
	}
	b.lows = l
	b.lower = true
	r := b.node(l, cell.lo, uint(cell.len)-64)
	b.lower = false
	return r
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
	if len(s) == 1 {
		return s[0].e
	}
	b.lower = true
	r := b.lowNode(s, 0)
	b.lower = false
	return r
}

// lowNode returns the entry for a low node, for a cell of the lower bits that
// starts at base and has at least two ranges.
func (b *builder6) lowNode(steps []step, base uint64) uint32 {
	first, skip := shared6(steps, base)
	outside := steps[len(steps)-1].e
	if steps[1].key <= first {
		steps = steps[1:]
	}
	if n := len(steps) - 1; n > 0 && steps[n].key > first|^uint64(0)>>skip {
		steps = steps[:n]
	}
	e := b.node(steps, first, skip)
	at := b.pool.alloc(lineClass)
	w := b.pool.words[at:][:1<<lineClass]
	clear(w)
	w[0], w[1], w[2], w[3], w[4] = e, outside, uint32(first), uint32(first>>32), uint32(skip)
	return low6 | at>>lineClass
}

// shared6 returns the start of the smallest cell that has all addresses, from
// base on, where another entry holds than that of the last of the steps, and the
// number n of bits that all of these share.
func shared6(steps []step, base uint64) (first uint64, n uint) {
	last := steps[len(steps)-1]
	first = base
	if steps[0].e == last.e {
		first = steps[1].key
	}
	n = uint(bits.LeadingZeros64(first ^ (last.key - 1)))
	return first &^ (^uint64(0) >> n), n
}

// node returns the entry for a cell that starts at base and is 64-depth bits
// wide. steps[0] holds at base, the others start in the cell.
func (b *builder6) node(steps []step, base uint64, depth uint) uint32 {
	n := len(steps)
	if n == 1 {
		return steps[0].e
	}
	if n <= fanOut && (b.lower || narrowable(steps, depth)) {
		return b.leafNode(steps, depth)
	}
	if b.lower && n <= fanMax {
		// Hosts of one network, often close together.
		return b.fanNode(steps, depth)
	}
	stride := max(min(uint(bits.Len(uint(n-1)))+sparse, maxStride, 64-depth), minStride)
	if n <= fanOut { // a narrow node can hold them below
		stride = min(max(64-32-depth, minStride), 8)
	}
	if b.lower {
		if _, shared := shared6(steps, base); shared >= depth+stride {
			return b.lowNode(steps, base)
		}
	}
	width := uint64(1) << (64 - depth - stride)
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
	return chunk6 | uint32(stride)<<strideAt6 | at>>lineClass
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

// narrowable reports whether a narrow node can hold the boundaries.
func narrowable(steps []step, depth uint) bool {
	for _, s := range steps[1:] {
		if uint32(s.key<<depth) != 0 {
			return false
		}
	}
	return true
}

// leafNode returns the entry for up to fanOut ranges, narrow if their
// boundaries allow.
func (b *builder6) leafNode(steps []step, depth uint) uint32 {
	form, class := uint32(narrow6), uint8(lineClass)
	if !narrowable(steps, depth) {
		form, class = wide6, lineClass+1
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
	if e < leaves6 {
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
	b.retire(e)
}

// retire retires the node that e names, without those below.
func (b *builder6) retire(e uint32) {
	n := node6{b.pool.words, e}
	b.pool.retire(n.at(), n.class(), b.gen)
}
