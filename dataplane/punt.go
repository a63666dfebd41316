package dataplane

import (
	"time"

	"nmfwd/fib"
	"nmfwd/wire"
)

// puntTo gives control a copy of a frame, as divert has it, without a tag that
// names its port, and reports whether there was room and no limit is exceeded.
func (w *Worker) puntTo(k Kind, q *rxQueue, d *decision, p []byte, s []Slot) bool {
	l, family, ok := limits[k], 0, true
	if l != noLimit {
		family = int(p[d.head] >> 5 & 1) // version 4 or 6
		every := int64(d.port.Every[l])
		if every == 0 {
			return false
		}
		ok = q.limits[l][family].Take(w.now, every, limitBursts[l])
	}
	if !ok || !w.punts[puntRings[k]].put(k, d.port.Number, nextHop{}, q.region, s, d.head) {
		if l == LimitErrors {
			q.tally.add(cLimited+family, 1)
		}
		return false
	}
	q.tally.add(cPunted+int(k), 1)
	w.control.wake()
	return true
}

// faultKind says as what a packet dropped for r, which is at place head of p, is
// punted where control can do something about it: tell its sender, or fragment it.
func faultKind(r Reason, p []byte, head int) (Kind, bool) {
	switch r {
	case DropTTL:
		return PuntTTL, true
	case DropTooBig:
		if ip := p[head:]; ip[0]>>4 == 4 && !wire.IPv4(ip).DontFragment() {
			return PuntFragment, true
		}
		return PuntTooBig, true
	case DropNoRoute, DropReject, DropHostRoute:
		return PuntUnreachable, true
	case DropBadOptions, DropBadExt:
		return PuntBadOption, true
	}
	return 0, false
}

const noLimit = NumLimits

// limits says what limits the packets of a kind.
var limits = [NumKinds]Limit{
	PuntARP: noLimit, PuntND: noLimit, PuntLocal: LimitLocal,
	PuntTTL: LimitErrors, PuntTooBig: LimitErrors, PuntUnreachable: LimitErrors, PuntBadOption: LimitErrors,
	PuntFragment: LimitFragments, PuntNeighbor: noLimit, // puntUnknown has its own
}

// limitBursts are how many packets limits let pass at once after a rest.
var limitBursts = [NumLimits]int64{LimitErrors: 10, LimitLocal: puntLen / 2, LimitFragments: puntLen}

// A Bucket limits a rate. It holds the time at which it is full again, in
// nanoseconds: the virtual scheduling form of a leaky bucket (ITU-T I.371).
type Bucket int64

// Take reports whether there is a token at now, and takes it, where one comes
// every so many nanoseconds and burst are kept.
func (b *Bucket) Take(now, every, burst int64) bool {
	full := min(max(int64(*b), now), now+burst*every)
	if full-now > (burst-1)*every {
		return false
	}
	*b = Bucket(full + every)
	return true
}

// Packets for unknown neighbors are limited by their source: a station that sends
// many takes nothing from others, as far as these are not among the same one of
// Sources by chance. Control limits how many neighbors it asks for.
const (
	unknownEvery = time.Millisecond
	unknownBurst = unknownLen / 2

	// How often a worker tells per queue that neighbors are used.
	usedEvery = time.Millisecond
	usedBurst = 16
)

// puntUnknown gives control a copy of a packet whose neighbor is not known, and
// reports whether there was room and the limit is kept.
func (w *Worker) puntUnknown(q *rxQueue, d *decision, p []byte, s []Slot) bool {
	if !q.unknown[SourceOf(p[d.head:])].Take(w.now, int64(unknownEvery), unknownBurst) ||
		!w.punts[unknown].put(PuntNeighbor, d.port.Number, hopOf(d.adj, p[d.head:]), q.region, s, d.head) {
		return false
	}
	q.tally.add(cPunted+int(PuntNeighbor), 1)
	w.control.wake()
	return true
}

// Sources is how many classes of sources of packets there are.
const Sources = 64

// SourceOf returns the class of the source of an IP packet: of its address, or of
// its network in IPv6, where a station has as many addresses as it likes.
func SourceOf(ip []byte) uint32 {
	const golden = 0x9e3779b97f4a7c15
	n := uint64(wire.IPv4(ip).Source())
	if ip[0]>>4 == 6 {
		n, _ = wire.IPv6(ip).Source()
	}
	return uint32(n*golden>>32) % Sources
}

// hopOf returns the neighbor that a leads the packet ip to.
func hopOf(a *fib.Adjacency, ip []byte) nextHop {
	h := nextHop{addr: a.Neighbor, family: a.Family, port: a.Port}
	if h.addr == [16]byte{} {
		if a.Family == 4 {
			copy(h.addr[:], ip[16:][:4])
		} else {
			copy(h.addr[:], ip[24:][:16])
		}
	}
	return h
}

// noteUse tells control that a packet is sent to the neighbor of d.
func (w *Worker) noteUse(q *rxQueue, d *decision, p []byte) {
	if q.used.Take(w.now, int64(usedEvery), usedBurst) && w.punts[unknown].put(NoteUsed, d.port.Number, hopOf(d.adj, p[d.head:]), q.region, nil, 0) {
		w.control.wake()
	}
}

// copyNews gives control a copy of a frame for the host that says where a
// neighbor is. Frames for the host are counted as such; of the ring they get
// half, for they are as many as the link has stations.
func (w *Worker) copyNews(q *rxQueue, d *decision, p []byte, s []Slot) {
	k := PuntARP
	t := wire.Ethernet(p).Type()
	if d.head > wire.EthernetLen {
		t = wire.Ethernet(p).TaggedType()
	}
	switch ip := p[d.head:]; t {
	case wire.TypeARP:
	case wire.TypeIPv6:
		if len(ip) < wire.IPv6Len || !isND(wire.IPv6(ip)) {
			return
		}
		k = PuntND
	default:
		return
	}
	if w.punts[protocols].len() < puntLen/2 && w.punts[protocols].put(k, d.port.Number, nextHop{}, q.region, s, d.head) {
		w.control.wake()
	}
}
