// Package wire reads and writes packet headers in place.
//
// A header is a view: a named slice over the bytes of a frame. A view is safe
// to use once its gate (CheckIPv4, CheckIPv6) has passed or where its comment
// states the length that it needs; accessors check nothing again.
//
// Layouts are those of IEEE 802.3 (Ethernet), RFC 791 (IPv4), RFC 8200 (IPv6),
// RFC 1071 and RFC 1624 (the Internet checksum).
package wire

import "encoding/binary"

// Lengths of headers in bytes, without options.
const (
	EthernetLen = 14
	VLANLen     = 4 // IEEE 802.1Q tag
	IPv4Len     = 20
	IPv6Len     = 40
)

// EtherTypes (IEEE 802 numbers).
const (
	TypeIPv4 = 0x0800
	TypeARP  = 0x0806
	TypeVLAN = 0x8100 // 802.1Q
	TypeIPv6 = 0x86dd
	TypeQinQ = 0x88a8 // 802.1ad
)

// Protocol numbers (IANA), which are IPv6 next headers too.
const (
	ProtoHopByHop = 0
	ProtoICMP     = 1
	ProtoTCP      = 6
	ProtoUDP      = 17
	ProtoRouting  = 43
	ProtoFragment = 44
	ProtoAH       = 51
	ProtoICMPv6   = 58
	ProtoNone     = 59 // nothing follows
	ProtoDestOpts = 60
)

// MAC is an Ethernet address as a number: its six bytes, the first one lowest,
// as a little-endian load of a frame's first eight bytes gives it, less the
// top sixteen bits.
type MAC uint64

const macMask = 1<<48 - 1

// Group is the bit that marks a multicast or broadcast address (IEEE 802).
const Group MAC = 1

// Broadcast is ff:ff:ff:ff:ff:ff.
const Broadcast MAC = macMask

// MACOf returns the address in the first six bytes of b, as MAC.
func MACOf(b []byte) MAC {
	_ = b[5]
	return MAC(binary.LittleEndian.Uint32(b)) | MAC(binary.LittleEndian.Uint16(b[4:]))<<32
}

// Put writes m to the first six bytes of b.
func (m MAC) Put(b []byte) {
	_ = b[5]
	binary.LittleEndian.PutUint32(b, uint32(m))
	binary.LittleEndian.PutUint16(b[4:], uint16(m>>32))
}

// Bytes returns m as six bytes.
func (m MAC) Bytes() (b [6]byte) {
	m.Put(b[:])
	return b
}

// An Ethernet is a frame of at least EthernetLen bytes.
//
//	0         6         12   14
//	| dst MAC | src MAC | type | payload
type Ethernet []byte

// Destination returns the destination address.
func (e Ethernet) Destination() MAC { return MACOf(e) }

// Source returns the source address.
func (e Ethernet) Source() MAC { return MACOf(e[6:]) }

// TCI returns the tag control information of a frame with an IEEE 802.1Q tag,
// of at least EthernetLen + VLANLen bytes: PCP (3 bits), DEI, VLAN ID (12).
func (e Ethernet) TCI() uint16 { return binary.BigEndian.Uint16(e[EthernetLen:]) }

// TaggedType returns the EtherType behind the tag of such a frame.
func (e Ethernet) TaggedType() uint16 { return binary.BigEndian.Uint16(e[EthernetLen+2:]) }

// PriorityMask is the part of tag control information that is not the VLAN ID: PCP
// and DEI.
const PriorityMask = 0xf000

// PutTag writes an IEEE 802.1Q tag to the place of a frame's EtherType, and
// returns the place for that now.
func PutTag(frame []byte, tci uint16) int {
	binary.BigEndian.PutUint16(frame[EthernetLen-2:], TypeVLAN)
	binary.BigEndian.PutUint16(frame[EthernetLen:], tci)
	return EthernetLen + VLANLen - 2
}

// Type returns the EtherType, or the 802.3 length when it is below 0x600.
func (e Ethernet) Type() uint16 { return binary.BigEndian.Uint16(e[12:]) }

// PutEthernet writes a header to the first EthernetLen bytes of b.
func PutEthernet(b []byte, dst, src MAC, etherType uint16) {
	_ = b[13]
	dst.Put(b)
	src.Put(b[6:])
	binary.BigEndian.PutUint16(b[12:], etherType)
}

// A Fault is what a gate found wrong with a header.
type Fault uint8

// The faults. OK is zero.
const (
	OK          Fault = iota
	Truncated         // fewer bytes than the header or its length field say
	BadHeader         // version, header length or total length contradict each other
	BadChecksum       // the IPv4 header checksum is wrong
)

// An IPv4 is a packet that CheckIPv4 let pass (RFC 791, 3.1).
//
//	0       1      2            4    6          8     9          10         12    16    20
//	| ver/4 IHL/4 | TOS | total length | ID | flags/offset | TTL | protocol | checksum | src | dst | options
type IPv4 []byte

// CheckIPv4 is the gate of IPv4: version, header length, total length and
// header checksum (RFC 1812, 5.2.2). The packet starts in b and has n bytes,
// n >= len(b), of which b has to hold the header. Bytes behind the total length
// are no fault.
func CheckIPv4(b []byte, n int) Fault {
	if len(b) < IPv4Len {
		return Truncated
	}
	if b[0] == 0x45 {
		t := int(binary.BigEndian.Uint16(b[2:]))
		if t < IPv4Len {
			return BadHeader
		}
		if t > n {
			return Truncated
		}
		if Sum20((*[20]byte)(b)) != 0xffff {
			return BadChecksum
		}
		return OK
	}
	return checkIPv4Options(b, n)
}

// checkIPv4Options is CheckIPv4 for headers that are not of 20 bytes.
func checkIPv4Options(b []byte, n int) Fault {
	h := int(b[0]&15) * 4
	t := int(binary.BigEndian.Uint16(b[2:]))
	switch {
	case b[0]>>4 != 4 || h < IPv4Len || t < h:
		return BadHeader
	case h > len(b) || t > n:
		return Truncated
	case Checksum(b[:h]) != 0:
		return BadChecksum
	}
	return OK
}

// HeaderLen returns the length of the header with options, in bytes.
func (p IPv4) HeaderLen() int { return int(p[0]&15) * 4 }

// TotalLen returns the length of header and payload, in bytes.
func (p IPv4) TotalLen() int { return int(binary.BigEndian.Uint16(p[2:])) }

// TOS returns the type of service, which holds DSCP and ECN.
func (p IPv4) TOS() uint8 { return p[1] }

// DontFragment reports whether the packet must not be fragmented.
func (p IPv4) DontFragment() bool { return p[6]&0x40 != 0 }

// MoreFragments reports whether the packet is a fragment, and not the last one.
func (p IPv4) MoreFragments() bool { return p[6]&0x20 != 0 }

// FragmentOffset returns where the payload lies in that of the whole packet, in
// bytes.
func (p IPv4) FragmentOffset() int { return int(binary.BigEndian.Uint16(p[6:])&0x1fff) * 8 }

// IsFragment reports whether the packet is a fragment.
func (p IPv4) IsFragment() bool { return p[6]&0x3f|p[7] != 0 }

// TTL returns the time to live.
func (p IPv4) TTL() uint8 { return p[8] }

// Protocol returns the protocol number.
func (p IPv4) Protocol() uint8 { return p[9] }

// Source returns the source address as a number.
func (p IPv4) Source() uint32 { return binary.BigEndian.Uint32(p[12:]) }

// Destination returns the destination address as a number.
func (p IPv4) Destination() uint32 { return binary.BigEndian.Uint32(p[16:]) }

// Options returns the options, which may be empty.
func (p IPv4) Options() []byte { return p[IPv4Len:p.HeaderLen()] }

// DecrementTTL takes one from the TTL and mends the header checksum (RFC 1624,
// equation 3, which gives the same as computing it anew). The TTL must not be
// zero.
func (p IPv4) DecrementTTL() {
	_ = p[11]
	p[8]--
	// HC' = ~(~HC + ~m + m'): m and m' differ by 0x0100 in the word TTL,protocol.
	s := uint32(^binary.BigEndian.Uint16(p[10:])) + 0xfeff
	binary.BigEndian.PutUint16(p[10:], ^uint16(s+s>>16))
}

// IPv4 options (RFC 791, 3.1; RFC 2113).
const (
	OptEnd         = 0
	OptNop         = 1
	OptCopied      = 0x80 // the bit of options that belong in every fragment
	OptRecordRoute = 7
	OptTimestamp   = 68
	optLSRR        = 131
	optSSRR        = 137
	optRouterAlert = 148
)

// isFiltered reports whether RFC 7126 advises routers to drop packets with an
// option, other than source routes: record route and timestamp, which burden
// routers and tell of networks, and those that are obsolete.
func isFiltered(option byte) bool {
	switch option {
	case OptRecordRoute, OptTimestamp,
		11,  // MTU probe: 4.9
		12,  // MTU reply: 4.10
		82,  // traceroute: 4.11
		136, // stream identifier: 4.6
		142, // VISA, experimental access control: 4.15
		145, // extended internet protocol: 4.16
		147, // address extension: 4.17
		149, // sender-directed multi-destination delivery: 4.18
		151, // dynamic packet state: 4.19
		152: // upstream multicast packet: 4.20
		return true
	}
	return false
}

// OptionSet says which IPv4 options or IPv6 hop-by-hop options of interest to
// a router a packet carries.
type OptionSet uint8

// The members of an OptionSet.
const (
	SourceRoute   OptionSet = 1 << iota // LSRR or SSRR
	RouterAlert                         // RFC 2113, RFC 2711
	BadOption                           // an option's length is wrong, or the option is an UnknownOption
	Filtered                            // an IPv4 option that routers better drop: RFC 7126, 4.5 to 4.20
	UnknownOption                       // an IPv6 option that is not known here and asks to be discarded then
)

// ScanOptions walks the options of an IPv4 header. It stops at the first one
// whose length is wrong.
func ScanOptions(b []byte) OptionSet {
	s, _ := LocateOption(b)
	return s
}

// LocateOption is ScanOptions that also returns, for a BadOption, the offset in b
// of the byte that is wrong: the option's length, or its type if that is the
// last byte.
func LocateOption(b []byte) (s OptionSet, at int) {
	for i := 0; i < len(b); {
		switch b[i] {
		case OptEnd:
			return s, 0
		case OptNop:
			i++
			continue
		}
		if i+1 >= len(b) {
			return s | BadOption, i
		}
		n := int(b[i+1])
		if n < 2 || i+n > len(b) {
			return s | BadOption, i + 1
		}
		switch b[i] {
		case optLSRR, optSSRR:
			s |= SourceRoute
		case optRouterAlert:
			if n != 4 {
				return s | BadOption, i + 1
			}
			s |= RouterAlert
		default:
			if isFiltered(b[i]) {
				s |= Filtered
			}
		}
		i += n
	}
	return s, 0
}

// An IPv6 is a packet that CheckIPv6 let pass (RFC 8200, 3).
//
//	0                         4             6           7         8     24    40
//	| ver/4 class/8 label/20 | payload length | next header | hop limit | src | dst |
type IPv6 []byte

// CheckIPv6 is the gate of IPv6: version and payload length. The packet starts
// in b and has n bytes, n >= len(b), of which b has to hold the fixed header.
// Bytes behind the payload are no fault.
func CheckIPv6(b []byte, n int) Fault {
	if len(b) < IPv6Len {
		return Truncated
	}
	if b[0]>>4 != 6 {
		return BadHeader
	}
	if IPv6Len+int(binary.BigEndian.Uint16(b[4:])) > n {
		return Truncated
	}
	return OK
}

// TotalLen returns the length of header and payload, in bytes.
func (p IPv6) TotalLen() int { return IPv6Len + int(binary.BigEndian.Uint16(p[4:])) }

// TrafficClass returns the traffic class, which holds DSCP and ECN.
func (p IPv6) TrafficClass() uint8 { return p[0]<<4 | p[1]>>4 }

// NextHeader returns the type of the header behind the fixed one.
func (p IPv6) NextHeader() uint8 { return p[6] }

// HopLimit returns the hop limit.
func (p IPv6) HopLimit() uint8 { return p[7] }

// DecrementHopLimit takes one from the hop limit, which must not be zero.
func (p IPv6) DecrementHopLimit() { p[7]-- }

// Source returns the source address as two numbers.
func (p IPv6) Source() (hi, lo uint64) {
	return binary.BigEndian.Uint64(p[8:]), binary.BigEndian.Uint64(p[16:])
}

// Destination returns the destination address as two numbers.
func (p IPv6) Destination() (hi, lo uint64) {
	return binary.BigEndian.Uint64(p[24:]), binary.BigEndian.Uint64(p[32:])
}

// IPv6 options of hop-by-hop and destination options headers (RFC 8200, 4.2;
// RFC 2711). The top bits of a type say what becomes of a packet where the
// option is not known.
const (
	optPad1         = 0x00
	opt6RouterAlert = 0x05
	optJumbo        = 0xc2
	OptIfUnknown    = 0xc0 // mask of those bits: 0 skips the option
	OptSilent       = 0x40 // discard
	OptTell         = 0x80 // discard, and send an error even about a multicast packet
	OptTellUnicast  = 0xc0 // discard, and send an error but about a multicast packet
)

// ScanHopByHop walks the hop-by-hop options header at the start of b, the
// packet's payload cut to its length (RFC 8200, 4.3). A header that does not
// fit, an option whose length is wrong and a jumbo payload option (RFC 2675:
// its payload length cannot agree with the header's) are BadOption. A
// destination options header is of the same form.
func ScanHopByHop(b []byte) OptionSet {
	s, _ := LocateOption6(b)
	return s
}

// LocateOption6 is ScanHopByHop that also returns the offset in b of what is
// wrong. For an UnknownOption, which the jumbo payload is too, that is its type;
// otherwise it is the length of the header or of the option, or the option's type
// if that is the last byte.
func LocateOption6(b []byte) (s OptionSet, at int) {
	if len(b) < 8 || (int(b[1])+1)*8 > len(b) {
		return BadOption, 1
	}
	b = b[:(int(b[1])+1)*8]
	for i := 2; i < len(b); {
		if b[i] == optPad1 {
			i++
			continue
		}
		if i+1 >= len(b) {
			return s&^UnknownOption | BadOption, i
		}
		n := int(b[i+1])
		switch {
		case i+2+n > len(b), b[i] == opt6RouterAlert && n != 2:
			return s&^UnknownOption | BadOption, i + 1
		case b[i] == opt6RouterAlert:
			s |= RouterAlert
		case b[i] == optJumbo:
			return s | BadOption | UnknownOption, i
		case b[i]&OptIfUnknown != 0 && s&UnknownOption == 0:
			s |= UnknownOption
			at = i
		}
		i += 2 + n
	}
	return s, at
}

// Upper walks the extension headers of p (RFC 8200, 4), which may be cut. It
// returns the type and the place of the first header of another kind, and
// whether p is a fragment. The place is beyond p if the headers are. That of a
// fragment other than the first, whose upper-layer header is in the first one, is
// behind p.
func (p IPv6) Upper() (proto uint8, at int, fragment bool) {
	proto, at = p[6], IPv6Len
	for {
		n := 0
		switch proto {
		case ProtoHopByHop, ProtoRouting, ProtoDestOpts:
			if at+2 > len(p) {
				return proto, len(p), fragment
			}
			n = (int(p[at+1]) + 1) * 8
		case ProtoAH:
			if at+2 > len(p) {
				return proto, len(p), fragment
			}
			n = (int(p[at+1]) + 2) * 4
		case ProtoFragment:
			if at+4 > len(p) {
				return proto, len(p), true
			}
			fragment = true
			if binary.BigEndian.Uint16(p[at+2:])&^7 != 0 {
				return p[at], len(p), true
			}
			n = 8
		default:
			return proto, at, fragment
		}
		proto = p[at]
		at += n
	}
}

// Sum20 returns the ones' complement sum of an IPv4 header without options, in
// the machine's byte order. It is 0xffff when the checksum is right.
func Sum20(h *[20]byte) uint16 {
	s := uint64(binary.LittleEndian.Uint32(h[0:])) +
		uint64(binary.LittleEndian.Uint32(h[4:])) +
		uint64(binary.LittleEndian.Uint32(h[8:])) +
		uint64(binary.LittleEndian.Uint32(h[12:])) +
		uint64(binary.LittleEndian.Uint32(h[16:]))
	s = s&0xffffffff + s>>32
	s = s&0xffff + s>>16&0xffff + s>>32
	return uint16(s + s>>16)
}

// Checksum returns the Internet checksum of b (RFC 1071): the value for the
// checksum field when that is zero in b, and 0 when b holds a right one.
func Checksum(b []byte) uint16 { return ^fold(sum(b, 0)) }

// ChecksumIPv6 returns the checksum of an upper-layer message of protocol
// proto between two IPv6 addresses (RFC 8200, 8.1), as Checksum does.
func ChecksumIPv6(src, dst *[16]byte, proto uint8, msg []byte) uint16 {
	s := sum(src[:], 0)
	s = sum(dst[:], s)
	s += uint64(len(msg)) + uint64(proto)
	return ^fold(sum(msg, s))
}

// sum adds b to s as big-endian 16-bit words; an odd last byte is padded with
// zero.
func sum(b []byte, s uint64) uint64 {
	for len(b) >= 4 {
		s += uint64(binary.BigEndian.Uint32(b))
		b = b[4:]
	}
	if len(b) >= 2 {
		s += uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		s += uint64(b[0]) << 8
	}
	return s
}

func fold(s uint64) uint16 {
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}
