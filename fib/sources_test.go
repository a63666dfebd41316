package fib

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// TestSources: Sources have all addresses that packets do not come from, whatever
// was added and removed before, and nothing when these are gone.
func TestSources(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	r := New(testPorts)
	type origin struct {
		netip.Prefix
		Origin
	}
	have := map[origin]Kind{}
	check := func() {
		t.Helper()
		f := r.Commit()
		for rt, kind := range have {
			b := rt.Addr().As4()
			if kind != Blackhole && !f.Sources.May(binary.BigEndian.Uint32(b[:])) {
				t.Fatalf("%v is not among the sources", rt)
			}
		}
	}
	random := func() Route {
		a := netip.AddrFrom4([4]byte{10, byte(rng.IntN(4)), byte(rng.IntN(4)), byte(rng.IntN(256))})
		kind := []Kind{Local, Broadcast, Blackhole}[rng.IntN(3)]
		return Route{Prefix: netip.PrefixFrom(a, 32), Origin: []Origin{Connected, Kernel}[rng.IntN(2)], Kind: kind}
	}
	put := func(rt Route) { have[origin{rt.Prefix, rt.Origin}] = rt.Kind }
	for range 20 {
		var many []Route
		for range 200 {
			many = append(many, random())
			put(many[len(many)-1])
		}
		if err := r.Load(many); err != nil {
			t.Fatal(err)
		}
		check()
		for range 200 {
			rt := random()
			if err := r.Add(rt); err != nil {
				t.Fatal(err)
			}
			put(rt)
		}
		check()
		for rt := range have {
			if rng.IntN(2) > 0 {
				continue
			}
			if err := r.Remove(Route{Prefix: rt.Prefix, Origin: rt.Origin}); err != nil {
				t.Fatal(err)
			}
			delete(have, rt)
		}
		check()
	}
	for rt := range have {
		if err := r.Remove(Route{Prefix: rt.Prefix, Origin: rt.Origin}); err != nil {
			t.Fatal(err)
		}
	}
	if f := r.Commit(); f.Sources != (Sources{}) {
		t.Error("sources stay behind")
	}
}

// TestSourcesOfTheNetwork: no other address of 256 beside one hits.
func TestSourcesOfTheNetwork(t *testing.T) {
	r := New(testPorts)
	for _, rt := range ConnectedRoutes(0, netip.MustParsePrefix("198.18.0.205/24")) {
		if err := r.Add(rt); err != nil {
			t.Fatal(err)
		}
	}
	f := r.Commit()
	for a := range uint32(256) {
		if got, want := f.Sources.May(198<<24|18<<16|a), a == 0 || a == 205 || a == 255; got != want {
			t.Errorf("198.18.0.%d: got %v, want %v", a, got, want)
		}
	}
}
