//go:build integration && linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"nmfwd/bench/routes"
)

// manyRoutes appends n IPv4 routes to a box's configuration. Those of another seed
// are others.
func (b *box) manyRoutes(n int, seed uint64) {
	b.Helper()
	text, err := os.ReadFile(b.conf)
	if err != nil {
		b.Fatal(err)
	}
	text, _, _ = bytes.Cut(text, []byte("route "))
	var c bytes.Buffer
	c.Write(text)
	for i, p := range routes.Generate(n, true, seed) {
		fmt.Fprintf(&c, "route %v via 198.19.0.%d\n", p, 1+i%8)
	}
	if err := os.WriteFile(b.conf, c.Bytes(), 0o644); err != nil {
		b.Fatal(err)
	}
}

// resident returns the resident memory of a process in bytes, and the most that it
// has had since forgetPeak.
func resident(t *testing.T, cmd *exec.Cmd) (now, peak int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	kB := func(name string) int {
		m := regexp.MustCompile(name + `:\s+(\d+) kB`).FindSubmatch(status)
		if m == nil {
			t.Fatalf("no %s in\n%s", name, status)
		}
		n, _ := strconv.Atoi(string(m[1]))
		return n << 10
	}
	return kB("VmRSS"), kB("VmHWM")
}

// forgetPeak makes the most memory that a process has had what it has now.
func forgetPeak(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", cmd.Process.Pid), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
}

// atRest returns the resident memory of a process once it has stayed the same for
// a second, 10 s later at the latest.
func atRest(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	last, since := 0, time.Now()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && time.Since(since) < time.Second; time.Sleep(50 * time.Millisecond) {
		if now, _ := resident(t, cmd); max(now-last, last-now) > 1<<20 {
			last, since = now, time.Now()
		}
	}
	return last
}

// TestReloadsKeepMemory: however often a large table is loaded again, or another
// one in its place, memory at rest is what it was after the start, and little more
// than what both tables need on the way. SOAK=1 has a million routes.
func TestReloadsKeepMemory(t *testing.T) {
	n := 200_000
	if os.Getenv("SOAK") != "" {
		n = 1_000_000
	}
	socket := filepath.Join(t.TempDir(), "sock")
	b := newBox(t, "listen control "+socket+"\n")
	b.manyRoutes(n, 1)
	cmd, _ := b.forward()
	start := atRest(t, cmd)
	forgetPeak(t, cmd)
	for i := range uint64(6) {
		b.manyRoutes(n, i/2) // the same twice, then others
		if out, code := b.run("reload", "-s", socket); code != 0 {
			t.Fatalf("reload %d: exit code %d\n%s", i, code, out)
		}
	}
	_, peak := resident(t, cmd)
	end := atRest(t, cmd)
	t.Logf("%d MB at the start, at most %d MB, %d MB at the end", start>>20, peak>>20, end>>20)
	if end > start*13/10 {
		t.Errorf("at rest %d MB, at the start %d MB", end>>20, start>>20)
	}
	if peak > start*22/10 {
		t.Errorf("at most %d MB, at the start %d MB", peak>>20, start>>20)
	}
	if err := b.end(cmd, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

// TestTermDuringReload: nmfwd does not finish a reload before it ends.
func TestTermDuringReload(t *testing.T) {
	b := newBox(t, "")
	cmd, _ := b.forward()
	// A file that takes seconds to read: all of its lines are wrong, or set again
	// what was set.
	if err := os.WriteFile(b.conf, bytes.Repeat([]byte("route 10.0.0.0/8 blackhole\nport lan0 198.18.0.1/24 mtu 99999 bla\n"), 2_000_000), 0o644); err != nil {
		t.Fatal(err)
	}
	before := processTime(t, cmd)
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); processTime(t, cmd) < before+300*time.Millisecond; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no reload has begun")
		}
	}
	before = processTime(t, cmd)
	if err := b.end(cmd, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if took := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime() - before; took > 2*time.Second {
		t.Errorf("nmfwd took %v of CPU time to end", took)
	}
}

// processTime returns the CPU time that a process has used.
func processTime(t *testing.T, cmd *exec.Cmd) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * time.Second / 100 // USER_HZ
}

// TestReloadWithoutAnInterface: what a file says of the other ports holds when the
// interface of one is gone, and when another one has its name.
func TestReloadWithoutAnInterface(t *testing.T) {
	for _, addr := range []string{"198.19.0.205/24", "addr kernel"} {
		t.Run(addr, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "sock")
			b := newBox(t, "")
			conf := "port lan0 198.18.0.205/24 driver afxdp\nport lan1 " + addr + " driver afxdp\nlisten control " + socket + "\nroute 10.0.0.0/8 via 198.19.0.1\n"
			reload := func(more string) {
				t.Helper()
				if err := os.WriteFile(b.conf, []byte(conf+more), 0o644); err != nil {
					t.Fatal(err)
				}
				if more == "" {
					return
				}
				out, code := b.run("reload", "-s", socket)
				if code != 0 || !strings.Contains(out, b.conf+":2:1: warning: port lan1: ") {
					t.Errorf("exit code %d\n%s", code, out)
				}
				if out, code := b.run("show", "-s", socket, "route", strings.Fields(more)[1]); code != 0 || !strings.Contains(out, "198.18.0.9") {
					t.Errorf("the new route: exit code %d\n%s", code, out)
				}
			}
			reload("")
			cmd, _ := b.forward()
			ip := func(args ...string) {
				t.Helper()
				if _, err := b.Output(t.Context(), "ip", args...); err != nil {
					t.Fatal(err)
				}
			}
			ip("link", "delete", "lan1")
			reload("route 192.0.2.1 via 198.18.0.9\n")
			ip("link", "add", "lan1", "type", "veth", "peer", "name", "other")
			reload("route 192.0.2.2 via 198.18.0.9\n")
			if err := b.end(cmd, syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		})
	}
}
