package fib

import "sort"

// blockSize is the most numbers in a block of the sorted index: an insert
// moves at most this many.
const blockSize = 512

// A sorted lists the numbers of the preferred routes of all prefixes of one
// family in the order of their keys, in blocks, so that a change of one route
// moves little.
type sorted struct {
	blocks [][]uint32 // none empty
	len    int
}

// A place is a position in the sorted index.
type place struct{ block, at int }

// seek returns the first place whose key is not less than k.
func (x *sorted) seek(es []entry, k key) place {
	b := sort.Search(len(x.blocks), func(i int) bool { return k.less(es[x.blocks[i][0]].key) })
	if b > 0 {
		// All keys from block b on are greater than k.
		blk := x.blocks[b-1]
		i := sort.Search(len(blk), func(i int) bool { return !es[blk[i]].key.less(k) })
		if i < len(blk) {
			return place{b - 1, i}
		}
	}
	return place{b, 0}
}

// at returns the number at p, or 0 at the end.
func (x *sorted) at(p place) uint32 {
	if p.block == len(x.blocks) {
		return 0
	}
	return x.blocks[p.block][p.at]
}

// next returns the place after p.
func (x *sorted) next(p place) place {
	p.at++
	if p.at == len(x.blocks[p.block]) {
		return place{p.block + 1, 0}
	}
	return p
}

// prev returns the place before p, which is not the first.
func (x *sorted) prev(p place) place {
	if p.at > 0 {
		return place{p.block, p.at - 1}
	}
	return place{p.block - 1, len(x.blocks[p.block-1]) - 1}
}

// before returns the number before p, or 0 at the start.
func (x *sorted) before(p place) uint32 {
	if p.at > 0 {
		return x.blocks[p.block][p.at-1]
	}
	if p.block == 0 {
		return 0
	}
	b := x.blocks[p.block-1]
	return b[len(b)-1]
}

// find returns the number of the route with key k, or 0.
func (x *sorted) find(es []entry, k key) uint32 {
	n := x.at(x.seek(es, k))
	if n == 0 || es[n].key != k {
		return 0
	}
	return n
}

// set puts n in the place of the number with the same key, or inserts it.
func (x *sorted) set(es []entry, n uint32) {
	k := es[n].key
	p := x.seek(es, k)
	if m := x.at(p); m != 0 && es[m].key == k {
		x.blocks[p.block][p.at] = n
		return
	}
	x.len++
	if p.at == 0 && p.block > 0 { // append to the block before rather than start one
		p = place{p.block - 1, len(x.blocks[p.block-1])}
	}
	if len(x.blocks) == 0 {
		x.blocks = append(x.blocks, make([]uint32, 0, blockSize))
	}
	b := x.blocks[p.block]
	if len(b) == blockSize {
		right := append(make([]uint32, 0, blockSize), b[blockSize/2:]...)
		b = b[:blockSize/2]
		x.blocks[p.block] = b
		x.blocks = append(x.blocks, nil)
		copy(x.blocks[p.block+2:], x.blocks[p.block+1:])
		x.blocks[p.block+1] = right
		if p.at > len(b) {
			p = place{p.block + 1, p.at - len(b)}
			b = right
		}
	}
	b = append(b, 0)
	copy(b[p.at+1:], b[p.at:])
	b[p.at] = n
	x.blocks[p.block] = b
}

// remove takes out the number with key k.
func (x *sorted) remove(es []entry, k key) {
	p := x.seek(es, k)
	if n := x.at(p); n == 0 || es[n].key != k {
		return
	}
	x.len--
	b := append(x.blocks[p.block][:p.at], x.blocks[p.block][p.at+1:]...)
	x.blocks[p.block] = b
	drop := -1
	switch {
	case len(b) == 0:
		drop = p.block
	case p.block+1 < len(x.blocks) && len(b)+len(x.blocks[p.block+1]) <= blockSize/2:
		x.blocks[p.block] = append(b, x.blocks[p.block+1]...)
		drop = p.block + 1
	}
	if drop >= 0 {
		copy(x.blocks[drop:], x.blocks[drop+1:])
		x.blocks[len(x.blocks)-1] = nil
		x.blocks = x.blocks[:len(x.blocks)-1]
	}
}

// deepest returns the number of the longest prefix that covers k, or 0. Among
// the keys up to k, those that cover k cover also all between them and k: so
// if the last one does not cover k, nothing longer than what it shares with k
// does.
func (x *sorted) deepest(es []entry, k key) uint32 {
	for c := k; ; {
		p := x.seek(es, key{c.hi, c.lo, c.len + 1})
		n := x.before(p)
		if n == 0 || es[n].covers(k) {
			return n
		}
		c = k.cut(es[n].common(k))
	}
}

// fill makes x the list of ns, which are in order.
func (x *sorted) fill(ns []uint32) {
	const full = blockSize * 3 / 4 // leaves room in each block
	x.blocks, x.len = make([][]uint32, 0, len(ns)/full+1), len(ns)
	for len(ns) > 0 {
		n := min(full, len(ns))
		x.blocks = append(x.blocks, append(make([]uint32, 0, blockSize), ns[:n]...))
		ns = ns[n:]
	}
}
