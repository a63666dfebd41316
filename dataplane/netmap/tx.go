package netmap

import (
	"fmt"
	"math"
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
	host   bool           // a host ring, of which the kernel takes each slot for a frame
	state  *atomic.Uint32 // the port's
	sync   func() error   // gives the ring to the kernel and takes sent slots back

	unreported int   // slots since the last one with abi.Report
	queued     bool  // slots were filled since the last sync or poll
	synced     bool  // Send has synced since the last Before
	err        error // met in Send, for Before

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
// ring has, is not taken nor are those behind it. So is one of several slots in a host
// ring: the kernel does not look at abi.MoreFrag there, and what the second slot has
// would be a frame of its sender's choice.
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
	i, k, last := int(r.Head), 0, 0
	for k < len(s) {
		// Plain frames, up to the end of the ring or of what goes without a report.
		n := min(len(s)-k, free, len(q.slots)-i, q.reportEvery()-q.unreported)
		if n = q.plain(q.slots[i:i+n], from, s[k:k+n]); n > 0 {
			last = i + n - 1
			if q.unreported += n; q.unreported == q.reportEvery() {
				q.unreported = 0
				q.slots[last].Flags |= abi.Report
			}
			if i += n; i == len(q.slots) {
				i = 0
			}
			k += n
			free -= n
			continue
		}
		n = 1
		if s[k].Flags&dataplane.More != 0 {
			n = dataplane.FrameSlots(s[k:])
		}
		if n == 0 || n > free || n > 1 && q.host || !q.fits(i, s[k:k+n]) {
			break
		}
		for j := k; j < k+n; j++ {
			sl := &q.slots[i]
			q.put(sl, from, &s[j])
			if n == 1 && sl.Len < q.least {
				clear(q.region.Buffer(sl.BufIdx)[sl.Len:q.least])
				sl.Len = q.least
			}
			last = i
			if i++; i == len(q.slots) {
				i = 0
			}
		}
		k += n
		free -= n
	}
	if k > 0 {
		q.slots[last].Flags |= abi.Report
		q.unreported = 0
		r.Head, r.Cur = uint32(i), uint32(i)
		q.queued = true
	}
	return k
}

// plain fills slots of the ring with as many frames of s, or less: as far as they
// are what nearly all are, in one slot and neither short nor too long, and only
// have to be exchanged or copied.
func (q *tx) plain(ring []abi.Slot, from *dataplane.Region, s []dataplane.Slot) int {
	least, span := q.least, uint16(min(q.ring.BufSize, math.MaxUint16))-q.least
	if from == q.region {
		return exchange(ring, s, q.bufs-abi.FirstBuffer, least, span)
	}
	to, bufs := q.region, q.bufs-abi.FirstBuffer
	shortCopies := min(from.Stride(), to.Stride()) >= dataplane.ShortCopy
	s = s[:len(ring)]
	for i := range s {
		sl, t := &ring[i], &s[i]
		if t.Flags&dataplane.More != 0 || t.Len-least > span || sl.BufIdx-abi.FirstBuffer >= bufs {
			return i
		}
		sl.Len = t.Len
		sl.Flags &= abi.BufChanged
		if t.Len <= dataplane.ShortCopy && t.Off == 0 && shortCopies {
			to.CopyShort(sl.BufIdx, from, t.Buf)
		} else {
			copy(to.Buffer(sl.BufIdx), from.Bytes(t))
		}
	}
	return len(ring)
}

// exchange is plain within a region of bufs buffers that are not reserved, for
// frames of least to least+span bytes.
func exchange(ring []abi.Slot, s []dataplane.Slot, bufs uint32, least, span uint16) int {
	s = s[:len(ring)]
	for i := range s {
		sl, t := &ring[i], &s[i]
		b := sl.BufIdx
		if t.Flags&dataplane.More != 0 || t.Off != 0 || t.Len-least > span || b-abi.FirstBuffer >= bufs {
			return i
		}
		sl.BufIdx, sl.Len, sl.Flags = t.Buf, t.Len, abi.BufChanged
		t.Buf = b
	}
	return len(ring)
}

// fits reports whether the slots of one frame can go to the ring's slots from i
// on.
func (q *tx) fits(i int, s []dataplane.Slot) bool {
	for k := range s {
		if uint32(s[k].Len) > q.ring.BufSize {
			q.refused.Add(1)
			return false
		}
		if b := q.slots[i].BufIdx; b-abi.FirstBuffer >= q.bufs-abi.FirstBuffer {
			q.err = fmt.Errorf("transmit: slot %d has buffer %d, of %d", i, b, q.bufs)
			return false
		}
		if i++; i == len(q.slots) {
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

// copy copies the frame of a slot to buffer b.
func (q *tx) copy(b uint32, from *dataplane.Region, t *dataplane.Slot) {
	copy(q.region.Buffer(b), from.Bytes(t))
}

// reportEvery returns how many slots at most go without abi.Report: a quarter of
// the ring.
func (q *tx) reportEvery() int { return max(len(q.slots)/4, 1) }

// report returns abi.Report for one slot in a quarter of the ring, besides the
// last one of each burst: some drivers tell of completion only where they are
// asked to.
func (q *tx) report() uint16 {
	if q.unreported++; q.unreported < q.reportEvery() {
		return 0
	}
	q.unreported = 0
	return abi.Report
}
