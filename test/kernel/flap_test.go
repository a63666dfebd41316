//go:build integration && linux

package kernel

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"nmfwd/test/lab/apu2"
)

// TestFlap: the link between two of three routers goes down and comes back while
// TCP runs through it, by either family. Each time TCP goes on by itself.
func TestFlap(t *testing.T) {
	for _, row := range rows[1:] {
		t.Run(row.name, func(t *testing.T) { testFlap(t, row.chainOf) })
	}
}

func testFlap(t *testing.T, of chainOf) {
	c := newChain(t, of)
	c.known()
	end := c.stream()
	before := []apu2.Metrics{c.scrape(0), c.scrape(1), c.scrape(2)}
	for round := range 2 {
		for f, fam := range families {
			c.goesOn(f, fmt.Sprintf("%s, round %d", fam.name, round))
		}
		// By turns, the port of one router is set down, and the other one loses its
		// carrier.
		ns, port := c.spaces[1], right(1)
		if round%2 == 1 {
			ns, port = c.spaces[2], left(2)
		}
		c.must(ns.Down(port))
		c.link(1, right(1), 0)
		c.link(2, left(2), 0)
		for f, dst := range c.dst {
			if err := pingOnce(c.source, dst, 200*time.Millisecond); err == nil {
				t.Errorf("a reply from %v while the link is down", dst)
			}
			if src := c.src[f]; pingOnce(c.sink, src, 200*time.Millisecond) == nil {
				t.Errorf("a reply from %v while the link is down", src)
			}
		}
		c.must(ns.Up(port))
		start := time.Now()
		for f, fam := range families {
			c.goesOn(f, fmt.Sprintf("%s after round %d", fam.name, round))
			t.Logf("round %d: %s goes on within %v", round, fam.name, time.Since(start))
		}
	}
	end()
	c.known()
	may := []string{"link_down", "no_neighbor", "tx_full"}
	if of.tagged { // without hosts: what the end hosts' kernels and the routers' own say to all
		may = append(may, "multicast", "link_local", "router_alert")
	}
	for i, port := range []string{left(0), left(1), right(2)} {
		grew := c.scrape(i).Sub(before[i])
		for reason, n := range grew.By("reason", "nmfwd_dropped_packets_total") {
			if n > 0 && !slices.Contains(may, reason) {
				t.Errorf("router %d: %.0f packets dropped: %s", i+1, n, reason)
			}
		}
		// The pings at least.
		if n := grew.Sum("nmfwd_dropped_packets_total", `reason="link_down"`, `device="`+port+`"`); (n >= 4) != (i > 0) {
			t.Errorf("router %d: %.0f packets that came in by %s dropped: link_down", i+1, n, port)
		}
	}
	c.stop()
}

// stream starts a TCP stream of each family from source to sink and returns what
// ends both.
func (c *chain) stream() (end func()) {
	c.Helper()
	var all []*exec.Cmd
	for f, dst := range c.dst {
		port := fmt.Sprint(5201 + f)
		iperfServer(c.T, c.sink, port)
		cmd := exec.Command("iperf3", "-c", dst.String(), "-p", port, "-t", "60")
		c.must(c.source.Start(cmd))
		all = append(all, cmd)
	}
	return func() {
		c.Helper()
		for _, cmd := range all {
			ctx, cancel := context.WithTimeout(c.Context(), 10*time.Second)
			defer cancel()
			if cmd.ProcessState != nil {
				c.Errorf("iperf3 has ended: %v", cmd.ProcessState)
			}
			_ = cmd.Process.Signal(syscall.SIGINT)
			_ = c.source.Wait(ctx, cmd)
		}
	}
}

// goesOn waits until the last router has forwarded a thousand more packets of a
// family to the sink.
func (c *chain) goesOn(f int, what string) {
	c.Helper()
	last := len(c.routers) - 1
	count := func() float64 {
		return c.scrape(last).Sum("nmfwd_forwarded_packets_total", `device="`+left(last)+`"`, `family="`+families[f].ip+`"`)
	}
	from := count()
	eventually(c.T, func() error {
		if n := count() - from; n < 1000 {
			return fmt.Errorf("%s: %.0f packets forwarded since then", what, n)
		}
		return nil
	})
}

// link waits until router i says that a port is up, or down.
func (c *chain) link(i int, port string, up float64) {
	c.Helper()
	eventually(c.T, func() error {
		if n := c.scrape(i).Sum("nmfwd_port_up", `device="`+port+`"`); n != up {
			return fmt.Errorf("router %d: nmfwd_port_up of %s is %v, want %v", i+1, port, n, up)
		}
		return nil
	})
}
