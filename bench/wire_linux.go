package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane"
	"nmfwd/test/lab/apu2"
	"nmfwd/test/netns"
)

//go:embed wire/xskfwd.c
var xskfwdC []byte

// A dut is what forwards on the wire.
type dut struct {
	name   string
	of     string // what targets compare: "nmfwd", "C", "kernel", or none of them
	queues int
	// start starts it in a lab and returns what tells the CPU time that it has
	// used, nil where that is not known, and what ends it.
	start func(ctx context.Context, l *apu2.Lab) (cpu func() (time.Duration, error), stop func() error, err error)
	// counted counts what arrived, nil where the source does.
	counted func(*apu2.Lab) (uint64, error)
}

// An offer is the traffic of one row.
type offer struct {
	name   string
	family int
	rate   float64 // frames per second, 0 for as many as the sender can
	plain  string  // what a plainSource sends instead of the lab's flows
	few    bool    // only for those that targets compare
}

const udpPorts = "2,000 UDP ports"

var offers = []offer{
	{name: "IPv4, overload", family: 4},
	{name: "IPv4, 1 M/s", family: 4, rate: 1e6, few: true},
	{name: "IPv6, overload", family: 6},
	{name: "IPv6, 1 M/s", family: 6, rate: 1e6, few: true},
	{name: "IPv4, 2,000 UDP ports, overload", plain: udpPorts, few: true},
	{name: "IPv4, 2,000 UDP ports, 2 M/s", plain: udpPorts, rate: 2e6, few: true},
	{name: "IPv4, one flow, overload", plain: "one flow", few: true},
	{name: "IPv4, IMIX, overload", plain: imix, few: true},
}

// onWire measures forwarding between network namespaces.
func onWire(o *options) (*report, error) {
	r := &report{
		name: "wire", title: "Real frames over veth, AF_XDP in copy mode", unit: "M packets/s received", series: nil,
		columns: []string{"traffic, by", "M packets/s", "min", "max", "offered", "lost %", "M packets per CPU second", "Mbit/s"},
		notes: []string{
			"Generator, router and receiver in network namespaces; the generator sends live XDP frames of 2,000 flows, the receiver counts the right ones in XDP. One flow, ports and IMIX (7:4:1 of 54, 590 and 1514 bytes) are counted by the port.",
			"Mbit/s: of IMIX, packets/s times the mean frame, without FCS, as the labs estimate it.",
			"Median of interleaved runs, each in a lab of its own. One queue: one CPU sends, another one forwards. Two queues: both CPUs send, and what forwards shares them. CPU seconds are those of the process or of the NAPI threads, with their system calls and with the receiver's XDP program, which runs in them.",
			"The C forwarder gives every frame to its socket and leaves none to a host, as nmfwd does with host off; with host on, nmfwd's XDP program tells apart what is the host's, on the sending CPU.",
			"Kernel in softirqs: it forwards inside the senders' own calls, so that these wait for it and no load is more than it takes.",
			"Testpmd only exchanges MAC addresses: no checks, no route, no TTL.",
			"A ratio to a peer that was not offered the rate, or that needs more than was offered, is no target: the sender of paced frames waits for buffers that the kernel holds.",
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
	rounds, seconds := 5, time.Second
	if o.quick {
		rounds, seconds = 3, 500*time.Millisecond
	}
	type key struct{ dut, offer int }
	got := make(map[key][]wireResult)
	for range rounds {
		for f, of := range offers {
			for d, dut := range duts {
				if of.few && dut.of == "" || !o.rows.MatchString(of.name+", "+dut.name) {
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
	of := func(ws []wireResult, what func(wireResult) float64) []float64 {
		v := make([]float64, len(ws))
		for i, w := range ws {
			v[i] = what(w)
		}
		return v
	}
	rate := func(w wireResult) float64 { return w.rate / 1e6 }
	offered := func(w wireResult) float64 { return w.offered / 1e6 }
	for f, traffic := range offers {
		for d, dut := range duts {
			ws := got[key{d, f}]
			if len(ws) == 0 {
				continue
			}
			v := of(ws, rate)
			cpu, bits := "", ""
			if m := median(of(ws, func(w wireResult) float64 { return w.perCPU })); m > 0 {
				cpu = fmt.Sprintf("%.2f", m/1e6)
			}
			if traffic.plain == imix {
				bits = fmt.Sprintf("%.0f", median(v)*imixBits)
			}
			values := make([]float64, len(duts))
			values[d] = median(v)
			r.rows = append(r.rows, row{[]string{
				traffic.name + ", " + dut.name, fmt.Sprintf("%.3f", median(v)), fmt.Sprintf("%.3f", slices.Min(v)), fmt.Sprintf("%.3f", slices.Max(v)),
				fmt.Sprintf("%.2f", median(of(ws, offered))), fmt.Sprintf("%.1f", median(of(ws, func(w wireResult) float64 { return w.lost * 100 }))), cpu, bits,
			}, values})
		}
	}
	for f, traffic := range offers {
		for d, dut := range duts {
			for p, peer := range duts {
				want := map[string]float64{"C": 0.95, "kernel": 1.3}[peer.of]
				ours, theirs := got[key{d, f}], got[key{p, f}]
				if dut.of != "nmfwd" || want == 0 || peer.queues != dut.queues || len(ours) == 0 || len(theirs) == 0 ||
					median(of(ours, offered)) < want*median(of(theirs, rate)) || median(of(theirs, offered)) < 0.95*traffic.rate/1e6 {
					continue
				}
				r.targets = append(r.targets, target{traffic.name + ": " + dut.name + " / " + peer.name, ratio(of(ours, rate), of(theirs, rate)), want, false})
			}
		}
	}
	return r, nil
}

// wireDUTs returns all that can be measured on this machine.
func wireDUTs(dir string) ([]dut, error) {
	bin, err := buildNMFWD(dir)
	if err != nil {
		return nil, err
	}
	conf, err := labConf(dir, "routes.conf", nil)
	if err != nil {
		return nil, err
	}
	hostless, err := labConf(dir, "hostless.conf", func(b []byte) []byte {
		return regexp.MustCompile("(?m)^port .*").ReplaceAll(b, []byte("$0 host off"))
	})
	if err != nil {
		return nil, err
	}
	nmfwd := func(conf string) func(ctx context.Context, l *apu2.Lab) (func() (time.Duration, error), func() error, error) {
		return func(ctx context.Context, l *apu2.Lab) (func() (time.Duration, error), func() error, error) {
			n, err := l.StartNMFWD(ctx, bin, conf, nil)
			if err != nil {
				return nil, nil, err
			}
			return n.CPU, n.Stop, nil
		}
	}
	duts := []dut{
		{name: "nmfwd, 1 queue", of: "nmfwd", queues: 1, start: nmfwd(conf)},
		{name: "nmfwd, 2 queues", of: "nmfwd", queues: 2, start: nmfwd(conf)},
		{name: "nmfwd, host off, 1 queue", queues: 1, start: nmfwd(hostless)},
		{name: "kernel, threaded NAPI, 1 queue", of: "kernel", queues: 1, start: startKernel},
		{name: "kernel, threaded NAPI, 2 queues", of: "kernel", queues: 2, start: startKernel},
		{name: "kernel, in softirqs, 2 queues", queues: 2, start: func(_ context.Context, l *apu2.Lab) (func() (time.Duration, error), func() error, error) {
			return nil, nil, l.KernelRouter()
		}},
	}
	xskfwd, err := compileC(dir, "xskfwd", xskfwdC, "-O3", "-march=native", "-pthread")
	switch {
	case err == nil:
		for _, n := range []int{1, 2} {
			name := "C, 1 queue"
			if n == 2 {
				name = "C, 2 queues"
			}
			duts = append(duts, dut{name: name, of: "C", queues: n, start: func(_ context.Context, l *apu2.Lab) (func() (time.Duration, error), func() error, error) {
				return startXSKFwd(l, xskfwd, n)
			}})
		}
	case !errors.Is(err, exec.ErrNotFound):
		return nil, err
	}
	if testpmd, err := exec.LookPath("dpdk-testpmd"); err == nil {
		duts = append(duts, dut{name: "testpmd over net_af_xdp, 1 queue", queues: 1, counted: arrivedAt(func(l *apu2.Lab) *netns.Namespace { return l.Receiver }, apu2.Rcv0), start: func(_ context.Context, l *apu2.Lab) (func() (time.Duration, error), func() error, error) {
			return startTestpmd(l, testpmd)
		}})
	}
	for _, n := range []int{1, 2} {
		name := "nobody: the generator alone, 1 queue"
		if n == 2 {
			name = "nobody: the generator alone, 2 queues"
		}
		duts = append(duts, dut{name: name, queues: n, counted: arrivedAt(func(l *apu2.Lab) *netns.Namespace { return l.Router }, apu2.IGB1), start: startSink})
	}
	return duts, nil
}

// startKernel makes the kernel the router, in one thread for each queue of igb1,
// which has the CPU that the queue's worker has when nmfwd forwards.
func startKernel(ctx context.Context, l *apu2.Lab) (func() (time.Duration, error), func() error, error) {
	if err := l.KernelRouter(); err != nil {
		return nil, nil, err
	}
	before, err := napiThreads()
	if err != nil {
		return nil, nil, err
	}
	// A new mount of sysfs shows the devices of the namespace.
	const set = "mount -t sysfs sysfs /sys && echo 1 >/sys/class/net/" + apu2.IGB1 + "/threaded"
	if out, err := l.Router.Output(ctx, "unshare", "--mount", "sh", "-c", set); err != nil {
		return nil, nil, fmt.Errorf("threaded NAPI: %w: %s", err, out)
	}
	all, err := napiThreads()
	if err != nil {
		return nil, nil, err
	}
	cpus, err := dataplane.CPUs()
	if err != nil {
		return nil, nil, err
	}
	ours := slices.DeleteFunc(all, func(pid int) bool { return slices.Contains(before, pid) })
	for i, pid := range ours {
		var cpu unix.CPUSet
		cpu.Set(cpus[i%len(cpus)])
		if err := unix.SchedSetaffinity(pid, &cpu); err != nil {
			return nil, nil, fmt.Errorf("NAPI thread: sched_setaffinity: %w", err)
		}
	}
	return func() (sum time.Duration, err error) {
		for _, pid := range ours {
			t, e := cpuOf(pid)
			sum, err = sum+t, errors.Join(err, e)
		}
		return sum, err
	}, nil, nil
}

// napiThreads returns the kernel's threads that serve queues of igb1, in order.
func napiThreads() (pids []int, err error) {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	for _, name := range names {
		if !strings.HasPrefix(line(name), "napi/"+apu2.IGB1+"-") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, err
}

func startXSKFwd(l *apu2.Lab, bin string, queues int) (func() (time.Duration, error), func() error, error) {
	cmd := exec.Command(bin, apu2.IGB1, apu2.IGB2, strconv.Itoa(queues), apu2.IGB2MAC.String(), apu2.ReceiverMAC.String())
	cmd.Stderr = os.Stderr
	return startIn(l, cmd, "ready")
}

// startTestpmd starts testpmd with its forwarding thread on the first CPU.
func startTestpmd(l *apu2.Lab, bin string) (func() (time.Duration, error), func() error, error) {
	cpus, err := dataplane.CPUs()
	if err != nil {
		return nil, nil, err
	}
	first, last := strconv.Itoa(cpus[0]), strconv.Itoa(cpus[len(cpus)-1])
	return startIn(l, exec.Command(bin, "--no-huge", "--no-shconf", "-m", "512", "--no-pci", "-l", first+","+last, "--main-lcore", last,
		"--vdev", "net_af_xdp0,iface="+apu2.IGB1+",queue_count=1", "--vdev", "net_af_xdp1,iface="+apu2.IGB2+",queue_count=1",
		"--", "--forward-mode=mac", "--total-num-mbufs=32768", "--eth-peer=1,"+apu2.ReceiverMAC.String(), "--stats-period=1"), "Port statistics")
}

// startIn starts a program in the router's namespace and waits for a line that
// begins with ready.
func startIn(l *apu2.Lab, cmd *exec.Cmd, ready string) (func() (time.Duration, error), func() error, error) {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := l.Router.Start(cmd); err != nil {
		return nil, nil, err
	}
	var said strings.Builder
	s, found := bufio.NewScanner(out), false
	for !found && s.Scan() {
		found = strings.HasPrefix(s.Text(), ready)
		fmt.Fprintln(&said, s.Text())
	}
	if !found {
		return nil, nil, fmt.Errorf("%s: not ready: %s", filepath.Base(cmd.Path), said.String())
	}
	go io.Copy(io.Discard, out)
	return func() (time.Duration, error) { return cpuOf(cmd.Process.Pid) }, cmd.Process.Kill, nil
}

// startSink makes igb1 drop what arrives.
func startSink(_ context.Context, l *apu2.Lab) (func() (time.Duration, error), func() error, error) {
	p, err := xdpProgram(dropAll)
	if err != nil {
		return nil, nil, err
	}
	x, err := attachTo(l.Router, apu2.IGB1, p)
	if err != nil {
		return nil, nil, errors.Join(err, p.Close())
	}
	return nil, func() error { return errors.Join(x.Close(), p.Close()) }, nil
}

// arrivedAt counts what a port received.
func arrivedAt(ns func(*apu2.Lab) *netns.Namespace, port string) func(*apu2.Lab) (uint64, error) {
	return func(l *apu2.Lab) (uint64, error) {
		p, err := ns(l).Port(port)
		if err != nil {
			return 0, err
		}
		return p.Statistics.RxPackets, nil
	}
}

// A wireResult is what one run measured.
type wireResult struct {
	rate    float64 // right frames received per second
	offered float64 // frames sent per second
	perCPU  float64 // received per CPU second of what forwards, 0 where not known
	lost    float64 // share
}

// A count is what has been sent, received and used up to a moment.
type count struct {
	sent, received uint64
	cpu            time.Duration
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
	if stop != nil {
		defer func() { err = errors.Join(err, stop()) }()
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
	counts := func() (c count, err error) {
		if c.sent, c.received, err = gen.counts(); err == nil && d.counted != nil {
			c.received, err = d.counted(l)
		}
		if err == nil && used != nil {
			c.cpu, err = used()
		}
		return c, err
	}
	if err := gen.Send(ctx, of.rate, 300*time.Millisecond); err != nil {
		return w, err
	}
	before, err := counts()
	if err != nil {
		return w, err
	}
	start := time.Now()
	if err := gen.Send(ctx, of.rate, seconds); err != nil {
		return w, err
	}
	took := time.Since(start).Seconds()
	time.Sleep(50 * time.Millisecond) // what is under way arrives, or is lost
	after, err := counts()
	if err != nil {
		return w, err
	}
	if after.received == before.received {
		return w, errors.New("nothing was forwarded")
	}
	n, sent := float64(after.received-before.received), float64(after.sent-before.sent)
	w = wireResult{rate: n / took, offered: sent / took, lost: max(0, 1-n/sent)}
	if after.cpu > before.cpu {
		w.perCPU = n / (after.cpu - before.cpu).Seconds()
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

// labConf writes the configuration of the lab to a file in dir, as edit changes
// it.
func labConf(dir, name string, edit func([]byte) []byte) (string, error) {
	b, err := os.ReadFile("examples/apu2/routes.conf")
	if err != nil {
		return "", err
	}
	if edit != nil {
		b = edit(b)
	}
	name = filepath.Join(dir, name)
	return name, os.WriteFile(name, b, 0o644)
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
		conf, err := labConf(dir, "routes.conf", func(b []byte) []byte { return append(b, "option idle "+idle+"\n"...) })
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
