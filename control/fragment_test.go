package control

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"testing"

	"nmfwd/wire"
)

// packet4 returns an IPv4 packet with options and payload, from 198.18.10.1 to
// 198.19.10.1.
func packet4(flags uint16, options, payload []byte) wire.IPv4 {
	p := make([]byte, wire.IPv4Len)
	p[4], p[5] = 0xab, 0xcd
	p[8], p[9] = 64, wire.ProtoUDP
	copy(p[12:], []byte{198, 18, 10, 1, 198, 19, 10, 1})
	p = slices.Concat(p, options, payload)
	n := wire.IPv4Len + len(options)
	p[0] = 0x40 | byte(n/4)
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	binary.BigEndian.PutUint16(p[6:], flags)
	binary.BigEndian.PutUint16(p[10:], wire.Checksum(p[:n]))
	return p
}

func counting(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

func splitAll(p wire.IPv4, mtu int) (all []wire.IPv4) {
	split(make([]byte, max(mtu, 68)), p, mtu, func(b []byte) bool {
		all = append(all, bytes.Clone(b))
		return true
	})
	return all
}

func TestSplit(t *testing.T) {
	type piece struct {
		flags   uint16 // with the offset
		header  int
		payload int
	}
	for _, c := range []struct {
		name string
		p    wire.IPv4
		mtu  int
		want []piece
	}{
		{"fits", packet4(0, nil, counting(1380)), 1400, []piece{{0, 20, 1380}}},
		{"a byte more", packet4(0, nil, counting(1381)), 1400, []piece{{0x2000, 20, 1376}, {172, 20, 5}}},
		{"1,500 into 1,400", packet4(0, nil, counting(1480)), 1400, []piece{{0x2000, 20, 1376}, {172, 20, 104}}},
		{"1,500 into 576", packet4(0, nil, counting(1480)), 576, []piece{{0x2000, 20, 552}, {0x2000 | 69, 20, 552}, {138, 20, 376}}},
		{"least MTU", packet4(0, nil, counting(100)), 68, []piece{{0x2000, 20, 48}, {0x2000 | 6, 20, 48}, {12, 20, 4}}},
		{"first fragment", packet4(0x2000, nil, counting(1480)), 1400, []piece{{0x2000, 20, 1376}, {0x2000 | 172, 20, 104}}},
		{"later fragment", packet4(0x2000|185, nil, counting(1480)), 1400, []piece{{0x2000 | 185, 20, 1376}, {0x2000 | 357, 20, 104}}},
		{"last fragment", packet4(185, nil, counting(1480)), 1400, []piece{{0x2000 | 185, 20, 1376}, {357, 20, 104}}},
		{"reserved bit", packet4(0x8000, nil, counting(1480)), 1400, []piece{{0xa000, 20, 1376}, {0x8000 | 172, 20, 104}}},
		{"options for the first", packet4(0, []byte{7, 7, 4, 0, 0, 0, 0, 0}, counting(1460)), 1400, []piece{{0x2000, 28, 1368}, {171, 20, 92}}},
		{"options for all", packet4(0, []byte{1, 0x88, 4, 0, 7, 3, 4, 0}, counting(1460)), 1400, []piece{{0x2000, 28, 1368}, {171, 24, 92}}},
		{"40 bytes of options for all", packet4(0, append([]byte{0x82, 40}, make([]byte, 38)...), counting(16)), 68, []piece{{0x2000, 60, 8}, {1, 60, 8}}},
	} {
		var got []piece
		var payload []byte
		for _, f := range splitAll(c.p, c.mtu) {
			if wire.CheckIPv4(f, len(f)) != wire.OK || f.TotalLen() != len(f) || len(f) > c.mtu {
				t.Errorf("%s: not valid: % x", c.name, f)
			}
			if !bytes.Equal(f[4:6], c.p[4:6]) || !bytes.Equal(f[8:10], c.p[8:10]) || !bytes.Equal(f[12:20], c.p[12:20]) {
				t.Errorf("%s: header % x, want that of % x", c.name, f[:20], c.p[:20])
			}
			got = append(got, piece{binary.BigEndian.Uint16(f[6:]), f.HeaderLen(), len(f) - f.HeaderLen()})
			payload = append(payload, f[f.HeaderLen():]...)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
		if !bytes.Equal(payload, c.p[c.p.HeaderLen():]) {
			t.Errorf("%s: the payload differs", c.name)
		}
		if n := pieces(c.p, c.mtu); n != len(c.want) {
			t.Errorf("%s: %d pieces foreseen, want %d", c.name, n, len(c.want))
		}
	}
}

// TestCopiedOptions: the copy bit decides (RFC 791, 3.1), and only the first
// fragment carries the others.
func TestCopiedOptions(t *testing.T) {
	for _, c := range []struct{ name, options, want string }{
		{"none", "", ""},
		{"no-ops", "01010101", ""},
		{"record route", "0707040000000000", ""},
		{"router alert", "94040000", "94040000"},
		{"stream ID between others", "0188040007030401", "88040007030400"[:8]},
		{"padded", "8203aa00", "8203aa00"},
		{"two copied", "8203aa018803bb00", "8203aa8803bb0000"},
		{"behind the end", "0094040094040000", ""},
	} {
		o, _ := hex.DecodeString(c.options)
		b := bytes.Repeat([]byte{0xee}, 40)
		if got := hex.EncodeToString(b[:copiedOptions(b, o)]); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

// FuzzSplit puts the fragments of whatever passes the gate together again.
func FuzzSplit(f *testing.F) {
	f.Add([]byte(packet4(0, nil, counting(1480))), 1400)
	f.Add([]byte(packet4(0x2001, []byte{1, 0x88, 4, 0, 7, 3, 4, 0}, counting(300))), 68)
	f.Fuzz(func(t *testing.T, b []byte, mtu int) {
		if wire.CheckIPv4(b, len(b)) != wire.OK || wire.ScanOptions(wire.IPv4(b).Options())&wire.BadOption != 0 {
			return
		}
		p := wire.IPv4(b[:wire.IPv4(b).TotalLen()])
		mtu = 68 + mtu&0x7ff
		if p.FragmentOffset()+len(p) > 65535 {
			return
		}
		all := splitAll(p, mtu)
		if len(all) != pieces(p, mtu) {
			t.Fatalf("%d fragments, %d foreseen", len(all), pieces(p, mtu))
		}
		at := p.FragmentOffset()
		var payload []byte
		for i, f := range all {
			last := i == len(all)-1
			switch {
			case wire.CheckIPv4(f, len(f)) != wire.OK || f.TotalLen() != len(f) || len(f) > mtu:
				t.Fatalf("not valid: % x", f)
			case f.FragmentOffset() != at:
				t.Fatalf("offset %d, want %d", f.FragmentOffset(), at)
			case f.MoreFragments() != (!last || p.MoreFragments()):
				t.Fatalf("fragment %d of %d: more fragments is %v", i, len(all), f.MoreFragments())
			case !last && (len(f)-f.HeaderLen())%8 != 0:
				t.Fatalf("fragment of %d bytes", len(f)-f.HeaderLen())
			case wire.ScanOptions(f.Options())&wire.BadOption != 0:
				t.Fatalf("options % x", f.Options())
			}
			payload = append(payload, f[f.HeaderLen():]...)
			at += len(f) - f.HeaderLen()
		}
		if !bytes.Equal(payload, p[p.HeaderLen():]) {
			t.Fatal("the payload differs")
		}
	})
}
