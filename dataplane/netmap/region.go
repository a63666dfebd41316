package netmap

import (
	"fmt"
	"sync"

	"nmfwd/dataplane"
	"nmfwd/dataplane/netmap/abi"
)

// A region is a memory region of the kernel, mapped once for all ports in it.
type region struct {
	id     uint16
	kernel Kernel
	mem    []byte
	users  int // open ports
	base   int // byte of buffer 0
	bufs   uint32
	stride int
	spare  int               // buffers without a ring that were had
	buffer *dataplane.Region // nil until the first ring is known

	keeping sync.Mutex // guards what follows
	keeper  int        // descriptor without rings that keeps the region in use, 0 for none
	keepIf  *abi.If    // of keeper
}

// ring returns the ring at byte off of the region. The first one tells where
// the buffers are, which all must agree on.
func (m *region) ring(off int) (*abi.Ring, []abi.Slot, error) {
	r, slots, err := abi.RingAt(m.mem, off)
	if err != nil {
		return nil, nil, err
	}
	base, n, err := abi.Buffers(m.mem, off, r)
	if err != nil {
		return nil, nil, err
	}
	if m.buffer == nil {
		m.base, m.bufs, m.stride = base, uint32(n), int(r.BufSize)
		m.buffer = dataplane.NewRegion(fmt.Sprintf("netmap:%d", m.id), m.mem[base:base+n*m.stride], m.stride, nil)
	}
	if base != m.base || int(r.BufSize) != m.stride {
		return nil, nil, fmt.Errorf("buffers of %d bytes at %d, but region %d has them of %d bytes at %d", r.BufSize, base, m.id, m.stride, m.base)
	}
	return r, slots, nil
}

// take moves the n extra buffers of a registration from the list of its If, which
// the kernel frees at close, to the spare ones.
func (m *region) take(f *abi.If, n uint32) error {
	b := f.BufsHead
	f.BufsHead = 0
	for range n {
		if b < abi.FirstBuffer || b >= m.bufs {
			return fmt.Errorf("extra buffer %d is not one of the region's %d", b, m.bufs)
		}
		m.buffer.Give([]uint32{b})
		b = *abi.Word(m.buffer.Buffer(b))
	}
	m.spare += int(n)
	return nil
}

// give puts n spare buffers, or all that are left, in the list of an If, whose
// buffers the kernel frees at close.
func (m *region) give(f *abi.If, n int) {
	bufs, err := m.buffer.Take(min(n, len(m.buffer.Spare())))
	if err != nil {
		return
	}
	for _, b := range bufs {
		*abi.Word(m.buffer.Buffer(b)) = f.BufsHead
		f.BufsHead = b
	}
}

// keep opens a descriptor that has no rings, so that the region stays in use
// while its last port is closed to be opened again: a region that nobody uses
// forgets which of its buffers are taken, and workers hold some.
func (m *region) keep(name string) error {
	m.keeping.Lock()
	defer m.keeping.Unlock()
	if m.keeper != 0 {
		return nil
	}
	fd, err := m.kernel.Open()
	if err != nil {
		return err
	}
	r := abi.Register{Mode: abi.ModeNull, MemID: m.id, RXRings: 1, TXRings: 1, RXSlots: 2, TXSlots: 2}
	if err = register(m.kernel, fd, name, &r); err == nil {
		m.keepIf, err = abi.IfAt(m.mem, r.Offset)
	}
	if err != nil {
		m.kernel.Close(fd)
		return fmt.Errorf("keep region %d: %w", m.id, err)
	}
	m.keepIf.BufsHead = 0
	m.keeper = fd
	return nil
}

// leave unmaps the region when the last port has left it.
func (m *region) leave() error {
	if m.users--; m.users > 0 {
		return nil
	}
	var err error
	if m.keeper != 0 {
		m.give(m.keepIf, len(m.buffer.Spare()))
		err = m.kernel.Close(m.keeper)
	}
	if e := m.kernel.Unmap(m.mem); err == nil {
		err = e
	}
	return err
}
