package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

const hugePage = 2 << 20

// buffers returns n bytes for packets, in pages of the usual size or in huge
// ones, and what frees them.
func buffers(n int, huge bool) ([]byte, func(), error) {
	all, err := unix.Mmap(-1, 0, n+hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	advice := unix.MADV_NOHUGEPAGE
	if huge {
		advice = unix.MADV_HUGEPAGE
	}
	if err := unix.Madvise(all, advice); err != nil {
		return nil, nil, fmt.Errorf("madvise: %w", err)
	}
	return all[:n:n], func() { unix.Munmap(all) }, nil
}

// machine describes what the figures were measured on.
func machine() []string {
	var m []string
	info, _ := os.ReadFile("/proc/cpuinfo")
	for _, l := range strings.Split(string(info), "\n") {
		if k, v, _ := strings.Cut(l, ":"); strings.TrimSpace(k) == "model name" {
			m = append(m, fmt.Sprintf("CPU: %s, %d", strings.TrimSpace(v), runtime.NumCPU()))
			break
		}
	}
	caches := "caches:"
	conf, _ := exec.Command("getconf", "-a").Output() // of glibc; sysfs lacks caches in some machines
	for _, l := range strings.Split(string(conf), "\n") {
		f := strings.Fields(l)
		if len(f) == 2 && strings.HasSuffix(f[0], "CACHE_SIZE") && f[1] != "0" {
			caches += " " + strings.ToLower(strings.TrimSuffix(f[0], "_SIZE")) + " " + f[1]
		}
	}
	m = append(m, caches)
	m = append(m, "kernel: "+line("/proc/sys/kernel/ostype")+" "+line("/proc/sys/kernel/osrelease"))
	return m
}

// loadAverage returns the load of the machine in the last minute.
func loadAverage() string {
	l, _, _ := strings.Cut(line("/proc/loadavg"), " ")
	return l
}

// line returns the first line of a file, or nothing.
func line(name string) string {
	b, _ := os.ReadFile(name)
	l, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(l)
}
