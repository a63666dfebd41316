package dataplane

import (
	"fmt"
	"math"
	"net"
	"net/netip"
)

// A Slot is one buffer in a worker's hands: the unit that queues exchange.
// It corresponds to struct netmap_slot of netmap.h and to struct xdp_desc of
// linux/if_xdp.h.
type Slot struct {
	Buf   uint32    // buffer number in its Region
	Off   uint16    // first byte of the frame in the buffer
	Len   uint16    // bytes of the frame in this buffer, without FCS
	Flags SlotFlags //
}

// SlotFlags says more about a slot.
type SlotFlags uint32

// More marks a slot whose frame goes on in the next one (NS_MOREFRAG,
// XDP_PKT_CONTD).
const More SlotFlags = 1

// FrameSlots returns the number of slots of the frame that s begins with, 0
// when s does not hold its end.
func FrameSlots(s []Slot) int {
	for i := range s {
		if s[i].Flags&More == 0 {
			return i + 1
		}
	}
	return 0
}

// A Region is memory divided into equal buffers, each named by its number.
// Buffers may be exchanged between all queues of one region and between no
// others. A Region is shared by the workers; a buffer has one owner at a time.
type Region struct {
	name   string
	mem    []byte
	stride uint32
	spare  []uint32
}

// NewRegion returns the region called name over mem, whose buffer n starts at
// byte n*stride. Spare are the numbers of buffers that no queue holds; hand-off
// rings are filled from them.
func NewRegion(name string, mem []byte, stride int, spare []uint32) *Region {
	return &Region{name: name, mem: mem, stride: uint32(stride), spare: spare}
}

// Name returns the region's name, as told at start-up.
func (r *Region) Name() string { return r.name }

// Stride returns the size of a buffer in bytes.
func (r *Region) Stride() int { return int(r.stride) }

// Bytes returns the frame that s names. It panics when s does not lie in the
// region: backends hand out only slots that do.
func (r *Region) Bytes(s *Slot) []byte {
	o := int(s.Buf)*int(r.stride) + int(s.Off)
	return r.mem[o : o+int(s.Len) : o+int(s.Len)]
}

// Buffer returns all bytes of buffer n.
func (r *Region) Buffer(n uint32) []byte {
	o := int(n) * int(r.stride)
	return r.mem[o : o+int(r.stride) : o+int(r.stride)]
}

// Join makes a frame in the slots s one of the first slot alone, and reports whether
// it could: the frame must have no more than most bytes, nor than a buffer. Else
// nothing is changed. The buffers of the other slots are free then.
func (r *Region) Join(s []Slot, most int) bool {
	n := 0
	for i := range s {
		n += int(s[i].Len)
	}
	if n > min(most, r.Stride(), math.MaxUint16) {
		return false
	}
	first := &s[0]
	b := r.Buffer(first.Buf)
	if int(first.Off)+n > len(b) {
		copy(b, r.Bytes(first))
		first.Off = 0
	}
	at := int(first.Off) + int(first.Len)
	for i := range s[1:] {
		at += copy(b[at:], r.Bytes(&s[1+i]))
	}
	first.Len, first.Flags = uint16(n), first.Flags&^More
	return true
}

// pad extends slots shorter than least bytes with zeros, as far as their buffers
// reach.
func (r *Region) pad(s []Slot, least int) {
	for i := range s {
		if n := int(s[i].Len); n < least {
			b := r.Buffer(s[i].Buf)[s[i].Off:]
			b = b[:min(least, len(b))]
			clear(b[n:])
			s[i].Len = uint16(len(b))
		}
	}
}

// Take removes n spare buffers from the region and returns their numbers. It
// is called while the router is put together, never by a running worker.
func (r *Region) Take(n int) ([]uint32, error) {
	if n > len(r.spare) {
		return nil, fmt.Errorf("dataplane: region %s: %d spare buffers wanted, %d left", r.name, n, len(r.spare))
	}
	at := len(r.spare) - n
	t := r.spare[at:]
	r.spare = r.spare[:at:at]
	return t, nil
}

// Give returns buffers that Take handed out.
func (r *Region) Give(bufs []uint32) { r.spare = append(r.spare, bufs...) }

// Spare returns the numbers of the buffers that no queue and no hand-off ring
// holds, for a census. The result must not be changed.
func (r *Region) Spare() []uint32 { return r.spare }

// RX is the receive side of one queue. Only the worker that reads the queue
// calls it.
type RX interface {
	// Region returns the region of the queue's buffers.
	Region() *Region

	// Recv takes up to len(s) received slots, oldest first, writes them to s and
	// returns their number. A slot whose descriptor the device filled with
	// nonsense is returned with Len 0. The caller owns the buffers until it has
	// repaid as many to Release.
	Recv(s []Slot) int

	// Release repays slots taken by Recv with as many free buffers of the same
	// region, in any order.
	Release(free []uint32)
}

// TX is the transmit side of one queue. Only the worker that writes the queue
// calls it. A TX queue holds the same number of buffers at all times: for each
// one that it takes it gives one back.
type TX interface {
	// Region returns the region of the queue's buffers.
	Region() *Region

	// Send queues frames whose buffers belong to region from, in order, and
	// returns the number of slots taken: less than len(s) when the ring is full,
	// and never only a part of a frame of several slots. On return s[i].Buf of
	// each slot taken is a free buffer of from: the one exchanged for the frame,
	// or the frame's own when from is another region and the frame was copied.
	// Nothing else of s changes. A slot longer than a buffer of the queue's region
	// is never cut: the caller compares with Info.BufSize before.
	Send(from *Region, s []Slot) int
}

// A Descriptor is one kernel descriptor behind queues of one worker. The
// worker's poller drives it: Before, then poll(2) with all descriptors that
// asked for events, then After.
type Descriptor interface {
	// FD returns the file descriptor to poll, or -1 if there is none: then events
	// that Before asks for are there already.
	FD() int

	// Before gives to the device what Send queued, where poll(2) itself does
	// not, and returns the events to poll for; 0 leaves the descriptor out of
	// this poll. Sleep says that the worker is idle and will wait. An error means
	// that the descriptor is of no more use.
	Before(sleep bool) (events int16, err error)

	// After is told what poll(2) returned for the descriptor.
	After(revents int16) error
}

// A Queue is one queue of a port as its backend opened it for one worker. RX or
// TX is nil where the worker has only the other side. Queues of one worker may
// share a Descriptor.
type Queue struct {
	Index      int // ring number on the port
	Worker     int // the only worker that may touch RX, TX and Descriptor
	RX         RX
	TX         TX
	Descriptor Descriptor
}

// Region returns the region of the queue's buffers.
func (q *Queue) Region() *Region {
	if q.RX != nil {
		return q.RX.Region()
	}
	return q.TX.Region()
}

// Info says what a port is. It does not change while the port is open.
type Info struct {
	Name     string           // as the configuration calls it
	MAC      net.HardwareAddr // the port's own address
	Backend  string           // "netmap", "afxdp" or "memory"
	Driver   string           // the device's kernel driver, where known
	Mode     string           // "native", "emulated", "generic" or "memory"
	ZeroCopy bool             // the device reads and writes the region itself
	RXRings  int              //
	TXRings  int              //
	RXSlots  int              // per ring
	TXSlots  int              // per ring
	BufSize  int              // longest frame that one slot can carry, bytes
	MTU      int              // largest IP packet that the device carries, bytes
	MinFrame int              // frames are padded to this length with zeros, 0 for none
	Host     bool             // a host stack takes what is not for forwarding
}

// DeviceCounters count, for one RX queue of a port, what never reaches a
// worker. All only grow.
type DeviceCounters struct {
	HostPackets  uint64 // left to the host stack by the backend
	HostBytes    uint64
	RXRingFull   uint64 // frames lost because the ring was full
	TXRingFull   uint64 // frames that the device did not take from its ring
	DroppedBytes uint64 // bytes of frames lost, where the device tells
}

// A Device is the control side of an open port. Its methods may be called from
// any goroutine.
type Device interface {
	// LinkUp reports whether the port has a carrier and is up.
	LinkUp() bool

	// Counters returns the counters of RX queue q, and of TX queue q where the
	// port has as many.
	Counters(q int) DeviceCounters

	// Close gives the port back to the kernel. The workers must have stopped.
	// Ports are closed in reverse order of opening.
	Close() error
}

// A Port is an open port: what a backend returns.
type Port struct {
	Info
	Queues []Queue
	Host   []Queue // to the host stack (TX) and from it (RX), where frames for it pass through nmfwd: one slot each
	Device Device
}

// A PortError is why a backend does not open a port. Its text names the port.
type PortError struct {
	Port string
	Err  error
}

func (e *PortError) Error() string { return e.Err.Error() }
func (e *PortError) Unwrap() error { return e.Err }

// Rings are the numbers of rings of a port.
type Rings struct{ RX, TX int }

// Owners say which worker has each ring of a port: RX[i] reads RX ring i, TX[i]
// writes TX ring i, and Host has both host rings, where there are any. -1 means
// that no worker uses the ring.
type Owners struct {
	RX, TX []int
	Host   int
}

// A PortConfig says how a backend opens a port.
type PortConfig struct {
	Name     string
	Host     bool               // the host stack keeps what is not for forwarding
	MTU      int                // largest IP packet in bytes, 0 for the device's own
	BufSize  int                // buffer size in bytes, 0 for the backend's choice
	Owners   Owners             // which worker opens which ring
	Spare    int                // buffers without a queue that the port's region has to have at least
	Addrs    []netip.Addr       // the router's own addresses, on any port: they stay with the host
	MAC      net.HardwareAddr   // the port's own address, nil for the device's
	MACs     []net.HardwareAddr // further addresses that are ours
	VLANs    []uint16           // IDs of VLANs on the port
	Routes   bool               // the host follows some routes: see HostRouter
	Native   bool               // fail where the port is not in native mode
	ZeroCopy bool               // fail where the device copies
}

// An AddressFilter is a Device that tells the router's own addresses from
// others before a worker sees a packet, and so has to follow a reload.
type AddressFilter interface {
	SetAddrs([]netip.Addr) error
}

// A HostRouter is a Device that leaves packets to the host stack, if there is one,
// before a worker sees them, and so has to know which routes the host follows.
type HostRouter interface {
	// SetHostRoutes makes routes the ones that the host follows, true, or, within
	// one of these, does not, and returns how many have no place: then the host gets
	// more than is its own, but nothing less. It may be called from any goroutine, and
	// does not change or keep the map.
	SetHostRoutes(routes map[netip.Prefix]bool) (missing int, err error)

	// AddHostRoute makes one more route that the host follows, until all are set
	// again. Without place the host gets more than is its own, too.
	AddHostRoute(netip.Prefix) error
}

// A Watcher is a Device that others may change, beyond its link, while it is
// open.
type Watcher interface {
	// Changed returns what is different from when the device was opened and is
	// not followed, and what to do about it, or nil. It may be called from any
	// goroutine.
	Changed() error
}

// A Diverter is a Device that can leave all that it receives to the host stack
// while it is open, so that what is on its queues comes to an end.
type Diverter interface {
	// Divert does so until Close. It may be called from any goroutine.
	Divert() error
}
