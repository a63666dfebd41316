package show

import (
	"cmp"
	"errors"
	"net/netip"
	"sort"
	"time"

	"nmfwd/control"
	"nmfwd/dataplane"
	"nmfwd/fib"
)

const (
	defaultFor = 10 * time.Second
	drainEvery = 5 * time.Millisecond
	aliveEvery = time.Second
)

// hits says which of the prefixes that have routes packets were for. The prefixes
// are in the order of the RIB. Host routes of neighbors are not among them: a
// packet for a neighbor uses the route to its network.
type hits struct {
	prefixes []netip.Prefix
	parents  []int32 // the next shorter prefix that covers it, -1 for none
	hit      []bool
	open     []int32 // while adding: the last prefix and those that cover it
}

func (h *hits) add(p netip.Prefix) {
	n := len(h.prefixes)
	if n > 0 && h.prefixes[n-1] == p {
		return
	}
	for len(h.open) > 0 {
		last := h.prefixes[h.open[len(h.open)-1]]
		if last.Bits() <= p.Bits() && last.Contains(p.Addr()) {
			break
		}
		h.open = h.open[:len(h.open)-1]
	}
	parent := int32(-1)
	if l := len(h.open); l > 0 {
		parent = h.open[l-1]
	}
	h.open = append(h.open, int32(n))
	h.prefixes = append(h.prefixes, p)
	h.parents = append(h.parents, parent)
	h.hit = append(h.hit, false)
}

// mark notes a packet for a. Among the prefixes that begin at most at a, those that
// cover a cover the last one too, or are it.
func (h *hits) mark(a netip.Addr) {
	n := int32(sort.Search(len(h.prefixes), func(i int) bool { return h.prefixes[i].Addr().Compare(a) > 0 })) - 1
	for n >= 0 && !h.prefixes[n].Contains(a) {
		n = h.parents[n]
	}
	if n >= 0 {
		h.hit[n] = true
	}
}

// An unusedDoc follows the routes that were not used.
type unusedDoc struct {
	Seconds      float64 `json:"seconds"`      // that packets were watched
	Unused       int     `json:"unused"`       // routes
	Routes       int     `json:"routes"`       // that could have been
	Destinations int     `json:"destinations"` // told by workers, some several times
	Missed       uint64  `json:"missed"`       // packets that came too fast to be looked at
}

// configured reports whether a route is one that unused lists: others follow from
// these, from the ports and from neighbors.
func configured(o fib.Origin) bool { return o == fib.Static || o == fib.Kernel }

// unused watches packets for a time and answers with the routes to prefixes that
// no packet was for.
func (a *answer) unused(r *Request) error {
	var h hits
	for _, p := range everything {
		for e, err := range a.source.Control.Routes(a.ctx, p) {
			if err != nil {
				return err
			}
			if e.Origin != fib.Neighbor {
				h.add(e.Prefix)
			}
		}
	}
	var s dataplane.Snapshot
	a.source.Snapshot(&s)
	w := dataplane.NewWatch(len(s.Workers))
	d := unusedDoc{}
	mark := func(to netip.Addr) {
		d.Destinations++
		h.mark(to)
	}
	began := time.Now()
	if err := a.watch(w, cmp.Or(r.For, defaultFor), mark); err != nil {
		return err
	}
	d.Seconds, d.Missed = time.Since(began).Seconds(), w.Missed()

	a.head(routeHead...)
	i := 0
	for _, p := range everything {
		for e, err := range a.source.Control.Routes(a.ctx, p) {
			if err != nil {
				return err
			}
			if !configured(e.Origin) {
				continue
			}
			for i < len(h.prefixes) && before(h.prefixes[i], e.Prefix) {
				i++
			}
			if i == len(h.prefixes) || h.prefixes[i] != e.Prefix { // came meanwhile
				continue
			}
			if d.Routes++; h.hit[i] {
				continue
			}
			d.Unused++
			if err := a.routeRow(&e); err != nil {
				return err
			}
		}
	}
	if a.json {
		return a.item(d)
	}
	err := a.note("%d of %d routes had no packet in %.0f s", d.Unused, d.Routes, d.Seconds)
	if d.Missed > 0 {
		err = a.note("%d packets came too fast to be looked at: routes above may have had some of them", d.Missed)
	}
	return err
}

// before reports whether p comes before q in the order of the RIB.
func before(p, q netip.Prefix) bool {
	return cmp.Or(p.Addr().Compare(q.Addr()), cmp.Compare(p.Bits(), q.Bits())) < 0
}

// watch has w told of packets for a time and calls mark for their destinations.
func (a *answer) watch(w *dataplane.Watch, long time.Duration, mark func(netip.Addr)) error {
	if err := a.source.Control.Watch(a.ctx, w); errors.Is(err, control.ErrWatched) {
		return &Error{CodeUnavailable, "unused: another one runs: try again when it has ended"}
	} else if err != nil {
		return err
	}
	defer func() {
		if a.ctx.Err() != nil { // control ends, and all with it
			return
		}
		if stopped := a.source.Control.Unwatch(a.ctx); stopped == nil {
			w.Drain(mark)
		}
	}()
	end := time.NewTimer(long)
	defer end.Stop()
	drain := time.NewTicker(drainEvery)
	defer drain.Stop()
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	for {
		select {
		case <-end.C:
			return nil
		case <-a.ctx.Done():
			return a.ctx.Err()
		case <-drain.C:
			w.Drain(mark)
		case <-alive.C:
			if err := a.alive(); err != nil {
				return err
			}
		}
	}
}
