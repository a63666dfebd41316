// Package arp reads, answers and writes ARP packets for IPv4 over Ethernet
// (RFC 826, RFC 5227, RFC 5494).
//
// It keeps nothing: [Handle] looks at one frame, and whoever owns the neighbor
// table calls it. It answers for addresses of the router only, never for
// others (no proxy ARP, RFC 1027).
package arp

import (
	"encoding/binary"
	"net/netip"
	"time"

	"nmfwd/neigh"
	"nmfwd/wire"
)

// Len is the length of an ARP packet for IPv4 over Ethernet in bytes, FrameLen
// that of the frame that carries it, before the port pads it.
const (
	Len      = 28
	FrameLen = wire.EthernetLen + Len
)

// Operations (RFC 826).
const (
	OpRequest = 1
	OpReply   = 2
)

const hardwareEthernet = 1 // RFC 826, ares_hrd$Ethernet

// A Packet is the payload of a frame of [wire.TypeARP]. Accessors may be used
// after Valid.
//
//	0       2       4      5      6    8     14    18    24    28
//	| htype | ptype | hlen | plen | op | sha | spa | tha | tpa | padding
type Packet []byte

// Valid is the gate of ARP: a request or a reply for IPv4 over Ethernet whose
// sender can be a station. Its MAC address is neither zero nor a group address
// (RFC 1812, 3.3.2), its IPv4 address is not in 0/8, 127/8, 224/4 or 240/4; but
// a request may come from 0.0.0.0, which makes it a probe (RFC 5227, 1.1).
// Bytes behind the packet are padding.
//
// The sender's MAC address need not be the source address of the frame: RFC 826
// uses the packet's, and clusters and virtual routers have reasons for two.
func (p Packet) Valid() bool {
	if len(p) < Len ||
		binary.BigEndian.Uint16(p) != hardwareEthernet ||
		binary.BigEndian.Uint16(p[2:]) != wire.TypeIPv4 ||
		p[4] != 6 || p[5] != 4 ||
		p.Op() != OpRequest && p.Op() != OpReply ||
		!neigh.IsUnicast(p.SenderMAC()) {
		return false
	}
	switch n := p[14]; {
	case p.Sender().IsUnspecified():
		return p.Op() == OpRequest
	case n == 0, n == 127, n >= 224:
		return false
	}
	return true
}

// Op returns the operation, OpRequest or OpReply.
func (p Packet) Op() uint16 { return binary.BigEndian.Uint16(p[6:]) }

// SenderMAC returns the MAC address of the sender.
func (p Packet) SenderMAC() wire.MAC { return wire.MACOf(p[8:]) }

// Sender returns the IPv4 address of the sender, 0.0.0.0 in a probe.
func (p Packet) Sender() netip.Addr { return netip.AddrFrom4([4]byte(p[14:])) }

// TargetMAC returns the MAC address of the target, which means nothing in a
// request.
func (p Packet) TargetMAC() wire.MAC { return wire.MACOf(p[18:]) }

// Target returns the IPv4 address asked for, or that of the asker in a reply.
func (p Packet) Target() netip.Addr { return netip.AddrFrom4([4]byte(p[24:])) }

// Request writes to b the frame by which the station mac with the address
// sender asks dst who has target, and returns its length, FrameLen. Dst is
// [wire.Broadcast], or the MAC address to be verified (RFC 1122, 2.3.2.1). From
// sender 0.0.0.0 it is a probe (RFC 5227, 2.1). Both addresses are IPv4, and b
// has room for the frame.
func Request(b []byte, dst, mac wire.MAC, sender, target netip.Addr) int {
	return put(b, OpRequest, dst, mac, sender, 0, target)
}

// Announcement writes to b the frame by which the station mac tells its link
// that it has addr, and returns its length, FrameLen. That is a request with
// addr as sender and target (RFC 5227, 3): replies that nobody asked for are
// ignored by some.
func Announcement(b []byte, mac wire.MAC, addr netip.Addr) int {
	return Request(b, wire.Broadcast, mac, addr, addr)
}

// Reply writes to b the frame by which the station mac with the address sender
// answers a request of the station dst, whose address is target, and returns
// its length, FrameLen. Both addresses are IPv4, and b has room for the frame.
func Reply(b []byte, dst, mac wire.MAC, sender, target netip.Addr) int {
	return put(b, OpReply, dst, mac, sender, dst, target)
}

func put(b []byte, op uint16, dst, sha wire.MAC, spa netip.Addr, tha wire.MAC, tpa netip.Addr) int {
	wire.PutEthernet(b, dst, sha, wire.TypeARP)
	p := b[wire.EthernetLen:FrameLen]
	binary.BigEndian.PutUint16(p, hardwareEthernet)
	binary.BigEndian.PutUint16(p[2:], wire.TypeIPv4)
	p[4], p[5] = 6, 4
	binary.BigEndian.PutUint16(p[6:], op)
	sha.Put(p[8:])
	s, t := spa.As4(), tpa.As4()
	copy(p[14:], s[:])
	tha.Put(p[18:])
	copy(p[24:], t[:])
	return FrameLen
}

// Handle takes an Ethernet frame that port p received at now, without a VLAN
// tag. It returns the length of the answer that it wrote to reply, which has
// room for FrameLen bytes; 0 stands for no answer.
//
// Answered are requests and probes for a unicast address of the router on p,
// unless a host stack does that, sent to the router's MAC address or to a group
// address. The answer goes to the packet's sender, unless that is the router,
// whose frame a loop brought back.
//
// What the sender says about itself is checked against t by
// [neigh.Table.Claim], whose result Handle returns. Unless it is a conflict, t
// learns: a sender that asks for an address of the router may be new, any other
// frame only changes what is known, and only a reply to the router's MAC address
// counts as an answer. A probe, which comes from 0.0.0.0, says nothing: switches
// and DHCP servers send them for addresses in use.
func Handle(now time.Duration, t *neigh.Table, p *neigh.Port, frame, reply []byte) (int, neigh.Conflict) {
	if len(frame) < FrameLen {
		return 0, neigh.NoConflict
	}
	eth := wire.Ethernet(frame)
	dst := eth.Destination()
	a := Packet(frame[wire.EthernetLen:])
	if eth.Type() != wire.TypeARP || dst&wire.Group == 0 && !p.IsOwnMAC(dst) || !a.Valid() {
		return 0, neigh.NoConflict
	}
	sender, mac, forUs := a.Sender(), a.SenderMAC(), p.Owns(a.Target())
	c := t.Claim(p, sender, mac)
	switch {
	case c != neigh.NoConflict || sender.IsUnspecified():
	case a.Op() == OpRequest && forUs:
		t.Heard(now, p, sender, mac)
	default:
		t.Advertised(now, p, sender, neigh.Advert{MAC: mac, Solicited: a.Op() == OpReply && forUs && dst&wire.Group == 0, Override: true})
	}
	if a.Op() != OpRequest || p.Host || !forUs || p.IsOwnMAC(mac) {
		return 0, c
	}
	return Reply(reply, mac, p.MAC, a.Target(), sender), c
}
