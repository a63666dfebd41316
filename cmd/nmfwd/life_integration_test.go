//go:build integration && linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nmfwd/test/netns"
)

// patience is how long anything may take that happens by itself.
const patience = 20 * time.Second

// A box is a router of two veths, lan0 and lan1, whose peers have a namespace of
// their own, and its configuration.
type box struct {
	*testing.T
	*netns.Namespace
	conf string
}

func newBox(t *testing.T, lines string) *box {
	t.Helper()
	var ns [2]*netns.Namespace
	for i, name := range []string{"router", "peer"} {
		ns[i] = netns.ForTest(t, name)
	}
	for i, name := range []string{"lan0", "lan1"} {
		a := netip.MustParsePrefix(fmt.Sprintf("198.%d.0.205/24", 18+i))
		if err := netns.Join(netns.Port{NS: ns[0], Name: name, Addrs: []netip.Prefix{a}}, netns.Port{NS: ns[1], Name: "peer" + name}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"lan0", "lan1"} { // the kernel says late that they have a carrier
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			p, err := ns[0].Port(name)
			if err != nil {
				t.Fatal(err)
			}
			if p.OperState == netlink.OperUp {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s is %v", name, p.OperState)
			}
		}
	}
	return &box{t, ns[0], write(t, "routes.conf", "port lan0 198.18.0.205/24 driver afxdp\nport lan1 198.19.0.205/24 driver afxdp\n"+lines)}
}

// command returns the command nmfwd.
func (b *box) command(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "NMFWD_BE_THE_COMMAND=1")
	return cmd
}

// run runs nmfwd until it ends.
func (b *box) run(args ...string) (out string, code int) {
	b.Helper()
	var both strings.Builder
	cmd := b.command(args...)
	cmd.Stdout, cmd.Stderr = &both, &both
	if err := b.Namespace.Start(cmd); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	if err := b.Namespace.Wait(ctx, cmd); ctx.Err() != nil {
		b.Fatalf("%q: %v\n%s", args, err, both.String())
	}
	return both.String(), cmd.ProcessState.ExitCode()
}

// forward starts nmfwd and returns it and what it has logged once it is ready.
func (b *box) forward(env ...string) (*exec.Cmd, string) {
	b.Helper()
	return b.forwardBy(func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, env...) })
}

// forwardBy is forward with a command that is changed before it is started.
func (b *box) forwardBy(change func(*exec.Cmd)) (*exec.Cmd, string) {
	b.Helper()
	cmd := b.command("-c", b.conf)
	change(cmd)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := b.Namespace.Start(cmd); err != nil {
		b.Fatal(err)
	}
	var log strings.Builder
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		fmt.Fprintln(&log, lines.Text())
		if strings.Contains(lines.Text(), "msg=ready") {
			go io.Copy(io.Discard, stderr)
			return cmd, log.String()
		}
	}
	b.Fatalf("nmfwd ended:\n%s", log.String())
	return nil, ""
}

// end sends nmfwd a signal and waits until it has ended.
func (b *box) end(cmd *exec.Cmd, s os.Signal) error {
	b.Helper()
	if err := cmd.Process.Signal(s); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	err := b.Namespace.Wait(ctx, cmd)
	if ctx.Err() != nil {
		b.Fatalf("nmfwd goes on after %v", s)
	}
	return err
}

// strips reports whether the receive VLAN offload of a port is on.
func (b *box) strips(port string) bool {
	b.Helper()
	out, err := b.Output(b.Context(), "ethtool", "--show-features", port)
	if err != nil {
		b.Fatal(err)
	}
	return strings.Contains(out, "rx-vlan-offload: on")
}

// TestCheck: the report of nmfwd check, before a start and during one.
func TestCheck(t *testing.T) {
	b := newBox(t, "")
	out, code := b.run("check", "-c", b.conf)
	for _, want := range []string{
		"lan0: afxdp, mode known at start only, driver veth, ",
		"10000 Mbit/s, host on\n",
		"lan1: MTU 1500, buffers for frames of 1792 bytes\n",
		"lan0: settings to be changed while nmfwd runs: ethtool --features lan0 rx-vlan-hw-parse off",
		"nmfwd: ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if code != 0 || !b.strips("lan0") {
		t.Errorf("exit code %d, VLAN offload %t", code, b.strips("lan0"))
	}
	cmd, _ := b.forward()
	if out, code := b.run("check", "-c", b.conf); code != 0 || !strings.Contains(out, "lan0: note: an nmfwd runs on it") {
		t.Errorf("while one runs: exit code %d\n%s", code, out)
	}
	if err := b.end(cmd, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := b.SetMTU("lan1", 9000); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check", "-c", b.conf}, {"-c", b.conf}} {
		out, code := b.run(args...)
		if code != exUnavailable || strings.Contains(out, "-256") || !strings.Contains(out, b.conf+":2") || !strings.Contains(out, "port lan1: a frame of MTU 9000 does not fit the largest buffer") {
			t.Errorf("%q with MTU 9000: exit code %d\n%s", args, code, out)
		}
	}
	if err := b.SetMTU("lan1", 1500); err != nil {
		t.Fatal(err)
	}
	if err := b.Down("lan1"); err != nil {
		t.Fatal(err)
	}
	if out, code := b.run("check", "-c", b.conf); code != exUnavailable || !strings.Contains(out, "lan1: error: "+b.conf+":2:1: the interface is down\n\tip link set dev lan1 up\n") {
		t.Errorf("a port is down: exit code %d\n%s", code, out)
	}
	if err := b.Up("lan1"); err != nil {
		t.Fatal(err)
	}
	if err := b.RemoveAddr("lan0", netip.MustParsePrefix("198.18.0.205/24")); err != nil {
		t.Fatal(err)
	}
	if out, code := b.run("check", "-c", b.conf); code != exUnavailable || !strings.Contains(out, "the host lacks 198.18.0.205/24") {
		t.Errorf("no address: exit code %d\n%s", code, out)
	}
}

// TestSettings: settings are restored at the end, a second
// nmfwd on the ports is refused and touches nothing, and after a kill -9 the next
// start or nmfwd restore gives back what was there before the first.
func TestSettings(t *testing.T) {
	b := newBox(t, "")
	first, log := b.forward()
	if b.strips("lan0") || !strings.Contains(log, `msg="settings changed while nmfwd runs: ethtool --features lan0 rx-vlan-hw-parse off`) {
		t.Errorf("VLAN offload %t, log\n%s", b.strips("lan0"), log)
	}
	if out, code := b.run("-c", b.conf); code != exUnavailable || !strings.Contains(out, fmt.Sprintf("port lan0: settings: another nmfwd has it (pid %d, ", first.Process.Pid)) {
		t.Errorf("second nmfwd: exit code %d\n%s", code, out)
	}
	if out, code := b.run("restore", "lan0"); code != exUnavailable || b.strips("lan0") {
		t.Errorf("restore while nmfwd runs: exit code %d\n%s", code, out)
	}
	if err := b.end(first, syscall.SIGTERM); err != nil || !b.strips("lan0") {
		t.Errorf("after TERM: %v, VLAN offload %t", err, b.strips("lan0"))
	}

	killed, _ := b.forward()
	b.end(killed, syscall.SIGKILL)
	if b.strips("lan0") || b.strips("lan1") {
		t.Error("after KILL: VLAN offload is on")
	}
	if out, code := b.run("check", "-c", b.conf); code != 0 || !strings.Contains(out, "lan1: warning: an nmfwd that was killed has left settings changed\n\tnmfwd restore lan1\n") {
		t.Errorf("check after KILL: exit code %d\n%s", code, out)
	}
	if out, code := b.run("restore", "lan1"); code != 0 || !strings.HasPrefix(out, "lan1: restored, as by: ethtool --features lan1 ") || !b.strips("lan1") {
		t.Errorf("restore: exit code %d, VLAN offload %t\n%s", code, b.strips("lan1"), out)
	}
	if out, code := b.run("restore", "lan1"); code != 0 || !strings.Contains(out, "nothing to restore") {
		t.Errorf("restore again: exit code %d\n%s", code, out)
	}
	if out, code := b.run("restore", "lan1", "lan0", "lan7"); code != 0 || !b.strips("lan0") ||
		!strings.Contains(out, "lan1: nothing to restore") || !strings.Contains(out, "lan0: restored, as by: ethtool --features lan0 ") || !strings.Contains(out, "lan7: nothing to restore") {
		t.Errorf("restore of several: exit code %d, VLAN offload %t\n%s", code, b.strips("lan0"), out)
	}
	if _, code := b.run("restore"); code != exUsage {
		t.Errorf("restore of none: exit code %d", code)
	}
	killed, _ = b.forward()
	b.end(killed, syscall.SIGKILL)
	next, log := b.forward()
	if out, code := b.run("restore", "lan0", "lan1"); code != exUnavailable || !strings.Contains(out, "port lan0: another nmfwd has it") || !strings.Contains(out, "port lan1: another nmfwd has it") {
		t.Errorf("restore of several while nmfwd runs: exit code %d\n%s", code, out)
	}
	if !strings.Contains(log, "an nmfwd before this one was killed") {
		t.Errorf("log after KILL\n%s", log)
	}
	if err := b.end(next, syscall.SIGTERM); err != nil || !b.strips("lan0") || !b.strips("lan1") {
		t.Errorf("after TERM: %v, VLAN offload of lan0 %t, of lan1 %t", err, b.strips("lan0"), b.strips("lan1"))
	}
	var space unix.Stat_t // others may have tests at the same time
	if err := b.Do(func() error { return unix.Stat("/proc/thread-self/ns/net", &space) }); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(fmt.Sprintf("/var/run/nmfwd-lan[01]@%d.settings", space.Ino)); len(left) > 0 {
		t.Errorf("files left: %q", left)
	}
}

// TestNotify: the service manager is told when the ports are up.
func TestNotify(t *testing.T) {
	b := newBox(t, "")
	name := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	read := func() string {
		buf := make([]byte, 100)
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		n, err := c.Read(buf)
		if err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
	cmd, _ := b.forward("NOTIFY_SOCKET=" + name)
	if got := read(); got != "READY=1" {
		t.Errorf("got %q", got)
	}
	if err := b.end(cmd, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if got := read(); got != "STOPPING=1" {
		t.Errorf("got %q", got)
	}
}
