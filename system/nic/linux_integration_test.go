//go:build integration && linux

package nic_test

import (
	"errors"
	"io/fs"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"nmfwd/system/nic"
	"nmfwd/test/netns"
)

// lab makes a namespace with a veth, lan0 with two queues, whose other end is in
// another one.
func lab(t *testing.T) *netns.Namespace {
	t.Helper()
	var ns [2]*netns.Namespace
	for i, name := range []string{"router", "peer"} {
		ns[i] = netns.ForTest(t, name)
	}
	if err := netns.Join(netns.Port{NS: ns[0], Name: "lan0", MAC: own, Queues: 2, MTU: 1400}, netns.Port{NS: ns[1], Name: "peer0"}); err != nil {
		t.Fatal(err)
	}
	return ns[0]
}

// enter calls f with the system of namespace n.
func enter(t *testing.T, n *netns.Namespace, f func(nic.System) error) {
	t.Helper()
	if err := n.Do(func() error {
		s, err := nic.Open()
		if err != nil {
			return err
		}
		return errors.Join(f(s), s.Close())
	}); err != nil {
		t.Fatal(err)
	}
}

func TestLinuxInfo(t *testing.T) {
	n := lab(t)
	enter(t, n, func(s nic.System) error {
		in, err := s.Info("lan0")
		for end := time.Now().Add(10 * time.Second); err == nil && !in.Carrier && time.Now().Before(end); {
			in, err = s.Info("lan0") // the kernel finds the carrier a moment later
		}
		if err != nil {
			return err
		}
		if !in.Up || !in.Carrier || in.MTU != 1400 || in.MAC.String() != own.String() || in.Driver != "veth" || in.Speed != 10_000 || in.RXRings != 2 || in.TXRings != 2 {
			t.Errorf("got %+v", in)
		}
		if name, err := s.Name(in.Index); name != "lan0" || err != nil {
			t.Errorf("name of interface %d: %q, %v", in.Index, name, err)
		}
		for _, name := range []string{"none0", "a-name-that-is-too-long"} {
			if _, err := s.Info(name); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := s.Name(1 << 20); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("no such index: %v", err)
		}
		return nil
	})
}

// TestLinuxTake compares with what ethtool and ip say.
func TestLinuxTake(t *testing.T) {
	n, dir := lab(t), t.TempDir()
	output := func(args ...string) string {
		out, err := n.Output(t.Context(), args[0], args[1:]...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	features := func() string { return output("ethtool", "--show-features", "lan0") }
	members := func() string {
		return strings.Join(regexp.MustCompile(`(promiscuity|allmulti) (\d+)`).FindAllString(output("ip", "-d", "link", "show", "lan0"), 2), " ")
	}
	before := features()
	if !strings.Contains(before, "rx-vlan-offload: on") || !strings.Contains(before, "tx-checksumming: on") || !strings.Contains(before, "generic-segmentation-offload: on") {
		t.Fatalf("a veth has none of the offloads:\n%s", before)
	}
	enter(t, n, func(s nic.System) error {
		taken, err := nic.Take(s, dir, []nic.Purpose{{Name: "lan0", MACs: []net.HardwareAddr{own, vrrp}}})
		if err != nil {
			return err
		}
		c := taken.Changes()[0]
		if c.Err != nil || len(c.Stay) > 0 || !strings.Contains(words(c.Set), "-rx-vlan-hw-parse") {
			t.Errorf("AF_XDP: set %q, stay %q, error %v", words(c.Set), words(c.Stay), c.Err)
		}
		if out := features(); !strings.Contains(out, "rx-vlan-offload: off") || !strings.Contains(out, "tx-checksumming: on") {
			t.Errorf("AF_XDP:\n%s", out)
		}
		if got, want := members(), "promiscuity 1 allmulti 1"; got != want {
			t.Errorf("AF_XDP: got %q, want %q", got, want)
		}
		if err := taken.Close(); err != nil {
			return err
		}
		if got, want := members(), "promiscuity 0 allmulti 0"; got != want {
			t.Errorf("closed: got %q, want %q", got, want)
		}
		taken, err = nic.Take(s, dir, []nic.Purpose{{Name: "lan0", Netmap: true, Host: true}})
		if err != nil {
			return err
		}
		if c := taken.Changes()[0]; c.Err != nil || len(c.Stay) > 0 {
			t.Errorf("netmap: stay %q, error %v", words(c.Stay), c.Err)
		}
		out := features()
		for _, want := range []string{"rx-vlan-offload: off", "tx-vlan-offload: off", "tx-checksumming: off", "tcp-segmentation-offload: off", "generic-segmentation-offload: off", "generic-receive-offload: off", "tx-udp-segmentation: off"} {
			if !strings.Contains(out, want) {
				t.Errorf("netmap: no %q in\n%s", want, out)
			}
		}
		// Another process would find the lock taken.
		if _, err := nic.Restore(s, dir, "lan0"); !errors.Is(err, nic.ErrBusy) {
			t.Errorf("Restore while open: %v", err)
		}
		return taken.Close()
	})
	if after := features(); after != before {
		t.Errorf("after Close:\n%s\nwant\n%s", after, before)
	}
	if got := left(t, dir); got != "" {
		t.Errorf("files: %q", got)
	}
}
