package router

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// TestBroadcasts: those of the system's networks are known, also of networks that
// come later, and stay known while the system does not answer.
func TestBroadcasts(t *testing.T) {
	parse := func(list ...string) (addrs []net.Addr) {
		for _, s := range list {
			ip, n, err := net.ParseCIDR(s)
			if err != nil {
				t.Fatal(err)
			}
			addrs = append(addrs, &net.IPNet{IP: ip, Mask: n.Mask})
		}
		return addrs
	}
	var system atomic.Pointer[[]net.Addr]
	first := parse("127.0.0.1/8", "203.0.113.1/24", "198.51.100.9/30", "192.0.2.0/31", "192.0.2.9/32", "2001:db8::1/64")
	system.Store(&first)
	b := readBroadcasts(func() ([]net.Addr, error) {
		if a := system.Load(); a != nil {
			return *a, nil
		}
		return nil, errors.New("busy")
	})
	for s, want := range map[string]bool{
		"203.0.113.255": true, "203.0.113.0": true, "203.0.113.1": false, "198.51.100.11": true, "198.51.100.8": true, "198.51.100.255": false,
		"192.0.2.1": false, "192.0.2.9": false, "127.255.255.255": false, "10.0.0.255": false, "2001:db8::": false,
	} {
		if got := b.have(netip.MustParseAddr(s)); got != want {
			t.Errorf("%s: got %v, want %v", s, got, want)
		}
	}
	later := parse("10.0.0.1/24")
	for _, step := range []struct {
		has  *[]net.Addr
		addr string
		want bool
	}{{&later, "10.0.0.255", true}, {&later, "203.0.113.255", false}, {nil, "10.0.0.255", true}} {
		system.Store(step.has)
		b.read.Store(int64(-2 * broadcastsAge)) // it is old
		end := time.Now().Add(10 * time.Second)
		for b.have(netip.MustParseAddr(step.addr)) != step.want || b.reading.Load() {
			if time.Now().After(end) {
				t.Fatalf("%s: want %v", step.addr, step.want)
			}
			time.Sleep(time.Millisecond)
		}
	}
}
