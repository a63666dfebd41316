package traffic

import (
	"encoding/hex"
	"net"
	"testing"
)

func testFlows(family int) *Flows {
	return &Flows{
		Family:        family,
		Generator:     net.HardwareAddr{0x00, 0x1b, 0x21, 0xc4, 0x95, 0x7a},
		RouterIngress: net.HardwareAddr{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x3d},
		RouterEgress:  net.HardwareAddr{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x3e},
		Receiver:      net.HardwareAddr{0x00, 0x1b, 0x21, 0xc4, 0x95, 0x7b},
	}
}

// TestFrame compares with frames written out, with checksums calculated elsewhere.
func TestFrame(t *testing.T) {
	for _, tt := range []struct {
		name   string
		family int
		want   string
	}{
		{"IPv4", 4, "000db941ca3d" + "001b21c4957a" + "0800" +
			"4500002e567800004011841c" + "c6120a02" + "c6130a03" +
			"07d007d0001a0000" + "12345678" + "00c9" + "0000000100000002" + "7c59300c"},
		{"IPv6", 6, "000db941ca3d" + "001b21c4957a" + "86dd" +
			"678000ca" + "0008" + "1140" + "20010002000000010000000000000002" + "2001000200008001000000000000000b" +
			"07d007d00008" + "3029"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := testFlows(tt.family).Sent(201, 0x12345678, 0x100000002)
			if hex.EncodeToString(got) != tt.want {
				t.Errorf("Sent:\n got %x\nwant %s", got, tt.want)
			}
		})
	}
}

func TestFlowsAreDistinct(t *testing.T) {
	for _, family := range []int{4, 6} {
		f := testFlows(family)
		seen := map[string]bool{}
		for flow := range Count {
			src, dst := f.Addrs(flow)
			seen[src.String()+" "+dst.String()] = true
		}
		if len(seen) != Count {
			t.Errorf("IPv%d: %d flows, want %d", family, len(seen), Count)
		}
		first, _ := f.Addrs(0)
		_, last := f.Addrs(Count - 1)
		want := map[int]string{4: "198.18.10.1 198.19.10.20", 6: "2001:2:0:1::1 2001:2:0:8001::64"}[family]
		if got := first.String() + " " + last.String(); got != want {
			t.Errorf("IPv%d: first source and last destination are %s, want %s", family, got, want)
		}
	}
}

// TestCompare changes each bit of a frame.
func TestCompare(t *testing.T) {
	for _, family := range []int{4, 6} {
		f := testFlows(family)
		p := f.Received(1234, 567, 89)
		if err := f.Compare(p); err != nil {
			t.Errorf("IPv%d: unchanged: %v", family, err)
		}
		for i := range len(p) * 8 {
			p[i/8] ^= 1 << (i % 8)
			// Another traffic class makes another right frame.
			class := family == 6 && (i/8 == 14 && i%8 < 4 || i/8 == 15 && i%8 >= 4)
			if err := f.Compare(p); (err == nil) != class {
				t.Errorf("IPv%d: bit %d of byte %d changed: %v", family, i%8, i/8, err)
			}
			p[i/8] ^= 1 << (i % 8)
		}
		if f.Compare(p[:len(p)-1]) == nil || f.Compare(append(p, 0)) == nil {
			t.Errorf("IPv%d: a frame of another length passes", family)
		}
	}
}
