package control

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"nmfwd/dataplane"
	"nmfwd/fib"
)

const (
	// hostShare is the least part of the time in which control does not look for
	// the routes that the host follows.
	hostShare = 20

	// hostAgain is how long control waits before it tells devices again that had no
	// place.
	hostAgain = time.Second

	// maxWithin is the most routes that others than the host follow within its own
	// that devices are told of. Of further ones the host gets the packets, and
	// forwards them by the same routes.
	maxWithin = 1 << 16
)

// A hostRouter tells the devices that have to know it which routes the host
// follows.
type hostRouter struct {
	devices []dataplane.HostRouter
	changed bool          // some may be others than was told
	next    time.Duration // when they are told again at the earliest
	short   bool          // routes have no place, which has been said
	failed  bool          // devices could not be told, which has been said
	missing atomic.Int64  // routes that have no place
}

func newHostRouter(ports []*dataplane.Port) *hostRouter {
	h := new(hostRouter)
	for _, p := range ports {
		if d, ok := p.Device.(dataplane.HostRouter); ok {
			h.devices = append(h.devices, d)
		}
	}
	return h
}

// noteHost notes that r, of the system, came or went, if that changes what is the
// host's.
func (c *Control) noteHost(r *fib.Route) {
	if len(c.hostRouter.devices) == 0 || c.hostRouter.changed {
		return
	}
	if r.Kind == fib.Host {
		c.hostRouter.changed = true
		return
	}
	if len(c.hosts) == 0 {
		return
	}
	for s := range c.rib.Covering(r.Prefix) {
		if s.Kind == fib.Host {
			c.hostRouter.changed = true
			return
		}
	}
}

// hostNow tells the devices at once that packets to p go to the host now, if they do:
// all of its routes are told later, and workers can only drop what is the host's.
func (c *Control) hostNow(p netip.Prefix) {
	if len(c.hostRouter.devices) == 0 || len(c.hosts) == 0 {
		return
	}
	host := false
	for r := range c.rib.Covering(p) {
		host = r.Kind == fib.Host // of the longest in the end
	}
	if !host {
		return
	}
	for _, d := range c.hostRouter.devices {
		if err := d.AddHostRoute(p); err != nil {
			c.hostRouter.changed = true // which is told with what went wrong
		}
	}
}

// tellHosts tells the devices which routes the host follows, if that changed and
// it is time for it.
func (c *Control) tellHosts() {
	h := c.hostRouter
	now := c.now()
	if !h.changed || now < h.next {
		return
	}
	began := time.Now()
	routes, left := hostRoutes(c.rib, c.hosts)
	most := 0 // that one of the devices has no place for
	var errs []error
	for _, d := range h.devices {
		n, err := d.SetHostRoutes(routes)
		most = max(most, n)
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	if err != nil && !h.failed {
		c.log.Error("routes of the host: tried again", "err", err)
	}
	h.failed = err != nil
	missing := left + most
	if short := missing > 0; short != h.short {
		if h.short = short; short {
			c.log.Warn("the host gets packets that ports could forward: devices have no place for all routes", "missing", missing)
		} else {
			c.log.Info("devices have place for all routes again: the host gets no more than its own packets")
		}
	}
	h.missing.Store(int64(missing))
	h.next = now + max(commitEvery, hostShare*time.Since(began))
	if h.changed = most > 0 || err != nil; h.changed { // there may be more place later
		h.next = max(h.next, now+hostAgain)
	}
}

// HostMissing returns how many routes devices have no place for, so that the host
// gets packets that ports could forward. It may be called from any goroutine.
func (c *Control) HostMissing() int { return int(c.hostRouter.missing.Load()) }

// hostRoutes returns the prefixes whose routes the host follows, true, and those
// within that have others, as far as that is not what the next shorter one says;
// and how many of the latter are left out, for there may be no more of them: what
// they are for goes to the host. Hosts are the system's routes that the host
// follows, of which others may be preferred to some.
func hostRoutes(rib *fib.RIB, hosts map[netip.Prefix]bool) (routes map[netip.Prefix]bool, left int) {
	routes = make(map[netip.Prefix]bool)
	sorted := slices.SortedFunc(maps.Keys(hosts), netip.Prefix.Compare)
	within := 0
	var outer netip.Prefix // of those walked, the last
	for _, p := range sorted {
		if outer.IsValid() && covers(outer, p) {
			continue
		}
		outer = p
		var last netip.Prefix
		var open []fib.Route // cover where the walk is, each another's than the one before
		for r := range rib.Covered(p) {
			if r.Prefix == last {
				continue // a less preferred one
			}
			last = r.Prefix
			for len(open) > 0 && !covers(open[len(open)-1].Prefix, r.Prefix) {
				open = open[:len(open)-1]
			}
			host := r.Kind == fib.Host
			if host == (len(open) > 0 && open[len(open)-1].Kind == fib.Host) {
				continue
			}
			if !host {
				if within == maxWithin {
					left++
					continue
				}
				within++
			}
			open = append(open, r)
			routes[r.Prefix] = host
		}
	}
	return routes, left
}

// covers reports whether q lies within p.
func covers(p, q netip.Prefix) bool { return p.Bits() <= q.Bits() && p.Contains(q.Addr()) }
