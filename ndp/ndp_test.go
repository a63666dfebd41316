package ndp

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"nmfwd/test/frame"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"nmfwd/neigh"
	"nmfwd/wire"
)

const (
	portMAC    = "000db941ca3d"
	gatewayMAC = "001b21c4957a"
	otherMAC   = "020000000099"
	virtualMAC = "00005e000207"
	nodesMAC   = "333300000001" // ff02::1
	ownGroup   = "3333ff000205" // solicited-node group of own
	zeroMAC    = "000000000000"

	own       = "2001:2::205"
	linkLocal = "fe80::20d:b9ff:fe41:ca3d"
	anycast   = "2001:2::"
	gateway   = "2001:2::203" // static
	host      = "2001:2::99"  // unknown
	farOwn    = "2001:2:0:8000::205"
	group     = "ff02::1:ff00:205"
	nodes     = "ff02::1"
	none      = "::"

	sourceGW   = "0101" + gatewayMAC
	sourceElse = "0101" + otherMAC
	targetGW   = "0201" + gatewayMAC
	targetElse = "0201" + otherMAC
	targetPort = "0201" + portMAC
	nonce      = "0e01010203040506" // RFC 3971, 5.3.2
)

var addr = netip.MustParseAddr

func mac(t testing.TB, s string) wire.MAC { return wire.MACOf(frame.Hex(t, s)) }

// A spec describes a frame; zero values stand for what is usual.
type spec struct {
	to, from     string // MAC addresses
	etherType    uint16 // 0 for IPv6
	next         uint8  // next header, 0 for ICMPv6
	before       string // between the IPv6 header and the message
	hopLimit     uint8  // 0 for 255
	src, dst     string
	typ, code    uint8
	flags        uint8
	target       string
	options      string
	cut          int    // bytes missing at the end of the packet, header and checksum according
	short        int    // bytes missing at the end of the frame
	checksumFlip uint16 // bits wrong in the checksum
	trailer      string
}

// frame builds the frame with a checksum of its own (RFC 8200, 8.1).
func (s spec) frame(t testing.TB) []byte {
	src, dst, target := addr(s.src).As16(), addr(s.dst).As16(), addr(s.target).As16()
	msg := slices.Concat([]byte{s.typ, s.code, 0, 0, s.flags, 0, 0, 0}, target[:], frame.Hex(t, s.options))
	msg = msg[:len(msg)-s.cut]
	if len(msg) >= 4 {
		sum := 0
		words := slices.Concat(src[:], dst[:], []byte{0, 0, 0, byte(len(msg)), 0, 0, 0, 58}, msg, make([]byte, len(msg)&1))
		for i := 0; i < len(words); i += 2 {
			sum += int(words[i])<<8 | int(words[i+1])
		}
		for sum > 0xffff {
			sum = sum&0xffff + sum>>16
		}
		binary.BigEndian.PutUint16(msg[2:], ^uint16(sum)^s.checksumFlip)
	}
	before := frame.Hex(t, s.before)
	orElse := func(v, usual uint8) uint8 {
		if v == 0 {
			return usual
		}
		return v
	}
	etherType := s.etherType
	if etherType == 0 {
		etherType = 0x86dd
	}
	f := slices.Concat(frame.Hex(t, s.to), frame.Hex(t, s.from), []byte{byte(etherType >> 8), byte(etherType)},
		[]byte{0x60, 0, 0, 0, 0, byte(len(before) + len(msg)), orElse(s.next, 58), orElse(s.hopLimit, 255)},
		src[:], dst[:], before, msg, frame.Hex(t, s.trailer))
	return f[:len(f)-s.short]
}

// ns and na are a usual solicitation for our address and a usual answer to it.
var (
	ns = spec{to: ownGroup, from: gatewayMAC, src: gateway, dst: group, typ: 135, target: own, options: sourceGW}
	na = spec{to: portMAC, from: gatewayMAC, src: gateway, dst: own, typ: 136, flags: 0x60, target: gateway, options: targetGW}
	// probe asks whether anyone has our address already.
	probe = spec{to: ownGroup, from: otherMAC, src: none, dst: group, typ: 135, target: own}
)

func with(s spec, f func(*spec)) spec {
	f(&s)
	return s
}

func TestValid(t *testing.T) {
	tests := []struct {
		name string
		spec spec
		want bool
	}{
		{"solicitation", ns, true},
		{"solicitation, unicast", with(ns, func(s *spec) { s.dst = own }), true},
		{"solicitation, no options", with(ns, func(s *spec) { s.options = "" }), true},
		{"solicitation, unknown option", with(ns, func(s *spec) { s.options = nonce + sourceGW }), true},
		{"solicitation, option of two units", with(ns, func(s *spec) { s.options = "fd02" + strings.Repeat("00", 14) }), true},
		{"solicitation, target option means nothing", with(ns, func(s *spec) { s.options = "0201ffffffffffff" }), true},
		{"solicitation, reserved bits", with(ns, func(s *spec) { s.flags = 0xff }), true},
		{"solicitation, trailing bytes", with(ns, func(s *spec) { s.trailer = "ffffff" }), true},
		{"solicitation, link-local", with(ns, func(s *spec) { s.src = "fe80::1" }), true},
		{"probe", probe, true},
		{"probe, nonce", with(probe, func(s *spec) { s.options = nonce }), true},
		{"advertisement", na, true},
		{"advertisement, no options", with(na, func(s *spec) { s.options = "" }), true},
		{"advertisement to all, unsolicited", with(na, func(s *spec) { s.dst, s.flags = nodes, 0xa0 }), true},
		{"hop limit 254", with(ns, func(s *spec) { s.hopLimit = 254 }), false},
		{"hop limit 1", with(na, func(s *spec) { s.hopLimit = 1 }), false},
		{"code 1", with(ns, func(s *spec) { s.code = 1 }), false},
		{"advertisement, code 1", with(na, func(s *spec) { s.code = 1 }), false},
		{"checksum", with(ns, func(s *spec) { s.checksumFlip = 1 }), false},
		{"advertisement, checksum", with(na, func(s *spec) { s.checksumFlip = 0x8000 }), false},
		{"message of 23 bytes", with(probe, func(s *spec) { s.cut = 1 }), false},
		{"message of 4 bytes", with(probe, func(s *spec) { s.cut = 20 }), false},
		{"no message", with(probe, func(s *spec) { s.cut = 24 }), false},
		{"frame cut", with(ns, func(s *spec) { s.short = 1 }), false},
		{"frame cut in the header", with(probe, func(s *spec) { s.short = 25 }), false},
		{"target multicast", with(ns, func(s *spec) { s.target = group }), false},
		{"advertisement, target multicast", with(na, func(s *spec) { s.target = nodes }), false},
		{"source multicast", with(ns, func(s *spec) { s.src = nodes }), false},
		{"source loopback", with(ns, func(s *spec) { s.src = "::1" }), false},
		{"option of length zero", with(ns, func(s *spec) { s.options = "0e00010203040506" }), false},
		{"option of length zero behind a good one", with(ns, func(s *spec) { s.options = sourceGW + "0e00010203040506" }), false},
		{"option longer than the packet", with(ns, func(s *spec) { s.options = "0e02010203040506" }), false},
		{"option cut", with(ns, func(s *spec) { s.cut = 1 }), false},
		{"one byte behind the options", with(ns, func(s *spec) { s.options += "00" }), false},
		{"source option of two units", with(ns, func(s *spec) { s.options = "0102" + gatewayMAC + strings.Repeat("00", 8) }), false},
		{"source option, broadcast", with(ns, func(s *spec) { s.options = "0101ffffffffffff" }), false},
		{"source option, multicast", with(ns, func(s *spec) { s.options = "0101333300000001" }), false},
		{"source option, zero", with(ns, func(s *spec) { s.options = "0101000000000000" }), false},
		{"target option, multicast", with(na, func(s *spec) { s.options = "0201333300000001" }), false},
		{"probe with a source option", with(probe, func(s *spec) { s.options = sourceElse }), false},
		{"probe to unicast", with(probe, func(s *spec) { s.dst = own }), false},
		{"probe to all nodes", with(probe, func(s *spec) { s.dst = nodes }), false},
		{"probe to the group of another scope", with(probe, func(s *spec) { s.dst = "ff05::1:ff00:205" }), false},
		{"advertisement to all, solicited", with(na, func(s *spec) { s.dst = nodes }), false},
		{"router solicitation", with(ns, func(s *spec) { s.typ = 133 }), false},
		{"redirect", with(ns, func(s *spec) { s.typ = 137 }), false},
		{"echo request", with(ns, func(s *spec) { s.typ = 128 }), false},
		{"UDP", with(ns, func(s *spec) { s.next = 17 }), false},
		{"RFC 6980: fragment header", with(ns, func(s *spec) { s.next, s.before = 44, "3a00000000000001" }), false},
		{"destination options", with(ns, func(s *spec) { s.next, s.before = 60, "3a00010400000000" }), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Packet(tt.spec.frame(t)[14:]).Valid(); got != tt.want {
				t.Errorf("got %t, want %t", got, tt.want)
			}
		})
	}
	t.Run("version 4", func(t *testing.T) {
		p := Packet(ns.frame(t)[14:])
		p[0] = 0x45
		if p.Valid() {
			t.Error("got true, want false")
		}
	})
}

func TestTypeOf(t *testing.T) {
	tests := []struct {
		typ  uint8
		want bool
		name string
	}{
		{132, false, "ICMPv6 type 132"},
		{133, true, "router solicitation"},
		{134, true, "router advertisement"},
		{135, true, "neighbor solicitation"},
		{136, true, "neighbor advertisement"},
		{137, true, "redirect"},
		{138, false, "ICMPv6 type 138"},
	}
	for _, tt := range tests {
		p := with(ns, func(s *spec) { s.typ = tt.typ }).frame(t)[14:]
		got, ok := TypeOf(p)
		if got != Type(tt.typ) || ok != tt.want || got.String() != tt.name {
			t.Errorf("type %d: got %q, %t, want %q, %t", tt.typ, got, ok, tt.name, tt.want)
		}
	}
	if _, ok := TypeOf(with(probe, func(s *spec) { s.cut = 24 }).frame(t)[14:]); ok {
		t.Error("found a message in a packet without payload")
	}
}

func TestAccessors(t *testing.T) {
	p := Packet(with(na, func(s *spec) { s.flags, s.options = 0xff, nonce+targetElse+targetGW }).frame(t)[14:])
	if got := p.Type(); got != NeighborAdvertisement {
		t.Errorf("type: got %s, want %s", got, NeighborAdvertisement)
	}
	if got := p.Source(); got != addr(gateway) {
		t.Errorf("source: got %s, want %s", got, gateway)
	}
	if got := p.Destination(); got != addr(own) {
		t.Errorf("destination: got %s, want %s", got, own)
	}
	if got := p.Target(); got != addr(gateway) {
		t.Errorf("target: got %s, want %s", got, gateway)
	}
	if got, want := p.Flags(), Router|Solicited|Override; got != want {
		t.Errorf("flags: got %#x, want %#x", got, want)
	}
	if got, ok := p.LinkAddr(); !ok || got != mac(t, otherMAC) {
		t.Errorf("link address: got %x, %t, want %s", got.Bytes(), ok, otherMAC)
	}
}

func TestAddresses(t *testing.T) {
	tests := []struct{ mac, want string }{
		{portMAC, linkLocal},
		{otherMAC, "fe80::ff:fe00:99"},
	}
	for _, tt := range tests {
		if got := LinkLocal(mac(t, tt.mac)); got != addr(tt.want) {
			t.Errorf("link-local address of %s: got %s, want %s", tt.mac, got, tt.want)
		}
	}
	if got := SolicitedNode(addr("4037::01:800:200e:8c6c")); got != addr("ff02::1:ff0e:8c6c") { // the example of RFC 4291, 2.7.1
		t.Errorf("solicited-node address: got %s", got)
	}
	if got := MulticastMAC(addr(group)); got != mac(t, ownGroup) {
		t.Errorf("multicast mac: got %x, want %s", got.Bytes(), ownGroup)
	}
}

func TestEncode(t *testing.T) {
	pm, gm := mac(t, portMAC), mac(t, gatewayMAC)
	gwGroup, gwGroupMAC := "ff02::1:ff00:203", "3333ff000203"
	tests := []struct {
		name string
		put  func(b []byte) int
		want spec
	}{
		{"solicitation", func(b []byte) int { return Solicitation(b, pm, addr(own), addr(gateway)) },
			spec{to: gwGroupMAC, from: portMAC, src: own, dst: gwGroup, typ: 135, target: gateway, options: "0101" + portMAC}},
		{"probe", func(b []byte) int { return Solicitation(b, pm, addr(none), addr(own)) },
			spec{to: ownGroup, from: portMAC, src: none, dst: group, typ: 135, target: own}},
		{"verification", func(b []byte) int { return Verification(b, gm, pm, addr(own), addr(gateway)) },
			spec{to: gatewayMAC, from: portMAC, src: own, dst: gateway, typ: 135, target: gateway, options: "0101" + portMAC}},
		{"answer", func(b []byte) int { return Answer(b, gm, pm, addr(gateway), addr(own), false) },
			spec{to: gatewayMAC, from: portMAC, src: own, dst: gateway, typ: 136, flags: 0xe0, target: own, options: targetPort}},
		{"answer to a probe", func(b []byte) int { return Answer(b, gm, pm, addr(none), addr(own), false) },
			spec{to: nodesMAC, from: portMAC, src: own, dst: nodes, typ: 136, flags: 0xa0, target: own, options: targetPort}},
		{"answer, anycast", func(b []byte) int { return Answer(b, gm, pm, addr(gateway), addr(anycast), true) },
			spec{to: gatewayMAC, from: portMAC, src: linkLocal, dst: gateway, typ: 136, flags: 0xc0, target: anycast, options: targetPort}},
		{"announcement", func(b []byte) int { return Announcement(b, pm, addr(own)) },
			spec{to: nodesMAC, from: portMAC, src: own, dst: nodes, typ: 136, flags: 0xa0, target: own, options: targetPort}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dirty := bytes.Repeat([]byte{0xee}, FrameLen+10)
			b := slices.Clone(dirty)
			n := tt.put(b)
			if want := tt.want.frame(t); !bytes.Equal(b[:n], want) {
				t.Errorf("got  %x\nwant %x", b[:n], want)
			}
			if !bytes.Equal(b[n:], dirty[n:]) {
				t.Error("wrote behind the frame")
			}
			if !Packet(b[14:n]).Valid() {
				t.Error("what was written is not valid")
			}
		})
	}
}

// TestEncodePeer compares what is written with gopacket's own encoding.
func TestEncodePeer(t *testing.T) {
	eth := &layers.Ethernet{SrcMAC: frame.Hex(t, portMAC), DstMAC: frame.Hex(t, gatewayMAC), EthernetType: layers.EthernetTypeIPv6}
	ip := &layers.IPv6{Version: 6, NextHeader: layers.IPProtocolICMPv6, HopLimit: 255, SrcIP: net.ParseIP(own), DstIP: net.ParseIP(gateway)}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborAdvertisement, 0)}
	if err := icmp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	buf := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, icmp,
		&layers.ICMPv6NeighborAdvertisement{
			Flags: 0xe0, TargetAddress: net.ParseIP(own),
			Options: layers.ICMPv6Options{{Type: layers.ICMPv6OptTargetAddress, Data: frame.Hex(t, portMAC)}},
		})
	if err != nil {
		t.Fatal(err)
	}
	var b [FrameLen]byte
	n := Answer(b[:], mac(t, gatewayMAC), mac(t, portMAC), addr(gateway), addr(own), false)
	if !bytes.Equal(b[:n], buf.Bytes()) {
		t.Errorf("got  %x\nwant %x", b[:n], buf.Bytes())
	}
}

func newTable(t testing.TB) (*neigh.Table, *neigh.Port) {
	t.Helper()
	tab := neigh.New(make([]neigh.Source, 2), 10)
	if err := tab.Replace(map[neigh.Key]wire.MAC{{Port: 1, Addr: addr(gateway)}: mac(t, gatewayMAC)}, 10); err != nil {
		t.Fatal(err)
	}
	return tab, &neigh.Port{
		Num:     1,
		MAC:     mac(t, portMAC),
		MACs:    []wire.MAC{mac(t, virtualMAC)},
		Addrs:   []netip.Addr{addr("198.18.0.205"), addr(own), LinkLocal(mac(t, portMAC))},
		Anycast: []netip.Addr{addr(anycast)},
	}
}

func TestHandle(t *testing.T) {
	// answer is the advertisement of our address to the one who asks from addr.
	answer := func(to, addr string) spec {
		return spec{to: to, from: portMAC, src: own, dst: addr, typ: 136, flags: 0xe0, target: own, options: targetPort}
	}
	toAll := spec{to: nodesMAC, from: portMAC, src: own, dst: nodes, typ: 136, flags: 0xa0, target: own, options: targetPort}
	nothing := spec{}
	tests := []struct {
		name     string
		in       spec
		want     spec
		conflict neigh.Conflict
		host     bool
	}{
		{name: "solicitation", in: ns, want: answer(gatewayMAC, gateway)},
		{name: "solicitation, unicast", in: with(ns, func(s *spec) { s.to, s.dst = portMAC, own }), want: answer(gatewayMAC, gateway)},
		{name: "solicitation, all nodes", in: with(ns, func(s *spec) { s.to, s.dst = nodesMAC, nodes }), want: answer(gatewayMAC, gateway)},
		{name: "solicitation to a virtual mac", in: with(ns, func(s *spec) { s.to, s.dst = virtualMAC, own }), want: answer(gatewayMAC, gateway)},
		{name: "solicitation of an unknown host", in: with(ns, func(s *spec) { s.from, s.src, s.options = otherMAC, host, sourceElse }), want: answer(otherMAC, host)},
		{name: "solicitation, ethernet source differs", in: with(ns, func(s *spec) { s.src, s.options = host, sourceElse }), want: answer(otherMAC, host)},
		{name: "solicitation, no option, static source", in: with(ns, func(s *spec) { s.from, s.options = otherMAC, "" }), want: answer(gatewayMAC, gateway)},
		{name: "solicitation, no option, unknown source", in: with(ns, func(s *spec) { s.from, s.src, s.options = otherMAC, host, "" }), want: answer(otherMAC, host)},
		{name: "solicitation for our link-local address", in: with(ns, func(s *spec) { s.target, s.dst, s.to = linkLocal, "ff02::1:ff41:ca3d", "3333ff41ca3d" }),
			want: with(answer(gatewayMAC, gateway), func(s *spec) { s.src, s.target = linkLocal, linkLocal })},
		{name: "solicitation for our anycast address", in: with(ns, func(s *spec) { s.target, s.dst, s.to = anycast, "ff02::1:ff00:0", "3333ff000000" }),
			want: with(answer(gatewayMAC, gateway), func(s *spec) { s.src, s.target, s.flags = linkLocal, anycast, 0xc0 })},
		{name: "solicitation to our anycast address", in: with(ns, func(s *spec) { s.target, s.dst, s.to = anycast, anycast, portMAC }),
			want: with(answer(gatewayMAC, gateway), func(s *spec) { s.src, s.target, s.flags = linkLocal, anycast, 0xc0 })},
		{name: "probe", in: probe, want: toAll},
		{name: "probe, nonce", in: with(probe, func(s *spec) { s.options = nonce }), want: toAll},
		{name: "probe for another address", in: with(probe, func(s *spec) { s.target, s.dst, s.to = host, "ff02::1:ff00:99", "3333ff000099" })},
		{name: "probe for a static neighbor", in: with(probe, func(s *spec) { s.target, s.dst, s.to = gateway, "ff02::1:ff00:203", "3333ff000203" })},
		{name: "our own probe", in: with(probe, func(s *spec) { s.from = portMAC })},
		{name: "our own solicitation", in: with(ns, func(s *spec) { s.from, s.src, s.options = portMAC, own, "0101"+portMAC })},
		{name: "solicitation for another host", in: with(ns, func(s *spec) { s.target = host })},
		{name: "solicitation for an address of another port", in: with(ns, func(s *spec) { s.target = farOwn })},
		{name: "solicitation to another router", in: with(ns, func(s *spec) { s.to = otherMAC })},
		{name: "solicitation to another address", in: with(ns, func(s *spec) { s.to, s.dst = portMAC, host })},
		{name: "solicitation, hop limit 254", in: with(ns, func(s *spec) { s.hopLimit = 254 })},
		{name: "solicitation, wrong checksum", in: with(ns, func(s *spec) { s.checksumFlip = 4 })},
		{name: "host answers", in: ns, host: true},
		{name: "host answers a probe", in: probe, host: true},
		{name: "host, conflict", in: with(ns, func(s *spec) { s.options = sourceElse }), host: true, conflict: neigh.StaticConflict},
		{name: "advertisement", in: na},
		{name: "advertisement of an unknown host", in: with(na, func(s *spec) { s.src, s.target, s.options = host, host, targetElse })},
		{name: "advertisement, no option", in: with(na, func(s *spec) { s.from, s.options = otherMAC, "" })},
		{name: "advertisement to another router", in: with(na, func(s *spec) { s.to, s.options = otherMAC, targetElse })},
		{name: "static, unsolicited advertisement", in: with(na, func(s *spec) { s.to, s.dst, s.flags, s.options = nodesMAC, nodes, 0x20, targetElse }), conflict: neigh.StaticConflict},
		{name: "static, solicited advertisement", in: with(na, func(s *spec) { s.options = targetElse }), conflict: neigh.StaticConflict},
		{name: "static, override clear", in: with(na, func(s *spec) { s.flags, s.options = 0x40, targetElse }), conflict: neigh.StaticConflict},
		{name: "static, solicitation for us", in: with(ns, func(s *spec) { s.options = sourceElse }), want: answer(otherMAC, gateway), conflict: neigh.StaticConflict},
		{name: "own address, advertisement", in: with(na, func(s *spec) { s.target, s.options = own, targetElse }), conflict: neigh.OwnAddressConflict},
		{name: "own address, answer to a probe", in: spec{to: nodesMAC, from: otherMAC, src: own, dst: nodes, typ: 136, flags: 0x20, target: own, options: targetElse}, conflict: neigh.OwnAddressConflict},
		{name: "own address, advertisement without option", in: with(na, func(s *spec) { s.target, s.options = own, "" }), conflict: neigh.OwnAddressConflict},
		{name: "own address, virtual mac", in: with(na, func(s *spec) { s.target, s.options = own, "0201"+virtualMAC })},
		{name: "own address, solicitation for another host", in: with(ns, func(s *spec) { s.src, s.target, s.options = own, host, sourceElse }), conflict: neigh.OwnAddressConflict},
		{name: "own link-local address", in: with(na, func(s *spec) { s.target, s.options = linkLocal, targetElse }), conflict: neigh.OwnAddressConflict},
		{name: "own address of another port", in: with(na, func(s *spec) { s.target, s.options = farOwn, targetElse })},
		{name: "anycast address, another router", in: with(na, func(s *spec) { s.target, s.flags, s.options = anycast, 0xc0, targetElse })},
		{name: "invalid advertisement claims nothing", in: with(na, func(s *spec) { s.code, s.options = 1, targetElse })},
		{name: "router advertisement", in: with(na, func(s *spec) { s.typ = 134 })},
		{name: "redirect", in: with(na, func(s *spec) { s.typ, s.options = 137, targetElse })},
		{name: "not IPv6", in: with(ns, func(s *spec) { s.etherType = 0x0800 })},
		{name: "frame cut", in: with(ns, func(s *spec) { s.short = 1 })},
		{name: "header only", in: with(ns, func(s *spec) { s.short = 72 })},
		{name: "no header", in: with(ns, func(s *spec) { s.short = 73 })},
		{name: "empty", in: with(ns, func(s *spec) { s.short = 86 })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tab, port := newTable(t)
			port.Host = tt.host
			before := tab.All()
			in := tt.in.frame(t)
			kept := slices.Clone(in)
			var want []byte
			if tt.want != nothing {
				want = tt.want.frame(t)
			}
			var out [FrameLen]byte
			n, c := Handle(0, tab, port, in, out[:])
			if !bytes.Equal(out[:n], want) {
				t.Errorf("answer:\ngot  %x\nwant %x", out[:n], want)
			}
			if c != tt.conflict {
				t.Errorf("conflict: got %s, want %s", c, tt.conflict)
			}
			for _, k := range []neigh.Conflict{neigh.StaticConflict, neigh.OwnAddressConflict} {
				want := uint64(0)
				if k == tt.conflict {
					want = 1
				}
				if got := tab.Conflicts(1, k); got != want {
					t.Errorf("%s conflicts of the port: got %d, want %d", k, got, want)
				}
			}
			if got := tab.All(); !slices.Equal(got, before) {
				t.Errorf("the frame changed the table to %v", got)
			}
			if !bytes.Equal(in, kept) {
				t.Error("the frame was modified")
			}
		})
	}
}

// TestLearns: what a frame says of a neighbor that is not known, asked for, or
// known.
func TestLearns(t *testing.T) {
	const old = "020000000077"
	from := with(ns, func(s *spec) { s.from, s.src, s.options = otherMAC, host, sourceElse })
	about := with(na, func(s *spec) { s.from, s.src, s.target, s.options = otherMAC, host, host, targetElse })
	states := []string{"unknown", "asked for", "known"}
	tests := []struct {
		name string
		in   spec
		want [3]string // by states: MAC address and state, "" for no entry
	}{
		{"solicitation for us", from, [3]string{otherMAC + " stale", otherMAC + " stale", otherMAC + " stale"}},
		{"solicitation for us, no option", with(from, func(s *spec) { s.options = "" }), [3]string{"", zeroMAC + " incomplete", old + " reachable"}},
		{"solicitation for another", with(from, func(s *spec) { s.target = gateway }), [3]string{"", zeroMAC + " incomplete", old + " reachable"}},
		{"solicitation of another network", with(from, func(s *spec) { s.src = "2001:db8::1" }), [3]string{"", zeroMAC + " incomplete", old + " reachable"}},
		{"solicitation, hop limit 254", with(from, func(s *spec) { s.hopLimit = 254 }), [3]string{"", zeroMAC + " incomplete", old + " reachable"}},
		{"answer", about, [3]string{"", otherMAC + " reachable", otherMAC + " reachable"}},
		{"answer, override clear", with(about, func(s *spec) { s.flags = 0x40 }), [3]string{"", otherMAC + " reachable", old + " stale"}},
		{"announcement", with(about, func(s *spec) { s.to, s.dst, s.flags = nodesMAC, nodes, 0x20 }), [3]string{"", otherMAC + " stale", otherMAC + " stale"}},
		{"announcement, override clear", with(about, func(s *spec) { s.to, s.dst, s.flags = nodesMAC, nodes, 0 }), [3]string{"", otherMAC + " stale", old + " stale"}},
		{"answer to another router", with(about, func(s *spec) { s.to = "020000000055" }), [3]string{"", zeroMAC + " incomplete", old + " reachable"}},
	}
	for _, tt := range tests {
		for i, state := range states {
			t.Run(tt.name+", "+state, func(t *testing.T) {
				tab, port := newTable(t)
				port.Nets = []netip.Prefix{netip.MustParsePrefix("2001:2::/64")}
				if i > 0 {
					tab.Use(0, neigh.Key{Port: 1, Addr: addr(host)})
				}
				var out [FrameLen]byte
				if i > 1 {
					Handle(0, tab, port, with(about, func(s *spec) { s.options = "0201" + old }).frame(t), out[:])
				}
				Handle(0, tab, port, tt.in.frame(t), out[:])
				got := ""
				for _, e := range tab.All() {
					if e.State != neigh.Static {
						b := e.MAC.Bytes()
						got += hex.EncodeToString(b[:]) + " " + e.State.String()
					}
				}
				if got != tt.want[i] {
					t.Errorf("got %q, want %q", got, tt.want[i])
				}
			})
		}
	}
}

func TestHandleAllocatesNothing(t *testing.T) {
	tab, port := newTable(t)
	in := with(ns, func(s *spec) { s.options = nonce + sourceElse }).frame(t)
	var out [FrameLen]byte
	if n := testing.AllocsPerRun(100, func() { Handle(0, tab, port, in, out[:]) }); n != 0 {
		t.Errorf("got %v allocations per frame, want 0", n)
	}
}

// FuzzHandle checks the gate against gopacket's decoder and that the answer to
// any frame is a valid one to whoever asked. So that the fuzzer gets past the
// checksum, fix says whether to make it right.
func FuzzHandle(f *testing.F) {
	for _, s := range []spec{ns, na, probe, with(ns, func(s *spec) { s.options = nonce + sourceElse }), with(na, func(s *spec) { s.target = own })} {
		f.Add(s.frame(f), true)
		f.Add(s.frame(f), false)
	}
	f.Add([]byte{}, false)
	tab, port := newTable(f)
	before := tab.All()
	f.Fuzz(func(t *testing.T, frame []byte, fix bool) {
		if fix && len(frame) >= 58 {
			p := frame[14:]
			if n := wire.IPv6Len + int(binary.BigEndian.Uint16(p[4:])); n >= 44 && n <= len(p) {
				p[42], p[43] = 0, 0
				binary.BigEndian.PutUint16(p[42:], wire.ChecksumIPv6((*[16]byte)(p[8:]), (*[16]byte)(p[24:]), 58, p[40:n]))
			}
		}
		var out [FrameLen]byte
		n, c := Handle(0, tab, port, frame, out[:])
		if !slices.Equal(tab.All(), before) {
			t.Fatalf("the frame changed the table to %v", tab.All())
		}
		if n == 0 && c == neigh.NoConflict {
			return
		}
		in := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy)
		if e := in.ErrorLayer(); e != nil {
			t.Fatalf("gopacket does not take what Handle did: %v", e.Error())
		}
		ip, _ := in.NetworkLayer().(*layers.IPv6)
		if ip == nil || ip.HopLimit != 255 {
			t.Fatalf("took a packet that is not link-local IPv6: %v", in)
		}
		sol, _ := in.Layer(layers.LayerTypeICMPv6NeighborSolicitation).(*layers.ICMPv6NeighborSolicitation)
		if sol == nil && (n != 0 || in.Layer(layers.LayerTypeICMPv6NeighborAdvertisement) == nil) {
			t.Fatalf("took a packet that is no neighbor discovery: %v", in)
		}
		if n == 0 {
			return
		}
		if n != FrameLen || !Packet(out[14:n]).Valid() {
			t.Fatalf("the answer is not valid: %x", out[:n])
		}
		re := gopacket.NewPacket(out[:n], layers.LayerTypeEthernet, gopacket.NoCopy)
		adv, _ := re.Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement)
		reIP := re.NetworkLayer().(*layers.IPv6)
		to := ip.SrcIP
		if ip.SrcIP.IsUnspecified() {
			to = net.ParseIP(nodes)
		}
		if adv == nil || !adv.TargetAddress.Equal(sol.TargetAddress) || !adv.Router() || adv.Solicited() == ip.SrcIP.IsUnspecified() || !reIP.DstIP.Equal(to) {
			t.Fatalf("%x was answered with %x", frame, out[:n])
		}
	})
}
