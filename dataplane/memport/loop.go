package memport

import "fmt"

// Rounds is how often a frame of a loop goes round before it is restored. It
// is less than the largest TTL.
const Rounds = 200

// A loop feeds a receive ring with what a transmit ring sent.
type loop struct {
	frames [][]byte // as they start, in the order of the ring
	left   int      // frames to hand out before they are restored
	pos    uint32   // ring position of the last restoration
	first  int      // frame that was at pos

	_ [64]byte // no cache line with what another worker writes
}

// Loop joins TX ring txq of out to RX ring rxq of in: what is sent by the one
// is received by the other, without a copy. The ring starts with the given
// frames, which a worker then passes round for ever. It is the loopback that a
// benchmark of Worker.Step needs: feeding costs no more than the two rings do.
//
// A frame has to come out of the worker such that it can go in again. So the
// neighbor that the frames are routed to must have the MAC address of in, and
// the frames must be sent with it as their destination and with a TTL of at
// least Rounds+1, best 255. After Rounds rounds all frames are copied afresh
// from the presets, which costs a header copy per Rounds packets.
//
// Both rings must be of the same region, with room in the RX ring for the
// frames and a burst more. Frames must fit a slot, and the worker must drop
// none. Loop must be called before the worker starts; Deliver to rxq and
// Transmit of txq must not be used with it.
func Loop(in *Port, rxq int, out *Port, txq int, frames [][]byte) error {
	r, t := in.rx[rxq], out.tx[txq]
	switch {
	case in.region != out.region:
		return fmt.Errorf("memport: loop from %s to %s: regions %s and %s differ", out.Name, in.Name, out.region.Name(), in.region.Name())
	case len(frames) == 0:
		return fmt.Errorf("memport: loop from %s to %s: no frames", out.Name, in.Name)
	case len(frames) >= int(r.size):
		return fmt.Errorf("memport: loop from %s to %s: no room for %d frames and a burst in a ring of %d", out.Name, in.Name, len(frames), r.size)
	case r.tail.Load() != 0 || t.tail.Load() != 0:
		return fmt.Errorf("memport: loop from %s to %s: rings are in use", out.Name, in.Name)
	}
	for _, f := range frames {
		if len(f) > in.BufSize {
			return fmt.Errorf("memport: loop from %s to %s: frame of %d bytes, slots have %d", out.Name, in.Name, len(f), in.BufSize)
		}
	}
	if n := in.DeliverBurst(rxq, frames); n != len(frames) {
		return fmt.Errorf("memport: loop from %s to %s: frame %d was not received", out.Name, in.Name, n)
	}
	var bufs []uint32
	t.census(0, "", func(b uint32, _ string) { bufs = append(bufs, b) })
	out.region.Give(bufs)
	t.ring, t.looped = r.ring, true
	r.loop = &loop{frames: frames, left: Rounds * len(frames)}
	return nil
}

// next is called before up to n frames are taken from q.
func (l *loop) next(q *rx, n int) {
	l.left -= n
	if l.left > 0 || int(q.tail.Load()-q.cur) != len(l.frames) {
		return // not yet, or some are in the worker's hands
	}
	l.left = Rounds * len(l.frames)
	l.first = (l.first + int(q.cur-l.pos)) % len(l.frames)
	l.pos = q.cur
	for i := range l.frames {
		f := l.frames[(l.first+i)%len(l.frames)]
		s := &q.slots[(q.cur+uint32(i))&q.mask]
		s.Len = uint16(len(f))
		copy(q.region.Bytes(s), f)
	}
}
