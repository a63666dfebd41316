//go:build integration && linux

package kernel

// All tests run in the lab of package apu2, each in one of its own:
//
//	generator                     router                       receiver
//	gen0 198.18.0.203   ----   igb1 198.18.0.205
//	     2001:2::203                2001:2::205
//	                           igb2 198.19.0.205       ----   rcv0 198.19.0.203
//	                                2001:2:0:8000::205             2001:2:0:8000::203
//
// nmfwd runs in router with examples/apu2/routes.conf. The end hosts write their
// checksums themselves: a veth hands on packets whose checksum is for the device
// to write, and nmfwd, like a wire, forwards bytes. That is a setting of the end
// hosts, and TestChecksumOffload shows what happens without it.

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"nmfwd/test/lab/apu2"
	"nmfwd/test/lab/traffic"
	"nmfwd/test/netns"
)

// program is the nmfwd under test.
var program string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "nmfwd-kernel-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "nmfwd")
		if out, err := exec.Command("go", "build", "-o", program, "nmfwd/cmd/nmfwd").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build nmfwd: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// A bed is a lab with nmfwd running.
type bed struct {
	*testing.T
	*apu2.Lab
	fwd    *apu2.NMFWD
	config string // file
	log    *logged
	before apu2.Metrics
}

// newBed starts nmfwd between ports of two queues.
func newBed(t *testing.T) *bed { return startBed(t, newLab(t, 2, 2), labConfig(t)) }

func newLab(t *testing.T, queues1, queues2 int) *apu2.Lab {
	t.Helper()
	l, err := apu2.New(queues1, queues2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, end := range []struct {
		ns   *netns.Namespace
		port string
	}{{l.Generator, apu2.Gen0}, {l.Receiver, apu2.Rcv0}} {
		if err := end.ns.SetFeature(end.port, netns.TXChecksum, false); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// labConfig returns examples/apu2/routes.conf.
func labConfig(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../examples/apu2/routes.conf")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func startBed(t *testing.T, l *apu2.Lab, config string) *bed {
	t.Helper()
	b := &bed{T: t, Lab: l, config: filepath.Join(t.TempDir(), "routes.conf"), log: &logged{t: t}}
	b.write(config)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var err error
	if b.fwd, err = l.StartNMFWD(ctx, program, b.config, b.log); err != nil {
		t.Fatal(err)
	}
	onFailure(t, l.Router, b.fwd)
	b.before = b.scrape()
	return b
}

// write replaces the configuration file.
func (b *bed) write(config string) {
	b.Helper()
	if err := os.WriteFile(b.config, []byte(config), 0o644); err != nil {
		b.Fatal(err)
	}
}

func (b *bed) scrape() apu2.Metrics {
	b.Helper()
	m, err := b.fwd.Scrape(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return m
}

// settle checks that nmfwd accounts for every packet, that nothing was dropped
// but for reasons, and returns how the metrics grew since the last time.
func (b *bed) settle(reasons ...string) apu2.Metrics {
	b.Helper()
	m, err := b.fwd.AtRest(b.Context())
	if err != nil {
		b.Fatalf("not accounted for: %v", err)
	}
	grew := m.Sub(b.before)
	b.before = m
	for reason, n := range grew.By("reason", "nmfwd_dropped_packets_total") {
		allowed := false
		for _, r := range reasons {
			allowed = allowed || r == reason
		}
		if n > 0 && !allowed {
			b.Errorf("%.0f packets dropped: %s", n, reason)
		}
	}
	return grew
}

// stop ends nmfwd, which must do so with code 0.
func (b *bed) stop() {
	b.Helper()
	if err := b.fwd.Stop(); err != nil {
		b.Error(err)
	}
}

// ping sends one echo request from a namespace.
func (b *bed) ping(from *netns.Namespace, dst netip.Addr, size int) error {
	p, err := from.NewPinger(dst)
	if err != nil {
		return err
	}
	defer p.Close()
	return p.Ping(size, 10*time.Second)
}

// eventually calls f until it returns nil or a time that is more than enough has
// passed, also where the CPUs have other work.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	deadline := time.Now().Add(40 * time.Second)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// onFailure logs, when the test fails, what nmfwd counts at that time and what the
// kernel of its namespace knows of neighbors.
func onFailure(t *testing.T, ns *netns.Namespace, fwd *apu2.NMFWD) {
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		m, err := fwd.Scrape(ctx)
		if err != nil {
			return // it has ended
		}
		var lines []string
		for series, v := range m {
			if v != 0 && strings.HasPrefix(series, "nmfwd_") && !strings.Contains(series, "_bucket{") && !strings.Contains(series, "_info{") {
				lines = append(lines, fmt.Sprintf("%s %v", series, v))
			}
		}
		slices.Sort(lines)
		known, err := ns.Output(ctx, "ip", "neigh", "show")
		t.Logf("%s\n%s%v", strings.Join(lines, "\n"), known, err)
	})
}

// luck is how long, and tries how often at least, a test repeats what may fail for
// want of CPU time.
const (
	luck  = 40 * time.Second
	tries = 3
)

// lucky repeats round until it returns nil. Its error is about what no router can
// promise where the CPUs have other work: that every frame arrives, though a worker
// or an end host waits for a CPU while a ring fills up, or that a tool does in a
// second what it is to do in a second. What has to hold all the same, round checks
// itself.
func lucky(t *testing.T, round func() error) {
	t.Helper()
	deadline := time.Now().Add(luck)
	for n := 1; ; n++ {
		err := round()
		if err == nil || t.Failed() {
			return
		}
		if n >= tries && time.Now().After(deadline) {
			t.Fatalf("in each of %d rounds: %v", n, err)
		}
		t.Logf("round %d, which is repeated: %v", n, err)
	}
}

// full returns how many frames have found a ring or queue full so far, as nmfwd and
// the kernels count them; some are counted by both.
func (b *bed) full() float64 {
	b.Helper()
	m := b.scrape()
	n := m.Sum("nmfwd_dropped_packets_total", `reason="tx_full"`) + m.Sum("nmfwd_ring_full_total")
	for _, ns := range []*netns.Namespace{b.Generator, b.Router, b.Receiver} {
		dropped, err := ns.Dropped()
		if err != nil {
			b.Fatal(err)
		}
		n += float64(dropped)
	}
	return n
}

// logged writes lines to a test's log, and keeps them.
type logged struct {
	t  *testing.T
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Write(p)
	for s := bufio.NewScanner(bytes.NewReader(p)); s.Scan(); {
		fmt.Fprintf(l.t.Output(), "nmfwd: %s\n", s.Text())
	}
	return len(p), nil
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// flows is traffic from generator to receiver.
type flows struct {
	b    *bed
	rcv  *traffic.Receiver
	gen  *traffic.Sender
	stop context.CancelFunc
	done chan error
}

// send starts to send a family from cpus; end stops it.
func (b *bed) send(family int, rate float64, cpus ...int) *flows {
	b.Helper()
	f := &flows{b: b, done: make(chan error, 1)}
	var err error
	if f.rcv, err = traffic.NewReceiver(b.Receiver, apu2.Rcv0, apu2.Flows(family), 16); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.rcv.Close() })
	if f.gen, err = traffic.NewSender(b.Generator, apu2.Gen0, f.rcv, cpus); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.gen.Close() })
	ctx, cancel := context.WithCancel(b.Context())
	b.Cleanup(cancel)
	f.stop = cancel
	go func() { f.done <- f.gen.Send(ctx, rate, time.Minute) }()
	return f
}

// sent returns how many frames have been sent.
func (f *flows) sent() (n uint64) {
	f.b.Helper()
	by, err := f.gen.Sent()
	if err != nil {
		f.b.Fatal(err)
	}
	for _, c := range by {
		n += c
	}
	return n
}

// more waits until n more frames have been sent.
func (f *flows) more(n uint64) {
	f.b.Helper()
	from := f.sent()
	eventually(f.b.T, func() error {
		if now := f.sent(); now < from+n {
			return fmt.Errorf("%d of %d frames sent", now-from, n)
		}
		return nil
	})
}

// end stops sending and returns what happened. Nothing may be wrong, out of order
// or there twice.
func (f *flows) end() *traffic.Result {
	f.b.Helper()
	f.stop()
	if err := <-f.done; err != nil {
		f.b.Fatal(err)
	}
	var last uint64
	for still := 0; still < 100; still++ {
		got, _, err := f.rcv.Received()
		if err != nil {
			f.b.Fatal(err)
		}
		if got >= f.sent() {
			break
		}
		if got != last {
			last, still = got, 0
		}
		time.Sleep(10 * time.Millisecond)
	}
	res, err := f.rcv.Result(f.gen)
	if err != nil {
		f.b.Fatal(err)
	}
	if res.Wrong+res.Duplicated+res.Reordered > 0 || res.Received == 0 {
		f.b.Errorf("%d received, of these %d wrong, %d twice, %d out of order: %v",
			res.Received, res.Wrong, res.Duplicated, res.Reordered, res.Errors)
	}
	if err := f.gen.Close(); err != nil {
		f.b.Error(err)
	}
	if err := f.rcv.Close(); err != nil {
		f.b.Error(err)
	}
	return res
}

// withoutLoss sends a family from cpus, does something meanwhile, and returns what
// happened and how the metrics grew when all frames have arrived. Frames may be lost
// only where a ring was full, and have to be counted there: then it begins again.
func (b *bed) withoutLoss(family int, rate float64, cpus []int, meanwhile func(*flows), reasons ...string) (res *traffic.Result, grew apu2.Metrics) {
	b.Helper()
	lucky(b.T, func() error {
		before := b.full()
		f := b.send(family, rate, cpus...)
		meanwhile(f)
		res = f.end()
		grew = b.settle(append(reasons, "tx_full")...)
		if res.Lost == 0 {
			return nil
		}
		full := b.full() - before
		if float64(res.Lost) > full {
			b.Errorf("%d of %d frames lost, of which %.0f at most are accounted for", res.Lost, res.Sent, full)
		}
		return fmt.Errorf("%d of %d frames lost, %.0f counted where a ring was full", res.Lost, res.Sent, full)
	})
	return res, grew
}

// both are the CPUs that send by either queue.
var both = []int{0, 1}

// snmp returns a counter of a namespace's kernel: "Tcp", "InCsumErrors". TCP has
// one for both families.
func snmp(n *netns.Namespace, proto, name string) (v uint64, err error) {
	b, err := procNet(n, "snmp")
	if err != nil {
		return 0, err
	}
	var names []string
	for line := range strings.Lines(b) {
		fields := strings.Fields(line)
		if fields[0] != proto+":" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		if i := slices.Index(names, name); i > 0 {
			return strconv.ParseUint(fields[i], 10, 64)
		}
	}
	return 0, fmt.Errorf("no counter %s of %s", name, proto)
}

// snmp6 returns a counter of a namespace's IPv6.
func snmp6(n *netns.Namespace, name string) (uint64, error) {
	b, err := procNet(n, "snmp6")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(b) {
		if fields := strings.Fields(line); fields[0] == name {
			return strconv.ParseUint(fields[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("no counter %s", name)
}

// procNet reads a file of /proc/net as it is in a namespace.
func procNet(n *netns.Namespace, file string) (string, error) {
	var b []byte
	err := n.Do(func() (err error) {
		b, err = os.ReadFile("/proc/thread-self/net/" + file)
		return err
	})
	return string(b), err
}

// families are the two with their index in address lists.
var families = []struct {
	name  string
	index int
	ip    string // label
	most  int    // data in an echo request of 1500 bytes
}{
	{"IPv4", 0, "ipv4", 1472},
	{"IPv6", 1, "ipv6", 1452},
}
