// Package control is the slow side of the router: one goroutine that owns the
// RIB and the neighbor table, publishes what workers forward by, answers the
// frames that they punt, and watches links.
//
// Nothing is shared with the workers but what package dataplane says: the
// published State, the punt rings, the inject rings and the counters.
package control

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"nmfwd/arp"
	"nmfwd/dataplane"
	"nmfwd/fib"
	"nmfwd/ndp"
	"nmfwd/neigh"
	"nmfwd/wire"
)

// How often the links of all ports are looked at, and how often all else that
// others may change of them.
const (
	linkEvery   = 100 * time.Millisecond
	deviceEvery = time.Second
)

// A Spec is what is wanted: the configuration in the terms of the data plane.
// It is not changed once given to New or Reload.
type Spec struct {
	Ports        []Port        // by port number: the router's, then VLANs
	Routes       []fib.Route   // without what follows from Ports; control does not keep them
	Neighbors    []neigh.Entry // all static
	MaxNeighbors int
	ICMP         ICMP
	IPOptions    bool // packets are forwarded with options that RFC 7126 advises to drop
	SmallPages   bool // the system is not asked for huge pages for tables

	// Kernel has the routes of the system, nil where they are not followed.
	Kernel RouteSource

	// Broadcast reports whether an IPv4 address is the broadcast of a network that
	// the system has, which need not be a port's: no ICMP error is about a packet to
	// it (RFC 1812, 4.3.2.7). Nil stands for never. It must not wait.
	Broadcast func(netip.Addr) bool
}

// A Port is what is wanted of one port.
type Port struct {
	Name  string // as the configuration calls it; not changed by a reload
	MAC   wire.MAC
	MACs  []wire.MAC // further addresses that are ours
	Addrs []netip.Prefix
	MTU   int
	Host  bool // a host stack owns the addresses
	URPF  dataplane.URPF

	// Source says who finds out the neighbors. It is not changed by a reload.
	Source neigh.Source

	// Of a VLAN, which has the MAC addresses and the host of the port that it is
	// on. VLANs follow the devices in Spec.Ports.
	VLAN    uint16 // VLAN ID; 0 for a device
	On      int    // number of the port that it is on
	PCP     uint16 // priority of frames sent
	KeepPCP bool   // packets that came with a tag keep their priority
}

// tci returns the tag of frames that are sent on a VLAN, 0 on a device.
func (p *Port) tci() uint16 { return p.PCP<<13 | p.VLAN }

// A Control runs a router.
type Control struct {
	router    *dataplane.Forwarder
	log       *slog.Logger
	names     []string // of the ports, which no reload changes
	neighbors *neigh.Table
	reloads   chan reload
	queries   chan func()
	stats     atomic.Pointer[Stats]
	now       func() time.Duration // the clock that everything here goes by

	// The rest belongs to Run.
	tables
	resolution
	messenger
	hostRouter *hostRouter
	watch      *dataplane.Watch // that workers tell, nil for none
	reply      [dataplane.MaxControlFrame]byte
	devices    []string // what is different of each port, as last logged
}

// tables are what is compiled from a Spec, aside from all that runs.
type tables struct {
	spec  *Spec
	rib   *fib.RIB
	fib   *fib.FIB
	ports []*neigh.Port
	feed  RouteFeed             // of the system's routes, nil for none
	keep  map[neigh.Key]bool    // gateways of static routes
	used  gatewaysInUse         // by the system's routes
	hosts map[netip.Prefix]bool // the system's routes that the host follows
	seed  uint64                // of the hash of flows
	took  time.Duration

	kept    bool // the neighbor table keeps the gateways
	refused bool // routes of the system have no place, which has been said
}

type reload struct {
	tables
	done chan error
}

// Stats describe the tables in use.
type Stats struct {
	Routes   [2][fib.NumOrigins]int // by family (IPv4, IPv6) and origin
	FIBBytes [2]int                 // by family

	// Compiles count the compilations since the start by the time that they
	// took: those of at most CompileBuckets[i], and in the end all others.
	Compiles    [len(CompileBuckets) + 1]uint64
	CompileTime time.Duration // of all
}

// CompileBuckets are the bounds of Stats.Compiles.
var CompileBuckets = [...]time.Duration{
	time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
}

// New compiles spec and publishes it to router, whose ports are in the same
// order. An error says what cannot be.
func New(router *dataplane.Forwarder, spec *Spec, log *slog.Logger) (*Control, error) {
	sources, names := make([]neigh.Source, len(spec.Ports)), make([]string, len(spec.Ports))
	for i := range spec.Ports {
		sources[i], names[i] = spec.Ports[i].Source, spec.Ports[i].Name
	}
	start := time.Now()
	c := &Control{
		router:     router,
		log:        log,
		names:      names,
		neighbors:  neigh.New(sources, spec.MaxNeighbors),
		now:        func() time.Duration { return time.Since(start) },
		messenger:  newMessenger(router, len(spec.Ports)),
		reloads:    make(chan reload),
		queries:    make(chan func()),
		resolution: newResolution(len(spec.Ports)),
		hostRouter: newHostRouter(router.Ports()),
		devices:    make([]string, len(spec.Ports)),
	}
	t, err := compile(context.Background(), spec)
	if err != nil {
		return nil, err
	}
	if err := c.use(t); err != nil {
		t.close()
		return nil, err
	}
	return c, nil
}

// Reload makes spec the one in use: it compiles aside, in the calling
// goroutine, and then swaps. After an error nothing has changed: soon after ctx is
// done that is its error. Run must be running, or Step be called until the end.
func (c *Control) Reload(ctx context.Context, spec *Spec) error {
	t, err := compile(ctx, spec)
	if err != nil {
		return err
	}
	r := reload{t, make(chan error, 1)}
	select {
	case c.reloads <- r:
		err = <-r.done
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		t.close()
	}
	return err
}

// Neighbors returns the neighbor table, of which only the counters may be read
// while Run runs.
func (c *Control) Neighbors() *neigh.Table { return c.neighbors }

// Stats returns a description of the tables in use. It may be called from any
// goroutine; the result must not be changed.
func (c *Control) Stats() *Stats { return c.stats.Load() }

// Run serves the router until ctx is done.
func (c *Control) Run(ctx context.Context) {
	links := time.NewTicker(linkEvery)
	defer links.Stop()
	devices := time.NewTicker(deviceEvery)
	defer devices.Stop()
	due := time.NewTimer(0)
	defer due.Stop()
	c.keepGateways()
	workers := newWatchdog(c.log, len(c.router.Workers()), c.router)
	for {
		c.router.Punts(c.punt)
		c.settle(false)
		due.Reset(c.wait())
		select {
		case <-ctx.Done():
			return
		case <-c.router.PuntReady():
		case <-due.C:
			c.expire()
		case <-c.systemReady():
			c.follow()
		case <-c.routesReady():
			c.followRoutes()
		case r := <-c.reloads:
			err := c.replace(r.tables)
			c.keepGateways()
			r.done <- err
		case f := <-c.queries:
			f()
		case <-links.C:
			workers.rescue(c.down())
			if c.watchLinks() {
				workers.lost()
			}
			c.rib.Reclaim(c.router.Oldest())
		case <-devices.C:
			c.watchDevices()
			workers.look(c.down())
		}
	}
}

// HandlePunts handles what the workers punted so far. Run does it whenever
// there is something; only without Run may others call it.
func (c *Control) HandlePunts() {
	c.router.Punts(c.punt)
	c.settle(true)
}

// Step does once what Run does all the time, on a clock that is the caller's: now
// never falls. It returns when something is due that nobody asks for. Only without
// Run may others call it.
func (c *Control) Step(now time.Duration) (next time.Duration) {
	c.now = func() time.Duration { return now }
	select {
	case r := <-c.reloads:
		r.done <- c.replace(r.tables)
	default:
	}
	for more := true; more; {
		select {
		case <-c.routesReady():
			c.followRoutes()
		default:
			more = false
		}
	}
	c.keepGateways()
	c.watchLinks()
	c.expire()
	c.HandlePunts()
	c.rib.Reclaim(c.router.Oldest())
	return now + c.wait()
}

// compile builds the tables that spec asks for, unless ctx is done before: it looks
// between steps, each of which takes a part of a second for a million routes.
func compile(ctx context.Context, spec *Spec) (t tables, err error) {
	start := time.Now()
	attrs := make([]fib.PortAttr, len(spec.Ports))
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	var connected []fib.Route
	for i, p := range spec.Ports {
		attrs[i] = fib.PortAttr{Name: p.Name, MAC: p.MAC.Bytes(), MTU: uint16(p.MTU), TCI: p.tci(), On: uint16(p.On), KeepPCP: p.KeepPCP}
		np := &neigh.Port{Num: uint16(i), MAC: p.MAC, MACs: slices.Clone(p.MACs), Host: p.Host, Source: p.Source}
		for _, other := range spec.Ports {
			np.MACs = append(np.MACs, other.MAC)
		}
		if !p.Host {
			np.Addrs = append(np.Addrs, ndp.LinkLocal(p.MAC))
		}
		for _, a := range p.Addrs {
			np.Addrs = append(np.Addrs, a.Addr())
			if !a.IsSingleIP() {
				np.Nets = append(np.Nets, a.Masked())
			}
			for _, r := range fib.ConnectedRoutes(uint16(i), a) {
				connected = append(connected, r)
				if r.Kind == fib.Local && r.Prefix.Addr() != a.Addr() {
					np.Anycast = append(np.Anycast, r.Prefix.Addr())
				}
			}
		}
		t.ports = append(t.ports, np)
	}
	rib := fib.New(attrs)
	if spec.SmallPages {
		rib.UseSmallPages()
	}
	for _, routes := range [][]fib.Route{connected, spec.Routes} {
		if err := ctx.Err(); err != nil {
			return t, fmt.Errorf("control: %w", err)
		}
		if err := rib.Load(routes); err != nil {
			return t, fmt.Errorf("control: %w", err)
		}
	}
	t.rib, t.keep, t.seed = rib, gateways(spec.Routes), seed(spec.Ports)
	rest := *spec
	rest.Routes, spec = nil, nil // the RIB has them: nothing is kept of what may be a million
	t.spec = &rest
	if err := ctx.Err(); err != nil {
		return t, fmt.Errorf("control: %w", err)
	}
	if err := t.followKernel(rest.Kernel); err != nil {
		return t, fmt.Errorf("control: routes of the system: %w", err)
	}
	for _, n := range rest.Neighbors {
		if err := rib.SetNeighbor(n.Port, n.Addr, n.MAC.Bytes()); err != nil {
			return t, fmt.Errorf("control: %w", err)
		}
	}
	if err := ctx.Err(); err != nil {
		return t, fmt.Errorf("control: %w", err)
	}
	t.fib = rib.Commit()
	t.took = time.Since(start)
	return t, nil
}

// replace publishes tables in the place of those in use.
func (c *Control) replace(t tables) error {
	old := c.tables
	if err := c.use(t); err != nil {
		return err
	}
	old.close()
	return nil
}

// seed returns what makes the router's hash of flows another one than that of its
// neighbors, and the same after a restart: it follows from the lowest of its
// addresses, or of its MAC addresses where there is none.
func seed(ports []Port) uint64 {
	var addr netip.Addr
	var mac wire.MAC
	for _, p := range ports {
		for _, a := range p.Addrs {
			if a := a.Addr(); !a.IsLinkLocalUnicast() && (!addr.IsValid() || a.Less(addr)) {
				addr = a
			}
		}
		if mac == 0 || p.MAC < mac {
			mac = p.MAC
		}
	}
	h := fnv.New64a()
	if addr.IsValid() {
		h.Write(addr.AsSlice())
	} else {
		b := mac.Bytes()
		h.Write(b[:])
	}
	return h.Sum64()
}

// use publishes tables.
func (c *Control) use(t tables) error {
	static := make(map[neigh.Key]wire.MAC, len(t.spec.Neighbors))
	for _, n := range t.spec.Neighbors {
		static[n.Key] = n.MAC
	}
	if err := c.neighbors.Replace(static, t.spec.MaxNeighbors); err != nil {
		return fmt.Errorf("control: %w", err)
	}
	c.know(&t)
	for i, p := range t.ports {
		if c.ports == nil || p.MAC != c.ports[i].MAC || !slices.Equal(p.Addrs, c.ports[i].Addrs) {
			c.announceSoon(i, p.Host)
		}
	}
	c.tables = t
	c.publish()
	c.hostRouter.changed, c.hostRouter.next = true, c.now()
	c.tellHosts()
	s := new(Stats)
	if old := c.stats.Load(); old != nil {
		s.Compiles, s.CompileTime = old.Compiles, old.CompileTime
	}
	bucket, _ := slices.BinarySearch(CompileBuckets[:], t.took)
	s.Compiles[bucket]++
	s.CompileTime += t.took
	s.count(t.rib)
	c.stats.Store(s)
	return nil
}

// count counts the routes of rib.
func (s *Stats) count(rib *fib.RIB) {
	for f, family := range []int{4, 6} {
		for o := range s.Routes[f] {
			s.Routes[f][o] = rib.Len(family, fib.Origin(o))
		}
		s.FIBBytes[f] = rib.Bytes(family)
	}
}

// publish hands the tables and the state of the ports to the workers.
func (c *Control) publish() {
	up, differ := make([]bool, len(c.spec.Ports)), false
	for i := range up {
		up[i] = c.device(i).Device.LinkUp()
		differ = c.rib.SetLink(uint16(i), up[i]) || differ
	}
	if differ {
		c.refresh(c.now())
	}
	st := &dataplane.State{FIB: c.fib, Seed: c.seed, Watch: c.watch, IPOptions: c.spec.IPOptions, Ports: make([]dataplane.PortState, len(c.spec.Ports))}
	for i, p := range c.spec.Ports {
		s := dataplane.PortState{Number: uint16(i), MAC: p.MAC, MACs: p.MACs, MTU: p.MTU, Host: p.Host, TCI: p.tci(), KeepPCP: p.KeepPCP, URPF: p.URPF}
		s.Up = up[i]
		if p.VLAN != 0 {
			s.On = uint16(p.On)
			on := &st.Ports[p.On]
			if on.VLANs == nil {
				on.VLANs = new([1 << 12]uint16)
			}
			on.VLANs[p.VLAN] = s.Number
		}
		s.Every = c.limits(i)
		if !p.Host {
			a := wire.IPv6(append(make([]byte, 24), ndp.LinkLocal(p.MAC).AsSlice()...))
			s.LinkLocal[0], s.LinkLocal[1] = a.Destination()
		}
		st.Ports[i] = s
	}
	c.router.Publish(st)
}

// device returns the device that port number i is, or is a VLAN on.
func (c *Control) device(i int) *dataplane.Port {
	if p := &c.spec.Ports[i]; p.VLAN != 0 {
		i = p.On
	}
	return c.router.Ports()[i]
}

// watchLinks publishes a new state when a link changed, and reports whether one
// was lost.
func (c *Control) watchLinks() (lost bool) {
	changed := false
	for i, p := range c.router.Ports() {
		if up := p.Device.LinkUp(); up != c.router.State().Ports[i].Up {
			c.log.Info("link changed", "port", p.Name, "up", up)
			changed, lost = true, lost || !up
			for j := range c.spec.Ports {
				if q := &c.spec.Ports[j]; up && (j == i || q.VLAN != 0 && int(q.On) == i) {
					c.announceSoon(j, q.Host)
					c.neighbors.Doubt(c.now(), uint16(j))
				}
			}
		}
	}
	if changed {
		c.publish()
	}
	return lost
}

// watchDevices logs what others changed of ports, once each.
func (c *Control) watchDevices() {
	for i, p := range c.router.Ports() {
		w, ok := p.Device.(dataplane.Watcher)
		if !ok {
			continue
		}
		now := ""
		if err := w.Changed(); err != nil {
			now = err.Error()
		}
		if now != c.devices[i] && now != "" {
			c.log.Warn("port changed", "port", p.Name, "what", now)
		} else if now != c.devices[i] {
			c.log.Info("port is as it was opened again", "port", p.Name)
		}
		c.devices[i] = now
	}
}

// punt handles one frame that a worker gave.
func (c *Control) punt(p dataplane.Punt) {
	c.act() // what those before it led to
	port := c.ports[p.Port]
	c.worker, c.priority = p.Worker, p.Priority
	var n int
	switch p.Kind {
	case dataplane.PuntARP:
		n, _ = arp.Handle(c.now(), c.neighbors, port, p.Frame, c.reply[:])
	case dataplane.PuntND:
		n, _ = ndp.Handle(c.now(), c.neighbors, port, p.Frame, c.reply[:])
	case dataplane.PuntNeighbor:
		c.resolve(p)
	case dataplane.NoteUsed:
		c.neighbors.Use(c.now(), neigh.Key{Port: uint16(p.Out), Addr: p.Neighbor})
	case dataplane.PuntLocal:
		c.answer(p)
	case dataplane.PuntTTL, dataplane.PuntTooBig, dataplane.PuntUnreachable, dataplane.PuntBadOption:
		c.fault(p)
	case dataplane.PuntFragment:
		c.fragment(p)
	}
	if n > 0 {
		c.send(p.Port, n)
	}
}
