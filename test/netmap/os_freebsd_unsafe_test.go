//go:build netmap && freebsd

package netmap

import (
	"encoding/binary"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of sys/sockio.h.
const (
	siocAIFADDR  = 0x8044692b
	siocDIFADDR  = 0x80206919
	siocSIFFLAGS = 0x80206910
	siocGIFFLAGS = 0xc0206911
	siocSIFMTU   = 0x80206934
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

// setMTU sets the largest IP packet of an interface.
func setMTU(name string, mtu int) error {
	return ifRequest(name, siocSIFMTU, binary.NativeEndian.AppendUint32(make([]byte, 0, 16), uint32(mtu))[:16])
}

// memory returns the bytes of memory of the machine, and how many buffers netmap is to
// have, 0 where that is not known.
func memory() (ram uint64, buffers int) {
	ram, _ = unix.SysctlUint64("hw.physmem")
	n, _ := unix.SysctlUint32("dev.netmap.buf_num")
	return ram, int(n)
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

// pin ties the calling thread, and what it starts, to CPUs: cpuset_setaffinity(2)
// with CPU_LEVEL_WHICH and CPU_WHICH_TID. The id, -1 for the caller, is 64 bits
// wide. Kernels differ in the size of sets that they take.
func pin(cpus []int) error {
	const levelWhich, whichTID, self = 3, 1, ^uintptr(0)
	var set [16]uint64
	for _, c := range cpus {
		set[c/64] |= 1 << (c % 64)
	}
	var errno unix.Errno
	for _, size := range []uintptr{32, uintptr(len(set) * 8)} {
		args := []uintptr{levelWhich, whichTID, self, size, uintptr(unsafe.Pointer(&set)), 0}
		if unsafe.Sizeof(size) == 4 {
			args = []uintptr{levelWhich, whichTID, self, self, size, uintptr(unsafe.Pointer(&set))}
		}
		if _, _, errno = unix.Syscall6(unix.SYS_CPUSET_SETAFFINITY, args[0], args[1], args[2], args[3], args[4], args[5]); errno == 0 {
			return nil
		}
	}
	return errno
}

// cpuTime returns zeros: the time of a process is not known.
func cpuTime(int) (user, system time.Duration) { return 0, 0 }
