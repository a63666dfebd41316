// Package explain says what would become of a frame, and why.
//
// It has no rules of its own: the frame is given to a router in memory that has
// the configuration, and what that router did is told in the order in which a
// frame is looked at. Only the words are this package's, and which of the checks
// each drop reason belongs to.
package explain

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"nmfwd/config"
	"nmfwd/control"
	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
	"nmfwd/fib"
	"nmfwd/router"
	"nmfwd/wire"
)

// A Device is what the system says of a port.
type Device struct {
	MAC net.HardwareAddr
	MTU int // largest IP packet in bytes
}

// An Explainer is a router in memory with one configuration.
type Explainer struct {
	*router.Router
	cfg    *config.Config
	ports  []*memport.Port
	router *dataplane.Forwarder
	now    time.Duration
	kernel []fib.Route
}

// New returns an Explainer for cfg, resolved. Devices says by name what is known
// of ports; what is not known there or in cfg is made up, and an MTU is 1500.
// Kernel are the system's routes where they are followed, by the numbers that
// router.Numbers gives with the devices in cfg's order.
func New(cfg *config.Config, devices map[string]Device, kernel []fib.Route) (*Explainer, error) {
	e := &Explainer{cfg: cfg, now: time.Hour, kernel: kernel} // buckets are full by then
	set := func(p *config.Port, c *memport.Config) {
		d := devices[p.Name]
		c.MTU, c.RXSlots, c.TXSlots = max(p.MTU, d.MTU), 64, 256
		if c.MAC == nil {
			c.MAC = d.MAC
		}
	}
	own := *cfg // which keeps its routes
	m, err := router.NewMemory(&own, router.Options{Kernel: func() (control.RouteFeed, []fib.Route) { return nil, kernel }}, set)
	if err != nil {
		return nil, err
	}
	e.Router, e.ports, e.router = m.Router, m.Ports, m.Forwarder
	e.run()
	e.sent() // what the router says at its start
	return e, nil
}

// name returns the name of a port by its number.
func (e *Explainer) name(port uint16) string { return e.Names()[port] }

// run lets the router do all that there is to do.
func (e *Explainer) run() { e.Drain(e.now, router.OnlyPackets) }

// sent takes the frames that left by each port.
func (e *Explainer) sent() []Sent {
	var out []Sent
	for _, p := range e.ports {
		for _, f := range p.Transmit(0) {
			out = append(out, Sent{p.Name, f})
		}
		p.ToHost()
	}
	return out
}

// A Report says what became of a frame.
type Report struct {
	Verdict string // the counter that moved, as metrics call it without nmfwd_ and _packets_total
	Checks  []Check
	End     string // what became of the frame and why, in a sentence
	Sent    []Sent // what left: the frame, or answers of the router
}

// A Check is one thing that was looked at, and what was found.
type Check struct{ Name, Found string }

// A Sent is a frame that left.
type Sent struct {
	Port  string
	Frame []byte
}

// Explain gives a frame to a port and tells what became of it. Frames that came
// before have the effects that they have on a router.
func (e *Explainer) Explain(port string, frame []byte) (*Report, error) {
	at := slices.IndexFunc(e.ports, func(p *memport.Port) bool { return p.Name == port })
	if at < 0 {
		return nil, fmt.Errorf("the configuration has no port %s", port)
	}
	var before, after dataplane.Snapshot
	e.router.Snapshot(&before)
	if !e.ports[at].Deliver(0, frame) {
		return nil, fmt.Errorf("port %s: a frame of %d bytes does not fit its buffers", port, len(frame))
	}
	e.run()
	e.router.Snapshot(&after)
	e.now += time.Second
	o := difference(before.Ports[at].RX[0], after.Ports[at].RX[0])
	l := look{e: e, port: at, frame: frame, state: &e.router.State().Ports[at]}
	l.parse()
	r := &Report{Verdict: o.verdict(), Sent: e.sent()}
	end := l.end(o)
	for c := length; c <= end && c <= neighbor; c++ {
		if found := l.found(c); found != "" {
			r.Checks = append(r.Checks, Check{checkNames[c], found})
		}
	}
	r.End = l.sentence(o, r.Sent)
	return r, nil
}

// An outcome is what one packet ended in.
type outcome struct {
	forwarded, toHost, punted bool
	kind                      dataplane.Kind
	reason                    dataplane.Reason // 0 where it was not dropped
	family                    string
}

// difference returns what the one packet between two snapshots ended in; the
// zero outcome if it waits for something.
func difference(a, b dataplane.RXSnapshot) (o outcome) {
	switch {
	case b.Forwarded4 != a.Forwarded4:
		o.forwarded, o.family = true, "ipv4"
	case b.Forwarded6 != a.Forwarded6:
		o.forwarded, o.family = true, "ipv6"
	case b.ToHost != a.ToHost:
		o.toHost = true
	}
	for k := range b.Punted {
		if b.Punted[k] != a.Punted[k] {
			o.punted, o.kind = true, dataplane.Kind(k)
		}
	}
	for r := range b.Dropped {
		if b.Dropped[r] != a.Dropped[r] {
			o.reason = dataplane.Reason(r)
		}
	}
	return o
}

func (o outcome) verdict() string {
	switch {
	case o.forwarded:
		return fmt.Sprintf("forwarded{family=%q}", o.family)
	case o.toHost:
		return "to_host"
	case o.punted:
		return fmt.Sprintf("punted{kind=%q}", o.kind)
	case o.reason != 0:
		return fmt.Sprintf("dropped{reason=%q}", o.reason)
	}
	return "parked"
}

// WriteTo writes the report as text.
func (r *Report) WriteTo(out io.Writer) (int64, error) {
	var b strings.Builder
	for _, c := range r.Checks {
		fmt.Fprintf(&b, "%-12s%s\n", c.Name, c.Found)
	}
	fmt.Fprintf(&b, "%-12s%s\n", "verdict", r.End)
	for _, s := range r.Sent {
		fmt.Fprintf(&b, "%-12sby %s, %d bytes\n", "sent", s.Port, len(s.Frame))
		for f := s.Frame; len(f) > 0; f = f[min(len(f), 32):] {
			fmt.Fprintf(&b, "%-12s%x\n", "", f[:min(len(f), 32)])
		}
	}
	n, err := io.WriteString(out, b.String())
	return int64(n), err
}

// The checks, in the order in which a frame is looked at.
type check int

const (
	length check = iota
	mac
	size
	etherType
	header
	options
	addresses
	reverse
	route
	path
	ttl
	mtu
	neighbor
	egress // the last: nothing is left to check
)

var checkNames = [...]string{"frame", "ethernet", "size", "type", "header", "options", "addresses", "urpf", "route", "path", "ttl", "mtu", "neighbor"}

// A look is a frame as this package reads it, to tell of it.
type look struct {
	e     *Explainer
	port  int
	frame []byte
	state *dataplane.PortState
	head  int    // length of the Ethernet header, with a tag that the router took off
	ip    []byte // the packet, nil where there is no whole fixed header
	four  bool
	src   netip.Addr
	dst   netip.Addr
	adj   *fib.Adjacency // of dst
}

func (l *look) parse() {
	if len(l.frame) < wire.EthernetLen {
		return
	}
	eth := wire.Ethernet(l.frame)
	t := eth.Type()
	l.head = wire.EthernetLen
	if t == wire.TypeVLAN && len(l.frame) >= wire.EthernetLen+wire.VLANLen {
		id, vlans := eth.TCI()&0xfff, l.state.VLANs
		if vlans != nil && vlans[id] != 0 {
			l.state = &l.e.router.State().Ports[vlans[id]]
		}
		if id == 0 || vlans != nil && vlans[id] != 0 {
			t, l.head = eth.TaggedType(), wire.EthernetLen+wire.VLANLen
		}
	}
	b := l.frame[l.head:]
	switch t {
	case wire.TypeIPv4:
		if len(b) < wire.IPv4Len {
			return
		}
		l.four = true
		l.src, l.dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	case wire.TypeIPv6:
		if len(b) < wire.IPv6Len {
			return
		}
		l.src, l.dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	default:
		return
	}
	l.ip = b
	l.adj = l.e.router.State().Path(l.dst, b)
}

// group reports whether the frame is a link-layer multicast or broadcast.
func (l *look) group() bool { return len(l.frame) > 0 && l.frame[0]&1 != 0 }

// forUs returns the check that found out that a frame is for the router or its
// host.
func (l *look) forUs() check {
	switch {
	case l.group():
		return mac
	case l.ip == nil:
		return etherType
	case l.dst.IsMulticast(), l.dst.IsLinkLocalUnicast() && !l.four, l.dst == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return addresses
	}
	return route
}

// end returns the check that the outcome comes from.
func (l *look) end(o outcome) check {
	switch {
	case o.forwarded:
		return egress
	case o.toHost:
		return l.forUs()
	case o.punted:
		switch c := kinds[o.kind].at; {
		case c == anyCheck:
			return l.forUs()
		case c == route && l.adj != nil && (l.adj.Action == fib.Glean || l.adj.Action == fib.Resolve):
			return neighbor
		default:
			return c
		}
	case o.reason == 0:
		return neighbor // it waits for it
	}
	switch c := reasons[o.reason].at; {
	case o.reason == dataplane.DropTruncated && len(l.frame) < wire.EthernetLen:
		return length
	case o.reason == dataplane.DropMulticast && l.group():
		return mac
	case o.reason == dataplane.DropMartian && l.adj != nil && l.adj.Action == fib.Broadcast && !l.martian():
		return route
	case c == anyCheck:
		return l.forUs()
	default:
		return c
	}
}

// martian reports whether a packet is a martian whatever the route to its
// destination is.
func (l *look) martian() bool {
	bad := func(a netip.Addr) bool {
		if !a.Is4() {
			return a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.Is4In6()
		}
		b := a.As4()[0]
		return b == 0 || b == 127 || b >= 224
	}
	return bad(l.src) || bad(l.dst) || l.ours() != ""
}

// ours says what of the router's own an IPv4 source is, if it is.
func (l *look) ours() string {
	if !l.four {
		return ""
	}
	switch l.e.router.State().FIB.Lookup(l.src).Action {
	case fib.Local:
		return ", the source is an address of the router"
	case fib.Broadcast:
		return ", the source is a broadcast of a connected network"
	}
	return ""
}

// found says what a check found.
func (l *look) found(c check) string {
	switch c {
	case length:
		return fmt.Sprintf("%d bytes received by %s", len(l.frame), l.e.ports[l.port].Name)
	case mac:
		return l.foundMAC()
	case size:
		return fmt.Sprintf("%d bytes, at most %d", len(l.frame), l.state.MTU+wire.EthernetLen+wire.VLANLen)
	case etherType:
		return l.foundType()
	case header:
		return l.foundHeader()
	case options:
		return l.foundOptions()
	case addresses:
		return fmt.Sprintf("%v > %v%s", l.src, l.dst, l.ours())
	case reverse:
		return l.foundReverse()
	case route:
		return l.foundRoute()
	case path:
		return l.foundPath()
	case ttl:
		name, n := "hop limit", l.ip[7]
		if l.four {
			name, n = "TTL", l.ip[8]
		}
		return fmt.Sprintf("%s %d", name, n)
	case mtu:
		return fmt.Sprintf("packet of %d bytes, at most %d by %s", l.packetLen(), l.adj.MTU, l.e.name(l.adj.Port))
	case neighbor:
		return l.foundNeighbor()
	}
	return ""
}

func (l *look) packetLen() int {
	if l.four {
		return wire.IPv4(l.ip).TotalLen()
	}
	return wire.IPv6(l.ip).TotalLen()
}

func (l *look) foundMAC() string {
	dst := wire.MACOf(l.frame)
	s := fmt.Sprintf("from %v to %v", net.HardwareAddr(l.frame[6:12]), net.HardwareAddr(l.frame[:6]))
	switch {
	case dst == wire.Broadcast:
		return s + ", all stations"
	case dst&wire.Group != 0:
		return s + ", a group"
	case dst == l.state.MAC:
		return s + ", the port's address"
	case slices.Contains(l.state.MACs, dst):
		return s + ", a further address of the port"
	}
	return fmt.Sprintf("%s, another station: the port has %v", s, hardware(l.state.MAC))
}

func hardware(m wire.MAC) net.HardwareAddr {
	b := m.Bytes()
	return b[:]
}

func (l *look) foundType() string {
	eth := wire.Ethernet(l.frame)
	if l.head > wire.EthernetLen {
		tci := eth.TCI()
		return fmt.Sprintf("%04x behind a tag of VLAN %d with priority %d, so of %s", eth.TaggedType(), tci&0xfff, tci>>13, l.e.name(l.state.Number))
	}
	t := eth.Type()
	name := map[uint16]string{
		wire.TypeIPv4: ", IPv4", wire.TypeIPv6: ", IPv6", wire.TypeARP: ", ARP",
		wire.TypeVLAN: ", an 802.1Q tag", wire.TypeQinQ: ", an 802.1ad tag",
	}[t]
	return fmt.Sprintf("%04x%s", t, name)
}

func (l *look) foundHeader() string {
	n := len(l.frame) - l.head
	switch {
	case l.ip == nil:
		return fmt.Sprintf("%d bytes, too few for a header", n)
	case !l.four:
		return fmt.Sprintf("version %d, payload of %d bytes where %d are, next header %d",
			l.ip[0]>>4, wire.IPv6(l.ip).TotalLen()-wire.IPv6Len, n-wire.IPv6Len, l.ip[6])
	}
	p := wire.IPv4(l.ip)
	s := fmt.Sprintf("version %d, header of %d bytes, total length %d where %d are", l.ip[0]>>4, p.HeaderLen(), p.TotalLen(), n)
	if h := p.HeaderLen(); h >= wire.IPv4Len && h <= len(l.ip) {
		have := uint16(l.ip[10])<<8 | uint16(l.ip[11])
		whole := slices.Clone(l.ip[:h])
		whole[10], whole[11] = 0, 0
		if want := wire.Checksum(whole); want != have {
			return fmt.Sprintf("%s, checksum %04x where %04x is right", s, have, want)
		}
		s += fmt.Sprintf(", checksum %04x is right", have)
	}
	return fmt.Sprintf("%s, protocol %d", s, p.Protocol())
}

func (l *look) foundOptions() string {
	if l.four {
		if o := wire.IPv4(l.ip).Options(); len(o) > 0 {
			return fmt.Sprintf("%x", o)
		}
		return "none"
	}
	if l.ip[6] != wire.ProtoHopByHop {
		return "no hop-by-hop options"
	}
	b := l.ip[wire.IPv6Len:]
	if len(b) >= 2 {
		b = b[:min(len(b), (int(b[1])+1)*8)]
	}
	return fmt.Sprintf("hop-by-hop header %x", b)
}

// A found route is one of the configuration's.
type foundRoute struct {
	bits int
	text string
	kind fib.Kind
}

// lookup returns the route that packets to dst follow: the longest of those of
// networks and those of the file, as RIB has them.
func (l *look) lookup() foundRoute {
	best := foundRoute{-1, "none", fib.NoRoute}
	better := func(p netip.Prefix, kind fib.Kind, text func() string) {
		if p.Bits() > best.bits && p.Contains(l.dst) {
			best = foundRoute{p.Bits(), text(), kind}
		}
	}
	for _, p := range l.e.cfg.Ports { // these come before those of the file
		for _, a := range p.Addrs {
			for _, r := range fib.ConnectedRoutes(0, a) {
				better(r.Prefix, r.Kind, func() string {
					what := map[fib.Kind]string{fib.OnLink: "connected on", fib.Local: "an address of", fib.Broadcast: "broadcast of"}[r.Kind]
					return fmt.Sprintf("%v, %s %s, %v", r.Prefix, what, p.Name, p.Pos)
				})
			}
		}
	}
	for i := range l.e.cfg.Routes {
		r := &l.e.cfg.Routes[i]
		kind := [...]fib.Kind{config.Via: fib.Via, config.OnLink: fib.OnLink, config.Blackhole: fib.Blackhole, config.Reject: fib.Reject}[r.Kind]
		better(r.Prefix, kind, func() string {
			s := r.Prefix.String()
			switch r.Kind {
			case config.Via:
				for _, h := range r.Hops {
					s += fmt.Sprintf(" via %v on %s", h.Gateway.WithZone(""), l.e.cfg.Ports[h.Port].Name)
				}
			case config.OnLink:
				s += " on " + l.e.cfg.Ports[r.Port].Name
			default:
				s += " " + kind.String()
			}
			return fmt.Sprintf("%s, static, %v", s, r.Pos)
		})
	}
	for i := range l.e.kernel {
		r := &l.e.kernel[i]
		better(r.Prefix, r.Kind, func() string { return l.e.describe(r) + ", of the system" })
	}
	return best
}

// describe returns a route of the system on one line.
func (e *Explainer) describe(r *fib.Route) string {
	s := r.Prefix.String()
	switch r.Kind {
	case fib.Via:
		hops := r.Hops
		if hops == nil {
			hops = []fib.Hop{{Gateway: r.Gateway, Port: r.Port}}
		}
		for _, h := range hops {
			s += fmt.Sprintf(" via %v on %s", h.Gateway, e.name(h.Port))
		}
		return s
	case fib.OnLink:
		return s + " on " + e.name(r.Port)
	case fib.Host:
		return s + " by no port: the host's to follow"
	}
	return s + " " + r.Kind.String()
}

func (l *look) foundRoute() string { return l.lookup().text }

// foundReverse says where the route to the source leads, where the port asks.
func (l *look) foundReverse() string {
	mode := [...]string{dataplane.URPFOff: "", dataplane.URPFLoose: "loose", dataplane.URPFStrict: "strict"}[l.state.URPF]
	if mode == "" || l.src.IsLinkLocalUnicast() {
		return ""
	}
	f := l.e.router.State().FIB
	a := f.Lookup(l.src)
	s := fmt.Sprintf("%s: packets to %v ", mode, l.src)
	var ports []string
	for n := range l.e.cfg.Ports {
		if f.Leaves(a, uint16(n)) {
			ports = append(ports, l.e.name(uint16(n)))
		}
	}
	if ports == nil {
		return s + fmt.Sprintf("leave by no port (%v)", a.Action)
	}
	s += "leave by " + strings.Join(ports, ", ")
	if a.Default {
		s += ", as the default route says"
	}
	return s
}

// foundPath says which gateway of several the flow of the packet goes by, and how
// many buckets each has.
func (l *look) foundPath() string {
	st := l.e.router.State()
	a := st.FIB.Lookup(l.dst)
	if a.Action != fib.Group {
		return ""
	}
	buckets := st.FIB.BucketsOf(a)
	hash := st.Flow(l.ip)
	s := fmt.Sprintf("flow hash %016x, bucket %d of %d: %v on %s", hash, hash%fib.Buckets, fib.Buckets, l.nextHop(), l.e.name(l.adj.Port))
	for _, m := range st.FIB.Groups[a.Group] {
		n := 0
		for _, adj := range buckets {
			if adj == m.Adj {
				n++
			}
		}
		of := &st.FIB.Adj[m.Adj]
		s += fmt.Sprintf("; %v on %s ", of.NeighborAddr(), l.e.name(m.Port))
		if n > 0 {
			s += fmt.Sprintf("has %d", n)
		} else {
			s += "is out"
		}
		if of.HeadLen == 0 {
			s += ", not known"
		}
	}
	return s
}

// nextHop returns the neighbor that a packet goes to.
func (l *look) nextHop() netip.Addr {
	if a := l.adj.NeighborAddr(); a.IsValid() {
		return a
	}
	return l.dst
}

func (l *look) foundNeighbor() string {
	hop := l.nextHop()
	on := l.e.name(l.adj.Port)
	if l.adj.HeadLen == 0 {
		return fmt.Sprintf("%v on %s is not known", hop, on)
	}
	s := fmt.Sprintf("%v on %s is at %v", hop, on, net.HardwareAddr(l.adj.Head[:6]))
	for _, n := range l.e.cfg.Neighbors {
		if n.Addr.WithZone("") == hop && l.e.cfg.Ports[n.Port].Name == on {
			return fmt.Sprintf("%s, static, %v", s, n.Pos)
		}
	}
	return s
}

// sentence tells the end.
func (l *look) sentence(o outcome, sent []Sent) string {
	in := l.e.name(l.state.Number)
	switch {
	case o.forwarded && l.adj != nil:
		s := "forwarded by " + l.e.name(l.adj.Port)
		if l.adj.Port == l.state.Number {
			s += ", where it came from"
		}
		return s
	case o.toHost:
		return fmt.Sprintf("given to the host stack of %s: %s", in, l.why())
	case o.punted:
		s := fmt.Sprintf("handled by nmfwd itself (%v): %s", o.kind, kinds[o.kind].text)
		if len(sent) == 0 {
			s += "; nothing is sent"
		}
		return s
	case o.reason != 0:
		return fmt.Sprintf("dropped (%v): %s", o.reason, reasons[o.reason].text)
	}
	return "waits until the neighbor answers"
}

// why says why a frame is the host's.
func (l *look) why() string {
	switch l.forUs() {
	case mac:
		return "multicast and broadcast are its"
	case etherType:
		return "only IPv4 and IPv6 are forwarded"
	case addresses:
		return "the destination is for this link only"
	}
	switch l.adj.Action {
	case fib.Broadcast:
		return "a broadcast of its network"
	case fib.Host:
		return "no port leads there, or it is an address of its own"
	}
	return "an address of the router"
}
