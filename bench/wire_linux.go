package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"nmfwd/dataplane"
	"nmfwd/test/lab/apu2"
)

//go:embed wire/xskfwd.c
var xskfwdC []byte

// A dut is what forwards on the wire.
type dut struct {
	name   string
	queues int
	// start starts it in a lab and returns what tells the CPU time that it has
	// used, nil for the kernel, and what ends it.
	start func(ctx context.Context, l *apu2.Lab) (cpu func() (time.Duration, error), stop func() error, err error)
}

// An offer is the traffic of one row.
type offer struct {
	name   string
	family int
	rate   float64 // frames per second, 0 for as many as the sender can
	plain  string  // what a plainSource sends instead of the lab's flows
}

var offers = []offer{
	{name: "IPv4, overload", family: 4}, {name: "IPv4, 1.6 M/s", family: 4, rate: 1.6e6}, {name: "IPv4, 1 M/s", family: 4, rate: 1e6},
	{name: "IPv6, overload", family: 6}, {name: "IPv6, 1.6 M/s", family: 6, rate: 1.6e6},
	{name: "IPv4, one flow, overload", plain: "one flow"}, {name: "IPv4, 2,000 UDP ports, overload", plain: "2,000 UDP ports"}, {name: "IPv4, IMIX, overload", plain: imix},
}

// onWire measures forwarding between network namespaces.
func onWire(o *options) (*report, error) {
	r := &report{
		name: "wire", title: "Real frames over veth, AF_XDP in copy mode", unit: "M packets/s received", series: nil,
		columns: []string{"traffic, by", "M packets/s", "min", "max", "M packets per CPU second", "lost %", "Mbit/s"},
		notes: []string{
			"Generator, router and receiver in network namespaces; the generator sends live XDP frames of 2,000 flows, the receiver counts the right ones in XDP. One flow, ports and IMIX (7:4:1 of 54, 590 and 1514 bytes) are counted by the port.",
			"Mbit/s: of IMIX, packets/s times the mean frame, without FCS, as the labs estimate it.",
			"Median of interleaved runs, each in a lab of its own. As many CPUs send as there are queues. CPU seconds are those of the process, with its system calls; the kernel's own are not known.",
		},
	}
	if os.Geteuid() != 0 {
		r.notes = append(r.notes, "Not run: it needs root, for it makes network namespaces.")
		return r, nil
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	duts, err := wireDUTs(dir)
	if err != nil {
		return nil, err
	}
	rounds, seconds := 5, 2*time.Second
	if o.quick {
		rounds, seconds = 3, time.Second
	}
	type key struct{ dut, offer int }
	got := make(map[key][]wireResult)
	for range rounds {
		for f, of := range offers {
			for d, dut := range duts {
				if !o.rows.MatchString(of.name + ", " + dut.name) {
					continue
				}
				w, err := measureWire(dut, of, seconds)
				if err != nil {
					return nil, fmt.Errorf("%s, %s: %w", of.name, dut.name, err)
				}
				got[key{d, f}] = append(got[key{d, f}], w)
			}
		}
	}
	for _, d := range duts {
		r.series = append(r.series, d.name)
	}
	rates := func(d, f int) []float64 {
		var v []float64
		for _, w := range got[key{d, f}] {
			v = append(v, w.rate/1e6)
		}
		return v
	}
	for f, of := range offers {
		for d, dut := range duts {
			ws := got[key{d, f}]
			if len(ws) == 0 {
				continue
			}
			v := rates(d, f)
			var perCPU, lost []float64
			for _, w := range ws {
				perCPU, lost = append(perCPU, w.perCPU/1e6), append(lost, w.lost*100)
			}
			cpu := ""
			if median(perCPU) > 0 {
				cpu = fmt.Sprintf("%.2f", median(perCPU))
			}
			bits := ""
			if of.plain == imix {
				bits = fmt.Sprintf("%.0f", median(v)*imixBits)
			}
			values := make([]float64, len(duts))
			values[d] = median(v)
			r.rows = append(r.rows, row{[]string{of.name + ", " + dut.name, fmt.Sprintf("%.3f", median(v)), fmt.Sprintf("%.3f", slices.Min(v)), fmt.Sprintf("%.3f", slices.Max(v)), cpu, fmt.Sprintf("%.1f", median(lost)), bits}, values})
		}
	}
	for f, of := range offers {
		for n := range 2 { // with 1 and 2 queues
			if len(rates(n, f)) == 0 {
				continue
			}
			if c := rates(3+n, f); len(c) > 0 {
				r.targets = append(r.targets, target{of.name + ": " + duts[n].name + " / " + duts[3+n].name, ratio(rates(n, f), c), 0.95, false})
			}
			if k := rates(2, f); len(k) > 0 {
				r.targets = append(r.targets, target{of.name + ": " + duts[n].name + " / kernel", ratio(rates(n, f), k), 1.3, false})
			}
		}
	}
	return r, nil
}

// wireDUTs returns nmfwd with one and with two queues, the kernel, and the C
// forwarder with one and with two queues where there is a compiler.
func wireDUTs(dir string) ([]dut, error) {
	bin, err := buildNMFWD(dir)
	if err != nil {
		return nil, err
	}
	conf, err := labConf(dir, "")
	if err != nil {
		return nil, err
	}
	nmfwd := func(ctx context.Context, l *apu2.Lab) (func() (time.Duration, error), func() error, error) {
		n, err := l.StartNMFWD(ctx, bin, conf, nil)
		if err != nil {
			return nil, nil, err
		}
		return n.CPU, n.Stop, nil
	}
	kernel := func(_ context.Context, l *apu2.Lab) (func() (time.Duration, error), func() error, error) {
		return nil, func() error { return nil }, l.KernelRouter()
	}
	duts := []dut{{"nmfwd, 1 queue", 1, nmfwd}, {"nmfwd, 2 queues", 2, nmfwd}, {"kernel, 2 queues", 2, kernel}}
	xskfwd, err := compileC(dir, "xskfwd", xskfwdC, "-O3", "-march=native", "-pthread")
	if errors.Is(err, exec.ErrNotFound) {
		return duts, nil
	}
	for _, n := range []int{1, 2} {
		name := "C, 1 queue"
		if n == 2 {
			name = "C, 2 queues"
		}
		duts = append(duts, dut{name, n, func(_ context.Context, l *apu2.Lab) (func() (time.Duration, error), func() error, error) {
			return startXSKFwd(l, xskfwd, n)
		}})
	}
	return duts, err
}

func startXSKFwd(l *apu2.Lab, bin string, queues int) (func() (time.Duration, error), func() error, error) {
	cmd := exec.Command(bin, apu2.IGB1, apu2.IGB2, strconv.Itoa(queues), apu2.IGB2MAC.String(), apu2.ReceiverMAC.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := l.Router.Start(cmd); err != nil {
		return nil, nil, err
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return nil, nil, fmt.Errorf("xskfwd: not ready: %w", err)
	}
	return func() (time.Duration, error) { return cpuOf(cmd.Process.Pid) }, cmd.Process.Kill, nil
}

// A wireResult is what one run measured.
type wireResult struct {
	rate   float64 // right frames received per second
	perCPU float64 // the same per CPU second of the process
	lost   float64 // share
}

// measureWire makes a lab, starts the DUT in it and sends.
func measureWire(d dut, of offer, seconds time.Duration) (w wireResult, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), seconds+30*time.Second)
	defer cancel()
	l, err := apu2.New(d.queues, d.queues)
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	used, stop, err := d.start(ctx, l)
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if used == nil {
		used = func() (time.Duration, error) { return 0, nil }
	}
	cpus, err := dataplane.CPUs()
	if err != nil {
		return w, err
	}
	if len(cpus) < d.queues {
		return w, fmt.Errorf("%d CPUs, %d needed", len(cpus), d.queues)
	}
	cpus = cpus[len(cpus)-d.queues:]
	var gen source
	if of.plain != "" {
		gen, err = newPlainSource(l, of.plain, cpus)
	} else {
		gen, err = newFlowSource(l, of.family, cpus)
	}
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, gen.Close()) }()
	if err := gen.Send(ctx, of.rate, 300*time.Millisecond); err != nil {
		return w, err
	}
	sent0, received0, err := gen.counts()
	if err != nil {
		return w, err
	}
	cpu0, err := used()
	if err != nil {
		return w, err
	}
	start := time.Now()
	if err := gen.Send(ctx, of.rate, seconds); err != nil {
		return w, err
	}
	took := time.Since(start).Seconds()
	time.Sleep(50 * time.Millisecond) // what is under way arrives, or is lost
	sent, received, err := gen.counts()
	if err != nil {
		return w, err
	}
	cpu, err := used()
	if err != nil {
		return w, err
	}
	if received == received0 {
		return w, errors.New("nothing was forwarded")
	}
	n := float64(received - received0)
	w.rate, w.lost = n/took, 1-n/float64(sent-sent0)
	if cpu > cpu0 {
		w.perCPU = n / (cpu - cpu0).Seconds()
	}
	return w, nil
}

// cpuOf returns the CPU time that a process used (proc_pid_stat(5)).
func cpuOf(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	user, err1 := strconv.Atoi(string(fields[11]))
	system, err2 := strconv.Atoi(string(fields[12]))
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(err1, err2)
}

// buildNMFWD builds the daemon into dir, as it ships.
func buildNMFWD(dir string) (string, error) {
	bin := filepath.Join(dir, "nmfwd")
	cmd := exec.Command("go", "build", "-trimpath", "-o", bin, "nmfwd/cmd/nmfwd")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build nmfwd: %w\n%s", err, out)
	}
	return bin, nil
}

// labConf returns the configuration of the lab with further lines.
func labConf(dir string, lines string) (string, error) {
	b, err := os.ReadFile("examples/apu2/routes.conf")
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "routes.conf")
	return name, os.WriteFile(name, append(b, lines...), 0o644)
}

// withNMFWD calls f with a folder that is removed afterwards and an nmfwd built
// in it. Without root, which the lab needs, it does nothing.
func withNMFWD(f func(dir, bin string) error) error {
	if os.Geteuid() != 0 {
		return nil
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bin, err := buildNMFWD(dir)
	if err != nil {
		return err
	}
	return f(dir, bin)
}

// labLatency pings through the lab, forwarded by nmfwd and by the kernel.
func labLatency(o *options, add func(string, []time.Duration)) error {
	return withNMFWD(func(dir, bin string) error {
		for _, c := range []struct{ name, idle string }{{"nmfwd, adaptive", "adaptive"}, {"nmfwd, busy", "busy"}, {"kernel", ""}} {
			took, _, err := pingLab(dir, bin, c.idle, 100*o.rounds, 0, 0)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			add("ping through the lab: "+c.name, took)
		}
		return nil
	})
}

// pingLab sends n pings through the lab, with wait between them, and returns how
// long each took, and the CPU use in percent of nmfwd without traffic before.
// Without an idle mode the kernel forwards.
func pingLab(dir, bin, idle string, n int, quiet, wait time.Duration) (took []time.Duration, use float64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+quiet+time.Duration(n)*wait)
	defer cancel()
	l, err := apu2.New(1, 1)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if idle == "" {
		if err := l.KernelRouter(); err != nil {
			return nil, 0, err
		}
	} else {
		conf, err := labConf(dir, "option idle "+idle+"\n")
		if err != nil {
			return nil, 0, err
		}
		fwd, err := l.StartNMFWD(ctx, bin, conf, nil)
		if err != nil {
			return nil, 0, err
		}
		defer fwd.Stop()
		before, err := fwd.CPU()
		if err != nil {
			return nil, 0, err
		}
		time.Sleep(quiet)
		after, err := fwd.CPU()
		if err != nil {
			return nil, 0, err
		}
		if quiet > 0 {
			use = 100 * float64(after-before) / float64(quiet)
		}
	}
	p, err := l.Generator.NewPinger(apu2.ReceiverAddrs[0].Addr())
	if err != nil {
		return nil, 0, err
	}
	defer p.Close()
	for i := range n + 10 {
		time.Sleep(wait)
		start := time.Now()
		if err := p.Ping(56, time.Second); err != nil {
			return nil, 0, err
		}
		if i >= 10 { // the first ones resolve neighbors
			took = append(took, time.Since(start))
		}
	}
	return took, use, nil
}

// labIdle measures nmfwd over AF_XDP without traffic.
func labIdle(o *options, add func(string, float64, []time.Duration)) error {
	return withNMFWD(func(dir, bin string) error {
		for _, m := range idleModes {
			took, use, err := pingLab(dir, bin, m.name, 5*o.rounds, 5*time.Second, 20*time.Millisecond)
			if err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			add("AF_XDP, "+m.name, use, took)
		}
		return nil
	})
}
