// Package ndp reads, answers and writes Neighbor Solicitations and Neighbor
// Advertisements over Ethernet (RFC 4861, RFC 4862, RFC 6980).
//
// It keeps nothing: [Handle] looks at one frame, and whoever owns the neighbor
// table calls it. It answers for addresses of the router only, never for
// others (no proxy).
package ndp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"nmfwd/neigh"
	"nmfwd/wire"
)

// A Type is the ICMPv6 type of a message (RFC 4861, 4).
type Type uint8

// The types of Neighbor Discovery.
const (
	RouterSolicitation    Type = 133
	RouterAdvertisement   Type = 134
	NeighborSolicitation  Type = 135
	NeighborAdvertisement Type = 136
	Redirect              Type = 137
)

var typeNames = [...]string{
	"router solicitation", "router advertisement", "neighbor solicitation",
	"neighbor advertisement", "redirect",
}

// String returns the name of t.
func (t Type) String() string {
	if t >= RouterSolicitation && t <= Redirect {
		return typeNames[t-RouterSolicitation]
	}
	return fmt.Sprintf("ICMPv6 type %d", uint8(t))
}

// Flags are the flags of an advertisement (RFC 4861, 4.4).
type Flags uint8

// The members of Flags.
const (
	Override  Flags = 0x20 // the MAC address replaces the one known
	Solicited Flags = 0x40 // answers a solicitation
	Router    Flags = 0x80 // the sender is a router
)

// Offsets in a packet and lengths, in bytes.
const (
	offType     = wire.IPv6Len
	offCode     = offType + 1
	offChecksum = offType + 2
	offFlags    = offType + 4
	offTarget   = offType + 8
	offOptions  = offType + 24

	optionLen = 8 // a link-layer address option for Ethernet, and the unit of option lengths

	// FrameLen is the length of the longest frame that this package writes,
	// before the port pads it.
	FrameLen = wire.EthernetLen + offOptions + optionLen
)

// Options that carry the MAC address of the sender (RFC 4861, 4.6.1).
const (
	optSource = 1 // in solicitations
	optTarget = 2 // in advertisements
)

const maxHopLimit = 255 // proves that no router forwarded the packet

var allNodes = netip.MustParseAddr("ff02::1")

// A Packet is the payload of a frame of [wire.TypeIPv6]: an IPv6 header and a
// solicitation or advertisement. Accessors may be used after Valid.
//
//	0           40     41     42         44      48       64        72
//	| IPv6 header | type | code | checksum | flags | target | options ... | padding
type Packet []byte

// TypeOf returns the type of the Neighbor Discovery message in an IPv6 packet,
// and whether it holds one. Nothing else about it is checked.
//
// The message has to follow the fixed header: one behind a fragment header
// must be ignored (RFC 6980, 5), and no other extension header has a use there.
func TypeOf(b []byte) (t Type, ok bool) {
	if wire.CheckIPv6(b, len(b)) != wire.OK {
		return 0, false
	}
	h := wire.IPv6(b)
	if h.NextHeader() != wire.ProtoICMPv6 || h.TotalLen() <= offType {
		return 0, false
	}
	t = Type(b[offType])
	return t, t >= RouterSolicitation && t <= Redirect
}

// Valid is the gate of Neighbor Discovery: a solicitation or advertisement as
// RFC 4861, 7.1.1 and 7.1.2, want it, whose source is neither a group nor the
// loopback address, and whose link-layer address is that of a station. Bytes
// behind the packet are padding.
func (p Packet) Valid() bool {
	t, _ := TypeOf(p)
	if t != NeighborSolicitation && t != NeighborAdvertisement {
		return false
	}
	h := wire.IPv6(p)
	if h.TotalLen() < offOptions || h.HopLimit() != maxHopLimit || p[offCode] != 0 {
		return false
	}
	src, dst := p.Source(), p.Destination()
	if src.IsMulticast() || src.IsLoopback() || p.Target().IsMulticast() {
		return false
	}
	if wire.ChecksumIPv6((*[16]byte)(p[8:]), (*[16]byte)(p[24:]), wire.ProtoICMPv6, p[offType:h.TotalLen()]) != 0 {
		return false
	}
	o := p.options()
	for len(o) > 0 {
		if len(o) < optionLen || o[1] == 0 || int(o[1])*optionLen > len(o) {
			return false
		}
		if o[0] == p.linkOption() && (o[1] != 1 || !neigh.IsUnicast(wire.MACOf(o[2:]))) {
			return false
		}
		o = o[int(o[1])*optionLen:]
	}
	_, hasLink := p.LinkAddr()
	switch {
	case t == NeighborAdvertisement:
		return !dst.IsMulticast() || p.Flags()&Solicited == 0
	case src.IsUnspecified():
		return isSolicitedNode(dst) && !hasLink
	}
	return true
}

// Type returns NeighborSolicitation or NeighborAdvertisement.
func (p Packet) Type() Type { return Type(p[offType]) }

// Source returns the address of the sender, :: in a probe for duplicates
// (RFC 4862, 5.4.2).
func (p Packet) Source() netip.Addr { return netip.AddrFrom16([16]byte(p[8:])) }

// Destination returns the address that the packet was sent to.
func (p Packet) Destination() netip.Addr { return netip.AddrFrom16([16]byte(p[24:])) }

// Flags returns the flags of an advertisement.
func (p Packet) Flags() Flags { return Flags(p[offFlags]) & (Router | Solicited | Override) }

// Target returns the address that is asked for or advertised.
func (p Packet) Target() netip.Addr { return netip.AddrFrom16([16]byte(p[offTarget:])) }

// LinkAddr returns the MAC address that the sender names, if it does: for the
// source of a solicitation, for the target of an advertisement.
func (p Packet) LinkAddr() (mac wire.MAC, ok bool) {
	for o := p.options(); len(o) > 0; o = o[int(o[1])*optionLen:] {
		if o[0] == p.linkOption() {
			return wire.MACOf(o[2:]), true
		}
	}
	return 0, false
}

func (p Packet) options() []byte { return p[offOptions:wire.IPv6(p).TotalLen()] }

// linkOption returns the type of the option that LinkAddr reads; the other one
// has no meaning in the message and is ignored.
func (p Packet) linkOption() byte {
	if p.Type() == NeighborSolicitation {
		return optSource
	}
	return optTarget
}

// LinkLocal returns the link-local address that a port with the MAC address mac
// forms by itself (RFC 4291, appendix A; RFC 4862, 5.3).
func LinkLocal(mac wire.MAC) netip.Addr {
	m := mac.Bytes()
	return netip.AddrFrom16([16]byte{
		0: 0xfe, 1: 0x80,
		8: m[0] ^ 0x02, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5],
	})
}

// SolicitedNode returns the multicast address to which solicitations for the
// IPv6 address a are sent (RFC 4291, 2.7.1).
func SolicitedNode(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom16([16]byte{
		0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff, 13: b[13], 14: b[14], 15: b[15],
	})
}

func isSolicitedNode(a netip.Addr) bool { return a == SolicitedNode(a) }

// MulticastMAC returns the MAC address to which packets for the IPv6 multicast
// address a are sent (RFC 2464, 7).
func MulticastMAC(a netip.Addr) wire.MAC {
	b := a.As16()
	return wire.MACOf([]byte{0x33, 0x33, b[12], b[13], b[14], b[15]})
}

// Solicitation writes to b the frame by which the station mac with the address
// src asks the link who has target, and returns its length, FrameLen. From src
// :: it probes for duplicates and is shorter, for it names no MAC address
// (RFC 4862, 5.4.2). Addresses are IPv6, and b has room for FrameLen bytes.
func Solicitation(b []byte, mac wire.MAC, src, target netip.Addr) int {
	group := SolicitedNode(target)
	m := message{typ: NeighborSolicitation, src: src, dst: group, target: target}
	if !src.IsUnspecified() {
		m.option, m.link = optSource, mac
	}
	return m.put(b, MulticastMAC(group), mac)
}

// Verification writes to b the frame by which the station mac with the address
// src asks target, last known at dst, whether it is still there, and returns
// its length, FrameLen. Addresses are IPv6, and b has room for the frame.
func Verification(b []byte, dst, mac wire.MAC, src, target netip.Addr) int {
	m := message{NeighborSolicitation, 0, src, target, target, optSource, mac}
	return m.put(b, dst, mac)
}

// Answer writes to b the advertisement by which the router's port mac answers
// the solicitation of dst, reached at dstMAC, for target, and returns its
// length, FrameLen. A dst of :: stands for a probe for duplicates: its answer
// goes to all nodes and is not marked as solicited (RFC 4861, 7.2.4). An answer
// for an anycast address comes from the port's link-local address and overrides
// no other (RFC 4861, 7.2.7). Addresses are IPv6, and b has room for the frame.
func Answer(b []byte, dstMAC, mac wire.MAC, dst, target netip.Addr, anycast bool) int {
	m := message{NeighborAdvertisement, Router | Override, target, dst, target, optTarget, mac}
	if anycast {
		m.src = LinkLocal(mac)
		m.flags &^= Override
	}
	if dst.IsUnspecified() {
		m.dst, dstMAC = allNodes, MulticastMAC(allNodes)
	} else {
		m.flags |= Solicited
	}
	return m.put(b, dstMAC, mac)
}

// Announcement writes to b the advertisement by which the router's port mac
// tells its link that it has addr (RFC 4861, 7.2.6), and returns its length,
// FrameLen. The address is IPv6, and b has room for the frame.
func Announcement(b []byte, mac wire.MAC, addr netip.Addr) int {
	m := message{NeighborAdvertisement, Router | Override, addr, allNodes, addr, optTarget, mac}
	return m.put(b, MulticastMAC(allNodes), mac)
}

// A message is what the frames of this package differ in.
type message struct {
	typ              Type
	flags            Flags
	src, dst, target netip.Addr
	option           byte // type of the option that carries link, 0 for none
	link             wire.MAC
}

func (m *message) put(b []byte, dst, src wire.MAC) int {
	n := offOptions
	if m.option != 0 {
		n += optionLen
	}
	wire.PutEthernet(b, dst, src, wire.TypeIPv6)
	p := b[wire.EthernetLen : wire.EthernetLen+n]
	clear(p[:offOptions])
	from, to, target := m.src.As16(), m.dst.As16(), m.target.As16()
	p[0] = 6 << 4
	binary.BigEndian.PutUint16(p[4:], uint16(n-wire.IPv6Len))
	p[6], p[7] = wire.ProtoICMPv6, maxHopLimit
	copy(p[8:], from[:])
	copy(p[24:], to[:])
	p[offType] = byte(m.typ)
	p[offFlags] = byte(m.flags)
	copy(p[offTarget:], target[:])
	if m.option != 0 {
		p[offOptions], p[offOptions+1] = m.option, 1
		m.link.Put(p[offOptions+2:])
	}
	binary.BigEndian.PutUint16(p[offChecksum:], wire.ChecksumIPv6(&from, &to, wire.ProtoICMPv6, p[wire.IPv6Len:]))
	return wire.EthernetLen + n
}

// Handle takes an Ethernet frame that port p received at now, without a VLAN
// tag. It returns the length of the answer that it wrote to reply, which has
// room for FrameLen bytes; 0 stands for no answer.
//
// Answered are solicitations and probes for a unicast or anycast address of the
// router on p, unless a host stack does that, sent to the router or to a group.
// Answers for anycast addresses are not delayed, for the router's is the only
// one that it knows of. The answer goes to the MAC address that the
// solicitation names, else to that of a static entry, else to the one that the
// frame came from; a frame from the router itself, brought back by a loop, has
// none.
//
// What the sender says about an address is checked against t by
// [neigh.Table.Claim], whose result Handle returns. Unless it is a conflict, t
// learns: the sender of a solicitation that is answered may be new, an
// advertisement only changes what is known. A probe, which comes from ::, says
// nothing: switches send them for addresses in use.
func Handle(now time.Duration, t *neigh.Table, p *neigh.Port, frame, reply []byte) (int, neigh.Conflict) {
	if len(frame) < wire.EthernetLen {
		return 0, neigh.NoConflict
	}
	eth := wire.Ethernet(frame)
	m := Packet(frame[wire.EthernetLen:])
	toMAC := eth.Destination()
	if eth.Type() != wire.TypeIPv6 || toMAC&wire.Group == 0 && !p.IsOwnMAC(toMAC) || !m.Valid() {
		return 0, neigh.NoConflict
	}
	if dst := m.Destination(); !dst.IsMulticast() && !p.Owns(dst) && !slices.Contains(p.Anycast, dst) {
		return 0, neigh.NoConflict
	}

	solicitation, src, target := m.Type() == NeighborSolicitation, m.Source(), m.Target()
	about := src
	if !solicitation {
		about = target
	}
	mac, named := m.LinkAddr()
	var c neigh.Conflict
	if named {
		c = t.Claim(p, about, mac)
	} else if p.Owns(about) { // whoever sends this claims it, even without naming a MAC address
		c = t.Claim(p, about, eth.Source())
	}

	anycast := slices.Contains(p.Anycast, target)
	forUs := anycast || p.Owns(target)
	switch {
	case c != neigh.NoConflict:
	case !solicitation:
		t.Advertised(now, p, target, neigh.Advert{MAC: mac, Solicited: m.Flags()&Solicited != 0, Override: m.Flags()&Override != 0})
	case forUs && named:
		t.Heard(now, p, src, mac)
	}
	if !solicitation || p.Host || !forUs || p.IsOwnMAC(eth.Source()) {
		return 0, c
	}
	if !named {
		mac = eth.Source()
		if e, ok := t.Lookup(p.Num, src); ok && e.State == neigh.Static {
			mac = e.MAC
		}
	}
	return Answer(reply, mac, p.MAC, src, target, anycast), c
}
