package control

import (
	"errors"
	"net/netip"
	"slices"

	"nmfwd/fib"
	"nmfwd/neigh"
)

// routesAtOnce is how many changes of the system's routes are taken before control
// looks at what else there is: less than a millisecond's.
const routesAtOnce = 256

// A RouteSource returns the routes of the system at this moment, in the order of
// [fib.RIB.All], and what changes from then on; a nil feed says that nothing does.
// It may be called from any goroutine.
type RouteSource func() (RouteFeed, []fib.Route)

// A RouteFeed tells how the routes of the system change. Control alone calls Ready
// and Take.
type RouteFeed interface {
	Ready() <-chan struct{}                     // receives a value when there is something for Take
	Take(n int, f func(r fib.Route, gone bool)) // calls f for up to n prefixes, with routes of origin Kernel
	Close()                                     // may be called from any goroutine
}

// gatewaysInUse are the neighbors that routes of the system go by, each with the
// number of these routes.
type gatewaysInUse map[neigh.Key]int

// add counts r, or with n -1 no longer, and reports whether a gateway came or
// went.
func (g gatewaysInUse) add(r *fib.Route, n int) (changed bool) {
	one := func(k neigh.Key) {
		before := g[k]
		if g[k] += n; g[k] == 0 {
			delete(g, k)
		}
		changed = changed || before == 0 || before+n == 0
	}
	switch {
	case r.Kind != fib.Via:
	case r.Hops == nil:
		one(neigh.Key{Port: r.Port, Addr: r.Gateway})
	default:
		for i, h := range r.Hops {
			if slices.ContainsFunc(r.Hops[:i], func(o fib.Hop) bool { return o.Gateway == h.Gateway && o.Port == h.Port }) {
				continue // the RIB has added up their weights
			}
			one(neigh.Key{Port: h.Port, Addr: h.Gateway})
		}
	}
	return changed
}

// followKernel adds the routes of the system to the tables, and has their feed
// begin.
func (t *tables) followKernel(source RouteSource) error {
	t.used, t.hosts = gatewaysInUse{}, map[netip.Prefix]bool{}
	if source == nil {
		return nil
	}
	var routes []fib.Route
	t.feed, routes = source()
	if err := t.rib.Load(routes); err != nil {
		return err
	}
	for i := range routes {
		t.used.add(&routes[i], 1)
		if routes[i].Kind == fib.Host {
			t.hosts[routes[i].Prefix] = true
		}
	}
	return nil
}

// close ends the feed of the tables.
func (t *tables) close() {
	if t.feed != nil {
		t.feed.Close()
	}
}

// keepGateways has the neighbor table keep the gateways of the tables, if it does
// not yet.
func (c *Control) keepGateways() {
	if c.kept {
		return
	}
	c.kept = true
	all := make(map[neigh.Key]bool, len(c.keep)+len(c.used))
	for k := range c.keep {
		all[k] = true
	}
	for k := range c.used {
		all[k] = true
	}
	c.neighbors.Keep(c.now(), all)
}

// routesReady receives a value when the system's routes changed.
func (c *Control) routesReady() <-chan struct{} {
	if c.feed == nil {
		return nil
	}
	return c.feed.Ready()
}

// followRoutes takes some of what changed of the system's routes to the RIB.
func (c *Control) followRoutes() {
	c.feed.Take(routesAtOnce, func(r fib.Route, gone bool) {
		for old := range c.rib.Exact(r.Prefix) {
			if old.Origin == fib.Kernel {
				c.counted(&old, -1)
			}
		}
		c.changed = true
		if gone {
			if err := c.rib.Remove(r); err != nil && !errors.Is(err, fib.ErrNoRoute) {
				c.log.Error("route of the system", "err", err)
			}
		} else if err := c.rib.Add(r); err != nil {
			c.refuse(r, err)
		} else {
			c.counted(&r, 1)
		}
		c.hostNow(r.Prefix)
	})
	c.keepGateways()
}

// counted counts a route of the system that came, or with n -1 went.
func (c *Control) counted(r *fib.Route, n int) {
	if c.used.add(r, n) {
		c.kept = false
	}
	if r.Kind == fib.Host {
		if c.hosts[r.Prefix] = true; n < 0 {
			delete(c.hosts, r.Prefix)
		}
	}
	c.noteHost(r)
}

// refuse takes out what there was of a route of the system that cannot be
// followed, and says so, once for all of the same time.
func (c *Control) refuse(r fib.Route, err error) {
	if !c.refused {
		c.log.Error("routes of the system are not followed any more", "err", err)
	}
	c.refused = true
	_ = c.rib.Remove(r) // which may not be there
}
