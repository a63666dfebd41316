package nic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Parts of struct ifreq of net/if.h: the name and, from byte 16, a union.
const (
	ifreqLen   = 32
	ifreqUnion = unix.IFNAMSIZ
)

// system is FreeBSD, in the virtual network of the process.
type system struct{ fd int }

// Open returns the system.
func Open() (System, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("nic: control socket: %w", err)
	}
	return &system{fd}, nil
}

func (s *system) Close() error { return unix.Close(s.fd) }

// Space is empty: names are those of the process's virtual network, and so is
// the place for files.
func (s *system) Space() string { return "" }

// fail says which interface an error is about, and that it is gone.
func fail(name, what string, err error) error {
	if errors.Is(err, unix.ENXIO) {
		return noInterface(name)
	}
	return fmt.Errorf("nic: %s: %s: %w", name, what, err)
}

// ask makes a request about an interface and returns the union of the answer:
// struct ifreq, or what has size bytes and also begins with the name.
func (s *system) ask(name string, req uint, size int, what string) ([]byte, error) {
	b := make([]byte, size)
	if len(name) >= unix.IFNAMSIZ {
		return nil, fail(name, what, unix.ENXIO)
	}
	copy(b, name)
	if err := ioctl(s.fd, req, b); err != nil {
		return nil, fail(name, what, err)
	}
	return b[ifreqUnion:], nil
}

// set makes a request that changes an interface; union is that of struct ifreq.
func (s *system) set(name string, req uint, union []byte, what string) error {
	b := make([]byte, ifreqLen)
	copy(b, name)
	copy(b[ifreqUnion:], union)
	if err := ioctl(s.fd, req, b); err != nil {
		return fail(name, what, err)
	}
	return nil
}

func (s *system) Name(index int) (string, error) {
	i, err := net.InterfaceByIndex(index)
	if err != nil {
		return "", noInterface(strconv.Itoa(index))
	}
	return i.Name, nil
}

// flags returns the flags: ifr_flags has the low half, ifr_flagshigh the high.
func (s *system) flags(name string) (uint32, error) {
	b, err := s.ask(name, unix.SIOCGIFFLAGS, ifreqLen, "flags")
	if err != nil {
		return 0, err
	}
	return uint32(binary.NativeEndian.Uint16(b)) | uint32(binary.NativeEndian.Uint16(b[2:]))<<16, nil
}

func (s *system) Info(name string) (Info, error) {
	in := Info{Name: name}
	flags, err := s.flags(name)
	if err != nil {
		return in, err
	}
	i, err := net.InterfaceByName(name)
	if err != nil {
		return in, fail(name, "read", err)
	}
	in.Index, in.MTU, in.MAC, in.Up = i.Index, i.MTU, i.HardwareAddr, flags&unix.IFF_UP != 0
	in.Driver, in.Unit = s.driver(&in)
	in.Carrier = true // interfaces without media, such as epair(4), have none to lose
	b, err := s.ask(name, unix.SIOCGIFXMEDIA, mediaLen, "media")
	if err != nil { // before FreeBSD 11, and of drivers without the newer types
		b, err = s.ask(name, unix.SIOCGIFMEDIA, mediaLen, "media")
	}
	if err == nil {
		// struct ifmediareq: ifm_status at byte 24, ifm_active at 28.
		status, active := binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint32(b[12:])
		in.Carrier = status&ifmAValid == 0 || status&ifmActive != 0
		in.Speed = mediaSpeed(active)
		in.RXPause, in.TXPause = active&ifmRXPause != 0, active&ifmTXPause != 0
	}
	// Intel's drivers do not tell the media of pause frames: fc is 0 for none, 1
	// receive, 2 transmit, 3 both (em(4), igb(4), ix(4)).
	if fc, err := unix.SysctlUint32(fmt.Sprintf("dev.%s.%s.fc", in.Driver, in.Unit)); err == nil {
		in.RXPause, in.TXPause = fc&1 != 0, fc&2 != 0
	}
	if b, err = s.ask(name, unix.SIOCGIFCAP, ifreqLen, "capabilities"); err != nil {
		return in, err
	}
	// ifr_reqcap has what the interface is capable of, ifr_curcap what is on.
	in.Settings = capSettings(binary.NativeEndian.Uint32(b), binary.NativeEndian.Uint32(b[4:]), flags&iffPPromisc != 0)
	return in, nil
}

// driver returns the driver and unit, which are not those of the name when the
// interface was renamed (net/if_mib.h: CTL_NET, PF_LINK, NETLINK_GENERIC,
// IFMIB_IFDATA, the index, IFDATA_DRIVERNAME).
func (s *system) driver(in *Info) (driver, unit string) {
	name, err := unix.SysctlArgs("net.link.generic.ifdata", in.Index, 3)
	if err != nil {
		name = in.Name
	}
	driver = strings.TrimRight(name, "0123456789")
	return driver, name[len(driver):]
}

func (s *system) Set(name string, set []Setting) error {
	b, err := s.ask(name, unix.SIOCGIFCAP, ifreqLen, "capabilities")
	if err != nil {
		return err
	}
	old := binary.NativeEndian.Uint32(b[4:])
	bits, rest := capBits(old, set)
	if bits != old {
		if err := s.set(name, unix.SIOCSIFCAP, binary.NativeEndian.AppendUint32(nil, bits), "set capabilities"); err != nil {
			return err
		}
	}
	for _, x := range rest {
		if x.Name != promisc {
			return fmt.Errorf("nic: %s: there is no setting %s", name, strconv.Quote(x.Name))
		}
		flags, err := s.flags(name)
		if err != nil {
			return err
		}
		flags &^= iffPPromisc
		if x.On {
			flags |= iffPPromisc
		}
		half := binary.NativeEndian.AppendUint16(nil, uint16(flags))
		if err := s.set(name, unix.SIOCSIFFLAGS, binary.NativeEndian.AppendUint16(half, uint16(flags>>16)), "set flags"); err != nil {
			return err
		}
	}
	return nil
}

// Listen has nothing to do: promiscuous mode is a setting.
func (s *system) Listen(string, Filter) (io.Closer, error) { return nil, nil }
