package control

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"nmfwd/dataplane"
	"nmfwd/fib"
)

const (
	// hostShare is the least part of the time in which control does not look for
	// the routes that the host follows.
	hostShare = 20

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
	full    bool          // there are too many routes within, which has been said
}

func newHostRouter(ports []*dataplane.Port) (h hostRouter) {
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

// tellHosts tells the devices which routes the host follows, if that changed and
// it is time for it.
func (c *Control) tellHosts() {
	h := &c.hostRouter
	now := c.now()
	if !h.changed || now < h.next {
		return
	}
	began := time.Now()
	routes, full := hostRoutes(c.rib, c.hosts)
	if full && !h.full {
		c.log.Warn("the host gets packets that ports could forward: too many routes lie within those that it follows", "most", maxWithin)
	}
	h.full, h.changed = full, false
	for _, d := range h.devices {
		if err := d.SetHostRoutes(routes); err != nil {
			c.log.Error("routes of the host", "err", err)
		}
	}
	h.next = now + max(commitEvery, hostShare*time.Since(began))
}

// hostRoutes returns the prefixes whose routes the host follows, true, and those
// within that have others, as far as that is not what the next shorter one says;
// and whether there are more of the latter than may be. Hosts are the system's
// routes that the host follows, of which others may be preferred to some.
func hostRoutes(rib *fib.RIB, hosts map[netip.Prefix]bool) (routes map[netip.Prefix]bool, full bool) {
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
				if within++; within > maxWithin {
					full = true
					break
				}
			}
			open = append(open, r)
			routes[r.Prefix] = host
		}
	}
	return routes, full
}

// covers reports whether q lies within p.
func covers(p, q netip.Prefix) bool { return p.Bits() <= q.Bits() && p.Contains(q.Addr()) }
