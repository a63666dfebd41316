package afxdp

import (
	"fmt"
	"math"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane"
)

// A buffers value turns addresses of the UMEM into buffer numbers and back.
type buffers struct {
	region *dataplane.Region
	shift  uint   // log2 of the buffer size
	n      uint64 // buffers in the UMEM
}

func (b *buffers) addr(n uint32) uint64 { return uint64(n) << b.shift }

// An rx is the receive side of a queue. Its worker is the only one to touch it.
// All of its slots buffers are in the fill ring, in the kernel, in the receive
// ring or owed by the worker.
type rx struct {
	buffers
	ring descRing
	cons uint32 // our index of ring
	prod uint32 // the kernel's, as last loaded
	fill addrRing
	next uint32 // our index of fill
	owed int    // buffers that the worker has not repaid yet
}

// newRX returns the receive side over the two rings and gives bufs to the
// kernel.
func newRX(b buffers, ring descRing, fill addrRing, bufs []uint32) *rx {
	r := &rx{buffers: b, ring: ring, fill: fill, owed: len(bufs)}
	r.Release(bufs)
	return r
}

// Region implements dataplane.RX.
func (r *rx) Region() *dataplane.Region { return r.region }

// Recv implements dataplane.RX. A descriptor that lies outside the UMEM names
// no buffer and is skipped: the ring is shorter by one from then on.
func (r *rx) Recv(s []dataplane.Slot) int {
	ready := r.prod - r.cons
	if ready < uint32(len(s)) {
		r.prod = r.ring.producer.Load()
		ready = r.prod - r.cons
	}
	ready = min(ready, uint32(len(s)), r.ring.mask+1)
	if ready == 0 {
		return 0
	}
	got := 0
	descs, mask, shift := r.ring.descs, r.ring.mask, r.shift
	size := uint64(1) << shift
	for i := r.cons; i != r.cons+ready; i++ {
		d := descs[i&mask]
		n := d.addr >> shift
		if n >= r.n {
			continue
		}
		off := d.addr & (size - 1)
		if off+uint64(d.len) > size || d.len > math.MaxUint16 || d.options != 0 {
			off, d.len = 0, 0
		}
		s[got] = dataplane.Slot{Buf: uint32(n), Off: uint16(off), Len: uint16(d.len)}
		got++
	}
	r.cons += ready
	r.ring.consumer.Store(r.cons)
	r.owed += got
	return got
}

// Release implements dataplane.RX. It panics when the worker gives back more
// than it took: the fill ring would overwrite buffers.
func (r *rx) Release(free []uint32) {
	if len(free) > r.owed {
		panic(fmt.Sprintf("afxdp: %d buffers released, %d taken", len(free), r.owed))
	}
	if len(free) == 0 {
		return
	}
	addrs, mask, next := r.fill.addrs, r.fill.mask, r.next
	for _, n := range free {
		addrs[next&mask] = r.addr(n)
		next++
	}
	r.next = next
	r.fill.producer.Store(r.next)
	r.owed -= len(free)
}

// A tx is the transmit side of a queue. Its worker is the only one to touch it.
// All of its slots buffers are free, in the transmit ring, in the kernel or in
// the completion ring, so that neither ring can overflow.
type tx struct {
	buffers
	ring descRing
	prod uint32 // our index of ring
	comp addrRing
	cons uint32   // our index of comp
	free []uint32 // its capacity is the number of slots

	refused atomic.Uint64 // frames not sent; written by the worker, read by Counters
}

func newTX(b buffers, ring descRing, comp addrRing, bufs []uint32) *tx {
	return &tx{buffers: b, ring: ring, comp: comp, free: append(make([]uint32, 0, len(bufs)), bufs...)}
}

// Region implements dataplane.TX.
func (t *tx) Region() *dataplane.Region { return t.region }

// Send implements dataplane.TX. A frame that the kernel would not accept, for
// its length, is taken and counted as refused.
func (t *tx) Send(from *dataplane.Region, s []dataplane.Slot) int {
	t.reap()
	before := t.prod
	done := 0
	for done < len(s) && len(t.free) > 0 {
		f := &s[done]
		if from == t.region && f.Flags&dataplane.More == 0 {
			t.exchange(f)
			done++
			continue
		}
		n := dataplane.FrameSlots(s[done:])
		if n == 0 {
			break
		}
		t.copy(from, s[done:done+n])
		done += n
	}
	if t.prod != before {
		t.ring.producer.Store(t.prod)
	}
	return done
}

// exchange queues f's buffer and puts a free one in its place.
func (t *tx) exchange(f *dataplane.Slot) {
	if f.Len < shortest || uint(f.Off)+uint(f.Len) > 1<<t.shift {
		t.refused.Add(1)
		return
	}
	last := len(t.free) - 1
	free := t.free[last]
	t.free = t.free[:last]
	t.put(t.addr(f.Buf)+uint64(f.Off), uint32(f.Len))
	f.Buf = free
}

// copy queues a copy of the frame in the slots s of another region, or of
// several slots of this one.
func (t *tx) copy(from *dataplane.Region, s []dataplane.Slot) {
	last := len(t.free) - 1
	buf := t.free[last]
	room := t.region.Buffer(buf)
	n := 0
	for i := range s {
		if int(s[i].Len) > len(room)-n {
			t.refused.Add(1)
			return
		}
		n += copy(room[n:], from.Bytes(&s[i]))
	}
	if n < shortest {
		t.refused.Add(1)
		return
	}
	t.free = t.free[:last]
	t.put(t.addr(buf), uint32(n))
}

func (t *tx) put(addr uint64, n uint32) {
	t.ring.descs[t.prod&t.ring.mask] = desc{addr: addr, len: n}
	t.prod++
}

// reap takes back the buffers of frames that were sent. An address that the
// kernel cannot mean is ignored.
func (t *tx) reap() {
	n := min(t.comp.producer.Load()-t.cons, t.comp.mask+1)
	if n == 0 {
		return
	}
	for i := t.cons; i != t.cons+n; i++ {
		b := t.comp.addrs[i&t.comp.mask] >> t.shift
		if b < t.n && len(t.free) < cap(t.free) {
			t.free = append(t.free, uint32(b))
		}
	}
	t.cons += n
	t.comp.consumer.Store(t.cons)
}

// pending returns the number of frames that the kernel has not taken yet.
func (t *tx) pending() uint32 { return t.prod - t.ring.consumer.Load() }

// A descriptor is a socket as one worker sees it: both sides of a queue, or one
// where the sides have different workers.
type descriptor struct {
	fd int
	rx *rx
	tx *tx

	// While the port is down the kernel takes nothing.
	seen uint32 // tx.prod when the kernel refused it last
	skip int    // calls of Before that do not try again
}

// retryDown is the number of calls of Before between two attempts to send on a
// port that is down, while the worker has other work.
const retryDown = 256

// FD implements dataplane.Descriptor.
func (d *descriptor) FD() int { return d.fd }

// Before implements dataplane.Descriptor. In copy mode the kernel sends nothing
// but in a system call, so a queued frame always costs one. A port that is down,
// or gone, is not an error: frames stay queued until it returns.
func (d *descriptor) Before(sleep bool) (events int16, err error) {
	if d.tx != nil && d.tx.pending() != 0 {
		events, err = d.flush(sleep)
	}
	if d.rx != nil && (sleep || d.rx.fill.needWakeup()) {
		events |= unix.POLLIN
	}
	return events, err
}

// flush makes the kernel look at the transmit ring, and returns POLLOUT where
// there is more to send than it takes now.
func (d *descriptor) flush(sleep bool) (int16, error) {
	if d.skip > 0 && !sleep {
		d.skip--
		return 0, nil
	}
	if !d.tx.ring.needWakeup() {
		return 0, nil
	}
	d.skip = 0
	for {
		before := d.tx.pending()
		switch errno := kick(d.fd); errno {
		case 0:
			return 0, nil
		case unix.ENETDOWN, unix.ENXIO:
			d.tx.refused.Add(uint64(min(before, d.tx.prod-d.seen)))
			d.seen = d.tx.prod
			d.skip = retryDown
			return 0, nil
		case unix.EBUSY:
			d.tx.refused.Add(1) // the device dropped it (NET_XMIT_DROP)
		case unix.EINTR:
			continue
		case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
		default:
			return 0, fmt.Errorf("afxdp: send: %w", errno)
		}
		if left := d.tx.pending(); left == 0 {
			return 0, nil
		} else if left == before {
			return unix.POLLOUT, nil
		}
	}
}

// kick makes the kernel look at the transmit ring of socket fd. It never waits,
// but may be busy sending for 100 us and more, in which the runtime would take
// the P from a worker that it knows to be in a system call: a raw call keeps it.
func kick(fd int) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return errno
}

// After implements dataplane.Descriptor.
func (d *descriptor) After(revents int16) error {
	if revents&unix.POLLNVAL != 0 {
		return fmt.Errorf("afxdp: poll: %w", unix.EBADF)
	}
	return nil
}
