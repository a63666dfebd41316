//go:build linux

package netmap

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtool makes a request of linux/ethtool.h about an interface, whose answer
// comes in b.
func ethtool(fd int, name string, b []byte) error {
	var pin runtime.Pinner // neither vet nor checkptr sees an address in a structure
	pin.Pin(&b[0])
	defer pin.Unpin()
	var r struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [24 - unsafe.Sizeof(uintptr(0))]byte
	}
	if copy(r.name[:], name) == len(r.name) {
		return unix.ENAMETOOLONG
	}
	r.data = unsafe.Pointer(&b[0])
	return ioctl(fd, unix.SIOCETHTOOL, unsafe.Pointer(&r))
}
