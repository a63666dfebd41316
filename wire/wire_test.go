package wire

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// header returns an IPv4 header with a right checksum.
func header(options []byte, totalLen int, ttl, proto uint8) []byte {
	b := make([]byte, IPv4Len+len(options))
	b[0] = 0x40 | uint8(len(b)/4)
	binary.BigEndian.PutUint16(b[2:], uint16(totalLen))
	b[8], b[9] = ttl, proto
	copy(b[12:], []byte{198, 18, 10, 1, 198, 19, 10, 1})
	copy(b[IPv4Len:], options)
	binary.BigEndian.PutUint16(b[10:], Checksum(b))
	return b
}

func TestCheckIPv4(t *testing.T) {
	good := header(nil, 28, 64, ProtoUDP)
	pad := make([]byte, 8)
	with := func(change func(b []byte)) []byte {
		b := append(append([]byte{}, good...), pad...)
		change(b)
		b[10], b[11] = 0, 0
		if h := int(b[0]&15) * 4; h >= IPv4Len && h <= len(b) {
			binary.BigEndian.PutUint16(b[10:], Checksum(b[:h]))
		}
		return b
	}
	for _, c := range []struct {
		name string
		b    []byte
		want Fault
	}{
		{"good", append(append([]byte{}, good...), pad...), OK},
		{"trailer", append(append([]byte{}, good...), make([]byte, 30)...), OK},
		{"options", append(header([]byte{1, 1, 1, 1}, 32, 64, ProtoUDP), pad...), OK},
		{"empty", nil, Truncated},
		{"short header", good[:19], Truncated},
		{"total length beyond the frame", good, Truncated},
		{"version 6", with(func(b []byte) { b[0] = 0x65 }), BadHeader},
		{"version 0", with(func(b []byte) { b[0] = 0x05 }), BadHeader},
		{"IHL 0", with(func(b []byte) { b[0] = 0x40 }), BadHeader},
		{"IHL 4", with(func(b []byte) { b[0] = 0x44 }), BadHeader},
		{"IHL 15 with 28 bytes", with(func(b []byte) { b[0] = 0x4f; b[3] = 60 }), Truncated},
		{"total length 19", with(func(b []byte) { b[3] = 19 }), BadHeader},
		{"total length below IHL", with(func(b []byte) { b[0] = 0x46; b[3] = 20 }), BadHeader},
		{"bad checksum", func() []byte { b := with(func([]byte) {}); b[11] ^= 1; return b }(), BadChecksum},
		{"bad checksum with options", func() []byte {
			b := append(header([]byte{1, 1, 1, 1}, 32, 64, ProtoUDP), pad...)
			b[11] ^= 1
			return b
		}(), BadChecksum},
	} {
		if got := CheckIPv4(c.b, len(c.b)); got != c.want {
			t.Errorf("%s: got fault %d, want %d", c.name, got, c.want)
		}
	}
}

// TestDecrementTTL compares the incremental update with a checksum computed
// anew for every TTL and for checksums around the places where ones'
// complement arithmetic has two zeros.
func TestDecrementTTL(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	check := func(b []byte) {
		want := append([]byte{}, b...)
		want[8]--
		want[10], want[11] = 0, 0
		binary.BigEndian.PutUint16(want[10:], Checksum(want))
		IPv4(b).DecrementTTL()
		if string(b) != string(want) {
			t.Fatalf("got % x, want % x", b, want)
		}
		if CheckIPv4(b, len(b)) != OK {
			t.Fatalf("% x does not pass", b)
		}
	}
	for ttl := 1; ttl < 256; ttl++ {
		for range 1000 {
			b := header(nil, 20, uint8(ttl), uint8(r.Uint32()))
			binary.BigEndian.PutUint16(b[4:], uint16(r.Uint32()))
			b[10], b[11] = 0, 0
			binary.BigEndian.PutUint16(b[10:], Checksum(b))
			check(b)
		}
	}
	for id := range 1 << 16 { // every checksum value once
		b := header(nil, 20, 64, ProtoUDP)
		binary.BigEndian.PutUint16(b[4:], uint16(id))
		b[10], b[11] = 0, 0
		binary.BigEndian.PutUint16(b[10:], Checksum(b))
		check(b)
	}
}

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		name string
		b    []byte
		want OptionSet
		at   int
	}{
		{"none", nil, 0, 0},
		{"four no-ops", []byte{1, 1, 1, 1}, 0, 0},
		{"end first", []byte{0, 131, 0, 0}, 0, 0},
		{"LSRR", []byte{131, 7, 4, 10, 0, 0, 1, 0}, SourceRoute, 0},
		{"SSRR behind a no-op", []byte{1, 137, 7, 4, 10, 0, 0, 1}, SourceRoute, 0},
		{"router alert", []byte{148, 4, 0, 0}, RouterAlert, 0},
		{"router alert of 3 bytes", []byte{148, 3, 0, 0}, BadOption, 1},
		{"length 0", []byte{7, 0, 0, 0}, BadOption, 1},
		{"length 1 behind a no-op", []byte{1, 7, 1, 0}, BadOption, 2},
		{"length beyond", []byte{7, 5, 0, 0}, BadOption, 1},
		{"no length byte", []byte{1, 1, 1, 7}, BadOption, 3},
		{"record route", []byte{7, 7, 4, 0, 0, 0, 0, 0}, Filtered, 0},
		{"timestamp behind a no-op", []byte{1, 68, 7, 5, 0, 0, 0, 0}, Filtered, 0},
		{"stream ID and LSRR", []byte{136, 4, 0, 1, 131, 3, 4, 0}, SourceRoute | Filtered, 0},
		{"security", []byte{130, 3, 0, 0}, 0, 0},
		{"unknown", []byte{222, 3, 0, 0}, 0, 0},
	} {
		if got, at := LocateOption(c.b); got != c.want || at != c.at || ScanOptions(c.b) != got {
			t.Errorf("%s: got %04b at %d, want %04b at %d", c.name, got, at, c.want, c.at)
		}
	}
}

func TestHopByHop(t *testing.T) {
	for _, c := range []struct {
		name string
		b    []byte
		want OptionSet
		at   int
	}{
		{"padding", []byte{17, 0, 1, 4, 0, 0, 0, 0}, 0, 0},
		{"router alert", []byte{58, 0, 5, 2, 0, 0, 1, 0}, RouterAlert, 0},
		{"router alert behind Pad1", []byte{58, 0, 0, 0, 5, 2, 0, 0}, RouterAlert, 0},
		{"router alert of 1 byte", []byte{58, 0, 5, 1, 0, 1, 1, 0}, BadOption, 3},
		{"jumbo", []byte{58, 0, 0xc2, 4, 0, 1, 0, 0}, BadOption | UnknownOption, 2},
		{"unknown option to skip", []byte{58, 0, 0x1e, 4, 0, 0, 0, 0}, 0, 0},
		{"unknown option to discard", []byte{58, 0, 0, 0x5e, 3, 0, 0, 0}, UnknownOption, 3},
		{"two of them", []byte{58, 0, 0, 0x5e, 0, 0x9e, 1, 0}, UnknownOption, 3},
		{"unknown option and a bad one", []byte{58, 0, 0x9e, 0, 1, 3, 0, 0}, BadOption, 5},
		{"router alert before an unknown option", []byte{58, 1, 5, 2, 0, 0, 0x9e, 0, 1, 6, 0, 0, 0, 0, 0, 0}, RouterAlert | UnknownOption, 6},
		{"short", []byte{58, 0, 1, 3, 0, 0, 0}, BadOption, 1},
		{"length 255", []byte{58, 255, 1, 4, 0, 0, 0, 0}, BadOption, 1},
		{"option beyond", []byte{58, 0, 1, 5, 0, 0, 0, 0}, BadOption, 3},
		{"no length byte", []byte{58, 0, 1, 3, 0, 0, 0, 1}, BadOption, 7},
	} {
		if got, at := LocateOption6(c.b); got != c.want || at != c.at || ScanHopByHop(c.b) != got {
			t.Errorf("%s: got %04b at %d, want %04b at %d", c.name, got, at, c.want, c.at)
		}
	}
}

func TestUpper(t *testing.T) {
	for _, c := range []struct {
		name     string
		next     uint8
		payload  []byte
		proto    uint8
		at       int
		fragment bool
	}{
		{"UDP", 17, make([]byte, 8), 17, 40, false},
		{"nothing", 59, nil, 59, 40, false},
		{"hop-by-hop", 0, []byte{17, 0, 1, 4, 0, 0, 0, 0}, 17, 48, false},
		{"hop-by-hop cut", 0, []byte{17}, 0, 41, false},
		{"routing and destination options", 43, append([]byte{60, 1, 4, 0, 15: 0}, 58, 0, 1, 4, 0, 0, 0, 0), 58, 64, false},
		{"header beyond", 43, []byte{60, 255, 0, 0}, 60, 44, false},
		{"authentication header", 51, []byte{6, 4, 23: 0}, 6, 64, false},
		{"first fragment", 44, []byte{58, 0, 0, 1, 0, 0, 0, 9, 128}, 58, 48, true},
		{"later fragment", 44, []byte{58, 0, 0, 8, 0, 0, 0, 9, 128}, 58, 49, true},
		{"fragment cut", 44, []byte{58, 0, 0}, 44, 43, true},
	} {
		p := append([]byte{0x60, 6: c.next, 39: 0}, c.payload...)
		if proto, at, fragment := IPv6(p).Upper(); proto != c.proto || at < len(p) && at != c.at || at >= len(p) != (c.at >= len(p)) || fragment != c.fragment {
			t.Errorf("%s: got %d at %d, fragment %v, want %d at %d, %v", c.name, proto, at, fragment, c.proto, c.at, c.fragment)
		}
	}
}

func TestFragmentFields(t *testing.T) {
	p := IPv4(header(nil, 20, 64, 17))
	for _, c := range []struct {
		name       string
		flags      uint16
		dont, more bool
		offset     int
		fragment   bool
	}{
		{"whole", 0, false, false, 0, false},
		{"don't fragment", 0x4000, true, false, 0, false},
		{"first", 0x2000, false, true, 0, true},
		{"middle", 0x20b9, false, true, 1480, true},
		{"last", 0x1fff, false, false, 65528, true},
		{"reserved bit", 0x8000, false, false, 0, false},
	} {
		binary.BigEndian.PutUint16(p[6:], c.flags)
		if p.DontFragment() != c.dont || p.MoreFragments() != c.more || p.FragmentOffset() != c.offset || p.IsFragment() != c.fragment {
			t.Errorf("%s: got %v %v %d %v, want %v %v %d %v", c.name, p.DontFragment(), p.MoreFragments(), p.FragmentOffset(), p.IsFragment(), c.dont, c.more, c.offset, c.fragment)
		}
	}
}

func TestChecksumIPv6(t *testing.T) {
	// An ICMPv6 echo request; the sum over pseudo-header and message is zero
	// once the checksum stands in it.
	src, dst := [16]byte{0x20, 1, 0, 2, 15: 1}, [16]byte{0x20, 1, 0, 2, 15: 2}
	msg := []byte{128, 0, 0, 0, 0, 1, 0, 2, 0xab}
	binary.BigEndian.PutUint16(msg[2:], ChecksumIPv6(&src, &dst, ProtoICMPv6, msg))
	if got := ChecksumIPv6(&src, &dst, ProtoICMPv6, msg); got != 0 {
		t.Errorf("got %#04x over a message with its checksum, want 0", got)
	}
	msg[8] ^= 1
	if got := ChecksumIPv6(&src, &dst, ProtoICMPv6, msg); got == 0 {
		t.Error("got 0 over a corrupt message")
	}
}

func TestMAC(t *testing.T) {
	b := []byte{0, 0x0d, 0xb9, 0x41, 0xca, 0x3d, 0xff}
	if got := MACOf(b).Bytes(); got != [6]byte(b[:6]) {
		t.Errorf("got % x, want % x", got, b[:6])
	}
	if MACOf([]byte{0x33, 0x33, 0, 0, 0, 1})&Group == 0 {
		t.Error("33:33:00:00:00:01 is not a group address")
	}
	if MACOf(b)&Group != 0 {
		t.Error("00:0d:b9:41:ca:3d is a group address")
	}
}

// FuzzGates runs every accessor on what the gates let pass: none may panic.
func FuzzGates(f *testing.F) {
	f.Add(append(header([]byte{131, 3, 4, 0}, 32, 64, 17), make([]byte, 8)...))
	f.Add(append([]byte{0x60, 0, 0, 0, 0, 8, 0, 64}, make([]byte, 40)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if CheckIPv4(b, len(b)) == OK {
			p := IPv4(b)
			if p.TotalLen() > len(b) || p.HeaderLen() > p.TotalLen() {
				t.Fatalf("lengths %d, %d of %d pass", p.HeaderLen(), p.TotalLen(), len(b))
			}
			ScanOptions(p.Options())
			_, _, _ = p.Source(), p.Destination(), p.Protocol()
			if p.TTL() > 0 {
				p.DecrementTTL()
				if CheckIPv4(b, len(b)) != OK {
					t.Fatalf("% x does not pass after its TTL was decremented", b)
				}
			}
		}
		if CheckIPv6(b, len(b)) == OK {
			p := IPv6(b)
			if p.TotalLen() > len(b) {
				t.Fatalf("length %d of %d passes", p.TotalLen(), len(b))
			}
			if p.NextHeader() == ProtoHopByHop {
				ScanHopByHop(b[IPv6Len:p.TotalLen()])
			}
			p.Source()
			p.Destination()
			p.HopLimit()
			p.Upper()
		}
	})
}
