package dataplane

// fromHost collects a burst that the host gave to a port, unchanged.
func (w *Worker) fromHost(q *rxQueue, s []Slot) {
	for len(s) > 0 {
		n := FrameSlots(s)
		if n == 0 { // the queue cut a frame
			for i := range s {
				w.free = append(w.free, s[i].Buf)
			}
			return
		}
		w.collect(&w.out[q.port], s[:n], flagFromHost)
		s = s[n:]
	}
}

// flush sends what an outlet collected from queue q, and collects the free
// buffers that came back.
func (w *Worker) flush(st *State, q *rxQueue, o *outlet) {
	s := o.slots[:o.n]
	o.n = 0
	n := len(w.free)
	w.free = w.free[:n+len(s)]
	free := w.free[n:]
	sent, reason := 0, DropTXFull
	if o.host {
		reason = DropHostFull
	}
	switch {
	case !o.host && !st.Ports[o.port].Up:
		reason = DropLinkDown
	case o.tx != nil:
		sent = o.tx.Send(q.region, s)
		w.sent(q.tally, o, settle(s[:sent], free), q.region, q.host)
		free = free[sent:]
	default:
		if h := o.handoffs[q.regionNumber]; h != nil {
			if sent = h.put(s, q.ingress); sent > 0 {
				w.stats.handoff.Add(uint64(settle(s[:sent], free).frames))
				free = free[sent:]
				h.to.poller.wake.wake()
			}
			if sent < len(s) {
				h.lost.Store(h.lost.Load() + uint64(batchOf(s[sent:]).frames))
			}
		}
	}
	if sent < len(s) {
		left := settle(s[sent:], free)
		if !q.host {
			q.tally.add(cDropped+int(reason), uint64(left.frames))
		}
	}
}

// A batch is what some slots sum up to.
type batch struct{ frames, v6, bytes int }

func batchOf(s []Slot) (b batch) {
	for i := range s {
		b.add(&s[i])
	}
	return b
}

// settle is batchOf that also collects the slots' buffers in free.
func settle(s []Slot, free []uint32) (b batch) {
	free = free[:len(s)]
	for i := range s {
		free[i] = s[i].Buf
		b.add(&s[i])
	}
	return b
}

func (b *batch) add(s *Slot) {
	last := ^s.Flags & More
	b.bytes += int(s.Len)
	b.frames += int(last)
	b.v6 += int(s.Flags / flagIPv6 & last)
}

// sent counts what an outlet's TX queue took of frames in a region.
func (w *Worker) sent(t *tally, o *outlet, b batch, from *Region, fromHost bool) {
	switch {
	case o.host:
		t.add(cToHost, uint64(b.frames))
		return
	case fromHost:
		t.add(cFromHost, uint64(b.frames))
	default:
		if n := b.frames - b.v6; n > 0 {
			t.add(cForwarded, uint64(n))
		}
		if b.v6 > 0 {
			t.add(cForwarded+1, uint64(b.v6))
		}
	}
	o.txTally.packets.Store(o.txTally.packets.Load() + uint64(b.frames))
	o.txTally.bytes.Store(o.txTally.bytes.Load() + uint64(b.bytes))
	if from != o.region {
		o.txTally.copied.Store(o.txTally.copied.Load() + uint64(b.frames))
	}
}

// takeHanded sends what another worker handed over. The end of these packets
// is counted here, by the ingress queue that they came in by.
func (w *Worker) takeHanded(st *State, h *handoff) int {
	s := w.slots[:w.burst]
	s = s[:h.get(s, w.ingress)]
	if len(s) == 0 {
		return 0
	}
	injected := w.takeInjected() // by control, before it published what s was forwarded by
	o := &w.out[h.out]
	sent, reason := 0, DropTXFull
	switch {
	case o.host:
		reason = DropHostFull
		sent = o.tx.Send(h.region, s)
	case !st.Ports[o.port].Up:
		reason = DropLinkDown
	default:
		sent = o.tx.Send(h.region, s)
	}
	for i := 0; i < len(s); {
		n := FrameSlots(s[i:])
		t, host := w.in[w.ingress[i]], s[i].Flags&flagFromHost != 0
		if i < sent {
			w.sent(t, o, batchOf(s[i:i+n]), h.region, host)
		} else if !host {
			t.add(cDropped+int(reason), 1)
		}
		i += n
	}
	h.done(s)
	return injected + len(s)
}

// takeInjected sends what control made.
func (w *Worker) takeInjected() int {
	r := w.inject
	head := r.head.Load()
	n := int(r.tail.Load() - head)
	for i := range uint32(n) {
		k := (head + i) & uint32(len(r.slots)-1)
		if o := &w.out[r.out[k]]; o.tx.Send(r.region, r.slots[k:k+1]) == 1 && !o.host {
			o.txTally.packets.Add(1)
			o.txTally.bytes.Add(uint64(r.slots[k].Len))
		}
	}
	r.head.Store(head + uint32(n))
	return n
}
