//go:build integration && linux

package kernel

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"nmfwd/test/lab/apu2"
	"nmfwd/test/netns"
)

// kernelConfig is the lab's configuration without routes: the kernel has them.
func kernelConfig(t *testing.T) string {
	var b strings.Builder
	for line := range strings.Lines(labConfig(t)) {
		if !strings.HasPrefix(line, "route ") {
			b.WriteString(line)
		}
	}
	return b.String() + "option routes kernel\n"
}

// TestKernelRoutes: the router's kernel has the routes, and what is changed there
// is followed while traffic runs that loses nothing. Beside the lab there are
//
//	router                        management
//	mgmt 10.9.0.205     ----      mgmt0 10.9.0.203
//	lo   10.255.0.1
//
// and 203.0.113.1 on the receiver. What is for mgmt and lo is the kernel's.
func TestKernelRoutes(t *testing.T) {
	l := newLab(t, 2, 2)
	management := netns.ForTest(t, "management")
	err := netns.Join(
		netns.Port{NS: l.Router, Name: "mgmt", Addrs: []netip.Prefix{netip.MustParsePrefix("10.9.0.205/24")}},
		netns.Port{NS: management, Name: "mgmt0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.9.0.203/24")}})
	if err != nil {
		t.Fatal(err)
	}
	ip := func(n *netns.Namespace, line string) {
		t.Helper()
		if _, err := n.Output(t.Context(), "ip", strings.Fields(line)...); err != nil {
			t.Fatal(err)
		}
	}
	ip(management, "route add default via 10.9.0.205")
	ip(l.Router, "addr add 10.255.0.1/32 dev lo")
	ip(l.Receiver, "addr add 203.0.113.1/32 dev lo")
	ip(l.Generator, "route add default via 198.18.0.205")
	if err := l.KernelRouter(); err != nil {
		t.Fatal(err)
	}
	b := startBed(t, l, kernelConfig(t))
	b.withoutLoss(4, 10_000, both, func(f *flows) { followRoutes(b, f) }, "no_route", "blackhole", "reject", "no_neighbor")
	b.stop()
}

func followRoutes(b *bed, f *flows) {
	t, l := b.T, b.Lab
	ip := func(n *netns.Namespace, line string) {
		t.Helper()
		if _, err := n.Output(t.Context(), "ip", strings.Fields(line)...); err != nil {
			t.Fatal(err)
		}
	}
	f.more(1000)
	reached := func(what, dst string, want bool) {
		t.Helper()
		eventually(t, func() error {
			err := pingOnce(l.Generator, netip.MustParseAddr(dst), time.Second)
			if want == (err == nil) {
				return nil
			}
			return fmt.Errorf("%s: ping to %s: got error %v, want one %t", what, dst, err, !want)
		})
	}
	reached("not a port's network", "10.9.0.203", true)
	reached("the loopback interface", "10.255.0.1", true)
	reached("no route", "203.0.113.1", false)
	for _, s := range []struct {
		do   string
		want bool
	}{
		{"route add 203.0.113.0/24 via 198.19.0.203", true},
		{"route replace blackhole 203.0.113.0/24", false},
		{"route replace 203.0.113.0/24 nexthop via 198.19.0.203 nexthop via 198.19.0.203 dev igb2 weight 3", true},
		{"route replace unreachable 203.0.113.0/24", false},
		{"route replace 203.0.113.1/32 via 198.19.0.203", true},
		{"route del 203.0.113.1/32", false},
		{"route replace 203.0.113.0/24 via 10.9.0.203", false},
		{"route replace 203.0.113.0/24 via 198.19.0.203", true},
	} {
		ip(l.Router, s.do)
		reached(s.do, "203.0.113.1", s.want)
	}
	const routes = 50_000
	kernelRoutes := func() float64 { return b.scrape().Sum("nmfwd_routes", `origin="kernel"`, `family="ipv4"`) }
	before := kernelRoutes()
	for _, verb := range []string{"add", "del"} {
		batch := filepath.Join(t.TempDir(), "batch")
		var lines strings.Builder
		for i := range routes {
			fmt.Fprintf(&lines, "route %s 20.%d.%d.0/24 via 198.19.0.203\n", verb, i>>8, i&255)
		}
		if err := os.WriteFile(batch, []byte(lines.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		ip(l.Router, "-batch "+batch)
		want := before
		if verb == "add" {
			want += routes
		}
		eventually(t, func() error {
			if got := kernelRoutes(); got != want {
				return fmt.Errorf("%s: %.0f routes, want %.0f", verb, got, want)
			}
			return nil
		})
		f.more(1000)
		if verb == "add" {
			b.reload(1) // keeps them
			if got := kernelRoutes(); got != want {
				t.Errorf("after a reload: %.0f routes, want %.0f", got, want)
			}
		}
	}
	f.more(1000)
	ip(l.Router, "route del 203.0.113.0/24")
}

// TestKernelRouteFollowsLink: a route whose port lost its link gives way to one
// with a greater metric, and is back with it.
func TestKernelRouteFollowsLink(t *testing.T) {
	l := newLab(t, 2, 2)
	if err := l.KernelRouter(); err != nil {
		t.Fatal(err)
	}
	ip := func(n *netns.Namespace, line string) {
		t.Helper()
		if _, err := n.Output(t.Context(), "ip", strings.Fields(line)...); err != nil {
			t.Fatal(err)
		}
	}
	ip(l.Generator, "addr add 203.0.113.1/32 dev lo")
	ip(l.Receiver, "addr add 203.0.113.2/32 dev lo")
	ip(l.Router, "route add 203.0.113.0/24 via 198.19.0.203 metric 10")
	ip(l.Router, "route add 203.0.113.0/24 via 198.18.0.203 metric 20")
	ip(l.Generator, "route add 203.0.113.2/32 via 198.18.0.205")
	b := startBed(t, l, kernelConfig(t))
	by := func(port string) {
		t.Helper()
		sent := func() float64 { return b.scrape().Sum("nmfwd_transmit_packets_total", `device="`+port+`"`) }
		eventually(t, func() error {
			before := sent()
			_ = pingOnce(l.Generator, netip.MustParseAddr("203.0.113.2"), time.Second) // answered by one of the ways only
			if sent() == before {
				return fmt.Errorf("nothing was sent by %s", port)
			}
			return nil
		})
	}
	by(apu2.IGB2)
	if err := l.Receiver.Down(apu2.Rcv0); err != nil {
		t.Fatal(err)
	}
	by(apu2.IGB1)
	if err := l.Receiver.Up(apu2.Rcv0); err != nil {
		t.Fatal(err)
	}
	by(apu2.IGB2)
	b.stop()
}
