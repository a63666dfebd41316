package control

import (
	"context"
	"errors"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"nmfwd/dataplane"
	"nmfwd/fib"
	"nmfwd/neigh"
)

// What is asked of control is answered by its goroutine, between packets: each
// question is short, and long lists are read in parts of so many entries, so that
// ARP never waits for one.
const part = 500

// Settle returns when nothing is left to do of the last New or Reload: the trees of
// the routes are filled when the tables are in use.
func (c *Control) Settle(ctx context.Context) error {
	var filling []<-chan struct{}
	if err := c.query(ctx, func() { filling = c.rib.Fill() }); err != nil {
		return err
	}
	for _, done := range filling {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// query runs f in control's goroutine. Run must be running.
func (c *Control) query(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case c.queries <- func() { f(); close(done) }:
		<-done
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Sync returns when all is in use that there was before: the state of the links,
// what the feed of routes and the System that finds out neighbors had to tell, and
// what workers had given. It may be called from any goroutine.
func (c *Control) Sync(ctx context.Context) error {
	return c.query(ctx, func() {
		c.watchLinks()
		c.router.Punts(c.punt)
		if c.system != nil {
			c.follow()
		}
		for more := true; more; {
			select {
			case <-c.routesReady():
				c.followRoutes()
			default:
				more = false
			}
		}
		c.hostRouter.next = c.now()
		c.settle(true)
	})
}

// PortEntries returns the ports by number, not to be changed. It may be called from
// any goroutine.
func (c *Control) PortEntries(ctx context.Context) (ports []Port, err error) {
	err = c.query(ctx, func() { ports = c.spec.Ports })
	return ports, err
}

// A RouteEntry is a route and what is known of its gateways.
type RouteEntry struct {
	fib.Route
	PortName string     // empty where the route names no port
	Used     bool       // of the routes to its prefix, packets follow this one
	Hops     []HopEntry // of a route through gateways
}

// A HopEntry is a gateway of a route.
type HopEntry struct {
	Gateway  netip.Addr
	PortName string
	Weight   uint16      // share of the flows, in proportion to that of other hops
	State    neigh.State // Incomplete for a neighbor that is not known at all
	Resolved bool        // packets can be sent to it
}

// entry describes a route.
func (c *Control) entry(rt fib.Route, used bool) RouteEntry {
	e := RouteEntry{Route: rt, Used: used}
	switch rt.Kind {
	case fib.Via:
		if rt.Hops == nil {
			e.Hops = []HopEntry{c.hop(fib.Hop{Gateway: rt.Gateway, Port: rt.Port, Weight: 1})}
		}
		for _, h := range rt.Hops {
			e.Hops = append(e.Hops, c.hop(h))
		}
	case fib.OnLink, fib.Local, fib.Broadcast:
		e.PortName = c.spec.Ports[rt.Port].Name
	}
	return e
}

func (c *Control) hop(h fib.Hop) HopEntry {
	n, _ := c.neighbors.Lookup(h.Port, h.Gateway)
	return HopEntry{h.Gateway, c.spec.Ports[h.Port].Name, h.Weight, n.State, n.State != neigh.Incomplete && n.State != neigh.Failed}
}

// Routes yields the routes of the prefixes within p, in the order of
// [fib.RIB.Covered]. They are read in parts: each is right for its moment, and
// what comes or goes meanwhile is among them or not. After an error there are no
// more. It may be called from any goroutine.
func (c *Control) Routes(ctx context.Context, p netip.Prefix) iter.Seq2[RouteEntry, error] {
	return func(yield func(RouteEntry, error) bool) {
		entries := make([]RouteEntry, 0, part+fib.NumOrigins)
		for first := true; first || len(entries) >= part; first = false {
			err := c.query(ctx, func() {
				routes := c.rib.Covered(p)
				if !first {
					routes = c.rib.CoveredAfter(p, entries[len(entries)-1].Prefix)
				}
				entries = entries[:0]
				var last netip.Prefix
				for rt := range routes {
					if len(entries) >= part && rt.Prefix != last {
						break
					}
					entries = append(entries, c.entry(rt, rt.Prefix != last))
					last = rt.Prefix
				}
			})
			if err != nil {
				yield(RouteEntry{}, err)
				return
			}
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
		}
	}
}

// ExactRoutes returns the routes to prefix p itself, the one that is used first.
// It may be called from any goroutine.
func (c *Control) ExactRoutes(ctx context.Context, p netip.Prefix) (entries []RouteEntry, err error) {
	err = c.query(ctx, func() {
		for rt := range c.rib.Exact(p) {
			entries = append(entries, c.entry(rt, len(entries) == 0))
		}
	})
	return entries, err
}

// CoveringRoutes returns the routes in use to all prefixes that cover p, and p
// itself, longest first. It may be called from any goroutine.
func (c *Control) CoveringRoutes(ctx context.Context, p netip.Prefix) (entries []RouteEntry, err error) {
	err = c.query(ctx, func() { entries = c.covering(p) })
	return entries, err
}

func (c *Control) covering(p netip.Prefix) (entries []RouteEntry) {
	for rt := range c.rib.Covering(p) {
		entries = append(entries, c.entry(rt, true))
	}
	slices.Reverse(entries)
	return entries
}

// A PathEntry is a way that packets to an address take.
type PathEntry struct {
	fib.Adjacency
	PortName string
	Share    float64 // of the flows: 1 where there is no other way
}

// Lookup returns what workers do with packets to a, each way that they may take,
// and the routes that cover a: packets follow the first. It may be called from any
// goroutine.
func (c *Control) Lookup(ctx context.Context, a netip.Addr) (paths []PathEntry, entries []RouteEntry, err error) {
	err = c.query(ctx, func() {
		paths = c.paths(c.fib.Lookup(a))
		entries = c.covering(netip.PrefixFrom(a, a.BitLen()))
	})
	return paths, entries, err
}

func (c *Control) paths(a *fib.Adjacency) (paths []PathEntry) {
	if a.Action != fib.Group {
		return []PathEntry{{*a, c.spec.Ports[a.Port].Name, 1}}
	}
	counts := make(map[uint32]int)
	for _, n := range c.fib.BucketsOf(a) {
		counts[n]++
	}
	for _, n := range slices.Sorted(maps.Keys(counts)) {
		a := c.fib.Adj[n]
		paths = append(paths, PathEntry{a, c.spec.Ports[a.Port].Name, float64(counts[n]) / fib.Buckets})
	}
	return paths
}

// ErrWatched says that another watch goes on.
var ErrWatched = errors.New("control: the destinations of packets are being watched already")

// Watch has workers tell w the destinations of all packets that they receive,
// until Unwatch. The error is ErrWatched while there is another. It may be called
// from any goroutine.
func (c *Control) Watch(ctx context.Context, w *dataplane.Watch) error {
	var busy bool
	err := c.query(ctx, func() {
		if busy = c.watch != nil; !busy {
			c.watch = w
			c.publish()
		}
	})
	if busy {
		return ErrWatched
	}
	return err
}

// Unwatch ends Watch.
func (c *Control) Unwatch(ctx context.Context) error {
	return c.query(ctx, func() {
		c.watch = nil
		c.publish()
	})
}

// A NeighborEntry is a neighbor.
type NeighborEntry struct {
	neigh.Entry
	PortName string
	Age      time.Duration // since its state was entered or confirmed
	Source   neigh.Source  // who finds out the neighbors of the port
}

// NeighborEntries yields the neighbors in no order, read in parts as Routes reads.
// It may be called from any goroutine.
func (c *Control) NeighborEntries(ctx context.Context) iter.Seq2[NeighborEntry, error] {
	return func(yield func(NeighborEntry, error) bool) {
		next, stop := iter.Pull2(c.neighbors.Each()) // is resumed by control's goroutine only
		defer stop()
		entries := make([]NeighborEntry, 0, part)
		for more := true; more; {
			err := c.query(ctx, func() {
				now := c.now()
				entries = entries[:0]
				for len(entries) < part {
					var e neigh.Entry
					var since time.Duration
					if e, since, more = next(); !more {
						break
					}
					entries = append(entries, NeighborEntry{e, c.spec.Ports[e.Port].Name, now - since, c.spec.Ports[e.Port].Source})
				}
			})
			if err != nil {
				yield(NeighborEntry{}, err)
				return
			}
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
		}
	}
}
