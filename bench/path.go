package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"

	"nmfwd/bench/routes"
	"nmfwd/dataplane"
)

// A pathCase is one row of the question what a packet costs in Step.
type pathCase struct {
	name    string
	mix     mix
	table   table
	frames  int // as many buffers are in use
	stride  int
	burst   int
	huge    bool
	drop    dataplane.Reason // all frames are dropped for it
	corrupt func([]byte) []byte
}

const (
	stride   = 2112
	flows    = 2000
	inL2     = flows      // heads and slots take 200 KB
	beyondL2 = 16 * flows // 2.4 MB
	many     = 65000      // random destinations, 5 MB
)

// pathGroups returns the rows in groups, whose runs are interleaved.
func pathGroups() [][]pathCase {
	four, mid, full := table{}, table{n4: 100_000, n6: 20_000}, table{n4: 900_000, n6: 200_000}
	base := pathCase{stride: stride, burst: dataplane.DefaultBurst, frames: inL2}
	row := func(name string, m mix, t table, frames int) pathCase {
		c := base
		c.name, c.mix, c.table, c.frames = fmt.Sprintf("%s, %v, %s", m, t, name), m, t, frames
		return c
	}
	var head, tables, layout, bursts, neighbors, drops []pathCase
	for _, m := range []mix{v4, v6, mixed} {
		head = append(head, row("2,000 buffers", m, four, inL2), row("32,000 buffers", m, four, beyondL2))
	}
	full4, full6 := row("65,000 buffers", v4, full, many), row("65,000 buffers", v6, full, many)
	tables = []pathCase{
		row("2,000 buffers", v4, four, inL2), row("65,000 buffers", v4, four, many), row("2,000 buffers", v4, mid, inL2), row("65,000 buffers", v4, mid, many), row("2,000 buffers", v4, full, inL2), full4,
		row("2,000 buffers", v6, four, inL2), row("65,000 buffers", v6, four, many), row("2,000 buffers", v6, mid, inL2), row("65,000 buffers", v6, mid, many), row("2,000 buffers", v6, full, inL2), full6,
		row("65,000 buffers", mixed, full, many),
	}
	if os.Getenv(routes.Env) != "" {
		real := table{real: true}
		tables = append(tables, row("65,000 buffers", v4, real, many), row("65,000 buffers", v6, real, many))
	}
	for _, m := range []mix{v4, v6} {
		for _, n := range []int{inL2, beyondL2} {
			for _, s := range []int{2048, 2112} {
				for _, huge := range []bool{false, true} {
					c := row(fmt.Sprintf("%d buffers, stride %d", n, s), m, four, n)
					c.stride, c.huge = s, huge
					if huge {
						c.name += ", huge pages"
					}
					layout = append(layout, c)
				}
			}
		}
		for _, n := range []int{16, 64, 256} {
			c := row(fmt.Sprintf("burst %d", n), m, four, inL2)
			c.burst = n
			bursts = append(bursts, c)
		}
		for _, n := range []int{1, 4096} {
			neighbors = append(neighbors, row(fmt.Sprintf("%d on-link neighbors", n), m, table{neighbors: n}, 4096))
		}
	}
	for _, f := range faultyFrames {
		c := base
		c.name, c.mix, c.table, c.frames = "dropped: "+f.name, f.mix, table{faults: true}, 2048
		c.drop, c.corrupt = f.reason, f.corrupt
		drops = append(drops, c)
	}
	return [][]pathCase{head, tables, layout, bursts, neighbors, drops}
}

// bed returns the case's bed, opened.
func (c *pathCase) bed() (*bed, error) {
	t, err := c.table.compile()
	if err != nil {
		return nil, err
	}
	b := &bed{mix: c.mix, burst: c.burst, stride: c.stride, huge: c.huge, table: t, frames: t.flows(c.table, c.mix, c.frames)}
	if c.drop != 0 {
		b.feed = repeat
		for i := range b.frames {
			b.frames[i] = c.corrupt(b.frames[i])
		}
	}
	return b, b.open()
}

// A contest is a case with its contestants: Step, and the C program in two
// builds. ns has what each measured, by round.
type contest struct {
	pathCase
	bed   *bed
	peers []*peer
	ns    [][]float64
}

var contestants = []string{"Go", "C -O3 -march=native", "C -O2 -march=x86-64"}

// path measures what a packet costs in Step, beside the same in C.
func path(o *options) (*report, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	r := &report{
		name: "path", title: "time per packet of Step on ports in memory", unit: "ns/packet",
		columns: []string{"case", "Go", "Go min", "Go max", contestants[1], contestants[2], "Go/C -O3"}, series: contestants,
		notes: []string{
			"Every check and counter of Step in both; 2,000 flows or random hosts of random routes; 60-byte IPv4 and 62-byte IPv6 frames; one worker.",
			"Median of interleaved rounds, each the median of batches of 4,096 packets. Buffers of 2,112 bytes in pages of 4 KB where the row says nothing else.",
			"C: DIR-24-8 of 16-bit entries, a trie of 24, 8, 8, ... bits for IPv6, tables in huge pages; its output is tested to be Step's.",
		},
	}
	var bins []string
	for i, flags := range [][]string{{"-O3", "-march=native"}, {"-O2", "-march=x86-64"}} {
		bin, err := compileC(dir, fmt.Sprintf("step%d", i), stepC, flags...)
		if errors.Is(err, exec.ErrNotFound) {
			r.notes = append(r.notes, "No gcc: the C peer is missing.")
			break
		}
		if err != nil {
			return nil, err
		}
		bins = append(bins, bin)
	}
	var result []map[string]*contest
	for i, group := range pathGroups() {
		if i > 0 && len(bins) > 1 {
			bins = bins[:1] // the plain build is for the first group
		}
		cs, err := compete(o, group, dir, bins)
		if err != nil {
			return nil, err
		}
		byName := make(map[string]*contest)
		for _, c := range cs {
			r.addPath(c)
			byName[c.name] = c
		}
		result = append(result, byName)
	}
	pathTargets(r, result)
	return r, nil
}

// compete measures the cases of a group in interleaved rounds.
func compete(o *options, group []pathCase, dir string, bins []string) ([]*contest, error) {
	var cs []*contest
	defer func() {
		for _, c := range cs {
			c.bed.close()
			for _, p := range c.peers {
				p.close()
			}
		}
	}()
	for _, pc := range group {
		if !o.rows.MatchString(pc.name) {
			continue
		}
		c := &contest{pathCase: pc, ns: make([][]float64, 1+len(bins))}
		var err error
		if c.bed, err = pc.bed(); err != nil {
			return nil, fmt.Errorf("%s: %w", pc.name, err)
		}
		cs = append(cs, c)
		name := filepath.Join(dir, "case")
		if err := c.bed.writeCase(name); err != nil {
			return nil, err
		}
		for _, bin := range bins {
			p, err := startPeer(bin, name)
			if err != nil {
				return nil, err
			}
			c.peers = append(c.peers, p)
			if _, err := p.run(len(c.bed.frames)); err != nil { // it has read the file then
				return nil, err
			}
		}
		c.bed.run(len(c.bed.frames))
	}
	for round := range o.rounds + 1 {
		for _, c := range cs {
			n := max(o.packets, 2*len(c.bed.frames))
			runs := []func() (float64, error){func() (float64, error) { return c.bed.run(n), nil }}
			for _, p := range c.peers {
				runs = append(runs, func() (float64, error) { return p.run(n) })
			}
			for i, run := range runs {
				ns, err := run()
				if err != nil {
					return nil, fmt.Errorf("%s: %w", c.name, err)
				}
				if round > 0 { // the first one warms up
					c.ns[i] = append(c.ns[i], ns)
				}
			}
		}
	}
	for _, c := range cs {
		if err := c.check(); err != nil {
			return nil, err
		}
	}
	return cs, nil
}

// check returns an error unless all packets ended as the case means it.
func (c *contest) check() error {
	s := c.bed.counts()
	got := s.Forwarded4 + s.Forwarded6
	if c.drop != 0 {
		got = s.Dropped[c.drop]
	}
	if got != s.Packets {
		return fmt.Errorf("%s: %d of %d packets ended as they should: %+v", c.name, got, s.Packets, s)
	}
	return nil
}

func (r *report) addPath(c *contest) {
	goNS := c.ns[0]
	cells := []string{c.name, ns(median(goNS)), ns(slices.Min(goNS)), ns(slices.Max(goNS)), "", "", ""}
	values := []float64{median(goNS)}
	for i, p := range c.ns[1:] {
		cells[4+i] = ns(median(p))
		values = append(values, median(p))
	}
	if len(values) > 1 {
		cells[6] = fmt.Sprintf("%.2f", ratio(c.ns[0], c.ns[1]))
	}
	r.rows = append(r.rows, row{cells, values})
}

// pathTargets compares rows of one group, for these ran in turns.
func pathTargets(r *report, groups []map[string]*contest) {
	compare := func(group int, what, a, b string, with int, most float64) {
		x, y := groups[group][a], groups[group][b]
		if x == nil || y == nil || len(y.ns) <= with {
			return
		}
		r.targets = append(r.targets, target{what, ratio(x.ns[0], y.ns[with]), most, true})
	}
	const l2, big, rnd = ", 4 routes, 2,000 buffers", ", 4 routes, 32,000 buffers", ", 4 routes, 65,000 buffers"
	compare(0, "IPv4, 4 routes, buffers in L2: Go / C -O3", "IPv4"+l2, "IPv4"+l2, 1, 1.4)
	compare(0, "IPv4, 4 routes, buffers beyond L2: Go / C -O3", "IPv4"+big, "IPv4"+big, 1, 1.4)
	compare(0, "IPv6, 4 routes, buffers in L2: / IPv4", "IPv6"+l2, "IPv4"+l2, 0, 1.25)
	compare(0, "IPv6, 4 routes, buffers beyond L2: / IPv4", "IPv6"+big, "IPv4"+big, 0, 1.25)
	const full = ", 900k/200k routes, "
	compare(1, "IPv4, 900k routes, random destinations: / 4 routes, as many buffers", "IPv4"+full+"65,000 buffers", "IPv4"+rnd, 0, 1.8)
	compare(1, "IPv4, 900k routes, 2,000 random destinations: / 4 routes", "IPv4"+full+"2,000 buffers", "IPv4"+l2, 0, 1.8)
	compare(1, "IPv6, 200k routes, random destinations: / 4 routes, as many buffers", "IPv6"+full+"65,000 buffers", "IPv6"+rnd, 0, 2.5)
	compare(1, "IPv6, 200k routes, 2,000 random destinations: / 4 routes", "IPv6"+full+"2,000 buffers", "IPv6"+l2, 0, 2.5)
}

func ns(v float64) string { return fmt.Sprintf("%.2f", v) }

// median returns the middle of some values.
func median[T cmp.Ordered](v []T) T {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}
