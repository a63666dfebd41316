package dataplane

import (
	"sync/atomic"
	"time"

	"nmfwd/fib"
	"nmfwd/wire"
)

// A Worker moves packets. It is plain single-threaded code over memory that it
// owns: its queues, its buffers, its counters. Everything else that it touches
// is immutable (State) or a ring of which it is one of two ends. Step must be
// called by one goroutine at a time.
type Worker struct {
	id    int
	cpu   int // -1: not pinned
	burst int
	idle  IdleMode

	state *atomic.Pointer[State] // written by control
	gen   uint64                 // of the tables that seen tells
	seen  atomic.Uint64          // generation in use; readers of older tables are gone. Written by the worker

	rx      []rxQueue
	out     []outlet   // by port number, then by port number for the ports' hosts
	in      []*tally   // by ingress number, also for what others hand over
	handed  []*handoff // from other workers
	inject  *injectRing
	punts   [numPuntRings]*puntRing
	control *waker // of the reader of punts

	slots   []Slot    // a burst
	ingress []int32   // of a burst taken from a handoff
	free    []uint32  // buffers that repay the burst
	touched []*outlet // with frames in the burst

	now    int64     // of this Step
	began  time.Time // that now counts from, once a thread runs
	stats  workerTally
	call   Call
	poller *poller
	stop   atomic.Bool // written by the router
}

// An rxQueue is a queue that the worker reads: of a port, or of a port's host.
type rxQueue struct {
	rx           RX
	region       *Region
	regionNumber int
	port         int
	ingress      int
	tally        *tally
	host         bool                 // the frames come from the port's host
	limits       [NumLimits][2]Bucket // by family
	unknown      [Sources]Bucket
	used         Bucket
}

// An outlet is where frames for a port, or for the host behind it, leave the
// worker: by its own TX queue, or by a hand-off to the worker that has one.
type outlet struct {
	tx       TX
	region   *Region // of tx
	txTally  *txTally
	handoffs []*handoff // by region number, where tx is nil
	port     int
	host     bool // leads to the port's host
	minFrame int  // frames are padded to this length
	longest  int  // frame that the host takes

	slots []Slot // collected in this burst, all of one region
	n     int    // of slots
}

// connected reports whether anything can leave by o.
func (o *outlet) connected() bool { return o.tx != nil || o.handoffs != nil }

// Step takes a burst from each queue, runs each packet to completion, sends
// what is to be sent and repays the queues. Now is the time in nanoseconds on
// any clock that only grows. It returns the number of packets handled: 0 means
// that there was nothing to do. It never blocks and allocates nothing.
func (w *Worker) Step(now int64) int {
	w.now = now
	st := w.state.Load()
	if st.FIB.Gen != w.gen {
		w.gen = st.FIB.Gen
		w.seen.Store(w.gen)
	}
	n := w.takeInjected() // what waited for st leaves before what is forwarded by it
	for i := range w.rx {
		n += w.receive(st, &w.rx[i])
	}
	for _, h := range w.handed {
		n += w.takeHanded(st, h)
	}
	if n > 0 {
		for _, t := range w.in {
			t.publish()
		}
	}
	return n
}

// receive forwards one burst of a queue.
func (w *Worker) receive(st *State, q *rxQueue) int {
	n := q.rx.Recv(w.slots[:w.burst])
	if n == 0 {
		return 0
	}
	s := w.slots[:n]
	switch {
	case q.host:
		w.fromHost(q, s)
	case st.Watch != nil:
		st.Watch.note(w.id, st, &st.Ports[q.port], q.region, s)
		fallthrough
	default:
		w.forward(st, q, s)
	}
	for _, o := range w.touched {
		w.flush(st, q, o)
	}
	w.touched = w.touched[:0]
	q.rx.Release(w.free)
	w.free = w.free[:0]
	w.stats.batchOf(n)
	return n
}

// forward decides about each frame of a burst and collects it in an outlet, or
// its buffer in w.free. Runs of plain frames to one outlet are taken by plain;
// all others go to decide.
func (w *Worker) forward(st *State, q *rxQueue, s []Slot) {
	port := &st.Ports[q.port]
	q.tally.add(cPackets, uint64(len(s)))
	if port.URPF != URPFOff { // which plain does not look at
		for len(s) > 0 {
			s = s[w.forwardSlow(st, q, port, s):]
		}
		return
	}
	o, begun := &noOutlet, 0 // plain frames for o that s starts with
	for {
		var n, to, bytes int
		if len(st.FIB.Groups) == 0 {
			n, to, bytes = plain[simple](st, port, q.region, s, begun, o.port)
		} else {
			n, to, bytes = plain[grouped](st, port, q.region, s, begun, o.port)
		}
		q.tally.add(cBytes, uint64(bytes))
		if o.minFrame > 0 {
			q.region.pad(s[:n], o.minFrame)
		}
		w.add(o, s[:n])
		if n == len(s) {
			return
		}
		s = s[n:]
		if begun = 0; to >= 0 {
			o, begun = &w.out[to], 1
			continue
		}
		s = s[w.forwardSlow(st, q, port, s):]
	}
}

// plain makes frames of s ready to be sent by port out, from s[i] on, as long as
// they are what nearly all are: in one slot, for the port's own address, plain
// and to be forwarded. It has every check of decide in its cheapest form, and
// calls nothing, so that what it needs stays in registers. It stops behind n
// frames: at the end, at a frame of another kind, which it leaves as it is, or
// at one that it made ready for another port: to, else -1. The frames that it
// made ready were bytes long.
//
// There are two of it, for what only tables with groups need costs registers.
func plain[T tables](st *State, port *PortState, region *Region, s []Slot, i, out int) (n, to, bytes int) {
	var kind T
	f := st.FIB
	for ; i < len(s); i++ {
		h, n := region.head(&s[i]), int(s[i].Len)
		if n < off4End || n > port.MTU+wire.EthernetLen+wire.VLANLen || s[i].Flags&More != 0 || h.destination() != port.MAC {
			break
		}
		var a *fib.Adjacency
		var length int
		var flags SlotFlags
		if t := h.u32(offType); t&plain4Mask == plain4Type {
			length = int(h.be16(off4Length))
			dst, src := h.be32(off4Dst), h.u32(off4Src)
			if length < wire.IPv4Len || length > n-wire.EthernetLen || length > port.MTU || !h.valid4() ||
				special4[src&0xff]|special4[dst>>24]|f.Sources[fib.SourceHash(src)] != 0 {
				break
			}
			a = &f.Adj[f.V4.Lookup(dst)]
			if len(kind) > 0 && a.Action == fib.Group {
				a = f.Path(a, h.flow4(st.Seed, length))
			}
			if a.Action != fib.Forward || h.u8(off4TTL) <= 1 || length > int(a.MTU) {
				break
			}
			h.decrement4()
		} else {
			if t&plain6Mask != plain6Type || n < off6End {
				break
			}
			length = int(h.be16(off6Length)) + wire.IPv6Len
			hi, lo := h.be64(off6Dst), h.be64(off6Dst+8)
			if length > n-wire.EthernetLen || length > port.MTU || h.u8(off6Next) == wire.ProtoHopByHop ||
				special6[h.u8(off6Src)]|special6[hi>>56] != 0 {
				break
			}
			e := f.V6.First(hi)
			if e >= fib.More {
				e = f.V6.Lookup(hi, lo)
			}
			a = &f.Adj[e]
			if len(kind) > 0 && a.Action == fib.Group {
				a = f.Path(a, h.flow6(st.Seed, length))
			}
			if a.Action != fib.Forward || h.u8(off6Hops) <= 1 || length > int(a.MTU) {
				break
			}
			h.decrement6()
			flags = flagIPv6
		}
		h.setHeader(a)
		s[i].Len, s[i].Flags = uint16(wire.EthernetLen+length), flags
		bytes += n
		if to := int(a.Out); to != out {
			return i, to, bytes
		}
	}
	return i, -1, bytes
}

// The kinds of tables that plain is made for: those of a length that is not 0 may
// have groups. The length is known when a function for the kind is compiled.
type (
	tables  interface{ simple | grouped }
	simple  [0]struct{}
	grouped [1]struct{}
)

// noOutlet leads to no port.
var noOutlet = outlet{port: -1}

// add adds whole frames to an outlet's burst.
func (w *Worker) add(o *outlet, s []Slot) {
	if len(s) == 0 {
		return
	}
	if o.n == 0 {
		w.touched = append(w.touched, o)
	}
	copy(o.slots[o.n:], s)
	o.n += len(s)
}

// rewrite makes the frame of decision d whose first slot is f the one to be
// sent. Where the new Ethernet header is longer and there is no room for it
// before the frame, the packet moves. It returns the length of the frame; that
// of f grows or shrinks with the header.
func (r *Region) rewrite(f *Slot, d *decision) int {
	a := d.adj
	ip := r.Bytes(f)[d.head:]
	var priority byte // PCP and DEI
	if a.KeepPCP && d.head > wire.EthernetLen {
		priority = byte(wire.Ethernet(r.Bytes(f)).TCI() & wire.PriorityMask >> 8)
	}
	n := int(a.HeadLen) + decrement(ip)
	grow := int(a.HeadLen) - d.head
	if grow > int(f.Off) {
		copy(r.Buffer(f.Buf)[int(f.Off)+int(a.HeadLen):], ip)
	} else {
		f.Off -= uint16(grow)
	}
	f.Len += uint16(grow)
	p := r.Bytes(f)
	copy(p, a.Head[:a.HeadLen])
	if priority != 0 {
		p[wire.EthernetLen] |= priority
	}
	return n
}

// decrement takes one from the TTL or hop limit of a valid packet and returns its
// length.
func decrement(ip []byte) int {
	if ip[0]>>4 == 4 {
		wire.IPv4(ip).DecrementTTL()
		return wire.IPv4(ip).TotalLen()
	}
	wire.IPv6(ip).DecrementHopLimit()
	return wire.IPv6(ip).TotalLen()
}

// Rewrite makes a received untagged frame, with an IP packet that is to be
// forwarded, the one that is sent by a, but for a VLAN tag, which Inject adds. It
// returns the frame without what lies behind the packet, nil where it does not
// hold all of that.
func Rewrite(a *fib.Adjacency, frame []byte) []byte {
	ip := frame[wire.EthernetLen:]
	n := wire.EthernetLen + decrement(ip)
	if n > len(frame) {
		return nil
	}
	copy(frame, a.Head[:wire.EthernetLen-2])
	return frame[:n]
}

// forwardSlow is forward for the frame of any kind that s starts with, in one
// or several slots, of which the first one has to hold the headers. It returns
// the number of slots.
func (w *Worker) forwardSlow(st *State, q *rxQueue, port *PortState, s []Slot) int {
	if n := FrameSlots(s); n > 0 {
		s = s[:n]
	}
	more, total := len(s)-1, 0
	for i := range s {
		total += int(s[i].Len)
	}
	q.tally.add(cPackets, -uint64(more)) // forward counted slots
	q.tally.add(cBytes, uint64(total))
	p := q.region.Bytes(&s[0])
	if s[more].Flags&More != 0 {
		w.divert(st, q, &decision{verdict: verdict(DropInternal)}, p, s) // the queue cut a frame
		return len(s)
	}
	d := st.decide(port, p, total)
	if d.verdict < forward4 || d.verdict > forward6 {
		w.divert(st, q, &d, p, s)
		return len(s)
	}
	if grow := int(d.adj.HeadLen) - d.head; grow > int(s[0].Off) && int(s[0].Off)+len(p)+grow > q.region.Stride() {
		d.verdict = verdict(DropOversize)
		w.divert(st, q, &d, p, s)
		return len(s)
	}
	if d.adj.Action == fib.Verify {
		w.noteUse(q, &d, p)
	}
	// What lies behind the packet is cut: slots that hold nothing else go free.
	n := q.region.rewrite(&s[0], &d)
	left, keep := n, 0
	for left > 0 {
		s[keep].Len = uint16(min(left, int(s[keep].Len)))
		left -= int(s[keep].Len)
		keep++
	}
	last := &s[keep-1]
	last.Flags &^= More
	o := &w.out[d.adj.Out]
	if short := o.minFrame - n; short > 0 {
		q.region.pad(s[keep-1:keep], int(last.Len)+short)
	}
	for _, t := range s[keep:] {
		w.free = append(w.free, t.Buf)
	}
	w.collect(o, s[:keep], SlotFlags(d.verdict-forward4)*flagIPv6)
	return len(s)
}

// collect adds the slots of one frame to an outlet's burst.
func (w *Worker) collect(o *outlet, s []Slot, flags SlotFlags) {
	for i := range s {
		s[i].Flags = s[i].Flags&More | flags
	}
	w.add(o, s)
}

// divert ends a frame that is not forwarded: p is its first slot, s all.
func (w *Worker) divert(st *State, q *rxQueue, d *decision, p []byte, s []Slot) {
	switch v := d.verdict; {
	case v == toHost:
		o := &w.out[len(w.out)/2+q.port]
		if !o.connected() {
			q.tally.add(cDropped+int(DropHostFull), 1)
			break
		}
		if len(s) > 1 && !w.join(q, o, s) {
			q.tally.add(cDropped+int(DropHostTooBig), 1)
			break
		}
		w.copyNews(q, d, p, s[:1])
		w.collect(o, s[:1], 0)
		return
	case v&punt != 0:
		if w.puntTo(Kind(v&^punt), q, d, p, s) {
			break
		}
		q.tally.add(cDropped+int(DropPuntFull), 1)
	case v == verdict(DropNoNeighbor):
		if !st.Ports[d.adj.Port].Up { // nobody to be found there
			q.tally.add(cDropped+int(DropLinkDown), 1)
			break
		}
		if w.puntUnknown(q, d, p, s) {
			break
		}
		q.tally.add(cDropped+int(v), 1)
	default:
		if k, ok := faultKind(Reason(v), p, d.head); ok && w.puntTo(k, q, d, p, s) {
			break
		}
		q.tally.add(cDropped+int(v), 1)
	}
	for i := range s {
		w.free = append(w.free, s[i].Buf)
	}
}

// join makes a frame of several slots one of the first, and frees the others: the
// host takes each slot for a frame of its own.
func (w *Worker) join(q *rxQueue, o *outlet, s []Slot) bool {
	if !q.region.Join(s, o.longest) {
		return false
	}
	for _, t := range s[1:] {
		w.free = append(w.free, t.Buf)
	}
	return true
}
