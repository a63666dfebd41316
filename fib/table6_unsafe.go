package fib

import "unsafe"

// word returns word i of the table, which the table's own entries name: the
// builder makes them right, and walkSafe, which checks, is tested to agree.
func (t *Table6) word(i uint64) uint32 {
	return *(*uint32)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(t.words)), i*4))
}

// walk is Lookup where the root names a node.
func (t *Table6) walk(hi, lo uint64) uint32 {
	e, x := t.root[hi>>(64-rootBits6)], hi<<rootBits6
	if e>>strideAt6 == 1<<4|firstStride { // almost always
		e = t.word(uint64(e&line6)<<lineClass + x>>(64-firstStride))
		x <<= firstStride
	}
	e, x = t.chunk(e, x)
	e, x = t.chunk(e, x)
	e, x = t.chunk(e, x)

	// A narrow node, again without a branch for other forms.
	m := uint64(int64(int32(e<<1)&^int32(e)) >> 63)
	l := t.line(uint64(e&line6) << lineClass & m)
	k := x>>32 + 1
	n := less(l[4], k) * 4
	n += less(l[n+2], k) * 2
	n += less(l[n+1], k)
	e ^= (e ^ l[fanOut+n&(fanOut-1)]) & uint32(m)
	if e < leaves6 {
		return e
	}
	return t.walkSafe(e, x, lo)
}

// chunk goes through the chunk that e names. Any other form reads word 0, which
// nobody writes, and stays what it is, without a branch.
func (t *Table6) chunk(e uint32, x uint64) (uint32, uint64) {
	m := uint64(int64(int32(e)) >> 63)
	stride := uint64(e >> strideAt6 & 15)
	e ^= (e ^ t.word((uint64(e&line6)<<lineClass+x>>(-stride&63))&m)) & uint32(m)
	return e, x << (stride & m & 63)
}

// less returns 1 if a < b, else 0.
func less(a uint32, b uint64) uint64 {
	return (uint64(a) - b) >> 63
}

// line returns the 16 words from word i on.
func (t *Table6) line(i uint64) *[1 << lineClass]uint32 {
	return (*[1 << lineClass]uint32)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(t.words)), i*4))
}
