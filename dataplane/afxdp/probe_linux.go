package afxdp

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nmfwd/dataplane"
	"nmfwd/system/nic"
)

// Probe returns the numbers of receive and transmit queues that device name
// has in use.
func Probe(name string) (dataplane.Rings, error) {
	attrs, err := find(name)
	if err != nil {
		return dataplane.Rings{}, err
	}
	ctl, err := control()
	if err != nil {
		return dataplane.Rings{}, err
	}
	defer unix.Close(ctl)
	return rings(ctl, attrs), nil
}

// rings asks the driver for the queues in use. A driver that cannot tell has as
// many as the device was made with.
func rings(ctl int, attrs *netlink.LinkAttrs) dataplane.Rings {
	if c, err := nic.GetChannels(ctl, attrs.Name); err == nil && c.Combined+max(c.RX, c.TX) > 0 {
		return dataplane.Rings{RX: c.Combined + c.RX, TX: c.Combined + c.TX}
	}
	return dataplane.Rings{RX: max(attrs.NumRxQueues, 1), TX: max(attrs.NumTxQueues, 1)}
}

// SetQueues makes device name use n receive and n transmit queues.
func SetQueues(name string, n int) error {
	if _, err := find(name); err != nil {
		return err
	}
	ctl, err := control()
	if err != nil {
		return err
	}
	defer unix.Close(ctl)
	c, err := nic.GetChannels(ctl, name)
	if err != nil {
		return fmt.Errorf("afxdp: port %s: the driver cannot change the number of queues: %w", name, err)
	}
	want, most := c, c.MaxCombined
	if most > 0 {
		want.Combined, want.RX, want.TX = n, 0, 0
	} else {
		most = min(c.MaxRX, c.MaxTX)
		want.RX, want.TX = n, n
	}
	if n < 1 || n > most {
		return fmt.Errorf("afxdp: port %s: %d queues: the device has 1 to %d", name, n, most)
	}
	if want == c {
		return nil
	}
	if err := nic.SetChannels(ctl, name, want); err != nil {
		return fmt.Errorf("afxdp: port %s: set %d queues (ethtool --set-channels): %w%s", name, n, err, hint(err))
	}
	return nil
}

// find returns what the kernel knows of the device called name in the network
// namespace of the calling thread.
func find(name string) (*netlink.LinkAttrs, error) {
	l, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, fmt.Errorf("afxdp: port %s: no such interface (ip link lists them): %w", name, unix.ENODEV)
	}
	if err != nil {
		return nil, fmt.Errorf("afxdp: port %s: %w", name, err)
	}
	return l.Attrs(), nil
}

// control returns a socket for ioctl(2) on devices of the calling thread's
// network namespace. It stays in that namespace.
func control() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("afxdp: control socket: %w", err)
	}
	return fd, nil
}

// hint returns what usually helps against err, to be put behind it.
func hint(err error) string {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return " (needs root, or CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON)"
	case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
		return " (ulimit -l, the limit on locked memory, may be too low)"
	case errors.Is(err, unix.EAFNOSUPPORT):
		return " (this kernel was built without CONFIG_XDP_SOCKETS)"
	case errors.Is(err, unix.ENOSYS):
		return " (this kernel was built without CONFIG_BPF_SYSCALL)"
	}
	return ""
}
