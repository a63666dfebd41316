//go:build integration && linux

package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"nmfwd/test/netns"
)

// A bird is a routing daemon in a namespace.
type bird struct {
	name   string
	ns     *netns.Namespace
	socket string
}

// startBird starts BIRD with protocols.
func startBird(t *testing.T, name string, ns *netns.Namespace, id, protocols string) *bird {
	t.Helper()
	dir := t.TempDir()
	b := &bird{name: name, ns: ns, socket: filepath.Join(dir, "ctl")}
	conf := filepath.Join(dir, "bird.conf")
	if err := os.WriteFile(conf, []byte("router id "+id+";\nprotocol device {}\n"+protocols), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bird", "-f", "-c", conf, "-s", b.socket, "-P", filepath.Join(dir, "pid"))
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := ns.Start(cmd); err != nil {
		t.Fatalf("bird is needed: apt-get install bird2: %v", err)
	}
	return b
}

// show returns what BIRD shows.
func (b *bird) show(t *testing.T, what ...string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	out, err := b.ns.Output(ctx, "birdc", append([]string{"-r", "-s", b.socket, "show"}, what...)...)
	if err != nil {
		return "", fmt.Errorf("%s: %w", b.name, err)
	}
	return out, nil
}

// established finds a BGP session that is up, and when it came up.
var established = regexp.MustCompile(`(?m)^bgp\d +BGP +\S+ +up +(\S+) +Established`)

// sessions returns when the BGP sessions of b came up, or an error when they are
// not as many or an OSPF adjacency is lacking.
func (b *bird) sessions(t *testing.T, bgp int, ospf ...string) (up []time.Time, err error) {
	out, err := b.show(t, "protocols")
	if err != nil {
		return nil, err
	}
	for _, m := range established.FindAllStringSubmatch(out, -1) {
		at, err := time.Parse("15:04:05.000", m[1])
		if err != nil {
			return nil, err
		}
		up = append(up, at)
	}
	if len(up) != bgp {
		return nil, fmt.Errorf("%s has %d BGP sessions, want %d: %s", b.name, len(up), bgp, out)
	}
	for _, o := range ospf {
		if out, err = b.show(t, "ospf", "neighbors", o); err != nil || !strings.Contains(out, "Full") {
			return nil, fmt.Errorf("%s is not adjacent by %s: %w: %s", b.name, o, err, out)
		}
	}
	return up, nil
}

// TestRoutingDaemons: OSPF of both versions and BGP between the sink and the last
// router, whose host has that router's addresses, and BGP between source and sink
// through all routers, stay up while the routers forward all that TCP can send.
func TestRoutingDaemons(t *testing.T) {
	c := newChain(t, chainOf{routers: 3})
	c.known()
	const (
		ospf = `
protocol ospf v2 o2 { ipv4 { import all; export none; }; area 0 { interface "%[1]s" { type ptp; hello 1; dead 4; }; }; }
protocol ospf v3 o3 { ipv6 { import all; export none; }; area 0 { interface "%[1]s" { type ptp; hello 1; dead 4; }; }; }
`
		bgp = `
protocol bgp bgp%[1]d { local %[2]v as %[4]d; neighbor %[3]v as %[5]d; multihop 8; connect retry time 1; connect delay time 1;
	hold time 3; keepalive time 1; ipv4 { import all; export all; next hop self; }; ipv6 { import all; export all; next hop self; }; }
`
	)
	var toRouter, toSink, toSource, fromSource string
	for f := range families {
		router := []any{net4(3, 1).Addr(), net6(3, 1).Addr()}[f]
		toRouter += fmt.Sprintf(bgp, f, c.dst[f], router, 64500, 64501)
		toSink += fmt.Sprintf(bgp, f, router, c.dst[f], 64501, 64500)
		toSource += fmt.Sprintf(bgp, 2+f, c.dst[f], c.src[f], 64500, 64502)
		fromSource += fmt.Sprintf(bgp, 2+f, c.src[f], c.dst[f], 64502, 64500)
	}
	sink := startBird(t, "sink", c.sink, "10.0.0.1", fmt.Sprintf(ospf, "k0")+toRouter+toSource)
	router := startBird(t, "router", c.spaces[2], "10.0.0.2", fmt.Sprintf(ospf, right(2))+toSink)
	source := startBird(t, "source", c.source, "10.0.0.3", fromSource)

	all := func() ([]time.Time, error) {
		a, err1 := sink.sessions(t, 4, "o2", "o3")
		b, err2 := router.sessions(t, 2, "o2", "o3")
		c, err3 := source.sessions(t, 2)
		return slices.Concat(a, b, c), errors.Join(err1, err2, err3)
	}
	up := func() (at []time.Time) {
		t.Helper()
		eventually(t, func() (err error) {
			at, err = all()
			return err
		})
		return at
	}
	up()
	end := c.stream()
	// BIRD needs CPU time within the hold time, which the routers do not grant.
	lucky(t, func() error {
		before := up()
		start := time.Now()
		for time.Since(start) < 6*time.Second { // twice the hold time
			after, err := all()
			if err != nil {
				return err
			}
			for i := range after { // BIRD rounds anew each time
				if after[i].Sub(before[i]).Abs() > 500*time.Millisecond {
					return fmt.Errorf("a session came up at %v, and again at %v", before[i], after[i])
				}
			}
			for f, fam := range families {
				c.goesOn(f, fam.name)
			}
			if err := echo(t, c.sink, c.spaces[2], net4(3, 1).Addr()); err != nil {
				t.Errorf("TCP to the router: %v", err)
			}
		}
		return nil
	})
	end()
	c.stop()
}
