package control

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"nmfwd/arp"
	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
	"nmfwd/fib"
	"nmfwd/ndp"
	"nmfwd/neigh"
	"nmfwd/wire"
)

var (
	macA = wire.MACOf([]byte{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x3d})
	macB = wire.MACOf([]byte{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x3e})
	g1   = wire.MACOf([]byte{0x00, 0x1b, 0x21, 0xc4, 0x95, 0x7a})
	g2   = wire.MACOf([]byte{0x00, 0x1b, 0x21, 0xc4, 0x95, 0x7b})
)

// labSpec is the APU2 lab on ports without a host.
func labSpec() *Spec {
	s := &Spec{MaxNeighbors: 100, Ports: []Port{
		{Name: "A", MAC: macA, MTU: 1500, Addrs: prefixes("198.18.0.205/24", "2001:2::205/64")},
		{Name: "B", MAC: macB, MTU: 1500, Addrs: prefixes("198.19.0.205/24", "2001:2:0:8000::205/64")},
	}}
	for port, gws := range [][]string{{"198.18.0.203", "2001:2::203"}, {"198.19.0.203", "2001:2:0:8000::203"}} {
		for i, gw := range gws {
			to := [][]string{{"198.18.0.0/16", "2001:2::/49"}, {"198.19.0.0/16", "2001:2:0:8000::/49"}}[port][i]
			s.Routes = append(s.Routes, fib.Route{Prefix: netip.MustParsePrefix(to), Origin: fib.Static, Kind: fib.Via, Gateway: netip.MustParseAddr(gw), Port: uint16(port)})
			s.Neighbors = append(s.Neighbors, neigh.Entry{Key: neigh.Key{Port: uint16(port), Addr: netip.MustParseAddr(gw)}, MAC: []wire.MAC{g1, g2}[port]})
		}
	}
	return s
}

func prefixes(s ...string) (ps []netip.Prefix) {
	for _, x := range s {
		ps = append(ps, netip.MustParsePrefix(x))
	}
	return ps
}

// lab returns a control over two ports in memory.
func lab(t testing.TB, s *Spec) (*Control, [2]*memport.Port) {
	t.Helper()
	region := memport.NewRegion("test", 2048, memport.Stride)
	var ports [2]*memport.Port
	for i, name := range []string{"A", "B"} {
		p, err := memport.New(region, memport.Config{Name: name, MinFrame: 60})
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = p
	}
	r, err := dataplane.NewForwarder([]*dataplane.Port{&ports[0].Port, &ports[1].Port}, 1, dataplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	c, err := New(r, s, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c, ports
}

// pass delivers a frame to a port and returns what that port sends.
func pass(c *Control, p *memport.Port, frame []byte) [][]byte {
	p.Deliver(0, frame)
	w := c.router.Workers()[0]
	w.Step(0)
	c.HandlePunts()
	w.Step(0)
	return p.Transmit(0)
}

func TestAnswers(t *testing.T) {
	c, ports := lab(t, labSpec())
	a := netip.MustParseAddr
	request := func(target string) []byte {
		b := make([]byte, 60)
		arp.Request(b, wire.Broadcast, g1, a("198.18.0.203"), a(target))
		return b
	}
	for _, x := range []struct {
		name  string
		frame []byte
		want  string // the frame's start in hex, empty for no answer
	}{
		{"ARP for the port's address", request("198.18.0.205"), "001b21c4957a000db941ca3d0806" + "0001080006040002" + "000db941ca3dc61200cd" + "001b21c4957ac61200cb"},
		{"ARP for the other port's address", request("198.19.0.205"), ""},
		{"ARP for a neighbor's address", request("198.18.0.203"), ""},
		{"ARP for a stranger's address", request("198.18.0.7"), ""},
	} {
		got := pass(c, ports[0], x.frame)
		want, _ := hex.DecodeString(x.want)
		switch {
		case x.want == "" && len(got) > 0:
			t.Errorf("%s: got an answer % x", x.name, got[0])
		case x.want != "" && (len(got) != 1 || !bytes.HasPrefix(got[0], want) || len(got[0]) != 60):
			t.Errorf("%s: got % x, want one frame of 60 bytes that starts with % x", x.name, got, want)
		}
	}

	for _, target := range []string{"2001:2::205", ndp.LinkLocal(macA).String()} {
		b := make([]byte, 128)
		b = b[:ndp.Solicitation(b, g1, a("2001:2::203"), a(target))]
		got := pass(c, ports[0], b)
		if len(got) != 1 {
			t.Fatalf("solicitation for %s: got %d answers", target, len(got))
		}
		ip := got[0][wire.EthernetLen:]
		if wire.CheckIPv6(ip, len(ip)) != wire.OK || ip[40] != 136 || ip[44]&0x60 != 0x60 || netip.AddrFrom16([16]byte(ip[48:64])) != a(target) {
			t.Errorf("solicitation for %s: got % x, want a solicited advertisement", target, got[0])
		}
	}
}

// TestConflicts: what the network says never changes a static neighbor, and is
// counted.
func TestConflicts(t *testing.T) {
	c, ports := lab(t, labSpec())
	thief := wire.MACOf([]byte{2, 0, 0, 0, 0, 9})
	b := make([]byte, 60)
	arp.Announcement(b, thief, netip.MustParseAddr("198.18.0.203"))
	pass(c, ports[0], b)
	if got := c.Neighbors().Conflicts(0, neigh.StaticConflict); got != 1 {
		t.Errorf("got %d static conflicts, want 1", got)
	}
	arp.Announcement(b, thief, netip.MustParseAddr("198.18.0.205"))
	pass(c, ports[0], b)
	if got := c.Neighbors().Conflicts(0, neigh.OwnAddressConflict); got != 1 {
		t.Errorf("got %d conflicts over our own address, want 1", got)
	}
	adj := c.router.State().FIB.Lookup(netip.MustParseAddr("198.18.10.1"))
	if got := wire.MACOf(adj.Head[:]); adj.Action != fib.Forward || got != g1 {
		t.Errorf("the neighbor moved to % x", got.Bytes())
	}
}

func TestReload(t *testing.T) {
	c, _ := lab(t, labSpec())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	dump := func() string {
		var b strings.Builder
		if err := c.router.State().FIB.Dump(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	first := dump()

	bad := labSpec()
	bad.Routes[0].Port = 7
	if err := c.Reload(ctx, bad); err == nil {
		t.Error("a route by a port that is not there was accepted")
	}
	bad = labSpec()
	bad.MaxNeighbors = 100
	bad.Neighbors = append(bad.Neighbors, neigh.Entry{Key: neigh.Key{Port: 0, Addr: netip.MustParseAddr("198.18.0.9")}, MAC: wire.Broadcast})
	if err := c.Reload(ctx, bad); err == nil {
		t.Error("a neighbor at the broadcast address was accepted")
	}
	if got := dump(); got != first {
		t.Errorf("a refused reload changed the tables:\n%s\nwant\n%s", got, first)
	}

	next := labSpec()
	next.Routes = next.Routes[:2]
	next.Neighbors = next.Neighbors[1:]
	if err := c.Reload(ctx, next); err != nil {
		t.Fatal(err)
	}
	f := c.router.State().FIB
	if got := f.Lookup(netip.MustParseAddr("198.19.10.1")).Action; got != fib.NoRoute {
		t.Errorf("a route that is gone: got %v", got)
	}
	if got := f.Lookup(netip.MustParseAddr("198.18.10.1")).Action; got != fib.Resolve {
		t.Errorf("a route whose neighbor is gone: got %v", got)
	}
	compiles := uint64(0)
	for _, n := range c.Stats().Compiles {
		compiles += n
	}
	if compiles != 2 {
		t.Errorf("got %d compilations counted, want 2", compiles)
	}
	if err := c.Reload(ctx, labSpec()); err != nil {
		t.Fatal(err)
	}
	if got := dump(); got != first {
		t.Errorf("back to the first configuration:\n%s\nwant\n%s", got, first)
	}
	cancel()
	<-done
}

func TestLinks(t *testing.T) {
	c, ports := lab(t, labSpec())
	if !c.router.State().Ports[1].Up {
		t.Fatal("B starts down")
	}
	ports[1].SetLink(false)
	c.watchLinks()
	if c.router.State().Ports[1].Up {
		t.Error("B is still up")
	}
	ports[1].SetLink(true)
	c.watchLinks()
	c.watchLinks()
	var s dataplane.Snapshot
	c.router.Snapshot(&s)
	if !s.Ports[1].Up || s.Ports[1].LinkChanges != 2 || s.Ports[0].LinkChanges != 0 {
		t.Errorf("got up %v, %d and %d changes, want true, 2 and 0", s.Ports[1].Up, s.Ports[1].LinkChanges, s.Ports[0].LinkChanges)
	}
}

// A changing device is told what is different of it.
type changing struct {
	dataplane.Device
	what error
}

func (c *changing) Changed() error { return c.what }

// TestDevices: what others change of a port is logged once, and once more when
// it is changed back.
func TestDevices(t *testing.T) {
	c, ports := lab(t, labSpec())
	var log bytes.Buffer
	c.log = slog.New(slog.NewTextHandler(&log, nil))
	d := &changing{Device: ports[1].Device}
	ports[1].Device = d
	for _, x := range []struct {
		name, what, want string
	}{
		{"as opened", "", ""},
		{"MTU", "MTU is now 1400", `port=B what="MTU is now 1400"`},
		{"MTU still", "MTU is now 1400", ""},
		{"MAC", "MAC address is now 02:00:00:00:00:01", `port=B what="MAC address is now 02:00:00:00:00:01"`},
		{"changed back", "", "again\" port=B"},
	} {
		d.what = nil
		if x.what != "" {
			d.what = errors.New(x.what)
		}
		log.Reset()
		c.watchDevices()
		if got := log.String(); !strings.Contains(got, x.want) || x.want == "" && got != "" || strings.Count(got, "\n") > 1 {
			t.Errorf("%s: logged %q, want %q", x.name, got, x.want)
		}
	}
}

// Tables in small pages are not rounded up for large ones.
func TestSmallPages(t *testing.T) {
	size := func(small bool) int {
		tab, err := compile(t.Context(), &Spec{SmallPages: small})
		if err != nil {
			t.Fatal(err)
		}
		return tab.rib.Bytes(6)
	}
	if small, huge := size(true), size(false); small >= huge {
		t.Errorf("tables of %d bytes in small pages, %d in huge ones", small, huge)
	}
}
