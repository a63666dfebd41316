package dataplane

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// pollFor is poll(2) with a resolution of nanoseconds.
func pollFor(fds []unix.PollFd, wait time.Duration) (int, error) {
	ts := unix.NsecToTimespec(int64(wait))
	return unix.Ppoll(fds, &ts, nil)
}

func newWaker() (*waker, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("dataplane: eventfd: %w", err)
	}
	return &waker{r: fd, w: fd}, nil
}

func (w *waker) close() { unix.Close(w.r) }

// CPUs returns the CPUs that this process may use, in order.
func CPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("dataplane: sched_getaffinity: %w", err)
	}
	var cpus []int
	for c := range len(set) * 64 {
		if set.IsSet(c) {
			cpus = append(cpus, c)
		}
	}
	return cpus, nil
}

// pinThread ties the calling thread to a CPU; -1 leaves it where it is.
func pinThread(cpu int) error {
	if cpu < 0 {
		return nil
	}
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("dataplane: pin to CPU %d: %w", cpu, err)
	}
	return nil
}

// confine ties all threads of the process to cpus; threads made later inherit
// that from those that make them. A thread that is made meanwhile, by one whose
// turn has not come, is found by looking again.
func confine(cpus []int) error {
	var want unix.CPUSet
	for _, c := range cpus {
		want.Set(c)
	}
	for changed := true; changed; {
		changed = false
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("dataplane: threads: %w", err)
		}
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err != nil {
				continue
			}
			var have unix.CPUSet
			if err := unix.SchedGetaffinity(tid, &have); err != nil || have == want {
				continue // it ended
			}
			if err := unix.SchedSetaffinity(tid, &want); err != nil && err != unix.ESRCH {
				return fmt.Errorf("dataplane: confine thread %d: %w", tid, err)
			}
			changed = true
		}
	}
	return nil
}
