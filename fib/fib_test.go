package fib

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"nmfwd/bench/routes"
	"nmfwd/test/race"
)

// scaled returns how much a test does: less under the race detector, which
// makes the walks over whole tables slow.
func scaled(n, underRace int) int {
	if race.Enabled {
		return underRace
	}
	return n
}

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func ip(s string) netip.Addr    { return netip.MustParseAddr(s) }

func static(p, gw string, port uint16) Route {
	return Route{Prefix: pfx(p), Origin: Static, Kind: Via, Gateway: ip(gw), Port: port}
}

func permutations[T any](s []T, f func([]T)) {
	var rec func(n int)
	rec = func(n int) {
		if n == len(s) {
			f(s)
			return
		}
		for i := n; i < len(s); i++ {
			s[n], s[i] = s[i], s[n]
			rec(n + 1)
			s[n], s[i] = s[i], s[n]
		}
	}
	rec(0)
}

func wantLookup(t *testing.T, f *FIB, dst, want string) {
	t.Helper()
	if got := f.Lookup(ip(dst)).String(); got != want {
		t.Errorf("lookup of %s: got %q, want %q", dst, got, want)
	}
}

// The longest prefix wins whatever the order (openwrt 25129, vpp 2911).
func TestOrder(t *testing.T) {
	for _, rts := range [][]Route{
		{static("0.0.0.0/0", "192.0.2.1", 0), static("10.0.0.0/8", "192.0.2.8", 0), static("10.40.0.0/16", "192.0.2.16", 0),
			static("10.40.2.0/24", "192.0.2.24", 0), static("10.40.2.7/32", "192.0.2.32", 0)},
		{static("::/0", "2001:db8::1", 0), static("2001:db8:4000::/36", "2001:db8::36", 0), static("2001:db8:4000::/48", "2001:db8::48", 0),
			static("2001:db8:4000:1::/64", "2001:db8::64", 0), static("2001:db8:4000:1::7/128", "2001:db8::128", 0)},
	} {
		first := ""
		count := 0
		permutations(rts, func(p []Route) {
			if count++; count%scaled(1, 20) != 0 {
				return
			}
			r := New(testPorts)
			for i, rt := range p {
				must(t, r.Add(rt))
				if i%2 == 0 {
					r.Reclaim(r.Commit().Gen)
				}
			}
			f := r.Commit()
			d := dump(t, f)
			if first == "" {
				first = d
			}
			if d != first {
				t.Fatalf("order %v gives\n%s, another\n%s", p, d, first)
			}
			if p[0].Prefix.Addr().Is4() {
				wantLookup(t, f, "10.40.2.7", "resolve port 0 mtu 1500 neighbor 192.0.2.32")
				wantLookup(t, f, "10.40.2.6", "resolve port 0 mtu 1500 neighbor 192.0.2.24")
				wantLookup(t, f, "10.40.3.0", "resolve port 0 mtu 1500 neighbor 192.0.2.16")
				wantLookup(t, f, "10.39.255.255", "resolve port 0 mtu 1500 neighbor 192.0.2.8")
				wantLookup(t, f, "9.255.255.255", "resolve port 0 mtu 1500 neighbor 192.0.2.1")
				wantLookup(t, f, "2001:db8::", "no route")
			} else {
				wantLookup(t, f, "2001:db8:4000:1::7", "resolve port 0 mtu 1500 neighbor 2001:db8::128")
				wantLookup(t, f, "2001:db8:4000:1::8", "resolve port 0 mtu 1500 neighbor 2001:db8::64")
				wantLookup(t, f, "2001:db8:4000:2::7", "resolve port 0 mtu 1500 neighbor 2001:db8::48")
				wantLookup(t, f, "2001:db8:4fff::", "resolve port 0 mtu 1500 neighbor 2001:db8::36")
				wantLookup(t, f, "2001:db8::", "resolve port 0 mtu 1500 neighbor 2001:db8::1")
				wantLookup(t, f, "10.40.2.7", "no route")
			}
		})
	}
}

// Every length masks right (openwrt 13977), alone in the table and within the
// next shorter one, and leaves nothing behind when removed.
func TestLengths(t *testing.T) {
	for _, base := range []string{"172.21.171.85", "2001:db8:5555:aaaa:5555:aaaa:5555:aaaa"} {
		a := ip(base)
		nested := New(testPorts)
		o := newOracle()
		empty := dump(t, nested.Commit())
		for n := 0; n <= a.BitLen(); n += scaled(1, 16) {
			rt := Route{Prefix: netip.PrefixFrom(a, n).Masked(), Origin: Static, Kind: OnLink, Port: uint16(n % 3)}
			r := New(testPorts)
			alone := newOracle()
			must(t, r.Add(rt))
			alone.add(rt)
			must(t, nested.Add(rt))
			o.add(rt)
			f, g := r.Commit(), nested.Commit()
			nested.Reclaim(g.Gen)
			for _, p := range probes(rt.Prefix) {
				compare(t, r, f, alone, p)
				compare(t, nested, g, o, p)
			}
			must(t, r.Remove(rt))
			if got := dump(t, r.Commit()); got != empty {
				t.Fatalf("%v leaves behind\n%s", rt, got)
			}
		}
		consistent(t, nested, nested.Commit())
	}
}

// The lab of the APU2, its ports, routes and neighbors in any order (grout 89).
func TestLab(t *testing.T) {
	var steps []func(*RIB) error
	add := func(rts ...Route) {
		for _, rt := range rts {
			steps = append(steps, func(r *RIB) error { return r.Add(rt) })
		}
	}
	neighbor := func(port uint16, a string, mac byte) {
		steps = append(steps, func(r *RIB) error {
			return r.SetNeighbor(port, ip(a), [6]byte{0x00, 0x1b, 0x21, 0xc4, 0x95, mac})
		})
	}
	add(ConnectedRoutes(0, pfx("198.18.0.205/24"))...)
	add(ConnectedRoutes(0, pfx("2001:2::205/64"))...)
	add(ConnectedRoutes(1, pfx("198.19.0.205/24"))...)
	add(ConnectedRoutes(1, pfx("2001:2:0:8000::205/64"))...)
	add(static("198.18.0.0/16", "198.18.0.203", 0), static("2001:2::/49", "2001:2::203", 0))
	add(static("198.19.0.0/16", "198.19.0.203", 1), static("2001:2:0:8000::/49", "2001:2:0:8000::203", 1))
	neighbor(0, "198.18.0.203", 0x7a)
	neighbor(0, "2001:2::203", 0x7a)
	neighbor(1, "198.19.0.203", 0x7b)
	neighbor(1, "2001:2:0:8000::203", 0x7b)

	rnd := rand.New(rand.NewPCG(1, 1))
	first := ""
	for range scaled(50, 5) {
		rnd.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
		r := New(testPorts)
		for _, s := range steps {
			must(t, s(r))
			if rnd.IntN(4) == 0 {
				r.Reclaim(r.Commit().Gen)
			}
		}
		f := r.Commit()
		d := dump(t, f)
		if first == "" {
			first = d
			to := "forward port 1 mtu 1500 neighbor %s head 001b21c4957b000db941ca3e%s"
			wantLookup(t, f, "198.19.10.1", fmt.Sprintf(to, "198.19.0.203", "0800"))
			wantLookup(t, f, "198.19.0.203", fmt.Sprintf(to, "198.19.0.203", "0800"))
			wantLookup(t, f, "2001:2:0:8001::1", fmt.Sprintf(to, "2001:2:0:8000::203", "86dd"))
			wantLookup(t, f, "2001:2:0:8000::203", fmt.Sprintf(to, "2001:2:0:8000::203", "86dd"))
			wantLookup(t, f, "198.19.0.204", "glean port 1 mtu 1500")
			wantLookup(t, f, "2001:2:0:8000::204", "glean port 1 mtu 1500")
			wantLookup(t, f, "198.19.0.205", "local port 1")
			wantLookup(t, f, "2001:2:0:8000::205", "local port 1")
			wantLookup(t, f, "2001:2:0:8000::", "local port 1")
			wantLookup(t, f, "198.19.0.255", "broadcast port 1")
			wantLookup(t, f, "198.19.0.0", "broadcast port 1")
			wantLookup(t, f, "198.20.0.1", "no route")
			wantLookup(t, f, "2001:2:1::", "no route")
		}
		if d != first {
			t.Fatalf("order of configuration shows:\n%s\nand\n%s", d, first)
		}
	}
}

func TestConnectedRoutes(t *testing.T) {
	for _, c := range []struct{ addr, want string }{
		{"198.18.0.205/24", "198.18.0.205/32 local, 198.18.0.0/24 glean, 198.18.0.0/32 broadcast, 198.18.0.255/32 broadcast"},
		{"192.0.2.1/30", "192.0.2.1/32 local, 192.0.2.0/30 glean, 192.0.2.0/32 broadcast, 192.0.2.3/32 broadcast"},
		{"192.0.2.1/31", "192.0.2.1/32 local, 192.0.2.0/31 glean"},
		{"192.0.2.1/32", "192.0.2.1/32 local"},
		{"2001:db8::205/64", "2001:db8::205/128 local, 2001:db8::/64 glean, 2001:db8::/128 local"},
		{"2001:db8::/64", "2001:db8::/128 local, 2001:db8::/64 glean"},
		{"2001:db8::1/127", "2001:db8::1/128 local, 2001:db8::/127 glean"},
		{"2001:db8::1/128", "2001:db8::1/128 local"},
	} {
		var got []string
		r := New(testPorts)
		for _, rt := range ConnectedRoutes(2, pfx(c.addr)) {
			got = append(got, fmt.Sprint(rt.Prefix, " ", rt.Kind))
			if rt.Port != 2 || rt.Origin != Connected {
				t.Errorf("%s: %v", c.addr, rt)
			}
			must(t, r.Add(rt))
		}
		if got := strings.Join(got, ", "); got != c.want {
			t.Errorf("%s: got %s, want %s", c.addr, got, c.want)
		}
	}
}

// A port that goes down and up a hundred times leaves the same tables (frr
// 2265), and no memory behind.
func TestFlap(t *testing.T) {
	r := New(testPorts)
	rts := append(ConnectedRoutes(0, pfx("198.18.0.205/24")), ConnectedRoutes(0, pfx("2001:2::205/64"))...)
	rts = append(rts, static("0.0.0.0/0", "198.18.0.203", 0), static("203.0.113.0/25", "198.18.0.203", 0),
		static("::/0", "2001:2::203", 0), static("2001:db8::/65", "2001:2::203", 0))
	up := func() {
		for _, rt := range rts {
			must(t, r.Add(rt))
		}
		must(t, r.SetNeighbor(0, ip("198.18.0.203"), [6]byte{2}))
		must(t, r.SetNeighbor(0, ip("2001:2::203"), [6]byte{2}))
	}
	blackhole := Route{Prefix: pfx("203.0.113.0/24"), Origin: Static, Kind: Blackhole}
	must(t, r.Add(blackhole))
	up()
	first := dump(t, r.Commit())
	r.Reclaim(1)
	words, adjs := 0, 0
	for i := range scaled(100, 15) {
		for _, rt := range rts {
			must(t, r.Remove(rt))
		}
		must(t, r.RemoveNeighbor(0, ip("198.18.0.203")))
		must(t, r.RemoveNeighbor(0, ip("2001:2::203")))
		f := r.Commit()
		wantLookup(t, f, "203.0.113.1", "blackhole")
		wantLookup(t, f, "8.8.8.8", "no route")
		r.Reclaim(f.Gen)
		up()
		f = r.Commit()
		if got := dump(t, f); got != first {
			t.Fatalf("after %d flaps:\n%s\nat first:\n%s", i+1, got, first)
		}
		r.Reclaim(f.Gen)
		consistent(t, r, f)
		w, a := len(r.b4.pool.words)+len(r.b6.pool.words), len(f.Adj)
		if i == 10 {
			words, adjs = w, a
		}
		if i > 10 && (w != words || a != adjs) {
			t.Fatalf("flap %d: %d words and %d adjacencies, before %d and %d", i, w, a, words, adjs)
		}
	}
}

// A neighbor that leaves takes no routes with it (grout 193).
func TestNeighborLeaves(t *testing.T) {
	r := New(testPorts)
	for _, rt := range ConnectedRoutes(0, pfx("198.18.0.205/24")) {
		must(t, r.Add(rt))
	}
	must(t, r.Add(static("203.0.113.0/24", "198.18.0.203", 0)))
	must(t, r.SetNeighbor(0, ip("198.18.0.203"), [6]byte{2, 1}))
	first := dump(t, r.Commit())
	must(t, r.RemoveNeighbor(0, ip("198.18.0.203")))
	f := r.Commit()
	wantLookup(t, f, "203.0.113.9", "resolve port 0 mtu 1500 neighbor 198.18.0.203")
	wantLookup(t, f, "198.18.0.203", "glean port 0 mtu 1500")
	if err := r.RemoveNeighbor(0, ip("198.18.0.203")); !errors.Is(err, ErrNoNeighbor) {
		t.Errorf("second removal: got %v, want %v", err, ErrNoNeighbor)
	}
	must(t, r.SetNeighbor(0, ip("198.18.0.203"), [6]byte{2, 1}))
	if got := dump(t, r.Commit()); got != first {
		t.Errorf("got\n%s, want\n%s", got, first)
	}
}

// A gateway outside all connected networks serves its routes and is no host
// route; a more specific route keeps neighbors behind it from being ones.
func TestHostRoutes(t *testing.T) {
	r := New(testPorts)
	onLink := Route{Prefix: pfx("10.0.0.0/24"), Origin: Connected, Kind: OnLink, Port: 1, MTU: 1400}
	must(t, r.Add(static("203.0.113.0/24", "192.0.2.1", 0)))
	must(t, r.SetNeighbor(0, ip("192.0.2.1"), [6]byte{2}))
	must(t, r.SetNeighbor(1, ip("10.0.0.200"), [6]byte{4}))
	must(t, r.SetNeighbor(2, ip("10.0.0.200"), [6]byte{6}))
	must(t, r.Add(onLink))
	f := r.Commit()
	wantLookup(t, f, "203.0.113.1", "forward port 0 mtu 1500 neighbor 192.0.2.1 head 020000000000000db941ca3d0800")
	wantLookup(t, f, "192.0.2.1", "no route")
	wantLookup(t, f, "10.0.0.200", "forward port 1 mtu 1400 neighbor 10.0.0.200 head 040000000000000db941ca3e0800")
	if got := r.Len(4, Neighbor); got != 1 {
		t.Errorf("host routes: got %d, want 1", got)
	}
	must(t, r.Add(static("10.0.0.128/25", "10.0.0.1", 1)))
	wantLookup(t, r.Commit(), "10.0.0.200", "resolve port 1 mtu 1500 neighbor 10.0.0.1")
	must(t, r.Remove(static("10.0.0.128/25", "10.0.0.1", 1)))
	onLink.Port, onLink.MTU = 2, 0
	must(t, r.Add(onLink)) // the network moves to the other port
	wantLookup(t, r.Commit(), "10.0.0.200", "forward port 2 mtu 9000 neighbor 10.0.0.200 head 060000000000000db941ca3f0800")
	if got := slices.Collect(r.Exact(pfx("10.0.0.200/32"))); len(got) != 1 || got[0].Origin != Neighbor {
		t.Errorf("host route: got %v", got)
	}
}

func TestOrigins(t *testing.T) {
	r := New(testPorts)
	p := pfx("203.0.113.0/24")
	for _, o := range []Origin{Kernel, Static, Connected} {
		must(t, r.Add(Route{Prefix: p, Origin: o, Kind: OnLink, Port: uint16(o)}))
	}
	for _, o := range []Origin{Connected, Static, Kernel} {
		if rt, ok := r.Lookup(ip("203.0.113.1")); !ok || rt.Origin != o {
			t.Errorf("got %v %v, want origin %v", rt, ok, o)
		}
		wantLookup(t, r.Commit(), "203.0.113.1", fmt.Sprintf("glean port %d mtu %d", o, testPorts[o].MTU))
		must(t, r.Remove(Route{Prefix: p, Origin: o}))
	}
	if err := r.Remove(Route{Prefix: p, Origin: Static}); !errors.Is(err, ErrNoRoute) {
		t.Errorf("removed what is not there: got %v, want %v", err, ErrNoRoute)
	}
}

func TestBadRoutes(t *testing.T) {
	via := func(p, gw string) Route { return static(p, gw, 0) }
	for _, c := range []struct {
		name string
		rt   Route
		want string
	}{
		{"no prefix", Route{Origin: Static, Kind: Blackhole}, "fib: invalid prefix"},
		{"host bits", Route{Prefix: netip.PrefixFrom(ip("10.1.2.3"), 8), Origin: Static, Kind: Blackhole}, "fib: 10.1.2.3/8: host bits set, 10.0.0.0/8 meant?"},
		{"mapped", Route{Prefix: netip.PrefixFrom(ip("::ffff:10.0.0.0"), 104), Origin: Static, Kind: Blackhole}, "fib: ::ffff:10.0.0.0/104: IPv4-mapped prefix"},
		{"no kind", Route{Prefix: pfx("10.0.0.0/8"), Origin: Static}, "fib: 10.0.0.0/8: kind no route"},
		{"no gateway", Route{Prefix: pfx("10.0.0.0/8"), Origin: Static, Kind: Via}, "fib: 10.0.0.0/8: gateway invalid IP: not an address"},
		{"multicast gateway", via("10.0.0.0/8", "224.0.0.1"), "fib: 10.0.0.0/8: gateway 224.0.0.1: not a unicast address"},
		{"gateway of the other family", via("10.0.0.0/8", "2001:db8::1"), "fib: 10.0.0.0/8: gateway 2001:db8::1: of another family"},
		{"gateway with a zone", via("::/0", "fe80::1%igb1"), "fib: ::/0: gateway fe80::1%igb1: address with a zone"},
		{"unknown port", static("10.0.0.0/8", "192.0.2.1", 9), "fib: 10.0.0.0/8: no port 9"},
		{"neighbor's origin", Route{Prefix: pfx("10.0.0.0/8"), Kind: Blackhole}, "fib: 10.0.0.0/8: origin neighbor"},
		{"wide broadcast", Route{Prefix: pfx("10.0.0.0/8"), Origin: Connected, Kind: Broadcast}, "fib: 10.0.0.0/8: broadcast: not an IPv4 address"},
		{"IPv6 broadcast", Route{Prefix: pfx("2001:db8::/128"), Origin: Connected, Kind: Broadcast}, "fib: 2001:db8::/128: broadcast: not an IPv4 address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := New(testPorts)
			before := dump(t, r.Commit())
			for name, add := range map[string]func(Route) error{"add": r.Add, "load": func(rt Route) error { return r.Load([]Route{rt}) }} {
				err := add(c.rt)
				if err == nil || err.Error() != c.want {
					t.Errorf("%s: got %v, want %s", name, err, c.want)
				}
			}
			if r.Remove(c.rt) == nil {
				t.Error("removed")
			}
			if got := dump(t, r.Commit()); got != before {
				t.Errorf("changed the tables to\n%s", got)
			}
		})
	}
	r := New(testPorts)
	if r.SetNeighbor(9, ip("10.0.0.1"), [6]byte{2}) == nil || r.SetNeighbor(0, ip("ff02::1"), [6]byte{2}) == nil || r.SetPort(9, PortAttr{}) == nil {
		t.Error("bad neighbor or port taken")
	}
}

// The limits refuse with an error what would not fit.
func TestFull(t *testing.T) {
	r := New(testPorts)
	r.v4.max = 2
	must(t, r.Add(static("10.0.0.0/8", "192.0.2.1", 0)))
	must(t, r.Add(Route{Prefix: pfx("192.0.2.0/24"), Origin: Connected, Kind: OnLink}))
	if err := r.Add(static("11.0.0.0/8", "192.0.2.1", 0)); !errors.Is(err, ErrFull) {
		t.Errorf("third route: got %v, want %v", err, ErrFull)
	}
	must(t, r.Add(static("10.0.0.0/8", "192.0.2.2", 0)))
	if err := r.SetNeighbor(0, ip("192.0.2.2"), [6]byte{2}); !errors.Is(err, ErrFull) {
		t.Errorf("host route: got %v, want %v", err, ErrFull)
	}
	if err := r.Load([]Route{static("11.0.0.0/8", "192.0.2.1", 0)}); !errors.Is(err, ErrFull) {
		t.Errorf("load: got %v, want %v", err, ErrFull)
	}
}

// Ranges of the RIB by prefix.
func TestQueries(t *testing.T) {
	r := New(testPorts)
	for _, p := range []string{"10.0.0.0/8", "0.0.0.0/0", "10.0.0.0/16", "10.0.1.0/24", "11.0.0.0/8", "2001:db8::/32", "2001:db8::/48"} {
		must(t, r.Add(Route{Prefix: pfx(p), Origin: Static, Kind: Blackhole}))
	}
	must(t, r.Add(Route{Prefix: pfx("10.0.0.0/16"), Origin: Kernel, Kind: Reject}))
	list := func(s iter.Seq[Route]) string {
		var l []string
		for rt := range s {
			l = append(l, fmt.Sprint(rt.Prefix, " ", rt.Origin))
		}
		return strings.Join(l, ", ")
	}
	for _, c := range []struct{ name, got, want string }{
		{"all", list(r.All()), "0.0.0.0/0 static, 10.0.0.0/8 static, 10.0.0.0/16 static, 10.0.0.0/16 kernel, 10.0.1.0/24 static, 11.0.0.0/8 static, 2001:db8::/32 static, 2001:db8::/48 static"},
		{"covering", list(r.Covering(pfx("10.0.1.0/24"))), "0.0.0.0/0 static, 10.0.0.0/8 static, 10.0.0.0/16 static, 10.0.1.0/24 static"},
		{"covered", list(r.Covered(pfx("10.0.0.0/9"))), "10.0.0.0/16 static, 10.0.0.0/16 kernel, 10.0.1.0/24 static"},
		{"covered, behind one", list(r.CoveredAfter(pfx("10.0.0.0/8"), pfx("10.0.0.0/8"))), "10.0.0.0/16 static, 10.0.0.0/16 kernel, 10.0.1.0/24 static"},
		{"covered, behind one that is not there", list(r.CoveredAfter(pfx("0.0.0.0/0"), pfx("10.0.0.0/20"))), "10.0.1.0/24 static, 11.0.0.0/8 static"},
		{"covered, behind the last", list(r.CoveredAfter(pfx("::/0"), pfx("2001:db8::/48"))), ""},
		{"covered, behind the longest", list(r.CoveredAfter(pfx("10.0.0.0/8"), pfx("10.0.0.255/32"))), "10.0.1.0/24 static"},
		{"exact", list(r.Exact(pfx("10.0.0.0/16"))), "10.0.0.0/16 static, 10.0.0.0/16 kernel"},
		{"exact of none", list(r.Exact(pfx("10.0.0.0/15"))), ""},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, c.got, c.want)
		}
	}
	if got := r.Len(4, Static); got != 5 {
		t.Errorf("static IPv4 routes: got %d, want 5", got)
	}
}

// A change of a gateway's address or of a default route costs no table.
func TestCheapChanges(t *testing.T) {
	r := New(testPorts)
	for i := range 256 {
		must(t, r.Add(static(fmt.Sprintf("20.%d.0.0/17", i), "192.0.2.1", 0)))
		must(t, r.Add(static(fmt.Sprintf("2001:db8:%x::/48", i), "2001:db8::1", 0)))
	}
	must(t, r.Add(static("0.0.0.0/0", "192.0.2.2", 0)))
	must(t, r.Add(static("2000::/3", "2001:db8::2", 0)))
	r.Reclaim(r.Commit().Gen)
	r.Reclaim(r.Commit().Gen)
	change := func(f func()) {
		t.Helper()
		f()
		if l := len(r.v4.dirty) + len(r.v6.dirty); l != 0 {
			t.Errorf("%d prefixes to make again, want 0", l)
		}
		w4, w6 := len(r.b4.pool.words), len(r.b6.pool.words)
		g := r.Commit()
		if len(r.b4.pool.words) != w4 || len(r.b6.pool.words) != w6 || len(r.adj.out.log) > 64 {
			t.Error("tables or too many adjacencies made again")
		}
		r.Reclaim(g.Gen)
	}
	change(func() { must(t, r.SetNeighbor(0, ip("192.0.2.1"), [6]byte{2})) })
	change(func() { must(t, r.SetNeighbor(0, ip("192.0.2.1"), [6]byte{4})) })
	change(func() { must(t, r.Add(static("0.0.0.0/0", "192.0.2.3", 0))) })
	change(func() { must(t, r.Add(static("128.0.0.0/1", "192.0.2.4", 0))) })
	change(func() { must(t, r.Remove(static("2000::/3", "2001:db8::2", 0))) })
	f := r.Commit()
	wantLookup(t, f, "20.7.1.1", "forward port 0 mtu 1500 neighbor 192.0.2.1 head 040000000000000db941ca3d0800")
	wantLookup(t, f, "20.7.128.1", "resolve port 0 mtu 1500 neighbor 192.0.2.3")
	wantLookup(t, f, "200.0.0.1", "resolve port 0 mtu 1500 neighbor 192.0.2.4")
	wantLookup(t, f, "2001:db9::", "no route")
}

// loaded checks that r is as if its routes were added one by one.
func loaded(t *testing.T, rnd *rand.Rand, r *RIB, f *FIB) {
	t.Helper()
	consistent(t, r, f)
	one := New(testPorts)
	for rt := range r.All() {
		if rt.Origin != Neighbor {
			must(t, one.Add(rt))
		}
	}
	for i := range r.neighbors {
		for _, k := range r.neighbors[i].list {
			must(t, one.SetNeighbor(k.port, k.addr, r.adj.hops[k].mac))
		}
	}
	if dump(t, one.Commit()) != dump(t, f) {
		t.Fatal("not as if made one by one")
	}
	for range 10_000 {
		a := randAddr(rnd, rnd.IntN(2) == 0)
		rt, ok := r.Lookup(a)
		adj := f.Lookup(a)
		if ok != (adj.Action != NoRoute) || ok && netip.Addr.Compare(adj.NeighborAddr(), rt.Gateway) != 0 {
			t.Fatalf("%v: got %v, tree has %v", a, adj, rt)
		}
	}
}

// TestLoad loads large tables, into an empty RIB and a used one, sorted and
// not, and changes them while the trees are being filled.
func TestLoad(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 5))
	var rts []Route
	for i, p := range append(routes.Generate(20_000, true, 2), routes.Generate(20_000, false, 2)...) {
		gw := "192.0.2.1"
		if p.Addr().Is6() {
			gw = "2001:db8::1"
		}
		rts = append(rts, Route{Prefix: p, Origin: Static, Kind: Via, Gateway: ip(gw), Port: uint16(i % 3)})
	}
	r := New(testPorts)
	must(t, r.Load(rts))
	var early, late [][]Route // while the trees are being filled, as far as they are, and after
	for i := range 50 {
		early = append(early, slices.Collect(r.Covering(rts[i*800].Prefix)))
	}
	f := r.Commit()
	must(t, r.Remove(rts[100]))
	must(t, r.Add(rts[100]))
	for i := range early {
		late = append(late, slices.Collect(r.Covering(rts[i*800].Prefix)))
	}
	if !reflect.DeepEqual(early, late) {
		t.Error("routes that cover others: the sorted index and the trees differ")
	}
	must(t, r.Remove(rts[100]))
	loaded(t, rnd, r, f2(r, f))

	// A third again, with other gateways and origins, out of order, twice.
	again := slices.Clone(rts[:13_000])
	again = append(again, rts[20_000:33_000]...)
	for i := range again {
		again[i].Port = 3
		again[i].Origin = Connected + Origin(i%3)
	}
	again = append(again, again[:1000]...)
	rnd.Shuffle(len(again), func(i, j int) { again[i], again[j] = again[j], again[i] })
	must(t, r.SetNeighbor(1, ip("9.9.9.9"), [6]byte{2}))
	must(t, r.Add(Route{Prefix: pfx("9.9.9.8/30"), Origin: Static, Kind: OnLink, Port: 1}))
	must(t, r.Load(again))
	must(t, r.Add(static("9.9.9.9/32", "192.0.2.7", 2)))
	must(t, r.Remove(static("9.9.9.9/32", "192.0.2.7", 2)))
	f = r.Commit()
	loaded(t, rnd, r, f)
	wantLookup(t, f, "9.9.9.9", "forward port 1 mtu 1500 neighbor 9.9.9.9 head 020000000000000db941ca3e0800")

	// Nothing left: the tables are made again, small.
	for _, rt := range slices.Collect(r.All()) {
		if rt.Origin != Neighbor {
			must(t, r.Remove(rt))
		}
	}
	must(t, r.RemoveNeighbor(1, ip("9.9.9.9")))
	f = r.Commit()
	r.Reclaim(f.Gen)
	if got, want := dump(t, r.Commit()), dump(t, New(testPorts).Commit()); got != want {
		t.Errorf("empty table: got\n%s, want\n%s", got, want)
	}
	if r.b4.pool.live+r.b6.pool.live != 0 {
		t.Errorf("%d and %d words in use by empty tables", r.b4.pool.live, r.b6.pool.live)
	}
}

// The first commit of many routes makes the table in a pool of the right size:
// each has an adjacency of its own, so that no chunk can be left out.
func TestPoolSize(t *testing.T) {
	r := New(testPorts)
	var rts []Route
	for i, p := range routes.Generate(20_000, true, 4) {
		rts = append(rts, Route{Prefix: p, Origin: Static, Kind: OnLink, MTU: uint16(1 + i)})
	}
	must(t, r.SetPort(0, PortAttr{MTU: 65535}))
	must(t, r.Load(rts))
	want := r.b4.words()
	r.Commit()
	if got := len(r.b4.pool.words); got != want {
		t.Errorf("table of %d words, want %d", got, want)
	}
	least := want + want/8
	if got := cap(r.b4.pool.words); got < least || got >= least+hugeSize/wordSize {
		t.Errorf("pool for %d words, want %d in whole huge pages", got, least)
	}
}

// f2 commits, and keeps f readable until then.
func f2(r *RIB, f *FIB) *FIB {
	g := r.Commit()
	if f.Gen+1 != g.Gen {
		panic("generation skipped")
	}
	return g
}

// TestReaders has goroutines that look up in FIBs while these are replaced:
// what a FIB answers never changes. The race detector watches that no word in
// use is written.
func TestReaders(t *testing.T) {
	const readers = 3
	r := New(testPorts)
	u := newUniverse(99)
	o := newOracle()
	for range 30 {
		change(t, u, o, r)
	}
	var cur atomic.Pointer[FIB]
	var seen [readers]atomic.Uint64 // the generation that a reader uses
	cur.Store(r.Commit())
	var stop atomic.Bool
	var wg sync.WaitGroup
	for i := range readers {
		wg.Add(1)
		rnd := rand.New(rand.NewPCG(uint64(i), 2))
		var as []netip.Addr
		for range 200 {
			as = append(as, u.addr(i%2 == 0), u.addr(i%2 == 1))
		}
		go func() {
			defer wg.Done()
			for !stop.Load() {
				f := cur.Load()
				seen[i].Store(f.Gen)
				var first [400]Adjacency
				for j, a := range as {
					first[j] = *f.Lookup(a)
				}
				for range 1 + rnd.IntN(5) {
					for j, a := range as {
						if *f.Lookup(a) != first[j] {
							t.Errorf("generation %d changed its answer for %v", f.Gen, a)
							return
						}
					}
				}
			}
		}()
	}
	for range scaled(300, 60) {
		change(t, u, o, r)
		cur.Store(r.Commit())
		// A reader that loaded an older one stores its generation at once; one
		// that has not yet done so is still at the one before.
		oldest := cur.Load().Gen
		for i := range seen {
			oldest = min(oldest, seen[i].Load())
		}
		r.Reclaim(oldest)
	}
	stop.Store(true)
	wg.Wait()
	check(t, u, o, r, f2(r, cur.Load()))
}

// Hosts of several networks share a node of the upper bits; the table is empty
// again when they have left one by one.
func TestHosts(t *testing.T) {
	rnd := rand.New(rand.NewPCG(4, 4))
	r, o := New(testPorts), newOracle()
	toggle := func(rt Route) {
		if !o.remove(rt) {
			must(t, r.Add(rt))
			o.add(rt)
		} else {
			must(t, r.Remove(rt))
		}
		f := r.Commit()
		r.Reclaim(f.Gen)
		for _, rt := range o.routes {
			compare(t, r, f, o, rt.Prefix.Addr())
			compare(t, r, f, o, rt.Prefix.Addr().Next())
		}
	}
	for i := range scaled(400, 60) {
		// Three networks, of one, some and many hosts: a node, a fan, a chunk.
		net := rnd.IntN(3)
		host := rnd.IntN([]int{2, 20, 120}[net])
		toggle(static(fmt.Sprintf("2001:db8:0:%d::%x/128", net, host*7), "2001:db8::1", uint16(i%3)))
		if i%50 == 0 {
			toggle(static(fmt.Sprintf("2001:db8:0:%d::/64", rnd.IntN(4)), "2001:db8::2", 0))
		}
	}
	consistent(t, r, r.Commit())
	for len(o.routes) > 0 {
		toggle(o.routes[rnd.IntN(len(o.routes))])
	}
	// A route that makes hosts and what is between them one leaves one node.
	for i := range 60 {
		must(t, r.Add(static(fmt.Sprintf("2001:db8::%x/128", 2*i), "2001:db8::1", 0)))
	}
	r.Reclaim(r.Commit().Gen)
	must(t, r.Add(static("2001:db8::/121", "2001:db8::1", 0)))
	r.Reclaim(r.Commit().Gen)
	if n := r.b6.pool.live; n != 1<<lineClass {
		t.Errorf("one range has %d words in use, want a line", n)
	}
	for _, rt := range slices.Collect(r.All()) {
		must(t, r.Remove(rt))
	}
	// Enough to make chunks of either half.
	for _, format := range []string{"2001:db8::%x/128", "2001:db8:%x::/48"} {
		for _, change := range []func(Route) error{r.Add, r.Remove} {
			for i := range 100 {
				must(t, change(static(fmt.Sprintf(format, 7*i), "2001:db8::1", 0)))
				r.Reclaim(r.Commit().Gen)
			}
		}
		if n := r.b6.pool.live; n != 0 {
			t.Errorf("empty table has %d words in use", n)
		}
	}
}

// However the hosts of a network are numbered, lookups find them, and what is
// beside them, as they come and go; where they share bits, few nodes tell them
// apart.
func TestHostNumbers(t *testing.T) {
	const vendor = 0x021b21fffe000000
	odd := func(host uint64) func(n uint64) uint64 { // one of them
		return func(n uint64) uint64 {
			if n == 600 {
				return host
			}
			return n
		}
	}
	for _, c := range []struct {
		name string
		host func(n uint64) uint64
		most int // nodes in the lower half
	}{
		{"from the first", func(n uint64) uint64 { return n }, 2},
		{"from one", func(n uint64) uint64 { return n + 1 }, 3},
		{"to the last", func(n uint64) uint64 { return ^n }, 2},
		{"in the middle", func(n uint64) uint64 { return 0x7777<<16 + n }, 2},
		{"across the middle", func(n uint64) uint64 { return 1<<63 - 500 + n }, 4},
		{"one vendor", func(n uint64) uint64 { return vendor | n*0x9e3779&0xffffff }, 3},
		{"four vendors", func(n uint64) uint64 { return vendor + n%4<<48 | n*0x9e3779&0xffffff }, 5},
		{"one far away", odd(1 << 40), 4},
		{"one at the end", odd(^uint64(0)), 4},
		{"random", func(n uint64) uint64 { return n * 0x9e3779b97f4a7c15 }, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(9, 9))
			r, o := New(testPorts), newOracle()
			for _, rt := range []Route{static("2001:db8::/64", "2001:db8::1", 0), static("2001:db8::/66", "2001:db8::2", 0)} {
				must(t, r.Add(rt))
				o.add(rt)
			}
			toggle := func(n int) {
				a := addrOf(6, 0x20010db8<<32, c.host(uint64(n)))
				rt := Route{Prefix: netip.PrefixFrom(a, 128), Origin: Static, Kind: OnLink, Port: uint16(n % 3), MTU: uint16(1300 + n%7)}
				if o.remove(rt) {
					must(t, r.Remove(rt))
				} else {
					must(t, r.Add(rt))
					o.add(rt)
				}
			}
			check := func(f *FIB) {
				t.Helper()
				for range scaled(300, 30) {
					rt := o.routes[rnd.IntN(len(o.routes))]
					k := keyOf(rt.Prefix)
					for _, lo := range []uint64{k.lo, k.lo - 1, k.lo + 1, k.lo ^ 1<<rnd.IntN(64), rnd.Uint64()} {
						compare(t, r, f, o, addrOf(6, k.hi, lo))
					}
				}
			}
			nodes := func(f *FIB, lo uint64) (n int) {
				e := f.V6.First(0x20010db8 << 32)
				for x := lo; e >= leaves6; n++ {
					m := node6{f.V6.words, e}
					switch form6(e) {
					case chunk6:
						e, x = m.children()[x>>(64-m.stride())], x<<m.stride()
					case low6:
						e, x = m.children()[0], lo<<m.skip()
					default:
						i := 0
						for i < fanOut-1 && x >= m.boundary(i+1) {
							i++
						}
						e = m.children()[i]
					}
				}
				return n
			}
			for n := range 1000 {
				toggle(n)
				if n%3 != 0 && n > 50 { // few changes are made one by one
					continue
				}
				f := r.Commit()
				for m := max(0, n-3); m <= n; m++ {
					compare(t, r, f, o, addrOf(6, 0x20010db8<<32, c.host(uint64(m))))
				}
				if n%scaled(50, 250) == 0 {
					check(f)
				}
				r.Reclaim(f.Gen)
			}
			f := r.Commit()
			check(f)
			consistent(t, r, f)
			for n := range uint64(1000) {
				if got := nodes(f, c.host(n)); got > c.most {
					t.Fatalf("%x: %d nodes, want at most %d", c.host(n), got, c.most)
				}
			}
			first := dump(t, f)
			one := New(testPorts)
			must(t, one.Load(o.routes))
			if dump(t, one.Commit()) != first {
				t.Fatal("not as if made at once")
			}
			// One by one, at random and back.
			for range scaled(200, 20) {
				n := rnd.IntN(1000)
				for range 2 {
					toggle(n)
					f := r.Commit()
					compare(t, r, f, o, addrOf(6, 0x20010db8<<32, c.host(uint64(n))))
					r.Reclaim(f.Gen)
				}
			}
			f = r.Commit()
			consistent(t, r, f)
			if dump(t, f) != first {
				t.Fatal("hosts that left and came back leave another table")
			}
			for _, n := range rnd.Perm(1000) {
				toggle(n)
				if n%scaled(10, 100) == 0 {
					f := r.Commit()
					if n%scaled(50, 250) == 0 {
						check(f)
					}
					r.Reclaim(f.Gen)
				}
			}
			consistent(t, r, r.Commit())
		})
	}
}

// walk and walkSafe agree, from every entry of the root and for any address.
func TestWalkSafe(t *testing.T) {
	rnd := rand.New(rand.NewPCG(8, 8))
	var rts []Route
	for i, p := range routes.Generate(30_000, false, 3) {
		rts = append(rts, Route{Prefix: p, Origin: Static, Kind: OnLink, Port: uint16(i % 3), MTU: uint16(i % 1000)})
	}
	_, f := load(t, rts)
	for range 300_000 {
		k := keyOf(rts[rnd.IntN(len(rts))].Prefix)
		mhi, mlo := mask(k.len)
		hi, lo := k.hi|rnd.Uint64()&^mhi, k.lo|rnd.Uint64()&^mlo
		want := f.V6.root[hi>>48]
		if want >= leaves6 {
			want = f.V6.walkSafe(want, hi<<16, lo)
		}
		if got := f.V6.First(hi); got < More && got != want {
			t.Fatalf("%x %x: got %d at first, want %d", hi, lo, got, want)
		}
		if got := f.V6.Lookup(hi, lo); got != want {
			t.Fatalf("%x %x: got %d, want %d", hi, lo, got, want)
		}
	}
}

func TestAllocs(t *testing.T) {
	r := New(testPorts)
	must(t, r.Add(static("203.0.113.0/25", "192.0.2.1", 0)))
	must(t, r.Add(static("2001:db8::1/128", "2001:db8::1", 0)))
	f := r.Commit()
	if n := testing.AllocsPerRun(100, func() {
		sink += f.V4.Lookup(0xcb007101) + f.V6.Lookup(0x20010db800000000, 1)
	}); n != 0 {
		t.Errorf("allocations per lookup: got %v, want 0", n)
	}
}

// What workers call per packet has no call overhead.
func TestInlining(t *testing.T) {
	gobin, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command")
	}
	out, err := exec.Command(gobin, "build", "-gcflags=-m", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, f := range []string{"(*Table4).Lookup", "(*Table6).First", "(*Table6).word", "less"} {
		if !bytes.Contains(out, []byte("can inline "+f)) {
			t.Errorf("%s is not inlined", f)
		}
	}
}

// FuzzChanges reads its input as changes and compares all answers with the
// oracle's.
func FuzzChanges(f *testing.F) {
	f.Add(uint64(0), []byte{0, 1, 2, 3})
	f.Add(uint64(3), bytes.Repeat([]byte{0, 9, 13, 14, 17, 19}, 6))
	f.Fuzz(func(t *testing.T, seed uint64, ops []byte) {
		u, o, r := newUniverse(seed), newOracle(), New(testPorts)
		src := &byteSource{ops: ops}
		u.rnd = rand.New(src)
		for len(src.ops) > 0 && len(o.routes) < 60 {
			change(t, u, o, r)
			if u.rnd.IntN(2) == 0 {
				g := r.Commit()
				if u.rnd.IntN(2) == 0 {
					r.Reclaim(g.Gen)
				}
			}
		}
		check(t, u, o, r, r.Commit())
	})
}

// A byteSource is a source of random numbers that repeats what it is given: each
// byte makes one number.
type byteSource struct {
	ops []byte
	n   uint64
}

func (s *byteSource) Uint64() uint64 {
	var b byte
	if len(s.ops) > 0 {
		b, s.ops = s.ops[0], s.ops[1:]
	}
	s.n++
	return (uint64(b) + s.n<<8) * 0x9e3779b97f4a7c15
}
