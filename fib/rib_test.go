package fib

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// testPorts are the ports of the APU2 lab, a third one and a tagged one.
var testPorts = []PortAttr{
	{MAC: [6]byte{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x3d}, MTU: 1500},
	{MAC: [6]byte{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x3e}, MTU: 1500},
	{MAC: [6]byte{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x3f}, MTU: 9000},
	{MAC: [6]byte{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x40}, MTU: 1496, TCI: 3<<13 | 100},
}

// An oracle is the plainest RIB: lists that are scanned.
type oracle struct {
	ports     []PortAttr
	down      map[uint16]bool
	routes    []Route
	neighbors map[hopKey][6]byte
}

func newOracle() *oracle {
	return &oracle{ports: slices.Clone(testPorts), down: make(map[uint16]bool), neighbors: make(map[hopKey][6]byte)}
}

func (o *oracle) add(rt Route) {
	o.remove(rt)
	switch hops := mergeHops(rt.Hops); len(hops) {
	case 0:
		rt.Hops = nil
	case 1:
		rt.Hops, rt.Gateway, rt.Port = nil, hops[0].Gateway, hops[0].Port
	default:
		rt.Hops, rt.Gateway, rt.Port = hops, netip.Addr{}, 0
	}
	o.routes = append(o.routes, rt)
}

func (o *oracle) remove(rt Route) bool {
	for i, r := range o.routes {
		if r.Prefix == rt.Prefix && r.Origin == rt.Origin {
			o.routes = slices.Delete(o.routes, i, i+1)
			return true
		}
	}
	return false
}

// route returns the route that packets to a follow, neighbors left aside.
func (o *oracle) route(a netip.Addr) (best Route, ok bool) {
	for _, r := range o.routes {
		if !r.Prefix.Contains(a) {
			continue
		}
		if d := r.Prefix.Bits() - best.Prefix.Bits(); !ok || d > 0 || d == 0 && r.Origin < best.Origin {
			best, ok = r, true
		}
	}
	return best, ok
}

// lookup returns the route and the adjacency for packets to a.
func (o *oracle) lookup(a netip.Addr) (Route, bool, Adjacency) {
	adj := Adjacency{Family: 6}
	if a.Is4() {
		adj.Family = 4
	}
	r, ok := o.route(a)
	if !ok {
		return r, false, adj
	}
	if r.Kind == OnLink {
		if _, known := o.neighbors[hopKey{r.Port, a}]; known {
			r = Route{Prefix: netip.PrefixFrom(a, a.BitLen()), Origin: Neighbor, Kind: Via, Gateway: a, Port: r.Port, MTU: r.MTU}
		}
	}
	adj = o.adjacency(a.Is4(), r)
	adj.Default = r.Prefix.Bits() == 0
	return r, true, adj
}

// adjacency returns the adjacency that a route means.
func (o *oracle) adjacency(v4 bool, r Route) Adjacency {
	adj := Adjacency{Action: r.Kind, Family: 6}
	if v4 {
		adj.Family = 4
	}
	switch {
	case r.Kind == Blackhole, r.Kind == Reject, r.Kind == Unreachable, r.Kind == Throw, r.Kind == Host:
		return adj
	case r.Kind == Local, r.Kind == Broadcast:
		adj.Port = r.Port
		return adj
	case r.Hops != nil:
		adj.Action = Group
		return adj
	}
	adj.Port = r.Port
	p := o.ports[r.Port]
	adj.MTU = p.MTU
	if r.MTU > 0 && r.MTU < p.MTU {
		adj.MTU = r.MTU
	}
	if r.Kind == OnLink {
		return adj
	}
	copy(adj.Neighbor[:], r.Gateway.AsSlice())
	mac, known := o.neighbors[hopKey{r.Port, r.Gateway}]
	if !known {
		adj.Action = Resolve
		return adj
	}
	h := append(append([]byte(nil), mac[:]...), p.MAC[:]...)
	adj.Out = r.Port
	if p.TCI != 0 {
		adj.Action, adj.Out, adj.KeepPCP = Tagged, p.On, p.KeepPCP
		h = append(h, 0x81, 0x00, byte(p.TCI>>8), byte(p.TCI))
	}
	if v4 {
		h = append(h, 0x08, 0x00)
	} else {
		h = append(h, 0x86, 0xdd)
	}
	adj.HeadLen = uint8(copy(adj.Head[:], h))
	return adj
}

// members returns the adjacencies that the buckets of a route with several
// gateways lead to, as text: those of the best that there are.
func (o *oracle) members(v4 bool, r Route) map[string]bool {
	var best map[string]bool
	most := -1
	for _, h := range r.Hops {
		rank := 0
		if !o.down[h.Port] {
			rank = 2
		}
		if _, known := o.neighbors[hopKey{h.Port, h.Gateway}]; known {
			rank++
		}
		one := r
		one.Hops, one.Gateway, one.Port = nil, h.Gateway, h.Port
		adj := o.adjacency(v4, one)
		if rank > most {
			best, most = make(map[string]bool), rank
		}
		if rank == most {
			best[adj.String()] = true
		}
	}
	return best
}

// probes returns the addresses at and beside the ends of a prefix.
func probes(p netip.Prefix) []netip.Addr {
	first := p.Masked().Addr()
	k := keyOf(p)
	hi, lo := k.last()
	var fam uint8 = 6
	if first.Is4() {
		fam = 4
	}
	last := addrOf(fam, hi, lo)
	as := []netip.Addr{first, last}
	for _, a := range []netip.Addr{first.Prev(), first.Next(), last.Prev(), last.Next()} {
		if a.IsValid() {
			as = append(as, a)
		}
	}
	return as
}

func randAddr(rnd *rand.Rand, v4 bool) netip.Addr {
	if v4 {
		var b [4]byte
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return netip.AddrFrom16(b)
}

// A universe draws prefixes that nest, touch and repeat: all are near a few
// places of the address space.
type universe struct {
	rnd   *rand.Rand
	bases [2][]netip.Addr
	gws   [2][]netip.Addr
}

func newUniverse(seed uint64) *universe {
	u := &universe{rnd: rand.New(rand.NewPCG(seed, 1))}
	for f := range u.bases {
		for range 3 {
			u.bases[f] = append(u.bases[f], randAddr(u.rnd, f == 0))
		}
	}
	u.bases[0][0] = netip.MustParseAddr("198.18.0.203")
	u.bases[1][0] = netip.MustParseAddr("2001:2::203")
	for f := range u.gws {
		for len(u.gws[f]) < 8 {
			if a := u.addr(f == 0); checkNeighbor(a) == nil {
				u.gws[f] = append(u.gws[f], a)
			}
		}
	}
	return u
}

// addr returns an address near a base: equal up to a random bit.
func (u *universe) addr(v4 bool) netip.Addr {
	f := 1
	if v4 {
		f = 0
	}
	b := u.bases[f][u.rnd.IntN(len(u.bases[f]))].AsSlice()
	bit := u.rnd.IntN(8*len(b) + 1)
	for i := bit; i < 8*len(b); i++ {
		if i == bit || u.rnd.IntN(4) == 0 {
			b[i/8] ^= 0x80 >> (i % 8)
		}
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (u *universe) prefix() netip.Prefix {
	a := u.addr(u.rnd.IntN(2) == 0)
	n := u.rnd.IntN(a.BitLen() + 1)
	switch u.rnd.IntN(6) {
	case 0:
		n = a.BitLen()
	case 1:
		n = a.BitLen() / 4 * u.rnd.IntN(5)
	case 2:
		n = u.rnd.IntN(5)
	}
	return netip.PrefixFrom(a, n).Masked()
}

func (u *universe) neighbor(v4 bool) netip.Addr {
	f := 1
	if v4 {
		f = 0
	}
	return u.gws[f][u.rnd.IntN(len(u.gws[f]))]
}

func (u *universe) route() Route {
	rt := Route{Prefix: u.prefix(), Origin: Connected + Origin(u.rnd.IntN(3)), Port: uint16(u.rnd.IntN(len(testPorts)))}
	v4 := rt.Prefix.Addr().Is4()
	switch u.rnd.IntN(9) {
	case 0:
		rt.Kind, rt.Port = Blackhole, 0
	case 1:
		rt.Kind, rt.Port = Reject, 0
	case 2:
		rt.Kind = Local
		if v4 && rt.Prefix.Bits() == 32 {
			rt.Kind = Broadcast
		}
	case 8:
		rt.Kind, rt.Port = Host, 0
	case 3, 4:
		rt.Kind = OnLink
		rt.MTU = uint16(u.rnd.IntN(3)) * 1400
	default:
		rt.Kind, rt.Gateway = Via, u.neighbor(v4)
		rt.MTU = uint16(u.rnd.IntN(3)) * 1400
		for n := u.rnd.IntN(5); n > 0 && len(rt.Hops) < n; {
			rt.Hops = append(rt.Hops, Hop{u.neighbor(v4), uint16(u.rnd.IntN(len(testPorts))), uint16(u.rnd.IntN(4))})
		}
	}
	return rt
}

// compare checks that r, f and o agree about a.
func compare(t *testing.T, r *RIB, f *FIB, o *oracle, a netip.Addr) {
	t.Helper()
	want, wantOK, wantAdj := o.lookup(a)
	got := *f.Lookup(a)
	if got.Action == Group {
		members := make(map[string]bool)
		adjs := slices.Clone(f.BucketsOf(&got))
		slices.Sort(adjs)
		for _, adj := range slices.Compact(adjs) {
			members[f.Adj[adj].String()] = true
		}
		if want := o.members(a.Is4(), want); !maps.Equal(members, want) {
			t.Fatalf("lookup of %v: got a group of %v, want %v", a, members, want)
		}
		got.Group = 0
	}
	if got != wantAdj {
		t.Fatalf("lookup of %v: got %v, want %v (%v)", a, &got, &wantAdj, want)
	}
	if a.Is6() {
		k := keyOfAddr(a)
		first, all := f.V6.First(k.hi), f.V6.Lookup(k.hi, k.lo)
		if first < More && first != all {
			t.Fatalf("%v: got adjacency %d at first, then %d", a, first, all)
		}
	}
	if got, ok := r.Lookup(a); ok != wantOK || !reflect.DeepEqual(got, want) {
		t.Fatalf("route of %v: got %v %v, want %v %v", a, got, ok, want, wantOK)
	}
}

// consistent checks what must hold inside r between any two calls.
func consistent(t *testing.T, r *RIB, f *FIB) {
	t.Helper()
	for _, fam := range []*family{&r.v4, &r.v6} {
		tree := fam.wait()
		n, inTree := 0, 0
		var last key
		for at := (place{}); fam.index.at(at) != 0; at = fam.index.next(at) {
			m := fam.index.at(at)
			k := fam.entries[m].key
			if n > 0 && !last.less(k) {
				t.Fatalf("index out of order: %v after %v", k, last)
			}
			last = k
			n++
			if d, ok := tree.deepest(k); ok && d == m {
				inTree++
			}
			c := tree.covering(nil, k)
			if want := fam.index.deepest(fam.entries, k); len(c) == 0 || c[len(c)-1] != want {
				t.Fatalf("%v: tree covers with %v, index with %d", k, c, want)
			}
		}
		if n != fam.index.len || inTree != n {
			t.Fatalf("IPv%d: %d prefixes in the index, which says %d; %d in the tree", fam.family, n, fam.index.len, inTree)
		}
		sum := 0
		for _, c := range fam.count {
			sum += c
		}
		if sum != fam.len() {
			t.Fatalf("IPv%d: counts of origins add to %d, routes are %d", fam.family, sum, fam.len())
		}
	}
	refs := 0
	for n, c := range r.adj.refs {
		if c > 0 && r.adj.ids[r.adj.wants[n]] != uint32(n) {
			t.Fatalf("adjacency %d in use under another number", n)
		}
		refs += int(c)
	}
	want := r.v4.len() + r.v6.len()
	for n := range r.adj.groups.all {
		g := &r.adj.groups.all[n]
		want += len(g.members)
		if m, ok := r.adj.groups.byKey[g.key]; len(g.members) > 0 && (!ok || m != uint32(n)) {
			t.Fatalf("group %d in use under another number", n)
		}
	}
	if refs != want {
		t.Fatalf("adjacencies have %d users, routes are %d", refs, want)
	}
	// What the tables reach is what the pools think is in use.
	live := 0
	for _, e := range f.V4.root {
		if e >= chunk4 {
			live += 1 << midBits4
			for _, l := range f.V4.words[e&^chunk4:][:1<<midBits4] {
				if l >= chunk4 {
					live += 1 << lowBits4
				}
			}
		}
	}
	if live != r.b4.pool.live {
		t.Fatalf("IPv4 table reaches %d words, pool has %d in use", live, r.b4.pool.live)
	}
	live = 0
	var reach func(e uint32)
	reach = func(e uint32) {
		if e < leaves6 {
			return
		}
		n := node6{f.V6.words, e}
		live += 1 << n.class()
		last := uint32(0)
		for _, c := range n.children() {
			if c != last {
				reach(c)
			}
			last = c
		}
	}
	for _, e := range f.V6.root[:1<<rootBits6] {
		reach(e)
	}
	if live != r.b6.pool.live {
		t.Fatalf("IPv6 table reaches %d words, pool has %d in use", live, r.b6.pool.live)
	}
	for _, p := range []*pool{&r.b4.pool, &r.b6.pool} {
		n := p.live
		for class, free := range p.free {
			n += len(free) << class
		}
		for _, c := range p.old {
			n += 1 << c.class
		}
		if n != len(p.words) {
			t.Fatalf("pool of %d words accounts for %d", len(p.words), n)
		}
	}
}

func dump(t *testing.T, f *FIB) string {
	t.Helper()
	var b strings.Builder
	if err := f.Dump(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAdjacencySize(t *testing.T) {
	if got := reflect.TypeOf(Adjacency{}).Size(); got != 64 {
		t.Errorf("size of Adjacency: got %d, want 64", got)
	}
}

// TestRandomChanges makes random changes and compares all answers with the
// oracle's after each commit.
func TestRandomChanges(t *testing.T) {
	for seed := range uint64(scaled(6, 3)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			u, o, r := newUniverse(seed), newOracle(), New(testPorts)
			var last string
			var gens []*FIB
			var dumps []string
			for i := range scaled(80, 12) {
				for range 1 + u.rnd.IntN(3) {
					change(t, u, o, r)
				}
				f := r.Commit()
				if f.Gen != uint64(i+1) {
					t.Fatalf("generation: got %d, want %d", f.Gen, i+1)
				}
				check(t, u, o, r, f)
				// Up to five generations have readers.
				last = dump(t, f)
				gens, dumps = append(gens, f), append(dumps, last)
				if n := u.rnd.IntN(6); n < len(gens) {
					gens, dumps = gens[len(gens)-n-1:], dumps[len(dumps)-n-1:]
					r.Reclaim(gens[0].Gen)
				}
				if i%10 == 0 {
					for j, g := range gens {
						if dump(t, g) != dumps[j] {
							t.Fatalf("generation %d changed", g.Gen)
						}
					}
				}
			}
			// The same state, made at once in another order.
			r2 := New(o.ports)
			for p, down := range o.down {
				r2.SetLink(p, !down)
			}
			for k, mac := range o.neighbors {
				must(t, r2.SetNeighbor(k.port, k.addr, mac))
			}
			u.rnd.Shuffle(len(o.routes), func(i, j int) { o.routes[i], o.routes[j] = o.routes[j], o.routes[i] })
			for _, rt := range o.routes {
				must(t, r2.Add(rt))
			}
			f := r2.Commit()
			consistent(t, r2, f)
			if got := dump(t, f); got != last {
				t.Errorf("dump depends on the order of changes:\n%s\nand\n%s", got, last)
			}
		})
	}
}

// The origin, the bits that all routes share, comes and goes with routes: those
// outside of it, shorter ones, and more than may lie behind one.
func TestOrigin(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(11, 11))
	u, o, r := newUniverse(3), newOracle(), New(testPorts)
	r.v6.behind = 12
	near := ip("2001:2:0:8001:11:22:33:44")
	full := near.BitLen()
	seen := make(map[uint8]bool)
	toggle := func(p netip.Prefix) {
		rt := Route{Prefix: p, Origin: Static, Kind: OnLink, Port: uint16(rnd.IntN(3)), MTU: uint16(1000 + rnd.IntN(2))}
		if o.remove(rt) {
			must(t, r.Remove(rt))
			return
		}
		o.add(rt)
		must(t, r.Add(rt))
	}
	for range scaled(2000, 1000) {
		for range 1 + rnd.IntN(2) {
			a := near.AsSlice()
			least := full/2 - 2 + rnd.IntN(3)
			switch rnd.IntN(12) {
			case 0: // shorter, or outside
				least = rnd.IntN(full / 2)
				a[0] ^= byte(rnd.IntN(2)) << rnd.IntN(8)
			case 1: // aside
				least = rnd.IntN(full / 2)
				a[least/8] ^= 0x80 >> (least % 8)
			case 2: // added and removed at once
				p := netip.PrefixFrom(near, rnd.IntN(full)).Masked()
				toggle(p)
				toggle(p)
			}
			n := least + rnd.IntN(full-least+1)
			a[len(a)-1] ^= byte(rnd.IntN(4))
			addr, _ := netip.AddrFromSlice(a)
			toggle(netip.PrefixFrom(addr, n).Masked())
		}
		if rnd.IntN(20) == 0 {
			for len(o.routes) > rnd.IntN(4) {
				toggle(o.routes[0].Prefix)
			}
		}
		f := r.Commit()
		if rnd.IntN(3) > 0 {
			r.Reclaim(f.Gen)
		}
		seen[r.b6.origin.len] = true
		check(t, u, o, r, f)
		one := New(testPorts)
		one.v6.behind = 0
		for _, rt := range o.routes {
			must(t, one.Add(rt))
		}
		if rnd.IntN(10) == 0 && dump(t, f) != dump(t, one.Commit()) {
			t.Fatalf("behind %v: got\n%s, without origin\n%s", r.b6.origin, dump(t, f), dump(t, one.Commit()))
		}
	}
	for _, l := range []uint8{0, 4, 28, 46, 47, 48} { // that must occur
		if !seen[l] {
			t.Errorf("no origin of %d bits occurred, but %v", l, seen)
		}
	}
}

// change makes one random change to both.
func change(t *testing.T, u *universe, o *oracle, r *RIB) {
	t.Helper()
	switch n := u.rnd.IntN(20); {
	case n < 9:
		rt := u.route()
		must(t, r.Add(rt))
		o.add(rt)
	case n < 13:
		if len(o.routes) > 0 {
			rt := o.routes[u.rnd.IntN(len(o.routes))]
			o.remove(rt)
			must(t, r.Remove(rt))
		}
	case n < 14:
		rt := u.route()
		if got, want := r.Remove(rt) == nil, o.remove(rt); got != want {
			t.Fatalf("removed %v: got %v, want %v", rt, got, want)
		}
	case n < 17:
		k := hopKey{uint16(u.rnd.IntN(len(testPorts))), u.neighbor(u.rnd.IntN(2) == 0)}
		mac := [6]byte{2, 0, 0, 0, 0, byte(u.rnd.IntN(4))}
		o.neighbors[k] = mac
		must(t, r.SetNeighbor(k.port, k.addr, mac))
	case n < 19:
		k := hopKey{uint16(u.rnd.IntN(len(testPorts))), u.neighbor(u.rnd.IntN(2) == 0)}
		_, want := o.neighbors[k]
		delete(o.neighbors, k)
		if got := r.RemoveNeighbor(k.port, k.addr) == nil; got != want {
			t.Fatalf("removed neighbor %v: got %v, want %v", k, got, want)
		}
	default:
		p := u.rnd.IntN(len(o.ports))
		o.ports[p].MTU = uint16(1300 + 100*u.rnd.IntN(4))
		o.down[uint16(p)] = u.rnd.IntN(2) == 0
		r.SetLink(uint16(p), !o.down[uint16(p)])
		must(t, r.SetPort(uint16(p), o.ports[p]))
	}
}

func check(t *testing.T, u *universe, o *oracle, r *RIB, f *FIB) {
	t.Helper()
	consistent(t, r, f)
	for _, rt := range o.routes {
		for _, a := range probes(rt.Prefix) {
			compare(t, r, f, o, a)
		}
	}
	for k := range o.neighbors {
		compare(t, r, f, o, k.addr)
	}
	for range 20 {
		compare(t, r, f, o, randAddr(u.rnd, u.rnd.IntN(2) == 0))
		compare(t, r, f, o, u.addr(u.rnd.IntN(2) == 0))
	}
}
