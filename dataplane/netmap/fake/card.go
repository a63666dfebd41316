package fake

import (
	"net"

	"nmfwd/dataplane/netmap"
	"nmfwd/dataplane/netmap/abi"
)

// A Card is a network card, whose cable ends in the test.
type Card struct {
	Name             string
	RXRings, TXRings int
	RXSlots, TXSlots int
	netmap.Interface

	// ReportOnly says that only slots with abi.Report are told to be complete.
	ReportOnly bool

	// Complete is told how many slots are on their way and returns how many of
	// them are sent by now; nil means all.
	Complete func(n int) int

	// Corrupt, if set, may change a slot that a frame was received in.
	Corrupt func(*abi.Slot)

	// Wedged says that the card receives frames that no ring gets, until it
	// enters netmap mode again. It can be cleared by nothing else.
	Wedged bool

	// Bounce is how many times Link reports no carrier after the card has
	// entered netmap mode.
	Bounce int

	// PollErr makes the next poll of the card return POLLERR.
	PollErr bool

	// Gone says that the interface was deleted.
	Gone bool

	// Stopped says that the driver is being reset, or is down and does not take
	// calls, as on FreeBSD from 13 on: they fail meanwhile.
	Stopped bool

	// Carrier is what Link reports.
	Carrier bool

	// Part is how many bytes of a frame the driver puts into one slot, 0 for as many
	// as a buffer has. Such a driver takes an MTU beyond the buffers if these hold a
	// part (NAF_MOREFRAG of netmap_kern.h).
	Part int

	// Changes counts the times that a ring entered or left netmap mode, each of
	// which resets a real card.
	Changes int

	kernel   *Kernel
	bouncing int
	received uint64
	rx       [][]part   // on the wire to RX rings
	tx       [][][]byte // frames sent by TX rings
	fromHost []part     // on their way to the host RX ring
	toHost   [][]byte   // that the host was given
}

// A part is what one slot can carry of a frame.
type part struct {
	bytes []byte
	more  bool
}

// AddCard adds a card. RXRings and TXRings of 0 mean 1, slots of 0 mean 64. It
// is up and has a carrier.
func (k *Kernel) AddCard(c Card) *Card {
	k.mu.Lock()
	defer k.mu.Unlock()
	c.RXRings, c.TXRings = max(c.RXRings, 1), max(c.TXRings, 1)
	if c.RXSlots == 0 {
		c.RXSlots = 64
	}
	if c.TXSlots == 0 {
		c.TXSlots = 64
	}
	if c.MAC == nil {
		c.MAC = net.HardwareAddr{0x02, 0, 0, 0, 1, byte(len(k.cards))}
	}
	if c.MTU == 0 {
		c.MTU = 1500
	}
	c.Driver, c.Native, c.Up, c.Carrier = "fake", true, true, true
	c.kernel = k
	c.rx, c.tx = make([][]part, c.RXRings), make([][][]byte, c.TXRings)
	k.cards[c.Name] = &c
	return &c
}

// Deliver puts a frame on the wire to RX ring n, where it waits for free slots.
func (c *Card) Deliver(n int, frame []byte) {
	size := c.kernel.params.BufSize
	if c.Part != 0 {
		size = c.Part
	}
	for len(frame) > size {
		c.DeliverPart(n, frame[:size], true)
		frame = frame[size:]
	}
	c.DeliverPart(n, frame, false)
}

// DeliverPart is Deliver for what one slot carries of a frame: more says that
// the frame goes on.
func (c *Card) DeliverPart(n int, b []byte, more bool) {
	c.kernel.mu.Lock()
	defer c.kernel.mu.Unlock()
	c.rx[n] = append(c.rx[n], part{append([]byte(nil), b...), more})
	c.received++
}

// Waiting returns the number of slots that what is on the wire to RX ring n
// needs.
func (c *Card) Waiting(n int) int {
	c.kernel.mu.Lock()
	defer c.kernel.mu.Unlock()
	return len(c.rx[n])
}

// Sent returns and forgets the frames that TX ring n has sent.
func (c *Card) Sent(n int) [][]byte {
	c.kernel.mu.Lock()
	defer c.kernel.mu.Unlock()
	f := c.tx[n]
	c.tx[n] = nil
	return f
}

// SetUp takes the interface up or down.
func (c *Card) SetUp(up bool) { c.change(func() { c.Up = up }) }

// SetCarrier plugs the cable in or out.
func (c *Card) SetCarrier(on bool) { c.change(func() { c.Carrier = on }) }

// SetStopped stops the rings, or starts them again.
func (c *Card) SetStopped(stopped bool) { c.change(func() { c.Stopped = stopped }) }

// SetGone deletes the interface, or makes it again.
func (c *Card) SetGone(gone bool) { c.change(func() { c.Gone = gone }) }

// change does what others hear of by Links.
func (c *Card) change(f func()) {
	k := c.kernel
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
	k.up.Broadcast()
	for l := range k.news {
		select {
		case l.c <- struct{}{}:
		default:
		}
	}
}

// FromHost sends a frame of the host stack by the card, and reports whether it
// was taken. In netmap mode it goes to the host RX ring, as far as that has
// room; while no ring of the card is in netmap mode it goes to the wire.
func (c *Card) FromHost(frame []byte) bool {
	c.kernel.mu.Lock()
	defer c.kernel.mu.Unlock()
	frame = append([]byte(nil), frame...)
	a := c.kernel.adapters[c.Name]
	switch {
	case a == nil || a.tx[0].users == 0:
		c.tx[0] = append(c.tx[0], frame)
	case a.host[abi.DirRX].users == 0 || len(c.fromHost) >= a.rxSlots-1:
		return false
	default:
		c.fromHost = append(c.fromHost, part{frame, false})
	}
	return true
}

// ToHost returns and forgets the frames that the host stack was given.
func (c *Card) ToHost() [][]byte {
	c.kernel.mu.Lock()
	defer c.kernel.mu.Unlock()
	f := c.toHost
	c.toHost = nil
	return f
}

// Reset puts all rings of the card to slot at, as drivers do when a link comes
// back. Buffers stay in the slots that they are in. Host rings stay as they
// are.
func (c *Card) Reset(at int) {
	c.kernel.mu.Lock()
	defer c.kernel.mu.Unlock()
	a := c.kernel.adapters[c.Name]
	if a == nil {
		return
	}
	for _, r := range append(append([]*kring(nil), a.rx...), a.tx...) {
		r.reset(uint32(at % len(r.slots)))
	}
}
