//go:build integration && linux

package afxdp

import (
	"encoding/hex"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"nmfwd/test/frame"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// xdpRedirect is XDP_REDIRECT of linux/bpf.h.
const xdpRedirect = 4

const (
	macAA    = "000db941ca3d" // the port's
	macVRRP  = "00005e000107" // a further one that is ours
	macAB    = "000db941ca3e" // differs from ours in the last byte
	macG1    = "001b21c4957a"
	pad      = "000000000000000000000000000000000000"
	udp4     = "4500 001c 0000 4000 4011 0000 c6120a01" // to be followed by the destination
	udp6     = "6000 0000 0008 11 40 20010002000000010000000000000001"
	udpBytes = "07d0 07d0 0008 0000"
)

// fromG1 returns a frame from g1 to MAC dst.
func fromG1(dst, etherType, rest string) string { return dst + macG1 + etherType + rest }

// v4 returns a frame with an IPv4 packet to dst, in hexadecimal.
func v4(dst string) string { return fromG1(macAA, "0800", udp4+dst+udpBytes+pad) }

// v6 returns a frame with an IPv6 packet to dst, in hexadecimal.
func v6(dst string) string { return fromG1(macAA, "86dd", udp6+dst+udpBytes) }

// hop returns a frame with an IPv6 packet whose hop-by-hop header is h.
func hop(h string) string {
	return fromG1(macAA, "86dd", "6000 0000 0010 00 40 20010002000000010000000000000001 20010002000080010000000000000001"+h+udpBytes)
}

const (
	routed4 = "c6130a01"
	routed6 = "20010002000080010000000000000001"
)

var verdicts = []struct {
	name  string
	frame string
	want  uint32
}{
	{"ipv4 routed", v4(routed4), xdpRedirect},
	{"ipv4 own address", v4("c61200cd"), xdpPass},
	{"ipv4 own address of another port", v4("c61300cd"), xdpPass},
	{"ipv4 beside own address", v4("c61200ce"), xdpRedirect},
	{"ipv4 directed broadcast", v4("c61200ff"), xdpPass},
	{"ipv4 limited broadcast", v4("ffffffff"), xdpPass},
	{"ipv4 beside limited broadcast", v4("fffffffe"), xdpRedirect},
	{"ipv4 multicast first", v4("e0000000"), xdpPass},
	{"ipv4 multicast last", v4("efffffff"), xdpPass},
	{"ipv4 below multicast", v4("dfffffff"), xdpRedirect},
	{"ipv4 above multicast", v4("f0000000"), xdpRedirect},
	{"ipv4 link-local first", v4("a9fe0000"), xdpRedirect},
	{"ipv4 link-local last", v4("a9feffff"), xdpRedirect},
	{"ipv4 below link-local", v4("a9fdffff"), xdpRedirect},
	{"ipv4 above link-local", v4("a9ff0000"), xdpRedirect},
	{"ipv4 loopback destination", v4("7f000001"), xdpRedirect},
	{"ipv4 to further mac", fromG1(macVRRP, "0800", udp4+routed4+udpBytes+pad), xdpRedirect},
	{"ipv4 to other mac", fromG1(macAB, "0800", udp4+routed4+udpBytes+pad), xdpPass},
	{"ipv4 to broadcast mac", fromG1("ffffffffffff", "0800", udp4+routed4+udpBytes+pad), xdpPass},
	{"ipv4 to multicast mac", fromG1("01005e000001", "0800", udp4+"e0000001"+udpBytes+pad), xdpPass},
	{"ipv4 short", fromG1(macAA, "0800", udp4+"c61200"), xdpRedirect},
	{"ipv4 header only", fromG1(macAA, "0800", udp4+"c61200cd"), xdpPass},
	{"ipv4 version 0", fromG1(macAA, "0800", "05"+udp4[2:]+"c61200cd"+udpBytes), xdpRedirect},
	{"ipv4 version 5", fromG1(macAA, "0800", "55"+udp4[2:]+"c61200cd"+udpBytes), xdpRedirect},
	{"ipv4 header length 4", fromG1(macAA, "0800", "44"+udp4[2:]+"c61200cd"+udpBytes), xdpRedirect},
	{"ipv4 version 6", fromG1(macAA, "0800", "65"+udp4[2:]+"c61200cd"+udpBytes), xdpRedirect},
	{"ipv4 options", fromG1(macAA, "0800", "46"+udp4[2:]+routed4+"01010101"+udpBytes), xdpRedirect},
	{"ipv4 router alert", fromG1(macAA, "0800", "46"+udp4[2:]+routed4+"94040000"+udpBytes), xdpRedirect},
	{"ipv4 router alert to own address", fromG1(macAA, "0800", "46"+udp4[2:]+"c61200cd"+"94040000"+udpBytes), xdpPass},
	{"ipv4 router alert to a group", fromG1(macAA, "0800", "46"+udp4[2:]+"e0000016"+"94040000"+udpBytes), xdpPass},
	{"ipv4 options cut", fromG1(macAA, "0800", "46"+udp4[2:]+routed4), xdpRedirect},
	{"ipv4 options to own address", fromG1(macAA, "0800", "4f"+udp4[2:]+"c61200cd"+"01010101"+udpBytes), xdpPass},
	{"ipv4 options cut to own address", fromG1(macAA, "0800", "46"+udp4[2:]+"c61200cd"), xdpPass},

	{"ipv6 routed", v6(routed6), xdpRedirect},
	{"ipv6 own address", v6("20010002000000000000000000000205"), xdpPass},
	{"ipv6 beside own address", v6("20010002000000000000000000000206"), xdpRedirect},
	{"ipv6 differs from own in the first word", v6("20010003000000000000000000000205"), xdpRedirect},
	{"ipv6 multicast", v6("ff020000000000000000000000000001"), xdpPass},
	{"ipv6 below multicast", v6("fe000000000000000000000000000001"), xdpRedirect},
	{"ipv6 link-local first", v6("fe800000000000000000000000000001"), xdpPass},
	{"ipv6 link-local last", v6("febfffffffffffffffffffffffffffff"), xdpPass},
	{"ipv6 below link-local", v6("fe7fffffffffffffffffffffffffffff"), xdpRedirect},
	{"ipv6 above link-local", v6("fec00000000000000000000000000001"), xdpRedirect},
	{"ipv6 unspecified", v6("00000000000000000000000000000000"), xdpRedirect},
	{"ipv6 loopback", v6("00000000000000000000000000000001"), xdpRedirect},
	{"ipv6 to other mac", fromG1(macAB, "86dd", udp6+routed6+udpBytes), xdpPass},
	{"ipv6 short", fromG1(macAA, "86dd", udp6+routed6[2:]), xdpRedirect},
	{"ipv6 header only", fromG1(macAA, "86dd", udp6+"20010002000000000000000000000205"), xdpPass},
	{"ipv6 version 4", fromG1(macAA, "86dd", "40"+udp6[2:]+"ff020000000000000000000000000001"+udpBytes), xdpRedirect},
	{"ipv6 router alert", hop("11 00 05020000 0100"), xdpRedirect},
	{"ipv6 router alert behind PadN of 0", hop("11 00 0100 05020000"), xdpRedirect},
	{"ipv6 router alert behind PadN of 4", hop("11 01 010400000000 05020000 01020000"), xdpRedirect},
	{"ipv6 router alert behind two PadN", hop("11 01 0100 0100 05020000 0104 0000 0000"), xdpRedirect},
	{"ipv6 other option", hop("11 00 c2040000 0000"), xdpRedirect},
	{"ipv6 PadN past the frame", hop("11 00 01ff 0000 0000"), xdpRedirect},
	{"ipv6 hop-by-hop cut", fromG1(macAA, "86dd", "6000 0000 0008 00 40 20010002000000010000000000000001"+routed6+"1100"), xdpRedirect},
	{"ipv6 hop-by-hop to own address", fromG1(macAA, "86dd", "6000 0000 0008 00 40 20010002000000010000000000000001 20010002000000000000000000000205"+"1100c20400000000"), xdpPass},
	{"ipv6 router alert value in another header", fromG1(macAA, "86dd", "6000 0000 0010 3c 40 20010002000000010000000000000001"+routed6+"1100050200000100"+udpBytes), xdpRedirect},

	{"arp request", fromG1("ffffffffffff", "0806", "0001080006040001"+macG1+"c61200cb"+"000000000000"+"c61200cd"+pad), xdpPass},
	{"arp reply", fromG1(macAA, "0806", "0001080006040002"+macG1+"c61200cb"+macAA+"c61200cd"+pad), xdpPass},
	{"vlan", fromG1(macAA, "81000064", "0800"+udp4+routed4+udpBytes+pad), xdpRedirect},
	{"vlan with priority", fromG1(macAA, "8100a064", "86dd"+udp6+routed6+udpBytes), xdpRedirect},
	{"vlan, highest", fromG1(macAA, "81000ffe", "0800"+udp4+routed4+udpBytes+pad), xdpRedirect},
	{"vlan to own address", fromG1(macAA, "81000064", "0800"+udp4+"c61200cd"+udpBytes+pad), xdpPass},
	{"vlan, ipv6 to own address", fromG1(macAA, "81000064", "86dd"+udp6+"20010002000000000000000000000205"), xdpPass},
	{"vlan, multicast", fromG1(macAA, "81000064", "0800"+udp4+"e0000005"+udpBytes+pad), xdpPass},
	{"vlan, arp", fromG1(macAA, "81000064", "0806"+"0001080006040001"+macG1+"c61200cb"+"000000000000"+"c61200cd"+pad), xdpPass},
	{"vlan, two tags", fromG1(macAA, "81000064", "81000064"+"0800"+udp4+routed4+udpBytes+pad), xdpPass},
	{"vlan, nothing behind the tag", fromG1(macAA, "81000064", "0800"), xdpRedirect},
	{"vlan, tag cut", fromG1(macAA, "8100", "0064"), xdpPass},
	{"other vlan", fromG1(macAA, "81000065", "0800"+udp4+routed4+udpBytes+pad), xdpPass},
	{"priority tag", fromG1(macAA, "8100e000", "0800"+udp4+routed4+udpBytes+pad), xdpRedirect},
	{"qinq", fromG1(macAA, "88a80064", "8100006408000000"+udp4+routed4+udpBytes+pad), xdpPass},
	{"lldp", fromG1("0180c200000e", "88cc", pad+pad+pad), xdpPass},
	{"unknown ethertype", fromG1(macAA, "88b5", pad+pad+pad), xdpPass},
	{"length field", fromG1(macAA, "0026", pad+pad+pad), xdpPass},
	{"ethernet header only", fromG1(macAA, "0800", ""), xdpRedirect},
}

func parseMAC(t testing.TB, s string) net.HardwareAddr {
	t.Helper()
	return net.HardwareAddr(frame.Hex(t, s))
}

var ownAddrs = []netip.Addr{
	netip.MustParseAddr("198.18.0.205"), netip.MustParseAddr("198.18.0.255"), netip.MustParseAddr("198.19.0.205"),
	netip.MustParseAddr("2001:2::205"), netip.MustParseAddr("2001:2:0:8000::205"),
}

// loadProgram returns the program of a port with two queues, of which queue 0,
// where BPF_PROG_TEST_RUN delivers, has a socket.
func loadProgram(t *testing.T, host bool) *program { return loadProgramOf(t, host, most) }

func loadProgramOf(t *testing.T, host bool, most capacity) *program {
	t.Helper()
	raiseMemlock()
	p, err := newProgram(2, host, host, []net.HardwareAddr{parseMAC(t, macAA), parseMAC(t, macVRRP)}, []uint16{100, 4094}, most)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	if err := p.setAddrs(ownAddrs); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := p.xsks.Put(uint32(0), uint32(fd)); err != nil {
		t.Fatal(err)
	}
	return p
}

func run(t *testing.T, p *program, frame []byte) uint32 {
	t.Helper()
	got, err := p.prog.Run(&ebpf.RunOptions{Data: frame})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestProgramHost(t *testing.T) {
	p := loadProgram(t, true)
	for _, test := range verdicts {
		t.Run(test.name, func(t *testing.T) {
			frame := frame.Hex(t, test.frame)
			packets, bytes, err := p.counters(0)
			if err != nil {
				t.Fatal(err)
			}
			if got := run(t, p, frame); got != test.want {
				t.Errorf("verdict %d, want %d", got, test.want)
			}
			if test.want == xdpPass {
				packets++
				bytes += uint64(len(frame))
			}
			gotPackets, gotBytes, err := p.counters(0)
			if err != nil {
				t.Fatal(err)
			}
			if gotPackets != packets || gotBytes != bytes {
				t.Errorf("left to the host: %d packets %d bytes, want %d and %d", gotPackets, gotBytes, packets, bytes)
			}
		})
	}
}

func TestProgramNoHost(t *testing.T) {
	p := loadProgram(t, false)
	for _, test := range verdicts {
		t.Run(test.name, func(t *testing.T) {
			if got := run(t, p, frame.Hex(t, test.frame)); got != xdpRedirect {
				t.Errorf("verdict %d, want %d", got, xdpRedirect)
			}
		})
	}
	if packets, _, err := p.counters(0); err != nil || packets != 0 {
		t.Errorf("left to the host: %d packets, %v, want 0", packets, err)
	}
}

func TestProgramWithoutSocket(t *testing.T) {
	for _, host := range []bool{true, false} {
		p := loadProgram(t, host)
		if err := p.xsks.Delete(uint32(0)); err != nil {
			t.Fatal(err)
		}
		frame := frame.Hex(t, v4(routed4))
		if got := run(t, p, frame); got != xdpPass {
			t.Errorf("host %t: verdict %d, want %d", host, got, xdpPass)
		}
		if packets, bytes, err := p.counters(0); err != nil || packets != 1 || bytes != uint64(len(frame)) {
			t.Errorf("host %t: left to the host: %d packets %d bytes, %v, want 1 and %d", host, packets, bytes, err, len(frame))
		}
	}
}

// TestProgramRoutes: the longest prefix says whose a packet is, own addresses are
// the host's whatever it says.
func TestProgramRoutes(t *testing.T) {
	p := loadProgram(t, true)
	for _, step := range []struct {
		name   string
		routes map[string]bool
		pass   []string
		rest   []string
	}{
		{"two routes and one within", map[string]bool{"10.0.0.0/8": true, "10.1.0.0/16": false, "10.1.2.3/32": true, "2001:db8::/32": true, "2001:db8:1::/48": false},
			[]string{"10.0.0.1", "10.255.255.255", "10.1.2.3", "2001:db8::1", "198.18.0.205"},
			[]string{"11.0.0.0", "9.255.255.255", "10.1.0.1", "10.1.2.4", "2001:db8:1::1", "2001:db9::1"}},
		{"changed", map[string]bool{"10.0.0.0/8": false, "10.1.0.0/16": true, "2001:db8::/32": true},
			[]string{"10.1.0.1", "10.1.2.4", "10.1.2.3", "2001:db8:1::1"}, []string{"10.0.0.1", "2001:db9::1"}},
		{"default", map[string]bool{"0.0.0.0/0": true, "198.19.0.0/16": false, "::/0": true}, []string{"10.1.0.1", "8.8.8.8", "2001:db9::1"}, []string{"198.19.10.1"}},
		{"none", nil, []string{"198.18.0.205"}, []string{"10.0.0.1", "10.1.0.1", "8.8.8.8", "2001:db8::1"}},
	} {
		routes := make(map[netip.Prefix]bool)
		for r, host := range step.routes {
			routes[netip.MustParsePrefix(r)] = host
		}
		if missing, err := p.setRoutes(routes); err != nil || missing != 0 {
			t.Fatal(missing, err)
		}
		for want, addrs := range map[uint32][]string{xdpPass: step.pass, xdpRedirect: step.rest} {
			for _, a := range addrs {
				dst := netip.MustParseAddr(a)
				packet := v6(hex.EncodeToString(dst.AsSlice()))
				if dst.Is4() {
					packet = v4(hex.EncodeToString(dst.AsSlice()))
				}
				if got := run(t, p, frame.Hex(t, packet)); got != want {
					t.Errorf("%s: to %s: verdict %d, want %d", step.name, a, got, want)
				}
			}
		}
	}
}

// passes reports whether the program leaves a packet to dst to the host.
func (p *program) passes(t *testing.T, dst netip.Addr) bool {
	t.Helper()
	packet := v6(hex.EncodeToString(dst.AsSlice()))
	if dst.Is4() {
		packet = v4(hex.EncodeToString(dst.AsSlice()))
	}
	return run(t, p, frame.Hex(t, packet)) == xdpPass
}

// TestProgramRoutesFull: what a full map has no place for goes to the host, whatever
// the routes were before; nothing that is the host's goes elsewhere. When routes go
// all is as they say again.
func TestProgramRoutesFull(t *testing.T) {
	const place = 4
	rnd := rand.New(rand.NewPCG(1, 2))
	random := func() netip.Prefix {
		bits := 2 * rnd.IntN(6)
		a := netip.AddrFrom4([4]byte{byte(rnd.IntN(2) + 16*rnd.IntN(4)), byte(rnd.IntN(4) << 6)})
		if rnd.IntN(2) == 0 {
			b := a.As4()
			a = netip.AddrFrom16([16]byte{0x20 | b[0]>>4, b[0]<<4 | b[1]>>4})
		}
		p, _ := a.Prefix(bits)
		return p
	}
	host := func(routes map[netip.Prefix]bool, a netip.Addr) bool {
		best, is := -1, false
		for r, host := range routes {
			if r.Contains(a) && r.Bits() > best {
				best, is = r.Bits(), host
			}
		}
		return is
	}
	p := loadProgramOf(t, true, capacity{addrs: 16, routes: place})
	full := 0
	for step := range 400 {
		routes := make(map[netip.Prefix]bool)
		for range rnd.IntN(3 * place) {
			routes[random()] = rnd.IntN(2) == 0
		}
		if step%50 == 49 {
			clear(routes)
		}
		// As control does: nothing but the host's at the outside.
		for r, is := range routes {
			outer := netip.Prefix{}
			for o := range routes {
				if o != r && o.Overlaps(r) && o.Bits() < r.Bits() && (!outer.IsValid() || o.Bits() > outer.Bits()) {
					outer = o
				}
			}
			if !is && !outer.IsValid() {
				routes[r] = true
			}
		}
		missing, err := p.setRoutes(routes)
		if err != nil {
			t.Fatal(err)
		}
		lacks := map[bool]int{}
		for r := range routes {
			lacks[r.Addr().Is4()]++
		}
		if fits := lacks[true] <= place && lacks[false] <= place; fits && missing != 0 {
			t.Fatalf("step %d: %d of %v have no place", step, missing, routes)
		} else if !fits {
			full++
			if missing == 0 {
				t.Fatalf("step %d: all of %v have a place", step, routes)
			}
		}
		if step%3 == 0 { // some more of the host's, one by one
			for range rnd.IntN(3) {
				r := random()
				routes[r] = true
				if err := p.addRoute(r); err != nil {
					t.Fatal(err)
				}
				missing = max(missing, 1)
			}
		}
		for range 20 {
			a := random().Addr()
			if a.IsUnspecified() || a.Is4() && a.As4()[0] == 0 {
				continue
			}
			want, got := host(routes, a), p.passes(t, a)
			if want && !got || missing == 0 && got != want {
				t.Fatalf("step %d: %d of %v have no place: to %v: passes %t, want %t; the maps have %v", step, missing, routes, a, got, want, p.routes)
			}
		}
	}
	if full < 50 {
		t.Errorf("only %d times full", full)
	}
}

// TestProgramManyRoutes: more routes of the host than 131,072 have their place, all
// of them others from one time to the next.
func TestProgramManyRoutes(t *testing.T) {
	const n = 200000
	p := loadProgram(t, true)
	for _, first := range []byte{20, 40} {
		routes := make(map[netip.Prefix]bool, n)
		for i := range n {
			routes[netip.PrefixFrom(netip.AddrFrom4([4]byte{first + byte(i>>16), byte(i >> 8), byte(i), 0}), 25)] = true
		}
		began := time.Now()
		if missing, err := p.setRoutes(routes); err != nil || missing != 0 {
			t.Fatal(missing, err)
		}
		t.Logf("%d routes in %v", n, time.Since(began).Round(time.Millisecond))
		for a, want := range map[netip.Addr]bool{
			netip.AddrFrom4([4]byte{first, 0, 0, 1}): true, netip.AddrFrom4([4]byte{first, 0, 0, 129}): false,
			netip.AddrFrom4([4]byte{first + 3, 13, 63, 127}): true, netip.AddrFrom4([4]byte{first + 3, 13, 64, 1}): false, netip.AddrFrom4([4]byte{60 - first, 0, 0, 1}): false,
		} {
			if got := p.passes(t, a); got != want {
				t.Errorf("to %v: passes %t, want %t", a, got, want)
			}
		}
	}
}

// TestProgramAddrsFull: as many addresses as the map holds become others at once;
// of more the error says so.
func TestProgramAddrsFull(t *testing.T) {
	const place = 8
	p := loadProgramOf(t, true, capacity{addrs: place, routes: 8})
	for _, first := range []byte{10, 20, 15} {
		var addrs []netip.Addr
		for i := range byte(place) {
			addrs = append(addrs, netip.AddrFrom4([4]byte{198, 18, 1, first + i}), netip.AddrFrom16([16]byte{0x20, 1, 15: first + i}))
		}
		if err := p.setAddrs(addrs); err != nil {
			t.Fatal(err)
		}
		for i := range byte(40) {
			if got, want := p.passes(t, netip.AddrFrom4([4]byte{198, 18, 1, i})), first <= i && i < first+place; got != want {
				t.Errorf("first %d: to 198.18.1.%d: passes %t, want %t", first, i, got, want)
			}
		}
		if err := p.setAddrs(append(addrs, netip.MustParseAddr("198.18.2.1"))); !isFull(err) {
			t.Errorf("one too many: %v", err)
		}
	}
}

func TestProgramSetAddrs(t *testing.T) {
	p := loadProgram(t, true)
	old, fresh := v4("c61200cd"), v4("c6120001")
	old6, fresh6 := v6("20010002000000000000000000000205"), v6("20010002000000000000000000000001")
	if err := p.setAddrs([]netip.Addr{netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("2001:2::1%eth0")}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name  string
		frame string
		want  uint32
	}{
		{"ipv4 removed", old, xdpRedirect},
		{"ipv4 added", fresh, xdpPass},
		{"ipv6 removed", old6, xdpRedirect},
		{"ipv6 added", fresh6, xdpPass},
	} {
		if got := run(t, p, frame.Hex(t, test.frame)); got != test.want {
			t.Errorf("%s: verdict %d, want %d", test.name, got, test.want)
		}
	}
	if err := p.setAddrs(nil); err != nil {
		t.Fatal(err)
	}
	if got := run(t, p, frame.Hex(t, fresh)); got != xdpRedirect {
		t.Errorf("no addresses: verdict %d, want %d", got, xdpRedirect)
	}
}

// FuzzProgram compares the program with the rule written in Go.
func FuzzProgram(f *testing.F) {
	raiseMemlock()
	p, err := newProgram(1, true, true, []net.HardwareAddr{parseMAC(f, macAA), parseMAC(f, macVRRP)}, []uint16{100, 4094}, most)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(p.close)
	if err := p.setAddrs(ownAddrs); err != nil {
		f.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { unix.Close(fd) })
	if err := p.xsks.Put(uint32(0), uint32(fd)); err != nil {
		f.Fatal(err)
	}
	for _, v := range verdicts {
		f.Add(frame.Hex(f, v.frame))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < 14 || len(frame) > 1500 {
			return // the kernel runs no program on it
		}
		want := uint32(xdpPass)
		if forwardable(frame) {
			want = xdpRedirect
		}
		if got := run(t, p, frame); got != want {
			t.Errorf("verdict %d, want %d: %x", got, want, frame)
		}
	})
}

// forwardable is the rule that the program follows with a host.
func forwardable(f []byte) bool {
	if mac := hex.EncodeToString(f[:6]); mac != macAA && mac != macVRRP {
		return false
	}
	p, kind := f[14:], [2]byte(f[12:14])
	if kind == [2]byte{0x81, 0x00} && len(p) >= 4 {
		if id := int(p[0]&15)<<8 | int(p[1]); id != 0 && id != 100 && id != 4094 {
			return false
		}
		p, kind = p[4:], [2]byte(p[2:4])
	}
	own := func(a netip.Addr) bool {
		for _, o := range ownAddrs {
			if a == o {
				return true
			}
		}
		return false
	}
	switch kind {
	case [2]byte{0x08, 0x00}:
		if len(p) < 20 || p[0]>>4 != 4 || p[0]&15 < 5 {
			return true
		}
		dst := netip.AddrFrom4([4]byte(p[16:20]))
		return !dst.IsMulticast() && dst != netip.AddrFrom4([4]byte{255, 255, 255, 255}) && !own(dst)
	case [2]byte{0x86, 0xdd}:
		if len(p) < 40 || p[0]>>4 != 6 {
			return true
		}
		dst := netip.AddrFrom16([16]byte(p[24:40]))
		return p[24] != 0xff && !(p[24] == 0xfe && p[25]&0xc0 == 0x80) && !own(dst)
	}
	return false
}
