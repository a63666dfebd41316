package fake

import (
	"fmt"
	"unsafe"

	"nmfwd/dataplane/netmap/abi"
)

// registerOf returns the body of a request. The address was kept from moving by
// the caller, as for a real kernel; it is read as a pointer where it lies.
func registerOf(h *abi.Header) *abi.Register {
	return *(**abi.Register)(unsafe.Pointer(&h.Body))
}

func portInfoOf(h *abi.Header) *abi.PortInfo {
	return *(**abi.PortInfo)(unsafe.Pointer(&h.Body))
}

func poolsInfoOf(h *abi.Header) *abi.PoolsInfo {
	return *(**abi.PoolsInfo)(unsafe.Pointer(&h.Body))
}

const (
	ifSize   = 1024
	ringSize = 256 + 16*1024
)

// A pool is the objects of one size in a region.
type pool struct {
	base, size int
	free       []int  // numbers
	used       []bool // by number
}

func newPool(base, size, n, first int) *pool {
	p := &pool{base: base, size: size, used: make([]bool, n)}
	for i := n - 1; i >= first; i-- {
		p.free = append(p.free, i)
	}
	return p
}

// get takes an object and returns its number.
func (p *pool) get() (int, bool) {
	if len(p.free) == 0 {
		return 0, false
	}
	i := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.used[i] = true
	return i, true
}

// put gives object i back and reports whether it was taken.
func (p *pool) put(i int) bool {
	if i < 0 || i >= len(p.used) || !p.used[i] {
		return false
	}
	p.used[i] = false
	p.free = append(p.free, i)
	return true
}

// take and give are get and put by the byte where the object lies.
func (p *pool) take() (int, bool) {
	i, ok := p.get()
	return p.base + i*p.size, ok
}

func (p *pool) give(off int) { p.put((off - p.base) / p.size) }

// out returns the number of objects taken.
func (p *pool) out() (n int) {
	for _, u := range p.used {
		if u {
			n++
		}
	}
	return n
}

// A region is memory with its three pools.
type region struct {
	kernel           *Kernel
	id               uint16
	words            []uint64 // that mem is in
	mem              []byte
	params           Params
	ifs, rings, bufs *pool
	adapters         int     // users
	mappers          []*file // of mappings, the oldest first
}

func newRegion(k *Kernel, id uint16, p Params) *region {
	rings := p.Ifs * ifSize
	bufs := rings + p.Rings*ringSize
	words := k.memory((bufs + p.Bufs*p.BufSize + 7) / 8)
	r := &region{
		kernel: k, id: id,
		words:  words,
		mem:    unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), bufs+p.Bufs*p.BufSize),
		params: p,
	}
	r.makePools()
	for i := range p.Ifs {
		r.ifAt(i * ifSize).BufsHead = 2 // stale, as the kernel leaves it
	}
	return r
}

// makePools makes the pools as they are when all is free.
func (r *region) makePools() {
	p := r.params
	rings := p.Ifs * ifSize
	bufs := rings + p.Rings*ringSize
	r.ifs = newPool(0, ifSize, p.Ifs, 0)
	r.rings = newPool(rings, ringSize, p.Rings, 0)
	r.bufs = newPool(bufs, p.BufSize, p.Bufs, abi.FirstBuffer)
}

// memory returns memory of n words, that of a region gone before if it fits.
// What was in it stays, as in a kernel.
func (k *Kernel) memory(n int) []uint64 {
	if w := k.used[n]; len(w) > 0 {
		k.used[n] = w[1:]
		return w[0]
	}
	return make([]uint64, n)
}

func (r *region) ifAt(off int) *abi.If { return (*abi.If)(unsafe.Pointer(&r.mem[off])) }

// buffer returns the bytes of buffer n, nil where there is none.
func (r *region) buffer(n uint32) []byte {
	if n < abi.FirstBuffer || int(n) >= len(r.bufs.used) {
		return nil
	}
	at := r.bufs.base + int(n)*r.bufs.size
	return r.mem[at : at+r.bufs.size]
}

// writeIf fills the netmap_if of a descriptor. The head of the list of extra
// buffers stays as it is.
func (r *region) writeIf(f *file) {
	n := r.ifAt(f.ifOff)
	head := n.BufsHead
	*n = abi.If{BufsHead: head, TXRings: uint32(len(f.a.tx)), RXRings: uint32(len(f.a.rx)), HostTXRings: 1, HostRXRings: 1}
	copy(n.Name[:abi.IfNameSize-1], f.a.name)
	if r.id != 1 {
		n.Flags = abi.PrivateMemory
	}
	ofs := unsafe.Slice((*int)(unsafe.Pointer(&r.mem[f.ifOff+int(unsafe.Sizeof(abi.If{}))])), n.Rings())
	clear(ofs)
	for _, q := range f.tx {
		ofs[n.Pos(abi.DirTX, q.id)] = q.off - f.ifOff
	}
	for _, q := range f.rx {
		ofs[n.Pos(abi.DirRX, q.id)] = q.off - f.ifOff
	}
}

// extra lists up to n extra buffers in a netmap_if and returns their number.
func (r *region) extra(off int, n uint32) uint32 {
	if n == 0 {
		return 0
	}
	f := r.ifAt(off)
	f.BufsHead = 0
	got := uint32(0)
	for ; got < n; got++ {
		b, ok := r.bufs.get()
		if !ok {
			break
		}
		*abi.Word(r.buffer(uint32(b))) = f.BufsHead
		f.BufsHead = uint32(b)
	}
	return got
}

// freeExtra frees what a netmap_if lists.
func (r *region) freeExtra(off int) {
	f := r.ifAt(off)
	for b := f.BufsHead; b != 0; {
		buf := r.buffer(b)
		if buf == nil || !r.bufs.put(int(b)) {
			r.kernel.fault("extra buffer %d of %s is not free to give", b, f.Name)
			break
		}
		b = *abi.Word(buf)
	}
	f.BufsHead = 2
}

// newRing makes a ring of n slots in the memory of its region, each with a
// buffer unless like is set: then it has those of like.
func (r *region) newRing(q *kring, n int, like *kring) error {
	if 256+16*n > ringSize {
		return errNoMemory
	}
	off, ok := r.rings.take()
	if !ok {
		return errNoMemory
	}
	q.off = off
	q.ring = (*abi.Ring)(unsafe.Pointer(&r.mem[off]))
	*q.ring = abi.Ring{}
	q.ring.BufOfs = int64(r.bufs.base - off)
	q.ring.NumSlots, q.ring.BufSize = uint32(n), uint32(r.bufs.size)
	q.ring.RingID, q.ring.Dir = uint16(q.id), uint16(q.dir)
	q.slots = unsafe.Slice((*abi.Slot)(unsafe.Pointer(&r.mem[off+256])), n)
	q.hw = make([]uint32, n)
	for i := range q.slots {
		b := 0
		if like != nil {
			b = int(like.slots[i].BufIdx)
		} else if b, ok = r.bufs.get(); !ok {
			for _, s := range q.slots[:i] {
				r.bufs.put(int(s.BufIdx))
			}
			r.rings.give(off)
			q.ring = nil
			return errNoMemory
		}
		q.slots[i] = abi.Slot{BufIdx: uint32(b), Len: uint16(r.bufs.size)}
		q.hw[i] = uint32(b)
	}
	q.reset(0)
	return nil
}

// freeRing gives a ring back, and its buffers if it has its own.
func (r *region) freeRing(q *kring, buffers bool) {
	if q.ring == nil {
		return
	}
	if buffers {
		for i := range q.slots {
			if b := q.bufferOf(i); !r.bufs.put(int(b)) {
				r.kernel.fault("%s: buffer %d in slot %d is free already", q, b, i)
			}
		}
	}
	r.rings.give(q.off)
	q.ring, q.slots = nil, nil
}

func (q *kring) String() string {
	return fmt.Sprintf("%s %s ring %d", q.a.name, [...]string{"rx", "tx"}[q.dir], q.id)
}
