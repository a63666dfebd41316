// Package afxdp is the AF_XDP backend: ports of any recent Linux kernel, read
// and written in user space through the rings of linux/if_xdp.h.
//
// Open opens all ports at once over one UMEM, so that a buffer received on any
// queue can be sent on any other by its number alone. Each queue of a port has
// four rings of its own. The worker that receives from the queue owns the receive
// and the fill ring, the worker that sends to it the transmit and the completion
// ring. They are the rings of one socket where the worker is the same, else of
// one socket for each. The kernel is the other side of each ring: every producer
// and consumer index has one writer, and is loaded or stored once per burst.
//
// A program on the port, attached as a link that dies with the process, hands
// the frames that are for forwarding to the sockets and leaves all others to
// the host stack; it counts what it leaves.
//
// A frame is one buffer: a port whose MTU does not fit the largest one, a page
// less 274 bytes, is refused. A tag that the device took out of a frame is not
// seen: receive VLAN offload is to be off, and the device to hear all that is
// ours, before a port is opened (package nic); on a veth it is the other end's
// transmit VLAN offload that hides tags. A device that is removed stays silent;
// one that is made again under its name needs a restart.
//
// See Documentation/networking/af_xdp.rst of the kernel.
package afxdp

import (
	"fmt"
	"math/bits"
)

// Options are choices for all ports of one Open.
type Options struct {
	// FrameSize is the size of a buffer in bytes: a power of two from 2048 to
	// the page size. 0 takes the smallest that holds a frame of each port's MTU.
	FrameSize int

	// RXSlots and TXSlots are the sizes of the rings of each queue, powers of
	// two. 0 chooses: receive rings that hold 2 ms of smallest frames at 10
	// Gbit/s over all queues of the port, at most 4,096 slots, and transmit
	// rings of half as many.
	RXSlots, TXSlots int

	// Note, if set, is called with each choice that the user should be told of:
	// a mode that was refused and why.
	Note func(text string)
}

const (
	minSlots     = 64
	maxSlots     = 1 << 15
	minFrameSize = 2048
	headroom     = 256    // XDP_PACKET_HEADROOM: room that the kernel leaves before a received frame
	linkHeader   = 14 + 4 // Ethernet header and one VLAN tag
	shortest     = 14     // a frame has at least an Ethernet header
	overhead     = headroom + linkHeader
)

// defaultSlots returns the ring sizes of a port with the given number of
// receive queues. A receive ring holds 2 ms of its queue's share of the
// smallest frames at 10 Gbit/s (14.88 million a second), but at most 4,096
// slots: 2 ms at the 2 million frames a second that one core takes from the
// kernel when it copies. A transmit ring is half as long.
func defaultSlots(queues int) (rx, tx int) {
	const in2ms = 29762
	share := (in2ms + queues - 1) / max(queues, 1)
	rx = min(max(1<<bits.Len(uint(share-1)), 1024), 4096)
	return rx, rx / 2
}

// slots returns the ring sizes that o means for a port with the given number of
// receive queues.
func (o *Options) slots(queues int) (rx, tx int, err error) {
	rx, tx = defaultSlots(queues)
	for _, s := range []struct {
		name  string
		given int
		slots *int
	}{{"receive", o.RXSlots, &rx}, {"transmit", o.TXSlots, &tx}} {
		switch {
		case s.given == 0:
		case s.given < minSlots || s.given > maxSlots || s.given&(s.given-1) != 0:
			return 0, 0, fmt.Errorf("afxdp: %s ring of %d slots: want a power of two from %d to %d", s.name, s.given, minSlots, maxSlots)
		default:
			*s.slots = s.given
		}
	}
	return rx, tx, nil
}

func (o *Options) note(format string, args ...any) {
	if o.Note != nil {
		o.Note(fmt.Sprintf(format, args...))
	}
}

// frameSize returns the buffer size that holds frames of mtu bytes of IP, given
// the size asked for (0 for none) and the page size. The port and the largest
// MTU appear in its error.
func frameSize(want, page int, port string, mtu int) (int, error) {
	if want != 0 && (want < minFrameSize || want > page || want&(want-1) != 0) {
		return 0, fmt.Errorf("afxdp: option buffer-size %d: want a power of two from %d to %d", want, minFrameSize, page)
	}
	size := max(want, minFrameSize)
	for size < mtu+overhead && want == 0 && size < page {
		size *= 2
	}
	if mtu+overhead <= size {
		return size, nil
	}
	if size < page {
		need := 1 << bits.Len(uint(mtu+overhead-1))
		if need <= page {
			return 0, fmt.Errorf("afxdp: port %s: a frame of MTU %d does not fit buffers of %d bytes: set option buffer-size %d or ip link set dev %s mtu %d",
				port, mtu, size, need, port, size-overhead)
		}
	}
	return 0, fmt.Errorf("afxdp: port %s: a frame of MTU %d does not fit the largest buffer, %d bytes: ip link set dev %s mtu %d",
		port, mtu, page, port, page-overhead)
}
