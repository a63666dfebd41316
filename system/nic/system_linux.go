package nic

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ifreqLen is the size of struct ifreq of linux/if.h on 64-bit processors; on
// others it is less.
const ifreqLen = 40

// system is Linux, in one network namespace.
type system struct {
	fd    int // socket for ioctl(2)
	space string
}

// Open returns the system as it is in the network namespace of the calling
// thread.
func Open() (System, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("nic: control socket: %w", err)
	}
	s := &system{fd: fd}
	if l, err := os.Readlink("/proc/thread-self/ns/net"); err == nil {
		s.space = strings.Trim(strings.TrimPrefix(l, "net:"), "[]")
	}
	return s, nil
}

func (s *system) Close() error { return unix.Close(s.fd) }

func (s *system) Space() string { return s.space }

// fail says which interface an error is about, and that it is gone.
func fail(name, what string, err error) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		return noInterface(name)
	}
	return fmt.Errorf("nic: %s: %s: %w", name, what, err)
}

// ask makes a request about an interface that is answered in struct ifreq.
func (s *system) ask(name string, req uint, what string) (*unix.Ifreq, error) {
	r, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(s.fd, req, r)
	}
	if errors.Is(err, unix.EINVAL) { // no name of an interface
		err = unix.ENODEV
	}
	if err != nil {
		return nil, fail(name, what, err)
	}
	return r, nil
}

func (s *system) Name(index int) (string, error) {
	r, err := unix.NewIfreq("")
	if err != nil {
		return "", err
	}
	r.SetUint32(uint32(index))
	if err := unix.IoctlIfreq(s.fd, unix.SIOCGIFNAME, r); err != nil {
		return "", fail(strconv.Itoa(index), "name", err)
	}
	return r.Name(), nil
}

func (s *system) Info(name string) (Info, error) {
	in := Info{Name: name}
	r, err := s.ask(name, unix.SIOCGIFINDEX, "index")
	if err != nil {
		return in, err
	}
	in.Index = int(r.Uint32())
	if r, err = s.ask(name, unix.SIOCGIFFLAGS, "flags"); err != nil {
		return in, err
	}
	in.Up, in.Carrier = r.Uint16()&unix.IFF_UP != 0, r.Uint16()&unix.IFF_RUNNING != 0
	if r, err = s.ask(name, unix.SIOCGIFMTU, "MTU"); err != nil {
		return in, err
	}
	in.MTU = int(r.Uint32())
	b := make([]byte, ifreqLen)
	copy(b, name)
	if err := ioctl(s.fd, unix.SIOCGIFHWADDR, b); err != nil {
		return in, fail(name, "address", err)
	}
	if word.Uint16(b[unix.IFNAMSIZ:]) == unix.ARPHRD_ETHER {
		in.MAC = bytes.Clone(b[unix.IFNAMSIZ+2 : unix.IFNAMSIZ+8])
	}
	in.Driver = Driver(s.fd, name)
	if c, err := GetChannels(s.fd, name); err == nil {
		in.RXRings, in.TXRings = c.Combined+c.RX, c.Combined+c.TX
	}
	s.rings(&in)
	s.pause(&in)
	s.speed(&in)
	if in.Settings, err = s.features(name); err != nil && !none(err) {
		return in, fail(name, "features", err)
	}
	return in, nil
}

func (s *system) Set(name string, set []Setting) error {
	if err := s.setFeatures(name, set); err != nil {
		return fail(name, "set features", err)
	}
	return nil
}

// A membership is a packet socket: what it joined is left when it is closed
// (packet(7), PACKET_ADD_MEMBERSHIP).
type membership struct{ fd int }

func (m membership) Close() error { return unix.Close(m.fd) }

func (s *system) Listen(name string, f Filter) (io.Closer, error) {
	r, err := s.ask(name, unix.SIOCGIFINDEX, "index")
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // hears nothing itself
	if err != nil {
		return nil, fail(name, "packet socket", err)
	}
	m := membership{fd}
	join := func(q unix.PacketMreq) {
		if err == nil {
			q.Ifindex = int32(r.Uint32())
			err = unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &q)
		}
	}
	if f.AllMulticast {
		join(unix.PacketMreq{Type: unix.PACKET_MR_ALLMULTI})
	}
	if f.Promiscuous {
		join(unix.PacketMreq{Type: unix.PACKET_MR_PROMISC})
	}
	for _, mac := range f.MACs {
		q := unix.PacketMreq{Type: unix.PACKET_MR_UNICAST, Alen: uint16(len(mac))}
		copy(q.Address[:], mac)
		join(q)
	}
	if err != nil {
		m.Close()
		return nil, fail(name, "join", err)
	}
	return m, nil
}
