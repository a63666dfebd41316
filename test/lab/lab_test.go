//go:build integration && linux

package main

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// build returns the lab's binary.
func build(t *testing.T) string {
	t.Helper()
	lab := filepath.Join(t.TempDir(), "lab")
	if out, err := exec.Command("go", "build", "-o", lab, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return lab
}

// TestKernel runs the lab with the kernel as the router.
func TestKernel(t *testing.T) {
	out, err := exec.Command(build(t), "-dut", "kernel", "-seconds", "1", "-rate", "10000").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"ping from the generator to 2001:2:0:8000::203: reply", "\nflows                                        2,000           2,000\n", "All is well"} {
		if !strings.Contains(string(out), want) {
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
