package dataplane

import "nmfwd/wire"

// Slow returns what decide and rewrite make of a frame that comes in by a port,
// without the shortcuts of forward: the frame as sent, without padding, or nil.
func (st *State) Slow(port int, frame []byte) []byte {
	r := NewRegion("", append(append([]byte(nil), frame...), make([]byte, wire.VLANLen)...), len(frame)+wire.VLANLen, nil)
	s := Slot{Len: uint16(len(frame))}
	d := st.decide(&st.Ports[port], r.Bytes(&s), len(frame))
	if d.adj == nil {
		return nil
	}
	n := r.rewrite(&s, &d)
	return r.Bytes(&s)[:n]
}

// Asleep reports whether a worker sleeps, or is about to.
func (r *Forwarder) Asleep(worker int) bool { return r.workers[worker].poller.wake.asleep.Load() }
