//go:build freebsd

package nic

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mediaLen is the size of struct ifmediareq of net/if.h: 32 bytes, a number and
// an aligned pointer.
const mediaLen = 32 + 2*int(unsafe.Sizeof(uintptr(0)))

// ioctl makes a request whose argument is in arg.
func ioctl(fd int, req uint, arg []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(unsafe.Pointer(&arg[0])))
	if errno != 0 {
		return errno
	}
	return nil
}
