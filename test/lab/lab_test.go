//go:build integration && linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// build returns the lab's binary.
func build(t *testing.T) string { return buildPackage(t, "nmfwd/test/lab") }

func buildPackage(t *testing.T, pkg string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), filepath.Base(pkg))
	if out, err := exec.Command("go", "build", "-o", name, pkg).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return name
}

// lost are the faults that the lab finds where a ring was full, because who empties
// it waited for a CPU.
var lost = regexp.MustCompile(`^(lab: )?IPv[46]: (\d+ frames lost|nmfwd dropped \d+: tx_full)$`)

// runLab runs the lab until no frame is lost, which it cannot be sure of where the CPUs
// have other work. Any other fault ends the test.
func runLab(t *testing.T, name string, args ...string) string {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		var out, faults strings.Builder
		cmd := exec.Command(name, args...)
		cmd.Stdout, cmd.Stderr = &out, &faults
		err := cmd.Run()
		if err == nil {
			return out.String()
		}
		text := strings.TrimSpace(faults.String())
		for line := range strings.Lines(text) {
			if !lost.MatchString(strings.TrimSpace(line)) && !strings.HasPrefix(line, "time=") {
				t.Fatalf("%v\n%s\n%s", err, out.String(), text)
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("frames are lost each time: %v\n%s\n%s", err, out.String(), text)
		}
		t.Logf("a round that is repeated: %s", text)
	}
}

// TestNMFWD runs the lab as it is meant to run.
func TestNMFWD(t *testing.T) {
	out := runLab(t, build(t), "-nmfwd", buildPackage(t, "nmfwd/cmd/nmfwd"), "-config", "../../examples/apu2/routes.conf",
		"-seconds", "1", "-rate", "20000")
	for _, want := range []string{"\nreceived by igb1 queue 1 ", "\nsent by igb2 queue 1 ", "\nCPU of nmfwd ", "All is well"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// TestBadConfig has a configuration that nmfwd refuses.
func TestBadConfig(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "routes.conf")
	if err := os.WriteFile(conf, []byte("rout\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(build(t), "-nmfwd", buildPackage(t, "nmfwd/cmd/nmfwd"), "-config", conf)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "routes.conf:1:1: ") || !strings.Contains(string(out), "nmfwd ended at start: nmfwd: exit status 65") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestKilled kills the lab while it sends: nmfwd does not outlive it.
func TestKilled(t *testing.T) {
	cmd := exec.Command(build(t), "-nmfwd", buildPackage(t, "nmfwd/cmd/nmfwd"), "-config", "../../examples/apu2/routes.conf", "-seconds", "20", "-rate", "10000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var children []string
	for s := bufio.NewScanner(out); s.Scan(); {
		if !strings.Contains(s.Text(), " s: sent ") || children != nil {
			continue
		}
		lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		children = []string{}
		for _, l := range lists {
			b, _ := os.ReadFile(l) // a thread may have ended
			children = append(children, strings.Fields(string(b))...)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Wait() // killed
	if len(children) != 1 {
		t.Fatalf("the lab had children %v, want nmfwd", children)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		b, err := os.ReadFile("/proc/" + children[0] + "/cmdline")
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(b) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("nmfwd is still there: %q, %v", b, err)
		}
	}
}

// TestKernel runs the lab with the kernel as the router.
func TestKernel(t *testing.T) {
	out := runLab(t, build(t), "-dut", "kernel", "-seconds", "1", "-rate", "10000")
	for _, want := range []string{"ping from the generator to 2001:2:0:8000::203: reply", "\nflows                                        2,000           2,000\n", "All is well"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// TestInterrupt interrupts the lab while it sends: it says so and ends with code
// 1.
func TestInterrupt(t *testing.T) {
	cmd := exec.Command(build(t), "-dut", "kernel", "-seconds", "20", "-rate", "10000")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for s := bufio.NewScanner(out); s.Scan(); {
		if strings.Contains(s.Text(), " s: sent ") {
			if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	_ = cmd.Wait() // compared below
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(errs.String(), "lab: interrupted") {
		t.Errorf("exit code %d, %q, want 1 and interrupted", code, errs.String())
	}
}

func TestUsage(t *testing.T) {
	lab := build(t)
	for _, args := range [][]string{{"-dut", "bird"}, {"-family", "5"}, {"-rate", "0"}, {"-rate", "NaN"}, {"-seconds", "-1"}, {"-seconds", "3600"}, {"more"}, {"-what"}} {
		cmd := exec.Command(lab, args...)
		_ = cmd.Run() // compared below
		if code := cmd.ProcessState.ExitCode(); code != exUsage {
			t.Errorf("%q: exit code %d, want %d", args, code, exUsage)
		}
	}
	if out, err := exec.Command(lab, "-nmfwd", "/nonexistent/nmfwd").CombinedOutput(); err == nil || !strings.Contains(string(out), "no program /nonexistent/nmfwd: build it") {
		t.Errorf("without a program: %v: %s", err, out)
	}
}
