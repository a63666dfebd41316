package control

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"nmfwd/dataplane"
	"nmfwd/fib"
	"nmfwd/ndp"
	"nmfwd/neigh"
	"nmfwd/wire"
	"nmfwd/wire/icmp"
)

// headroom is the length of the header before a packet that control sends: the
// router adds tags.
const headroom = wire.EthernetLen

// An ICMP says how the router sends ICMP errors.
type ICMP struct {
	Rate   int  // per second, port and family; 0 for none
	Egress bool // they carry an address of the port that they leave by, not of the one that the packet came in by (RFC 1812, 4.3.2.4)
}

// A messenger is what control needs for packets of its own.
type messenger struct {
	messages []messages // by ingress port
	packet   []byte     // is made here, behind headroom
	piece    []byte     // and a fragment of it here
	id       uint16     // IPv4 identification of the last one

	// Of the packet on whose behalf something is sent.
	worker   int    // by which every port is reached
	priority uint16 // of its tag
}

// messages count what became of the packets of one port that were due something.
type messages struct {
	sent       [2][icmp.NumKinds]atomic.Uint64 // by family
	suppressed [2][icmp.NumReasons]atomic.Uint64

	fragmented, unfragmented, fragments atomic.Uint64

	limits [2]dataplane.Bucket // errors about packets that no worker has limited
}

// Messages are counts of ICMP messages by family, IPv4 and IPv6.
type Messages struct {
	Sent [2][icmp.NumKinds]uint64

	// Suppressed are those that were due and are not sent. What workers suppress
	// for LimitErrors is in a dataplane.Snapshot.
	Suppressed [2][icmp.NumReasons]uint64
}

// Fragmented counts packets that came in and were to be fragmented.
type Fragmented struct {
	Packets   uint64 // of which all fragments were sent
	Fragments uint64
	Failed    uint64 // packets of which none was
}

// Messages returns the counts of ICMP messages about packets that came in by
// port. It may be called from any goroutine.
func (c *Control) Messages(port int) (m Messages) {
	n := &c.messages[port]
	for f := range 2 {
		for k := range m.Sent[f] {
			m.Sent[f][k] = n.sent[f][k].Load()
		}
		for r := range m.Suppressed[f] {
			m.Suppressed[f][r] = n.suppressed[f][r].Load()
		}
	}
	return m
}

// Fragmented returns the counts of packets that came in by port and were to be
// fragmented. It may be called from any goroutine.
func (c *Control) Fragmented(port int) Fragmented {
	n := &c.messages[port]
	return Fragmented{n.fragmented.Load(), n.fragments.Load(), n.unfragmented.Load()}
}

func newMessenger(router *dataplane.Forwarder, ports int) messenger {
	size := router.ControlFrame()
	return messenger{
		messages: make([]messages, ports),
		packet:   make([]byte, size),
		piece:    make([]byte, size),
	}
}

// packetOf returns the IP packet in a frame that passed its gate.
func packetOf(frame []byte) []byte {
	p := frame[wire.EthernetLen:]
	n := 0
	if p[0]>>4 == 4 {
		n = wire.IPv4(p).TotalLen()
	} else {
		n = wire.IPv6(p).TotalLen()
	}
	return p[:min(n, len(p))]
}

func source(p []byte) netip.Addr {
	if p[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(p[12:16]))
	}
	return netip.AddrFrom16([16]byte(p[8:24]))
}

func destination(p []byte) netip.Addr {
	if p[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(p[16:20]))
	}
	return netip.AddrFrom16([16]byte(p[24:40]))
}

// family returns the index of a packet's family in counts.
func family(p []byte) int { return int(p[0] >> 5 & 1) }

// fault tells the source of a packet that is due an error.
func (c *Control) fault(p dataplane.Punt) {
	ip := packetOf(p.Frame)
	e, ok := c.errorAbout(p.Kind, ip)
	if !ok {
		c.count(p.Port, ip, e.Kind, icmp.Silent)
		return
	}
	c.tell(p.Port, p.Frame, e, netip.Addr{})
}

// errorAbout returns the error due about a packet punted as kind. There is none
// when the routes have changed so that it would be forwarded now.
func (c *Control) errorAbout(kind dataplane.Kind, ip []byte) (icmp.Error, bool) {
	switch kind {
	case dataplane.PuntTTL:
		return icmp.Error{Kind: icmp.TimeExceeded}, true
	case dataplane.PuntBadOption:
		return icmp.OptionProblem(ip)
	}
	a := c.path(destination(ip), ip)
	switch {
	case a.Action == fib.NoRoute, a.Action == fib.Throw, a.Action == fib.Host:
		return icmp.Error{Kind: icmp.NetUnreachable}, true
	case a.Action == fib.Unreachable && ip[0]>>4 == 4:
		return icmp.Error{Kind: icmp.HostUnreachable}, true
	case a.Action == fib.Unreachable: // the code 3 of IPv6 is about a neighbor only
		return icmp.Error{Kind: icmp.NetUnreachable}, true
	case a.Action == fib.Reject:
		return icmp.Error{Kind: icmp.Prohibited}, true
	case kind == dataplane.PuntTooBig && a.MTU != 0 && len(ip) > int(a.MTU):
		return icmp.Error{Kind: icmp.TooBig, MTU: int(a.MTU)}, true
	}
	return icmp.Error{}, false
}

// answer answers a packet to the router itself, on a port without a host.
func (c *Control) answer(p dataplane.Punt) {
	ip := packetOf(p.Frame)
	e, why := icmp.Due(ip)
	own := c.fib.Lookup(destination(ip))
	if own.Action == fib.Local && c.spec.Ports[own.Port].Host && e.Kind != icmp.EchoReply {
		why = icmp.Silent // the host behind the other port may well listen
	}
	if e.Kind != icmp.EchoReply && c.spec.ICMP.Rate == 0 {
		why = icmp.Silent
	}
	src := destination(ip)
	if np := c.ports[own.Port]; slices.Contains(np.Anycast, src) && !np.Owns(src) {
		src = c.address(p.Port, source(ip)) // RFC 4443, 2.2 (b) and 4.2
	}
	switch {
	case why != icmp.OK:
		c.count(p.Port, ip, e.Kind, why)
	case !src.IsValid():
		c.count(p.Port, ip, e.Kind, icmp.NoAddress)
	case e.Kind == icmp.EchoReply:
		c.id++
		n, why := icmp.Reply(c.packet[headroom:], ip, src, c.id, today())
		if why == icmp.OK {
			why = c.reach(p.Port, p.Frame, n, c.way(p.Port, p.Frame))
		}
		c.count(p.Port, ip, e.Kind, why)
	case !c.due(p.Port, ip):
		c.count(p.Port, ip, e.Kind, icmp.Rate)
	default:
		c.tell(p.Port, p.Frame, e, src)
	}
}

// today returns the time since midnight UT in milliseconds (RFC 791, 3.1).
func today() uint32 {
	const day = 24 * time.Hour / time.Millisecond
	return uint32(time.Now().UnixMilli() % int64(day))
}

// tell sends e to the source of the packet in a frame as it came in by port, from
// the router's address src, or from the one that the configuration chooses.
func (c *Control) tell(port int, frame []byte, e icmp.Error, src netip.Addr) {
	ip := packetOf(frame)
	c.count(port, ip, e.Kind, c.tryTell(port, frame, e, src))
}

func (c *Control) tryTell(port int, frame []byte, e icmp.Error, src netip.Addr) icmp.Reason {
	ip := packetOf(frame)
	if why := e.Check(ip, wire.Ethernet(frame).Destination()&wire.Group != 0); why != icmp.OK {
		return why
	}
	if c.broadcast(destination(ip)) {
		return icmp.Multicast
	}
	if c.broadcast(source(ip)) {
		return icmp.BadSource
	}
	back := c.way(port, frame)
	if !src.IsValid() {
		from := port
		if c.spec.ICMP.Egress {
			from = int(back.Port)
		}
		if src = c.address(from, source(ip)); !src.IsValid() {
			return icmp.NoAddress
		}
	}
	c.id++
	return c.reach(port, frame, e.Build(c.packet[headroom:], ip, src, c.id), back)
}

// broadcast reports whether a is the broadcast address of a network of the router,
// or of one that only the system has.
func (c *Control) broadcast(a netip.Addr) bool {
	return a.Is4() && (c.fib.Lookup(a).Action == fib.Broadcast || c.spec.Broadcast != nil && c.spec.Broadcast(a))
}

// count counts a message about a packet of a port, or why it is not sent.
func (c *Control) count(port int, ip []byte, k icmp.Kind, why icmp.Reason) {
	n := &c.messages[port]
	if why == icmp.OK {
		n.sent[family(ip)][k].Add(1)
	} else {
		n.suppressed[family(ip)][why].Add(1)
	}
}

// path returns the adjacency that packets to dst follow which belong to the flow of
// ip, or answer it.
func (c *Control) path(dst netip.Addr, ip []byte) *fib.Adjacency {
	st := dataplane.State{FIB: c.fib, Seed: c.seed}
	return st.Path(dst, ip)
}

// way returns the adjacency back to the source of the packet in a frame that came
// in by port. A link-local source is on the link of that port, at the MAC address
// that the frame came from.
func (c *Control) way(port int, frame []byte) *fib.Adjacency {
	ip := packetOf(frame)
	src := source(ip)
	if !src.Is6() || !src.IsLinkLocalUnicast() {
		return c.path(src, ip)
	}
	a := &fib.Adjacency{Action: fib.Forward, Family: 6, Port: uint16(port), MTU: uint16(c.spec.Ports[port].MTU), HeadLen: wire.EthernetLen}
	wire.PutEthernet(a.Head[:], wire.Ethernet(frame).Source(), c.spec.Ports[port].MAC, wire.TypeIPv6)
	return a
}

// address returns the address of the router that a message to dst carries: one of
// port's on the network of dst, else the port's first, else, for a port without
// any, the router's lowest.
func (c *Control) address(port int, dst netip.Addr) (a netip.Addr) {
	if dst.Is6() && dst.IsLinkLocalUnicast() && !c.spec.Ports[port].Host {
		return ndp.LinkLocal(c.spec.Ports[port].MAC)
	}
	for _, p := range c.spec.Ports[port].Addrs {
		if usable := p.Addr().Is4() == dst.Is4() && !p.Addr().IsLinkLocalUnicast(); usable && (p.Contains(dst) || !a.IsValid()) {
			if a = p.Addr(); p.Contains(dst) {
				return a
			}
		}
	}
	if a.IsValid() {
		return a
	}
	for _, q := range c.spec.Ports {
		for _, p := range q.Addrs {
			if p.Addr().Is4() == dst.Is4() && !p.Addr().IsLinkLocalUnicast() && (!a.IsValid() || p.Addr().Less(a)) {
				a = p.Addr()
			}
		}
	}
	return a
}

// reach sends the packet of n bytes in c.packet by a, on behalf of a frame that
// came in by port.
func (c *Control) reach(port int, frame []byte, n int, a *fib.Adjacency) icmp.Reason {
	p := c.packet[headroom : headroom+n]
	switch {
	case a.Action == fib.Local || a.Action == fib.Broadcast:
		return icmp.BadSource
	case a.MTU == 0:
		return icmp.NoRoute
	case n <= int(a.MTU), unknown(a) && p[0]>>4 == 4: // which waits whole
		return c.transmit(port, a, c.packet[:headroom+n])
	case p[0]>>4 == 6:
		return icmp.TooLong
	}
	if _, ok := c.sendFragments(port, a, p); !ok {
		return icmp.Busy
	}
	return icmp.OK
}

// sendFragments sends the fragments of p by a and returns how many they are, or
// sends none.
func (c *Control) sendFragments(port int, a *fib.Adjacency, p wire.IPv4) (n int, ok bool) {
	mtu := min(int(a.MTU), len(c.piece)-headroom)
	if pieces(p, mtu) > c.router.Room(int(a.Port))-controlRoom {
		return 0, false
	}
	split(c.piece[headroom:], p, mtu, func(b []byte) bool {
		ok = c.transmit(port, a, c.piece[:headroom+len(b)]) == icmp.OK
		n++
		return ok
	})
	return n, ok
}

// transmit sends the packet behind headroom in b by a, on behalf of a frame that
// came in by port.
func (c *Control) transmit(port int, a *fib.Adjacency, b []byte) icmp.Reason {
	etherType := uint16(wire.TypeIPv4)
	if a.Family == 6 {
		etherType = wire.TypeIPv6
	}
	hop := hopOf(a, b[headroom:])
	switch {
	case unknown(a):
		// It waits as packets do that came in, and is forwarded then.
		wire.PutEthernet(b, c.spec.Ports[port].MAC, c.spec.Ports[port].MAC, etherType)
		raiseTTL(b[headroom:])
		c.unresolved(dataplane.Punt{Kind: dataplane.PuntNeighbor, Worker: c.worker, Port: port, Frame: b, Priority: c.priority, Neighbor: hop, Out: int(a.Port)})
		return icmp.OK
	case a.HeadLen == 0:
		return icmp.NoRoute
	case a.Action == fib.Verify:
		c.neighbors.Use(c.now(), neigh.Key{Port: a.Port, Addr: hop})
	}
	if !c.router.State().Ports[a.Port].Up {
		return icmp.NoRoute
	}
	wire.PutEthernet(b, wire.MACOf(a.Head[:]), wire.MACOf(a.Head[6:]), etherType)
	if !c.router.Inject(int(a.Port), b, c.priority) {
		return icmp.Busy
	}
	return icmp.OK
}

// unknown reports whether the neighbor of a has to be found first.
func unknown(a *fib.Adjacency) bool { return a.Action == fib.Glean || a.Action == fib.Resolve }

// hopOf returns the neighbor to which a leads the packet ip.
func hopOf(a *fib.Adjacency, ip []byte) netip.Addr {
	if hop := a.NeighborAddr(); hop.IsValid() {
		return hop
	}
	return destination(ip)
}

// raiseTTL adds to the TTL or hop limit of a packet of the router's own what
// forwarding takes.
func raiseTTL(p []byte) {
	if p[0]>>4 == 6 {
		p[7]++
		return
	}
	p[8]++
	p[10], p[11] = 0, 0
	binary.BigEndian.PutUint16(p[10:], wire.Checksum(p[:wire.IPv4(p).HeaderLen()]))
}
