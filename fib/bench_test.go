package fib

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/gaissmai/bart"
	"github.com/kentik/patricia"
	"github.com/kentik/patricia/uint32_tree"

	"nmfwd/bench/routes"
)

// A benchTable is a set of routes and what to look up in it.
type benchTable struct {
	name   string
	v4     bool
	routes []Route
	random []netip.Addr // random hosts of random routes
	lab    []netip.Addr // the labs' flows
}

var benchTables = make(map[string]*benchTable)

const benchKeys = 1 << 20

// table returns a table of n generated prefixes, or the real one if n is 0.
func table(tb testing.TB, v4 bool, n int) *benchTable {
	name := fmt.Sprintf("IPv6/%d", n)
	if v4 {
		name = fmt.Sprintf("IPv4/%d", n)
	}
	if t := benchTables[name]; t != nil {
		return t
	}
	var ps []netip.Prefix
	switch {
	case n == 0:
		var err error
		if ps, err = routes.Real(v4); err != nil {
			tb.Fatal(err)
		}
	case n == 4 && v4:
		for _, s := range []string{"198.18.0.0/16", "198.18.0.0/24", "198.19.0.0/16", "198.19.0.0/24"} {
			ps = append(ps, netip.MustParsePrefix(s))
		}
	case n == 4:
		for _, s := range []string{"2001:2::/49", "2001:2::/64", "2001:2:0:8000::/49", "2001:2:0:8000::/64"} {
			ps = append(ps, netip.MustParsePrefix(s))
		}
	default:
		ps = routes.Generate(n, v4, 1)
	}
	t := &benchTable{name: name, v4: v4}
	rnd := rand.New(rand.NewPCG(7, 7))
	for i, p := range ps {
		gw := netip.AddrFrom4([4]byte{198, 18, 0, byte(i%8 + 1)})
		if !v4 {
			gw = netip.AddrFrom16([16]byte{0x20, 0x01, 0, 2, 15: byte(i%8 + 1)})
		}
		t.routes = append(t.routes, Route{Prefix: p, Origin: Static, Kind: Via, Gateway: gw})
	}
	for range benchKeys {
		p := ps[rnd.IntN(len(ps))]
		k := keyOf(p)
		mhi, mlo := mask(k.len)
		k.hi |= rnd.Uint64() &^ mhi
		k.lo |= rnd.Uint64() &^ mlo
		fam := uint8(6)
		if v4 {
			fam = 4
		}
		t.random = append(t.random, addrOf(fam, k.hi, k.lo))
	}
	for i := range 2000 {
		if v4 {
			t.lab = append(t.lab, netip.AddrFrom4([4]byte{198, 19, 10, byte(i%20 + 1)}))
		} else {
			t.lab = append(t.lab, netip.AddrFrom16([16]byte{0x20, 0x01, 0, 2, 6: 0x80, 7: 1, 15: byte(i%64 + 1)}))
		}
	}
	benchTables[name] = t
	return t
}

// eachTable runs f for the tables of both families.
func eachTable(b *testing.B, f func(b *testing.B, t *benchTable)) {
	for _, c := range []struct {
		v4 bool
		n  int
	}{{true, 4}, {true, 1000}, {true, 100_000}, {true, 900_000}, {true, 0}, {false, 4}, {false, 200_000}, {false, 0}} {
		if c.n == 0 && os.Getenv(routes.Env) == "" {
			continue
		}
		name := fmt.Sprintf("IPv6/%d", c.n)
		if c.v4 {
			name = fmt.Sprintf("IPv4/%d", c.n)
		}
		if c.n == 0 {
			name = name[:5] + "real"
		}
		b.Run(name, func(b *testing.B) { f(b, table(b, c.v4, c.n)) })
	}
}

func load(tb testing.TB, rts []Route) (*RIB, *FIB) {
	tb.Helper()
	r := New(testPorts)
	if err := r.Load(rts); err != nil {
		tb.Fatal(err)
	}
	return r, r.Commit()
}

func patriciaTrees(rts []Route) (*uint32_tree.TreeV4, *uint32_tree.TreeV6) {
	t4, t6 := uint32_tree.NewTreeV4(), uint32_tree.NewTreeV6()
	for i, rt := range rts {
		if k := keyOf(rt.Prefix); rt.Prefix.Addr().Is4() {
			t4.Set(addr4(k), uint32(i))
		} else {
			t6.Set(addr6(k), uint32(i))
		}
	}
	return t4, t6
}

var sink uint32

// perLookup runs f, which does n lookups, and reports the time of one.
func perLookup(b *testing.B, n int, f func() uint32) {
	sink += f()
	for b.Loop() {
		sink += f()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/lookup")
	b.ReportMetric(0, "ns/op")
}

func lookups4(t *Table4, keys []uint32) (sum uint32) {
	for _, k := range keys {
		sum += t.Lookup(k)
	}
	return sum
}

func lookups6(t *Table6, keys [][2]uint64) (sum uint32) {
	for i := range keys {
		e := t.First(keys[i][0])
		if e >= More {
			e = t.Lookup(keys[i][0], keys[i][1])
		}
		sum += e
	}
	return sum
}

func BenchmarkLookup(b *testing.B) {
	eachTable(b, func(b *testing.B, t *benchTable) {
		_, f := load(b, t.routes)
		t4, t6 := patriciaTrees(t.routes)
		var bt bart.Table[uint32]
		var bf bart.Fast[uint32]
		for i, rt := range t.routes {
			bt.Insert(rt.Prefix, uint32(i))
			bf.Insert(rt.Prefix, uint32(i))
		}
		for _, d := range []struct {
			name string
			to   []netip.Addr
		}{{"random", t.random}, {"lab", t.lab}} {
			var k4 []uint32
			var k6 [][2]uint64
			for _, a := range d.to {
				k := keyOfAddr(a)
				k4 = append(k4, uint32(k.hi>>32))
				k6 = append(k6, [2]uint64{k.hi, k.lo})
			}
			n := len(d.to)
			b.Run(d.name+"/fib", func(b *testing.B) {
				if t.v4 {
					perLookup(b, n, func() uint32 { return lookups4(&f.V4, k4) })
				} else {
					perLookup(b, n, func() uint32 { return lookups6(&f.V6, k6) })
				}
			})
			b.Run(d.name+"/bart.Fast", func(b *testing.B) {
				perLookup(b, n, func() (sum uint32) {
					for _, a := range d.to {
						v, _ := bf.Lookup(a)
						sum += v
					}
					return sum
				})
			})
			b.Run(d.name+"/bart.Table", func(b *testing.B) {
				perLookup(b, n, func() (sum uint32) {
					for _, a := range d.to {
						v, _ := bt.Lookup(a)
						sum += v
					}
					return sum
				})
			})
			b.Run(d.name+"/patricia", func(b *testing.B) {
				n := min(n, 1<<16)
				perLookup(b, n, func() (sum uint32) {
					for i := range n {
						var v uint32
						if t.v4 {
							_, v = t4.FindDeepestTag(patricia.NewIPv4Address(k4[i], 32))
						} else {
							_, v = t6.FindDeepestTag(patricia.IPv6Address{Left: k6[i][0], Right: k6[i][1], Length: 128})
						}
						sum += v
					}
					return sum
				})
			})
		}
	})
}

// heap returns the bytes in use on the heap.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkBuild loads all routes; for the FIB up to the end of the first
// Commit (the trees are still being filled beside it), then with them.
func BenchmarkBuild(b *testing.B) {
	eachTable(b, func(b *testing.B, t *benchTable) {
		b.Run("fib", func(b *testing.B) {
			var r *RIB
			for b.Loop() {
				r, _ = load(b, t.routes)
				b.StopTimer()
				r.v4.wait()
				r.v6.wait()
				b.StartTimer()
			}
			fam := 6
			if t.v4 {
				fam = 4
			}
			b.ReportMetric(float64(r.Bytes(fam))/1e6, "tableMB")
		})
		b.Run("fib+patricia", func(b *testing.B) {
			for b.Loop() {
				r, _ := load(b, t.routes)
				r.v4.wait()
				r.v6.wait()
			}
		})
		memory := func(b *testing.B, f func() any) {
			before := heap()
			x := f()
			b.ReportMetric(float64(int64(heap()-before))/1e6, "heapMB")
			runtime.KeepAlive(x)
		}
		build := func(name string, f func() any) {
			b.Run(name, func(b *testing.B) {
				for b.Loop() {
					f()
				}
				memory(b, f)
			})
		}
		build("rib", func() any { r, _ := load(b, t.routes); r.v4.wait(); r.v6.wait(); return r })
		build("patricia", func() any { t4, t6 := patriciaTrees(t.routes); return [...]any{t4, t6} })
		build("bart.Fast", func() any {
			var bf bart.Fast[uint32]
			for i, rt := range t.routes {
				bf.Insert(rt.Prefix, uint32(i))
			}
			return &bf
		})
		build("bart.Table", func() any {
			var bt bart.Table[uint32]
			for i, rt := range t.routes {
				bt.Insert(rt.Prefix, uint32(i))
			}
			return &bt
		})
	})
}

// BenchmarkChange makes one change to a full table and commits it.
func BenchmarkChange(b *testing.B) {
	eachTable(b, func(b *testing.B, t *benchTable) {
		r, _ := load(b, t.routes)
		r.v4.wait()
		r.v6.wait()
		var bf bart.Fast[uint32]
		for i, rt := range t.routes {
			bf.Insert(rt.Prefix, uint32(i))
		}
		t4, t6 := patriciaTrees(t.routes)
		rnd := rand.New(rand.NewPCG(3, 3))
		lengths := []int{0, 1, 8, 16, 20, 24, 32}
		if !t.v4 {
			lengths = []int{0, 3, 16, 20, 29, 32, 48, 64, 128}
		}
		gws := []netip.Addr{t.routes[0].Gateway, t.routes[1].Gateway}
		for _, l := range lengths {
			var ps []netip.Prefix
			for range 512 {
				p, _ := t.random[rnd.IntN(len(t.random))].Prefix(l)
				ps = append(ps, p)
			}
			b.Run(fmt.Sprintf("len=%d/fib", l), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					rt := Route{Prefix: ps[i/2%len(ps)], Origin: Connected, Kind: Via, Gateway: gws[0]}
					var err error
					if i%2 == 0 {
						err = r.Add(rt)
					} else {
						err = r.Remove(rt)
					}
					if err != nil {
						b.Fatal(err)
					}
					f := r.Commit()
					r.Reclaim(f.Gen)
				}
				for _, p := range ps {
					r.Remove(Route{Prefix: p, Origin: Connected})
				}
				r.Reclaim(r.Commit().Gen)
			})
			b.Run(fmt.Sprintf("len=%d/bart.Fast.InsertPersist", l), func(b *testing.B) {
				cur := &bf
				for i := 0; b.Loop(); i++ {
					cur = cur.InsertPersist(ps[i%len(ps)], 1)
				}
			})
			b.Run(fmt.Sprintf("len=%d/patricia", l), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					if k := keyOf(ps[i%len(ps)]); t.v4 {
						t4.Set(addr4(k), 1)
					} else {
						t6.Set(addr6(k), 1)
					}
				}
			})
		}
		b.Run("gateway", func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				if err := r.SetNeighbor(0, gws[1], [6]byte{2, 0, 0, 0, byte(i >> 8), byte(i)}); err != nil {
					b.Fatal(err)
				}
				f := r.Commit()
				r.Reclaim(f.Gen)
			}
		})
	})
}
