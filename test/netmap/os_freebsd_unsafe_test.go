//go:build netmap && freebsd

package netmap

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of sys/sockio.h.
const (
	siocAIFADDR  = 0x8044692b
	siocDIFADDR  = 0x80206919
	siocSIFFLAGS = 0x80206910
	siocGIFFLAGS = 0xc0206911
)

// ifRequest performs an ioctl about an interface whose argument, without the name
// in front, is arg.
func ifRequest(name string, req uint, arg []byte) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	b := make([]byte, unix.IFNAMSIZ+len(arg))
	copy(b, name)
	copy(b[unix.IFNAMSIZ:], arg)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s), uintptr(req), uintptr(unsafe.Pointer(&b[0]))); errno != 0 {
		return errno
	}
	copy(arg, b[unix.IFNAMSIZ:])
	return nil
}

// sockaddr returns a struct sockaddr_in: its length, family, port, address.
func sockaddr(addr []byte) []byte {
	return append(append([]byte{16, unix.AF_INET, 0, 0}, addr...), make([]byte, 8)...)
}

// addAddr gives an interface an IPv4 address: struct ifaliasreq has the address,
// the broadcast address, the mask and a number.
func addAddr(name string, p netip.Prefix) error {
	m, broadcast := mask(p), p.Addr().AsSlice()
	for i := range broadcast {
		broadcast[i] |= ^m[i]
	}
	arg := append(append(sockaddr(p.Addr().AsSlice()), sockaddr(broadcast)...), sockaddr(m)...)
	return ifRequest(name, siocAIFADDR, append(arg, 0, 0, 0, 0))
}

// delAddr takes an IPv4 address from an interface.
func delAddr(name string, p netip.Prefix) error {
	return ifRequest(name, siocDIFADDR, sockaddr(p.Addr().AsSlice()))
}

// setUp takes an interface up or down. The flags are in two halves.
func setUp(name string, up bool) error {
	arg := make([]byte, 16)
	if err := ifRequest(name, siocGIFFLAGS, arg); err != nil {
		return err
	}
	f := binary.NativeEndian.Uint16(arg) &^ unix.IFF_UP
	if up {
		f |= unix.IFF_UP
	}
	binary.NativeEndian.PutUint16(arg, f)
	return ifRequest(name, siocSIFFLAGS, arg)
}
