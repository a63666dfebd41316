package show

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"nmfwd/test/frame"

	"golang.org/x/tools/txtar"

	"nmfwd/arp"
	"nmfwd/control"
	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
	"nmfwd/fib"
	"nmfwd/metrics"
	"nmfwd/neigh"
	"nmfwd/wire"
	"nmfwd/wire/icmp"
)

var update = flag.Bool("update", false, "rewrite the golden answers")

var (
	macA = wire.MACOf([]byte{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x3d})
	macB = wire.MACOf([]byte{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x3e})
	gw   = wire.MACOf([]byte{0x00, 0x1b, 0x21, 0xc4, 0x95, 0x7a})
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func ip(s string) netip.Addr       { return netip.MustParseAddr(s) }

// A lab is a router of two ports in memory, A and B, with a VLAN on B, and its
// server.
type lab struct {
	*testing.T
	path   string
	server *Server
	ports  [2]*memport.Port
	router *dataplane.Forwarder
	ctl    *control.Control
	source Source
}

func labSpec() *control.Spec {
	via := func(p, gw string, port uint16) fib.Route {
		return fib.Route{Prefix: prefix(p), Origin: fib.Static, Kind: fib.Via, Gateway: ip(gw), Port: port}
	}
	return &control.Spec{
		MaxNeighbors: 1000,
		Ports: []control.Port{
			{Name: "A", MAC: macA, MTU: 1500, Addrs: []netip.Prefix{prefix("198.18.0.205/24"), prefix("2001:2::205/64")}},
			{Name: "B", MAC: macB, MTU: 9000, Addrs: []netip.Prefix{prefix("198.19.0.205/24")}},
			{Name: "B.100", MAC: macB, MTU: 9000, Addrs: []netip.Prefix{prefix("10.1.0.1/24")}, VLAN: 100, On: 1},
		},
		Routes: []fib.Route{
			via("0.0.0.0/0", "198.18.0.1", 0),
			via("198.18.0.0/16", "198.18.0.203", 0),
			via("198.19.0.0/16", "198.19.0.203", 1),
			{Prefix: prefix("198.19.0.0/16"), Origin: fib.Kernel, Kind: fib.Reject},
			{Prefix: prefix("192.0.2.0/24"), Origin: fib.Static, Kind: fib.Blackhole},
			{Prefix: prefix("172.16.0.0/12"), Origin: fib.Static, Kind: fib.OnLink, Port: 2, MTU: 1400},
			via("2001:2:0:8000::/49", "2001:2::203", 0),
			{Prefix: prefix("203.0.113.0/24"), Origin: fib.Static, Kind: fib.Via, Hops: []fib.Hop{
				{Gateway: ip("198.18.0.203"), Port: 0, Weight: 3}, {Gateway: ip("198.19.0.203"), Port: 1, Weight: 1},
			}},
		},
		Neighbors: []neigh.Entry{
			{Key: neigh.Key{Port: 0, Addr: ip("198.18.0.1")}, MAC: gw},
			{Key: neigh.Key{Port: 0, Addr: ip("198.18.0.203")}, MAC: gw},
			{Key: neigh.Key{Port: 1, Addr: ip("198.19.0.203")}, MAC: gw},
			{Key: neigh.Key{Port: 0, Addr: ip("2001:2::203")}, MAC: gw},
		},
	}
}

// start starts a router and its server.
func start(t *testing.T, spec *control.Spec, change func(*lab)) *lab {
	t.Helper()
	l := &lab{T: t, path: filepath.Join(t.TempDir(), "nmfwd.sock")}
	region := memport.NewRegion("test", 4096, memport.Stride)
	for i, name := range []string{"A", "B"} {
		p, err := memport.New(region, memport.Config{Name: name, MTU: 9000, BufSize: 2048, RXSlots: 1024})
		if err != nil {
			t.Fatal(err)
		}
		l.ports[i] = p
	}
	ports := []*dataplane.Port{&l.ports[0].Port, &l.ports[1].Port}
	var err error
	if l.router, err = dataplane.NewForwarder(ports, 1, dataplane.Options{}); err != nil {
		t.Fatal(err)
	}
	if l.ctl, err = control.New(l.router, spec, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if l.server, err = Listen(l.path); err != nil {
		t.Fatal(err)
	}
	l.server.every = time.Hour
	l.source = Source{
		Snapshot: l.router.Snapshot, Ports: ports, Control: l.ctl,
		Counts:  func(s *control.Snapshot) { counts(l.ctl, s) },
		Devices: []Device{{Speed: 1000, Settings: func() (string, string) { return "ethtool --features A lro off", "ethtool --features A gro off" }}, {}},
		Status: func() Status {
			return Status{Version: "1.2.3", GoVersion: "go1", PID: 42, Config: "routes.conf", Started: time.Now(), Loaded: time.Unix(1e9, 0)}
		},
		Reload: func(context.Context) (string, error) { return "reloaded", nil },
		Code:   func(error) int { return 65 },
		Sync:   func(context.Context) error { return nil },
	}
	if change != nil {
		change(l)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { l.ctl.Run(ctx) })
	running.Go(func() {
		if err := l.server.Serve(ctx, l.source); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		l.router.Close()
		if _, err := os.Lstat(l.path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is left behind: %v", err)
		}
	})
	return l
}

// counts has the counters of control, but for what goes by time.
func counts(c *control.Control, s *control.Snapshot) {
	c.Snapshot(s)
	s.Neighbors = [2][neigh.NumStates]int{}
	s.Neighbors[0][neigh.Static], s.Neighbors[1][neigh.Static] = 1, 1
	a := &s.Ports[0]
	*a = control.PortSnapshot{Name: "A", Parked: 1, Unresolved: 2}
	a.Sent[0][icmp.TimeExceeded] = 3
	s.Ports[1] = control.PortSnapshot{Name: "B"}
}

// ask sends a request and returns the answer.
func (l *lab) ask(line string) (string, error) {
	l.Helper()
	r, err := ParseRequest(version + " " + line)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	err = Do(l.Context(), l.path, r, &b)
	return b.String(), err
}

// must is ask where no error may be.
func (l *lab) must(line string) string {
	l.Helper()
	out, err := l.ask(line)
	if err != nil {
		l.Fatalf("%s: %v", line, err)
	}
	return out
}

// udp is a packet of 198.18.10.1 for dst, to A.
func udp(dst string, ttl byte) []byte {
	return frame.UDP4(macA, gw, ip("198.18.10.1"), ip(dst), ttl, 60)
}

// pass has the router forward frames that come in by A.
func (l *lab) pass(frames ...[]byte) {
	for _, f := range frames {
		if !l.ports[0].Deliver(0, f) {
			l.Fatal("ring full")
		}
	}
	for l.router.Workers()[0].Step(0) > 0 {
		l.ports[0].Transmit(0)
		l.ports[1].Transmit(0)
	}
}

// TestGolden compares all answers with testdata/answers.txtar: the comment of a
// file is its request.
func TestGolden(t *testing.T) {
	l := start(t, labSpec(), func(l *lab) {
		l.pass(udp("198.19.10.1", 64), udp("198.19.10.2", 64), udp("192.0.2.1", 64), udp("224.0.0.5", 64))
		var s dataplane.Snapshot // without what control sends by itself
		l.router.Snapshot(&s)
		l.source.Snapshot = func(to *dataplane.Snapshot) { *to = s }
	})
	l.heard("198.18.0.77")
	const name = "testdata/answers.txtar"
	golden, err := txtar.ParseFile(name)
	if err != nil {
		t.Fatal(err)
	}
	// What changes from run to run.
	vary := regexp.MustCompile(`"(started|loaded)":"[^"]*"|"uptime_seconds":[0-9.e-]*|"age_seconds":[0-9.e-]*|since [-0-9:+ ]*, for \w+|loaded [-0-9:+ ]*|(?m:[0-9]+m?s$)|"fib_bytes":.*`)
	for i := range golden.Files {
		f := &golden.Files[i]
		out, err := l.ask(f.Name)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Fatal(err)
			}
			out += fmt.Sprintf("error %d: %s\n", e.Code, e.Text)
		}
		out = vary.ReplaceAllStringFunc(out, func(s string) string { return regexp.MustCompile(`[0-9].*`).ReplaceAllString(s, "X") })
		if *update {
			f.Data = []byte(out)
		} else if out != string(f.Data) {
			t.Errorf("%s: got\n%s\nwant\n%s", f.Name, out, f.Data)
		}
	}
	if *update {
		if err := os.WriteFile(name, txtar.Format(golden), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// heard has a station on A ask for the router, which so learns of it, and waits
// until there is a route to it.
func (l *lab) heard(addr string) {
	l.Helper()
	b := make([]byte, 60)
	arp.Request(b, wire.Broadcast, gw, ip(addr), ip("198.18.0.205"))
	before := l.ctl.Stats().Routes[0][fib.Neighbor]
	l.pass(b)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if l.ctl.Stats().Routes[0][fib.Neighbor] > before {
			return
		}
	}
	l.Fatal("control did not hear of a neighbor")
}

// TestGroup: of a route with several gateways it is told which are known, and by
// which of them packets leave.
func TestGroup(t *testing.T) {
	spec := labSpec()
	spec.Routes = append(spec.Routes, fib.Route{Prefix: prefix("203.0.114.0/24"), Origin: fib.Static, Kind: fib.Via, Hops: []fib.Hop{
		{Gateway: ip("198.18.0.203"), Port: 0}, {Gateway: ip("198.19.0.77"), Port: 1}, {Gateway: ip("198.19.0.203"), Port: 1},
	}})
	l := start(t, spec, nil)
	for _, tt := range []struct{ ask, want string }{
		{"routes 203.0.114.0/24", `PREFIX          ORIGIN  TYPE  USED  GATEWAY       PORT  NEIGHBOR    MTU
203.0.114.0/24  static  via   yes   198.18.0.203  A     static        -
203.0.114.0/24  static  via   yes   198.19.0.77   B     incomplete    -
203.0.114.0/24  static  via   yes   198.19.0.203  B     static        -
`},
		{"routes 203.0.114.0/24 --json", `{"prefix":"203.0.114.0/24","origin":"static","type":"via","used":true,"gateways":[` +
			`{"gateway":"198.18.0.203","port":"A","weight":1,"neighbor":"static","resolved":true},` +
			`{"gateway":"198.19.0.77","port":"B","weight":1,"neighbor":"incomplete","resolved":false},` +
			`{"gateway":"198.19.0.203","port":"B","weight":1,"neighbor":"static","resolved":true}]}` + "\n"},
		{"route 203.0.114.1", `203.0.114.1: flows share 2 paths
  50.4% forward by A to 198.18.0.203 at 00:1b:21:c4:95:7a mtu 1500
  49.6% forward by B to 198.19.0.203 at 00:1b:21:c4:95:7a mtu 9000
PREFIX          ORIGIN  TYPE  USED  GATEWAY       PORT  NEIGHBOR    MTU
203.0.114.0/24  static  via   yes   198.18.0.203  A     static        -
203.0.114.0/24  static  via   yes   198.19.0.77   B     incomplete    -
203.0.114.0/24  static  via   yes   198.19.0.203  B     static        -
0.0.0.0/0       static  via   yes   198.18.0.1    A     static        -
`},
	} {
		if got := l.must(tt.ask); got != tt.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.ask, got, tt.want)
		}
	}
}

// TestJSON: every line of every answer is an object, and text has one too.
func TestJSON(t *testing.T) {
	l := start(t, labSpec(), nil)
	for command, c := range commands {
		line := command + " --json"
		if c.must {
			line += " 198.19.0.1"
		}
		if command == "unused" {
			line += " --for=1s"
		}
		out := l.must(line)
		if out == "" && command != "drops" {
			t.Errorf("%s: no answer", line)
		}
		for _, s := range strings.Split(strings.TrimSuffix(out, "\n"), "\n") {
			var doc map[string]any
			if err := json.Unmarshal([]byte(s), &doc); out != "" && err != nil {
				t.Errorf("%s: %q: %v", line, s, err)
			}
		}
	}
}

// TestManyRoutes: a list of 100,000 routes is complete, in order, and
// control answers ARP while it is read.
func TestManyRoutes(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 10_000
	}
	spec := labSpec()
	for i := range n {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
		spec.Routes = append(spec.Routes, fib.Route{Prefix: p, Origin: fib.Static, Kind: fib.Via, Gateway: ip("198.19.0.203"), Port: 1})
	}
	l := start(t, spec, nil)
	listed := make(chan string)
	go func() {
		out, err := l.ask("routes 20.0.0.0/8 --longer")
		if err != nil {
			t.Error(err)
		}
		listed <- out
	}()
	l.heard("198.18.0.77")
	out := <-listed
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != n+1 {
		t.Fatalf("got %d lines, want %d", len(lines), n+1)
	}
	last := ip("0.0.0.0")
	for _, s := range lines[1:] {
		p, err := netip.ParsePrefix(strings.Fields(s)[0])
		if err != nil || p.Addr().Compare(last) <= 0 {
			t.Fatalf("line %q behind %v: %v", s, last, err)
		}
		last = p.Addr()
	}
	want := 0
	for _, family := range l.ctl.Stats().Routes {
		for _, n := range family {
			want += n
		}
	}
	if all := l.must("routes --json"); strings.Count(all, "\n") != want {
		t.Errorf("%d routes in all, want %d", strings.Count(all, "\n"), want)
	}
}

// TestSlowClient: a client that does not read holds neither control nor others,
// and is cut off.
func TestSlowClient(t *testing.T) {
	spec := labSpec()
	for i := range 20_000 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
		spec.Routes = append(spec.Routes, fib.Route{Prefix: p, Origin: fib.Static, Kind: fib.Blackhole})
	}
	l := start(t, spec, func(l *lab) { l.server.patience = 300 * time.Millisecond })
	c, err := net.Dial("unix", l.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, version+" routes\n"); err != nil {
		t.Fatal(err)
	}
	l.must("route 20.0.0.1")
	l.heard("198.18.0.77")
	// Once the server has given up nothing can be written, and what was sent until
	// then has no mark of an end.
	for end := time.Now().Add(time.Minute); err == nil; time.Sleep(10 * time.Millisecond) {
		if _, err = c.Write([]byte{0}); time.Now().After(end) {
			t.Fatal("the server goes on")
		}
	}
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	got, err := io.ReadAll(c)
	if err != nil && !isGone(err) {
		t.Errorf("the connection goes on: %v", err)
	}
	if bytes.HasSuffix(got, []byte("\n.\n")) {
		t.Error("the whole answer fitted the socket: nothing was tested")
	}
}

// TestManyClients: as many as may be are answered at once, one more is refused,
// and one that goes makes room.
func TestManyClients(t *testing.T) {
	l := start(t, labSpec(), nil)
	var held []net.Conn
	for range maxClients {
		c, err := net.Dial("unix", l.path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held = append(held, c)
	}
	var e *Error
	if _, err := l.ask("status"); !errors.As(err, &e) || e.Code != CodeUnavailable {
		t.Errorf("one too many: got %v", err)
	}
	held[0].Close()
	for end := time.Now().Add(10 * time.Second); ; {
		_, err := l.ask("status")
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("one has gone: %v", err)
		}
	}
	for _, c := range held {
		c.Close()
	}
	var all sync.WaitGroup
	for range 8 * maxClients {
		all.Go(func() {
			if _, err := l.ask("routes"); err != nil && !(errors.As(err, new(*Error)) && strings.Contains(err.Error(), "try again")) {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// A shortOf is a listener that has no descriptor at every other call.
type shortOf struct {
	net.Listener
	calls int
}

func (s *shortOf) Accept() (net.Conn, error) {
	if s.calls++; s.calls%2 == 1 {
		return nil, syscall.EMFILE
	}
	return s.Listener.Accept()
}

// TestAcceptErrors: a client that could not be accepted is at the next attempt.
func TestAcceptErrors(t *testing.T) {
	told := make(chan error, 1)
	l := start(t, labSpec(), func(l *lab) {
		l.server.listener = &shortOf{Listener: l.server.listener}
		l.source.Failed = func(err error) { told <- err }
	})
	for range 5 {
		l.must("status")
	}
	if err := <-told; !errors.Is(err, syscall.EMFILE) {
		t.Errorf("told %v", err)
	}
}

// TestReloadWithoutClient: clients that asked for a reload which takes for ever,
// and have gone, make room for others.
func TestReloadWithoutClient(t *testing.T) {
	l := start(t, labSpec(), func(l *lab) {
		l.source.Reload = func(ctx context.Context) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}
	})
	var held []net.Conn
	for range maxClients {
		c, err := net.Dial("unix", l.path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, version+" reload\n"); err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	if _, err := l.ask("status"); err == nil {
		t.Error("one too many was answered")
	}
	for _, c := range held {
		c.Close()
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		_, err := l.ask("status")
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("all have gone: %v", err)
		}
	}
}

// TestSocket: only its owner may use it; a dead one's is replaced, a live one's
// and a file are not.
func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if i, err := os.Lstat(path); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", i.Mode(), err)
	}
	if _, err := Listen(path); !errors.Is(err, ErrInUse) {
		t.Errorf("a live one: got %v, want %v", err, ErrInUse)
	}
	first.listener.Close() // as after a kill: the file stays
	second, err := Listen(path)
	if err != nil {
		t.Fatalf("a dead one: %v", err)
	}
	if err := first.Close(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the first one removed the second one's socket: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("closed: got %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file: got %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the file has gone: %v", err)
	}
}

// TestUnreachable: what a client says that finds nobody.
func TestUnreachable(t *testing.T) {
	dir := t.TempDir()
	dead, err := Listen(filepath.Join(dir, "dead"))
	if err != nil {
		t.Fatal(err)
	}
	dead.listener.Close()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	strange, err := net.Listen("unix", filepath.Join(dir, "strange"))
	if err != nil {
		t.Fatal(err)
	}
	defer strange.Close()
	go func() {
		for _, answer := range []string{"HTTP/1.1 400 Bad Request\r\n", "", strings.Repeat("x", 1<<17), "+99999999\n", "+5\nab", "-1 0\n"} {
			c, err := strange.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 100))
			io.WriteString(c, answer)
			c.Close()
		}
	}()
	for _, c := range []struct {
		name string
		code int
		says string
	}{
		{"none", CodeUnavailable, "no such socket"},
		{"dead", CodeUnavailable, "nobody answers"},
		{"file", CodeUnavailable, ""},
		{"strange", CodeProtocol, "no nmfwd"},
		{"strange", CodeUnavailable, "before the answer was complete"},
		{"strange", CodeProtocol, "no nmfwd"},
		{"strange", CodeProtocol, "no nmfwd"},
		{"strange", CodeUnavailable, "before the answer was complete"},
		{"strange", CodeProtocol, "no nmfwd"},
	} {
		var e *Error
		err := Do(t.Context(), filepath.Join(dir, c.name), &Request{Command: "status"}, io.Discard)
		if !errors.As(err, &e) || e.Code != c.code || !strings.Contains(e.Text, c.says) {
			t.Errorf("%s: got %v, want code %d and %q", c.name, err, c.code, c.says)
		}
	}
}

// TestReload passes on what a reload says, and errors of many lines.
func TestReload(t *testing.T) {
	bad := "routes.conf:1:1: one\nroutes.conf:2:1: two"
	var fail bool
	l := start(t, labSpec(), func(l *lab) {
		l.source.Reload = func(context.Context) (string, error) {
			if fail {
				return "", errors.New(bad)
			}
			return "reloaded routes.conf", nil
		}
	})
	if got := l.must("reload"); got != "reloaded routes.conf\n" {
		t.Errorf("got %q", got)
	}
	fail = true
	var e *Error
	if _, err := l.ask("reload"); !errors.As(err, &e) || e.Code != 65 || e.Text != bad {
		t.Errorf("got %v", err)
	}
}

// TestSync says nothing, or what went wrong.
func TestSync(t *testing.T) {
	var fail error
	l := start(t, labSpec(), func(l *lab) { l.source.Sync = func(context.Context) error { return fail } })
	if got := l.must("sync"); got != "" {
		t.Errorf("got %q", got)
	}
	fail = errors.New("routes: closed")
	var e *Error
	if _, err := l.ask("sync"); !errors.As(err, &e) || e.Code != CodeSystem || e.Text != "routes: closed" {
		t.Errorf("got %v", err)
	}
}

// TestRates: what moved in the last second, by port.
func TestRates(t *testing.T) {
	var r rates
	now := time.Unix(1, 0)
	s := dataplane.Snapshot{
		Ports:   []dataplane.PortSnapshot{{RX: make([]dataplane.RXSnapshot, 2), TX: make([]dataplane.TXSnapshot, 1)}},
		Workers: make([]dataplane.WorkerSnapshot, 1),
	}
	read := func(to *dataplane.Snapshot) {
		to.Ports = []dataplane.PortSnapshot{{RX: append([]dataplane.RXSnapshot(nil), s.Ports[0].RX...), TX: append([]dataplane.TXSnapshot(nil), s.Ports[0].TX...)}}
		to.Workers = append([]dataplane.WorkerSnapshot(nil), s.Workers...)
	}
	r.take(now, read)
	if rx, tx := r.port(0); rx != (rate{}) || tx != (rate{}) || r.busy(0) != 0 {
		t.Errorf("after one reading: %v %v", rx, tx)
	}
	s.Ports[0].RX[0].Packets, s.Ports[0].RX[1].Packets, s.Ports[0].RX[1].Bytes = 100, 200, 1000
	s.Ports[0].TX[0].Packets, s.Ports[0].TX[0].Bytes = 50, 500
	s.Workers[0].Busy, s.Workers[0].Idle = time.Second, 3*time.Second
	r.take(now.Add(2*time.Second), read)
	if rx, tx := r.port(0); rx != (rate{150, 4000}) || tx != (rate{25, 2000}) || r.busy(0) != 0.25 {
		t.Errorf("got %v, %v, busy %v", rx, tx, r.busy(0))
	}
	for _, c := range []struct {
		v    float64
		want string
	}{{0, "0"}, {999, "999"}, {999.7, "1.00k"}, {1488095, "1.49M"}, {14.88e6, "14.9M"}, {99.96e6, "100M"}, {999.4e6, "999M"}, {1e10, "10.00G"}, {2e12, "2000.00G"}} {
		if got := short(c.v); got != c.want {
			t.Errorf("%v: got %s, want %s", c.v, got, c.want)
		}
	}
}

// TestUnused: of a table with nested routes only those are listed whose packets
// did not come, host routes of neighbors aside.
func TestUnused(t *testing.T) {
	spec := labSpec()
	for _, p := range []string{"192.18.0.0/16", "198.19.10.0/24", "198.19.10.128/25", "2001:db8::/32"} {
		spec.Routes = append(spec.Routes, fib.Route{Prefix: prefix(p), Origin: fib.Static, Kind: fib.Blackhole})
	}
	l := start(t, spec, nil)
	answer := make(chan string, 1)
	go func() {
		out, err := l.ask("unused --json --for=2s")
		if err != nil {
			t.Error(err)
		}
		answer <- out
	}()
	// Packets come until the end, the first ones may be too early.
	var out string
	for out == "" {
		l.pass(udp("198.19.10.1", 64), udp("198.19.200.1", 64), udp("203.0.113.1", 64), udp("203.0.114.1", 64), udp("10.1.0.9", 64), udp("172.16.0.9", 1))
		select {
		case out = <-answer:
		case <-time.After(time.Millisecond):
		}
	}
	var got []string
	var end unusedDoc
	for _, s := range strings.Split(strings.TrimSpace(out), "\n") {
		var d struct {
			unusedDoc
			routeDoc
		}
		if err := json.Unmarshal([]byte(s), &d); err != nil {
			t.Fatal(err)
		}
		if d.Prefix.IsValid() {
			got = append(got, d.Prefix.String()+" "+d.Origin)
		}
		end = d.unusedDoc
	}
	want := "192.0.2.0/24 static, 192.18.0.0/16 static, 198.18.0.0/16 static, 198.19.10.128/25 static, 2001:2:0:8000::/49 static, 2001:db8::/32 static"
	if strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if end.Unused != 6 || end.Routes != 12 || end.Missed != 0 || end.Destinations < 6 {
		t.Errorf("got %+v", end)
	}
	if l.router.State().Watch != nil {
		t.Error("workers still tell destinations")
	}
}

// TestUnusedOnce: one watch at a time; one whose client has gone ends.
func TestUnusedOnce(t *testing.T) {
	l := start(t, labSpec(), nil)
	c, err := net.Dial("unix", l.path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, version+" unused --for=1h\n"); err != nil {
		t.Fatal(err)
	}
	part := make([]byte, 3)
	if _, err := io.ReadFull(c, part); err != nil || string(part) != "+0\n" {
		t.Fatalf("got %q, %v", part, err)
	}
	if _, err := l.ask("unused"); err == nil || !strings.Contains(err.Error(), "another one runs") {
		t.Errorf("got %v", err)
	}
	c.Close()
	for end := time.Now().Add(20 * time.Second); l.router.State().Watch != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the watch of a client that has gone goes on")
		}
	}
}

// TestHits compares the longest match of hits with a scan.
func TestHits(t *testing.T) {
	var h hits
	for _, p := range []string{"0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/16", "10.0.0.0/32", "10.0.1.0/24", "10.1.0.0/16", "10.255.255.255/32", "2001:db8::/32", "2001:db8::/64", "2001:db8:0:1::/64"} {
		h.add(prefix(p))
		h.add(prefix(p))
	}
	for _, a := range []string{"0.0.0.0", "9.9.9.9", "10.0.0.0", "10.0.0.1", "10.0.1.1", "10.0.2.1", "10.1.2.3", "10.2.0.0", "10.255.255.255", "11.0.0.0", "255.255.255.255", "::", "2001:db8::1", "2001:db8:0:1::1", "2001:db8:0:2::1", "2001:db9::"} {
		want := -1
		for i, p := range h.prefixes {
			if p.Contains(ip(a)) {
				want = i
			}
		}
		clear(h.hit)
		h.mark(ip(a))
		for i, hit := range h.hit {
			if hit != (i == want) {
				t.Errorf("%s: %v: hit %t", a, h.prefixes[i], hit)
			}
		}
	}
}

// TestSums: of three workers and two ports with counters that all
// differ, what show says is what the metrics sum up to.
func TestSums(t *testing.T) {
	n := uint64(1000)
	next := func() uint64 { n++; return n }
	var s dataplane.Snapshot
	for _, name := range []string{"A", "B"} {
		p := dataplane.PortSnapshot{Info: dataplane.Info{Name: name, RXRings: 2, TXRings: 3}, RX: make([]dataplane.RXSnapshot, 2), TX: make([]dataplane.TXSnapshot, 3)}
		for q := range p.RX {
			r := &p.RX[q]
			for _, c := range []*uint64{&r.Packets, &r.Bytes, &r.Forwarded4, &r.Forwarded6, &r.ToHost, &r.FromHost, &r.RingFull, &r.Limited4, &r.Limited6} {
				*c = next()
			}
			for k := range r.Punted {
				r.Punted[k] = next()
			}
			for k := range r.Dropped[1:] {
				r.Dropped[1+k] = next()
			}
		}
		for q := range p.TX {
			p.TX[q] = dataplane.TXSnapshot{Packets: next(), Bytes: next(), RingFull: next(), Copied: next()}
		}
		s.Ports = append(s.Ports, p)
	}
	for i := range 3 {
		w := dataplane.WorkerSnapshot{CPU: i, Busy: time.Duration(next()) * time.Second, Idle: time.Duration(next()) * time.Second, Handoff: next(), HandoffLost: next(), BatchSum: next()}
		for b := range w.Batch {
			w.Batch[b] = next()
		}
		s.Workers = append(s.Workers, w)
	}
	read := func(to *dataplane.Snapshot) { *to = s }
	l := start(t, labSpec(), func(l *lab) {
		l.source.Snapshot = read
		var fixed control.Snapshot
		l.source.Counts(&fixed)
		for i := range 2 {
			for f := range families {
				fixed.Ports[i].Sent[f][icmp.EchoReply] = next()
				fixed.Ports[i].Suppressed[f][icmp.Rate] = 7
			}
		}
		l.source.Counts = func(s *control.Snapshot) { *s = fixed }
	})
	reg := exposition(t, l.source)
	for i, line := range strings.Split(strings.TrimSpace(l.must("counters --json")), "\n") {
		var d countersDoc
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Fatal(err)
		}
		check := func(series string, got uint64, labels ...string) {
			t.Helper()
			labels = append(labels, fmt.Sprintf("device=%q", d.Port))
			if want := reg.sum(series, labels...); want == 0 || float64(got) != want {
				t.Errorf("port %s: %s %q: show says %d, metrics %v", d.Port, series, labels, got, want)
			}
		}
		if want := []string{"A", "B"}[i]; d.Port != want {
			t.Errorf("got port %s, want %s", d.Port, want)
		}
		check("nmfwd_receive_packets_total", d.ReceivePackets)
		check("nmfwd_receive_bytes_total", d.ReceiveBytes)
		check("nmfwd_transmit_packets_total", d.TransmitPackets)
		check("nmfwd_transmit_bytes_total", d.TransmitBytes)
		check("nmfwd_copied_packets_total", d.Copied)
		for _, m := range []struct {
			series, label string
			counts        map[string]uint64
			n             int
		}{
			{"nmfwd_forwarded_packets_total", "family", d.Forwarded, 2},
			{"nmfwd_host_packets_total", "direction", d.Host, 2},
			{"nmfwd_punted_packets_total", "kind", d.Punted, dataplane.NumKinds},
			{"nmfwd_dropped_packets_total", "reason", d.Dropped, dataplane.NumReasons - 1},
			{"nmfwd_ring_full_total", "direction", d.RingFull, 2},
			{"nmfwd_icmp_sent_total", `family="ipv6",type`, map[string]uint64{"echo_reply": d.ICMPSent["ipv6"]["echo_reply"]}, 1},
			{"nmfwd_icmp_suppressed_total", `family="ipv4",reason`, map[string]uint64{"rate": d.ICMPSuppressed["ipv4"]["rate"]}, 1},
		} {
			if len(m.counts) != m.n {
				t.Errorf("port %s: %d values of %s, want %d", d.Port, len(m.counts), m.series, m.n)
			}
			for k, n := range m.counts {
				check(m.series, n, strings.Split(fmt.Sprintf("%s=%q", m.label, k), ",")...)
			}
		}
	}
	for i, line := range strings.Split(strings.TrimSpace(l.must("workers --json")), "\n") {
		var d workerDoc
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Fatal(err)
		}
		w := fmt.Sprintf("worker=\"%d\"", i)
		for _, c := range []struct {
			series string
			got    float64
		}{
			{"nmfwd_worker_busy_seconds_total", d.BusySeconds}, {"nmfwd_worker_idle_seconds_total", d.IdleSeconds}, {"nmfwd_handoff_packets_total", float64(d.Handoff)},
			{"nmfwd_handoff_lost_packets_total", float64(d.HandoffLost)},
			{"nmfwd_worker_batch_packets_sum", float64(d.Packets)}, {"nmfwd_worker_batch_packets_count", float64(d.Bursts)},
		} {
			if want := reg.sum(c.series, w); want == 0 || c.got != want {
				t.Errorf("worker %d: %s: show says %v, metrics %v", i, c.series, c.got, want)
			}
		}
	}
}

// metricLines are the lines of an exposition.
type metricLines []string

// exposition reads what a scrape of the source gets.
func exposition(t *testing.T, s Source) metricLines {
	t.Helper()
	m, err := metrics.Listen("127.0.0.1:0", &metrics.Collector{Router: snapshotter(s.Snapshot), Control: s.Counts, Reloads: new(metrics.Reloads)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Serve(ctx, nil) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	r, err := http.Get("http://" + m.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n")
}

type snapshotter func(*dataplane.Snapshot)

// Snapshot is that of metrics.Router.
func (f snapshotter) Snapshot(s *dataplane.Snapshot) { f(s) }

// sum adds up the series of a name that have all labels.
func (m metricLines) sum(name string, labels ...string) (n float64) {
	for _, l := range m {
		rest, ok := strings.CutPrefix(l, name+"{")
		for _, x := range labels {
			ok = ok && strings.Contains(rest, x)
		}
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(l[strings.LastIndexByte(l, ' ')+1:], 64)
		if err != nil {
			return -1
		}
		n += v
	}
	return n
}

func TestParseRequest(t *testing.T) {
	for _, c := range []struct {
		name, line, want string // want is the request, or what the error says
	}{
		{"status", "nmfwd/1 status", "nmfwd/1 status"},
		{"blanks", "  nmfwd/1   routes  --json 10.0.0.0/8  ", "nmfwd/1 routes 10.0.0.0/8 --json"},
		{"all flags of one", "nmfwd/1 routes --longer ::/0 --json", "nmfwd/1 routes ::/0 --json --longer"},
		{"time", "nmfwd/1 unused --for=90s", "nmfwd/1 unused --for=1m30s"},
		{"empty", "", "speaks nmfwd/1"},
		{"another version", "nmfwd/2 status", "speaks nmfwd/1"},
		{"web", "GET / HTTP/1.1", "speaks nmfwd/1"},
		{"no command", "nmfwd/1", "no command"},
		{"unknown command", "nmfwd/1 reboot", `no command "reboot": there are counters, drops,`},
		{"unknown flag", "nmfwd/1 status --yaml", `no flag "--yaml"`},
		{"flag of another", "nmfwd/1 status --longer", "means nothing here"},
		{"flag with a value", "nmfwd/1 status --json=1", "no value"},
		{"a word too many", "nmfwd/1 ports a b", `"b" is one word too many`},
		{"a word where none is", "nmfwd/1 status a", "one word too many"},
		{"no word where one has to be", "nmfwd/1 route", "the address is missing"},
		{"no time", "nmfwd/1 unused --for=soon", "not a time"},
		{"a time twice", "nmfwd/1 unused --for=2s --for=3s", "not a time"},
		{"no time at all", "nmfwd/1 unused --for=0s", "from 1s to 24h"},
		{"too long a time", "nmfwd/1 unused --for=25h", "from 1s to 24h"},
		{"control characters", "nmfwd/1 ports \x1b[2J", "byte 0x1b"},
		{"not ASCII", "nmfwd/1 ports é", "byte 0xc3"},
		{"too long", "nmfwd/1 ports " + strings.Repeat("x", 1000), "longer than 512"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := ParseRequest(c.line)
			if err != nil {
				if !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %q", err, c.want)
				}
			} else if r.String() != c.want {
				t.Errorf("got %s, want %s", r, c.want)
			}
		})
	}
}

// TestGarbage sends what is no request: there is an answer, and an end.
func TestGarbage(t *testing.T) {
	l := start(t, labSpec(), nil)
	for _, s := range []string{"\n", "\x00\n", "GET / HTTP/1.0\r\n\r\n", strings.Repeat("x", 4*maxRequest), "nmfwd/1 routes 1/1\n", "nmfwd/1 reload\nnmfwd/1 reload\n"} {
		c, err := net.Dial("unix", l.path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, s); err != nil {
			t.Fatal(err)
		}
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		got, err := io.ReadAll(c)
		if err != nil && !isGone(err) {
			t.Errorf("%.20q: %v", s, err)
		}
		if !bytes.HasPrefix(got, []byte("-")) && !bytes.HasSuffix(got, []byte(".\n")) {
			t.Errorf("%.20q: got %q", s, got)
		}
		c.Close()
	}
}

// FuzzParseRequest: what is accepted is written and read alike.
func FuzzParseRequest(f *testing.F) {
	for _, s := range []string{"nmfwd/1 status", "nmfwd/1 routes 10.0.0.0/8 --longer --json", "nmfwd/1 unused --for=10s", "nmfwd/1 ports netmap:igb1", "nmfwd/2", "\x00", "nmfwd/1 drops --all -"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		r, err := ParseRequest(line)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Code < 64 || e.Text == "" {
				t.Errorf("error %v", err)
			}
			return
		}
		again, err := ParseRequest(r.String())
		if err != nil || *again != *r {
			t.Errorf("%q: %q: %v", line, r, err)
		}
		if c := commands[r.Command]; c.arg != "port" && r.Arg != "" {
			r.prefix()
			r.addr()
		}
	})
}
