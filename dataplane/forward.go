package dataplane

import (
	"nmfwd/fib"
	"nmfwd/wire"
)

// A verdict says what becomes of a packet: forward, to the host, punt by Kind,
// or drop for a Reason.
type verdict uint8

const (
	forward4 verdict = 0x80
	forward6 verdict = 0x81 // forward4 + 1
	toHost   verdict = 0x82
	punt     verdict = 0x40 // + Kind
)

// Flags of slots between workers, beyond More.
const (
	flagIPv6     SlotFlags = 1 << 8
	flagFromHost SlotFlags = 1 << 9
)

// special4 and special6 are not 0 for the first byte of an address that may lie
// in a range that is not simply looked up. Several are asked at once by an or.
var (
	special4 = firstBytes(func(b int) bool { return b == 0 || b == 127 || b == 169 || b >= 224 })
	special6 = firstBytes(func(b int) bool { return b == 0x00 || b >= 0xfe })
)

func firstBytes(in func(b int) bool) (t [256]uint8) {
	for b := range t {
		if in(b) {
			t[b] = 1
		}
	}
	return t
}

// faults maps what a gate of package wire found to a drop.
var faults = [...]verdict{
	wire.Truncated:   verdict(DropTruncated),
	wire.BadHeader:   verdict(DropBadHeader),
	wire.BadChecksum: verdict(DropBadChecksum),
}

// A decision says what becomes of a frame.
type decision struct {
	verdict verdict
	head    int            // length of the Ethernet header, with its tag if it names port
	port    *PortState     // that the frame came in by: the queue's, or a VLAN on it
	adj     *fib.Adjacency // that it is to be forwarded by, or would be if its neighbor were known
}

// decide says what becomes of a frame that came in by port and starts in p,
// with n bytes in all: p is the whole frame, or its first slot. Nothing is
// written.
func (st *State) decide(port *PortState, p []byte, n int) decision {
	d := decision{head: wire.EthernetLen, port: port}
	if len(p) < wire.EthernetLen {
		d.verdict = verdict(DropTruncated)
		return d
	}
	eth := wire.Ethernet(p)
	t := eth.Type()
	if t == wire.TypeVLAN && len(p) >= wire.EthernetLen+wire.VLANLen {
		if v := st.vlan(port, eth.TCI()); v != nil {
			d.port, d.head = v, wire.EthernetLen+wire.VLANLen
			t = eth.TaggedType()
		}
	}
	b, n := p[d.head:], n-d.head
	switch dst := eth.Destination(); {
	case dst != d.port.MAC && !d.port.ours(dst):
		d.verdict = d.port.notOurs(t, b, dst)
	case n > d.port.MTU+wire.EthernetLen+wire.VLANLen-d.head:
		d.verdict = verdict(DropOversize)
	case t == wire.TypeIPv4:
		d.adj, d.verdict = st.decide4(d.port, b, n)
	case t == wire.TypeIPv6:
		d.adj, d.verdict = st.decide6(d.port, b, n)
	default:
		d.verdict = d.port.otherType(t)
	}
	return d
}

// vlan returns the port that a tag on a frame that came in by port names, or
// nil. A tag of VLAN 0 says a priority only (IEEE 802.1Q, 6.9).
func (st *State) vlan(port *PortState, tci uint16) *PortState {
	id := tci & 0xfff
	if id == 0 {
		return port
	}
	if port.VLANs == nil || port.VLANs[id] == 0 {
		return nil
	}
	return &st.Ports[port.VLANs[id]]
}

// decide4 is decide for an IPv4 packet.
func (st *State) decide4(port *PortState, b []byte, n int) (*fib.Adjacency, verdict) {
	if f := wire.CheckIPv4(b, n); f != wire.OK {
		return nil, faults[f]
	}
	ip := wire.IPv4(b)
	if ip.TotalLen() > port.MTU {
		return nil, verdict(DropOversize)
	}
	filtered := false
	if b[0] != 0x45 {
		var v verdict
		if v, filtered = port.options4(ip); v != 0 {
			return nil, v
		}
	}
	src, dst := ip.Source(), ip.Destination()
	linkLocal := false
	if special4[src>>24]|special4[dst>>24] != 0 {
		var v verdict
		if v, linkLocal = port.check4(src, dst); v != 0 {
			return nil, v
		}
	}
	if st.FIB.Sources.May(src) || port.URPF != URPFOff {
		switch back := &st.FIB.Adj[st.FIB.V4.Lookup(src)]; {
		case back.Action == fib.Local, back.Action == fib.Broadcast:
			return nil, verdict(DropMartian)
		case port.URPF != URPFOff && src>>16 != 0xa9fe && !st.reverse(port, back):
			return nil, verdict(DropURPF)
		}
	}
	a := &st.FIB.Adj[st.FIB.V4.Lookup(dst)]
	if filtered && !st.IPOptions && a.Action != fib.Local && a.Action != fib.Broadcast {
		return nil, verdict(DropIPOption)
	}
	if a.Action == fib.Group {
		a = st.FIB.Path(a, st.flow4(ip))
	}
	if a.HeadLen == 0 || linkLocal {
		return a, port.end(a, linkLocal, ip.TTL(), ip.TotalLen())
	}
	if ip.TTL() <= 1 {
		return nil, verdict(DropTTL)
	}
	if ip.TotalLen() > int(a.MTU) {
		return nil, verdict(DropTooBig)
	}
	return a, forward4
}

// decide6 is decide for an IPv6 packet.
func (st *State) decide6(port *PortState, b []byte, n int) (*fib.Adjacency, verdict) {
	if f := wire.CheckIPv6(b, n); f != wire.OK {
		return nil, faults[f]
	}
	ip := wire.IPv6(b)
	if ip.TotalLen() > port.MTU {
		return nil, verdict(DropOversize)
	}
	if ip.NextHeader() == wire.ProtoHopByHop {
		if v := port.hopByHop(ip); v != 0 {
			return nil, v
		}
	}
	sh, sl := ip.Source()
	dh, dl := ip.Destination()
	linkLocal := false
	if special6[sh>>56]|special6[dh>>56] != 0 {
		var v verdict
		if v, linkLocal = port.check6(ip, sh, sl, dh, dl); v != 0 {
			return nil, v
		}
	}
	if port.URPF != URPFOff && sh>>54 != 0xfe80>>6 && !st.reverse(port, &st.FIB.Adj[st.FIB.V6.Lookup(sh, sl)]) {
		return nil, verdict(DropURPF)
	}
	a := &st.FIB.Adj[st.FIB.V6.Lookup(dh, dl)]
	if a.Action == fib.Group {
		a = st.FIB.Path(a, st.flow6(ip))
	}
	if a.HeadLen == 0 || linkLocal {
		if a.Action == fib.Local && !port.Host && isND(ip) {
			return nil, punt + verdict(PuntND)
		}
		return a, port.end(a, linkLocal, ip.HopLimit(), ip.TotalLen())
	}
	if ip.HopLimit() <= 1 {
		return nil, verdict(DropTTL)
	}
	if ip.TotalLen() > int(a.MTU) {
		return nil, verdict(DropTooBig)
	}
	return a, forward6
}

// reverse reports whether a packet may come in by port, to whose source packets
// follow a. It is asked for what is to be forwarded and for what is for the
// router's own addresses, but not for link-local sources, which mean nothing beyond
// the link, and not where none could be told: DHCP and duplicate address detection
// have no source yet, and multicast and broadcast are the host's before.
func (st *State) reverse(port *PortState, a *fib.Adjacency) bool {
	if port.URPF == URPFStrict {
		return st.FIB.Leaves(a, port.Number)
	}
	switch a.Action {
	case fib.NoRoute, fib.Local, fib.Broadcast, fib.Blackhole, fib.Reject, fib.Unreachable, fib.Throw:
		return false
	}
	return !a.Default
}

// end says what becomes of a valid packet whose route does not forward it, or
// whose source is link-local: such a packet may come to the router itself, but
// no further.
func (p *PortState) end(a *fib.Adjacency, linkLocal bool, ttl uint8, n int) verdict {
	switch {
	case a.Action == fib.Local:
		return p.local()
	case a.Action == fib.Host:
		return p.hostRoute()
	case linkLocal:
		return verdict(DropLinkLocal)
	case a.Action == fib.Broadcast:
		if p.Host && a.Port == p.Number {
			return toHost
		}
		return verdict(DropMartian)
	case a.Action == fib.NoRoute, a.Action == fib.Throw:
		return verdict(DropNoRoute)
	case a.Action == fib.Blackhole:
		return verdict(DropBlackhole)
	case a.Action == fib.Reject, a.Action == fib.Unreachable:
		return verdict(DropReject)
	case ttl <= 1:
		return verdict(DropTTL)
	case n > int(a.MTU):
		return verdict(DropTooBig)
	}
	return verdict(DropNoNeighbor)
}

// local is the verdict on a packet for the router itself.
func (p *PortState) local() verdict {
	if p.Host {
		return toHost
	}
	return punt + verdict(PuntLocal)
}

// hostRoute is the verdict on a packet whose route the router's host follows.
func (p *PortState) hostRoute() verdict {
	if p.Host {
		return toHost
	}
	return verdict(DropHostRoute)
}

// notOurs is the verdict on a frame of type t with payload b whose destination
// is no address of ours.
func (p *PortState) notOurs(t uint16, b []byte, dst wire.MAC) verdict {
	if dst&wire.Group == 0 {
		return verdict(DropNotOurMAC)
	}
	if p.Host {
		return toHost
	}
	switch t {
	case wire.TypeIPv4:
		if f := wire.CheckIPv4(b, len(b)); f != wire.OK {
			return faults[f]
		}
		if wire.IPv4(b).Destination()>>28 == 0xe {
			return verdict(DropMulticast)
		}
		return verdict(DropL2Broadcast)
	case wire.TypeIPv6:
		if f := wire.CheckIPv6(b, len(b)); f != wire.OK {
			return faults[f]
		}
		ip := wire.IPv6(b)
		if ip.NextHeader() == wire.ProtoHopByHop {
			if v := p.hopByHop(ip); v != 0 {
				return v
			}
		}
		if h, _ := ip.Destination(); h>>56 != 0xff {
			return verdict(DropL2Broadcast)
		}
		if isND(ip) {
			return punt + verdict(PuntND)
		}
		return verdict(DropMulticast)
	}
	return p.otherType(t)
}

// otherType is the verdict on a frame that is neither IPv4 nor IPv6.
func (p *PortState) otherType(t uint16) verdict {
	switch {
	case p.Host:
		return toHost
	case t == wire.TypeARP:
		return punt + verdict(PuntARP)
	case t == wire.TypeVLAN || t == wire.TypeQinQ:
		return verdict(DropVLANUnknown)
	}
	return verdict(DropEtherType)
}

// options4 looks at the options of an IPv4 packet; 0 means go on, and filtered
// that the packet had better not be forwarded. Options that ask nothing of this
// router travel unchanged. So does router alert where a host is: it has what is for
// its own addresses and for groups, and what it forwarded itself would pass by this
// router's routes and checks (RFC 6398, 5).
func (p *PortState) options4(ip wire.IPv4) (v verdict, filtered bool) {
	o := wire.ScanOptions(ip.Options())
	switch {
	case o&wire.BadOption != 0:
		return verdict(DropBadOptions), false
	case o&wire.SourceRoute != 0:
		return verdict(DropSourceRoute), false
	case o&wire.RouterAlert != 0 && !p.Host:
		return verdict(DropRouterAlert), false
	}
	return 0, o&wire.Filtered != 0
}

// hopByHop is options4 for the hop-by-hop options of an IPv6 packet.
func (p *PortState) hopByHop(ip wire.IPv6) verdict {
	o := wire.ScanHopByHop(ip[wire.IPv6Len:min(ip.TotalLen(), len(ip))])
	switch {
	case o&wire.BadOption != 0:
		return verdict(DropBadExt)
	case o&wire.RouterAlert != 0 && !p.Host:
		return verdict(DropRouterAlert)
	}
	return 0
}

// check4 looks at addresses of which one may be special (RFC 6890; RFC 1812,
// 5.3.7). It returns 0 when the packet may be looked up, and then whether an
// address is link-local (RFC 3927, 7).
func (p *PortState) check4(src, dst uint32) (v verdict, linkLocal bool) {
	const limited = 0xffffffff
	switch {
	case dst>>28 == 0xe:
		if p.Host {
			return toHost, false
		}
		return verdict(DropMulticast), false
	case dst == limited && p.Host:
		return toHost, false
	case martian4(dst), martian4(src), src>>28 == 0xe:
		return verdict(DropMartian), false
	}
	return 0, src>>16 == 0xa9fe || dst>>16 == 0xa9fe
}

// martian4 holds 0/8, 127/8 and 240/4 with the limited broadcast address.
func martian4(a uint32) bool { return a>>24 == 0 || a>>24 == 127 || a>>28 == 0xf }

// check6 is check4 for IPv6 (RFC 4291, 2.4, 2.5.6).
func (p *PortState) check6(ip wire.IPv6, sh, sl, dh, dl uint64) (v verdict, linkLocal bool) {
	switch {
	case dh>>56 == 0xff:
		if p.Host {
			return toHost, false
		}
		if isND(ip) {
			return punt + verdict(PuntND), false
		}
		return verdict(DropMulticast), false
	case martian6(dh, dl), martian6(sh, sl), sh>>56 == 0xff:
		return verdict(DropMartian), false
	case dh>>54 == 0xfe80>>6:
		switch {
		case p.Host:
			return toHost, false
		case dh != p.LinkLocal[0] || dl != p.LinkLocal[1]:
			return verdict(DropLinkLocal), false
		case isND(ip):
			return punt + verdict(PuntND), false
		}
		return punt + verdict(PuntLocal), false
	}
	return 0, sh>>54 == 0xfe80>>6
}

// martian6 holds ::, ::1 and ::ffff:0:0/96.
func martian6(hi, lo uint64) bool { return hi == 0 && (lo <= 1 || lo>>32 == 0xffff) }

// isND reports whether a packet is a Neighbor Discovery message (RFC 4861, 4).
func isND(ip wire.IPv6) bool {
	return ip.NextHeader() == wire.ProtoICMPv6 && len(ip) > wire.IPv6Len &&
		ip[wire.IPv6Len] >= 133 && ip[wire.IPv6Len] <= 137
}
