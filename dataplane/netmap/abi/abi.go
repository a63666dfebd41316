// Package abi is the interface of the netmap kernel module: the structures of
// net/netmap.h as the kernel lays them out in shared memory and in requests,
// the numbers that go with them, and views of a mapped memory region.
//
// Layouts are those of the machine the program runs on, so a 386 program
// matches a 386 kernel and no other: on a 64-bit kernel its Register and If
// would be misread.
//
// Source: sys/net/netmap.h of netmap API 14.
package abi

// API is the version of the interface that is asked for (NETMAP_API). The
// kernel accepts a range of versions and refuses others with EINVAL, without
// saying which it has.
const API = 14

// Device is the file through which netmap is reached.
const Device = "/dev/netmap"

// The request types of Header.
const (
	ReqRegister = 1  // NETMAP_REQ_REGISTER, body Register
	ReqPortInfo = 2  // NETMAP_REQ_PORT_INFO_GET, body PortInfo
	ReqPools    = 12 // NETMAP_REQ_POOLS_INFO_GET, body PoolsInfo
)

// The registration modes: which rings a descriptor is bound to (NR_REG_*).
// Rings that it is not bound to have offset 0 in If.
const (
	ModeAllNIC = 1 // NR_REG_ALL_NIC
	ModeSW     = 2 // NR_REG_SW: the host rings
	ModeNICSW  = 3 // NR_REG_NIC_SW: both
	ModeOneNIC = 4 // NR_REG_ONE_NIC: the ring pair Register.RingID, or ring 0 of a side that has fewer
	ModeNull   = 7 // NR_REG_NULL: memory only
	ModeOneSW  = 8 // NR_REG_ONE_SW: the host ring pair Register.RingID
)

// The flags of a registration (NR_*).
const (
	Exclusive   = 0x800   // NR_EXCLUSIVE: no other descriptor on these rings
	RXRingsOnly = 0x2000  // NR_RX_RINGS_ONLY
	TXRingsOnly = 0x4000  // NR_TX_RINGS_ONLY
	NoTXPoll    = 0x20000 // NR_NO_TX_POLL
)

// The flags of a slot (NS_*). Bits 8 to 15 are a fragment count on receive and
// a forced destination port on transmit, so flags are never copied from the
// one to the other.
const (
	BufChanged = 0x01 // NS_BUF_CHANGED: the buffer number is another than at the last sync
	Report     = 0x02 // NS_REPORT: completion of this slot has to be reported
	Forward    = 0x04 // NS_FORWARD: never set here
	Indirect   = 0x10 // NS_INDIRECT: never set here
	MoreFrag   = 0x20 // NS_MOREFRAG: the frame goes on in the next slot
)

// The values of Ring.Dir. The comment in netmap.h has them the other way round;
// these are what the kernel writes (enum txrx).
const (
	DirRX = 0
	DirTX = 1
)

// PrivateMemory in If.Flags says that the region is the port's own
// (NI_PRIV_MEM).
const PrivateMemory = 1

// FirstBuffer is the lowest buffer number in use: 0 and 1 are reserved.
const FirstBuffer = 2

// MaxFrags is the longest chain of slots that makes one frame
// (NETMAP_MAX_FRAGS).
const MaxFrags = 64

// NameSize is the size of Header.Name with its final zero
// (NETMAP_REQ_IFNAMSIZ).
const NameSize = 64

// IfNameSize is the size of an interface name with its final zero (IFNAMSIZ).
const IfNameSize = 16

// A Header begins every request, the argument of NIOCCTRL (struct
// nmreq_header). The kernel writes into it, so every call needs a fresh one.
//
//	 0  version   2  reqtype   4  reserved
//	 8  name, 64 bytes
//	72  options  80  body
type Header struct {
	Version  uint16
	ReqType  uint16
	Reserved uint32
	Name     [NameSize]byte
	Options  uint64 // address of a list of options, 0 for none
	Body     uint64 // address of the body that ReqType asks for
}

// A Register binds a descriptor to rings of a port (struct nmreq_register).
// Sizes are wishes on the way in and facts on the way out.
type Register struct {
	Offset      uint64 // out: of If in the region
	MemSize     uint64 // out: size of the region in bytes
	TXSlots     uint32 // per ring
	RXSlots     uint32
	TXRings     uint16
	RXRings     uint16
	HostTXRings uint16
	HostRXRings uint16
	MemID       uint16 // region; buffers are exchanged within one only
	RingID      uint16
	Mode        uint32
	ExtraBufs   uint32 // buffers without a ring, listed from If.BufsHead
	Flags       uint64
}

// A PortInfo is the answer to ReqPortInfo (struct nmreq_port_info_get).
type PortInfo struct {
	MemSize     uint64
	TXSlots     uint32
	RXSlots     uint32
	TXRings     uint16
	RXRings     uint16
	HostTXRings uint16
	HostRXRings uint16
	MemID       uint16
	_           [3]uint16
}

// A PoolsInfo is the answer to ReqPools: how a region is divided into its three
// pools of equal objects (struct nmreq_pools_info).
type PoolsInfo struct {
	MemSize    uint64
	MemID      uint16
	_          [3]uint16
	IfOffset   uint64
	IfTotal    uint32
	IfSize     uint32
	RingOffset uint64
	RingTotal  uint32
	RingSize   uint32
	BufOffset  uint64
	BufTotal   uint32
	BufSize    uint32
}

// An If is the part of the shared memory that lists the rings of a descriptor
// (struct netmap_if). The offsets of the rings follow it: TX, host TX, RX, host
// RX, each as many as If says, each relative to the If.
type If struct {
	Name        [IfNameSize]byte
	Version     uint32 // always 0
	Flags       uint32
	TXRings     uint32
	RXRings     uint32
	BufsHead    uint32 // first extra buffer; the first word of each is the number of the next, 0 at the end
	HostTXRings uint32
	HostRXRings uint32
	_           [3]uint32
}

// A Slot describes one buffer of a ring (struct netmap_slot).
type Slot struct {
	BufIdx uint32
	Len    uint16
	Flags  uint16
	Ptr    uint64
}

// A Timeval is struct timeval of the machine.
type Timeval struct{ Sec, Usec int }

// A ringHead is the part of a ring that the kernel and the owner of the ring
// write (struct netmap_ring up to its padding).
type ringHead struct {
	BufOfs     int64  // of buffer 0, from the ring
	NumSlots   uint32 //
	BufSize    uint32 // bytes per buffer
	RingID     uint16
	Dir        uint16 // DirTX or DirRX
	Head       uint32 // owner: first slot that is the owner's
	Cur        uint32 // owner: poll wakes when Tail moves beyond it
	Tail       uint32 // kernel, in system calls only: first slot that is the kernel's
	Flags      uint32
	TS         Timeval // time of the last RX sync
	OffsetMask uint64
	BufAlign   uint64
}
