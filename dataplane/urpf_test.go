package dataplane_test

import (
	"fmt"
	"net/netip"
	"testing"

	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
	"nmfwd/fib"
	"nmfwd/wire"
)

// TestURPF: which sources pass the check of the reverse path on A, and which do
// not, in transit and to the router itself.
func TestURPF(t *testing.T) {
	region := memport.NewRegion("test", 2400, memport.Stride)
	a := newPort(t, region, memport.Config{Name: "A"})
	b := newPort(t, region, memport.Config{Name: "B"})
	rib := labRIB(t)
	via := func(p, gw string, port uint16) {
		add(t, rib, fib.Route{Prefix: netip.MustParsePrefix(p), Origin: fib.Static, Kind: fib.Via, Gateway: addr(gw), Port: port})
	}
	via("0.0.0.0/0", "198.18.0.203", 0)
	via("192.0.2.0/25", "198.19.0.203", 1)
	add(t, rib, fib.Route{Prefix: netip.MustParsePrefix("192.0.2.128/25"), Origin: fib.Static, Kind: fib.Reject})
	add(t, rib, fib.Route{Prefix: netip.MustParsePrefix("192.0.2.192/27"), Origin: fib.Kernel, Kind: fib.Unreachable})
	add(t, rib, fib.Route{Prefix: netip.MustParsePrefix("192.0.2.224/27"), Origin: fib.Kernel, Kind: fib.Throw})
	add(t, rib, fib.Route{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Origin: fib.Static, Kind: fib.Via,
		Hops: []fib.Hop{{Gateway: addr("198.18.0.204")}, {Gateway: addr("198.19.0.203"), Port: 1}}})
	f := rib.Commit()
	for _, c := range []struct {
		name          string
		src           string
		strict, loose bool // passes
	}{
		{"behind the port", "198.18.10.1", true, true},
		{"on the link, not known", "198.18.0.9", true, true},
		{"behind another port", "192.0.2.1", false, true},
		{"the default route", "8.8.8.8", true, false},
		{"a gateway of several, not in use", "203.0.113.5", true, true},
		{"reject", "192.0.2.129", false, false},
		{"unreachable", "192.0.2.193", false, false},
		{"throw", "192.0.2.225", false, false},
		{"IPv6 behind the port", "2001:2:0:1::1", true, true},
		{"IPv6 behind another port", "2001:2:0:8001::1", false, true},
		{"IPv6 without a route", "2001:db8::1", false, false},
	} {
		for mode, want := range []bool{true, c.loose, c.strict} {
			st := labState(f)
			st.Ports[0].URPF = dataplane.URPF(mode)
			r := newRouter(t, st, 1, dataplane.Options{}, &a.Port, &b.Port)
			a.Deliver(0, frameFrom(netip.MustParseAddr(c.src)))
			r.Workers()[0].Step(0)
			var snap dataplane.Snapshot
			r.Snapshot(&snap)
			q := snap.Ports[0].RX[0]
			if got := len(b.Transmit(0)) == 1; got != want || (q.Dropped[dataplane.DropURPF] == 1) == want {
				t.Errorf("%s, mode %d: forwarded %v, want %v; %+v", c.name, mode, got, want, q)
			}
			checkSums(t, r)
		}
	}
}

// frameFrom returns a frame with a packet from s.
func frameFrom(s netip.Addr) []byte {
	if s.Is6() {
		f := frame6(0, 64)
		copy(f[14+8:], s.AsSlice())
		return f
	}
	f := frame4(0, 64)
	copy(f[14+12:], s.AsSlice())
	f[24], f[25] = 0, 0
	sum := wire.Checksum(f[14:34])
	f[24], f[25] = byte(sum>>8), byte(sum)
	return f
}

// TestMartianSources: what comes from an address of the router or a broadcast of
// its networks is a martian, whatever else is asked of sources, and nothing that
// only looks alike at first is.
func TestMartianSources(t *testing.T) {
	region := memport.NewRegion("test", 2400, memport.Stride)
	a, b := newPort(t, region, memport.Config{Name: "A"}), newPort(t, region, memport.Config{Name: "B"})
	own := []netip.Prefix{
		netip.MustParsePrefix("198.19.0.205/24"), netip.MustParsePrefix("198.18.0.205/24"),
		netip.MustParsePrefix("10.1.0.1/25"), netip.MustParsePrefix("10.1.1.1/30"), netip.MustParsePrefix("10.1.2.0/31"), netip.MustParsePrefix("10.1.3.1/32"),
	}
	rib := labRIB(t)
	add(t, rib, fib.Route{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Origin: fib.Static, Kind: fib.Via, Gateway: netip.MustParseAddr("198.19.0.203"), Port: 1})
	for i, p := range own {
		for _, r := range fib.ConnectedRoutes(uint16(i%2), p) {
			add(t, rib, r)
		}
	}
	f := rib.Commit()
	martian := map[string]bool{}
	for _, s := range []string{
		"198.19.0.205", "198.19.0.0", "198.19.0.255", "198.18.0.205", "198.18.0.0", "198.18.0.255",
		"10.1.0.1", "10.1.0.0", "10.1.0.127", "10.1.1.1", "10.1.1.0", "10.1.1.3", "10.1.2.0", "10.1.3.1",
	} {
		martian[s] = true
	}
	for _, s := range []string{"198.18.0.254", "198.18.1.255", "10.1.0.126", "10.1.0.128", "10.1.0.255", "10.1.1.2", "10.1.1.4", "10.1.2.1", "10.1.3.0", "10.1.3.255"} {
		martian[s] = false
	}
	for n, i := 0, uint32(20<<24); n < 20; i += 257 { // hit by chance
		if f.Sources.May(i) {
			n++
			martian[netip.AddrFrom4([4]byte{byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)}).String()] = false
		}
	}
	for mode := range dataplane.URPFStrict + 1 {
		st := labState(f)
		st.Ports[0].URPF = mode
		r := newRouter(t, st, 1, dataplane.Options{}, &a.Port, &b.Port)
		for s, want := range martian {
			var before, after dataplane.Snapshot
			r.Snapshot(&before)
			a.Deliver(0, frameFrom(netip.MustParseAddr(s)))
			r.Workers()[0].Step(0)
			r.Snapshot(&after)
			got := after.Ports[0].RX[0].Dropped[dataplane.DropMartian] != before.Ports[0].RX[0].Dropped[dataplane.DropMartian]
			left := len(b.Transmit(0))
			if got != want || mode == dataplane.URPFOff && (left == 1) == want {
				t.Errorf("mode %d, from %s: martian %v, want %v; %d frames left", mode, s, got, want, left)
			}
		}
	}
}

// BenchmarkURPF measures packets by a port that checks sources.
func BenchmarkURPF(b *testing.B) {
	for mode := range dataplane.URPFStrict + 1 {
		b.Run(fmt.Sprintf("mode %d", mode), func(b *testing.B) {
			benchmarkStep(b, 64, 1, func(n int) []byte { return frame4(n, 255) }, func(st *dataplane.State) { st.Ports[0].URPF = mode })
		})
	}
}
