package netmap

import (
	"errors"
	"net"

	"nmfwd/dataplane/netmap/abi"
)

// ErrVersion says that the kernel's netmap has another API version than ours.
var ErrVersion = errors.New("netmap API version mismatch")

// A Kernel is what the backend asks of the operating system. System is the real
// one.
type Kernel interface {
	// Open opens the netmap device.
	Open() (fd int, err error)

	// Control performs the request in h (NIOCCTRL).
	Control(fd int, h *abi.Header) error

	// TXSync gives queued frames to the device and takes sent slots back
	// (NIOCTXSYNC).
	TXSync(fd int) error

	// RXSync gives released slots to the device and collects received ones
	// (NIOCRXSYNC).
	RXSync(fd int) error

	// Map maps the first size bytes of the region of the port that fd is bound
	// to.
	Map(fd, size int) ([]byte, error)

	// Unmap takes back what Map returned.
	Unmap(mem []byte) error

	// Close closes fd and unbinds it from its rings.
	Close(fd int) error

	// Pollable reports whether poll(2) knows the descriptors. Where it does not
	// they are synced instead.
	Pollable() bool

	// SetBufSize asks for buffers of size bytes in regions that get their first
	// user from now on, and returns what makes it as it was before.
	SetBufSize(size int) (restore func() error, err error)

	// Interface says what the network card called name is.
	Interface(name string) (Interface, error)

	// Link reports whether the network card called name is up, and whether it
	// has a carrier.
	Link(name string) (up, carrier bool, err error)

	// Links returns a source of news about the links of network cards.
	Links() (Links, error)

	// Received returns a number that grows when the network card called name
	// receives frames: the sum of what the system and the card itself count. In
	// netmap mode the first stands still with many drivers.
	Received(name string) (uint64, error)

	// Users names other processes that have the netmap device open, or says how
	// to find them. It is empty where there are none.
	Users() string
}

// Links tell of changes.
type Links interface {
	// Wait returns when some link may have changed since it was last called, or
	// an error, from Close on at the latest.
	Wait() error

	// Close ends Wait. It may be called from any goroutine.
	Close() error
}

// An Interface is what the operating system says of a network card.
type Interface struct {
	MAC    net.HardwareAddr
	MTU    int
	Driver string // as the system calls it, empty where unknown
	Native bool   // the driver itself supports netmap
	Up     bool
	InUse  bool // in netmap mode, where the system tells
}
