// Package icmp builds the ICMP (RFC 792) and ICMPv6 (RFC 4443) messages that a
// router sends of itself: errors about packets that it received, and echo
// replies. All is functions of the packet as received.
//
// What an error says, how much it quotes and when it must not be sent is that of
// RFC 1812, section 4.3, and of RFC 4443, sections 2 and 3.
package icmp

import (
	"encoding/binary"
	"net/netip"

	"nmfwd/wire"
)

// A Kind is what a message says.
type Kind uint8

// The kinds, by the names that metrics use.
const (
	NetUnreachable      Kind = iota // no route to the destination, or in IPv6 one that says unreachable
	HostUnreachable                 // the destination, or the gateway to it, does not answer, or in IPv4 the route says unreachable
	ProtocolUnreachable             // nothing here speaks the protocol
	PortUnreachable                 // nothing here listens on the port
	Prohibited                      // the route says prohibited
	TooBig                          // exceeds the MTU of the next hop, and must not be fragmented
	TimeExceeded                    // TTL or hop limit exceeded in transit
	ParameterProblem                // a field of the header that makes no sense
	EchoReply                       // to a ping
	NumKinds            = iota
)

var kindNames = [NumKinds]string{
	"net_unreachable", "host_unreachable", "protocol_unreachable", "port_unreachable", "prohibited",
	"too_big", "time_exceeded", "parameter_problem", "echo_reply",
}

// String returns the kind's name in metrics.
func (k Kind) String() string { return kindNames[k] }

// Types of messages (IANA), as far as they are used here.
const (
	typeEchoReply4 = 0
	typeEcho4      = 8
	typeRedirect6  = 137 // RFC 4861, 4.5
	firstInfo6     = 128 // types below are errors: RFC 4443, 2.1
	typeEcho6      = 128
	typeEchoReply6 = 129
)

// messages4 and messages6 are type and code by Kind. The code of an IPv6
// ParameterProblem is that of its Error.
var (
	messages4 = [NumKinds][2]byte{
		NetUnreachable: {3, 0}, HostUnreachable: {3, 1}, ProtocolUnreachable: {3, 2}, PortUnreachable: {3, 3},
		Prohibited: {3, 13}, TooBig: {3, 4}, TimeExceeded: {11, 0}, ParameterProblem: {12, 0},
	}
	messages6 = [NumKinds][2]byte{
		NetUnreachable: {1, 0}, HostUnreachable: {1, 3}, ProtocolUnreachable: {4, BadNextHeader}, PortUnreachable: {1, 4},
		Prohibited: {1, 1}, TooBig: {2, 0}, TimeExceeded: {3, 0}, ParameterProblem: {4, 0},
	}
)

// Codes of an IPv6 ParameterProblem (RFC 4443, 3.4).
const (
	BadField      = 0 // erroneous header field
	BadNextHeader = 1 // unrecognized next header type
	BadOption     = 2 // unrecognized option
)

// A Reason says why a message that was due is not sent.
type Reason uint8

// The reasons, by the names that metrics use. OK is zero: it is sent.
const (
	OK         Reason = iota
	Rate              // more are due than may be sent: RFC 1812, 4.3.2.8; RFC 4443, 2.4 (f)
	AboutError        // about an ICMP error, or a message that may be one: RFC 1812, 4.3.2.7; RFC 4443, 2.4 (e)
	Fragment          // about a fragment other than the first, or an echo request in fragments
	Multicast         // to more than one station, by address or by link: RFC 1812, 4.3.2.7; RFC 4443, 2.4 (e)
	BadSource         // from what is no address of one other station: RFC 1812, 4.3.2.7; RFC 4443, 2.4 (e)
	Malformed         // of a form that gets no answer: cut short, a wrong checksum
	NoAddress         // the router has no address of the family
	NoRoute           // there is no way back
	TooLong           // an IPv6 echo reply that exceeds the MTU on the way back
	Busy              // the ring to the worker that would send it is full
	Silent            // nothing is said: about an address of a host stack, or a route that has changed
	NumReasons = iota
)

var reasonNames = [NumReasons]string{
	"", "rate", "about_error", "fragment", "multicast", "source", "malformed",
	"no_address", "no_route", "too_long", "ring_full", "silent",
}

// String returns the reason's name in metrics.
func (r Reason) String() string { return reasonNames[r] }

// An Error is what to tell the source of a packet.
type Error struct {
	Kind    Kind
	MTU     int  // TooBig: of the next hop
	Pointer int  // ParameterProblem, and ProtocolUnreachable in IPv6: offset of what is wrong in the packet
	Code    byte // ParameterProblem in IPv6
}

// Lengths of messages in bytes with their IP header: no error is longer, so that
// any network carries it.
const (
	maxError4 = 576  // RFC 1812, 4.3.2.3
	maxError6 = 1280 // RFC 4443, 2.4 (c)
)

// MaxError is the longest error, in bytes with its IP header.
const MaxError = maxError6

// headerLen is the length of what is before the quoted packet: type, code,
// checksum, and 4 bytes by type.
const headerLen = 8

// hopLimit is the TTL or hop limit of messages (RFC 1700, IP parameters).
const hopLimit = 64

// Check says whether e may be sent about p, a packet that passed the gate of its
// family and may be cut. Group says that it came in a link-layer multicast or
// broadcast.
func (e *Error) Check(p []byte, group bool) Reason {
	if p[0]>>4 == 4 {
		return check4(p, group)
	}
	// RFC 4443, 2.4 (e.3): these two are of use to the source of a multicast.
	manyOK := e.Kind == TooBig || e.Kind == ParameterProblem && e.Code == BadOption &&
		e.Pointer < len(p) && p[e.Pointer]&wire.OptIfUnknown == wire.OptTell
	return check6(p, group && !manyOK, manyOK)
}

func check4(p wire.IPv4, group bool) Reason {
	dst := p.Destination()
	switch {
	case group, dst>>28 == 0xe, dst == 0xffffffff:
		return Multicast
	case !unicast4(p.Source()):
		return BadSource
	case p.FragmentOffset() > 0:
		return Fragment
	case p.Protocol() == wire.ProtoICMP && !(len(p) > p.HeaderLen() && informative4(p[p.HeaderLen()])):
		return AboutError
	}
	return OK
}

// unicast4 reports whether a can be the address of one other station that an
// answer reaches through routers: it is not of 0/8, 127/8, 169.254/16, 224/4 or
// 240/4 (RFC 1812, 5.3.7; RFC 3927, 7).
func unicast4(a uint32) bool {
	return a>>24 != 0 && a>>24 != 127 && a>>16 != 0xa9fe && a>>28 < 0xe
}

// informative4 reports whether an ICMP type is known to be no error: requests and
// replies of echo, router discovery, timestamp, information, address mask
// (RFC 792, RFC 950, RFC 1256) and extended echo (RFC 8335).
func informative4(t byte) bool {
	return t == typeEchoReply4 || t >= 8 && t <= 10 || t >= 13 && t <= 18 || t == 42 || t == 43
}

func check6(p wire.IPv6, group, manyOK bool) Reason {
	sh, sl := p.Source()
	switch {
	case group, p[24] == 0xff && !manyOK:
		return Multicast
	case sh == 0 && (sl <= 1 || sl>>32 == 0xffff), sh>>56 == 0xff:
		return BadSource
	}
	proto, at, _ := p.Upper()
	if proto == wire.ProtoICMPv6 && (at >= len(p) || p[at] < firstInfo6 || p[at] == typeRedirect6) {
		return AboutError
	}
	return OK
}

// Build writes to b the packet that tells the source of p, which Check let pass,
// from the address src of p's family. It returns the packet's length, at most
// MaxError bytes. ID is the IPv4 identification, which is to be new for each.
func (e *Error) Build(b, p []byte, src netip.Addr, id uint16) int {
	if p[0]>>4 == 4 {
		return e.build4(b, p, src, id)
	}
	return e.build6(b, p, src)
}

func (e *Error) build4(b []byte, p wire.IPv4, src netip.Addr, id uint16) int {
	n := wire.IPv4Len + headerLen
	n += copy(b[n:maxError4], p[:min(p.TotalLen(), len(p))])
	m := b[wire.IPv4Len:n]
	m[0], m[1] = messages4[e.Kind][0], messages4[e.Kind][1]
	clear(m[2:headerLen])
	switch e.Kind {
	case TooBig: // RFC 1191, 4
		binary.BigEndian.PutUint16(m[6:], uint16(e.MTU))
	case ParameterProblem:
		m[4] = byte(e.Pointer)
	}
	// RFC 1812, 4.3.2.5: the TOS of the packet, but the precedence of network
	// control. What is ECN today (RFC 3168) is none.
	b[0] = 0x45
	header4(b[:n], src.As4(), [4]byte(p[12:16]), 0xc0|p.TOS()&0x1c, id)
	return n
}

func (e *Error) build6(b []byte, p wire.IPv6, src netip.Addr) int {
	n := wire.IPv6Len + headerLen
	n += copy(b[n:maxError6], p[:min(p.TotalLen(), len(p))])
	m := b[wire.IPv6Len:n]
	m[0], m[1] = messages6[e.Kind][0], messages6[e.Kind][1]
	clear(m[2:headerLen])
	switch e.Kind {
	case TooBig:
		binary.BigEndian.PutUint32(m[4:], uint32(e.MTU))
	case ParameterProblem:
		m[1] = e.Code
		fallthrough
	case ProtocolUnreachable:
		binary.BigEndian.PutUint32(m[4:], uint32(e.Pointer))
	}
	header6(b[:n], src.As16(), [16]byte(p[8:24]), 0)
	return n
}

// Reply writes to b the echo reply to p, a whole packet to an address of the
// router, and returns its length. A Reason says why it gets none. B has to hold
// len(p) bytes. Src is the address that the reply comes from: the one that p is
// for, unless that is an anycast address (RFC 4443, 4.2). Id is the IPv4
// identification, ms the time of day in milliseconds since midnight UT.
func Reply(b, p []byte, src netip.Addr, id uint16, ms uint32) (int, Reason) {
	if p[0]>>4 == 4 {
		return reply4(b, p, src.As4(), id, ms)
	}
	return reply6(b, p, src.As16())
}

func reply4(b []byte, p wire.IPv4, own [4]byte, id uint16, ms uint32) (int, Reason) {
	m := p[p.HeaderLen():p.TotalLen()]
	switch {
	case p.IsFragment():
		return 0, Fragment
	case len(m) < headerLen || wire.Checksum(m) != 0 || wire.ScanOptions(p.Options())&wire.BadOption != 0:
		return 0, Malformed
	case m[0] != typeEcho4 || m[1] != 0:
		return 0, Silent
	case !unicast4(p.Source()):
		return 0, BadSource
	}
	h := wire.IPv4Len + replyOptions(b[wire.IPv4Len:], p.Options(), own, ms)
	n := h + copy(b[h:], m)
	b[h] = typeEchoReply4
	b[h+2], b[h+3] = 0, 0
	b[0] = 0x40 | byte(h/4)
	header4(b[:n], own, [4]byte(p[12:16]), p.TOS()&^3, id) // RFC 1812, 4.3.2.5
	return n, OK
}

// replyOptions writes to b the options of the reply to a request with options o,
// padded to words, and returns their length: record route and timestamp, to which
// who replies adds its address and the time (RFC 791, 3.1; RFC 1812, 4.3.3.6).
func replyOptions(b, o []byte, addr [4]byte, ms uint32) (n int) {
	for len(o) > 0 && o[0] != wire.OptEnd {
		size := 1
		if o[0] != wire.OptNop {
			size = int(o[1])
		}
		at := n
		switch {
		case o[0] == wire.OptRecordRoute && size >= 3 && o[2] >= 4:
			n += copy(b[n:], o[:size])
			record(b[at:n], addr)
		case o[0] == wire.OptTimestamp && size >= 4 && o[2] >= 5:
			n += copy(b[n:], o[:size])
			stamp(b[at:n], addr, ms)
		}
		o = o[size:]
	}
	for ; n%4 != 0; n++ {
		b[n] = wire.OptEnd
	}
	return n
}

// record adds an address to a record route option that has room for it.
func record(o []byte, addr [4]byte) {
	if at := int(o[2]) - 1; at+4 <= len(o) {
		copy(o[at:], addr[:])
		o[2] += 4
	}
}

// Flags of a timestamp option, and its count of those who found no room.
const (
	stampOnly       = 0
	stampAddress    = 1 // an address before each timestamp
	stampPrescribed = 3 // by those whose addresses are there
	stampFlags      = 0x0f
	stampOverflow   = 0xf0
)

// stamp adds a time to a timestamp option, where it is asked for.
func stamp(o []byte, addr [4]byte, ms uint32) {
	at, size := int(o[2])-1, 8
	switch o[3] & stampFlags {
	case stampOnly:
		size = 4
	case stampAddress:
	case stampPrescribed:
		if at+size > len(o) || [4]byte(o[at:]) != addr {
			return
		}
	default:
		return
	}
	if at+size > len(o) {
		if o[3]&stampOverflow != stampOverflow {
			o[3] += 0x10
		}
		return
	}
	if size == 8 {
		copy(o[at:], addr[:])
	}
	binary.BigEndian.PutUint32(o[at+size-4:], ms)
	o[2] += byte(size)
}

func reply6(b []byte, p wire.IPv6, own [16]byte) (int, Reason) {
	proto, at, fragment := p.Upper()
	sh, sl := p.Source()
	switch {
	case fragment:
		return 0, Fragment
	case proto != wire.ProtoICMPv6:
		return 0, Silent
	case len(p) != p.TotalLen() || at+headerLen > len(p):
		return 0, Malformed
	}
	m := p[at:]
	src, dst := [16]byte(p[8:24]), [16]byte(p[24:40])
	switch {
	case wire.ChecksumIPv6(&src, &dst, wire.ProtoICMPv6, m) != 0:
		return 0, Malformed
	case m[0] != typeEcho6 || m[1] != 0:
		return 0, Silent
	case sh == 0 && (sl <= 1 || sl>>32 == 0xffff), sh>>56 == 0xff:
		return 0, BadSource
	}
	n := wire.IPv6Len + copy(b[wire.IPv6Len:], m)
	b[wire.IPv6Len] = typeEchoReply6
	b[wire.IPv6Len+2], b[wire.IPv6Len+3] = 0, 0
	header6(b[:n], own, src, p.TrafficClass()&^3)
	return n, OK
}

// header4 writes the header of an IPv4 packet, which has its first byte and its
// options, and holds an ICMP message whose checksum field is 0; and both checksums.
// Messages may be fragmented.
func header4(b []byte, src, dst [4]byte, tos byte, id uint16) {
	n := wire.IPv4(b).HeaderLen()
	h, m := b[:n], b[n:]
	h[1] = tos
	binary.BigEndian.PutUint16(h[2:], uint16(len(b)))
	binary.BigEndian.PutUint16(h[4:], id)
	h[6], h[7] = 0, 0
	h[8], h[9] = hopLimit, wire.ProtoICMP
	h[10], h[11] = 0, 0
	copy(h[12:], src[:])
	copy(h[16:], dst[:])
	binary.BigEndian.PutUint16(h[10:], wire.Checksum(h))
	binary.BigEndian.PutUint16(m[2:], wire.Checksum(m))
}

// header6 is header4 for IPv6.
func header6(b []byte, src, dst [16]byte, class byte) {
	h, m := b[:wire.IPv6Len], b[wire.IPv6Len:]
	h[0], h[1], h[2], h[3] = 0x60|class>>4, class<<4, 0, 0
	binary.BigEndian.PutUint16(h[4:], uint16(len(m)))
	h[6], h[7] = wire.ProtoICMPv6, hopLimit
	copy(h[8:], src[:])
	copy(h[24:], dst[:])
	binary.BigEndian.PutUint16(m[2:], wire.ChecksumIPv6(&src, &dst, wire.ProtoICMPv6, m))
}
