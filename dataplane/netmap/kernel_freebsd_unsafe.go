//go:build freebsd

package netmap

import (
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	loadCommand = "kldload netmap"
	upCommand   = "ifconfig %s up"
)

// setParameter returns the command that sets a parameter of netmap.
func setParameter(name string, v int) string {
	return fmt.Sprintf("%q", fmt.Sprintf("sysctl dev.netmap.%s=%d", name, v))
}

func (system) SetBufSize(size int) (restore func() error, err error) {
	return swapParameters(size, func(name string) (int, error) {
		v, err := unix.SysctlUint32("dev.netmap." + name)
		return int(v), err
	}, func(name string, v int) error {
		if err := setSysctl("dev.netmap."+name, int32(v)); err != nil {
			return fmt.Errorf("dev.netmap.%s: %w", name, err)
		}
		return nil
	})
}

// setSysctl sets the variable called name. The request {0, 3} of sysctl(3)
// turns a name into numbers.
func setSysctl(name string, v int32) error {
	oid := [24]int32{}
	size := uintptr(len(oid)) * 4
	lookup := [2]int32{0, 3}
	b := []byte(name)
	if _, _, errno := unix.Syscall6(unix.SYS___SYSCTL, uintptr(unsafe.Pointer(&lookup)), 2,
		uintptr(unsafe.Pointer(&oid)), uintptr(unsafe.Pointer(&size)), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b))); errno != 0 {
		return errno
	}
	if _, _, errno := unix.Syscall6(unix.SYS___SYSCTL, uintptr(unsafe.Pointer(&oid)), size/4, 0, 0, uintptr(unsafe.Pointer(&v)), 4); errno != 0 {
		return errno
	}
	return nil
}

// Requests and flags of net/if.h and sys/sockio.h.
const (
	ifNetmap = 0x100000 // IFCAP_NETMAP
	ifValid  = 1        // IFM_AVALID
	ifActive = 2        // IFM_ACTIVE
)

// request performs an ioctl about the interface called name whose argument has
// size bytes, and returns the argument: the name in its first 16 bytes.
func request(name string, req uint, size int) ([]byte, error) {
	if len(name) >= unix.IFNAMSIZ {
		return nil, unix.ENAMETOOLONG
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(s)
	b := make([]byte, size)
	copy(b, name)
	return b, ioctl(s, req, unsafe.Pointer(&b[0]))
}

// emulated is the value of dev.netmap.admode that makes netmap do without the
// support of drivers (NETMAP_ADMODE_GENERIC).
const emulated = 2

// vmxWorks is the kern.osreldate from which on vmx(4) can be in netmap mode: it
// was seen to panic FreeBSD 12.1.
const vmxWorks = 1300000

// Interface asks net, and the capabilities of the interface: drivers that
// support netmap themselves have one for it, which is enabled in netmap mode.
func (system) Interface(name string) (Interface, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return Interface{}, noInterface(err)
	}
	b, err := request(name, unix.SIOCGIFCAP, 32)
	if err != nil {
		return Interface{}, err
	}
	driver, _ := driverOf(i)
	if v, err := unix.SysctlUint32("kern.osreldate"); err == nil && driver == "vmx" && v < vmxWorks {
		return Interface{}, fmt.Errorf("vmx(4) panics the kernel in netmap mode before FreeBSD 13: use another kind of card: %w", unix.ENOTSUP)
	}
	mode, err := unix.SysctlUint32("dev.netmap.admode")
	return Interface{
		MAC: i.HardwareAddr, MTU: i.MTU, Up: i.Flags&net.FlagUp != 0,
		Driver: driver,
		Native: binary.NativeEndian.Uint32(b[16:])&ifNetmap != 0 && (err != nil || mode != emulated),
		InUse:  binary.NativeEndian.Uint32(b[20:])&ifNetmap != 0,
	}, nil
}

func (system) Link(name string) (up, carrier bool, err error) {
	b, err := request(name, unix.SIOCGIFFLAGS, 32)
	if err != nil {
		return false, false, err
	}
	f := binary.NativeEndian.Uint16(b[16:])
	up, carrier = f&unix.IFF_UP != 0, true
	// Interfaces without media, such as epair(4), have no link to lose.
	if b, err = request(name, unix.SIOCGIFMEDIA, mediaSize); err == nil {
		status := binary.NativeEndian.Uint32(b[24:])
		carrier = status&ifValid == 0 || status&ifActive != 0
	}
	return up, carrier, nil
}

// mediaSize is the size of struct ifmediareq: 32 bytes, a number and an aligned
// pointer.
const mediaSize = 32 + 2*int(unsafe.Sizeof(uintptr(0)))

// Links listens to route(4).
func (system) Links() (Links, error) {
	s, err := unix.Socket(unix.AF_ROUTE, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.AF_UNSPEC)
	if err != nil {
		return nil, err
	}
	return newSocketLinks(s), nil
}

// aboutLink reports whether a message of route(4) is about an interface. Its
// type is its fourth byte.
func aboutLink(m []byte) bool {
	return len(m) > 3 && (m[3] == unix.RTM_IFINFO || m[3] == unix.RTM_IFANNOUNCE)
}

// An ifMIB is the beginning of struct ifmibdata of net/if_mib.h, which ends in
// struct if_data of net/if.h, as both are from FreeBSD 11 on.
type ifMIB struct {
	_    [unix.IFNAMSIZ]byte
	_    [9]int32
	data struct {
		_        [8]uint8
		_        [2]uint32 // mtu, metric
		_        uint64    // baudrate
		ipackets uint64
	}
}

// Variables of ifmib(4) for an interface.
const (
	ifData      = "net.link.generic.ifdata"
	dataGeneral = 1 // IFDATA_GENERAL
	dataDriver  = 3 // IFDATA_DRIVERNAME
)

// driverOf returns the driver of an interface and the number that it has there,
// which are not those of its name once it was renamed.
func driverOf(i *net.Interface) (driver, unit string) {
	name, err := unix.SysctlArgs(ifData, i.Index, dataDriver)
	if err != nil {
		name = i.Name
	}
	driver = strings.TrimRight(name, "0123456789")
	return driver, name[len(driver):]
}

// cardCounters are the variables that count what a card itself has received
// (em(4), igb(4); ix(4)). The interface's own counter stands still in netmap mode
// before FreeBSD 13, and counts what the rings got since.
var cardCounters = []string{"good_pkts_recvd", "good_pkts_rcvd"}

// Received asks the driver, which may count, or else the interface.
func (system) Received(name string) (uint64, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0, noInterface(err)
	}
	driver, unit := driverOf(i)
	for _, c := range cardCounters {
		if n, err := unix.SysctlUint64(fmt.Sprintf("dev.%s.%s.mac_stats.%s", driver, unit, c)); err == nil {
			return n, nil
		}
	}
	b, err := unix.SysctlRaw(ifData, i.Index, dataGeneral)
	if err != nil {
		return 0, err
	}
	var m ifMIB
	if len(b) < int(unsafe.Sizeof(m)) {
		return 0, fmt.Errorf("%s has %d bytes, want %d", ifData, len(b), unsafe.Sizeof(m))
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&m)), unsafe.Sizeof(m)), b)
	return m.data.ipackets, nil
}

// Users says how to find other processes: the system does not tell simply.
func (system) Users() string { return `see "fstat /dev/netmap"` }
