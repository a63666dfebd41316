//go:build linux || freebsd

package netmap

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane/netmap/abi"
)

// system is the running kernel. Its calls may block, so they go through the
// scheduler: a thread stuck in a raw one would stop the garbage collector.
type system struct{}

// System returns the kernel that the program runs on.
func System() Kernel { return system{} }

func (system) Open() (int, error) {
	fd, err := unix.Open(abi.Device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: abi.Device, Err: err}
	}
	return fd, nil
}

func (system) Control(fd int, h *abi.Header) error {
	return ioctl(fd, abi.CTRL, unsafe.Pointer(h))
}

func (system) TXSync(fd int) error { return ioctl(fd, abi.TXSync, nil) }

func (system) RXSync(fd int) error { return ioctl(fd, abi.RXSync, nil) }

func (system) Map(fd, size int) ([]byte, error) {
	return unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

func (system) Unmap(mem []byte) error { return unix.Munmap(mem) }

func (system) Close(fd int) error { return unix.Close(fd) }

func (system) Pollable() bool { return true }

// ioctl is ioctl(2); a call that a signal broke off is made again.
func ioctl(fd int, req uint, arg unsafe.Pointer) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(arg))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return errno
	}
}

// swapParameters gives netmap's parameters for the size of buffers a value, and
// returns what gives them those back that they had.
func swapParameters(size int, get func(name string) (int, error), set func(name string, v int) error) (restore func() error, err error) {
	names := [...]string{"buf_size", "priv_buf_size"}
	var old [len(names)]int
	n := 0
	restore = func() error {
		var errs []error
		for i := range n {
			errs = append(errs, set(names[i], old[i]))
		}
		return errors.Join(errs...)
	}
	for i, name := range names {
		if old[i], err = get(name); err == nil {
			err = set(name, size)
		}
		if err != nil {
			return nil, errors.Join(err, restore())
		}
		n++
	}
	return restore, nil
}
