package memport

import (
	"fmt"
	"math/bits"
	"slices"
	"sync/atomic"

	"nmfwd/dataplane"
)

// A ring holds size buffers in slots. Positions count up for ever; a position
// modulo len(slots) is its slot.
//
//	      head        tail       head+size
//	taken  |   full    |   free   |  vacant
//
// Full slots hold frames and free slots buffers for frames to come. The
// consumer takes slots from head on and repays them with free buffers, which
// the ring appends behind the free ones. The producer exchanges free buffers
// for frames from tail on.
type ring struct {
	slots []dataplane.Slot
	mask  uint32
	size  uint32
	_     [64]byte
	tail  atomic.Uint32 // written by the producer
	_     [60]byte
	head  atomic.Uint32 // written by the consumer
	_     [60]byte
}

// init fills the ring with free buffers.
func (r *ring) init(bufs []uint32) {
	r.size = uint32(len(bufs))
	r.slots = make([]dataplane.Slot, 1<<bits.Len32(r.size-1))
	r.mask = uint32(len(r.slots) - 1)
	for i, b := range bufs {
		r.slots[i].Buf = b
	}
}

// free returns the number of free slots, for the producer.
func (r *ring) free() int { return int(r.size - (r.tail.Load() - r.head.Load())) }

// span returns the n slots from position at on: up to the end of the array, and
// the rest from its start.
func (r *ring) span(at uint32, n int) (first, second []dataplane.Slot) {
	at &= r.mask
	first = r.slots[at:]
	if n <= len(first) {
		return first[:n], nil
	}
	return first, r.slots[:n-len(first)]
}

// An rx is the receive side of a queue.
type rx struct {
	*ring
	region *dataplane.Region
	cur    uint32 // consumer: taken up to here; head follows in Release
	loop   *loop  // preset frames, or nil

	full, lostBytes atomic.Uint64 // frames lost for want of slots, and their bytes

	_ [64]byte // no cache line with what another worker writes
}

func (q *rx) Region() *dataplane.Region { return q.region }

func (q *rx) Recv(s []dataplane.Slot) int {
	if q.loop != nil {
		q.loop.next(q, len(s))
	}
	n := int(q.tail.Load() - q.cur)
	for n > len(s) {
		if n = whole(q.slots, q.cur, q.mask, len(s)); n > 0 || len(s) == 0 {
			break
		}
		q.skip()
		n = int(q.tail.Load() - q.cur)
	}
	first, second := q.span(q.cur, n)
	copy(s, first)
	copy(s[len(first):], second)
	q.cur += uint32(n)
	return n
}

// skip loses the first frame, which has more slots than the worker takes at
// once.
func (q *rx) skip() {
	for more := true; more; {
		s := q.slots[q.cur&q.mask]
		more = s.Flags&dataplane.More != 0
		q.lostBytes.Add(uint64(s.Len))
		q.cur++
		q.Release([]uint32{s.Buf})
	}
	q.full.Add(1)
}

// whole returns the largest number up to n of slots from at on that ends with
// the end of a frame.
func whole(slots []dataplane.Slot, at, mask uint32, n int) int {
	for n > 0 && slots[(at+uint32(n)-1)&mask].Flags&dataplane.More != 0 {
		n--
	}
	return n
}

func (q *rx) Release(free []uint32) {
	head := q.head.Load()
	if n := q.cur - head; uint32(len(free)) > n {
		panic(fmt.Sprintf("memport: %d buffers released, %d taken", len(free), n))
	}
	first, second := q.span(head+q.size, len(free))
	for i := range first {
		first[i].Buf = free[i]
	}
	free2 := free[len(first):]
	for i := range second {
		second[i].Buf = free2[i]
	}
	q.head.Store(head + uint32(len(free)))
}

// put fills slots from position at on with a frame, at most size bytes each, for
// the producer. It returns their number, 0 when there are not as many free.
func (q *rx) put(at uint32, free int, frame []byte, headroom, size int) int {
	n := max(1, (len(frame)+size-1)/size)
	if n > free {
		return 0
	}
	for i := range n {
		s := &q.slots[(at+uint32(i))&q.mask]
		s.Off = uint16(headroom)
		s.Len = uint16(copy(q.region.Buffer(s.Buf)[headroom:][:size], frame))
		frame = frame[s.Len:]
		s.Flags = 0
		if i < n-1 {
			s.Flags = dataplane.More
		}
	}
	return n
}

// lose counts frames that found the ring full.
func (q *rx) lose(frames [][]byte) {
	q.full.Add(uint64(len(frames)))
	for _, f := range frames {
		q.lostBytes.Add(uint64(len(f)))
	}
}

// A tx is the transmit side of a queue.
type tx struct {
	*ring
	region   *dataplane.Region
	minFrame uint16
	looped   bool          // ring is an RX ring of another port
	full     atomic.Uint64 // slots refused
}

func (q *tx) Region() *dataplane.Region { return q.region }

func (q *tx) Send(from *dataplane.Region, s []dataplane.Slot) int {
	tail := q.tail.Load()
	n := len(s)
	if free := int(q.size - (tail - q.head.Load())); n > free {
		n = free
		for n > 0 && s[n-1].Flags&dataplane.More != 0 {
			n--
		}
		q.full.Add(uint64(len(s) - n))
	}
	first, second := q.span(tail, n)
	if from == q.region {
		exchange(first, s)
		exchange(second, s[len(first):])
	} else {
		q.copy(first, from, s)
		q.copy(second, from, s[len(first):])
	}
	if q.minFrame > 0 {
		q.pad(first, false)
		q.pad(second, len(first) > 0 && first[len(first)-1].Flags != 0)
	}
	q.tail.Store(tail + uint32(n))
	return n
}

// exchange puts frames into slots and the slots' buffers in their place.
func exchange(slots, frames []dataplane.Slot) {
	frames = frames[:len(slots)]
	for i := range slots {
		f := frames[i]
		frames[i].Buf = slots[i].Buf
		f.Flags &= dataplane.More
		slots[i] = f
	}
}

// copy copies frames of another region into slots.
func (q *tx) copy(slots []dataplane.Slot, from *dataplane.Region, frames []dataplane.Slot) {
	for i := range slots {
		d, f := &slots[i], &frames[i]
		if copy(q.region.Buffer(d.Buf), from.Bytes(f)) < int(f.Len) {
			panic(fmt.Sprintf("memport: slot of %d bytes sent, buffers have %d", f.Len, q.region.Stride()))
		}
		d.Off, d.Len, d.Flags = 0, f.Len, f.Flags&dataplane.More
	}
}

// pad lengthens short frames with zeros. Inside says that the first slot goes
// on with a frame.
func (q *tx) pad(slots []dataplane.Slot, inside bool) {
	for i := range slots {
		d := &slots[i]
		if d.Flags == 0 && !inside && d.Len < q.minFrame {
			b := q.region.Buffer(d.Buf)
			if int(d.Off)+int(q.minFrame) > len(b) {
				copy(b, q.region.Bytes(d))
				d.Off = 0
			}
			clear(b[d.Off+d.Len : d.Off+q.minFrame])
			d.Len = q.minFrame
		}
		inside = d.Flags != 0
	}
}

// complete calls each for all sent slots and frees them.
func (q *tx) complete(each func(*dataplane.Slot)) int {
	head := q.head.Load()
	n := q.tail.Load() - head
	for i := range n {
		s := &q.slots[(head+i)&q.mask]
		each(s)
		q.slots[(head+i+q.size)&q.mask].Buf = s.Buf
	}
	q.head.Store(head + n)
	return int(n)
}

// take completes all sent slots and returns copies of their frames. A host stack
// takes each slot for a frame of its own, as netmap's does.
func (q *tx) take(host bool) [][]byte {
	var frames [][]byte
	more := false
	q.complete(func(s *dataplane.Slot) {
		b := q.region.Bytes(s)
		if more {
			frames[len(frames)-1] = append(frames[len(frames)-1], b...)
		} else {
			frames = append(frames, slices.Clone(b))
		}
		more = s.Flags&dataplane.More != 0 && !host
	})
	return frames
}

// A descriptor stands for the kernel descriptor that a queue in memory lacks.
type descriptor struct{ rx *rx }

func (d descriptor) FD() int { return -1 }

// pollIn is POLLIN, which has the same value in all systems.
const pollIn = 1

// Before returns POLLIN while frames wait to be received. There is nothing to
// poll: the worker must not go to sleep then.
func (d descriptor) Before(bool) (int16, error) {
	if d.rx != nil && (d.rx.loop != nil || d.rx.tail.Load() != d.rx.cur) {
		return pollIn, nil
	}
	return 0, nil
}

func (d descriptor) After(int16) error { return nil }
