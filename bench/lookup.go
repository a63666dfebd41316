package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/gaissmai/bart"
	"github.com/kentik/patricia"
	"github.com/kentik/patricia/uint32_tree"

	"nmfwd/bench/routes"
	"nmfwd/fib"
)

const (
	lookupKeys = 1 << 20
	lookupRun  = 1 << 20 // keys of one run, the first half of which warms the caches up: so many do for a full table
	slowRun    = 1 << 15 // the same for patricia
)

// A race is measured in interleaved runs: one of each contestant in turn. Run k
// of a contestant returns what it measured.
func race(rounds int, contestants ...func(k int) float64) [][]float64 {
	got := make([][]float64, len(contestants))
	for k := range rounds + 1 {
		for i, run := range contestants {
			if v := run(k); k > 0 { // the first one warms up
				got[i] = append(got[i], v)
			}
		}
	}
	return got
}

// ratio returns the median, over the runs, of a divided by b.
func ratio(a, b []float64) float64 {
	rs := make([]float64, len(a))
	for i := range a {
		rs[i] = a[i] / b[i]
	}
	return median(rs)
}

var sink uint32

// lookup measures lookups alone, of random hosts of random routes.
func lookup(o *options) (*report, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	names := []string{"fib", "fib, one by one", "bart.Fast", "bart.Table", "patricia"}
	r := &report{
		name: "lookup", title: "Lookups alone, random hosts of random routes", unit: "ns/lookup",
		columns: append(append([]string{"table"}, names...), "bart.Fast/fib"), series: names[:4],
		notes: []string{
			fmt.Sprintf("Median of interleaved runs of %d keys after as many to warm up. One by one: each lookup waits for the one before, otherwise they may overlap.", lookupRun/2),
			"bart v0.30.0, patricia v1.2.1 (uint32_tree). Patricia is not in the chart.",
		},
	}
	tables := []table{{}, {n4: 1000, n6: 1000}, {n4: 100_000, n6: 20_000}, {n4: 900_000, n6: 200_000}}
	if os.Getenv(routes.Env) != "" {
		tables = append(tables, table{real: true})
	}
	for _, is4 := range []bool{true, false} {
		for _, t := range tables {
			f, err := t.compile()
			if err != nil {
				return nil, err
			}
			ps, n := f.v6, t.n6
			family := "IPv6"
			if is4 {
				family, ps, n = "IPv4", f.v4, t.n4
			}
			if n == 0 {
				n = len(ps)
			}
			name := fmt.Sprintf("%s, %d routes", family, max(n, 4))
			if n >= 1000 && n%1000 == 0 {
				name = fmt.Sprintf("%s, %dk routes", family, n/1000)
			}
			if ps == nil {
				ps = labPrefixes(is4)
			}
			if !o.rows.MatchString(name) {
				continue
			}
			ns := lookupRace(o, is4, f.fib, ps)
			runtime.KeepAlive(sink)
			cells := []string{name}
			var values []float64
			for _, v := range ns {
				values = append(values, median(v))
				cells = append(cells, fmt.Sprintf("%.2f", median(v)))
			}
			r.rows = append(r.rows, row{append(cells, fmt.Sprintf("%.1f", ratio(ns[2], ns[0]))), values[:4]})
			switch name {
			case "IPv4, 900k routes":
				r.targets = append(r.targets, target{name + ": bart.Fast / fib", ratio(ns[2], ns[0]), 20, false})
			case "IPv6, 200k routes":
				r.targets = append(r.targets, target{name + ": bart.Fast / fib", ratio(ns[2], ns[0]), 5, false})
			}
		}
	}
	return r, nil
}

func labPrefixes(is4 bool) []netip.Prefix {
	ss := []string{"2001:2::/49", "2001:2::/64", "2001:2:0:8000::/49", "2001:2:0:8000::/64"}
	if is4 {
		ss = []string{"198.18.0.0/16", "198.18.0.0/24", "198.19.0.0/16", "198.19.0.0/24"}
	}
	var ps []netip.Prefix
	for _, s := range ss {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

// lookupRace measures ns per lookup in f and, with routes to ps, its peers.
func lookupRace(o *options, is4 bool, f *fib.FIB, ps []netip.Prefix) [][]float64 {
	var bf bart.Fast[uint32]
	var bt bart.Table[uint32]
	t4, t6 := uint32_tree.NewTreeV4(), uint32_tree.NewTreeV6()
	for i, p := range ps {
		bf.Insert(p, uint32(i))
		bt.Insert(p, uint32(i))
		if is4 {
			t4.Set(patricia.NewIPv4Address(number4(p.Addr()), uint(p.Bits())), uint32(i))
		} else {
			hi, lo := number6(p.Addr())
			t6.Set(patricia.IPv6Address{Left: hi, Right: lo, Length: uint(p.Bits())}, uint32(i))
		}
	}
	rnd := rand.New(rand.NewPCG(7, 7))
	addrs := make([]netip.Addr, lookupKeys)
	k4, k6 := make([]uint32, lookupKeys), make([][2]uint64, lookupKeys)
	for i := range addrs {
		addrs[i] = routes.Host(rnd, ps[rnd.IntN(len(ps))])
		if is4 {
			k4[i] = number4(addrs[i])
		} else {
			k6[i][0], k6[i][1] = number6(addrs[i])
		}
	}
	sized := func(n int, loop func(from, to int) uint32) func(int) float64 {
		return func(k int) float64 {
			from, half := k*n%lookupKeys, n/2
			sink += loop(from, from+half)
			start := time.Now()
			sink += loop(from+half, from+n)
			return float64(time.Since(start)) / float64(half)
		}
	}
	choose := func(n int, loop4, loop6 func(from, to int) uint32) func(int) float64 {
		if is4 {
			return sized(n, loop4)
		}
		return sized(n, loop6)
	}
	return race(o.rounds,
		choose(lookupRun, func(from, to int) (sum uint32) {
			for _, k := range k4[from:to] {
				sum += f.V4.Lookup(k)
			}
			return sum
		}, func(from, to int) (sum uint32) {
			for i := from; i < to; i++ {
				e := f.V6.First(k6[i][0])
				if e >= fib.More {
					e = f.V6.Lookup(k6[i][0], k6[i][1])
				}
				sum += e
			}
			return sum
		}),
		choose(lookupRun, func(from, to int) (last uint32) {
			for _, k := range k4[from:to] {
				last = f.V4.Lookup(k ^ last>>31) // always 0, but only known then
			}
			return last
		}, func(from, to int) (last uint32) {
			for i := from; i < to; i++ {
				last = f.V6.Lookup(k6[i][0]^uint64(last>>31), k6[i][1])
			}
			return last
		}),
		sized(lookupRun, func(from, to int) (sum uint32) {
			for _, a := range addrs[from:to] {
				v, _ := bf.Lookup(a)
				sum += v
			}
			return sum
		}),
		sized(lookupRun, func(from, to int) (sum uint32) {
			for _, a := range addrs[from:to] {
				v, _ := bt.Lookup(a)
				sum += v
			}
			return sum
		}),
		choose(slowRun, func(from, to int) (sum uint32) {
			for _, k := range k4[from:to] {
				_, v := t4.FindDeepestTag(patricia.NewIPv4Address(k, 32))
				sum += v
			}
			return sum
		}, func(from, to int) (sum uint32) {
			for i := from; i < to; i++ {
				_, v := t6.FindDeepestTag(patricia.IPv6Address{Left: k6[i][0], Right: k6[i][1], Length: 128})
				sum += v
			}
			return sum
		}))
}

func number4(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

func number6(a netip.Addr) (hi, lo uint64) {
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}
