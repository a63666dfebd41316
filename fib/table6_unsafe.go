package fib

import "unsafe"

// Lookup returns the index of the adjacency for the destination whose upper and
// lower 64 bits are hi and lo.
//
// It does what walkSafe does, which takes over for the rare forms, without the
// checks: the builder makes the entries right, and both are tested to agree.
func (t *Table6) Lookup(hi, lo uint64) uint32 {
	i := (hi - t.base) >> t.shift
	if i >= 1<<rootBits6 {
		return aliases6 + uint32(hi>>(64-aliasBits))
	}
	e := t.root[i]
	if e < leaves6 {
		return e
	}
	x := hi << (64 - t.shift)
	for e >= chunk6 {
		stride := uint64(e >> strideAt6 & 15)
		e = *t.word(uint64(e&line6)<<lineClass + x>>(-stride&63))
		x <<= stride & 63
	}
	if e < leaves6 {
		return e
	}
	if e < narrow6 {
		return t.walkSafe(e, x, lo)
	}
	// The boundaries are compared without branches, which nobody could guess.
	l := (*[2 * fanOut]uint32)(unsafe.Pointer(t.word(uint64(e&line6) << lineClass)))
	k := x>>32 + 1
	n := less(l[4], k) * 4
	n += less(l[n+2], k) * 2
	n += less(l[n+1], k)
	e = l[fanOut+n&(fanOut-1)]
	if e < leaves6 {
		return e
	}
	return t.walkSafe(e, x, lo)
}

// word returns word i of the table.
func (t *Table6) word(i uint64) *uint32 {
	return (*uint32)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(t.words)), i*4))
}

// less returns 1 if a < b, else 0.
func less(a uint32, b uint64) uint64 {
	return (uint64(a) - b) >> 63
}
