package netmap

import (
	"errors"
	"fmt"

	"nmfwd/dataplane"
	"nmfwd/dataplane/netmap/abi"
)

// A region is a memory region of the kernel, mapped once for all ports in it by
// a descriptor that has no rings. So no port's descriptor is mapped: one that is
// stays open for the kernel, and its rings in use, until it is unmapped. Nor does
// the region lose its last user while a port is closed to be opened again, and
// forget with it which of its buffers are taken: workers hold some.
type region struct {
	id     uint16
	kernel Kernel
	mem    []byte
	keeper int     // the descriptor
	keepIf *abi.If // of keeper
	users  int     // open ports
	base   int     // byte of buffer 0
	bufs   uint32
	stride int
	spare  int               // buffers without a ring that were had
	buffer *dataplane.Region // nil until the first ring is known
}

// newRegion maps the region that the port called name is in, whose descriptor
// control was registered with the answer r. The region is mapped by control
// first, which a list of extra buffers needs that nobody asked for: the kernel
// leaves what was there, and frees it at close.
func newRegion(k Kernel, control int, name string, r *abi.Register) (_ *region, err error) {
	fail := func(err error) error {
		return fmt.Errorf("region %d of %d bytes: %w", r.MemID, r.MemSize, err)
	}
	if r.MemSize != uint64(int(r.MemSize)) || int(r.MemSize) <= 0 {
		return nil, fail(errors.New("it cannot be mapped"))
	}
	first, err := k.Map(control, int(r.MemSize))
	if err != nil {
		return nil, fail(fmt.Errorf("map: %w", err))
	}
	defer k.Unmap(first)
	disown := func(r *abi.Register) error {
		f, err := abi.IfAt(first, r.Offset)
		if err == nil && r.ExtraBufs == 0 {
			f.BufsHead = 0
		}
		return err
	}
	if err := disown(r); err != nil {
		return nil, fail(err)
	}
	fd, err := k.Open()
	if err != nil {
		return nil, fail(err)
	}
	m := &region{id: r.MemID, kernel: k, keeper: fd}
	own := abi.Register{Mode: abi.ModeNull, MemID: r.MemID, RXRings: 1, TXRings: 1, RXSlots: 2, TXSlots: 2}
	if err = register(k, fd, name, &own); err == nil {
		if err = disown(&own); err == nil {
			m.mem, err = k.Map(fd, int(r.MemSize))
		}
	}
	if err != nil {
		k.Close(fd)
		return nil, fail(err)
	}
	m.keepIf, err = abi.IfAt(m.mem, own.Offset)
	return m, err
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

// leave gives the region back when the last port has left it.
func (m *region) leave() error {
	if m.users--; m.users > 0 {
		return nil
	}
	if m.buffer != nil {
		m.give(m.keepIf, len(m.buffer.Spare()))
	}
	return errors.Join(m.kernel.Unmap(m.mem), m.kernel.Close(m.keeper))
}
