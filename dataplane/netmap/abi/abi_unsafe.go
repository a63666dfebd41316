package abi

import (
	"fmt"
	"unsafe"
)

// A Ring is the head of a ring in shared memory (struct netmap_ring); its slots
// follow it. Slots from Head up to Tail belong to the owner of the ring, the
// others to the kernel, which looks and moves Tail only in a system call of the
// owner: so plain loads and stores do.
type Ring struct {
	ringHead
	_   [128 - unsafe.Sizeof(ringHead{})]byte
	Sem [128]byte // the kernel's, opaque
}

// Pos returns the place of ring k in the list of offsets behind an If, for
// direction dir and ring number n; n counts host rings after those of the NIC.
func (f *If) Pos(dir int, n int) int {
	if dir == DirTX {
		return n
	}
	return int(f.TXRings) + int(f.HostTXRings) + n
}

// Rings returns the number of offsets behind an If.
func (f *If) Rings() int {
	return int(f.TXRings) + int(f.HostTXRings) + int(f.RXRings) + int(f.HostRXRings)
}

// IfAt returns the If at byte off of the region mem.
func IfAt(mem []byte, off uint64) (*If, error) {
	if off%8 != 0 || off > uint64(len(mem)) || uint64(len(mem))-off < uint64(unsafe.Sizeof(If{})) {
		return nil, fmt.Errorf("netmap_if at %d is not in the region of %d bytes", off, len(mem))
	}
	return (*If)(unsafe.Pointer(&mem[off])), nil
}

// Offsets returns the list of ring offsets behind the If at byte off of mem.
func Offsets(mem []byte, off uint64) ([]int, error) {
	f, err := IfAt(mem, off)
	if err != nil {
		return nil, err
	}
	at, n := off+uint64(unsafe.Sizeof(If{})), uint64(f.Rings())
	if uint64(len(mem))-at < n*uint64(unsafe.Sizeof(int(0))) {
		return nil, fmt.Errorf("netmap_if at %d: %d rings reach beyond the region of %d bytes", off, n, len(mem))
	}
	if n == 0 {
		return nil, nil
	}
	return unsafe.Slice((*int)(unsafe.Pointer(&mem[at])), n), nil
}

// RingAt returns the ring at byte off of the region mem, and its slots. It
// checks all that later accesses rely on.
func RingAt(mem []byte, off int) (*Ring, []Slot, error) {
	const size = int(unsafe.Sizeof(Ring{}))
	if off < 0 || off%8 != 0 || off > len(mem)-size {
		return nil, nil, fmt.Errorf("ring at %d is not in the region of %d bytes", off, len(mem))
	}
	r := (*Ring)(unsafe.Pointer(&mem[off]))
	if r.NumSlots < 2 || uint64(r.NumSlots) > uint64(len(mem)-off-size)/uint64(unsafe.Sizeof(Slot{})) {
		return nil, nil, fmt.Errorf("ring at %d: %d slots do not fit the region of %d bytes", off, r.NumSlots, len(mem))
	}
	if r.Head >= r.NumSlots || r.Cur >= r.NumSlots || r.Tail >= r.NumSlots {
		return nil, nil, fmt.Errorf("ring at %d: head %d, cur %d or tail %d beyond its %d slots", off, r.Head, r.Cur, r.Tail, r.NumSlots)
	}
	return r, unsafe.Slice((*Slot)(unsafe.Pointer(&mem[off+size])), r.NumSlots), nil
}

// Buffers returns the byte of the region at which buffer 0 begins and the
// number of whole buffers up to its end, for the ring at byte off.
func Buffers(mem []byte, off int, r *Ring) (base, n int, err error) {
	at := int64(off) + r.BufOfs
	if r.BufSize == 0 || at < 0 || at > int64(len(mem)) {
		return 0, 0, fmt.Errorf("ring at %d: buffers of %d bytes at %d are not in the region of %d bytes", off, r.BufSize, at, len(mem))
	}
	n = (len(mem) - int(at)) / int(r.BufSize)
	if n <= FirstBuffer {
		return 0, 0, fmt.Errorf("ring at %d: no buffers at %d in the region of %d bytes", off, at, len(mem))
	}
	return int(at), n, nil
}

// Word returns the first word of buffer b: the number of the next buffer, where
// b is in a list.
func Word(b []byte) *uint32 {
	_ = b[3]
	return (*uint32)(unsafe.Pointer(unsafe.SliceData(b)))
}

// The compiler checks the layouts, the parts that depend on the machine above
// all: an index other than 0 does not compile. Word is 4 on 386 and 8 on amd64
// and arm64.
const word = unsafe.Sizeof(uintptr(0))

var (
	_ = [1]struct{}{}[unsafe.Sizeof(Header{})-88]
	_ = [1]struct{}{}[unsafe.Sizeof(Register{})-(48+word)]
	_ = [1]struct{}{}[unsafe.Offsetof(Register{}.Flags)-(40+word)]
	_ = [1]struct{}{}[unsafe.Sizeof(PortInfo{})-32]
	_ = [1]struct{}{}[unsafe.Sizeof(PoolsInfo{})-64]
	_ = [1]struct{}{}[unsafe.Sizeof(If{})-56]
	_ = [1]struct{}{}[unsafe.Sizeof(Slot{})-16]
	_ = [1]struct{}{}[unsafe.Sizeof(Ring{})-256]
	_ = [1]struct{}{}[unsafe.Offsetof(Ring{}.TS)-(32+word)]
	_ = [1]struct{}{}[unsafe.Offsetof(Ring{}.OffsetMask)-(32+3*word)]
	_ = [1]struct{}{}[unsafe.Offsetof(Ring{}.Sem)-128]
)
