package control

import (
	"net/netip"
	"slices"
	"time"

	"nmfwd/arp"
	"nmfwd/dataplane"
	"nmfwd/fib"
	"nmfwd/ndp"
	"nmfwd/neigh"
	"nmfwd/wire"
	"nmfwd/wire/icmp"
)

const (
	// How often packets of one source make control ask for another neighbor, so that
	// a station that scans a network leaves questions to others.
	scanEvery = 10 * time.Millisecond
	scanBurst = 128

	// releaseRoom is how many frames of the ring to a worker what waited leaves to
	// others. The worker sends what is in it at once, by rings that may be as short.
	releaseRoom = dataplane.InjectLen / 2

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
	system System
	lot    lot
	scans  [][dataplane.Sources]scan // by ingress port

	fresh     map[neigh.Key]neigh.Entry // known, but not published yet
	changed   bool                      // what changed in the RIB is not published yet
	committed time.Duration             // when it was the last time

	announced []announcement // by port
}

// A scan limits the neighbors that packets of a class of sources make control ask
// for.
type scan struct {
	limit dataplane.Bucket
	last  neigh.Key
}

// take reports whether k may be asked for now.
func (s *scan) take(now time.Duration, k neigh.Key) bool {
	if k != s.last && !s.limit.Take(int64(now), int64(scanEvery), scanBurst) {
		return false
	}
	s.last = k
	return true
}

// An announcement says how often the addresses of a port are still announced,
// and when next.
type announcement struct {
	left int
	at   time.Duration
}

func newResolution(ports int) resolution {
	return resolution{
		lot: newLot(ports), scans: make([][dataplane.Sources]scan, ports),
		fresh: map[neigh.Key]neigh.Entry{}, committed: -commitEvery, announced: make([]announcement, ports),
	}
}

// FollowSystem makes s the one that finds out neighbors for ports whose source
// is the system. It is called before Run.
func (c *Control) FollowSystem(s System) { c.system = s }

// Parked returns how many packets that came in by port wait for their neighbor
// to be found, and how many that waited, or came too late to, were given up. It
// may be called from any goroutine.
func (c *Control) Parked(port int) (now int, discarded uint64) {
	p := &c.lot.ports[port]
	return int(p.waiting.Load()), p.discarded.Load()
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

// resolve takes a packet that a worker gave whose neighbor it did not know.
func (c *Control) resolve(p dataplane.Punt) {
	k := neigh.Key{Port: uint16(p.Out), Addr: p.Neighbor}
	if e, ok := c.neighbors.Lookup(k.Port, k.Addr); !ok || e.State == neigh.Failed {
		if !c.scans[p.Port][dataplane.SourceOf(packetOf(p.Frame))].take(c.now(), k) {
			c.lot.discard(p.Port)
			return
		}
	}
	c.unresolved(p)
}

// unresolved takes a packet whose neighbor is not known to forwarding.
func (c *Control) unresolved(p dataplane.Punt) {
	k := neigh.Key{Port: uint16(p.Out), Addr: p.Neighbor}
	switch c.neighbors.Use(c.now(), k) {
	case neigh.Wait:
		c.lot.add(k, p)
	case neigh.Forward:
		if _, ok := c.fresh[k]; ok {
			c.lot.add(k, p)
			return
		}
		// The worker went by a state of before the one in use.
		a := c.rib.Via(k.Port, k.Addr)
		c.forward(&a, &parkedPacket{kind: p.Kind, worker: p.Worker, port: p.Port, priority: p.Priority, frame: p.Frame})
	case neigh.NoAnswer:
		c.unreachable(p.Port, p.Frame)
	default:
		c.lot.discard(p.Port)
	}
}

// unreachable gives up a packet, as it came in by port, because its neighbor does
// not answer, and tells its source (RFC 1812, 4.3.3.1; RFC 4861, 7.2.2).
func (c *Control) unreachable(port int, frame []byte) {
	c.lot.discard(port)
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

// settle does what the neighbor table wants done, and publishes what is new to
// forwarding, at once or when it is time for that.
func (c *Control) settle(atOnce bool) {
	c.act()
	if now := c.now(); c.changed && (atOnce || now >= c.committed+commitEvery) {
		c.commit(now)
	}
	c.tellHosts()
}

// act does what the neighbor table wants done. What that leads to, as an error to a
// source that is not known, is queued in the table: nothing that act calls may
// call it.
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
		if !e.Stale || c.lot.first(e.Key) == nil {
			s := neigh.Reachable
			if e.Stale {
				s = neigh.Stale
			}
			c.fresh[e.Key] = neigh.Entry{Key: e.Key, MAC: e.MAC, State: s}
			c.changed = true
		} else { // what waits makes it one in use
			c.neighbors.Use(now, e.Key)
		}
	case neigh.Gone:
		if c.rib.RemoveNeighbor(e.Port, e.Addr) == nil {
			c.changed = true
		}
		// What waits for one that was found, or is asked for again, goes on waiting;
		// for one that gave way to others it does not.
		_, found := c.fresh[e.Key]
		_, asked := c.neighbors.Lookup(e.Port, e.Addr)
		delete(c.fresh, e.Key)
		if c.lot.first(e.Key) == nil {
			return
		}
		if found || asked {
			if a := c.neighbors.Use(now, e.Key); a == neigh.Wait || a == neigh.Forward {
				return
			}
		}
		for p := c.lot.first(e.Key); p != nil; p = c.lot.first(e.Key) {
			c.lot.giveUp(p)
		}
	case neigh.Unreachable:
		q := c.lot.queues[e.Key]
		if q == nil {
			return
		}
		for _, p := range slices.Clone(q.packets) {
			c.lot.remove(p)
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
	ready := make(map[neigh.Key]neigh.Entry, len(c.fresh))
	for k, e := range c.fresh {
		c.setNeighbor(c.rib, e)
		if c.release(k) {
			ready[k] = e
		} else {
			_ = c.rib.RemoveNeighbor(k.Port, k.Addr) // until the rest has left
		}
	}
	c.fib = c.rib.Commit()
	c.changed, c.committed = false, now
	c.router.Punts(c.punt) // what came meanwhile is to leave before later packets, too
	for k, e := range ready {
		if c.fresh[k] == e && c.release(k) {
			delete(c.fresh, k)
		}
	}
	c.changed = c.changed || len(c.fresh) > 0
	if len(c.fib.Groups) == 0 {
		return
	}
	for _, q := range c.lot.queues {
		for _, p := range slices.Clone(q.packets) {
			a := c.path(destination(packetOf(p.frame)), packetOf(p.frame))
			if a.HeadLen != 0 && c.room(a, p) {
				c.lot.remove(p)
				c.forward(a, p)
			}
		}
	}
}

// release sends what waits for k, which is known, as far as there is room, and
// reports whether that is all.
func (c *Control) release(k neigh.Key) bool {
	if c.lot.first(k) == nil {
		return true
	}
	a := c.rib.Via(k.Port, k.Addr)
	for p := c.lot.first(k); p != nil; p = c.lot.first(k) {
		if !c.room(&a, p) {
			return false
		}
		c.lot.remove(p)
		c.forward(&a, p)
	}
	return true
}

// room reports whether the ring to the worker has room for p, to be sent by a, and
// for others.
func (c *Control) room(a *fib.Adjacency, p *parkedPacket) bool {
	if p.tooLarge(a.MTU) {
		return c.router.Room(int(a.Port))-releaseRoom >= min(p.fragments(int(a.MTU)), dataplane.InjectLen-releaseRoom)
	}
	return c.router.RoomAs(p.worker, int(a.Port)) > releaseRoom
}

// forward sends a packet that waited.
func (c *Control) forward(a *fib.Adjacency, p *parkedPacket) {
	ip := packetOf(p.frame)
	if a.HeadLen != 0 && p.tooLarge(a.MTU) && ip[0]>>4 == 4 && !wire.IPv4(ip).DontFragment() {
		c.worker, c.priority = p.worker, p.priority
		if c.fragmentBy(a, p.port, ip, p.kind == dataplane.PuntFragment) {
			return
		}
	} else if a.HeadLen != 0 && !p.tooLarge(a.MTU) {
		if frame := dataplane.Rewrite(a, p.frame); frame != nil && c.router.InjectAs(p.worker, int(a.Port), frame, p.priority) {
			return
		}
	}
	c.lot.discard(p.port)
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
