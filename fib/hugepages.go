package fib

// hugeSize is the size of a huge page on amd64, and on arm64 with pages of
// 4 KB. On 386 it is two of them.
const hugeSize = 2 << 20

// A memory hands out the arrays of the tables. They are on the heap, so that
// the garbage collector frees what nobody reads any more, but in whole huge
// pages, which the system is asked for: a lookup in a large table otherwise
// costs a miss of the TLB with each of the cache.
type memory struct {
	small bool     // ask for no huge pages
	block []uint32 // the rest of one that small arrays share
}

// words returns n zeroed words that start a cache line, with room for c.
func (m *memory) words(n, c int) []uint32 {
	const block = hugeSize / wordSize
	if m.small {
		return make([]uint32, n, c)
	}
	if c > block/2 {
		return hugeWords(n, c)
	}
	const line = 1 << lineClass
	c = (c + line - 1) &^ (line - 1)
	if len(m.block) < c {
		m.block = hugeWords(block, block)
	}
	w := m.block[:n:c]
	m.block = m.block[c:]
	return w
}

// wordSize is the number of bytes of a word.
const wordSize = 4

// hugeWords returns n words at the start of a huge page, with room for at least
// c, in huge pages if they can be had.
func hugeWords(n, c int) []uint32 {
	const page = hugeSize / wordSize
	c = (c + page - 1) &^ (page - 1)
	w := make([]uint32, c+page)
	skip := toHugePage(w)
	w = w[skip:][:n:c]
	adviseHuge(bytesOf(w[:c]), n*wordSize)
	return w
}
