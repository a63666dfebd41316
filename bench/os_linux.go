package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane"
)

// threadTime returns the CPU time of the calling thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}

// processTime returns the CPU time of the process.
func processTime() time.Duration {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}

// memory returns the process's resident memory in bytes, now and at most since
// resetPeak.
func memory() (now, peak int) {
	b, _ := os.ReadFile("/proc/self/status")
	for _, l := range strings.Split(string(b), "\n") {
		var kb int
		if n, _ := fmt.Sscanf(l, "VmRSS: %d kB", &kb); n == 1 {
			now = kb << 10
		}
		if n, _ := fmt.Sscanf(l, "VmHWM: %d kB", &kb); n == 1 {
			peak = kb << 10
		}
	}
	return now, peak
}

// resetPeak forgets the peak so far (proc_pid_clear_refs(5)).
func resetPeak() error { return os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// startOnOneCPU starts a program that has one CPU.
func startOnOneCPU(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var was, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &was); err != nil {
		return fmt.Errorf("sched_getaffinity: %w", err)
	}
	for c := 0; one.Count() == 0; c++ {
		if was.IsSet(c) {
			one.Set(c)
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("sched_setaffinity: %w", err)
	}
	defer unix.SchedSetaffinity(0, &was)
	return cmd.Start()
}

// leaveCPU ties all threads of the process to all CPUs but the last, if there
// are more, and returns what ties the calling thread to that.
func leaveCPU() (own func(), err error) {
	cpus, err := dataplane.CPUs()
	if err != nil || len(cpus) < 2 {
		return func() {}, err
	}
	var rest, last unix.CPUSet
	for _, c := range cpus[:len(cpus)-1] {
		rest.Set(c)
	}
	last.Set(cpus[len(cpus)-1])
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil, err
	}
	for _, t := range tasks {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			unix.SchedSetaffinity(tid, &rest) // may have ended
		}
	}
	return func() { unix.SchedSetaffinity(0, &last) }, nil
}

// preempted returns how often others took the CPU from the calling thread.
func preempted() int64 {
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_THREAD, &u)
	return int64(u.Nivcsw)
}

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
