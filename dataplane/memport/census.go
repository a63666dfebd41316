package memport

import (
	"errors"
	"fmt"

	"nmfwd/dataplane"
)

// Census calls visit for each buffer in the port's rings, with the place where
// it is. Buffers that a worker took and has not released are not among them.
// The port must be at rest.
func (p *Port) Census(visit func(buf uint32, place string)) {
	for i, q := range p.rx {
		q.census(q.cur, fmt.Sprintf("port %s, RX ring %d", p.Name, i), visit)
	}
	for i, q := range p.tx {
		if !q.looped {
			q.census(q.head.Load(), fmt.Sprintf("port %s, TX ring %d", p.Name, i), visit)
		}
	}
	if p.hostRX != nil {
		p.hostRX.census(p.hostRX.cur, fmt.Sprintf("port %s, ring from the host", p.Name), visit)
		p.hostTX.census(p.hostTX.head.Load(), fmt.Sprintf("port %s, ring to the host", p.Name), visit)
	}
}

// census visits the slots from at, where the full ones start.
func (r *ring) census(at uint32, place string, visit func(uint32, string)) {
	tail := r.tail.Load()
	for ; at != tail; at++ {
		visit(r.slots[at&r.mask].Buf, place+", full")
	}
	for end := r.head.Load() + r.size; at != end; at++ {
		visit(r.slots[at&r.mask].Buf, place+", free")
	}
}

// CheckCensus returns an error unless each of the n buffers of region is in
// exactly one place: in a ring of one of the ports, spare in the region, or in
// one of the lists held, such as a worker's spares. Ports of other regions are
// skipped.
func CheckCensus(region *dataplane.Region, n int, ports []*Port, held ...[]uint32) error {
	places := make([]string, n)
	var errs []error
	visit := func(b uint32, place string) {
		switch {
		case int(b) >= n:
			errs = append(errs, fmt.Errorf("memport: buffer %d of %d in %s", b, n, place))
		case places[b] != "":
			errs = append(errs, fmt.Errorf("memport: buffer %d in %s and in %s", b, places[b], place))
		default:
			places[b] = place
		}
	}
	for _, p := range ports {
		if p.region == region {
			p.Census(visit)
		}
	}
	for _, b := range region.Spare() {
		visit(b, "region "+region.Name())
	}
	for i, bufs := range held {
		for _, b := range bufs {
			visit(b, fmt.Sprintf("list %d", i))
		}
	}
	for b, place := range places {
		if place == "" {
			errs = append(errs, fmt.Errorf("memport: buffer %d lost", b))
		}
	}
	return errors.Join(errs...)
}
