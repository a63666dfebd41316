//go:build integration && linux

package kernel

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestUnreachable: the sink's port leaves the last network and is replaced. The
// source is told that the host is unreachable, and reaches it again, at another
// MAC address. With hosts or without.
func TestUnreachable(t *testing.T) {
	for _, host := range []string{"on", "off"} {
		t.Run("host "+host, func(t *testing.T) {
			c := newChain(t, chainOf{routers: 3, words: "host " + host})
			c.known()
			addrs := []netip.Prefix{net4(3, 2), net6(3, 2)}
			// It comes back without its addresses.
			c.must(c.sink.Down("k0"))
			c.link(2, right(2), 0)
			c.must(c.sink.RemoveAddr("k0", addrs[0])) // the kernel removes the other one itself
			c.must(c.sink.Up("k0"))
			var pings sync.WaitGroup
			for f, version := range []string{"-4", "-6"} {
				pings.Go(func() {
					// One a second, until there is a reply or an error.
					out, err := c.run("ping", version, "-n", "-c", "1", "-w", "20", c.dst[f].String())
					said := []string{"Destination Host Unreachable", "Address unreachable"}[f]
					if from := c.hops[f][2].String(); err == nil || !strings.Contains(out, said) || !strings.Contains(out, from) {
						t.Errorf("ping %s is not told by %s that the host is unreachable: %v", version, from, err)
					}
				})
			}
			pings.Wait()
			c.must(c.sink.Down("k0"))
			c.link(2, right(2), 0)
			_, err := c.sink.Output(t.Context(), "ip", "link", "set", "k0", "address", "02:00:00:00:09:09")
			c.must(err)
			c.must(c.sink.Up("k0"))
			for _, a := range addrs {
				c.must(c.sink.AddAddr("k0", a))
			}
			c.must(c.sink.AddRoute(netip.MustParsePrefix("10.7.0.0/16"), net4(3, 1).Addr()))
			c.must(c.sink.AddRoute(netip.MustParsePrefix("2001:db8:7::/48"), net6(3, 1).Addr()))
			c.known()
			c.stop()
		})
	}
}

// TestRestart: the router in the middle reloads, is killed and is started again
// under TCP of both families. Its kernel forwards meanwhile, and streams go on.
func TestRestart(t *testing.T) {
	c := newChain(t, chainOf{routers: 3, forward: true})
	c.known()
	end := c.stream()
	both := func(what string) {
		t.Helper()
		for f, fam := range families {
			c.goesOn(f, fam.name+" "+what)
		}
	}
	both("at first")
	for i := range 3 {
		file, err := os.ReadFile(c.configs[1])
		c.must(err)
		c.must(os.WriteFile(c.configs[1], append(file, fmt.Sprintf("route 192.0.2.%d/32 blackhole\n", i)...), 0o644))
		c.must(c.routers[1].Signal(syscall.SIGHUP))
		eventually(t, func() error {
			if n := c.scrape(1).Sum("nmfwd_config_reloads_total", `result="success"`); n != float64(i+1) {
				return fmt.Errorf("%v reloads", n)
			}
			return nil
		})
		both("after a reload")
	}
	if n := c.scrape(1).Sum("nmfwd_dropped_packets_total", `reason="no_neighbor"`); n > 0 {
		t.Errorf("%.0f packets dropped in reloads: no_neighbor", n)
	}
	for range 2 {
		c.must(c.routers[1].Signal(syscall.SIGKILL))
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		if err := c.routers[1].Wait(ctx); err == nil || ctx.Err() != nil {
			t.Errorf("killed: %v", err)
		}
		cancel()
		for _, name := range []string{left(1), right(1)} {
			eventually(t, func() error {
				p, err := c.spaces[1].Port(name)
				if err == nil && p.Xdp != nil && p.Xdp.Attached {
					err = fmt.Errorf("%s still has an XDP program", name)
				}
				return err
			})
		}
		both("through the kernel")
		c.start(1)
		before := c.scrape(1).Sum("nmfwd_forwarded_packets_total")
		both("after a restart")
		if n := c.scrape(1).Sum("nmfwd_forwarded_packets_total") - before; n < 1000 {
			t.Errorf("nmfwd forwarded %.0f packets after a restart", n)
		}
	}
	end()
	c.stop()
}
