package memport

import (
	"errors"
	"math/rand/v2"

	"nmfwd/dataplane"
)

// ErrFault is what a descriptor reports when Faults make it fail.
var ErrFault = errors.New("memport: injected fault")

// Faults say what goes wrong on a port, and how often: each is the share of
// frames, or of calls, from 0 to 1. The same Seed makes the same faults for the
// same calls.
type Faults struct {
	Seed uint64

	Drop     float64 // received frames that are lost
	Truncate float64 // received frames that end early
	Corrupt  float64 // received frames with one bit changed
	Short    float64 // Recv calls that return less than they could
	Partial  float64 // Send calls that take less than they could
	Full     float64 // Send calls that take nothing, and so do FullFor more
	FullFor  int
	Fail     float64 // Before and After calls that return ErrFault
}

// Fault returns port p with faults. No buffer is ever lost or duplicated, no
// frame of several slots is cut between two of them or sent in part, and the
// contract of dataplane.RX and TX is kept otherwise. Host queues work well.
func Fault(p *dataplane.Port, f Faults) *dataplane.Port {
	n := uint64(0)
	source := func() dice {
		n++
		return dice{rand.New(rand.NewPCG(f.Seed, n))}
	}
	return wrap(p, func(q *dataplane.Queue) {
		if q.RX != nil {
			q.RX = &faultRX{RX: q.RX, f: f, dice: source()}
		}
		if q.TX != nil {
			q.TX = &faultTX{TX: q.TX, f: f, dice: source()}
		}
		if q.Descriptor != nil {
			q.Descriptor = &faultDescriptor{Descriptor: q.Descriptor, f: f, dice: source()}
		}
	})
}

type dice struct{ *rand.Rand }

// hit reports true with probability p.
func (d dice) hit(p float64) bool { return p > 0 && d.Float64() < p }

// fewer returns a number from 0 to n-1, or n if that is 0.
func (d dice) fewer(n int) int {
	if n == 0 {
		return 0
	}
	return d.IntN(n)
}

type faultRX struct {
	dataplane.RX
	f    Faults
	dice dice
}

func (q *faultRX) Recv(s []dataplane.Slot) int {
	if q.dice.hit(q.f.Short) {
		s = s[:q.dice.fewer(len(s))]
	}
	n := q.RX.Recv(s)
	keep := 0
	for i := 0; i < n; {
		end := i + 1
		for end < n && s[end-1].Flags&dataplane.More != 0 {
			end++
		}
		frame := s[i:end]
		i = end
		if q.dice.hit(q.f.Drop) {
			for _, t := range frame {
				q.Release([]uint32{t.Buf})
			}
			continue
		}
		if last := &frame[len(frame)-1]; last.Len > 1 && q.dice.hit(q.f.Truncate) {
			last.Len = uint16(1 + q.dice.IntN(int(last.Len)-1))
		}
		if q.dice.hit(q.f.Corrupt) {
			if b := q.Region().Bytes(&frame[q.dice.IntN(len(frame))]); len(b) > 0 {
				b[q.dice.IntN(len(b))] ^= 1 << q.dice.IntN(8)
			}
		}
		keep += copy(s[keep:], frame)
	}
	return keep
}

type faultTX struct {
	dataplane.TX
	f    Faults
	dice dice
	full int // Send calls that still take nothing
}

func (q *faultTX) Send(from *dataplane.Region, s []dataplane.Slot) int {
	if q.full > 0 {
		q.full--
		return 0
	}
	if q.dice.hit(q.f.Full) {
		q.full = q.f.FullFor
		return 0
	}
	if q.dice.hit(q.f.Partial) {
		n := q.dice.fewer(len(s))
		for n > 0 && s[n-1].Flags&dataplane.More != 0 {
			n--
		}
		s = s[:n]
	}
	return q.TX.Send(from, s)
}

type faultDescriptor struct {
	dataplane.Descriptor
	f    Faults
	dice dice
}

func (d *faultDescriptor) Before(sleep bool) (int16, error) {
	if d.dice.hit(d.f.Fail) {
		return 0, ErrFault
	}
	return d.Descriptor.Before(sleep)
}

func (d *faultDescriptor) After(revents int16) error {
	if d.dice.hit(d.f.Fail) {
		return ErrFault
	}
	return d.Descriptor.After(revents)
}
