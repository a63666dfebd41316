package nic

import "golang.org/x/sys/unix"

// What sys/ioccom.h makes of the numbers in sys/sockio.h, and other numbers of
// FreeBSD 12.1. It does not compile if those that are used differ.
const (
	in    = 0x80000000 | ifreqLen<<16 | 'i'<<8 // IOC_IN
	inout = 0xc0000000 | ifreqLen<<16 | 'i'<<8 // IOC_INOUT
	media = 0xc0000000 | uint(mediaLen)<<16 | 'i'<<8
)

var (
	_ = [1]struct{}{}[unix.SIOCSIFFLAGS-(in|16)]
	_ = [1]struct{}{}[unix.SIOCGIFFLAGS-(inout|17)]
	_ = [1]struct{}{}[unix.SIOCSIFCAP-(in|30)]
	_ = [1]struct{}{}[unix.SIOCGIFCAP-(inout|31)]
	_ = [1]struct{}{}[unix.SIOCGIFMEDIA-(media|56)]
	_ = [1]struct{}{}[unix.SIOCGIFXMEDIA-(media|139)]
	_ = [1]struct{}{}[unix.IFNAMSIZ-16]
	_ = [1]struct{}{}[unix.IFF_UP-0x1]
)
