package memport

import (
	"time"

	"nmfwd/dataplane"
	"nmfwd/pcap"
)

// Tap returns port p with all frames that its workers receive written to rx,
// and all that they send to tx; either may be nil, both may be the same, and
// several ports may share them. Host queues are not tapped. Now is the clock.
// The caller flushes the captures after the workers stopped.
func Tap(p *dataplane.Port, rx, tx *pcap.Writer, now func() time.Time) *dataplane.Port {
	return wrap(p, func(q *dataplane.Queue) {
		if q.RX != nil && rx != nil {
			q.RX = &tapRX{RX: q.RX, tap: tap{c: rx, now: now}}
		}
		if q.TX != nil && tx != nil {
			q.TX = &tapTX{TX: q.TX, tap: tap{c: tx, now: now}}
		}
	})
}

// wrap returns a copy of p whose queues each went through f.
func wrap(p *dataplane.Port, f func(*dataplane.Queue)) *dataplane.Port {
	w := *p
	w.Queues = append([]dataplane.Queue(nil), p.Queues...)
	for i := range w.Queues {
		f(&w.Queues[i])
	}
	return &w
}

// A tap collects frames of one side of a queue.
type tap struct {
	c    *pcap.Writer
	now  func() time.Time
	buf  []byte // frames one after the other
	ends []int  // of the slots in buf; negative where the frame goes on
}

func (t *tap) copy(r *dataplane.Region, s []dataplane.Slot) {
	t.buf, t.ends = t.buf[:0], t.ends[:0]
	for i := range s {
		t.buf = append(t.buf, r.Bytes(&s[i])...)
		end := len(t.buf)
		if s[i].Flags&dataplane.More != 0 {
			end = -1
		}
		t.ends = append(t.ends, end)
	}
}

// write writes the frames in the first n slots.
func (t *tap) write(n int) {
	if n == 0 {
		return
	}
	now, start := t.now(), 0
	for _, end := range t.ends[:n] {
		if end >= 0 {
			t.c.Write(now, t.buf[start:end]) // Flush tells of an error
			start = end
		}
	}
}

type tapRX struct {
	dataplane.RX
	tap
}

func (t *tapRX) Recv(s []dataplane.Slot) int {
	n := t.RX.Recv(s)
	t.copy(t.Region(), s[:n])
	t.write(n)
	return n
}

type tapTX struct {
	dataplane.TX
	tap
}

// Send copies first: once sent, the buffers are the device's.
func (t *tapTX) Send(from *dataplane.Region, s []dataplane.Slot) int {
	t.copy(from, s)
	n := t.TX.Send(from, s)
	t.write(n)
	return n
}
