package icmp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"nmfwd/test/frame"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"nmfwd/wire"
)

var (
	router4 = netip.MustParseAddr("198.18.0.205")
	router6 = netip.MustParseAddr("2001:2::205")
)

// packet4 is a packet from 198.18.10.1 to 198.19.10.1 with options and payload,
// of UDP unless change says otherwise.
func packet4(change func(h []byte), opts, payload []byte) []byte {
	h := make([]byte, wire.IPv4Len, wire.IPv4Len+len(opts)+len(payload))
	h[8], h[9] = 1, wire.ProtoUDP
	copy(h[12:], []byte{198, 18, 10, 1, 198, 19, 10, 1})
	h[4], h[5] = 0xab, 0xcd
	h = append(append(h, opts...), payload...)
	h[0] = 0x40 | byte(5+len(opts)/4)
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)))
	if change != nil {
		change(h)
	}
	n := wire.IPv4Len + len(opts)
	h[10], h[11] = 0, 0
	binary.BigEndian.PutUint16(h[10:], wire.Checksum(h[:n]))
	return h
}

// packet6 is a packet from 2001:2:0:1::1 to 2001:2:0:8001::1.
func packet6(next byte, change func(h []byte), payload []byte) []byte {
	h := make([]byte, wire.IPv6Len, wire.IPv6Len+len(payload))
	h[0], h[6], h[7] = 0x60, next, 1
	src, dst := netip.MustParseAddr("2001:2:0:1::1").As16(), netip.MustParseAddr("2001:2:0:8001::1").As16()
	copy(h[8:], src[:])
	copy(h[24:], dst[:])
	h = append(h, payload...)
	binary.BigEndian.PutUint16(h[4:], uint16(len(payload)))
	if change != nil {
		change(h)
	}
	return h
}

// datagram is a UDP datagram of n bytes from port 53 to port 33434, without a
// checksum.
func datagram(n int) []byte {
	d := make([]byte, n)
	copy(d, []byte{0, 53, 0x82, 0x9a, byte(n >> 8), byte(n)})
	for i := 8; i < n; i++ {
		d[i] = byte(i)
	}
	return d
}

func build(e Error, p []byte) []byte {
	src := router4
	if p[0]>>4 == 6 {
		src = router6
	}
	b := bytes.Repeat([]byte{0xee}, MaxError)
	return b[:e.Build(b, p, src, 0x1234)]
}

// golden has one error of each type and code, byte by byte.
func golden() []goldenError {
	small4 := packet4(nil, nil, datagram(12))
	small6 := packet6(wire.ProtoUDP, nil, datagram(12))
	quote4 := "4500 0020 abcd 0000 0111 6dd8 c6120a01 c6130a01 0035829a000c0000 08090a0b"
	quote6 := "60000000 000c 1101 20010002000000010000000000000001 20010002000080010000000000000001 0035829a000c0000 08090a0b"
	header4 := "45c0 003c 1234 0000 4001 d0da c61200cd c6120a01"
	header6 := "60000000 003c 3a40 20010002000000000000000000000205 20010002000000010000000000000001"
	return []goldenError{
		{"net unreachable", Error{Kind: NetUnreachable}, small4, header4 + "0300 6810 00000000" + quote4},
		{"host unreachable", Error{Kind: HostUnreachable}, small4, header4 + "0301 680f 00000000" + quote4},
		{"protocol unreachable", Error{Kind: ProtocolUnreachable}, small4, header4 + "0302 680e 00000000" + quote4},
		{"port unreachable", Error{Kind: PortUnreachable}, small4, header4 + "0303 680d 00000000" + quote4},
		{"prohibited", Error{Kind: Prohibited}, small4, header4 + "030d 6803 00000000" + quote4},
		{"fragmentation needed", Error{Kind: TooBig, MTU: 1400}, small4, header4 + "0304 6294 00000578" + quote4},
		{"time exceeded", Error{Kind: TimeExceeded}, small4, header4 + "0b00 6010 00000000" + quote4},
		{"parameter problem", Error{Kind: ParameterProblem, Pointer: 21}, small4, header4 + "0c00 4a10 15000000" + quote4},
		{"no route, v6", Error{Kind: NetUnreachable}, small6, header6 + "0100 f674 00000000" + quote6},
		{"address unreachable, v6", Error{Kind: HostUnreachable}, small6, header6 + "0103 f671 00000000" + quote6},
		{"next header, v6", Error{Kind: ProtocolUnreachable, Pointer: 6}, small6, header6 + "0401 f36d 00000006" + quote6},
		{"port unreachable, v6", Error{Kind: PortUnreachable}, small6, header6 + "0104 f670 00000000" + quote6},
		{"prohibited, v6", Error{Kind: Prohibited}, small6, header6 + "0101 f673 00000000" + quote6},
		{"packet too big", Error{Kind: TooBig, MTU: 1400}, small6, header6 + "0200 effc 00000578" + quote6},
		{"time exceeded, v6", Error{Kind: TimeExceeded}, small6, header6 + "0300 f474 00000000" + quote6},
		{"parameter problem, v6", Error{Kind: ParameterProblem, Pointer: 43}, small6, header6 + "0400 f349 0000002b" + quote6},
		{"unrecognized option, v6", Error{Kind: ParameterProblem, Code: BadOption, Pointer: 42}, small6, header6 + "0402 f348 0000002a" + quote6},
	}
}

type goldenError struct {
	name string
	e    Error
	p    []byte
	want string
}

func TestGolden(t *testing.T) {
	for _, c := range golden() {
		got, want := build(c.e, c.p), frame.Hex(t, c.want)
		if !bytes.Equal(got, want) {
			t.Errorf("%s: got\n% x, want\n% x", c.name, got, want)
		}
		decode(t, c.name, got)
	}
}

// decode lets gopacket look at a packet, which must find nothing wrong, and
// recompute its checksums.
func decode(t *testing.T, name string, b []byte) {
	t.Helper()
	first := gopacket.LayerType(layers.LayerTypeIPv4)
	if b[0]>>4 == 6 {
		first = layers.LayerTypeIPv6
	}
	p := gopacket.NewPacket(b, first, gopacket.Default)
	if err := p.ErrorLayer(); err != nil {
		t.Errorf("%s: %v", name, err.Error())
		return
	}
	if p.Layer(layers.LayerTypeICMPv4) == nil && p.Layer(layers.LayerTypeICMPv6) == nil {
		t.Errorf("%s: no ICMP in %v", name, p)
	}
	if l, ok := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6); ok {
		if err := l.SetNetworkLayerForChecksum(p.NetworkLayer()); err != nil {
			t.Error(err)
		}
	}
	if err, wrong := p.VerifyChecksums(); err != nil || len(wrong) > 0 {
		t.Errorf("%s: checksums %v, %v", name, wrong, err)
	}
	if m := p.Metadata(); m.Truncated {
		t.Errorf("%s: truncated", name)
	}
}

// TestQuote: an error holds as much of the packet as fits, as received (RFC 1812,
// 4.3.2.3; RFC 4443, 2.4 (c)).
func TestQuote(t *testing.T) {
	for _, c := range []struct {
		name string
		p    []byte
		want int // length of the message
	}{
		{"v4, header only", packet4(nil, nil, nil), 48},
		{"v4, just fits", packet4(nil, nil, datagram(576-28-20)), 576},
		{"v4, a byte more", packet4(nil, nil, datagram(576-28-20+1)), 576},
		{"v4, full size", packet4(nil, nil, datagram(1480)), 576},
		{"v4, options", packet4(nil, []byte{1, 1, 1, 0}, datagram(1476)), 576},
		{"v4, trailer", append(packet4(nil, nil, datagram(8)), 1, 2, 3), 56},
		{"v6, header only", packet6(59, nil, nil), 88},
		{"v6, just fits", packet6(17, nil, datagram(1280-48-40)), 1280},
		{"v6, full size", packet6(17, nil, datagram(1460)), 1280},
		{"v6, trailer", append(packet6(59, nil, nil), 1, 2, 3), 88},
	} {
		p := bytes.Clone(c.p)
		got := build(Error{Kind: TimeExceeded}, p)
		header := wire.IPv4Len
		if p[0]>>4 == 6 {
			header = wire.IPv6Len
		}
		if len(got) != c.want {
			t.Errorf("%s: got %d bytes, want %d", c.name, len(got), c.want)
		}
		if quote := got[header+headerLen:]; !bytes.HasPrefix(c.p, quote) {
			t.Errorf("%s: % x is not quoted in % x", c.name, c.p, quote)
		}
		if !bytes.Equal(p, c.p) {
			t.Errorf("%s: the packet was changed", c.name)
		}
	}
}

// TestTOS: the TOS bits of the packet, the precedence of network control, and no
// ECN (RFC 1812, 4.3.2.5; RFC 3168).
func TestTOS(t *testing.T) {
	for _, c := range []struct{ tos, want byte }{{0, 0xc0}, {0x10, 0xd0}, {0xb8, 0xd8}, {0x03, 0xc0}, {0xff, 0xdc}} {
		got := build(Error{Kind: TimeExceeded}, packet4(func(h []byte) { h[1] = c.tos }, nil, nil))
		if got[1] != c.want {
			t.Errorf("TOS %#x: got %#x, want %#x", c.tos, got[1], c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	icmp4 := func(kind byte) []byte {
		return packet4(func(h []byte) { h[9] = wire.ProtoICMP }, nil, []byte{kind, 0, 0, 0, 0, 0, 0, 0})
	}
	icmp6 := func(kind byte) []byte { return packet6(wire.ProtoICMPv6, nil, []byte{kind, 0, 0, 0, 0, 0, 0, 0}) }
	from4 := func(a ...byte) []byte { return packet4(func(h []byte) { copy(h[12:], a) }, nil, datagram(8)) }
	to4 := func(a ...byte) []byte { return packet4(func(h []byte) { copy(h[16:], a) }, nil, datagram(8)) }
	from6 := func(s string) []byte {
		a := netip.MustParseAddr(s).As16()
		return packet6(17, func(h []byte) { copy(h[8:], a[:]) }, datagram(8))
	}
	to6 := packet6(17, func(h []byte) { copy(h[24:], []byte{0xff, 2}) }, datagram(8))
	group6 := func(option byte) []byte {
		return packet6(0, func(h []byte) { copy(h[24:], []byte{0xff, 2}) }, append([]byte{17, 0, option, 4, 0, 0, 0, 0}, datagram(8)...))
	}
	plain, tooBig := Error{Kind: TimeExceeded}, Error{Kind: TooBig, MTU: 1400}
	option := Error{Kind: ParameterProblem, Code: BadOption, Pointer: 42}
	for _, c := range []struct {
		name  string
		e     Error
		p     []byte
		group bool
		want  Reason
	}{
		{"UDP", plain, packet4(nil, nil, datagram(8)), false, OK},
		{"echo request", plain, icmp4(8), false, OK},
		{"echo reply", plain, icmp4(0), false, OK},
		{"timestamp", plain, icmp4(13), false, OK},
		{"unreachable", plain, icmp4(3), false, AboutError},
		{"source quench", plain, icmp4(4), false, AboutError},
		{"redirect", plain, icmp4(5), false, AboutError},
		{"time exceeded", plain, icmp4(11), false, AboutError},
		{"parameter problem", plain, icmp4(12), false, AboutError},
		{"unknown ICMP type", plain, icmp4(41), false, AboutError},
		{"ICMP without a type", plain, packet4(func(h []byte) { h[9] = 1 }, nil, nil), false, AboutError},
		{"first fragment", plain, packet4(func(h []byte) { h[6] = 0x20 }, nil, datagram(8)), false, OK},
		{"later fragment", plain, packet4(func(h []byte) { h[7] = 1 }, nil, datagram(8)), false, Fragment},
		{"link broadcast", plain, packet4(nil, nil, datagram(8)), true, Multicast},
		{"to multicast", plain, to4(224, 0, 0, 251), false, Multicast},
		{"to broadcast", plain, to4(255, 255, 255, 255), false, Multicast},
		{"too big to multicast", tooBig, to4(239, 1, 1, 1), false, Multicast},
		{"from 0.0.0.0", plain, from4(0, 0, 0, 0), false, BadSource},
		{"from 127.0.0.1", plain, from4(127, 0, 0, 1), false, BadSource},
		{"from link-local", plain, from4(169, 254, 1, 1), false, BadSource},
		{"from multicast", plain, from4(224, 0, 0, 1), false, BadSource},
		{"from class E", plain, from4(240, 0, 0, 1), false, BadSource},
		{"from broadcast", plain, from4(255, 255, 255, 255), false, BadSource},

		{"UDP, v6", plain, packet6(17, nil, datagram(8)), false, OK},
		{"echo request, v6", plain, icmp6(128), false, OK},
		{"unreachable, v6", plain, icmp6(1), false, AboutError},
		{"unknown error, v6", plain, icmp6(127), false, AboutError},
		{"unknown information, v6", plain, icmp6(200), false, OK},
		{"redirect, v6", plain, icmp6(137), false, AboutError},
		{"ICMPv6 without a type", plain, packet6(58, nil, nil), false, AboutError},
		{"error behind options", plain, packet6(60, nil, []byte{58, 0, 1, 4, 0, 0, 0, 0, 3, 0, 0, 0}), false, AboutError},
		{"error in the first fragment", plain, packet6(44, nil, []byte{58, 0, 0, 1, 0, 0, 0, 1, 3, 0, 0, 0}), false, AboutError},
		{"later fragment of ICMPv6", plain, packet6(44, nil, []byte{58, 0, 0, 8, 0, 0, 0, 1, 3, 0, 0, 0}), false, AboutError},
		{"later fragment of UDP, v6", plain, packet6(44, nil, []byte{17, 0, 0, 8, 0, 0, 0, 1, 3, 0, 0, 0}), false, OK},
		{"link multicast, v6", plain, packet6(17, nil, datagram(8)), true, Multicast},
		{"to multicast, v6", plain, to6, false, Multicast},
		{"too big to multicast, v6", tooBig, to6, true, OK},
		{"unknown option to multicast", option, group6(0x9e), true, OK},
		{"unknown option to multicast, unicast only", option, group6(0xde), true, Multicast},
		{"from ::", plain, from6("::"), false, BadSource},
		{"from ::1", plain, from6("::1"), false, BadSource},
		{"from mapped", plain, from6("::ffff:1.2.3.4"), false, BadSource},
		{"from multicast, v6", plain, from6("ff02::1"), false, BadSource},
		{"from link-local, v6", plain, from6("fe80::1"), false, OK}, // on its link
	} {
		if got := c.e.Check(c.p, c.group); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestOptionProblem(t *testing.T) {
	for _, c := range []struct {
		name string
		p    []byte
		want Error
		ok   bool
	}{
		{"no options", packet4(nil, nil, nil), Error{}, false},
		{"length 0", packet4(nil, []byte{1, 7, 0, 0}, nil), Error{Kind: ParameterProblem, Pointer: 22}, true},
		{"no length", packet4(nil, []byte{1, 1, 1, 7}, nil), Error{Kind: ParameterProblem, Pointer: 23}, true},
		{"v6, none", packet6(17, nil, datagram(8)), Error{}, false},
		{"v6, option beyond", packet6(0, nil, []byte{17, 0, 1, 5, 0, 0, 0, 0}), Error{Kind: ParameterProblem, Pointer: 43}, true},
		{"v6, header beyond", packet6(0, nil, []byte{17, 1, 1, 4, 0, 0, 0, 0}), Error{Kind: ParameterProblem, Pointer: 41}, true},
		{"v6, jumbo", packet6(0, nil, []byte{17, 0, 0xc2, 4, 0, 1, 0, 0}), Error{Kind: ParameterProblem, Code: BadOption, Pointer: 42}, true},
		{"v6, unknown", packet6(0, nil, []byte{17, 0, 0x9e, 4, 0, 1, 0, 0}), Error{}, false},
	} {
		if got, ok := OptionProblem(c.p); ok != c.ok || ok && got != c.want {
			t.Errorf("%s: got %+v, %v, want %+v, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

func TestDue(t *testing.T) {
	for _, c := range []struct {
		name string
		p    []byte
		want Error
		why  Reason
	}{
		{"UDP", packet4(nil, nil, datagram(8)), Error{Kind: PortUnreachable}, OK},
		{"UDP fragment", packet4(func(h []byte) { h[6] = 0x20 }, nil, datagram(8)), Error{}, Fragment},
		{"ICMP", packet4(func(h []byte) { h[9] = 1 }, nil, datagram(8)), Error{Kind: EchoReply}, OK},
		{"TCP", packet4(func(h []byte) { h[9] = 6 }, nil, datagram(20)), Error{Kind: ProtocolUnreachable}, OK},
		{"UDP, v6", packet6(17, nil, datagram(8)), Error{Kind: PortUnreachable}, OK},
		{"ICMPv6", packet6(58, nil, datagram(8)), Error{Kind: EchoReply}, OK},
		{"TCP, v6", packet6(6, nil, datagram(20)), Error{Kind: ProtocolUnreachable, Pointer: 6}, OK},
		{"TCP behind padding", packet6(60, nil, []byte{6, 0, 1, 4, 0, 0, 0, 0}), Error{Kind: ProtocolUnreachable, Pointer: 40}, OK},
		{"no next header", packet6(59, nil, nil), Error{}, Silent},
		{"fragment, v6", packet6(44, nil, []byte{17, 0, 0, 1, 0, 0, 0, 0}), Error{}, Fragment},
		{"hop-by-hop twice", packet6(0, nil, []byte{0, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0}), Error{Kind: ProtocolUnreachable, Pointer: 40}, OK},
		{"routing header, done", packet6(43, nil, []byte{17, 0, 4, 0, 0, 0, 0, 0}), Error{Kind: PortUnreachable}, OK},
		{"routing header, segments left", packet6(43, nil, []byte{17, 0, 4, 1, 0, 0, 0, 0}), Error{Kind: ParameterProblem, Pointer: 42}, OK},
		{"routing header cut", packet6(43, nil, []byte{17, 1, 4, 0, 0, 0, 0, 0}), Error{Kind: ParameterProblem, Pointer: 41}, OK},
		{"unknown option, skip", packet6(60, nil, []byte{17, 0, 0x1e, 4, 0, 0, 0, 0}), Error{Kind: PortUnreachable}, OK},
		{"unknown option, discard", packet6(60, nil, []byte{17, 0, 0x5e, 4, 0, 0, 0, 0}), Error{}, Silent},
		{"unknown option, tell", packet6(60, nil, []byte{58, 0, 0xde, 4, 0, 0, 0, 0}), Error{Kind: ParameterProblem, Code: BadOption, Pointer: 42}, OK},
		{"bad option", packet6(60, nil, []byte{17, 0, 1, 9, 0, 0, 0, 0}), Error{Kind: ParameterProblem, Pointer: 43}, OK},
	} {
		if got, why := Due(c.p); got != c.want || why != c.why {
			t.Errorf("%s: got %+v, %q, want %+v, %q", c.name, got, why, c.want, c.why)
		}
	}
}

func echo4(tos byte, frag uint16, opts, data []byte) []byte {
	m := append([]byte{8, 0, 0, 0, 1, 2, 3, 4}, data...)
	binary.BigEndian.PutUint16(m[2:], wire.Checksum(m))
	return packet4(func(h []byte) {
		h[1], h[9] = tos, wire.ProtoICMP
		binary.BigEndian.PutUint16(h[6:], frag)
	}, opts, m)
}

func echo6(ext, data []byte) []byte {
	m := append([]byte{128, 0, 0, 0, 1, 2, 3, 4}, data...)
	next := byte(wire.ProtoICMPv6)
	if ext != nil {
		next = wire.ProtoDestOpts
	}
	p := packet6(next, nil, append(bytes.Clone(ext), m...))
	src, dst := [16]byte(p[8:24]), [16]byte(p[24:40])
	binary.BigEndian.PutUint16(p[len(p)-len(m)+2:], wire.ChecksumIPv6(&src, &dst, wire.ProtoICMPv6, m))
	return p
}

// destination returns where p goes.
func destination(p []byte) netip.Addr {
	if p[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(p[16:20]))
	}
	return netip.AddrFrom16([16]byte(p[24:40]))
}

func TestReply(t *testing.T) {
	data := []byte("odd")
	bad := func(p []byte) []byte { p[len(p)-1] ^= 1; return p }
	kind := func(p []byte, at int) []byte { p[at]++; p[at+2]--; return p } // the checksum stays right
	for _, c := range []struct {
		name string
		p    []byte
		want string
		why  Reason
	}{
		{"v4", echo4(0xb9, 0x4000, nil, data), "45b8 001f 1234 0000 4001 c7ca c6130a01 c6120a01 0000 2895 01020304 6f6464", OK},
		{"v4, options", echo4(0, 0, []byte{7, 7, 4, 0, 0, 0, 0, 0}, data), "4700 0027 1234 0000 4001 a2a3 c6130a01 c6120a01 070708c6130a0100 0000 2895 01020304 6f6464", OK},
		{"v4, length of an option", echo4(0, 0, []byte{7, 1, 4, 0}, data), "", Malformed},
		{"v4, fragment", echo4(0, 0x2000, nil, data), "", Fragment},
		{"v4, checksum", bad(echo4(0, 0, nil, data)), "", Malformed},
		{"v4, other type", kind(echo4(0, 0, nil, data), 20), "", Silent},
		{"v4, short", packet4(func(h []byte) { h[9] = 1 }, nil, []byte{8, 0, 0xf7, 0xff}), "", Malformed},
		{"v6", echo6(nil, data), "60000000 000b 3a40 20010002000080010000000000000001 20010002000000010000000000000001 8100 e744 01020304 6f6464", OK},
		{"v6, extension header", echo6([]byte{58, 0, 1, 4, 0, 0, 0, 0}, data), "60000000 000b 3a40 20010002000080010000000000000001 20010002000000010000000000000001 8100 e744 01020304 6f6464", OK},
		{"v6, fragment", packet6(44, nil, []byte{58, 0, 0, 1, 0, 0, 0, 0, 128, 0, 0, 0}), "", Fragment},
		{"v6, checksum", bad(echo6(nil, data)), "", Malformed},
		{"v6, other type", kind(echo6(nil, data), 40), "", Silent},
		{"v6, short", packet6(58, nil, []byte{128, 0, 0, 0}), "", Malformed},
		{"v6, cut", echo6(nil, data)[:50], "", Malformed},
	} {
		b := bytes.Repeat([]byte{0xee}, len(c.p))
		n, why := Reply(b, c.p, destination(c.p), 0x1234, 0x01020304)
		if why != c.why || !bytes.Equal(b[:n], frame.Hex(t, c.want)) {
			t.Errorf("%s: got %q, % x, want %q, %s", c.name, why, b[:n], c.why, c.want)
		}
		if n > 0 {
			decode(t, c.name, b[:n])
		}
	}
}

func TestReplyOptions(t *testing.T) {
	for _, c := range []struct{ name, options, want string }{
		{"none", "", ""},
		{"no operation", "01010101", ""},
		{"end of list", "00070707", ""},
		{"record route", "0707040000000000", "070708c6130a0100"},
		{"record route behind others", "01010707040000000000000000000000", "070708c6130a0100"},
		{"record route, second", "070b08c6120001000000000000", "070b0cc6120001c6130a0100"},
		{"record route, full", "070708c612000100", "070708c612000100"},
		{"record route, room for three bytes", "0706040000000000", "0706040000000000"},
		{"record route, pointer in its header", "0707030000000000", ""},
		{"record route, pointer far beyond", "0707ff0000000000", "0707ff0000000000"},
		{"record route without a pointer", "07020000", ""},
		{"times", "440c05000000000000000000", "440c09000102030400000000"},
		{"times, full", "4408090000000001", "4408091000000001"},
		{"times, full for many", "440809f000000001", "440809f000000001"},
		{"times with addresses", "440c05010000000000000000", "440c0d01c6130a0101020304"},
		{"times with addresses, room for one word", "4408050100000000", "4408051100000000"},
		{"times of others", "440c0503c612000100000000", "440c0503c612000100000000"},
		{"times of us", "440c0503c6130a0100000000", "440c0d03c6130a0101020304"},
		{"times of us, cut", "44080503c6130a01", "44080503c6130a01"},
		{"times, unknown flag", "440c05020000000000000000", "440c05020000000000000000"},
		{"times, pointer in its header", "440c04000000000000000000", ""},
		{"times without flags", "44030500", ""},
		{"both", "070704000000004408050000000000", "070708c6130a014408090001020304" + "00"},
		{"security", "820b00000000000000000000", ""},
	} {
		o := frame.Hex(t, c.options)
		b := bytes.Repeat([]byte{0xee}, 44)
		n := replyOptions(b, o, [4]byte{198, 19, 10, 1}, 0x01020304)
		if !bytes.Equal(b[:n], frame.Hex(t, c.want)) {
			t.Errorf("%s: got % x, want %s", c.name, b[:n], c.want)
		}
	}
}

// valid fails when b is not one whole ICMP packet with right checksums.
func valid(t *testing.T, b []byte) {
	t.Helper()
	if b[0]>>4 == 4 {
		if wire.CheckIPv4(b, len(b)) != wire.OK || wire.IPv4(b).TotalLen() != len(b) || b[9] != wire.ProtoICMP || wire.Checksum(b[wire.IPv4(b).HeaderLen():]) != 0 {
			t.Fatalf("not valid: % x", b)
		}
		return
	}
	src, dst := [16]byte(b[8:24]), [16]byte(b[24:40])
	if wire.CheckIPv6(b, len(b)) != wire.OK || wire.IPv6(b).TotalLen() != len(b) || b[6] != wire.ProtoICMPv6 || wire.ChecksumIPv6(&src, &dst, wire.ProtoICMPv6, b[40:]) != 0 {
		t.Fatalf("not valid: % x", b)
	}
}

// FuzzBuild: about whatever passes the gates, cut anywhere behind the header,
// there is a refusal or a valid packet of bounded length.
func FuzzBuild(f *testing.F) {
	for _, p := range [][]byte{
		packet4(nil, nil, datagram(8)), packet4(nil, []byte{1, 7, 0, 0}, datagram(1000)), echo4(0, 0, nil, []byte("x")),
		packet6(17, nil, datagram(8)), packet6(0, nil, []byte{17, 0, 0xc2, 4, 0, 1, 0, 0}), echo6([]byte{58, 0, 1, 4, 0, 0, 0, 0}, nil),
		packet6(43, nil, []byte{60, 0, 4, 0, 0, 0, 0, 0, 58, 0, 0x9e, 4, 0, 0, 0, 0}),
	} {
		f.Add(p, 0, byte(TimeExceeded), false)
	}
	f.Fuzz(func(t *testing.T, p []byte, cut int, kind byte, group bool) {
		src, ok := router4, false
		if len(p) > 0 && p[0]>>4 == 4 {
			ok = wire.CheckIPv4(p, len(p)) == wire.OK
		} else if len(p) > 0 {
			src, ok = router6, wire.CheckIPv6(p, len(p)) == wire.OK
		}
		if !ok {
			return
		}
		was := bytes.Clone(p)
		b := make([]byte, max(len(p), MaxError))
		e := Error{Kind: Kind(kind % byte(EchoReply)), MTU: 1400, Pointer: cut & 0xff, Code: BadOption}
		errs := []Error{e}
		if o, bad := OptionProblem(p); bad {
			errs = append(errs, o)
		}
		if d, why := Due(p); why == OK && d.Kind == EchoReply {
			if n, why := Reply(b, p, src, 1, 0); why == OK {
				valid(t, b[:n])
			} else if n != 0 {
				t.Fatalf("%d bytes in spite of %q", n, why)
			}
		} else if why == OK {
			errs = append(errs, d)
		}
		least := wire.IPv6Len
		if p[0]>>4 == 4 {
			least = wire.IPv4(p).HeaderLen()
		}
		p = p[:max(least, len(p)-cut&0xffff)]
		for _, e := range errs {
			if e.Check(p, group) != OK {
				continue
			}
			n := e.Build(b, p, src, 7)
			valid(t, b[:n])
			if most := map[byte]int{4: maxError4, 6: maxError6}[b[0]>>4]; n > most {
				t.Fatalf("%d bytes, want at most %d", n, most)
			}
		}
		if !bytes.Equal(p, was[:len(p)]) {
			t.Fatal("the packet was changed")
		}
	})
}

func TestNames(t *testing.T) {
	for k := range Kind(NumKinds) {
		if k.String() == "" {
			t.Errorf("kind %d has no name", k)
		}
	}
	for r := Reason(1); r < NumReasons; r++ {
		if r.String() == "" {
			t.Errorf("reason %d has no name", r)
		}
	}
}
