package netmap

import (
	"sync/atomic"

	"nmfwd/dataplane"
	"nmfwd/dataplane/netmap/abi"
)

// An rx is the receive side of a queue.
//
//	head = rel           next            tail
//	   | taken by Recv,   | received,     |
//	   | not yet repaid   | not taken     |
//
// The ring's cur, where poll(2) begins to look for news, is next, or tail when
// all that is left is a frame whose end has not come yet.
type rx struct {
	ring   *abi.Ring
	slots  []abi.Slot
	region *dataplane.Region
	bufs   uint32         // number of buffers in the region
	state  *atomic.Uint32 // the port's

	rel, next uint32
	broken    bool     // slots up to the next end of a frame belong to one too long to take
	bad       []uint32 // slots taken whose buffer number is not in the region: passed over

	head, tail uint32 // as the last sync left them

	full  atomic.Uint64 // times that the ring was found full
	lost  atomic.Uint64 // slots passed over
	moved atomic.Uint32 // syncs that received something
}

// Region returns the region of the queue's buffers.
func (q *rx) Region() *dataplane.Region { return q.region }

// after returns the slot after i.
func (q *rx) after(i uint32) uint32 {
	if i++; i == uint32(len(q.slots)) {
		return 0
	}
	return i
}

// valid reports whether b is the number of a buffer.
func (q *rx) valid(b uint32) bool { return b-abi.FirstBuffer < q.bufs-abi.FirstBuffer }

// Recv takes received slots, of whole frames only. A frame of more slots than
// len(s) or abi.MaxFrags cannot be taken: its slots are returned one by one
// with Len 0, as are those with a length beyond the buffer.
func (q *rx) Recv(s []dataplane.Slot) int {
	if q.state.Load()&closed != 0 {
		return 0
	}
	r := q.ring
	i, tail, n := q.next, r.Tail, 0
	if tail >= uint32(len(q.slots)) {
		return 0
	}
	if q.rel != r.Head || q.distance(q.rel, i) > q.distance(q.rel, tail) {
		// The kernel has reset the ring, as it does with the port. What was
		// taken before has to go back to the slots that it came from first.
		if q.rel != i || r.Head >= uint32(len(q.slots)) {
			return 0
		}
		i = r.Head
		q.rel, q.broken = i, false
	}
	cur := tail
	for i != tail {
		if n == len(s) {
			cur = i
			break
		}
		sl := &q.slots[i]
		if sl.Flags&abi.MoreFrag == 0 && !q.broken {
			// Plain frames, up to the end of the ring.
			end := tail
			if end < i {
				end = uint32(len(q.slots))
			}
			if k := plain(s[n:], q.slots[i:end], q.bufs-abi.FirstBuffer, r.BufSize); k > 0 {
				n += k
				if i += uint32(k); i == uint32(len(q.slots)) {
					i = 0
				}
				continue
			}
			if !q.valid(sl.BufIdx) {
				q.passOver(i)
			} else {
				s[n] = dataplane.Slot{Buf: sl.BufIdx, Len: q.length(sl)}
				n++
			}
			i = q.after(i)
			continue
		}
		taken, next := q.chain(s[n:], i, tail, n == 0)
		if next == i {
			if taken < 0 {
				cur = i // no room in s
			}
			break
		}
		n, i = n+taken, next
	}
	q.next = i
	r.Cur = cur
	if len(q.bad) > 0 {
		q.pass()
	}
	return n
}

// plain takes frames from slots of the ring, as far as they are what nearly all
// are: in one slot, in one of bufs buffers that are not reserved and no longer
// than size bytes.
func plain(s []dataplane.Slot, ring []abi.Slot, bufs, size uint32) int {
	n := min(len(s), len(ring))
	s, ring = s[:n], ring[:n]
	for i := range s {
		sl, t := &ring[i], &s[i]
		b, length := sl.BufIdx, sl.Len
		if sl.Flags&abi.MoreFrag != 0 || uint32(length) > size || b-abi.FirstBuffer >= bufs {
			return i
		}
		t.Buf, t.Off, t.Len, t.Flags = b, 0, length, 0
	}
	return n
}

// length returns the length of the frame in a slot, 0 when it cannot be.
func (q *rx) length(sl *abi.Slot) uint16 {
	if uint32(sl.Len) > q.ring.BufSize {
		return 0
	}
	return sl.Len
}

// chain takes the frame of several slots that begins in slot i, and returns the
// number of slots written to s and the slot after the frame. That is i when
// nothing was taken: for want of its end, or, and then taken is -1, of room in
// s. All says that s is as long as it will ever be.
func (q *rx) chain(s []dataplane.Slot, i, tail uint32, all bool) (taken int, next uint32) {
	n, ended, sound := 0, false, true
	for j := i; j != tail && !ended && !q.broken; j = q.after(j) {
		sl := &q.slots[j]
		sound = sound && q.valid(sl.BufIdx) && uint32(sl.Len) <= q.ring.BufSize
		ended = sl.Flags&abi.MoreFrag == 0
		n++
	}
	switch limit := min(abi.MaxFrags, len(q.slots)-1); {
	case q.broken:
	case ended && n <= len(s):
		for range n {
			sl := &q.slots[i]
			switch {
			case !q.valid(sl.BufIdx):
				q.passOver(i)
			case sound:
				s[taken] = dataplane.Slot{Buf: sl.BufIdx, Len: sl.Len, Flags: dataplane.More}
				taken++
			default:
				s[taken] = dataplane.Slot{Buf: sl.BufIdx, Flags: dataplane.More}
				taken++
			}
			i = q.after(i)
		}
		if taken > 0 {
			s[taken-1].Flags = 0
		}
		return taken, i
	case ended && !all:
		return -1, i
	case ended || n >= limit:
		q.broken = true
	default:
		return 0, i
	}
	for i != tail && taken < len(s) && q.broken {
		sl := &q.slots[i]
		q.broken = sl.Flags&abi.MoreFrag != 0
		if q.valid(sl.BufIdx) {
			s[taken] = dataplane.Slot{Buf: sl.BufIdx}
			taken++
		} else {
			q.passOver(i)
		}
		i = q.after(i)
	}
	return taken, i
}

// passOver takes slot i out of the hands of the caller, for its buffer number
// is not one.
func (q *rx) passOver(i uint32) {
	q.bad = append(q.bad, i)
	q.lost.Add(1)
}

// Release repays slots with free buffers. It panics when more are repaid than
// were taken.
func (q *rx) Release(free []uint32) {
	if len(free) > q.distance(q.rel, q.next)-len(q.bad) {
		panic("netmap: more buffers released than received")
	}
	i := q.rel
	for len(free) > 0 {
		// Up to the end of the ring or a slot that is passed over.
		end := uint32(min(len(q.slots), int(i)+len(free)))
		if len(q.bad) > 0 && q.bad[0] >= i {
			end = min(end, q.bad[0])
		}
		repay(q.slots[i:end], free)
		free = free[end-i:]
		if i = end; i == uint32(len(q.slots)) {
			i = 0
		}
		for len(q.bad) > 0 && q.bad[0] == i {
			q.bad = q.bad[1:]
			i = q.after(i)
		}
	}
	q.advance(i)
	if len(q.bad) > 0 {
		q.pass()
	}
}

// repay gives slots of the ring a buffer each.
func repay(ring []abi.Slot, free []uint32) {
	free = free[:len(ring)]
	for i := range ring {
		sl, b := &ring[i], free[i]
		if sl.BufIdx != b {
			sl.BufIdx, sl.Flags = b, abi.BufChanged
		} else {
			sl.Flags &= abi.BufChanged
		}
	}
}

// pass gives back slots with a bad buffer number that are next in turn, as they
// are.
func (q *rx) pass() {
	i := q.rel
	for len(q.bad) > 0 && q.bad[0] == i {
		q.bad = q.bad[1:]
		i = q.after(i)
	}
	q.advance(i)
}

// advance gives the slots up to i to the kernel, unless it has reset the ring
// meanwhile and has them already.
func (q *rx) advance(i uint32) {
	r := q.ring
	if r.Head == q.rel && q.distance(r.Head, i) <= q.distance(r.Head, r.Tail) {
		r.Head = i
	}
	q.rel = i
}

// idle reports whether all that was taken is repaid.
func (q *rx) idle() bool { return q.rel == q.next && len(q.bad) == 0 }

// bind makes q the reader of a ring that was opened.
func (q *rx) bind(r *abi.Ring, slots []abi.Slot, m *region) {
	q.ring, q.slots, q.region, q.bufs = r, slots, m.buffer, m.bufs
	q.rel, q.next, q.broken = r.Head, r.Head, false
	q.head, q.tail = r.Head, r.Tail
}

// distance returns the number of slots from a to b.
func (q *rx) distance(a, b uint32) int {
	n := int(b) - int(a)
	if n < 0 {
		n += len(q.slots)
	}
	return n
}

// watch is called after a sync. It counts a ring of which the device has filled
// all slots that it had before: what arrived since is lost. Drivers keep up to
// one slot back besides the one that is never used.
func (q *rx) watch() {
	r := q.ring
	if r.Tail != q.tail {
		q.moved.Store(q.moved.Load() + 1)
		if q.distance(q.head, r.Tail) >= len(q.slots)-2 {
			q.full.Add(1)
		}
	}
	q.head, q.tail = r.Head, r.Tail
}
