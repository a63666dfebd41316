package control

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"nmfwd/dataplane"
	"nmfwd/fib"
	"nmfwd/neigh"
)

// A kernel has the routes of a system that is made up.
type kernel struct {
	routes map[netip.Prefix]fib.Route
	feeds  []*kernelFeed
}

type kernelFeed struct {
	*kernel
	ready chan struct{}
	news  []netip.Prefix
}

func (k *kernel) source() (RouteFeed, []fib.Route) {
	f := &kernelFeed{kernel: k, ready: make(chan struct{}, 1)}
	k.feeds = append(k.feeds, f)
	var rs []fib.Route
	for _, r := range k.routes {
		rs = append(rs, r)
	}
	return f, rs
}

func (f *kernelFeed) Ready() <-chan struct{} { return f.ready }

func (f *kernelFeed) Take(n int, do func(fib.Route, bool)) {
	n = min(n, len(f.news))
	for _, p := range f.news[:n] {
		r, ok := f.routes[p]
		if !ok {
			r = fib.Route{Prefix: p, Origin: fib.Kernel}
		}
		do(r, !ok)
	}
	if f.news = f.news[n:]; len(f.news) > 0 {
		f.wake()
	}
}

func (f *kernelFeed) wake() {
	select {
	case f.ready <- struct{}{}:
	default:
	}
}

func (f *kernelFeed) Close() {
	f.feeds = slices.DeleteFunc(f.feeds, func(g *kernelFeed) bool { return g == f })
}

// set makes a route the one to its prefix; one of kind NoRoute is none.
func (k *kernel) set(rs ...fib.Route) {
	for _, r := range rs {
		r.Origin = fib.Kernel
		if k.routes[r.Prefix] = r; r.Kind == fib.NoRoute {
			delete(k.routes, r.Prefix)
		}
		for _, f := range k.feeds {
			f.news = append(f.news, r.Prefix)
			f.wake()
		}
	}
}

func kernelVia(prefix, gw string, port uint16) fib.Route {
	return fib.Route{Prefix: netip.MustParsePrefix(prefix), Kind: fib.Via, Gateway: netip.MustParseAddr(gw), Port: port}
}

// newKernelRig has the lab, whose system has routes.
func newKernelRig(t *testing.T, rs ...fib.Route) (*rig, *kernel) {
	k := &kernel{routes: map[netip.Prefix]fib.Route{}}
	k.set(rs...)
	return newRig(t, func(s *Spec) { s.Kernel = k.source }), k
}

// follows tests what packets to dst do.
func (r *rig) follows(what, dst, want string) {
	r.Helper()
	r.Step(r.at)
	r.at += commitEvery
	r.Step(r.at)
	a := r.router.State().FIB.Lookup(netip.MustParseAddr(dst))
	got := a.Action.String()
	if n := a.NeighborAddr(); n.IsValid() {
		got += fmt.Sprintf(" %v port %d", n, a.Port)
	}
	if got != want {
		r.Errorf("%s: packets to %s: got %s, want %s", what, dst, got, want)
	}
}

// TestRouteTypes: the types of the system's routes by which packets are discarded
// tell senders what the system itself would, those of both families.
func TestRouteTypes(t *testing.T) {
	s := icmpSpec()
	k := &kernel{routes: map[netip.Prefix]fib.Route{}}
	for p, kind := range map[string]fib.Kind{
		"100.64.0.0/10": fib.Via, "100.65.0.0/16": fib.Unreachable, "100.66.0.0/16": fib.Reject, "100.67.0.0/16": fib.Throw, "100.68.0.0/16": fib.Blackhole,
		"2001:db8:1::/48": fib.Unreachable, "2001:db8:2::/48": fib.Reject, "2001:db8:3::/48": fib.Throw, "2001:db8:4::/48": fib.Blackhole,
	} {
		r := fib.Route{Prefix: netip.MustParsePrefix(p), Kind: kind}
		if kind == fib.Via {
			r.Gateway, r.Port = netip.MustParseAddr("198.19.0.203"), 1
		}
		k.set(r)
	}
	s.Kernel = k.source
	type told [2]byte // type and code
	silent := told{0, 255}
	for _, c := range []struct {
		packet []byte
		want   told
		reason dataplane.Reason // where nothing is told
	}{
		{udp4("100.65.0.1", 64, 8), told{3, 1}, 0},
		{udp4("100.66.0.1", 64, 8), told{3, 13}, 0},
		{udp4("100.67.0.1", 64, 8), told{3, 0}, 0},
		{udp4("100.68.0.1", 64, 8), silent, dataplane.DropBlackhole},
		{packet6("2001:2:0:1::1", "2001:db8:1::1", 17, 64, nil), told{1, 0}, 0},
		{packet6("2001:2:0:1::1", "2001:db8:2::1", 17, 64, nil), told{1, 1}, 0},
		{packet6("2001:2:0:1::1", "2001:db8:3::1", 17, 64, nil), told{1, 0}, 0},
		{packet6("2001:2:0:1::1", "2001:db8:4::1", 17, 64, nil), silent, dataplane.DropBlackhole},
	} {
		ctl, ports := lab(t, s)
		got := silent
		switch frames := pass(ctl, ports[0], framed(c.packet)); {
		case len(frames) > 1:
			t.Errorf("to %v: %d frames", destination(c.packet), len(frames))
		case len(frames) == 1 && c.packet[0]>>4 == 4:
			got = told(frames[0][14+20:])
		case len(frames) == 1:
			got = told(frames[0][14+40:])
		}
		if got != c.want {
			t.Errorf("to %v: told %v, want %v", destination(c.packet), got, c.want)
		}
		var n dataplane.Snapshot
		ctl.router.Snapshot(&n)
		if q := n.Ports[0].RX[0]; c.want == silent && q.Dropped[c.reason] != 1 || c.want != silent && q.Punted[dataplane.PuntUnreachable] != 1 {
			t.Errorf("to %v: counted %+v", destination(c.packet), q)
		}
	}
}

// TestKernelRoutes: routes of the system come, change and go.
func TestKernelRoutes(t *testing.T) {
	r, k := newKernelRig(t, kernelVia("203.0.113.0/24", "198.18.0.203", 0), kernelVia("2001:db8::/32", "2001:2::203", 0))
	r.follows("start", "203.0.113.1", "forward 198.18.0.203 port 0")
	r.follows("start", "2001:db8::1", "forward 2001:2::203 port 0")
	r.follows("start", "8.8.8.8", "no route")
	k.set(kernelVia("0.0.0.0/0", "198.18.0.203", 0))
	r.follows("added", "8.8.8.8", "forward 198.18.0.203 port 0")
	k.set(fib.Route{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Kind: fib.Blackhole})
	r.follows("replaced", "203.0.113.1", "blackhole")
	k.set(fib.Route{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Kind: fib.Host})
	r.follows("replaced", "203.0.113.1", "host")
	k.set(fib.Route{Prefix: netip.MustParsePrefix("203.0.113.0/24")}, fib.Route{Prefix: netip.MustParsePrefix("10.0.0.0/8")})
	r.follows("removed", "203.0.113.1", "forward 198.18.0.203 port 0")
	k.set(kernelVia("198.19.0.0/24", "198.18.0.203", 0))
	r.follows("connected", "198.19.0.7", "glean")
	if n := r.Stats().Routes[0][fib.Kernel]; n != 2 {
		t.Errorf("%d IPv4 routes of the system are counted, want 2", n)
	}
}

// TestKernelGateway: a gateway of the system's routes is asked for before a packet
// needs it, and kept.
func TestKernelGateway(t *testing.T) {
	r, k := newKernelRig(t, kernelVia("203.0.113.0/24", "198.19.0.77", 1))
	asked := func(gw string) (n int) {
		r.router.Workers()[0].Step(int64(r.at))
		r.sent[1] = append(r.sent[1], r.ports[1].Transmit(0)...)
		for _, s := range r.took(1) {
			if strings.HasPrefix(s, "who has "+gw+" ") {
				n++
			}
		}
		return n
	}
	r.follows("start", "203.0.113.1", "resolve 198.19.0.77 port 1")
	if asked("198.19.0.77") == 0 {
		t.Error("the gateway of the start was not asked for")
	}
	k.set(fib.Route{Prefix: netip.MustParsePrefix("203.0.114.0/24"), Kind: fib.Via, Hops: []fib.Hop{
		{Gateway: netip.MustParseAddr("198.19.0.78"), Port: 1}, {Gateway: netip.MustParseAddr("198.19.0.77"), Port: 1}}})
	r.Step(r.at)
	if asked("198.19.0.78") == 0 {
		t.Error("one of several new gateways was not asked for")
	}
	want := func(what string, n77, n78 int) {
		t.Helper()
		r.Step(r.at)
		n := func(a string) int { return r.used[neigh.Key{Port: 1, Addr: netip.MustParseAddr(a)}] }
		if n("198.19.0.77") != n77 || n("198.19.0.78") != n78 {
			t.Errorf("%s: got %v, want %d and %d routes", what, r.used, n77, n78)
		}
	}
	want("two routes", 2, 1)
	k.set(kernelVia("203.0.114.0/24", "198.19.0.78", 1))
	want("one gateway less", 1, 1)
	k.set(fib.Route{Prefix: netip.MustParsePrefix("203.0.113.0/24")}, fib.Route{Prefix: netip.MustParsePrefix("203.0.114.0/24")})
	want("no routes", 0, 0)
}

// TestStaticBeforeKernel: routes of the file come before the system's, which are
// there again when a reload takes these away.
func TestStaticBeforeKernel(t *testing.T) {
	r, k := newKernelRig(t, kernelVia("203.0.113.0/24", "198.18.0.203", 0))
	reload := func(change func(*Spec)) {
		t.Helper()
		s := labSpec()
		s.Kernel = k.source
		change(s)
		done := make(chan error, 1)
		go func() { done <- r.Reload(context.Background(), s) }()
		for {
			select {
			case err := <-done:
				if err != nil {
					t.Fatal(err)
				}
				return
			default:
				r.Step(r.at)
			}
		}
	}
	static := kernelVia("203.0.113.0/24", "198.19.0.203", 1)
	static.Origin = fib.Static
	reload(func(s *Spec) { s.Routes = append(s.Routes, static) })
	r.follows("static", "203.0.113.1", "forward 198.19.0.203 port 1")
	k.set(fib.Route{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Kind: fib.Blackhole})
	r.follows("static, system's changed", "203.0.113.1", "forward 198.19.0.203 port 1")
	reload(func(*Spec) {})
	r.follows("static no more", "203.0.113.1", "blackhole")
	k.set(kernelVia("203.0.113.0/24", "198.18.0.203", 0))
	r.follows("changed after a reload", "203.0.113.1", "forward 198.18.0.203 port 0")
	if len(k.feeds) != 1 {
		t.Errorf("%d feeds are open after reloads, want 1", len(k.feeds))
	}
	s := labSpec()
	s.Kernel, s.Routes[0].Port = k.source, 9
	if err := r.Reload(context.Background(), s); err == nil || len(k.feeds) != 1 {
		t.Errorf("a reload that cannot be: error %v, %d feeds", err, len(k.feeds))
	}
}

// TestManyKernelRoutes: control takes many changes some at a time.
func TestManyKernelRoutes(t *testing.T) {
	r, k := newKernelRig(t)
	for i := range 3 * routesAtOnce {
		k.set(kernelVia(fmt.Sprintf("10.%d.%d.0/24", i/256, i%256), "198.18.0.203", 0))
	}
	r.followRoutes()
	if n := r.rib.Len(4, fib.Kernel); n != routesAtOnce {
		t.Errorf("%d routes were taken at once, want %d", n, routesAtOnce)
	}
	r.follows("all", "10.2.255.1", "forward 198.18.0.203 port 0")
}

// TestKernelRouteRefused: what cannot be is said once, and leaves nothing behind.
func TestKernelRouteRefused(t *testing.T) {
	var log strings.Builder
	r, k := newKernelRig(t, kernelVia("203.0.113.0/24", "198.18.0.203", 0))
	r.log = slog.New(slog.NewTextHandler(&log, nil))
	for range 2 {
		k.set(kernelVia("203.0.113.0/24", "198.18.0.203", 77))
		r.follows("refused", "203.0.113.1", "no route")
	}
	if n := strings.Count(log.String(), "no port 77"); n != 1 || len(r.used) != 0 {
		t.Errorf("logged %d times, want once: %s; gateways %v", n, log.String(), r.used)
	}
	k.set(kernelVia("203.0.113.0/24", "198.18.0.203", 0))
	r.follows("right again", "203.0.113.1", "forward 198.18.0.203 port 0")
}

// TestSync: when Sync returns, all that a feed had to tell is in use, more of it
// than is taken at once.
func TestSync(t *testing.T) {
	r, k := newKernelRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Control.Run(ctx) }()
	defer func() { cancel(); <-done }()
	for range 5 {
		if err := r.query(ctx, func() {
			for i := range 3 * routesAtOnce {
				p := netip.PrefixFrom(netip.AddrFrom4([4]byte{20, 0, byte(i >> 8), byte(i)}), 32)
				k.set(fib.Route{Prefix: p, Kind: fib.Blackhole})
			}
		}); err != nil {
			t.Fatal(err)
		}
		if err := r.Sync(ctx); err != nil {
			t.Fatal(err)
		}
		a := netip.AddrFrom4([4]byte{20, 0, 2, 255})
		if got := r.router.State().FIB.Lookup(a).Action; got != fib.Blackhole {
			t.Fatalf("packets to %v: %v, want blackhole", a, got)
		}
		if err := r.query(ctx, func() {
			for p := range k.routes {
				k.set(fib.Route{Prefix: p})
			}
		}); err != nil {
			t.Fatal(err)
		}
		if err := r.Sync(ctx); err != nil {
			t.Fatal(err)
		}
		if got := r.router.State().FIB.Lookup(a).Action; got != fib.NoRoute {
			t.Fatalf("packets to %v: %v, want no route", a, got)
		}
	}
}
