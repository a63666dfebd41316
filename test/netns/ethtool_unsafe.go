//go:build linux

package netns

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Feature is an offload of a port, by its ethtool command (linux/ethtool.h).
type Feature uint32

// The offloads that tests set.
const (
	TXChecksum Feature = unix.ETHTOOL_STXCSUM // transmit checksums, and with them segmentation
	GRO        Feature = unix.ETHTOOL_SGRO    // a veth receives redirected frames with it, or with an XDP program
)

// SetFeature switches an offload of a port on or off.
func (n *Namespace) SetFeature(port string, f Feature, on bool) error {
	value := struct{ cmd, data uint32 }{cmd: uint32(f)} // struct ethtool_value
	if on {
		value.data = 1
	}
	req := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(req.name[:unix.IFNAMSIZ-1], port)
	return n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("netns: %s: socket: %w", n.name, err)
		}
		defer unix.Close(fd)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
			return fmt.Errorf("netns: %s: %s: ethtool command %#x: %w", n.name, port, uint32(f), errno)
		}
		return nil
	})
}
