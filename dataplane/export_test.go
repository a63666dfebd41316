package dataplane

// Slow returns what decide and rewrite make of a frame that comes in by a port,
// without the shortcuts of forward: the frame as sent, without padding, or nil.
func (st *State) Slow(port int, frame []byte) []byte {
	p := append([]byte(nil), frame...)
	a, v := st.decide(&st.Ports[port], p, len(p))
	if v != forward4 && v != forward6 {
		return nil
	}
	return p[:rewrite(a, v, p)]
}
