//go:build netmap

package netmap

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ifRequest performs an ioctl about an interface.
func ifRequest(name string, req uint, set func(*unix.Ifreq) error) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := set(r); err != nil {
		return err
	}
	return unix.IoctlIfreq(s, req, r)
}

// addAddr gives an interface an IPv4 address.
func addAddr(name string, p netip.Prefix) error {
	if err := ifRequest(name, unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(p.Addr().AsSlice()) }); err != nil {
		return err
	}
	return ifRequest(name, unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask(p)) })
}

// delAddr takes all IPv4 addresses from an interface that addAddr gave one.
func delAddr(name string, _ netip.Prefix) error {
	return ifRequest(name, unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(make([]byte, 4)) })
}

// setUp takes an interface up or down.
func setUp(name string, up bool) error {
	return ifRequest(name, unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error {
		if up {
			r.SetUint16(unix.IFF_UP)
		} else {
			r.SetUint16(0)
		}
		return nil
	})
}

// setMTU sets the largest IP packet of an interface.
func setMTU(name string, mtu int) error {
	return ifRequest(name, unix.SIOCSIFMTU, func(r *unix.Ifreq) error { r.SetUint32(uint32(mtu)); return nil })
}

// memory returns the bytes of memory of the machine, and how many buffers netmap is to
// have, 0 where that is not known.
func memory() (ram uint64, buffers int) {
	var i unix.Sysinfo_t
	if unix.Sysinfo(&i) == nil {
		ram = uint64(i.Totalram) * uint64(i.Unit)
	}
	b, _ := os.ReadFile("/sys/module/netmap/parameters/buf_num")
	fmt.Sscan(string(b), &buffers)
	return ram, buffers
}

// pin ties the calling thread, and what it starts, to CPUs.
func pin(cpus []int) error {
	var set unix.CPUSet
	for _, c := range cpus {
		set.Set(c)
	}
	return unix.SchedSetaffinity(0, &set)
}

// cpuTime returns the time that a process has spent in user space and in the
// kernel, zeros where it is not known. It comes in hundredths of a second: utime
// and stime of proc_pid_stat(5).
func cpuTime(pid int) (user, system time.Duration) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(b), ") ")
	var skip, u, s int64
	var state string
	if _, err := fmt.Sscan(rest, &state, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &u, &s); err != nil {
		return 0, 0
	}
	return time.Duration(u) * time.Second / 100, time.Duration(s) * time.Second / 100
}
