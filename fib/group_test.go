package fib

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// A groupBed is a RIB with one route through several gateways, each on a port of
// its own and known.
type groupBed struct {
	*RIB
	hops []Hop
}

func newGroupBed(t *testing.T, weights ...int) *groupBed {
	t.Helper()
	ports := make([]PortAttr, len(weights))
	b := &groupBed{}
	for i, w := range weights {
		ports[i] = PortAttr{MAC: [6]byte{2, 0, 0, 0, 0, byte(i)}, MTU: 1500, Name: fmt.Sprintf("igb%d", i)}
		b.hops = append(b.hops, Hop{Gateway: ip(fmt.Sprintf("10.0.%d.1", i)), Port: uint16(i), Weight: uint16(w)})
	}
	b.RIB = New(ports)
	for _, h := range b.hops {
		must(t, b.SetNeighbor(h.Port, h.Gateway, [6]byte{2, 1}))
	}
	must(t, b.Add(Route{Prefix: pfx("0.0.0.0/0"), Origin: Static, Kind: Via, Hops: b.hops}))
	return b
}

// ports returns the port that each bucket of the route of dst leads to.
func ports(f *FIB, dst string) (p [Buckets]uint16) {
	a := f.Lookup(ip(dst))
	for hash := range p {
		p[hash] = f.Path(a, uint64(hash)|0xabcd<<48).Port
	}
	return p
}

func (b *groupBed) buckets() [Buckets]uint16 {
	f := b.Commit()
	b.Reclaim(f.Gen)
	return ports(f, "203.0.113.1")
}

func count(p [Buckets]uint16, n int) []int {
	c := make([]int, n)
	for _, i := range p {
		c[i]++
	}
	return c
}

func moved(a, b [Buckets]uint16) (n int) {
	for i := range a {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}

// While all members can be used, each has as many buckets as its weight says.
func TestGroupWeights(t *testing.T) {
	ws := [][]int{{1, 1, 2}, {1, 2}, {3, 1}, {1, 256}, {256, 256, 1}, {5, 7, 11, 13}, {0, 1}, {1000, 1, 1, 1}}
	for n := 2; n <= 16; n++ {
		ws = append(ws, slices.Repeat([]int{1}, n))
	}
	ws = append(ws, slices.Repeat([]int{1}, 64), slices.Repeat([]int{200}, MaxHops), append(slices.Repeat([]int{1}, MaxHops-1), 60000))
	for _, w := range ws {
		got := count(newGroupBed(t, w...).buckets(), len(w))
		total := 0
		for _, n := range w {
			total += max(n, 1)
		}
		// Those that get one in place of less take it from the largest.
		lifted := 0
		for _, n := range w {
			if Buckets*max(n, 1) < total {
				lifted++
			}
		}
		for i, n := range got {
			due := float64(Buckets*max(w[i], 1)) / float64(total)
			if d := float64(n) - due; n == 0 || d >= 1 || d <= -1-float64(lifted) {
				t.Errorf("weights %v: member %d has %d buckets, is due %.1f", w, i, n, due)
			}
		}
	}
}

// Hops in any order, with weights or repeated, with factors in common, make the
// same group; the same ones of another MTU another.
func TestGroupIdentity(t *testing.T) {
	b := newGroupBed(t, 2, 1, 1)
	want := b.buckets()
	h := b.hops
	one := func(i int) Hop { return Hop{Gateway: h[i].Gateway, Port: h[i].Port} }
	for i, hops := range [][]Hop{
		{h[2], h[1], h[0]},
		{one(0), one(1), one(2), one(0)},
		{{h[0].Gateway, 0, 6}, one(1), {h[2].Gateway, 2, 3}, {h[1].Gateway, 1, 2}},
	} {
		must(t, b.Add(Route{Prefix: pfx(fmt.Sprintf("20.%d.0.0/16", i)), Origin: Kernel, Kind: Via, Hops: hops}))
		if got := ports(b.Commit(), fmt.Sprintf("20.%d.1.1", i)); got != want {
			t.Errorf("%v: %d buckets differ", hops, moved(got, want))
		}
	}
	if n := len(b.adj.groups.all); n != 1 {
		t.Errorf("%d groups, want 1", n)
	}
	must(t, b.Add(Route{Prefix: pfx("21.0.0.0/8"), Origin: Static, Kind: Via, Hops: h, MTU: 1400}))
	f := b.Commit()
	if got := ports(f, "21.0.0.1"); got != want {
		t.Errorf("another MTU: %d buckets differ", moved(got, want))
	}
	if got := f.Path(f.Lookup(ip("21.0.0.1")), 0).MTU; got != 1400 {
		t.Errorf("MTU: got %d, want 1400", got)
	}
	rt, _ := b.Lookup(ip("21.0.0.1"))
	if want := "21.0.0.0/8 via 10.0.0.1 port 0 weight 2 via 10.0.1.1 port 1 via 10.0.2.1 port 2 mtu 1400 static"; rt.String() != want {
		t.Errorf("got route %v, want %s", rt, want)
	}

	// One gateway however often is no group.
	must(t, b.Add(Route{Prefix: pfx("22.0.0.0/8"), Origin: Static, Kind: Via, Hops: []Hop{one(1), h[1]}}))
	wantLookup(t, b.Commit(), "22.0.0.1", "forward port 1 mtu 1500 neighbor 10.0.1.1 head 0201000000000200000000010800")
	rt, _ = b.Lookup(ip("22.0.0.1"))
	if want := (Route{Prefix: pfx("22.0.0.0/8"), Origin: Static, Kind: Via, Gateway: h[1].Gateway, Port: 1}); !reflect.DeepEqual(rt, want) {
		t.Errorf("got route %v, want %v", rt, want)
	}
}

// Who has which bucket does not depend on how ports are numbered, but on what they
// are called: it outlasts a restart with the lines of the file in another order.
func TestGroupRestart(t *testing.T) {
	names := []string{"igb0", "igb1", "igb1.100", "ix0"}
	byName := func(order []int) (p [Buckets]string) {
		attrs := make([]PortAttr, len(names))
		var hops []Hop
		for port, i := range order {
			attrs[port] = PortAttr{Name: names[i], MTU: 1500}
			hops = append(hops, Hop{Gateway: ip("fe80::1"), Port: uint16(port), Weight: uint16(1 + i%2)})
		}
		r := New(attrs)
		must(t, r.Add(Route{Prefix: pfx("::/0"), Origin: Static, Kind: Via, Hops: hops}))
		for b, port := range ports(r.Commit(), "2001:db8::1") {
			p[b] = attrs[port].Name
		}
		return p
	}
	want := byName([]int{0, 1, 2, 3})
	permutations([]int{0, 1, 2, 3}, func(order []int) {
		if byName(order) != want {
			t.Errorf("ports in order %v: other buckets", order)
		}
	})
}

// A member that leaves gives up its own buckets and no others, and has them all
// when it is back, whichever others are in use.
func TestGroupResilience(t *testing.T) {
	for _, weights := range [][]int{{1, 1}, {1, 3}, {1, 1, 1}, {2, 1, 1, 3}, {1, 1, 1, 1, 1, 1}} {
		n := len(weights)
		b := newGroupBed(t, weights...)
		all := make([][Buckets]uint16, 1<<n) // by set of members in use
		for set := 1<<n - 1; set > 0; set-- {
			for i := range n {
				b.SetLink(uint16(i), set>>i&1 == 1)
			}
			all[set] = b.buckets()
			for i, c := range count(all[set], n) {
				if in := set>>i&1 == 1; in != (c > 0) {
					t.Fatalf("weights %v: set %b: member %d has %d buckets", weights, set, i, c)
				}
			}
		}
		for set := 1; set < 1<<n; set++ {
			for i := range n {
				less := set &^ (1 << i)
				if less == set || less == 0 {
					continue
				}
				for k := range Buckets {
					if has := all[set][k]; has != uint16(i) && all[less][k] != has {
						t.Fatalf("weights %v: bucket %d of member %d moved when %d left %b", weights, k, has, i, set)
					}
				}
			}
		}
	}
}

// What a member gives up is spread over the others by their weights.
func TestGroupSpread(t *testing.T) {
	for n := 3; n <= 16; n++ {
		weights := slices.Repeat([]int{1}, n)
		weights[1] = 2
		b := newGroupBed(t, weights...)
		before := count(b.buckets(), n)
		b.SetLink(0, false)
		after := count(b.buckets(), n)
		for i := 1; i < n; i++ {
			due := float64(before[0]) * float64(weights[i]) / float64(n)
			if got := float64(after[i] - before[i]); got < due/2-6 || got > due*2+6 { // some five standard deviations
				t.Errorf("%d members: member %d got %v of %d, is due %.1f", n, i, got, before[0], due)
			}
		}
	}
}

// A further gateway takes about the buckets that it is due, and few others move.
func TestGroupGrows(t *testing.T) {
	for n := 2; n <= 16; n++ {
		for seed := range uint64(8) {
			rnd := rand.New(rand.NewPCG(seed, uint64(n)))
			r := New([]PortAttr{{MTU: 1500}})
			var hops []Hop
			for range n + 1 {
				hops = append(hops, Hop{Gateway: addrOf(6, 0xfe80<<48, rnd.Uint64())})
			}
			gateways := func(hops []Hop) (p [Buckets]netip.Addr) {
				must(t, r.Add(Route{Prefix: pfx("::/0"), Origin: Static, Kind: Via, Hops: hops}))
				f := r.Commit()
				for b, adj := range f.BucketsOf(f.Lookup(ip("2001:db8::"))) {
					p[b] = f.Adj[adj].NeighborAddr()
				}
				return p
			}
			a, b := gateways(hops[:n]), gateways(hops)
			moved := 0
			for i := range a {
				if a[i] != b[i] {
					moved++
				}
			}
			if due := Buckets / (n + 1); moved < due || moved > due+due/20+40 {
				t.Errorf("%d members and one more: %d buckets moved, %d have to", n, moved, due)
			}
		}
	}
}

// The best members are used that there are: known with a link, unknown with a link,
// known, any.
func TestGroupUsable(t *testing.T) {
	b := newGroupBed(t, 1, 1, 1)
	want := func(members ...int) {
		t.Helper()
		for i, n := range count(b.buckets(), 3) {
			if slices.Contains(members, i) != (n > 0) {
				t.Errorf("member %d has %d buckets, want %v in use", i, n, members)
			}
		}
	}
	forget := func(i int) { must(t, b.RemoveNeighbor(b.hops[i].Port, b.hops[i].Gateway)) }
	want(0, 1, 2)
	forget(1)
	want(0, 2)
	b.SetLink(0, false)
	want(2)
	forget(2)
	want(1, 2) // to be asked for
	if !b.SetLink(1, false) || !b.SetLink(2, false) || b.SetLink(2, false) {
		t.Error("a change of a link makes no difference, or none does")
	}
	want(0) // dropped for the link
	forget(0)
	want(0, 1, 2)
	for i := range 3 {
		b.SetLink(uint16(i), true)
	}
	want(0, 1, 2)
	must(t, b.SetNeighbor(1, b.hops[1].Gateway, [6]byte{2, 2}))
	want(1)
	must(t, b.VerifyNeighbor(1, b.hops[1].Gateway, true))
	want(1)
}

// A change of a link or a neighbor costs the group's table alone, however many
// routes go by the group.
func TestGroupChange(t *testing.T) {
	b := newGroupBed(t, 1, 1, 1)
	var rts []Route
	for i := range scaled(100_000, 10_000) {
		p := netip.PrefixFrom(addrOf(4, uint64(20<<24+i<<8)<<32, 0), 24)
		rts = append(rts, Route{Prefix: p, Origin: Static, Kind: Via, Hops: slices.Clone(b.hops)})
	}
	must(t, b.Load(rts))
	b.buckets()
	b.buckets()
	for range 3 {
		for _, change := range []func(){
			func() { b.SetLink(1, false) },
			func() { b.SetLink(1, true) },
			func() { must(t, b.RemoveNeighbor(0, b.hops[0].Gateway)) },
			func() { must(t, b.SetNeighbor(0, b.hops[0].Gateway, [6]byte{2, 3})) },
		} {
			words, log := len(b.b4.pool.words), b.b4.root.base+uint64(len(b.b4.root.log))
			buckets := b.adj.groups.out.base + uint64(len(b.adj.groups.out.log))
			change()
			if len(b.v4.dirty) > 0 || b.v4.all {
				t.Fatal("routes are dirty")
			}
			p := b.buckets()
			if n := b.b4.root.base + uint64(len(b.b4.root.log)) - log; n != 0 || len(b.b4.pool.words) != words {
				t.Errorf("%d entries of the root changed, %d words now, were %d", n, len(b.b4.pool.words), words)
			}
			if n := b.adj.groups.out.base + uint64(len(b.adj.groups.out.log)) - buckets; n == 0 || n > Buckets/2 {
				t.Errorf("%d buckets were written", n)
			}
			f := b.Commit()
			if got := ports(f, "20.0.77.1"); got != p || f.Lookup(ip("20.0.77.1")).Group != f.Lookup(ip("1.1.1.1")).Group {
				t.Error("routes do not share the group")
			}
		}
	}
	consistent(t, b.RIB, b.Commit())
}

// Routes that come and go leave no group and no member behind.
func TestGroupEnds(t *testing.T) {
	b := newGroupBed(t, 1, 1)
	for i := range 20 {
		f := b.Commit()
		must(t, b.Add(Route{Prefix: pfx("0.0.0.0/0"), Origin: Static, Kind: Via, Gateway: b.hops[i%2].Gateway, Port: uint16(i % 2)}))
		must(t, b.Add(Route{Prefix: pfx("10.0.0.0/8"), Origin: Kernel, Kind: Via, Hops: b.hops}))
		must(t, b.Remove(Route{Prefix: pfx("10.0.0.0/8"), Origin: Kernel}))
		b.SetLink(0, i%2 == 0)
		if g := b.Commit(); g.Lookup(ip("10.1.1.1")).Action != Forward || len(g.Groups) > 2 {
			t.Fatalf("got %v, %d groups", g.Lookup(ip("10.1.1.1")), len(g.Groups))
		}
		if f.Lookup(ip("10.1.1.1")).Action != Group || len(f.Groups[0]) != 2 {
			t.Fatal("an older generation changed")
		}
		if gs := &b.adj.groups; len(gs.byKey) != 0 || len(gs.of) != 0 {
			t.Fatalf("left behind: %v, %v", gs.byKey, gs.of)
		}
		consistent(t, b.RIB, b.Commit())
		must(t, b.Add(Route{Prefix: pfx("0.0.0.0/0"), Origin: Static, Kind: Via, Hops: b.hops}))
	}
}

func TestBadHops(t *testing.T) {
	hop := func(gw string, port uint16, weight uint16) Hop { return Hop{ip(gw), port, weight} }
	for _, c := range []struct {
		name string
		hops []Hop
		want string
	}{
		{"none", []Hop{}, "fib: 10.0.0.0/8: 0 gateways, not 1 to 256"},
		{"too many", slices.Repeat([]Hop{hop("192.0.2.1", 0, 0)}, 257), "fib: 10.0.0.0/8: 257 gateways, not 1 to 256"},
		{"too heavy", []Hop{hop("192.0.2.1", 0, 65535), hop("192.0.2.2", 0, 0)}, "fib: 10.0.0.0/8: weights of 65536 together, more than 65535"},
		{"without an address", []Hop{hop("192.0.2.1", 0, 0), {}}, "fib: 10.0.0.0/8: gateway invalid IP: not an address"},
		{"of two families", []Hop{hop("192.0.2.1", 0, 0), hop("2001:db8::1", 0, 0)}, "fib: 10.0.0.0/8: gateway 2001:db8::1: of another family"},
		{"unknown port", []Hop{hop("192.0.2.1", 0, 0), hop("192.0.2.1", 4, 0)}, "fib: 10.0.0.0/8: no port 4"},
	} {
		r := New(testPorts)
		rt := Route{Prefix: pfx("10.0.0.0/8"), Origin: Static, Kind: Via, Hops: c.hops}
		if err := r.Add(rt); err == nil || err.Error() != c.want {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
		if err := r.Remove(rt); !errors.Is(err, ErrNoRoute) {
			t.Errorf("%s: removed: %v", c.name, err)
		}
	}
}

// Which packets may leave by a port, and which route is the default one, is what
// checks of the reverse path ask.
func TestLeaves(t *testing.T) {
	b := newGroupBed(t, 1, 1, 1)
	must(t, b.Add(Route{Prefix: pfx("20.0.0.0/8"), Origin: Static, Kind: Via, Hops: b.hops[:2]}))
	must(t, b.Add(Route{Prefix: pfx("21.0.0.0/8"), Origin: Static, Kind: Via, Gateway: ip("10.0.1.1"), Port: 1}))
	must(t, b.Add(Route{Prefix: pfx("22.0.0.0/8"), Origin: Static, Kind: Blackhole}))
	must(t, b.Add(Route{Prefix: pfx("10.0.1.0/24"), Origin: Connected, Kind: OnLink, Port: 1}))
	must(t, b.Add(Route{Prefix: pfx("128.0.0.0/1"), Origin: Static, Kind: OnLink, Port: 2}))
	b.SetLink(0, false) // a member that is not in use counts
	f := b.Commit()
	for _, c := range []struct {
		dst       string
		want      string
		isDefault bool
	}{
		{"1.1.1.1", "0 1 2", true}, {"20.1.1.1", "0 1", false}, {"21.1.1.1", "1", false}, {"22.1.1.1", "", false},
		{"10.0.1.1", "1", false}, {"10.0.1.2", "1", false}, {"200.0.0.1", "2", false}, {"2001:db8::1", "", false},
	} {
		a := f.Lookup(ip(c.dst))
		var got []string
		for port := range uint16(3) {
			if f.Leaves(a, port) {
				got = append(got, fmt.Sprint(port))
			}
		}
		if got := strings.Join(got, " "); got != c.want || a.Default != c.isDefault {
			t.Errorf("%s: leaves by %q, default %v; want %q, %v", c.dst, got, a.Default, c.want, c.isDefault)
		}
	}
}

func BenchmarkGroupChange(b *testing.B) {
	r := New(slices.Repeat([]PortAttr{{MTU: 1500}}, 4))
	var hops []Hop
	for i := range uint16(4) {
		hops = append(hops, Hop{Gateway: addrOf(4, uint64(10<<24+uint32(i))<<32, 0), Port: i})
		if err := r.SetNeighbor(i, hops[i].Gateway, [6]byte{2}); err != nil {
			b.Fatal(err)
		}
	}
	var rts []Route
	for i := range 100_000 {
		rts = append(rts, Route{Prefix: netip.PrefixFrom(addrOf(4, uint64(20<<24+i<<8)<<32, 0), 24), Origin: Static, Kind: Via, Hops: hops})
	}
	if err := r.Load(rts); err != nil {
		b.Fatal(err)
	}
	r.Commit()
	b.ReportAllocs()
	down := false
	for b.Loop() {
		down = !down
		r.SetLink(2, !down)
		r.Reclaim(r.Commit().Gen)
	}
}
