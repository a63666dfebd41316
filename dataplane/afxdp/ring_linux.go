package afxdp

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A ring is a single-producer, single-consumer ring shared with the kernel
// (net/xdp/xsk_queue.h). The producer index is written by the side that fills
// the ring, the consumer index by the side that empties it; each publishes its
// index once per burst, after it has written or read the entries.
type ring struct {
	producer *atomic.Uint32
	consumer *atomic.Uint32
	flags    *atomic.Uint32 // written by the kernel
	mask     uint32
	mem      []byte // the mapping
}

// A descRing is a receive ring (the kernel fills it) or a transmit ring (we do).
type descRing struct {
	ring
	descs []desc
}

// An addrRing is a fill ring (we fill it) or a completion ring (the kernel does).
type addrRing struct {
	ring
	addrs []uint64
}

// needWakeup reports whether the kernel wants a system call before it looks at
// the ring again.
func (r *ring) needWakeup() bool { return r.flags.Load()&unix.XDP_RING_NEED_WAKEUP != 0 }

func newRing(mem []byte, off *unix.XDPRingOffset, slots int) ring {
	return ring{
		producer: indexAt(mem, off.Producer),
		consumer: indexAt(mem, off.Consumer),
		flags:    indexAt(mem, off.Flags),
		mask:     uint32(slots - 1),
		mem:      mem,
	}
}

func newDescRing(mem []byte, off *unix.XDPRingOffset, slots int) descRing {
	return descRing{newRing(mem, off, slots), descsAt(mem, off.Desc, slots)}
}

func newAddrRing(mem []byte, off *unix.XDPRingOffset, slots int) addrRing {
	return addrRing{newRing(mem, off, slots), addrsAt(mem, off.Desc, slots)}
}

const (
	descSize = 16 // struct xdp_desc
	addrSize = 8  // __u64
)

// mapRing sizes the ring that opt names on socket fd and maps its memory.
func mapRing(fd, opt, slots, entry int, pgoff int64, off *unix.XDPRingOffset) ([]byte, error) {
	if err := unix.SetsockoptInt(fd, unix.SOL_XDP, opt, slots); err != nil {
		return nil, err
	}
	return unix.Mmap(fd, pgoff, int(off.Desc)+slots*entry, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
}
