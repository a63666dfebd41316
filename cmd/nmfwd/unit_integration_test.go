//go:build integration && linux

package main

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"nmfwd/test/netns"
)

// A unit is the systemd unit that is installed: the values of its keys.
type unit map[string][]string

func readUnit(t *testing.T) unit {
	t.Helper()
	b, err := os.ReadFile("../../contrib/systemd/nmfwd.service")
	if err != nil {
		t.Fatal(err)
	}
	u := unit{}
	for l := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(l), "="); ok && !strings.HasPrefix(l, "#") {
			u[key] = append(u[key], strings.Fields(value)...)
		}
	}
	return u
}

// confine makes cmd run with the capabilities that the unit leaves to root, and so
// without those that enter a namespace.
func (u unit) confine(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Fatal(err) // of util-linux, which every system has
	}
	bounding := "-all"
	for _, c := range u["CapabilityBoundingSet"] {
		bounding += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
	}
	args := []string{setpriv, "--bounding-set", bounding}
	if slices.Equal(u["NoNewPrivileges"], []string{"yes"}) {
		args = append(args, "--no-new-privs")
	}
	cmd.Path, cmd.Args = setpriv, append(append(args, cmd.Path), cmd.Args[1:]...)
}

// TestUnit: with the capabilities of the systemd unit nmfwd starts over AF_XDP,
// with routes and neighbors of the host; it forwards, reloads and ends, and no
// setting stays changed.
func TestUnit(t *testing.T) {
	u := readUnit(t)
	if len(u["CapabilityBoundingSet"]) == 0 || len(u["AmbientCapabilities"]) > 0 || len(u["User"]) > 0 {
		t.Fatalf("the unit runs nmfwd in a way that this test does not know: %v", u)
	}
	b := newBox(t, "")
	socket := filepath.Join(t.TempDir(), "sock")
	conf := "port up0 addr kernel driver afxdp\nport up1 198.21.0.205/24 driver afxdp\noption routes kernel\nlisten control " + socket + "\n"
	if err := os.WriteFile(b.conf, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := b.Sysctl("net/ipv4/ip_forward", "0"); err != nil {
		t.Fatal(err)
	}
	var hosts []*netns.Namespace
	for i, name := range []string{"up0", "up1"} {
		h := netns.ForTest(t, "host")
		addr := func(last byte) []netip.Prefix {
			return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{198, byte(20 + i), 0, last}), 24)}
		}
		if err := netns.Join(netns.Port{NS: b.Namespace, Name: name, Addrs: addr(205)}, netns.Port{NS: h, Name: "eth0", Addrs: addr(203)}); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Output(t.Context(), "ip", "route", "add", "default", "via", addr(205)[0].Addr().String()); err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, h)
	}
	before := b.strips("up0")
	cmd, _ := b.forwardBy(func(cmd *exec.Cmd) { u.confine(t, cmd) })
	ping := func(when string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for ctx.Err() == nil {
			if _, err := hosts[0].Output(ctx, "ping", "-c", "1", "-W", "1", "198.21.0.203"); err == nil {
				return
			}
		}
		t.Errorf("%s: no ping gets through", when)
	}
	ping("start")
	if err := os.WriteFile(b.conf, []byte(conf+"route 203.0.113.0/24 blackhole\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	reload := b.command("reload", "-c", b.conf)
	u.confine(t, reload)
	if err := b.Namespace.Start(reload); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := b.Namespace.Wait(ctx, reload); err != nil {
		t.Errorf("reload: %v", err)
	}
	if out, code := b.run("show", "-s", socket, "route", "203.0.113.1"); code != 0 || !strings.Contains(out, "blackhole") {
		t.Errorf("after the reload: exit code %d\n%s", code, out)
	}
	ping("after the reload")
	if err := b.end(cmd, syscall.SIGTERM); err != nil || b.strips("up0") != before {
		t.Errorf("TERM: %v, VLAN offload %t, before %t", err, b.strips("up0"), before)
	}
}

// TestLackAtStart: nmfwd ends with a code after which the unit starts it again when
// an interface or an address is missing, and with one after which it does not when
// the file is wrong.
func TestLackAtStart(t *testing.T) {
	u := readUnit(t)
	final := func(code int) bool { return slices.Contains(u["RestartPreventExitStatus"], strconv.Itoa(code)) }
	if !slices.Equal(u["StartLimitIntervalSec"], []string{"0"}) || !slices.Equal(u["Restart"], []string{"on-failure"}) || len(u["ExecStartPre"]) > 0 {
		t.Errorf("the unit gives up, or tries what cannot be: %v", u)
	}
	b := newBox(t, "")
	good, err := os.ReadFile(b.conf)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, lines, want string
		final             bool
	}{
		{"no interface", "port late 192.0.2.1/24 driver afxdp\n", ":3:1: ", false},
		{"no interface, addresses of the host", "port late addr kernel driver afxdp\n", ":3:1: ", false},
		{"an MTU that is yet to be set", "vlan 7 on lan0 192.0.2.1/24 mtu 9000\n", ":3:1: ", false},
		{"no interface of a VLAN", "vlan 7 on lan0 192.0.2.1/24\n", ":3:1: port lan0.7: the host lacks the interface: ip link add link lan0 name lan0.7 type vlan id 7", false},
		{"unknown word", "prot lan2\n", ":3:1: ", true},
		{"gateway on no network", "route 10.0.0.0/8 via 192.0.2.1\n", ":3:22: ", true},
		{"a file that is not there", "include late.conf\n", ":3:9: ", true},
	} {
		if err := os.WriteFile(b.conf, append(slices.Clone(good), c.lines...), 0o644); err != nil {
			t.Fatal(err)
		}
		out, code := b.run("-c", b.conf)
		if _, checked := b.run("check", "-c", b.conf); checked != code {
			t.Errorf("%s: check has exit code %d, a start %d", c.name, checked, code)
		}
		if code == 0 || final(code) != c.final || !strings.Contains(out, b.conf+c.want) {
			t.Errorf("%s: exit code %d\n%s", c.name, code, out)
		}
	}
	// An address that is late, named by the file or not.
	if err := b.RemoveAddr("lan1", netip.MustParsePrefix("198.19.0.205/24")); err != nil {
		t.Fatal(err)
	}
	for _, conf := range []string{string(good), "port lan0 198.18.0.205/24 driver afxdp\nport lan1 addr kernel driver afxdp\nroute 10.0.0.0/8 via 198.19.0.203\n"} {
		if err := os.WriteFile(b.conf, []byte(conf), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"-c", b.conf}, {"check", "-c", b.conf}} {
			if out, code := b.run(args...); code == 0 || final(code) || !strings.Contains(out, b.conf+":") {
				t.Errorf("late address, %q: exit code %d\n%s", args, code, out)
			}
		}
		if out, code := b.run("-t", "-c", b.conf); code != 0 {
			t.Errorf("-t, which does not look at the system: exit code %d\n%s", code, out)
		}
	}
	if _, err := b.Output(t.Context(), "ip", "address", "add", "198.19.0.205/24", "dev", "lan1"); err != nil {
		t.Fatal(err)
	}
	cmd, _ := b.forward()
	if err := b.end(cmd, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}
