//go:build integration && linux

package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"nmfwd/test/lab/apu2"
	"nmfwd/test/netns"
)

// unconfigured returns the lab's configuration without static neighbors, with
// hosts or not.
func unconfigured(t *testing.T, host string) string {
	t.Helper()
	var s strings.Builder
	for line := range strings.Lines(labConfig(t)) {
		switch word, _, _ := strings.Cut(line, " "); word {
		case "arp", "ndp":
			continue
		case "port":
			line = strings.TrimRight(line, "\n") + " host " + host + "\n"
		}
		s.WriteString(line)
	}
	return s.String()
}

// flush has the router's kernel forget its neighbors.
func (b *bed) flush() {
	b.Helper()
	for _, port := range []string{apu2.IGB1, apu2.IGB2} {
		// It fails when they come back faster than it goes round, which is as well.
		if _, err := b.Router.Output(b.Context(), "ip", "neigh", "flush", "dev", port); err != nil && !strings.Contains(err.Error(), "Flush not complete") {
			b.Fatal(err)
		}
	}
}

// TestNeighbors has no static neighbors at all: they are found, by the kernel or
// by nmfwd itself, forgotten and found again, also where they have moved to.
func TestNeighbors(t *testing.T) {
	for _, host := range []string{"on", "off"} {
		t.Run("host "+host, func(t *testing.T) {
			b := startBed(t, newLab(t, 2, 2), unconfigured(t, host))
			through := func(what string) { // from the receiver first: a machine that has moved says so by asking
				t.Helper()
				for _, f := range families {
					for _, way := range []struct {
						from *netns.Namespace
						to   string
					}{{b.Receiver, apu2.GeneratorAddrs[f.index].Addr().String()}, {b.Generator, apu2.ReceiverAddrs[f.index].Addr().String()}} {
						ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
						defer cancel()
						// Echo requests once a second until one is answered.
						if _, err := way.from.Output(ctx, "ping", "-n", "-c", "1", "-w", "25", way.to); err != nil {
							t.Fatalf("%s: %s: %v", what, way.to, err)
						}
					}
				}
			}
			run := func(n *netns.Namespace, args ...string) {
				t.Helper()
				if _, err := n.Output(t.Context(), args[0], args[1:]...); err != nil {
					t.Fatal(err)
				}
			}
			through("at first")
			if n := b.scrape().Sum("nmfwd_neighbors", `state="reachable"`) + b.scrape().Sum("nmfwd_neighbors", `state="delay"`) +
				b.scrape().Sum("nmfwd_neighbors", `state="stale"`) + b.scrape().Sum("nmfwd_neighbors", `state="probe"`); n < 4 {
				t.Errorf("%.0f neighbors known, want 4 at least", n)
			}
			iperfServer(t, b.Receiver, "5201")
			for _, f := range families {
				for _, way := range []string{"", "-R"} {
					args := []string{apu2.ReceiverAddrs[f.index].Addr().String()}
					if way != "" {
						args = append(args, way)
					}
					lucky(t, func() error {
						_, err := iperf(t, b.Generator, false, args...)
						return err
					})
				}
			}
			if host == "on" {
				// The kernel forgets its neighbors, and verifies those that are used.
				b.flush()
				through("flushed")
				for _, port := range []string{apu2.IGB1, apu2.IGB2} {
					for _, v := range []string{"ipv4", "ipv6"} {
						if err := b.Router.Sysctl("net/"+v+"/neigh/"+port+"/base_reachable_time_ms", "1000"); err != nil {
							t.Fatal(err)
						}
					}
				}
				eventually(t, func() error {
					through("used")
					out, err := b.Router.Output(t.Context(), "ip", "neigh", "show", "nud", "stale", "nud", "reachable", "nud", "delay", "nud", "probe")
					if err == nil && strings.Count(out, "\n") < 4 {
						err = fmt.Errorf("the router's kernel knows only %s", out)
					}
					return err
				})
			}
			// The receiver gets another MAC address, as another machine would be.
			mac := net.HardwareAddr{2, 0, 0, 0, 9, 9}
			run(b.Receiver, "ip", "link", "set", apu2.Rcv0, "address", mac.String())
			run(b.Receiver, "ip", "neigh", "flush", "dev", apu2.Rcv0)
			through("moved")
			b.settle("no_neighbor", "multicast", "link_local", "router_alert", "tx_full")
			b.stop()
		})
	}
}

// TestFlushed: the kernel is made to forget its neighbors ten times a second while
// echo requests and replies come, a hundred a second, and then packets one way, a
// thousand a second. None is lost, as none is by the kernel itself.
func TestFlushed(t *testing.T) {
	b := startBed(t, newLab(t, 2, 2), unconfigured(t, "on"))
	for _, f := range families {
		eventually(t, func() error { return b.ping(b.Generator, apu2.ReceiverAddrs[f.index].Addr(), 56) })
		pinged := make(chan error, 1)
		go func() {
			out, err := b.Generator.Output(t.Context(), "ping", "-n", "-q", "-i", "0.01", "-c", "300", "-W", "10", apu2.ReceiverAddrs[f.index].Addr().String())
			if err == nil && !strings.Contains(out, " 0% packet loss") || strings.Contains(out, "error") {
				err = errors.New(out)
			}
			pinged <- err
		}()
		for going := true; going; {
			b.flush()
			select {
			case err := <-pinged:
				if going = false; err != nil {
					t.Errorf("%s: %v", f.name, err)
				}
			case <-time.After(100 * time.Millisecond):
			}
		}
		b.withoutLoss(4+2*f.index, 1000, []int{0}, func(f *flows) {
			for range 30 {
				f.more(100)
				b.flush()
			}
			f.more(100)
		}, "multicast", "link_local", "router_alert")
	}
	b.stop()
}
