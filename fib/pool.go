package fib

// copies publishes an array in versions. A version that is out of use becomes
// the next one by repeating the changes made since, so that publishing costs
// what changed, not the array's size.
type copies[T any] struct {
	make func(n, c int) []T // returns n zero entries with room for c

	cur  []T // the version published last
	next []T // what edit returned, until publish
	old  []retired[T]
	log  []uint32 // indexes changed, oldest first
	base uint64   // place of log[0] among all changes ever made
}

type retired[T any] struct {
	data []T
	gen  uint64 // the first generation that does not use it
	at   uint64 // the changes that it lacks start here
}

// maxRetired versions are kept for reuse: a commit while readers of two older
// generations are at work needs no new one.
const maxRetired = 3

// edit prepares next, n entries long, as a copy of cur that nobody reads.
// Nobody reads generations before reclaimed.
func (c *copies[T]) edit(n int, reclaimed uint64) {
	end := c.base + uint64(len(c.log))
	c.next = nil
	if len(c.old) > 0 && c.old[0].gen <= reclaimed && cap(c.old[0].data) >= n {
		o := c.old[0]
		c.old = append(c.old[:0], c.old[1:]...)
		c.next = o.data[:n]
		if end-o.at >= uint64(len(c.cur)) {
			copy(c.next, c.cur)
		} else {
			for _, i := range c.log[o.at-c.base:] {
				c.next[i] = c.cur[i]
			}
		}
	} else {
		room := n
		if n > len(c.cur) && len(c.cur) > 0 {
			room += n / 4
		}
		c.next = c.make(n, room)
		copy(c.next, c.cur)
	}
	if c.cur != nil {
		c.old = append(c.old, retired[T]{data: c.cur, at: end})
	}
	if len(c.old) > maxRetired {
		c.old = append(c.old[:0], c.old[1:]...)
	}
	from := end
	if len(c.old) > 0 {
		from = c.old[0].at
	}
	c.log = append(c.log[:0], c.log[from-c.base:]...)
	c.base = from
}

// set changes entry i of next.
func (c *copies[T]) set(i uint32, v T) {
	c.next[i] = v
	c.log = append(c.log, i)
}

// publish makes next the current version, that of generation gen.
func (c *copies[T]) publish(gen uint64) []T {
	if n := len(c.old); n > 0 {
		c.old[n-1].gen = gen
	}
	c.cur, c.next = c.next, nil
	return c.cur
}

// maxClass is the class of the largest chunks.
const maxClass = maxStride

// A pool holds the chunks of a table, of all generations: what a generation
// uses does not change until no reader is left. A chunk of class c is 1<<c
// words.
type pool struct {
	mem   *memory
	words []uint32
	free  [maxClass + 1][]uint32
	old   []chunk // retired, oldest first
	live  int     // words in use by the newest generation
	max   uint64  // words that entries can address
}

type chunk struct {
	at    uint32
	class uint8
	gen   uint64 // the first generation that does not use it
}

// alloc returns the place of a chunk whose content is undefined.
func (p *pool) alloc(class uint8) uint32 {
	n := 1 << class
	p.live += n
	if len(p.free[class]) == 0 && len(p.words)+n > cap(p.words) {
		p.grow()
	}
	if l := len(p.free[class]); l > 0 {
		at := p.free[class][l-1]
		p.free[class] = p.free[class][:l-1]
		return at
	}
	at := len(p.words)
	if uint64(at+n) > p.max {
		panic("fib: table full") // the limits on routes exclude it
	}
	p.words = p.words[:at+n]
	return uint32(at)
}

// wasteful reports whether the table should be made again in a new pool: most
// of this one is of no use, or so much is used that the changes of one commit
// might not fit.
func (p *pool) wasteful() bool {
	return len(p.words) > 1<<20 && len(p.words)/4 > p.live || uint64(len(p.words)) > p.max/2
}

// grow moves the words to a larger array. Readers keep the old one, so all that
// is retired is free in the new one.
func (p *pool) grow() {
	w := p.mem.words(len(p.words), 2*cap(p.words)+1<<14)
	copy(w, p.words)
	p.words = w
	p.reclaim(^uint64(0))
}

// retire says that generation gen and those after it do not use a chunk.
func (p *pool) retire(at uint32, class uint8, gen uint64) {
	p.live -= 1 << class
	p.old = append(p.old, chunk{at, class, gen})
}

// reset makes p a pool without chunks, with room for n words.
func (p *pool) reset(n int) {
	*p = pool{mem: p.mem, max: p.max}
	p.words = p.mem.words(n, n)[:0]
}

// reclaim frees what was retired up to generation gen.
func (p *pool) reclaim(gen uint64) {
	i := 0
	for ; i < len(p.old) && p.old[i].gen <= gen; i++ {
		c := p.old[i]
		p.free[c.class] = append(p.free[c.class], c.at)
	}
	p.old = append(p.old[:0], p.old[i:]...)
}
