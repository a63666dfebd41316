//go:build freebsd

package dataplane

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// cpuset(2) of FreeBSD (sys/cpuset.h).
const (
	levelWhich = 3 // CPU_LEVEL_WHICH
	whichTID   = 1 // CPU_WHICH_TID
	whichPID   = 2 // CPU_WHICH_PID
	self       = ^uintptr(0)
)

// A cpuSet has room for the largest kernel's cpuset_t. Kernels differ in the
// sizes that they take: setSizes are tried in turn.
type cpuSet [16]uint64

var setSizes = [...]uintptr{32, 128} // bytes: 256 CPUs, 1,024 CPUs

func affinity(which uintptr) (set cpuSet, err error) {
	for _, size := range setSizes {
		if err = cpusetCall(unix.SYS_CPUSET_GETAFFINITY, which, size, &set); err != unix.ERANGE {
			break
		}
	}
	return set, err
}

func setAffinity(which uintptr, cpus []int) (err error) {
	var set cpuSet
	for _, c := range cpus {
		set[c/64] |= 1 << (c % 64)
	}
	for _, size := range setSizes {
		if err = cpusetCall(unix.SYS_CPUSET_SETAFFINITY, which, size, &set); err != unix.ERANGE {
			break
		}
	}
	return err
}

// cpusetCall passes the id -1, the caller itself, as id_t, which is 64 bits
// wide and so takes two arguments on a 32-bit machine.
func cpusetCall(call, which, size uintptr, set *cpuSet) error {
	var e unix.Errno
	if unsafe.Sizeof(which) == 8 {
		_, _, e = unix.Syscall6(call, levelWhich, which, self, size, uintptr(unsafe.Pointer(set)), 0)
	} else {
		_, _, e = unix.Syscall6(call, levelWhich, which, self, self, size, uintptr(unsafe.Pointer(set)))
	}
	if e != 0 {
		return e
	}
	return nil
}
