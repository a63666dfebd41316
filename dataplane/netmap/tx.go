package netmap

import (
	"fmt"
	"sync/atomic"

	"nmfwd/dataplane"
	"nmfwd/dataplane/netmap/abi"
)

// minFrame is the shortest frame sent, without FCS: some drivers do not pad.
const minFrame = 60

// A tx is the transmit side of a queue. All its state is in the ring: slots
// from head up to tail are free.
type tx struct {
	ring   *abi.Ring
	slots  []abi.Slot
	region *dataplane.Region
	bufs   uint32         // number of buffers in the region
	least  uint16         // frames are padded to this length
	state  *atomic.Uint32 // the port's
	sync   func() error   // gives the ring to the kernel and takes sent slots back

	unreported uint32 // slots since the last one with abi.Report
	queued     bool   // slots were filled since the last sync or poll
	synced     bool   // Send has synced since the last Before
	err        error  // met in Send, for Before

	refused atomic.Uint64 // frames that can never be sent
	stuck   atomic.Uint32 // 1 + tail of the ring while it is low, 0 while it is not
}

// Region returns the region of the queue's buffers.
func (q *tx) Region() *dataplane.Region { return q.region }

// free returns the number of free slots, 0 when the ring is out of order.
func (q *tx) free() int {
	head, tail, n := q.ring.Head, q.ring.Tail, uint32(len(q.slots))
	if head >= n || tail >= n {
		return 0
	}
	if tail < head {
		tail += n
	}
	return int(tail - head)
}

// low reports whether so many slots are on their way that those that were sent
// are to be taken back. The kernel does that in a sync only, so a ring that is
// full stays so until one.
func (q *tx) low() bool { return q.free() < len(q.slots)/2 }

// watch is called after a sync. It publishes where the tail of a ring that is
// low stands: if it stays there, the device has stopped to send.
func (q *tx) watch() {
	at := uint32(0)
	if q.low() {
		at = q.ring.Tail + 1
	}
	if at != q.stuck.Load() {
		q.stuck.Store(at)
	}
}

// bind makes q the writer of a ring that was opened.
func (q *tx) bind(r *abi.Ring, slots []abi.Slot, m *region) {
	q.ring, q.slots, q.region, q.bufs = r, slots, m.buffer, m.bufs
	q.unreported, q.queued, q.synced, q.err = 0, false, false, nil
}

// Send queues frames. A port known to be down or closed takes none, lest they
// leave when it comes up again. A frame longer than the buffers, or of more slots than the
// ring has, is not taken nor are those behind it.
func (q *tx) Send(from *dataplane.Region, s []dataplane.Slot) int {
	if q.state.Load() != 0 {
		return 0
	}
	free := q.free()
	if free < len(s) && !q.synced {
		q.synced = true
		if q.err = q.sync(); q.err != nil {
			return 0
		}
		free = q.free()
	}
	r := q.ring
	i, k := r.Head, 0
	last, every := i, uint32(len(q.slots)/4)
	slots, swap, size, bufs, least := q.slots, from == q.region, r.BufSize, q.bufs-abi.FirstBuffer, q.least
	for k < len(s) {
		// The common case of what the rest of the loop does: a frame in one slot
		// that only has to be exchanged, or copied.
		if t := &s[k]; free > 0 && t.Flags&dataplane.More == 0 && t.Len >= least && uint32(t.Len) <= size && (t.Off == 0 || !swap) {
			if sl := &slots[i]; sl.BufIdx-abi.FirstBuffer < bufs {
				flags := uint16(abi.BufChanged)
				if swap {
					t.Buf, sl.BufIdx = sl.BufIdx, t.Buf
				} else {
					q.copy(sl.BufIdx, from, t)
					flags &= sl.Flags
				}
				sl.Len, sl.Flags = t.Len, flags
				if q.unreported++; q.unreported >= every {
					q.unreported = 0
					sl.Flags |= abi.Report
				}
				last = i
				if i++; i == uint32(len(slots)) {
					i = 0
				}
				k++
				free--
				continue
			}
		}
		n := 1
		if s[k].Flags&dataplane.More != 0 {
			n = dataplane.FrameSlots(s[k:])
		}
		if n == 0 || n > free || !q.fits(i, s[k:k+n]) {
			break
		}
		for j := k; j < k+n; j++ {
			sl := &q.slots[i]
			q.put(sl, from, &s[j])
			if n == 1 && sl.Len < least {
				clear(q.region.Buffer(sl.BufIdx)[sl.Len:least])
				sl.Len = least
			}
			last = i
			if i++; i == uint32(len(q.slots)) {
				i = 0
			}
		}
		k += n
		free -= n
	}
	if k > 0 {
		q.slots[last].Flags |= abi.Report
		q.unreported = 0
		r.Head, r.Cur = i, i
		q.queued = true
	}
	return k
}

// fits reports whether the slots of one frame can go to the ring's slots from i
// on.
func (q *tx) fits(i uint32, s []dataplane.Slot) bool {
	for k := range s {
		if uint32(s[k].Len) > q.ring.BufSize {
			q.refused.Add(1)
			return false
		}
		if b := q.slots[i].BufIdx; b-abi.FirstBuffer >= q.bufs-abi.FirstBuffer {
			q.err = fmt.Errorf("transmit: slot %d has buffer %d, of %d", i, b, q.bufs)
			return false
		}
		if i++; i == uint32(len(q.slots)) {
			i = 0
		}
	}
	return true
}

// put fills a slot of the ring with the one that t holds, and t with the free
// buffer that is had for it. Of the slot's flags only a change of buffer that
// the kernel has not seen yet stays.
func (q *tx) put(sl *abi.Slot, from *dataplane.Region, t *dataplane.Slot) {
	flags := sl.Flags & abi.BufChanged
	if from == q.region && t.Off == 0 {
		t.Buf, sl.BufIdx = sl.BufIdx, t.Buf
		flags |= abi.BufChanged
	} else {
		q.copy(sl.BufIdx, from, t)
	}
	if t.Flags&dataplane.More != 0 {
		flags |= abi.MoreFrag
	}
	sl.Len, sl.Flags = t.Len, flags|q.report()
}

// shortCopy is how much is copied of the shortest frames: more than they have,
// at once.
const shortCopy = 64

// copy copies the frame of a slot to buffer b.
func (q *tx) copy(b uint32, from *dataplane.Region, t *dataplane.Slot) {
	dst := q.region.Buffer(b)
	if t.Len <= shortCopy && t.Off == 0 {
		if src := from.Buffer(t.Buf); len(src) >= shortCopy && len(dst) >= shortCopy {
			*(*[shortCopy]byte)(dst) = *(*[shortCopy]byte)(src)
			return
		}
	}
	copy(dst, from.Bytes(t))
}

// report returns abi.Report for one slot in a quarter of the ring, besides the
// last one of each burst: some drivers tell of completion only where they are
// asked to.
func (q *tx) report() uint16 {
	if q.unreported++; q.unreported < uint32(len(q.slots)/4) {
		return 0
	}
	q.unreported = 0
	return abi.Report
}
