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
	return n.ethtool(port, unsafe.Pointer(&value), value.cmd)
}

// ethtool has the driver of a port do a command, whose structure is at value.
func (n *Namespace) ethtool(port string, value unsafe.Pointer, cmd uint32) error {
	req := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: value}
	copy(req.name[:unix.IFNAMSIZ-1], port)
	return n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("netns: %s: socket: %w", n.name, err)
		}
		defer unix.Close(fd)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
			return fmt.Errorf("netns: %s: %s: ethtool command %#x: %w", n.name, port, cmd, errno)
		}
		return nil
	})
}

// Carrier asks the driver whether a port has a carrier. The kernel follows a change
// of it before it answers, which it would do by itself some time later.
func (n *Namespace) Carrier(port string) (bool, error) {
	value := struct{ cmd, data uint32 }{cmd: unix.ETHTOOL_GLINK} // struct ethtool_value
	err := n.ethtool(port, unsafe.Pointer(&value), value.cmd)
	return value.data != 0, err
}
