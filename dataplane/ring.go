package dataplane

import (
	"net/netip"
	"sync/atomic"

	"nmfwd/wire"
)

// line keeps what two threads write on different cache lines.
type line [64]byte

// A spsc is the pair of positions of a ring with one producer and one
// consumer. Both only grow; the ring's entry is the position modulo its
// length, a power of two.
type spsc struct {
	_    line
	tail atomic.Uint32 // next to be written; stored by the producer only
	_    line
	head atomic.Uint32 // next to be read; stored by the consumer only
	_    line
}

func (r *spsc) len() int { return int(r.tail.Load() - r.head.Load()) }

// A handoff carries frames from the worker that received them to the worker
// that writes the TX queue, when that is another one. It exchanges as a queue
// does: each entry holds a buffer of the region at all times.
type handoff struct {
	spsc
	lost    atomic.Uint64 // frames that found no room; only the producer writes it
	_       line
	region  *Region
	entries []handoffEntry
	to      *Worker
	out     int // outlet of the worker to
}

type handoffEntry struct {
	slot    Slot
	ingress int32
}

// newHandoff returns a ring of n entries, a power of two, filled with spare
// buffers of region r.
func newHandoff(r *Region, n int, to *Worker, out int) (*handoff, error) {
	bufs, err := r.Take(n)
	if err != nil {
		return nil, err
	}
	h := &handoff{region: r, entries: make([]handoffEntry, n), to: to, out: out}
	for i := range h.entries {
		h.entries[i].slot.Buf = bufs[i]
	}
	return h, nil
}

// put hands over frames of ingress queue number in and returns the number of
// slots taken, whose Buf is a free buffer then. Only the producer calls it.
func (h *handoff) put(s []Slot, in int) int {
	tail := h.tail.Load()
	n := min(len(s), len(h.entries)-int(tail-h.head.Load()))
	for n > 0 && s[n-1].Flags&More != 0 { // never a part of a frame
		n--
	}
	mask := uint32(len(h.entries) - 1)
	for i := range s[:n] {
		e := &h.entries[(tail+uint32(i))&mask]
		e.slot, s[i].Buf = s[i], e.slot.Buf
		e.ingress = int32(in)
	}
	h.tail.Store(tail + uint32(n))
	return n
}

// get copies up to len(s) waiting slots and their ingress queues, without
// taking them: frames are taken whole. Only the consumer calls it.
func (h *handoff) get(s []Slot, in []int32) int {
	head := h.head.Load()
	n := min(len(s), int(h.tail.Load()-head))
	mask := uint32(len(h.entries) - 1)
	for i := range s[:n] {
		e := &h.entries[(head+uint32(i))&mask]
		s[i], in[i] = e.slot, e.ingress
	}
	for n > 0 && s[n-1].Flags&More != 0 {
		n--
	}
	return n
}

// done takes the slots that get returned and leaves their buffers, free now,
// in the ring.
func (h *handoff) done(s []Slot) {
	head := h.head.Load()
	mask := uint32(len(h.entries) - 1)
	for i := range s {
		h.entries[(head+uint32(i))&mask].slot.Buf = s[i].Buf
	}
	h.head.Store(head + uint32(len(s)))
}

// MaxControlFrame is the longest frame that always goes between workers and
// control, in bytes. Forwarder.ControlFrame tells what goes between those of a
// router.
const MaxControlFrame = 2048

// An injectRing carries frames that control made to the worker that sends
// them. Its buffers are a region of their own, so that sending copies.
type injectRing struct {
	spsc
	region *Region
	slots  []Slot
	out    []int32
}

// newInjectRing returns a ring of n frames of size bytes.
func newInjectRing(n, size int) *injectRing {
	r := &injectRing{region: NewRegion("control", make([]byte, n*(size+wire.VLANLen)), size+wire.VLANLen, nil), slots: make([]Slot, n), out: make([]int32, n)}
	for i := range r.slots {
		r.slots[i].Buf = uint32(i)
	}
	return r
}

// put copies a frame for outlet out into the ring, with a VLAN tag where tci is
// not 0 and padded with zeros to length least, and reports whether there was room.
func (r *injectRing) put(out int, frame []byte, tci uint16, least int) bool {
	tail := r.tail.Load()
	if int(tail-r.head.Load()) == len(r.slots) || len(frame)+wire.VLANLen > r.region.Stride() {
		return false
	}
	i := tail & uint32(len(r.slots)-1)
	b := r.region.Buffer(i)
	n := copy(b, frame)
	if tci != 0 {
		const typeAt = wire.EthernetLen - 2
		n = wire.PutTag(b, tci) + copy(b[typeAt+wire.VLANLen:], frame[typeAt:])
	}
	for ; n < least; n++ {
		b[n] = 0
	}
	r.slots[i].Len = uint16(n)
	r.out[i] = int32(out)
	r.tail.Store(tail + 1)
	return true
}

// A Punt is a frame that a worker gave to control.
type Punt struct {
	Kind   Kind
	Worker int
	Port   int    // number of the port or VLAN that it came in by
	Frame  []byte // without the VLAN's tag; valid until the callback that got it returns; empty in a note

	// Priority is PCP and DEI of the tag that the frame came with, at their places in
	// the tag control information (IEEE 802.1Q, 9.6).
	Priority uint16

	// For PuntNeighbor and NoteUsed: the neighbor, and the port that it is on.
	Neighbor netip.Addr
	Out      int
}

// The punt rings of a worker, in the order in which control reads them. They are
// separate so that a flood of one kind cannot keep another from control: ARP and
// Neighbor Discovery least of all.
const (
	protocols = iota
	local     // for the router's own addresses
	faulty    // an ICMP error is due
	tooBig    // to be fragmented
	unknown   // for neighbors that are not known
	numPuntRings
)

// puntRings say by which ring a kind goes to control.
var puntRings = [NumKinds]int{
	PuntLocal: local, PuntTTL: faulty, PuntTooBig: faulty, PuntUnreachable: faulty, PuntBadOption: faulty,
	PuntFragment: tooBig, PuntNeighbor: unknown,
}

// A puntRing carries copies of frames from one worker to control.
type puntRing struct {
	spsc
	entries []puntEntry
}

type puntEntry struct {
	kind     Kind
	port     uint16
	priority uint16
	hop      nextHop
	len      int
	data     []byte
}

// A nextHop is a neighbor that a packet is to be sent to.
type nextHop struct {
	addr   [16]byte // an IPv4 address in the first 4 bytes
	family uint8    // 0 for none
	port   uint16
}

// newPuntRing returns a ring of n frames of size bytes.
func newPuntRing(n, size int) *puntRing {
	r := &puntRing{entries: make([]puntEntry, n)}
	for i := range r.entries {
		r.entries[i].data = make([]byte, size)
	}
	return r
}

// put copies a frame in slots of region from into the ring, without the tag of an
// Ethernet header of head bytes, and reports whether there was room. What is
// longer than an entry is cut.
func (r *puntRing) put(k Kind, port uint16, hop nextHop, from *Region, frame []Slot, head int) bool {
	tail := r.tail.Load()
	if int(tail-r.head.Load()) == len(r.entries) {
		return false
	}
	e := &r.entries[tail&uint32(len(r.entries)-1)]
	const typeAt = wire.EthernetLen - 2
	e.kind, e.port, e.priority, e.hop, e.len = k, port, 0, hop, 0
	for i := range frame {
		p := from.Bytes(&frame[i])
		if i == 0 {
			if head > wire.EthernetLen {
				e.priority = wire.Ethernet(p).TCI() & wire.PriorityMask
			}
			e.len = copy(e.data, p[:typeAt])
			p = p[head-(wire.EthernetLen-typeAt):]
		}
		e.len += copy(e.data[e.len:], p)
	}
	r.tail.Store(tail + 1)
	return true
}

// drain calls f for each waiting frame of a worker and returns their number.
func (r *puntRing) drain(worker int, f func(Punt)) int {
	head := r.head.Load()
	n := int(r.tail.Load() - head)
	for i := range uint32(n) {
		e := &r.entries[(head+i)&uint32(len(r.entries)-1)]
		p := Punt{Kind: e.kind, Worker: worker, Port: int(e.port), Frame: e.data[:e.len], Priority: e.priority, Out: int(e.hop.port)}
		switch e.hop.family {
		case 4:
			p.Neighbor = netip.AddrFrom4([4]byte(e.hop.addr[:4]))
		case 6:
			p.Neighbor = netip.AddrFrom16(e.hop.addr)
		}
		f(p)
		r.head.Store(head + i + 1)
	}
	return n
}
