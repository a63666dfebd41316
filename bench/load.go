package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"nmfwd/bench/routes"
	"nmfwd/config"
	"nmfwd/control"
	"nmfwd/dataplane"
	"nmfwd/fib"
	"nmfwd/router"
)

// A loaded is what loading one configuration took. Times are in seconds, sizes
// in bytes.
type loaded struct {
	Parse, Spec, Compile, Total float64 // from the file to the first packet forwarded
	CPU                         float64 // of the process, for Total
	Peak                        int     // resident memory
	Heap, Resident              int     // at rest
	Tables                      [2]int  // compiled, all copies: IPv4, IPv6

	Reload     float64
	ReloadPeak int

	RIB, Commit float64         // Compile apart: filling the RIB, and making tables of it
	Change      map[int]float64 // of so many routes, with Commit

	// Longest time between two calls of Step: of a worker that nothing
	// disturbs, during a reload, and while the garbage collector runs.
	Quiet, DuringReload, DuringGC float64
}

// loadSizes are the tables that are loaded: IPv4 and IPv6 routes, in order as
// dumps have them, or in none.
var loadSizes = []struct {
	n        [2]int
	shuffled bool
}{
	{[2]int{8_000, 2_000}, false}, {[2]int{80_000, 20_000}, false}, {[2]int{800_000, 200_000}, false},
	{[2]int{900_000, 200_000}, false}, {[2]int{900_000, 200_000}, true},
}

// load measures the way from a file to forwarding, in processes of their own.
func load(o *options) (*report, error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	r := &report{
		name: "load", title: "From the file to the first packet forwarded", unit: "s", series: []string{"two CPUs", "one CPU", "CPU time"},
		columns: []string{
			"routes IPv4/IPv6", "parse s", "spec s", "compile s", "total s", "one CPU s", "CPU s", "peak MB", "heap MB", "at rest MB", "tables MB", "reload s", "reload peak MB",
			"RIB s", "commit s", "change 1 ms", "100 ms", "10k ms", "gap ms: quiet", "reload", "GC",
		},
		notes: []string{
			"Medians of processes that load the file, forward, reload the same file and change it. Compile holds the RIB's filling and the first tables; the trees are filled beside.",
			"Peak and at rest: resident memory. Tables: both families, all copies. A change is added and compiled, the table being full.",
			"Gap: longest time between two calls of Step of a worker that has a CPU, the rest of the process having the others; not counted is when another program took that CPU.",
		},
	}
	times := 3
	if o.quick {
		times = 1
	}
	for i, c := range loadSizes {
		name := fmt.Sprintf("%dk/%dk", c.n[0]/1000, c.n[1]/1000)
		if c.shuffled {
			name += ", shuffled"
		}
		if !o.rows.MatchString(name) || o.quick && i != 1 && i != 3 {
			continue
		}
		file := filepath.Join(dir, "routes.conf")
		if err := os.WriteFile(file, routesConf(c.n, c.shuffled), 0o644); err != nil {
			return nil, err
		}
		var two, one []loaded
		for range times {
			for _, to := range []*[]loaded{&two, &one} {
				l, err := loadApart(o, file, to == &one)
				if err != nil {
					return nil, err
				}
				*to = append(*to, l)
			}
		}
		r.addLoad(name, two, one)
		if i == 3 {
			r.loadTargets(two)
		}
	}
	return r, nil
}

// loadApart runs loadChild in a process of its own.
func loadApart(o *options, file string, oneCPU bool) (l loaded, err error) {
	self, err := os.Executable()
	if err != nil {
		return l, err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(o.ctx, self, "-child", "load:"+file)
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if oneCPU {
		err = startOnOneCPU(cmd)
	} else {
		err = cmd.Start()
	}
	if err != nil {
		return l, err
	}
	if err := cmd.Wait(); err != nil {
		return l, fmt.Errorf("load %s: %w", file, err)
	}
	return l, json.Unmarshal(out.Bytes(), &l)
}

func (r *report) addLoad(name string, two, one []loaded) {
	cells := []string{name}
	add := func(of []loaded, format string, unit float64, f func(l *loaded) float64) {
		cells = append(cells, fmt.Sprintf(format, of1(of, f)/unit))
	}
	for _, f := range []func(l *loaded) float64{
		func(l *loaded) float64 { return l.Parse }, func(l *loaded) float64 { return l.Spec },
		func(l *loaded) float64 { return l.Compile }, func(l *loaded) float64 { return l.Total },
	} {
		add(two, "%.3f", 1, f)
	}
	add(one, "%.3f", 1, func(l *loaded) float64 { return l.Total })
	add(two, "%.3f", 1, func(l *loaded) float64 { return l.CPU })
	for _, f := range []func(l *loaded) float64{
		func(l *loaded) float64 { return float64(l.Peak) }, func(l *loaded) float64 { return float64(l.Heap) }, func(l *loaded) float64 { return float64(l.Resident) },
		func(l *loaded) float64 { return float64(l.Tables[0] + l.Tables[1]) },
	} {
		add(two, "%.0f", 1e6, f)
	}
	add(two, "%.3f", 1, func(l *loaded) float64 { return l.Reload })
	add(two, "%.0f", 1e6, func(l *loaded) float64 { return float64(l.ReloadPeak) })
	add(two, "%.3f", 1, func(l *loaded) float64 { return l.RIB })
	add(two, "%.3f", 1, func(l *loaded) float64 { return l.Commit })
	for _, n := range changes {
		add(two, "%.3f", 1e-3, func(l *loaded) float64 { return l.Change[n] })
	}
	for _, f := range []func(l *loaded) float64{
		func(l *loaded) float64 { return l.Quiet }, func(l *loaded) float64 { return l.DuringReload }, func(l *loaded) float64 { return l.DuringGC },
	} {
		add(two, "%.2f", 1e-3, f)
	}
	total := func(l *loaded) float64 { return l.Total }
	r.rows = append(r.rows, row{cells, []float64{of1(two, total), of1(one, total), of1(two, func(l *loaded) float64 { return l.CPU })}})
}

func (r *report) loadTargets(two []loaded) {
	r.targets = append(r.targets,
		target{"900k + 200k routes, file to forwarding on two CPUs, s", of1(two, func(l *loaded) float64 { return l.Total }), 3, true},
		target{"IPv4 tables of 900k routes, all copies, MB", of1(two, func(l *loaded) float64 { return float64(l.Tables[0]) / 1e6 }), 64, true},
		target{"IPv6 tables of 200k routes, all copies, MB", of1(two, func(l *loaded) float64 { return float64(l.Tables[1]) / 1e6 }), 64, true},
		target{"change of one route in 900k, with tables, ms", of1(two, func(l *loaded) float64 { return l.Change[1] * 1e3 }), 1, true})
}

// of1 returns the median of one figure.
func of1(ls []loaded, f func(l *loaded) float64) float64 {
	var v []float64
	for i := range ls {
		v = append(v, f(&ls[i]))
	}
	return median(v)
}

// routesConf returns a configuration of the lab in memory with n more routes
// of each family.
func routesConf(n [2]int, shuffle bool) []byte {
	var b bytes.Buffer
	b.WriteString("port A 198.18.0.205/24 2001:2::205/64\nport B 198.19.0.205/24 2001:2:0:8000::205/64\n")
	fmt.Fprintf(&b, "route 198.19.0.0/16 via 198.19.0.1\nroute 2001:2:0:8000::/49 via 2001:2:0:8000::1\n")
	gateways := [2]string{"198.19.0.", "2001:2:0:8000::"}
	neighbors := [2]string{"arp", "ndp"}
	for f, gw := range gateways {
		for i := 1; i <= 8; i++ {
			fmt.Fprintf(&b, "%s %s%d 00:1b:21:c4:95:7b\n", neighbors[f], gw, i)
		}
		ps := routes.Generate(n[f], f == 0, 1)
		if shuffle {
			rand.New(rand.NewPCG(1, 1)).Shuffle(len(ps), func(i, j int) { ps[i], ps[j] = ps[j], ps[i] })
		}
		for i, p := range ps {
			if p.Addr().IsGlobalUnicast() {
				fmt.Fprintf(&b, "route %v via %s%d\n", p, gw, 1+i%8)
			}
		}
	}
	return b.Bytes()
}

// changes are how many routes are changed at once.
var changes = []int{1, 100, 10_000}

// loadChild loads a configuration, forwards, reloads it, and prints a loaded.
func loadChild(file string) error {
	l := loaded{Change: make(map[int]float64)}
	b := &bed{feed: once, burst: dataplane.DefaultBurst, stride: stride, frames: [][]byte{frame4(0, 255)}}
	if err := b.open(); err != nil {
		return err
	}
	runtime.GC()
	cpu, start := processTime(), time.Now()
	since := func(t *time.Time) float64 {
		now := time.Now()
		d := now.Sub(*t)
		*t = now
		return d.Seconds()
	}
	last := start
	spec := func() (*control.Spec, error) {
		cfg, err := config.Load(file)
		if err != nil {
			return nil, err
		}
		if err := cfg.Resolve(nil); err != nil {
			return nil, err
		}
		l.Parse = since(&last)
		s, err := router.Spec(cfg, b.router.Ports())
		l.Spec = since(&last)
		return s, err
	}
	s, err := spec()
	if err != nil {
		return err
	}
	parse, making := l.Parse, l.Spec
	ctl, err := control.New(b.router, s, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		return err
	}
	l.Compile = since(&last)
	if b.worker.Step(0) != 1 || b.out.Pending(0) != 1 {
		return fmt.Errorf("the first packet was not forwarded: %+v", b.counts())
	}
	l.Total, l.CPU = time.Since(start).Seconds(), (processTime() - cpu).Seconds()
	_, l.Peak = memory()

	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	l.Heap = int(m.HeapAlloc)
	l.Tables = ctl.Stats().FIBBytes
	time.Sleep(time.Second) // the collector gives memory back
	l.Resident, _ = memory()

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { ctl.Run(ctx) })
	g, err := startGaps(b.worker)
	if err != nil {
		return err
	}
	time.Sleep(500 * time.Millisecond)
	l.Quiet = g.take()
	if err := resetPeak(); err != nil {
		return err
	}
	last = time.Now()
	begin := last
	if s, err = spec(); err != nil {
		return err
	}
	if err := ctl.Reload(ctx, s); err != nil {
		return err
	}
	l.Reload, l.DuringReload = time.Since(begin).Seconds(), g.take()
	_, l.ReloadPeak = memory()
	for range 3 {
		runtime.GC()
	}
	l.DuringGC = g.take()
	g.end()
	cancel()
	running.Wait()
	l.Parse, l.Spec = parse, making

	if err := l.change(s.Routes); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(l)
}

// change measures the parts of compiling, and changes of a full table.
func (l *loaded) change(rts []fib.Route) error {
	rts = slices.Clone(rts)
	r := fib.New(labPorts)
	for i := range 8 {
		for _, gw := range []string{"198.19.0.", "2001:2:0:8000::"} {
			if err := r.SetNeighbor(1, netip.MustParseAddr(fmt.Sprintf("%s%d", gw, i+1)), macA); err != nil {
				return err
			}
		}
	}
	start := time.Now()
	if err := r.Load(rts); err != nil {
		return err
	}
	l.RIB = time.Since(start).Seconds()
	start = time.Now()
	r.Reclaim(r.Commit().Gen)
	l.Commit = time.Since(start).Seconds()
	for _, n := range changes {
		var took []float64
		for k := range 9 {
			var some []fib.Route
			for i := range n {
				rt := rts[(i*7919+k*104729)%len(rts)]
				rt.MTU = uint16(1300 + k) // another adjacency
				some = append(some, rt)
			}
			start := time.Now()
			for _, rt := range some {
				if err := r.Add(rt); err != nil {
					return err
				}
			}
			gen := r.Commit().Gen
			took = append(took, time.Since(start).Seconds())
			r.Reclaim(gen)
		}
		l.Change[n] = median(took)
	}
	return nil
}

// A gaps steps a worker and notes the longest time between two calls.
type gaps struct {
	longest atomic.Int64
	stop    atomic.Bool
	running sync.WaitGroup
}

// startGaps steps w on a thread and a CPU of its own, and with as many Ps as a
// router with one worker has.
func startGaps(w *dataplane.Worker) (*gaps, error) {
	runtime.GOMAXPROCS(max(3, runtime.GOMAXPROCS(0)))
	g := new(gaps)
	own, err := leaveCPU()
	if err != nil {
		return nil, err
	}
	g.running.Go(func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with it
		own()
		lost := preempted()
		for last := time.Now(); !g.stop.Load(); {
			w.Step(0)
			now := time.Now()
			if d := now.Sub(last); d > 20*time.Microsecond {
				if n := preempted(); n != lost {
					lost = n
				} else if int64(d) > g.longest.Load() {
					g.longest.Store(int64(d))
				}
				now = time.Now()
			}
			last = now
		}
	})
	return g, nil
}

// take returns the longest gap in seconds and forgets it.
func (g *gaps) take() float64 { return time.Duration(g.longest.Swap(0)).Seconds() }

func (g *gaps) end() {
	g.stop.Store(true)
	g.running.Wait()
}
