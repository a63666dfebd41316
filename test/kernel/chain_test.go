//go:build integration && linux

package kernel

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"nmfwd/test/lab/apu2"
	"nmfwd/test/netns"
)

// A chain is a row of routers between two kernels:
//
//	source            r1               r2                   sink
//	s0 .2 ---- .1 r1a  r1b .1 ---- .2 r2a  r2b .1 ---- .2 k0
//	   10.7.0.0/24        10.7.1.0/24         10.7.2.0/24
//
// and in the same way 2001:db8:7:N::/64. Nobody has a static neighbor.
type chain struct {
	*testing.T
	source, sink *netns.Namespace
	spaces       []*netns.Namespace // of the routers
	routers      []*apu2.NMFWD
	configs      []string        // their files
	src, dst     [2]netip.Addr   // source and sink, by family
	hops         [2][]netip.Addr // what a trace shows, by family
}

// A chainOf says what a chain is made of.
type chainOf struct {
	routers int
	words   string // of the routers' ports
	more    string // lines of the routers' configurations
	mtus    []int  // of the networks, 1500 where none is given
	tagged  bool   // between routers, IPv4 is in VLAN 100 and IPv6 in VLAN 200
	forward bool   // the routers' kernels forward what nmfwd does not
}

// The VLANs of a tagged chain.
const vlan4, vlan6 = 100, 200

// net4 and net6 return address n of network i.
func net4(i, n int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf("10.7.%d.%d/24", i, n)) }
func net6(i, n int) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("2001:db8:7:%d::%d/64", i, n))
}

// left and right name the ports of router i, which is on networks i and i+1.
func left(i int) string  { return fmt.Sprintf("r%da", i+1) }
func right(i int) string { return fmt.Sprintf("r%db", i+1) }

// newChain makes a chain and starts its routers.
func newChain(t *testing.T, of chainOf) *chain {
	t.Helper()
	c := &chain{T: t}
	c.source, c.sink = netns.ForTest(t, "source"), netns.ForTest(t, "sink")
	for i := range of.routers {
		ns := netns.ForTest(t, fmt.Sprintf("r%d", i+1))
		// A port that is down keeps its addresses of either family.
		c.must(ns.Sysctl("net/ipv6/conf/default/keep_addr_on_down", "1"))
		c.spaces = append(c.spaces, ns)
	}
	for i := range of.routers + 1 {
		c.join(i, of)
	}
	c.src = [2]netip.Addr{net4(0, 2).Addr(), net6(0, 2).Addr()}
	c.dst = [2]netip.Addr{net4(of.routers, 2).Addr(), net6(of.routers, 2).Addr()}
	all := []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16"), netip.MustParsePrefix("2001:db8:7::/48")}
	for f, gw := range []netip.Addr{net4(0, 1).Addr(), net6(0, 1).Addr()} {
		c.must(c.source.AddRoute(all[f], gw))
	}
	for f, gw := range []netip.Addr{net4(of.routers, 1).Addr(), net6(of.routers, 1).Addr()} {
		c.must(c.sink.AddRoute(all[f], gw))
	}
	c.must(c.source.SetFeature("s0", netns.TXChecksum, false))
	c.must(c.sink.SetFeature("k0", netns.TXChecksum, false))
	for i, ns := range c.spaces {
		c.must((&apu2.Lab{Router: ns}).Forward(of.forward))
		if of.forward {
			c.kernelRoutes(i, of)
		}
		file := filepath.Join(t.TempDir(), fmt.Sprintf("r%d.conf", i+1))
		c.must(os.WriteFile(file, []byte(of.config(i)), 0o644))
		c.configs = append(c.configs, file)
		c.routers = append(c.routers, nil)
		c.start(i)
	}
	return c
}

func (c *chain) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// join makes network i: the router nearer to the source has .1 there, and the
// sink or the other router .2.
func (c *chain) join(i int, of chainOf) {
	c.Helper()
	a := netns.Port{NS: c.source, Name: "s0", Queues: 1}
	b := netns.Port{NS: c.sink, Name: "k0", Queues: 1}
	lower, upper := 1, 2
	if i == 0 {
		lower, upper = 2, 1
	} else {
		a.NS, a.Name = c.spaces[i-1], right(i-1)
	}
	if i < of.routers {
		b.NS, b.Name = c.spaces[i], left(i)
	}
	if !of.tag(i) {
		a.Addrs = []netip.Prefix{net4(i, lower), net6(i, lower)}
		b.Addrs = []netip.Prefix{net4(i, upper), net6(i, upper)}
	}
	if i < len(of.mtus) {
		a.MTU, b.MTU = of.mtus[i], of.mtus[i]
	}
	c.must(netns.Join(a, b))
	c.hops[0] = append(c.hops[0], net4(i, upper).Addr())
	c.hops[1] = append(c.hops[1], net6(i, upper).Addr())
}

// tag reports whether network i is tagged.
func (of *chainOf) tag(i int) bool { return of.tagged && i > 0 && i < of.routers }

// config returns the configuration of router i.
func (of *chainOf) config(i int) string {
	var s strings.Builder
	fmt.Fprintf(&s, "listen metrics %s\n%s", apu2.MetricsAddr, of.more)
	for side, name := range []string{left(i), right(i)} {
		network, n := i+side, 1
		if side == 0 && i > 0 {
			n = 2
		}
		if of.tag(network) {
			fmt.Fprintf(&s, "port %s %s\nvlan %d on %s %v\nvlan %d on %s %v\n",
				name, of.words, vlan4, name, net4(network, n), vlan6, name, net6(network, n))
		} else {
			fmt.Fprintf(&s, "port %s %v %v %s\n", name, net4(network, n), net6(network, n), of.words)
		}
	}
	if i > 0 {
		fmt.Fprintf(&s, "route default via %v\nroute default via %v\n", net4(i, 1).Addr(), net6(i, 1).Addr())
	}
	for j := i + 2; j <= of.routers; j++ {
		fmt.Fprintf(&s, "route %v via %v\nroute %v via %v\n", net4(j, 0).Masked(), net4(i+1, 2).Addr(), net6(j, 0).Masked(), net6(i+1, 2).Addr())
	}
	return s.String()
}

// kernelRoutes gives the kernel of router i the routes of its configuration, and
// has it take redirected frames.
func (c *chain) kernelRoutes(i int, of chainOf) {
	c.Helper()
	for _, port := range []string{left(i), right(i)} {
		c.must(c.spaces[i].SetFeature(port, netns.GRO, true))
	}
	if i > 0 {
		c.must(c.spaces[i].AddRoute(netip.MustParsePrefix("0.0.0.0/0"), net4(i, 1).Addr()))
		c.must(c.spaces[i].AddRoute(netip.MustParsePrefix("::/0"), net6(i, 1).Addr()))
	}
	for j := i + 2; j <= of.routers; j++ {
		c.must(c.spaces[i].AddRoute(net4(j, 0).Masked(), net4(i+1, 2).Addr()))
		c.must(c.spaces[i].AddRoute(net6(j, 0).Masked(), net6(i+1, 2).Addr()))
	}
}

// start starts router i.
func (c *chain) start(i int) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), 20*time.Second)
	defer cancel()
	fwd, err := (&apu2.Lab{Router: c.spaces[i]}).StartNMFWD(ctx, program, c.configs[i], &logged{t: c.T})
	c.must(err)
	c.routers[i] = fwd
	onFailure(c.T, c.spaces[i], fwd)
}

// run runs a program at the source.
func (c *chain) run(name string, args ...string) (string, error) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), 40*time.Second)
	defer cancel()
	out, err := c.source.Output(ctx, name, args...)
	c.Logf("%s %s\n%s", name, strings.Join(args, " "), out)
	return out, err
}

// known makes all neighbors on the way known.
func (c *chain) known() {
	c.Helper()
	for f, dst := range c.dst {
		eventually(c.T, func() error {
			if err := pingOnce(c.source, dst, time.Second); err != nil {
				return fmt.Errorf("family %d: %w", f, err)
			}
			return nil
		})
	}
}

// pingOnce sends one echo request and waits for its reply.
func pingOnce(from *netns.Namespace, dst netip.Addr, timeout time.Duration) error {
	p, err := from.NewPinger(dst)
	if err != nil {
		return err
	}
	defer p.Close()
	return p.Ping(56, timeout)
}

// scrape reads the metrics of router i.
func (c *chain) scrape(i int) apu2.Metrics {
	c.Helper()
	m, err := c.routers[i].Scrape(c.Context())
	c.must(err)
	return m
}

// stop ends the routers, whose packets must be accounted for.
func (c *chain) stop() {
	c.Helper()
	for _, r := range c.routers {
		if _, err := r.AtRest(c.Context()); err != nil {
			c.Error(err)
		}
		if err := r.Stop(); err != nil {
			c.Error(err)
		}
	}
}

// iperfServer starts a server in a namespace and waits until it listens.
func iperfServer(t *testing.T, ns *netns.Namespace, port string) {
	t.Helper()
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Fatalf("iperf3 is needed: apt-get install iperf3: %v", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cmd := exec.Command("iperf3", "-s", "-p", port, "--forceflush")
	cmd.Stdout, cmd.Stderr = w, w
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	listening := make(chan error, 1)
	go func() {
		defer r.Close()
		s := bufio.NewScanner(r)
		for s.Scan() {
			if strings.Contains(s.Text(), "listening") {
				listening <- nil
				break
			}
		}
		if s.Err() != nil {
			listening <- s.Err()
		}
		_, _ = io.Copy(io.Discard, r) // ends with the server
	}()
	select {
	case err := <-listening:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("iperf3 does not listen")
	}
}
