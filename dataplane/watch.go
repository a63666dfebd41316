package dataplane

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"

	"nmfwd/wire"
)

// A Watch finds out which destinations packets have, while it is in the State.
// Every packet is looked at, but each worker tells a destination once, not for
// each packet, as long as it remembers it: so few are told that none has to be
// left out. What was left out because a ring was full is counted.
type Watch struct{ workers []*destinations }

const (
	seenLen  = 1 << 16 // destinations that a worker remembers
	watchLen = 1 << 16 // that wait for Drain
)

// A destination is an address, of IPv4 in its mapped form. Zero is none.
type destination struct{ hi, lo uint64 }

const mapped4 = 0xffff << 32 // of the low half of a mapped IPv4 address

// destinations is the part of a Watch for one worker: a ring of one producer, the
// worker, and one consumer, Drain.
type destinations struct {
	seen [seenLen]destination // by hash; the worker's own

	entries [watchLen]destination
	_       [64]byte
	tail    atomic.Uint32 // written by the worker
	missed  atomic.Uint64 // packets whose destination found the ring full, written by the worker
	_       [64]byte
	head    atomic.Uint32 // written by Drain
	_       [64]byte
}

// NewWatch returns a watch for a router with so many workers. It takes 2 MiB for
// each.
func NewWatch(workers int) *Watch {
	w := &Watch{workers: make([]*destinations, workers)}
	for i := range w.workers {
		w.workers[i] = new(destinations)
	}
	return w
}

// Drain calls f for the destinations that workers told, some several times. One
// goroutine calls it.
func (w *Watch) Drain(f func(netip.Addr)) {
	for _, d := range w.workers {
		head, tail := d.head.Load(), d.tail.Load()
		for ; head != tail; head++ {
			f(d.entries[head%watchLen].addr())
		}
		d.head.Store(head)
	}
}

// Missed returns how many packets had a destination that could not be told.
func (w *Watch) Missed() (n uint64) {
	for _, d := range w.workers {
		n += d.missed.Load()
	}
	return n
}

func (d destination) addr() netip.Addr {
	if d.hi == 0 && d.lo>>32 == 0xffff {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(d.lo))))
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], d.hi)
	binary.BigEndian.PutUint64(b[8:], d.lo)
	return netip.AddrFrom16(b)
}

// note tells the destinations of a burst, as it was received by port.
func (w *Watch) note(worker int, st *State, port *PortState, region *Region, s []Slot) {
	d := w.workers[worker]
	for len(s) > 0 {
		if to := st.destination(port, region.Bytes(&s[0])); to != (destination{}) {
			d.tell(to)
		}
		s = s[max(1, FrameSlots(s)):]
	}
}

// tell puts a destination into the ring unless it is remembered. One that finds
// no room is not remembered: the next packet to it tries again.
func (d *destinations) tell(to destination) {
	const golden = 0x9e3779b97f4a7c15
	seen := &d.seen[((to.hi*golden^to.lo)*golden)>>48%seenLen]
	if *seen == to {
		return
	}
	tail := d.tail.Load()
	if tail-d.head.Load() == watchLen {
		d.missed.Store(d.missed.Load() + 1)
		return
	}
	*seen = to
	d.entries[tail%watchLen] = to
	d.tail.Store(tail + 1)
}

// destination returns the address that a frame to the router is for, zero if it
// is no IP packet.
func (st *State) destination(port *PortState, p []byte) destination {
	if len(p) < wire.EthernetLen {
		return destination{}
	}
	eth := wire.Ethernet(p)
	t, ip := eth.Type(), p[wire.EthernetLen:]
	if t == wire.TypeVLAN && len(ip) >= wire.VLANLen {
		if v := st.vlan(port, eth.TCI()); v != nil {
			port, t, ip = v, eth.TaggedType(), ip[wire.VLANLen:]
		}
	}
	switch dst := eth.Destination(); {
	case dst != port.MAC && !port.ours(dst):
	case t == wire.TypeIPv4 && len(ip) >= wire.IPv4Len:
		return destination{0, mapped4 | uint64(wire.IPv4(ip).Destination())}
	case t == wire.TypeIPv6 && len(ip) >= wire.IPv6Len:
		hi, lo := wire.IPv6(ip).Destination()
		return destination{hi, lo}
	}
	return destination{}
}
