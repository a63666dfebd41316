//go:build integration && linux

package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nmfwd/test/lab/apu2"
	"nmfwd/test/netns"
)

// TestReload gives nmfwd 100,000 routes under load, and then a broken file.
func TestReload(t *testing.T) {
	b := newBed(t)
	b.withoutLoss(4, 20_000, both, func(f *flows) { reload(b, f) })
	b.stop()
}

func reload(b *bed, f *flows) {
	t := b.T
	f.more(2000)
	var big strings.Builder
	big.WriteString(labConfig(t))
	const routes = 100_000
	for i := range routes {
		fmt.Fprintf(&big, "route %d.%d.%d.0/24 via 198.%d.0.203\n", 20+i>>16, i>>8&255, i&255, 18+i&1)
	}
	b.write(big.String())
	before := b.scrape()
	b.reload(1)
	if n := b.scrape().Sum("nmfwd_routes") - before.Sum("nmfwd_routes"); n != routes {
		t.Errorf("%.0f more routes, want %d", n, routes)
	}
	f.more(2000)

	b.write(labConfig(t) + "route 10.0.0.0/8 via 192.0.2.1\nroute bad\n")
	before = b.scrape()
	b.reload(0)
	after := b.scrape()
	if n := after.Sum("nmfwd_routes"); n != before.Sum("nmfwd_routes") {
		t.Errorf("%.0f routes after a broken file, want %.0f", n, before.Sum("nmfwd_routes"))
	}
	lines := strings.Count(labConfig(t), "\n")
	for _, place := range []string{fmt.Sprintf("routes.conf:%d:", lines+1), fmt.Sprintf("routes.conf:%d:", lines+2)} {
		if !strings.Contains(b.log.String(), place) {
			t.Errorf("the log does not say %s", place)
		}
	}
	f.more(2000)

	b.write(labConfig(t))
	b.reload(1)
	if n := b.scrape().Sum("nmfwd_routes"); n != before.Sum("nmfwd_routes")-routes {
		t.Errorf("%.0f routes, want %.0f as at first", n, before.Sum("nmfwd_routes")-routes)
	}
	f.more(2000)
}

// TestReloadOrder reloads a file that names the ports in another order, and in
// the first one again, under load.
func TestReloadOrder(t *testing.T) {
	b := newBed(t)
	lines := strings.SplitAfter(labConfig(t), "\n")
	slices.Reverse(lines)
	b.withoutLoss(4, 20_000, both, func(f *flows) {
		for _, config := range []string{strings.Join(lines, ""), labConfig(t)} {
			b.write(config)
			b.reload(1)
			f.more(2000)
		}
	})
	b.stop()
}

// TestReloadMTU changes the MTU of a port: it may be up to the device's own. No
// errors are sent, or the sender would learn the MTU.
func TestReloadMTU(t *testing.T) {
	config := func(mtu string) string {
		return strings.Replace(labConfig(t), "2001:2:0:8000::205/64", "2001:2:0:8000::205/64 "+mtu, 1) + "option icmp-rate off\n"
	}
	b := startBed(t, newLab(t, 2, 2), config("mtu 1280"))
	for _, round := range []struct {
		mtu               string
		want              float64
		successful, drops float64
	}{
		{"mtu 1280", 1280, 1, 1}, {"mtu 1400", 1400, 1, 1}, {"mtu 1501", 1400, 0, 1}, {"", 1500, 1, 0}, {"mtu 1500", 1500, 1, 0},
	} {
		b.write(config(round.mtu))
		b.reload(round.successful)
		if got := b.scrape().Sum("nmfwd_port_mtu_bytes", `device="igb2"`); got != round.want {
			t.Errorf("%s: MTU %.0f, want %.0f", round.mtu, got, round.want)
		}
		p, err := b.Generator.NewPinger(apu2.ReceiverAddrs[1].Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		wait := 10 * time.Second
		if round.drops > 0 {
			wait = 500 * time.Millisecond
		}
		if err := p.Ping(1452, wait); (err == nil) != (round.drops == 0) {
			t.Errorf("%s: ping of 1500 bytes: %v", round.mtu, err)
		}
		if got := b.settle("too_big").Sum("nmfwd_dropped_packets_total"); got != round.drops {
			t.Errorf("%s: %.0f packets dropped, want %.0f", round.mtu, got, round.drops)
		}
	}
	b.stop()
}

// TestStartErrors starts nmfwd with configurations of which it learns late that
// they cannot be. It says so and leaves the ports alone.
func TestStartErrors(t *testing.T) {
	l := newLab(t, 2, 2)
	for _, test := range []struct {
		name, config, want string
		code               int
	}{
		{"address that the host lacks", strings.Replace(labConfig(t), "198.18.0.205/24", "198.18.0.206/24", 1),
			"port igb1: the host lacks 198.18.0.206/24: ip address add 198.18.0.206/24 dev igb1", 69},
		{"mac of another", strings.Replace(labConfig(t), "port igb1", "port igb1 mac 02:00:00:00:00:01", 1),
			"port igb1: the host's MAC address is 00:0d:b9:41:ca:3d, not 02:00:00:00:00:01", 69},
		{"metrics on an address of others", strings.Replace(labConfig(t), "127.0.0.1", "192.0.2.1", 1),
			"metrics: listen tcp 192.0.2.1:9469: bind: cannot assign requested address", 69},
		{"mtu too large", strings.Replace(labConfig(t), "2001:2::205/64", "2001:2::205/64 mtu 1501", 1),
			"port igb1: MTU 1501 is more than the interface's 1500: ip link set dev igb1 mtu 1501", 69},
		{"too many queues", strings.Replace(labConfig(t), "2001:2::205/64", "2001:2::205/64 queues 3", 1),
			"port igb1: 3 queues: the device has 1 to 2", 69},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &bed{T: t, Lab: l, config: filepath.Join(t.TempDir(), "routes.conf"), log: &logged{t: t}}
			b.write(test.config)
			cmd := exec.Command(program, "-c", b.config)
			cmd.Stdout, cmd.Stderr = b.log, b.log
			if err := l.Router.Start(cmd); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
			defer cancel()
			if err := l.Router.Wait(ctx, cmd); err == nil || cmd.ProcessState.ExitCode() != test.code {
				t.Errorf("%v, want exit status %d", err, test.code)
			}
			if !strings.Contains(b.log.String(), test.want) || strings.Contains(b.log.String(), "goroutine") {
				t.Errorf("nmfwd does not say %q", test.want)
			}
			b.clean()
		})
	}
}

// reload sends HUP and waits until nmfwd has counted it. It must then report
// whether it was successful.
func (b *bed) reload(successful float64) {
	b.Helper()
	before := b.scrape().Sum("nmfwd_config_reloads_total")
	if err := b.fwd.Signal(syscall.SIGHUP); err != nil {
		b.Fatal(err)
	}
	eventually(b.T, func() error {
		if b.scrape().Sum("nmfwd_config_reloads_total") == before {
			return fmt.Errorf("no reload was counted")
		}
		return nil
	})
	if got := b.scrape().Sum("nmfwd_config_last_reload_successful"); got != successful {
		b.Errorf("last reload successful: %v, want %v", got, successful)
	}
}

// TestTerm ends nmfwd under load on a router whose kernel can forward as well:
// the kernel takes over, and no frame is lost.
func TestTerm(t *testing.T) {
	l := newLab(t, 2, 2)
	if err := l.KernelRouter(); err != nil {
		t.Fatal(err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		var b *bed
		lucky(t, func() error {
			b = startBed(t, l, labConfig(t))
			f := b.send(4, 20_000, both...)
			f.more(2000)
			if err := b.fwd.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if err := b.fwd.Wait(t.Context()); err != nil {
				t.Errorf("%v: %v", sig, err)
			}
			f.more(2000)
			res := f.end()
			b.clean()
			if res.Lost > 0 {
				return fmt.Errorf("%d of %d frames lost", res.Lost, res.Sent)
			}
			return nil
		})
		for _, fam := range families {
			if err := b.ping(b.Generator, apu2.ReceiverAddrs[fam.index].Addr(), 1000); err != nil {
				t.Errorf("%s through the kernel: %v", fam.name, err)
			}
		}
	}
}

// TestKill kills nmfwd under load. The kernel removes what it had attached and
// forwards again, and nmfwd can be started again.
func TestKill(t *testing.T) {
	l := newLab(t, 2, 2)
	if err := l.KernelRouter(); err != nil {
		t.Fatal(err)
	}
	b := startBed(t, l, labConfig(t))
	for _, name := range []string{apu2.IGB1, apu2.IGB2} {
		p, err := l.Router.Port(name)
		if err != nil {
			t.Fatal(err)
		}
		if p.Xdp == nil || !p.Xdp.Attached {
			t.Errorf("%s has no XDP program while nmfwd runs", name)
		}
	}
	f := b.send(6, 20_000, both...)
	f.more(2000)
	if err := b.fwd.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := b.fwd.Wait(t.Context()); err == nil {
		t.Error("exit status 0 after SIGKILL")
	}
	f.end()
	b.clean()
	for _, fam := range families {
		if err := b.ping(b.Generator, apu2.ReceiverAddrs[fam.index].Addr(), 1000); err != nil {
			t.Errorf("%s through the kernel: %v", fam.name, err)
		}
	}
	again := startBed(t, l, labConfig(t))
	again.withoutLoss(4, 20_000, both, func(f *flows) { f.more(2000) })
	again.stop()
}

// clean waits until the router's ports have no XDP program and are not
// promiscuous.
func (b *bed) clean() {
	b.Helper()
	for _, name := range []string{apu2.IGB1, apu2.IGB2} {
		eventually(b.T, func() error {
			p, err := b.Router.Port(name)
			if err != nil {
				return err
			}
			if p.Xdp != nil && p.Xdp.Attached || p.Promisc != 0 {
				return fmt.Errorf("%s: XDP program %+v, promiscuity %d", name, p.Xdp, p.Promisc)
			}
			return nil
		})
	}
}

// TestPortDown sets a port down and up again under load.
func TestPortDown(t *testing.T) {
	b := newBed(t)
	f := b.send(4, 20_000, both...)
	f.more(2000)
	if err := b.Router.Down(apu2.IGB2); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if n := b.scrape().Sum("nmfwd_port_up", `device="igb2"`); n != 0 {
			return fmt.Errorf("nmfwd_port_up is %v while the port is down", n)
		}
		return nil
	})
	f.more(2000)
	lucky(t, func() error { return b.ping(b.Generator, apu2.IGB1Addrs[0].Addr(), 100) }) // the other port
	if err := b.Router.Up(apu2.IGB2); err != nil {
		t.Fatal(err)
	}
	// The kernel removes a port's IPv6 addresses when it goes down.
	if err := b.Router.AddAddr(apu2.IGB2, apu2.IGB2Addrs[1]); err != nil {
		t.Fatal(err)
	}
	received := func() uint64 {
		n, _, err := f.rcv.Received()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	eventually(t, func() error {
		if n := b.scrape().Sum("nmfwd_port_up", `device="igb2"`); n != 1 {
			return fmt.Errorf("nmfwd_port_up is %v while the port is up", n)
		}
		return nil
	})
	from := received()
	eventually(t, func() error {
		if received() < from+2000 {
			return fmt.Errorf("%d frames received since the port is up again", received()-from)
		}
		return nil
	})
	res := f.end()
	grew := b.settle("link_down", "tx_full")
	t.Logf("%d of %d lost, %.0f counted as link_down, %.0f as tx_full", res.Lost, res.Sent,
		grew.Sum("nmfwd_dropped_packets_total", `reason="link_down"`), grew.Sum("nmfwd_dropped_packets_total", `reason="tx_full"`))
	b.stop()
}

// TestVLANMade makes a VLAN in the kernel on a port that nmfwd has, and removes it,
// under load: no frame is lost, and the VLAN works at once. It is not in
// the configuration, so its frames are the host's, and there is nothing to reload.
// Where the kernel has no VLANs another interface is made on the port.
func TestVLANMade(t *testing.T) {
	b := newBed(t)
	b.withoutLoss(4, 20_000, both, func(f *flows) { makeVLAN(b, f) }, "not_our_mac")
	b.stop()
}

func makeVLAN(b *bed, f *flows) {
	t := b.T
	f.more(2000)
	ends := []struct {
		ns         *netns.Namespace
		port, addr string
	}{{b.Router, apu2.IGB1, "192.0.2.1/24"}, {b.Generator, apu2.Gen0, "192.0.2.2/24"}}
	vlans := true
	for _, end := range ends {
		err := end.ns.AddVLAN(end.port, "on0", 77)
		if errors.Is(err, unix.EOPNOTSUPP) {
			vlans = false
			err = end.ns.AddMACVLAN(end.port, "on0")
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := end.ns.AddAddr("on0", netip.MustParsePrefix(end.addr)); err != nil {
			t.Fatal(err)
		}
	}
	f.more(2000)
	if !vlans {
		t.Log("the kernel has no VLANs: not tried whether one works")
	} else {
		lucky(t, func() error { return b.ping(b.Generator, netip.MustParseAddr("192.0.2.1"), 1400) })
	}
	lucky(t, func() error { return b.ping(b.Generator, apu2.ReceiverAddrs[0].Addr(), 1400) }) // beside it
	for _, end := range ends {
		if err := end.ns.Remove("on0"); err != nil {
			t.Fatal(err)
		}
	}
	f.more(2000)
}

// TestPortGone removes a port under load. Nmfwd goes on with the other and ends
// well.
func TestPortGone(t *testing.T) {
	b := newBed(t)
	f := b.send(4, 20_000, both...)
	f.more(2000)
	f.end()
	if err := b.Router.Remove(apu2.IGB2); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if n := b.scrape().Sum("nmfwd_port_up", `device="igb2"`); n != 0 {
			return fmt.Errorf("nmfwd_port_up is %v after the port has gone", n)
		}
		return nil
	})
	for _, p := range apu2.IGB1Addrs {
		if err := b.ping(b.Generator, p.Addr(), 100); err != nil {
			t.Errorf("the other port: %v", err)
		}
	}
	if err := pingOnce(b.Generator, apu2.ReceiverAddrs[0].Addr(), time.Second); err == nil {
		t.Error("a reply from beyond the port that has gone")
	}
	b.settle("link_down", "tx_full")
	b.stop()
}
