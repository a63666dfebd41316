package dataplane

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// pollFor is poll(2), whose resolution is a millisecond: what is shorter waits
// a whole one.
func pollFor(fds []unix.PollFd, wait time.Duration) (int, error) {
	return unix.Poll(fds, int((wait+time.Millisecond-1)/time.Millisecond))
}

func newWaker() (*waker, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, fmt.Errorf("dataplane: pipe: %w", err)
	}
	return &waker{r: p[0], w: p[1]}, nil
}

func (w *waker) close() {
	unix.Close(w.r)
	unix.Close(w.w)
}

// CPUs returns the CPUs that this process may use, in order.
func CPUs() ([]int, error) {
	set, err := affinity(whichPID)
	if err != nil {
		return nil, fmt.Errorf("dataplane: cpuset_getaffinity: %w", err)
	}
	var cpus []int
	for c := range len(set) * 64 {
		if set[c/64]>>(c%64)&1 != 0 {
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
	if err := setAffinity(whichTID, []int{cpu}); err != nil {
		return fmt.Errorf("dataplane: pin to CPU %d: %w", cpu, err)
	}
	return nil
}

// confine ties all threads of the process to cpus; threads made later inherit
// that from the process.
func confine(cpus []int) error {
	if err := setAffinity(whichPID, cpus); err != nil {
		return fmt.Errorf("dataplane: confine process: %w", err)
	}
	return nil
}
