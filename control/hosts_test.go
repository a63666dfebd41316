package control

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"nmfwd/dataplane"
	"nmfwd/fib"
)

// A filter is a device that has to know the host's routes.
type filter struct {
	dataplane.Device
	routes map[netip.Prefix]bool
	told   int

	added   []netip.Prefix
	missing int
	err     error
}

func (f *filter) SetHostRoutes(routes map[netip.Prefix]bool) (int, error) {
	f.routes = maps.Clone(routes)
	f.told++
	return f.missing, f.err
}

func (f *filter) AddHostRoute(p netip.Prefix) error {
	f.added = append(f.added, p)
	return f.err
}

// TestHostAtOnce: what becomes the host's is told at once, however long it takes
// until all routes are told again.
func TestHostAtOnce(t *testing.T) {
	r, k := newKernelRig(t, fib.Route{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Kind: fib.Host}, kernelVia("10.1.0.0/16", "198.18.0.203", 0), kernelVia("203.0.113.0/24", "198.18.0.203", 0))
	f := &filter{}
	r.hostRouter.devices = []dataplane.HostRouter{f}
	r.hostRouter.next = 1 << 60
	for _, c := range []struct {
		what string
		set  fib.Route
		want string
	}{
		{"new", fib.Route{Prefix: netip.MustParsePrefix("203.0.114.0/24"), Kind: fib.Host}, "[203.0.114.0/24]"},
		{"was a port's", fib.Route{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Kind: fib.Host}, "[203.0.113.0/24]"},
		{"the port's within went", fib.Route{Prefix: netip.MustParsePrefix("10.1.0.0/16")}, "[10.1.0.0/16]"},
		{"a port's came", kernelVia("10.1.0.0/16", "198.18.0.203", 0), "[]"},
		{"within a port's", fib.Route{Prefix: netip.MustParsePrefix("10.1.2.0/24"), Kind: fib.Host}, "[10.1.2.0/24]"},
		{"the host's went within a port's", fib.Route{Prefix: netip.MustParsePrefix("10.1.2.0/24")}, "[]"},
	} {
		f.added = nil
		k.set(c.set)
		r.Step(r.at)
		if got := fmt.Sprint(f.added); got != c.want {
			t.Errorf("%s: told %s, want %s", c.what, got, c.want)
		}
	}
	if f.told != 0 || !r.hostRouter.changed {
		t.Errorf("all were told %d times, and are to be told: %t", f.told, r.hostRouter.changed)
	}
}

// TestHostRoutes: devices are told which routes the host follows, and no more than
// they need to know.
func TestHostRoutes(t *testing.T) {
	host := func(p string) fib.Route { return fib.Route{Prefix: netip.MustParsePrefix(p), Kind: fib.Host} }
	none := func(p string) fib.Route { return fib.Route{Prefix: netip.MustParsePrefix(p)} }
	r, k := newKernelRig(t, host("10.0.0.0/8"), kernelVia("10.1.0.0/16", "198.18.0.203", 0), host("10.1.2.0/24"), host("10.2.0.0/16"), kernelVia("203.0.113.0/24", "198.18.0.203", 0))
	f := &filter{}
	r.hostRouter.devices = []dataplane.HostRouter{f}
	want := func(what string, hosts, others []string) {
		t.Helper()
		for range 3 {
			r.at += r.wait()
			r.Step(r.at)
		}
		all := make(map[netip.Prefix]bool)
		for _, p := range hosts {
			all[netip.MustParsePrefix(p)] = true
		}
		for _, p := range others {
			all[netip.MustParsePrefix(p)] = false
		}
		if !maps.Equal(f.routes, all) {
			t.Errorf("%s: devices were told %v, want %v", what, f.routes, all)
		}
	}
	r.hostRouter.changed = true
	want("start", []string{"10.0.0.0/8", "10.1.2.0/24"}, []string{"10.1.0.0/16"})
	k.set(kernelVia("10.3.0.0/16", "198.18.0.203", 0))
	want("one within", []string{"10.0.0.0/8", "10.1.2.0/24"}, []string{"10.1.0.0/16", "10.3.0.0/16"})
	told := f.told
	k.set(kernelVia("203.0.114.0/24", "198.18.0.203", 0))
	want("one elsewhere", []string{"10.0.0.0/8", "10.1.2.0/24"}, []string{"10.1.0.0/16", "10.3.0.0/16"})
	if f.told != told {
		t.Error("devices were told of a route that is nothing to them")
	}
	k.set(none("10.0.0.0/8"), none("10.3.0.0/16"))
	want("outermost gone", []string{"10.1.2.0/24", "10.2.0.0/16"}, nil)
	k.set(host("0.0.0.0/0"), none("10.2.0.0/16"))
	want("default", []string{"0.0.0.0/0", "10.1.2.0/24"}, []string{"10.1.0.0/16", "203.0.113.0/24", "203.0.114.0/24", "198.18.0.0/16", "198.19.0.0/16"})
}

// TestTooManyWithin: of more routes by ports within those of the host than may be,
// the host gets the packets. Nothing that is the host's goes elsewhere, though it
// lies within a route by a port.
func TestTooManyWithin(t *testing.T) {
	rib := fib.New(make([]fib.PortAttr, 1))
	hosts := map[netip.Prefix]bool{}
	add := func(a netip.Addr, bits int, kind fib.Kind) {
		t.Helper()
		r := fib.Route{Prefix: netip.PrefixFrom(a, bits), Origin: fib.Kernel, Kind: kind}
		if kind == fib.Host {
			hosts[r.Prefix] = true
		}
		if err := rib.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	at := func(a, b, c, d byte) netip.Addr { return netip.AddrFrom4([4]byte{a, b, c, d}) }
	const beyond = 300
	add(at(0, 0, 0, 0), 0, fib.Host)
	add(at(10, 0, 0, 0), 7, fib.OnLink)
	for i := range maxWithin + beyond {
		a, b, c := byte(10+i>>16), byte(i>>8), byte(i)
		add(at(a, b, c, 0), 24, fib.Host)
		add(at(a, b, c, 0), 26, fib.OnLink)
		add(at(a, b, c, 16), 30, fib.Host)
	}
	add(at(12, 0, 0, 0), 8, fib.Host)
	routes, left := hostRoutes(rib, hosts)
	if want := beyond + 1; left != want {
		t.Errorf("%d left out, want %d", left, want)
	}
	is := func(a netip.Addr) bool {
		for n := 32; n >= 0; n-- {
			p, _ := a.Prefix(n)
			if host, ok := routes[p]; ok {
				return host
			}
		}
		return false
	}
	wrong := 0
	for i := range maxWithin + beyond {
		a, b, c := byte(10+i>>16), byte(i>>8), byte(i)
		for _, d := range []byte{0, 16, 19, 20, 64, 255} {
			host := d >= 64 || d>>2 == 4
			if got := is(at(a, b, c, d)); host && !got || got && !host && i < maxWithin-beyond {
				if wrong++; wrong < 5 {
					t.Errorf("%v: told that it is the host's: %t, want %t", at(a, b, c, d), got, host)
				}
			}
		}
	}
	if !is(at(12, 0, 0, 1)) || !is(at(8, 8, 8, 8)) {
		t.Error("behind those left out")
	}
}

// TestNoPlaceForHostRoutes: what devices have no place for is told once, counted,
// and tried again until there is place.
func TestNoPlaceForHostRoutes(t *testing.T) {
	r, _ := newKernelRig(t, fib.Route{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Kind: fib.Host})
	var log bytes.Buffer
	r.log = slog.New(slog.NewTextHandler(&log, nil))
	f := &filter{missing: 3}
	r.hostRouter.devices = []dataplane.HostRouter{f, &filter{missing: 1}}
	r.hostRouter.changed = true
	steps := func(missing, warnings, infos, errs int) {
		t.Helper()
		told := f.told
		for range 3 {
			r.at += hostAgain
			r.Step(r.at)
		}
		if f.told != told+3 {
			t.Errorf("tried again %d times", f.told-told)
		}
		text := log.String()
		if got := [4]int{r.HostMissing(), strings.Count(text, "level=WARN"), strings.Count(text, "level=INFO"), strings.Count(text, "level=ERROR")}; got != [4]int{missing, warnings, infos, errs} {
			t.Errorf("missing, and logged: got %v, want %v:\n%s", got, [4]int{missing, warnings, infos, errs}, text)
		}
	}
	steps(3, 1, 0, 0)
	f.err = errors.New("no")
	steps(3, 1, 0, 1)
	f.missing, f.err = 0, nil
	steps(1, 1, 0, 1) // the other one
	r.hostRouter.devices = []dataplane.HostRouter{f}
	r.at += hostAgain
	r.Step(r.at)
	told := f.told
	for range 3 {
		r.at += hostAgain
		r.Step(r.at)
	}
	if n := strings.Count(log.String(), "level=INFO"); r.HostMissing() != 0 || n != 1 || f.told != told {
		t.Errorf("in the end: %d missing, logged %d times, told %d times more", r.HostMissing(), n, f.told-told)
	}
}
