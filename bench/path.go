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
	"strings"
	"unicode"

	"nmfwd/bench/routes"
	"nmfwd/dataplane"
)

// A pathCase is one row of the question what a packet costs in Step.
type pathCase struct {
	name    string
	mix     mix
	table   table
	frames  int // as many buffers are in use
	dests   int // random destinations, 0 for the lab's flows
	stride  int
	burst   int
	huge    bool
	drop    dataplane.Reason // all frames are dropped for it
	corrupt func([]byte) []byte
}

const (
	stride   = 2112
	compact  = 192 // between buffers that hold the frames and little more
	flows    = 2000
	inL2     = flows      // heads and slots take 200 KB
	beyondL2 = 16 * flows // 2.4 MB
	many     = 1 << 16    // 5 MB
)

// A pathGroup has rows whose runs are interleaved.
type pathGroup struct {
	name    string
	cases   []pathCase
	targets bool // its rows have some: they get more rounds
}

// pathGroups returns all rows. Their names are distinct.
func pathGroups() []pathGroup {
	four, mid, full := table{}, table{n4: 100_000, n6: 20_000}, table{n4: 900_000, n6: 200_000}
	tables := []table{four, mid, full}
	if os.Getenv(routes.Env) != "" {
		tables = append(tables, table{real: true})
	}
	row := func(name string, m mix, t table, frames int) pathCase {
		return pathCase{
			name: fmt.Sprintf("%s, %v, %s", m, t, name), mix: m, table: t, frames: frames,
			stride: stride, burst: dataplane.DefaultBurst,
		}
	}
	light := func(c pathCase) pathCase {
		c.name += ", compact"
		c.stride, c.huge = compact, true
		return c
	}
	to := func(n int, c pathCase) pathCase {
		c.dests = n
		return c
	}
	var head, dests, layout, bursts, neighbors, drops pathGroup
	head.name, dests.name = "4 routes", "destinations"
	layout.name, bursts.name, neighbors.name, drops.name = "buffers", "bursts", "neighbors", "drops"
	for _, m := range []mix{v4, v6, mixed} {
		head.cases = append(head.cases, row("2,000 buffers", m, four, inL2), row("32,000 buffers", m, four, beyondL2))
	}
	head.targets = true
	groups := []pathGroup{head}
	for _, m := range []mix{v4, v6, mixed} { // apart, for buffers and tables of all would take 5 GB
		g := pathGroup{name: "tables, " + string(m), targets: true}
		for _, t := range tables {
			c := to(many, row("65,536 destinations", m, t, many))
			g.cases = append(g.cases, c, light(c))
		}
		groups = append(groups, g)
	}
	for _, m := range []mix{v4, v6} {
		for n, name := range []string{"1 destination", "1,000 destinations", "100,000 destinations"} {
			dests.cases = append(dests.cases, light(to([]int{1, 1000, 100_000}[n], row(name, m, full, 100_000))))
		}
		for _, n := range []int{inL2, beyondL2} {
			for _, s := range []int{2048, stride} {
				for _, huge := range []bool{false, true} {
					c := row(fmt.Sprintf("%d,000 buffers, stride %d", n/1000, s), m, four, n)
					c.stride, c.huge = s, huge
					if huge {
						c.name += ", huge pages"
					}
					layout.cases = append(layout.cases, c)
				}
			}
		}
		for _, n := range []int{1, 16, 64, 256} {
			c := row(fmt.Sprintf("burst %d", n), m, four, inL2)
			c.burst = n
			bursts.cases = append(bursts.cases, c)
		}
		for _, n := range []int{1, 4096} {
			neighbors.cases = append(neighbors.cases, row(fmt.Sprintf("%d on-link neighbors", n), m, table{neighbors: n}, 4096))
		}
	}
	for _, f := range faultyFrames {
		c := row("dropped: "+f.name, f.mix, table{faults: true}, 2048)
		c.name, c.drop, c.corrupt = "dropped: "+f.name, f.reason, f.corrupt
		drops.cases = append(drops.cases, c)
	}
	groups = append(groups, dests, layout, bursts, neighbors)
	for cs := range slices.Chunk(drops.cases, 8) { // each has a program in C with tables of its own
		groups = append(groups, pathGroup{name: drops.name, cases: cs})
	}
	return groups
}

// bed returns the case's bed, opened.
func (c *pathCase) bed() (*bed, error) {
	t, err := c.table.compile()
	if err != nil {
		return nil, err
	}
	b := &bed{mix: c.mix, burst: c.burst, stride: c.stride, huge: c.huge, table: t, frames: t.flows(c.table, c.mix, c.frames)}
	if c.dests > 0 {
		t.scatter(b.frames, c.dests)
	}
	if c.drop != 0 {
		b.feed = repeat
		for i := range b.frames {
			b.frames[i] = c.corrupt(b.frames[i])
		}
	}
	return b, b.open()
}

// A contest is a case with its contestants: Step, and peers that do the same.
// ns has what each measured, by round.
type contest struct {
	pathCase
	bed   *bed
	peers []*peer
	ns    [][]float64
}

// A build is a program that competes with Step here: with which arguments it
// is started for a case, of which writeCase wrote file.
type build struct {
	name string
	bin  string
	args func(c *pathCase, file string) []string
}

const optimised, plain, newer = "C -O3 -march=native", "C -O2 -march=x86-64", "Go, GOAMD64=v3"

// builds compiles what competes: C in two ways, and Step itself for newer
// processors. A nil error with fewer of them leaves notes.
func builds(o *options, dir string) (bs []build, notes []string, err error) {
	for _, c := range []struct {
		name  string
		flags []string
	}{{optimised, []string{"-O3", "-march=native"}}, {plain, []string{"-O2", "-march=x86-64"}}} {
		bin, err := compileC(dir, strings.Map(letters, c.name), stepC, c.flags...)
		if errors.Is(err, exec.ErrNotFound) {
			notes = append(notes, "No gcc: the C peer is missing, and with it the targets beside it.")
			break
		}
		if err != nil {
			return nil, nil, err
		}
		bs = append(bs, build{c.name, bin, func(_ *pathCase, file string) []string { return []string{file} }})
	}
	bin := filepath.Join(dir, "v3")
	cmd := exec.CommandContext(o.ctx, "go", "build", "-o", bin, "nmfwd/bench")
	cmd.Env = append(os.Environ(), "GOAMD64=v3")
	out, err := cmd.CombinedOutput()
	if err == nil {
		out, err = exec.CommandContext(o.ctx, bin, "-h").CombinedOutput() // ends at once where the processor is older
	}
	if err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return bs, append(notes, fmt.Sprintf("No build for GOAMD64=v3: %v. %s", err, first)), nil
	}
	return append(bs, build{newer, bin, func(c *pathCase, _ string) []string { return []string{"-child", "step:" + c.name} }}), notes, nil
}

func letters(r rune) rune {
	if unicode.IsLetter(r) || unicode.IsDigit(r) {
		return r
	}
	return -1
}

// path measures what a packet costs in Step, beside the same in C.
func path(o *options) (*report, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	dir, err := os.MkdirTemp("", "path")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	r := &report{
		name: "path", title: "Time per packet of Step on ports in memory", unit: "ns/packet", series: []string{"Go", optimised, plain, newer},
		columns: []string{"case", "Go", "Go min", "Go max", optimised, plain, newer, "Go/C -O3"},
		notes: []string{
			"Every check and counter of Step in all; 2,000 flows, or so many random hosts of random routes; 60-byte IPv4 and 62-byte IPv6 frames; one worker.",
			"Median of interleaved rounds, each the median of batches of 4,096 packets. Buffers of 2,112 bytes in pages of 4 KB where the row says nothing else;",
			"compact: heads 192 bytes apart in huge pages, so that the table is measured rather than the buffers, as with the 64-byte templates of DPDK's net_null.",
			"C: DIR-24-8 of 16-bit entries, a trie of 24, 8, 8, ... bits for IPv6, tables in huge pages; its output is tested to be Step's, byte for byte.",
		},
	}
	bs, notes, err := builds(o, dir)
	if err != nil {
		return nil, err
	}
	latency, err := memoryLatency()
	if err != nil {
		return nil, err
	}
	r.notes = append(append(r.notes, latency), notes...)
	result := make(map[string]*contest)
	for i, g := range pathGroups() {
		if i > 0 { // the other builds are for the first group
			bs = slices.DeleteFunc(bs, func(b build) bool { return b.name != optimised })
		}
		o.say("path: %s", g.name)
		rounds := o.rounds
		if g.targets {
			rounds *= 2
		}
		cs, err := compete(o, g.cases, rounds, dir, bs)
		if err != nil {
			return nil, err
		}
		for _, c := range cs {
			r.addPath(c)
			result[c.name] = c
		}
	}
	pathTargets(r, result)
	return r, nil
}

// compete measures the cases of a group in interleaved rounds: many short ones,
// because what slows a shared machine down lasts for longer.
func compete(o *options, group []pathCase, rounds int, dir string, bs []build) ([]*contest, error) {
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
		c := &contest{pathCase: pc, ns: make([][]float64, 1+len(bs))}
		var err error
		if c.bed, err = pc.bed(); err != nil {
			return nil, fmt.Errorf("%s: %w", pc.name, err)
		}
		cs = append(cs, c)
		file := filepath.Join(dir, "case")
		if err := c.bed.writeCase(file); err != nil {
			return nil, err
		}
		for _, b := range bs {
			p, err := startPeer(b, &pc, file)
			if err != nil {
				return nil, err
			}
			c.peers = append(c.peers, p)
			if _, err := p.run(len(c.bed.frames)); err != nil { // it has read the file then
				return nil, fmt.Errorf("%s: %w", pc.name, err)
			}
		}
		c.bed.run(len(c.bed.frames))
	}
	for round := range rounds + 1 {
		for _, c := range cs {
			n := max(o.packets/2, 2*len(c.bed.frames))
			runs := []func(int) (float64, error){func(n int) (float64, error) { return c.bed.run(n), nil }}
			for _, p := range c.peers {
				runs = append(runs, p.run)
			}
			for i, run := range runs {
				ns, err := run(n)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", c.name, err)
				}
				if round > 0 { // the first one warms up
					c.ns[i] = append(c.ns[i], ns)
				}
			}
		}
		if err := o.ctx.Err(); err != nil {
			return nil, err
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
	if c.drop == dataplane.DropNoNeighbor {
		got += s.Punted[dataplane.PuntNeighbor] // the first ones, as many as wait for control
	}
	if got != s.Packets {
		return fmt.Errorf("%s: %d of %d packets ended as they should: %+v", c.name, got, s.Packets, s)
	}
	return nil
}

// of returns what the build measured, nil if it did not take part.
func (c *contest) of(name string) []float64 {
	for i, p := range c.peers {
		if p.name == name {
			return c.ns[1+i]
		}
	}
	return nil
}

func (r *report) addPath(c *contest) {
	goNS := c.ns[0]
	cells := []string{c.name, ns(median(goNS)), ns(slices.Min(goNS)), ns(slices.Max(goNS))}
	values := []float64{median(goNS)}
	for _, name := range r.series[1:] {
		v, cell := 0.0, ""
		if got := c.of(name); got != nil {
			v = median(got)
			cell = ns(v)
		}
		cells, values = append(cells, cell), append(values, v)
	}
	beside := ""
	if c3 := c.of(optimised); c3 != nil {
		beside = fmt.Sprintf("%.2f", ratio(goNS, c3))
	}
	r.rows = append(r.rows, row{append(cells, beside), values})
}

// pathTargets compares rows of one group, for these ran in turns.
func pathTargets(r *report, of map[string]*contest) {
	for _, size := range []struct{ name, rows string }{{"in L2", "2,000 buffers"}, {"beyond L2", "32,000 buffers"}} {
		x, y := of["IPv4, 4 routes, "+size.rows], of["IPv6, 4 routes, "+size.rows]
		if x != nil {
			if c := x.of(optimised); c != nil {
				r.addTarget(target{"IPv4, 4 routes, buffers " + size.name + ": Step / C -O3", ratio(x.ns[0], c), 1.4, true}, between(x.ns[0], c))
			}
		}
		if x != nil && y != nil {
			r.addTarget(target{"4 routes, buffers " + size.name + ": IPv6 / IPv4", ratio(y.ns[0], x.ns[0]), 1.25, true}, between(y.ns[0], x.ns[0]))
		}
	}
	for _, t := range []struct {
		mix    mix
		table  string
		routes string
		most   float64
	}{
		{v4, "900k/200k routes", "900k", 1.8}, {v6, "900k/200k routes", "200k", 2.5},
		{v4, "real table", "the real table's", 1.8}, {v6, "real table", "the real table's", 2.5},
	} {
		for _, buffers := range []string{", compact", ""} {
			x, y := of[fmt.Sprintf("%s, %s, 65,536 destinations%s", t.mix, t.table, buffers)], of[fmt.Sprintf("%s, 4 routes, 65,536 destinations%s", t.mix, buffers)]
			if x == nil || y == nil {
				continue
			}
			note := between(x.ns[0], y.ns[0])
			if a, b := x.of(optimised), y.of(optimised); a != nil && b != nil {
				note += fmt.Sprintf("; C: %.3g", ratio(a, b))
			}
			what := fmt.Sprintf("%s, 65,536 destinations%s: %s routes / 4 routes", t.mix, buffers, t.routes)
			r.addTarget(target{what, ratio(x.ns[0], y.ns[0]), t.most, true}, note)
		}
	}
}

// between says what was divided.
func between(a, b []float64) string {
	return fmt.Sprintf("%.3g and %.3g ns", median(a), median(b))
}

func ns(v float64) string { return fmt.Sprintf("%.2f", v) }

// median returns the middle of some values.
func median[T cmp.Ordered](v []T) T {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}
