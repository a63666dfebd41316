package memport

import (
	"fmt"
	"math/bits"
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

// An rx is the receive side of a queue.
type rx struct {
	*ring
	region *dataplane.Region
	cur    uint32 // consumer: taken up to here; head follows in Release
	loop   *loop  // preset frames, or nil
}

func (q *rx) Region() *dataplane.Region { return q.region }

func (q *rx) Recv(s []dataplane.Slot) int {
	if q.loop != nil {
		q.loop.next(q, len(s))
	}
	n := int(q.tail.Load() - q.cur)
	if n > len(s) {
		n = whole(q.slots, q.cur, q.mask, len(s))
	}
	at := q.cur & q.mask
	if m := copy(s[:n], q.slots[at:]); m < n {
		copy(s[m:n], q.slots)
	}
	q.cur += uint32(n)
	return n
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
	for i, b := range free {
		q.slots[(head+q.size+uint32(i))&q.mask].Buf = b
	}
	q.head.Store(head + uint32(len(free)))
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
	inside := false // in a frame of several slots
	for i := range s[:n] {
		d := &q.slots[(tail+uint32(i))&q.mask]
		free := d.Buf
		if from == q.region {
			*d = s[i]
			s[i].Buf = free
		} else {
			*d = dataplane.Slot{Buf: free, Len: s[i].Len, Flags: s[i].Flags}
			if copy(q.region.Buffer(free), from.Bytes(&s[i])) < int(s[i].Len) {
				panic(fmt.Sprintf("memport: slot of %d bytes sent, buffers have %d", s[i].Len, q.region.Stride()))
			}
		}
		d.Flags &= dataplane.More
		if d.Flags == 0 && !inside && d.Len < q.minFrame {
			q.pad(d)
		}
		inside = d.Flags != 0
	}
	q.tail.Store(tail + uint32(n))
	return n
}

// pad lengthens the frame in d with zeros.
func (q *tx) pad(d *dataplane.Slot) {
	b := q.region.Buffer(d.Buf)
	if int(d.Off)+int(q.minFrame) > len(b) {
		copy(b, q.region.Bytes(d))
		d.Off = 0
	}
	clear(b[d.Off+d.Len : d.Off+q.minFrame])
	d.Len = q.minFrame
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
