//go:build !linux

package main

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strconv"
	"time"
)

func buffers(n int, huge bool) ([]byte, func(), error) {
	return make([]byte, n), func() {}, nil
}

func threadTime() time.Duration { return time.Since(started) }

// processTime returns the time, for want of a clock of the process.
func processTime() time.Duration { return time.Since(started) }

var started = time.Now()

func memory() (now, peak int) { return 0, 0 }

func resetPeak() error { return nil }

func startOnOneCPU(cmd *exec.Cmd) error {
	return fmt.Errorf("one CPU for a program: %w", errors.ErrUnsupported)
}

func leaveCPU() (own func(), err error) { return func() {}, nil }

func preempted() int64 { return 0 }

func machine() []string { return []string{"CPUs: " + strconv.Itoa(runtime.NumCPU())} }

func loadAverage() string { return "unknown" }

func labIdle(*options, func(string, float64, []time.Duration)) error { return nil }

func labLatency(*options, func(string, []time.Duration)) error { return nil }

func onWire(*options) (*report, error) {
	return nil, fmt.Errorf("network namespaces: %w", errors.ErrUnsupported)
}

func flood(*options) (*report, error) {
	return nil, fmt.Errorf("network namespaces: %w", errors.ErrUnsupported)
}
