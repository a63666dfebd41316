package dataplane_test

import (
	"fmt"
	"net/netip"
	"testing"

	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
	"nmfwd/dataplane/wire"
	"nmfwd/fib"
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
		{"an own address", "198.19.0.205", false, false},
		{"IPv6 behind the port", "2001:2:0:1::1", true, true},
		{"IPv6 behind another port", "2001:2:0:8001::1", false, true},
		{"IPv6 without a route", "2001:db8::1", false, false},
	} {
		for mode, want := range []bool{true, c.loose, c.strict} {
			st := labState(f)
			st.Ports[0].URPF = dataplane.URPF(mode)
			r := newRouter(t, st, 1, dataplane.Options{}, &a.Port, &b.Port)
			s := netip.MustParseAddr(c.src)
			var frame []byte
			if s.Is4() {
				frame = frame4(0, 64)
				copy(frame[14+12:], s.AsSlice())
				frame[24], frame[25] = 0, 0
				sum := wire.Checksum(frame[14:34])
				frame[24], frame[25] = byte(sum>>8), byte(sum)
			} else {
				frame = frame6(0, 64)
				copy(frame[14+8:], s.AsSlice())
			}
			a.Deliver(0, frame)
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

// BenchmarkURPF measures packets by a port that checks sources.
func BenchmarkURPF(b *testing.B) {
	for mode := range dataplane.URPFStrict + 1 {
		b.Run(fmt.Sprintf("mode %d", mode), func(b *testing.B) {
			benchmarkStep(b, 64, 1, func(n int) []byte { return frame4(n, 255) }, func(st *dataplane.State) { st.Ports[0].URPF = mode })
		})
	}
}
