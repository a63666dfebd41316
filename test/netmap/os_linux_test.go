//go:build netmap

package netmap

import (
	"net/netip"

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
