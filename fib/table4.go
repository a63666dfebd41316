package fib

// The IPv4 table is a trie of three levels that leaves are pushed down in: a
// root for the first bits, chunks for those up to 24, and chunks for the last
// 8. An entry is the index of an adjacency, or the place of a chunk with the
// top bit set.
//
//	 0                 18     24       32
//	+------------------+------+--------+
//	| root             | mid  | low    |
//	+------------------+------+--------+
const (
	rootBits4 = 18
	midBits4  = 24 - rootBits4
	lowBits4  = 8
	chunk4    = 1 << 31
)

// A Table4 is the compiled table of IPv4.
type Table4 struct {
	root  *[1 << rootBits4]uint32
	words []uint32
}

func (t *Table4) set(root, words []uint32) {
	t.root, t.words = (*[1 << rootBits4]uint32)(root), words[:len(words):len(words)]
}

// Lookup returns the index of the adjacency for dst.
func (t *Table4) Lookup(dst uint32) uint32 {
	e := t.root[dst>>(32-rootBits4)]
	if e >= chunk4 {
		e = t.words[e&^chunk4+dst>>lowBits4&(1<<midBits4-1)]
		if e >= chunk4 {
			e = t.words[e&^chunk4+dst&(1<<lowBits4-1)]
		}
	}
	return e
}

// each yields the first address and the adjacency of each range of addresses
// that the table tells apart, in order.
func (t *Table4) each(yield func(first, adj uint32) bool) {
	for i, e := range t.root {
		at := uint32(i) << (32 - rootBits4)
		if e < chunk4 {
			if !yield(at, e) {
				return
			}
			continue
		}
		for i, e := range t.words[e&^chunk4:][:1<<midBits4] {
			at := at | uint32(i)<<lowBits4
			if e < chunk4 {
				if !yield(at, e) {
					return
				}
				continue
			}
			for i, e := range t.words[e&^chunk4:][:1<<lowBits4] {
				if !yield(at|uint32(i), e) {
					return
				}
			}
		}
	}
}

// A builder4 makes the versions of the IPv4 table.
type builder4 struct {
	family *family
	root   copies[uint32]
	pool   pool
	gen    uint64 // being made
}

// size returns the bytes of all versions.
func (b *builder4) size() int {
	return 4 * (cap(b.root.cur)*(1+len(b.root.old)) + len(b.pool.words))
}

// words returns the most words that chunks for all routes take: what a table
// has that is made at once, unless neighboring routes share adjacencies.
func (b *builder4) words() int {
	f, n := b.family, 0
	var mid, low key // of the last chunks counted; none has length 0
	for at := (place{}); at.block < len(f.index.blocks); at = f.index.next(at) {
		k := f.entries[f.index.at(at)].key
		if c := k.cut(rootBits4); k.len > rootBits4 && c != mid {
			n, mid = n+1<<midBits4, c
		}
		if c := k.cut(32 - lowBits4); k.len > 32-lowBits4 && c != low {
			n, low = n+1<<lowBits4, c
		}
	}
	return n
}

// slot makes the root's entry i from the ranges within it.
func (b *builder4) slot(i uint32, spans []span) {
	b.drop(b.root.next[i])
	e := spans[0].adj
	if len(spans) > 1 {
		e = b.mid(spans)
	}
	if e != b.root.next[i] {
		b.root.set(i, e)
	}
}

// mid returns the entry for a chunk of the middle level.
func (b *builder4) mid(spans []span) uint32 {
	c := b.pool.alloc(midBits4)
	base := spans[0].addr4() &^ (1<<(midBits4+lowBits4) - 1)
	for i := uint32(0); i < 1<<midBits4; i++ {
		last := base + i<<lowBits4 + (1<<lowBits4 - 1)
		n := 1 // spans that start up to last
		for n < len(spans) && spans[n].addr4() <= last {
			n++
		}
		e := spans[0].adj
		if n > 1 {
			if spans[1].addr4() == last&^(1<<lowBits4-1) { // starts with the entry
				spans, n = spans[1:], n-1
				e = spans[0].adj
			}
			if n > 1 {
				e = b.low(spans[:n])
			}
		}
		b.pool.words[c+i] = e
		spans = spans[n-1:]
	}
	return c | chunk4
}

// low returns the entry for a chunk of the last level: spans[0] holds at its
// start, the others start in it.
func (b *builder4) low(spans []span) uint32 {
	c := b.pool.alloc(lowBits4)
	w := b.pool.words[c:][:1<<lowBits4]
	at := uint32(0)
	for i, s := range spans {
		end := uint32(1 << lowBits4)
		if i+1 < len(spans) {
			end = spans[i+1].addr4() & (1<<lowBits4 - 1)
		}
		for ; at < end; at++ {
			w[at] = s.adj
		}
	}
	return c | chunk4
}

// drop retires the chunks behind a root entry.
func (b *builder4) drop(e uint32) {
	if e < chunk4 {
		return
	}
	for _, l := range b.pool.words[e&^chunk4:][:1<<midBits4] {
		if l >= chunk4 {
			b.pool.retire(l&^chunk4, lowBits4, b.gen)
		}
	}
	b.pool.retire(e&^chunk4, midBits4, b.gen)
}
