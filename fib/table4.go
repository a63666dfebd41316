package fib

// The IPv4 table is a trie that leaves are pushed down in: a root for 16 bits,
// and chunks of 256 entries for the next 8 and for the last 8. The root starts
// with the first bit; if all routes share the first 8 bits, behind these: the
// origin.
//
//	 0                16       24       32
//	+----------------+--------+--------+
//	| root           | mid    | low    |
//	+--------+-------+--------+--------+
//	| origin | root           | mid    |
//	+--------+----------------+--------+
//
// An entry is the index of an adjacency, or names a chunk, which starts at a line
// of 16 words:
//
//	 31  30      29  28                  0
//	+---+----------+----------------------+
//	| 0 | 0   0    | adjacency            | leaf
//	+---+----------+----------------------+
//	| 1 | form     | line                 | chunk
//	+---+----------+----------------------+
//
// A chunk of form 0 has entries of 8 bits, which are leaves: what lookups touch
// of a full table shall fit caches. In one of form 1, values from escape4 on are
// the places of entries of 32 bits that follow. One of form 2 has entries of 32
// bits.
const (
	rootBits4   = 16
	originBits4 = 8
	chunkBits4  = 8
	chunk4      = 1 << 31

	formAt4 = 29
	line4   = 1<<formAt4 - 1
	mixed4  = chunk4 | 1<<formAt4
	words4  = chunk4 | 2<<formAt4

	escape4 = 192 // 64 values above it
)

// A Table4 is the compiled table of IPv4.
type Table4 struct {
	root  []uint32 // the last entry is for what is not behind the origin
	base  uint32   // the origin
	shift uint8    // bits of an address after those of the root
	mid   uint8    // and after those of a chunk of the next level
	bytes []byte   // of words
	words []uint32
}

func (t *Table4) set(root, words []uint32, origin key) {
	words = words[:len(words):len(words)]
	shift := 32 - rootBits4 - origin.len
	*t = Table4{root, uint32(origin.hi >> 32), shift, shift - chunkBits4, bytesOf(words), words}
}

// Lookup returns the index of the adjacency for dst.
func (t *Table4) Lookup(dst uint32) uint32 {
	i := (dst - t.base) >> t.shift
	if i >= 1<<rootBits4 {
		return aliases4 + dst>>(32-aliasBits)
	}
	e := t.root[i]
	if e < chunk4 {
		return e
	}
	i = dst >> t.mid & 0xff
	if e < mixed4 { // as nearly all chunks are
		return uint32(t.bytes[uint(e-chunk4)<<(lineClass+2)+uint(i)])
	}
	if e = t.entry(e, i); e >= chunk4 {
		e = t.entry(e, dst&0xff)
	}
	return e
}

// First returns the index of the adjacency for dst if it is found at once, as it
// is for nearly all, or else More or a greater value: then Lookup is to be asked.
// It is so small for the compiler to put it into loops, where many are under way
// at a time.
func (t *Table4) First(dst uint32) uint32 {
	e := t.root[min((dst-t.base)>>t.shift, 1<<rootBits4)]
	if e >= chunk4 && e < mixed4 {
		e = uint32(t.bytes[uint(e-chunk4)<<(lineClass+2)+uint(uint8(dst>>t.mid))])
	}
	return e
}

// entry returns entry i of chunk e.
func (t *Table4) entry(e, i uint32) uint32 {
	at := uint(e & line4)
	if e >= words4 {
		return t.words[at<<lineClass+uint(i)]
	}
	v := uint32(t.bytes[at<<(lineClass+2)+uint(i)])
	if v >= escape4 && e >= mixed4 {
		return t.words[at<<lineClass+1<<(chunkBits4-2)+uint(v-escape4)]
	}
	return v
}

// each yields the first address and the adjacency of each range of addresses
// that the table tells apart, in order.
func (t *Table4) each(yield func(first, adj uint32) bool) {
	for i := range uint32(1) << aliasBits {
		first := i << (32 - aliasBits)
		part := t.root[:1<<rootBits4]
		behind := t.shift < 32-rootBits4 // there is an origin
		switch {
		case !behind:
			part = part[i<<(rootBits4-aliasBits):][:1<<(rootBits4-aliasBits)]
		case t.base>>(32-aliasBits) != i:
			if !yield(first, aliases4+i) {
				return
			}
			continue
		default:
			if t.base != first && !yield(first, aliases4+i) {
				return
			}
			first = t.base
		}
		for j, e := range part {
			if !t.ranges(e, first+uint32(j)<<t.shift, int(t.shift), yield) {
				return
			}
		}
		if end := first + uint32(len(part))<<t.shift; end<<aliasBits != 0 && !yield(end, aliases4+i) {
			return
		}
	}
}

// ranges yields what entry e holds, which is for the addresses from first on
// that differ in the last bits.
func (t *Table4) ranges(e, first uint32, bits int, yield func(first, adj uint32) bool) bool {
	if e < chunk4 {
		return yield(first, e)
	}
	bits -= chunkBits4
	for i := range uint32(1) << chunkBits4 {
		if !t.ranges(t.entry(e, i), first|i<<bits, bits, yield) {
			return false
		}
	}
	return true
}

// A builder4 makes the versions of the IPv4 table.
type builder4 struct {
	family *family
	origin key
	root   copies[uint32]
	pool   pool
	gen    uint64 // being made
}

// size returns the bytes of all versions.
func (b *builder4) size() int {
	return wordSize * (cap(b.root.cur)*(1+len(b.root.old)) + len(b.pool.words))
}

// words returns the most words that chunks for all routes take, to adjacencies
// less than adjs: what a table has that is made at once, unless neighboring routes
// share adjacencies.
func (b *builder4) words(adjs int) int {
	f, n := b.family, 0
	own := 0 // entries of a route that may not fit a byte
	if adjs > escape4 {
		own = 1
	}
	mids, lows := rootBits4+b.origin.len, rootBits4+b.origin.len+chunkBits4
	var mid, low key               // of the last chunks counted; none has length 0
	greatMid, greatLow := own, own // entries there that may not fit a byte
	for at := (place{}); at.block < len(f.index.blocks); at = f.index.next(at) {
		k := f.entries[f.index.at(at)].key
		if k.len <= mids {
			continue
		}
		if c := k.cut(mids); c != mid {
			n += 1 << class4(own)
			mid, greatMid = c, own
		}
		if k.len <= lows {
			n -= 1 << class4(greatMid)
			greatMid += own
			n += 1 << class4(greatMid)
			continue
		}
		if c := k.cut(lows); c != low {
			n += 1<<class4(own) - 1<<class4(greatMid)
			greatMid++
			n += 1 << class4(greatMid)
			low, greatLow = c, own
		}
		n -= 1 << class4(greatLow)
		greatLow += own
		n += 1 << class4(greatLow)
	}
	return n
}

// class4 returns the class of a chunk with so many entries that do not fit a byte.
func class4(great int) uint8 {
	switch {
	case great == 0:
		return 6
	case great <= 256-escape4:
		return 7
	}
	return 8
}

// slot makes the root's entry i from the ranges within it.
func (b *builder4) slot(i uint32, spans []span) {
	b.drop(b.root.next[i])
	e := spans[0].adj
	if len(spans) > 1 {
		e = b.chunk(spans, 32-rootBits4-int(b.origin.len)-chunkBits4)
	}
	if e != b.root.next[i] {
		b.root.set(i, e)
	}
}

// chunk returns the entry for a chunk whose entries are for addresses that
// differ in the last bits. spans[0] holds at its start, the others start in it.
func (b *builder4) chunk(spans []span, bits int) uint32 {
	var w [1 << chunkBits4]uint32
	for i := uint32(0); i < uint32(len(w)); {
		next := uint32(len(w)) // entry that the next range starts in
		inside := false        // but not with it
		if len(spans) > 1 {
			a := spans[1].addr4()
			next, inside = a>>bits&0xff, a&(1<<bits-1) != 0
		}
		for ; i < next; i++ {
			w[i] = spans[0].adj
		}
		if !inside {
			spans = spans[min(1, len(spans)-1):]
			continue
		}
		n := 2 // ranges that entry i sees
		for n < len(spans) && spans[n].addr4()>>bits == spans[1].addr4()>>bits {
			n++
		}
		w[i] = b.chunk(spans[:n], bits-chunkBits4)
		i++
		spans = spans[n-1:]
	}
	return b.pack(&w)
}

// pack returns the entry for a chunk of the entries w, in the smallest form that
// can hold it.
func (b *builder4) pack(w *[1 << chunkBits4]uint32) uint32 {
	var v [1 << chunkBits4]byte
	var great [256 - escape4]uint32
	n := 0
	for i, e := range w {
		if e < escape4 {
			v[i] = byte(e)
			continue
		}
		j := 0
		for j < n && great[j] != e {
			j++
		}
		if j == len(great) {
			at := b.pool.alloc(class4(j + 1))
			copy(b.pool.words[at:], w[:])
			return words4 | at>>lineClass
		}
		if j == n {
			great[n] = e
			n++
		}
		v[i] = byte(escape4 + j)
	}
	class := class4(n)
	at := b.pool.alloc(class)
	words := b.pool.words[at:][:1<<class]
	copy(bytesOf(words), v[:])
	copy(words[64:], great[:])
	return chunk4 | uint32(class-class4(0))<<formAt4 | at>>lineClass
}

// drop retires the chunks behind an entry.
func (b *builder4) drop(e uint32) {
	if e < chunk4 {
		return
	}
	at, class := e&line4<<lineClass, class4(0)+uint8(e>>formAt4&3)
	words := b.pool.words[at:][:1<<class]
	switch class {
	case 7:
		words = words[64:]
		fallthrough
	case 8:
		for _, l := range words {
			b.drop(l)
		}
	}
	b.pool.retire(at, class, b.gen)
}
