package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"nmfwd/control"
	"nmfwd/dataplane"
	"nmfwd/fib"
)

// A knowing is a device that has to know the router's own addresses.
type knowing struct {
	dataplane.Device
	knows []netip.Addr
	calls int
	fails map[int]bool // by number of the call, from 1
}

var errDevice = errors.New("the device does not answer")

// SetAddrs implements dataplane.AddressFilter. A call that fails leaves something
// else behind.
func (k *knowing) SetAddrs(a []netip.Addr) error {
	k.calls++
	if k.fails[k.calls] {
		k.knows = nil
		return errDevice
	}
	k.knows = slices.Clone(a)
	return nil
}

const (
	before = `
port a 198.18.0.1/24 mac 02:00:00:00:00:01
port b 198.18.1.1/24 mac 02:00:00:00:00:02
route 10.0.0.0/8 blackhole
`
	after = `
port a 198.18.0.1/24 mac 02:00:00:00:00:01
port b 198.18.2.1/24 mac 02:00:00:00:00:02
route 10.0.0.0/8 reject
`
)

// A reloading is a router whose devices know its addresses.
type reloading struct {
	*testing.T
	*Memory
	devices []*knowing
	log     bytes.Buffer
}

func newReloading(t *testing.T) *reloading {
	t.Helper()
	l := &reloading{T: t}
	cfg := parse(t, before)
	m, err := NewMemory(cfg, Options{Log: slog.New(slog.NewTextHandler(&l.log, nil))}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	l.Memory = m
	ports := m.Forwarder.Ports()
	for _, p := range ports {
		k := &knowing{Device: p.Device, knows: Own(cfg), fails: make(map[int]bool)}
		p.Device = k
		l.devices = append(l.devices, k)
	}
	m.addrs = newAddresses(ports, Own(cfg), m.log)
	m.Drain(0, 0)
	return l
}

// expect checks that text is in use and that all devices know what follows from it.
func (l *reloading) expect(text string) {
	l.Helper()
	cfg := parse(l.T, text)
	for i, k := range l.devices {
		if got, want := fmt.Sprint(k.knows), fmt.Sprint(Own(cfg)); got != want {
			l.Errorf("device %d knows %v, want %v", i, got, want)
		}
	}
	want, err := NewMemory(cfg, Options{}, nil)
	if err != nil {
		l.Fatal(err)
	}
	defer want.Close()
	for _, a := range []string{"198.18.1.1", "198.18.2.1", "10.1.2.3"} {
		addr := netip.MustParseAddr(a)
		if got, want := l.Forwarder.State().FIB.Lookup(addr).Action, want.Forwarder.State().FIB.Lookup(addr).Action; got != want {
			l.Errorf("%v: got action %v, want %v", addr, got, want)
		}
	}
	if got, want := l.Config().Ports[1].Addrs, cfg.Ports[1].Addrs; !slices.Equal(got, want) {
		l.Errorf("the configuration in use has %v, want %v", got, want)
	}
}

// refuse is reload with routes of the system that control does not take.
func (l *reloading) refuse(text string) error {
	l.kernel = func() (control.RouteFeed, []fib.Route) {
		return nil, []fib.Route{{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Origin: fib.Kernel, Kind: fib.OnLink, Port: 99}}
	}
	defer func() { l.kernel = nil }()
	return l.reload(text)
}

func (l *reloading) reload(text string) error {
	return l.Reload(l.Context(), parse(l.T, text))
}

func TestReload(t *testing.T) {
	l := newReloading(t)
	if err := l.reload(after); err != nil {
		t.Fatal(err)
	}
	l.expect(after)
	if l.devices[0].calls != 2 || l.log.Len() > 0 {
		t.Errorf("got %d calls and log %s", l.devices[0].calls, &l.log)
	}
}

// TestRefusedReloadChangesNothing has each step fail that comes before the tables
// are swapped.
func TestRefusedReloadChangesNothing(t *testing.T) {
	for name, fail := range map[string]func(l *reloading) error{
		"first device": func(l *reloading) error { l.devices[0].fails[1] = true; return l.reload(after) },
		"last device":  func(l *reloading) error { l.devices[1].fails[1] = true; return l.reload(after) },
		"tables":       func(l *reloading) error { return l.refuse(after) },
		"ended": func(l *reloading) error {
			ctx, cancel := context.WithCancel(l.Context())
			cancel()
			return l.Reload(ctx, parse(l.T, after))
		},
		"MTU": func(l *reloading) error { return l.reload(strings.Replace(after, "port a", "port a mtu 9000", 1)) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newReloading(t)
			if err := fail(l); err == nil {
				t.Fatal("no error")
			}
			l.expect(before)
			if l.log.Len() > 0 {
				t.Errorf("log: %s", &l.log)
			}
			if err := l.reload(after); err != nil {
				t.Fatal(err)
			}
			l.expect(after)
		})
	}
}

// TestDeviceIsToldAgain has devices fail where a reload has succeeded or was
// refused already: that is no result of the reload, but is told, and tried until
// it is done.
func TestDeviceIsToldAgain(t *testing.T) {
	for name, c := range map[string]struct {
		reload func(l *reloading, text string) error
		in     string
		fails  []int
	}{
		"narrowed":           {(*reloading).reload, after, []int{2}},
		"narrowed, twice":    {(*reloading).reload, after, []int{2, 3}},
		"back, tables":       {(*reloading).refuse, before, []int{2}},
		"back, device":       {(*reloading).reload, before, []int{1, 2}},
		"back, device again": {(*reloading).reload, before, []int{1, 2, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newReloading(t)
			for _, n := range c.fails {
				l.devices[1].fails[n] = true
			}
			err := c.reload(l, after)
			if (err == nil) != (c.in == after) {
				t.Fatalf("got error %v", err)
			}
			if l.devices[1].knows != nil || strings.Count(l.log.String(), "tried again") != 1 {
				t.Fatalf("the device knows %v; log:\n%s", l.devices[1].knows, &l.log)
			}
			for now := time.Duration(0); now < 5*time.Second; now += againAfter / 2 {
				l.Step(now, 0)
			}
			l.expect(c.in)
			if log := l.log.String(); strings.Count(log, "tried again") != 1 || strings.Count(log, "addresses only, again") != 1 {
				t.Errorf("log:\n%s", log)
			}
		})
	}
}

// TestThreadTellsDeviceAgain is the same with threads.
func TestThreadTellsDeviceAgain(t *testing.T) {
	l := newReloading(t)
	l.devices[1].fails[2] = true
	if err := l.Start(); err != nil {
		t.Fatal(err)
	}
	if err := l.reload(after); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); l.addrs.late(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not told again in a minute")
		}
	}
	l.Stop()
	l.expect(after)
}
