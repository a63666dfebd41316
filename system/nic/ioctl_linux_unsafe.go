//go:build linux

package nic

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtool carries out the command that data begins with (SIOCETHTOOL of
// linux/sockios.h; the structures are those of linux/ethtool.h).
func ethtool(fd int, name string, data []byte) error {
	if len(name) >= unix.IFNAMSIZ {
		return unix.ENODEV
	}
	var r struct { // struct ifreq with ifr_data in use
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [24 - unsafe.Sizeof(uintptr(0))]byte
	}
	copy(r.name[:], name)
	r.data = unsafe.Pointer(&data[0])
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r)))
	runtime.KeepAlive(data)
	if errno != 0 {
		return errno
	}
	return nil
}

// ioctl makes a request whose argument is in arg.
func ioctl(fd int, req uint, arg []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(unsafe.Pointer(&arg[0])))
	if errno != 0 {
		return errno
	}
	return nil
}
