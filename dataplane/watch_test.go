package dataplane_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
)

// TestWatch: every destination of frames to the router is told, once, whatever
// becomes of the packet, and no other.
func TestWatch(t *testing.T) {
	region := memport.NewRegion("test", 1200, memport.Stride)
	a := newPort(t, region, memport.Config{Name: "A"})
	b := newPort(t, region, memport.Config{Name: "B"})
	st := labState(labRIB(t).Commit())
	st.Watch = dataplane.NewWatch(1)
	r := newRouter(t, st, 1, dataplane.Options{}, &a.Port, &b.Port)
	w := r.Workers()[0]
	to4 := func(dst string) []byte {
		f := frame4(0, 64)
		copy(f[30:], netip.MustParseAddr(dst).AsSlice())
		return f
	}
	foreign := frame4(1, 64)
	foreign[5]++
	cut := frame4(2, 64)[:33]
	for _, c := range []struct {
		name  string
		frame []byte
		want  string // empty for none
	}{
		{"forwarded", frame4(0, 64), "198.19.10.1"},
		{"the same", frame4(0, 64), ""},
		{"another flow to the same", frame4(1, 64), ""},
		{"IPv6", frame6(0, 64), "2001:2:0:8001::1"},
		{"TTL one", frame4(100, 1), "198.19.10.2"},
		{"bad checksum", to4("203.0.113.9"), "203.0.113.9"},
		{"priority tag", tag(to4("203.0.113.10"), 5<<13), "203.0.113.10"},
		{"VLAN of another", tag(to4("203.0.113.11"), 7), ""},
		{"to another station", foreign, ""},
		{"cut", cut, ""},
	} {
		if !a.Deliver(0, c.frame) {
			t.Fatal("ring full")
		}
		w.Step(0)
		b.Discard(0)
		got := ""
		st.Watch.Drain(func(a netip.Addr) { got += a.String() })
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}

	// More destinations than are remembered and than the ring holds: what found no
	// room is counted, and told when it comes again.
	const n = 70_000
	deliver := func() {
		for i := range n {
			f := to4("10.0.0.0")
			binary.BigEndian.PutUint32(f[30:], 10<<24|uint32(i))
			if !a.Deliver(0, f) {
				t.Fatal("ring full")
			}
			if i%64 == 63 || i == n-1 {
				w.Step(0)
				b.Discard(0)
			}
		}
	}
	seen := map[netip.Addr]bool{}
	drain := func() { st.Watch.Drain(func(a netip.Addr) { seen[a] = true }) }
	deliver()
	drain()
	if missed := st.Watch.Missed(); missed == 0 || missed != uint64(n-len(seen)) {
		t.Errorf("%d destinations told, %d missed, of %d", len(seen), missed, n)
	}
	deliver()
	drain()
	if len(seen) != n {
		t.Errorf("%d destinations told in two rounds, want %d", len(seen), n)
	}
}

// BenchmarkWatch is BenchmarkStep's mixed traffic while a watch goes on.
func BenchmarkWatch(b *testing.B) {
	benchmarkStep(b, 64, 1, func(n int) []byte {
		if n%2 == 0 {
			return frame4(n/2, 255)
		}
		return frame6(n/2, 255)
	}, func(st *dataplane.State) { st.Watch = dataplane.NewWatch(1) })
}
