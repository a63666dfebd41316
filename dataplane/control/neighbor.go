package control

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"nmfwd/arp"
	"nmfwd/dataplane"
	"nmfwd/dataplane/icmp"
	"nmfwd/dataplane/wire"
	"nmfwd/fib"
	"nmfwd/fib/neigh"
	"nmfwd/ndp"
)

const (
	parkEach = 3    // packets that wait for one neighbor
	parkAll  = 1024 // packets that wait for any

	// commitEvery is the least time between two tables that differ in neighbors
	// and routes of the system only, so that a flood of changes costs no more than
	// so many.
	commitEvery = 10 * time.Millisecond

	// How often an address is announced, and when again (RFC 5227, 1.1:
	// ANNOUNCE_NUM and ANNOUNCE_INTERVAL; RFC 4861, 7.2.6, allows as much).
	announceNum   = 2
	announceEvery = 2 * time.Second

	never = time.Duration(1<<63 - 1)
)

// A System is a host stack that finds out neighbors for ports whose source is
// [neigh.System]. All of it is called by control only.
type System interface {
	Ready() <-chan struct{}    // receives a value when there is something for Take
	Take(f func(neigh.Update)) // calls f for what the system says
	Ask(k neigh.Key) error     // has the system find out k, or verify it
}

// A resolution is what control does about neighbors, beside the table of them.
type resolution struct {
	system  System
	waiting map[neigh.Key][]parkedPacket
	parked  int // packets in waiting

	fresh     map[neigh.Key]bool // known, but not published yet
	changed   bool               // what changed in the RIB is not published yet
	committed time.Duration      // when it was the last time

	announced []announcement // by port

	// By ingress port, for others to read.
	parkedAt    []atomic.Int64
	discardedAt []atomic.Uint64
}

// A parkedPacket waits for its neighbor.
type parkedPacket struct {
	worker, port int // that it came in by
	priority     uint16
	frame        []byte
}

// An announcement says how often the addresses of a port are still announced,
// and when next.
type announcement struct {
	left int
	at   time.Duration
}

func newResolution(ports int) resolution {
	return resolution{
		waiting: map[neigh.Key][]parkedPacket{}, fresh: map[neigh.Key]bool{}, committed: -commitEvery,
		announced: make([]announcement, ports), parkedAt: make([]atomic.Int64, ports), discardedAt: make([]atomic.Uint64, ports),
	}
}

// FollowSystem makes s the one that finds out neighbors for ports whose source
// is the system. It is called before Run.
func (c *Control) FollowSystem(s System) { c.system = s }

// Parked returns how many packets that came in by port wait for their neighbor
// to be found, and how many that waited, or came too late to, were given up. It
// may be called from any goroutine.
func (c *Control) Parked(port int) (now int, discarded uint64) {
	return int(c.parkedAt[port].Load()), c.discardedAt[port].Load()
}

// gateways returns the neighbors that routes go by.
func gateways(routes []fib.Route) map[neigh.Key]bool {
	all := map[neigh.Key]bool{}
	var last *fib.Route // they come in runs
	for i := range routes {
		r := &routes[i]
		switch {
		case r.Kind != fib.Via:
		case last != nil && r.Gateway == last.Gateway && r.Port == last.Port && slices.Equal(r.Hops, last.Hops):
		case r.Hops == nil:
			all[neigh.Key{Port: r.Port, Addr: r.Gateway}] = true
			last = r
		default:
			for _, h := range r.Hops {
				all[neigh.Key{Port: h.Port, Addr: h.Gateway}] = true
			}
			last = r
		}
	}
	return all
}

// know puts into t's RIB what is known of neighbors beyond t's own.
func (c *Control) know(t *tables) {
	learned := false
	for _, e := range c.neighbors.All() {
		if e.State != neigh.Static && e.State != neigh.Incomplete && e.State != neigh.Failed {
			c.setNeighbor(t.rib, e)
			learned = true
		}
	}
	if learned {
		t.fib = t.rib.Commit()
	}
}

func (c *Control) setNeighbor(rib *fib.RIB, e neigh.Entry) {
	if err := rib.SetNeighbor(e.Port, e.Addr, e.MAC.Bytes()); err != nil {
		c.log.Warn("neighbor", "err", err)
		return
	}
	if err := rib.VerifyNeighbor(e.Port, e.Addr, e.State == neigh.Stale); err != nil {
		c.log.Error("neighbor", "err", err)
	}
}

// unresolved takes a packet whose neighbor the worker did not know.
func (c *Control) unresolved(p dataplane.Punt) {
	k := neigh.Key{Port: uint16(p.Out), Addr: p.Neighbor}
	switch c.neighbors.Use(c.now(), k) {
	case neigh.Wait:
		c.park(k, p)
	case neigh.Forward:
		// The worker went by a state of before. Once the new one is published,
		// later packets of the flow may have left already.
		c.act()
		if c.fresh[k] {
			c.park(k, p)
			return
		}
		c.discardedAt[p.Port].Add(1)
	case neigh.NoAnswer:
		c.unreachable(p.Port, p.Frame)
	default:
		c.discardedAt[p.Port].Add(1)
	}
}

// unreachable gives up a packet, as it came in by port, because its neighbor does
// not answer, and tells its source (RFC 1812, 4.3.3.1; RFC 4861, 7.2.2).
func (c *Control) unreachable(port int, frame []byte) {
	c.discardedAt[port].Add(1)
	ip, e := packetOf(frame), icmp.Error{Kind: icmp.HostUnreachable}
	switch {
	case c.spec.ICMP.Rate == 0:
		c.count(port, ip, e.Kind, icmp.Silent)
	case !c.due(port, ip):
		c.count(port, ip, e.Kind, icmp.Rate)
	default:
		c.tell(port, frame, e, netip.Addr{})
	}
}

// park keeps a copy of a packet until k is known. When more wait for it than may,
// the oldest gives way (RFC 4861, 7.2.2).
func (c *Control) park(k neigh.Key, p dataplane.Punt) {
	q := c.waiting[k]
	switch {
	case len(q) >= parkEach:
		c.unpark(q[0])
		c.discardedAt[q[0].port].Add(1)
		q = q[1:]
	case c.parked >= parkAll:
		c.discardedAt[p.Port].Add(1)
		return
	}
	c.waiting[k] = append(q, parkedPacket{p.Worker, p.Port, p.Priority, slices.Clone(p.Frame)})
	c.parked++
	c.parkedAt[p.Port].Add(1)
}

func (c *Control) unpark(p parkedPacket) {
	c.parked--
	c.parkedAt[p.port].Add(-1)
}

// take returns what waits for k, which does so no more.
func (c *Control) take(k neigh.Key) []parkedPacket {
	q := c.waiting[k]
	delete(c.waiting, k)
	for _, p := range q {
		c.unpark(p)
	}
	return q
}

// settle does what the neighbor table wants done, and publishes what is new to
// forwarding, at once or when it is time for that.
func (c *Control) settle(atOnce bool) {
	c.act()
	if now := c.now(); c.changed && (atOnce || now >= c.committed+commitEvery) {
		c.commit(now)
	}
	c.tellHosts()
}

// act does what the neighbor table wants done.
func (c *Control) act() {
	now := c.now()
	for events := c.neighbors.Take(); len(events) > 0; events = c.neighbors.Take() {
		for _, e := range events {
			c.do(now, e)
		}
	}
}

// do does what event e asks for.
func (c *Control) do(now time.Duration, e neigh.Event) {
	switch e.Kind {
	case neigh.Ask:
		c.ask(e.Key)
	case neigh.Verify:
		c.verify(e.Key, e.MAC)
	case neigh.Known:
		if !e.Stale || len(c.waiting[e.Key]) == 0 {
			s := neigh.Reachable
			if e.Stale {
				s = neigh.Stale
			}
			c.setNeighbor(c.rib, neigh.Entry{Key: e.Key, MAC: e.MAC, State: s})
			c.changed, c.fresh[e.Key] = true, true
		} else { // what waits makes it one in use
			c.neighbors.Use(now, e.Key)
		}
	case neigh.Gone:
		if c.rib.RemoveNeighbor(e.Port, e.Addr) == nil {
			c.changed = true
		}
		delete(c.fresh, e.Key)
		for _, p := range c.take(e.Key) {
			c.discardedAt[p.port].Add(1)
		}
	case neigh.Unreachable:
		for _, p := range c.take(e.Key) {
			c.worker, c.priority = p.worker, p.priority
			c.unreachable(p.port, p.frame)
		}
	}
}

// commit publishes the RIB.
func (c *Control) commit(now time.Duration) {
	c.rib.Reclaim(c.router.Oldest())
	c.refresh(now)
	st := *c.router.State()
	st.FIB = c.fib
	c.router.Publish(&st)

	s := *c.stats.Load()
	s.count(c.rib)
	c.stats.Store(&s)
}

// refresh compiles the changes of the RIB, to be published at once. What waited
// for neighbors that are known now leaves first, and so does what waited for one
// that a group has found another for.
func (c *Control) refresh(now time.Duration) {
	c.fib = c.rib.Commit()
	for k := range c.fresh {
		if q := c.take(k); q != nil {
			a := c.rib.Via(k.Port, k.Addr)
			for _, p := range q {
				c.forward(&a, p)
			}
		}
	}
	clear(c.fresh)
	c.changed, c.committed = false, now
	if len(c.fib.Groups) == 0 {
		return
	}
	for k, q := range c.waiting {
		c.waiting[k] = slices.DeleteFunc(q, func(p parkedPacket) bool {
			a := c.path(destination(packetOf(p.frame)), packetOf(p.frame))
			if a.HeadLen == 0 {
				return false
			}
			c.unpark(p)
			c.forward(a, p)
			return true
		})
	}
}

// forward sends a packet that waited.
func (c *Control) forward(a *fib.Adjacency, p parkedPacket) {
	frame := dataplane.Rewrite(a, p.frame)
	if frame == nil || !c.router.InjectAs(p.worker, int(a.Port), frame, p.priority) {
		c.discardedAt[p.port].Add(1)
	}
}

// ask asks the link, or the system, for k. A question that gets lost is asked
// again.
func (c *Control) ask(k neigh.Key) {
	p := c.ports[k.Port]
	if p.Source == neigh.System {
		if c.system != nil {
			if err := c.system.Ask(k); err != nil {
				c.log.Debug("neighbor", "err", err)
			}
		}
		return
	}
	src, ok := c.asker(k)
	switch {
	case !ok:
	case k.Addr.Is4():
		c.send(int(k.Port), arp.Request(c.reply[:], wire.Broadcast, p.MAC, src, k.Addr))
	default:
		c.send(int(k.Port), ndp.Solicitation(c.reply[:], p.MAC, src, k.Addr))
	}
}

// verify asks mac whether it still has k.
func (c *Control) verify(k neigh.Key, mac wire.MAC) {
	p := c.ports[k.Port]
	src, ok := c.asker(k)
	switch {
	case !ok:
	case k.Addr.Is4():
		c.send(int(k.Port), arp.Request(c.reply[:], mac, p.MAC, src, k.Addr))
	default:
		c.send(int(k.Port), ndp.Verification(c.reply[:], mac, p.MAC, src, k.Addr))
	}
}

// asker returns the address from which the router asks for k: the port's on the
// network that k is on, else the link-local one where that is the router's own,
// else another one of the port, else, in IPv4, one of another port, and 0.0.0.0,
// which makes the question a probe, where there is none.
func (c *Control) asker(k neigh.Key) (a netip.Addr, ok bool) {
	best := 0
	for i, p := range c.spec.Ports {
		for _, x := range p.Addrs {
			n := 0
			switch {
			case x.Addr().Is4() != k.Addr.Is4():
			case i == int(k.Port) && x.Contains(k.Addr):
				n = 3
			case i == int(k.Port):
				n = 2
			case x.Addr().Is4():
				n = 1
			}
			if n > best {
				a, best = x.Addr(), n
			}
		}
	}
	switch {
	case best < 3 && k.Addr.Is6() && !c.spec.Ports[k.Port].Host:
		return ndp.LinkLocal(c.spec.Ports[k.Port].MAC), true
	case best == 0 && k.Addr.Is4():
		return netip.IPv4Unspecified(), true
	}
	return a, best > 0
}

// send sends the frame of n bytes in c.reply. When the ring is full it is lost:
// who needs it asks again.
func (c *Control) send(port, n int) { c.router.Inject(port, c.reply[:n], 0) }

// announceSoon has the router's addresses on a port announced, unless a host has
// them: stations that knew them elsewhere, and switches, learn where they are.
func (c *Control) announceSoon(port int, host bool) {
	if !host {
		c.announced[port] = announcement{announceNum, c.now()}
	}
}

// expire makes happen what is due.
func (c *Control) expire() {
	now := c.now()
	c.neighbors.Expire(now)
	for i := range c.announced {
		a := &c.announced[i]
		if a.left == 0 || a.at > now {
			continue
		}
		a.left--
		a.at = now + announceEvery
		p := c.ports[i]
		for _, addr := range p.Addrs {
			if addr.Is4() {
				c.send(i, arp.Announcement(c.reply[:], p.MAC, addr))
			} else {
				c.send(i, ndp.Announcement(c.reply[:], p.MAC, addr))
			}
		}
	}
}

// wait returns how long nothing is due.
func (c *Control) wait() time.Duration {
	next := never
	if at, ok := c.neighbors.Next(); ok {
		next = at
	}
	if c.changed {
		next = min(next, c.committed+commitEvery)
	}
	if c.hostRouter.changed {
		next = min(next, c.hostRouter.next)
	}
	for _, a := range c.announced {
		if a.left > 0 {
			next = min(next, a.at)
		}
	}
	return max(0, next-c.now())
}

// systemReady receives a value when the system said something.
func (c *Control) systemReady() <-chan struct{} {
	if c.system == nil {
		return nil
	}
	return c.system.Ready()
}

// follow takes what the system said. It forgets the neighbors of a link that goes
// down: that link is seen first, so that packets are dropped for the right reason.
func (c *Control) follow() {
	c.watchLinks()
	now := c.now()
	c.system.Take(func(u neigh.Update) { c.neighbors.Follow(now, u) })
}
