// Package fake is a netmap kernel in ordinary memory, for tests: it has network
// cards, VALE switches and pipes, divides regions into pools, and answers
// requests and syncs as the real one was seen to, errors included. A card
// remembers the buffer that each slot had when it was last told, so that a
// change without abi.BufChanged has the effect that it has on hardware.
//
// What a real kernel would suffer in silence is kept as a fault (see Faults):
// buffers freed twice or leaked, slots with flags that must not be set, calls
// that would have blocked (those of a kernel that Blocks do block).
package fake

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane/netmap"
	"nmfwd/dataplane/netmap/abi"
)

// Params are the sizes of the pools of the region that cards share.
type Params struct{ Ifs, Rings, Bufs, BufSize int }

// DefaultParams are small, but enough for several ports.
var DefaultParams = Params{Ifs: 64, Rings: 128, Bufs: 1200, BufSize: 2048}

// A Kernel is a netmap kernel. It implements netmap.Kernel.
type Kernel struct {
	// Missing says that there is no netmap device, Forbidden that it may not be
	// opened.
	Missing, Forbidden bool

	// Polls says that descriptors can be polled, with Poll.
	Polls bool

	// LockFree says that Poll behaves as on FreeBSD: it syncs no RX ring while
	// all have slots that were not looked at.
	LockFree bool

	// Blocks says that calls on a card that is down wait until it is up, as on
	// Linux. Without it they are a fault.
	Blocks bool

	// TellsUse says that Interface tells which cards are in netmap mode, as on
	// FreeBSD.
	TellsUse bool

	// Others is what Users returns.
	Others string

	// Caller tells who makes a call. If it is set, a ring that is synced by two
	// callers is a fault.
	Caller func() int

	// Quiet says that there is no news of links.
	Quiet bool

	// MinVersion and MaxVersion are the versions that requests may have.
	MinVersion, MaxVersion uint16

	mu       sync.Mutex
	up       *sync.Cond // some card came up or went
	waiting  int        // calls that are blocked
	calls    int        // syncs and polls
	news     map[*links]bool
	params   Params
	cards    map[string]*Card
	adapters map[string]*adapter
	regions  map[uint16]*region
	parents  map[string]*region // of pipes without a card
	files    map[int]*file
	maps     map[*byte]*region
	used     map[int][][]uint64 // memory of regions that are gone, by words
	nextFD   int
	trace    []string
	faults   []string
}

// New returns a kernel without cards.
func New(p Params) *Kernel {
	k := &Kernel{
		news:  map[*links]bool{},
		Polls: true, MinVersion: 14, MaxVersion: 15, params: p,
		cards: map[string]*Card{}, adapters: map[string]*adapter{}, regions: map[uint16]*region{}, parents: map[string]*region{},
		files: map[int]*file{}, maps: map[*byte]*region{}, used: map[int][][]uint64{}, nextFD: 1 << 20,
	}
	k.up = sync.NewCond(&k.mu)
	return k
}

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

// Calls returns the number of syncs and polls so far.
func (k *Kernel) Calls() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.calls
}

// Occupy lets another program open the card called name, and returns a function
// that ends it.
func (k *Kernel) Occupy(name string, exclusive bool) (end func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := &abi.Register{Mode: abi.ModeAllNIC}
	if exclusive {
		r.Flags = abi.Exclusive
	}
	k.nextFD++
	f := &file{fd: k.nextFD}
	k.files[f.fd] = f
	if err := k.register(f, name, r); err != nil {
		panic(err)
	}
	f.a.region.ifAt(f.ifOff).BufsHead = 0
	return func() { k.Close(f.fd) }
}

// Blocked returns the number of calls that wait for a card.
func (k *Kernel) Blocked() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.waiting
}

// Faults returns what a real kernel would not have reported.
func (k *Kernel) Faults() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, f := range k.faults {
		errs = append(errs, errors.New(f))
	}
	return errors.Join(errs...)
}

func (k *Kernel) fault(format string, a ...any) {
	if len(k.faults) < 20 {
		k.faults = append(k.faults, fmt.Sprintf(format, a...))
	}
}

// Trace returns and forgets the calls so far, one line each, syncs and polls
// excepted.
func (k *Kernel) Trace() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.trace
	k.trace = nil
	return t
}

func (k *Kernel) note(format string, a ...any) { k.trace = append(k.trace, fmt.Sprintf(format, a...)) }

// Idle returns an error when something is still open, mapped or allocated.
func (k *Kernel) Idle() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.news) > 0 {
		return fmt.Errorf("fake: %d listeners to links are left", len(k.news))
	}
	if len(k.files) > 0 || len(k.maps) > 0 || len(k.adapters) > 0 || len(k.regions) > 0 {
		return fmt.Errorf("fake: %d descriptors, %d mappings, %d ports and %d regions are left", len(k.files), len(k.maps), len(k.adapters), len(k.regions))
	}
	return nil
}

// A file is an open descriptor.
type file struct {
	fd     int
	a      *adapter // nil until registered
	rx, tx []*kring // bound
	ifOff  int      // of its netmap_if
	closed bool     // but mapped
}

// Open implements netmap.Kernel.
func (k *Kernel) Open() (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.Missing:
		return -1, &os.PathError{Op: "open", Path: abi.Device, Err: unix.ENOENT}
	case k.Forbidden:
		return -1, &os.PathError{Op: "open", Path: abi.Device, Err: unix.EACCES}
	}
	k.nextFD++
	k.files[k.nextFD] = &file{fd: k.nextFD}
	return k.nextFD, nil
}

// Pollable implements netmap.Kernel.
func (k *Kernel) Pollable() bool { return k.Polls }

// SetBufSize implements netmap.Kernel.
func (k *Kernel) SetBufSize(size int) (restore func() error, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.params.BufSize
	k.params.BufSize = size
	return func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.params.BufSize = old
		return nil
	}, nil
}

// BufSize returns the size of buffers in regions that get their first user from
// now on.
func (k *Kernel) BufSize() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.params.BufSize
}

// Interface implements netmap.Kernel.
func (k *Kernel) Interface(name string) (netmap.Interface, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.cards[name]
	if c == nil || c.Gone {
		return netmap.Interface{}, unix.ENXIO
	}
	i := c.Interface
	i.InUse = k.TellsUse && k.adapters[name] != nil
	return i, nil
}

// Link implements netmap.Kernel.
func (k *Kernel) Link(name string) (up, carrier bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.cards[name]
	if c == nil || c.Gone {
		return false, false, unix.ENXIO
	}
	if c.bouncing > 0 {
		c.bouncing--
		return c.Up, false, nil
	}
	return c.Up, c.Carrier, nil
}

// links are the news for one listener.
type links struct {
	k       *Kernel
	c, done chan struct{}
}

// Links implements netmap.Kernel.
func (k *Kernel) Links() (netmap.Links, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.Quiet {
		return nil, unix.EPERM
	}
	l := &links{k, make(chan struct{}, 1), make(chan struct{})}
	k.news[l] = true
	return l, nil
}

func (l *links) Wait() error {
	select {
	case <-l.c:
		return nil
	case <-l.done:
		return os.ErrClosed
	}
}

func (l *links) Close() error {
	l.k.mu.Lock()
	defer l.k.mu.Unlock()
	delete(l.k.news, l)
	close(l.done)
	return nil
}

// Received implements netmap.Kernel.
func (k *Kernel) Received(name string) (uint64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.cards[name]
	if c == nil || c.Gone {
		return 0, unix.ENXIO
	}
	return c.received, nil
}

// Users implements netmap.Kernel.
func (k *Kernel) Users() string { return k.Others }

// Control implements netmap.Kernel.
func (k *Kernel) Control(fd int, h *abi.Header) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.files[fd]
	if f == nil {
		return unix.EBADF
	}
	err := k.request(f, h)
	if err != nil {
		h.Reserved = 1 // a header that failed cannot be used again
	}
	return err
}

func (k *Kernel) request(f *file, h *abi.Header) error {
	if h.Reserved != 0 || h.Version < k.MinVersion || h.Version > k.MaxVersion || h.Body == 0 || h.Options != 0 {
		return unix.EINVAL
	}
	name := unix.ByteSliceToString(h.Name[:])
	switch h.ReqType {
	case abi.ReqRegister:
		r := registerOf(h)
		err := k.register(f, name, r)
		k.note("register %d %s mode %d ring %d flags %#x extra %d: %v", f.fd, name, r.Mode, r.RingID, r.Flags, r.ExtraBufs, err)
		return err
	case abi.ReqPortInfo:
		_, existed := k.adapters[name]
		a, err := k.adapter(name, &abi.Register{})
		if err != nil {
			return err
		}
		*portInfoOf(h) = abi.PortInfo{
			MemSize: uint64(len(a.region.mem)), MemID: a.region.id,
			RXRings: uint16(len(a.rx)), TXRings: uint16(len(a.tx)), RXSlots: uint32(a.rxSlots), TXSlots: uint32(a.txSlots),
		}
		if !existed {
			k.drop(a)
		}
		return nil
	case abi.ReqPools:
		_, existed := k.adapters[name]
		a, err := k.adapter(name, &abi.Register{})
		if err != nil {
			return err
		}
		m := a.region
		*poolsInfoOf(h) = abi.PoolsInfo{
			MemSize: uint64(len(m.mem)), MemID: m.id,
			IfOffset: uint64(m.ifs.base), IfTotal: uint32(len(m.ifs.used)), IfSize: uint32(m.ifs.size),
			RingOffset: uint64(m.rings.base), RingTotal: uint32(len(m.rings.used)), RingSize: uint32(m.rings.size),
			BufOffset: uint64(m.bufs.base), BufTotal: uint32(len(m.bufs.used)), BufSize: uint32(m.bufs.size),
		}
		if !existed {
			k.drop(a)
		}
		return nil
	}
	return unix.EINVAL
}

// register binds f to rings of a port.
func (k *Kernel) register(f *file, name string, r *abi.Register) error {
	if f.a != nil {
		return unix.EBUSY
	}
	if r.Mode == abi.ModeNull {
		name = "null:" + name
	}
	_, existed := k.adapters[name]
	a, err := k.adapter(name, r)
	if err != nil {
		return err
	}
	if c := a.card; c != nil && cmp.Or(c.Part, c.MTU) > a.region.bufs.size && c.MTU > a.region.bufs.size {
		if !existed {
			k.drop(a)
		}
		return unix.EINVAL
	}
	if err := k.bind(f, a, r); err != nil {
		if !existed {
			k.drop(a)
		}
		return err
	}
	return nil
}

func (k *Kernel) bind(f *file, a *adapter, r *abi.Register) error {
	rx, tx := a.rx, a.tx
	host := a.host[:]
	if (r.Mode == abi.ModeSW || r.Mode == abi.ModeNICSW) && a.host[0] == nil {
		return unix.EINVAL
	}
	switch r.Mode {
	case abi.ModeAllNIC, abi.ModeNull:
	case abi.ModeSW:
		rx, tx = host[:1:1], host[1:]
	case abi.ModeNICSW:
		rx, tx = append(rx[:len(rx):len(rx)], host[0]), append(tx[:len(tx):len(tx)], host[1])
	case abi.ModeOneNIC:
		i := int(r.RingID)
		if i >= len(rx) && i >= len(tx) {
			return unix.EINVAL
		}
		rx, tx = one(rx, i), one(tx, i)
	default:
		return unix.EINVAL
	}
	if r.Flags&abi.RXRingsOnly != 0 {
		tx = nil
	}
	if r.Flags&abi.TXRingsOnly != 0 {
		rx = nil
	}
	if a.exclusive || r.Flags&abi.Exclusive != 0 && a.users > 0 {
		return unix.EBUSY
	}
	if a.users == 0 {
		if err := a.makeRings(); err != nil {
			return err
		}
		if c := a.card; c != nil {
			c.Wedged = false
		}
	}
	if r.Mode == abi.ModeSW || r.Mode == abi.ModeNICSW {
		if err := a.makeHostRings(); err != nil {
			if a.users == 0 {
				a.freeRings()
			}
			return err
		}
	}
	off, ok := a.region.ifs.take()
	if !ok {
		if a.users == 0 {
			a.freeRings()
		}
		return unix.ENOMEM
	}
	a.users++
	a.exclusive = r.Flags&abi.Exclusive != 0
	f.a, f.rx, f.tx, f.ifOff = a, rx, tx, off
	a.region.writeIf(f)
	r.ExtraBufs = a.region.extra(off, r.ExtraBufs)
	for _, q := range append(append([]*kring(nil), rx...), tx...) {
		if q.users++; q.users == 1 && a.card != nil {
			a.card.Changes++
			a.card.bouncing = a.card.Bounce
		}
	}
	r.Offset, r.MemSize, r.MemID = uint64(off), uint64(len(a.region.mem)), a.region.id
	r.RXRings, r.TXRings, r.RXSlots, r.TXSlots = uint16(len(a.rx)), uint16(len(a.tx)), uint32(a.rxSlots), uint32(a.txSlots)
	if a.host[0] != nil {
		r.HostRXRings, r.HostTXRings = 1, 1
	}
	return nil
}

// one returns ring i, or the first where there are fewer.
func one(rings []*kring, i int) []*kring {
	if i >= len(rings) {
		i = 0
	}
	return rings[i : i+1]
}

// Map implements netmap.Kernel.
func (k *Kernel) Map(fd, size int) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.files[fd]
	if f == nil || f.a == nil || size > len(f.a.region.mem) {
		return nil, unix.EINVAL
	}
	r := f.a.region
	r.mappers = append(r.mappers, f)
	k.maps[&r.mem[0]] = r
	k.note("map %d", fd)
	return r.mem[:size], nil
}

// Unmap implements netmap.Kernel. Of several mappings of a region it ends the
// oldest.
func (k *Kernel) Unmap(mem []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.maps[&mem[0]]
	if r == nil {
		return unix.EINVAL
	}
	k.note("unmap")
	f := r.mappers[0]
	if r.mappers = r.mappers[1:]; len(r.mappers) == 0 {
		delete(k.maps, &mem[0])
	}
	if f.closed && !slices.Contains(r.mappers, f) {
		k.unbind(f)
	}
	k.release(r)
	return nil
}

// Close implements netmap.Kernel. A descriptor that is mapped stays bound to its
// rings until it is unmapped.
func (k *Kernel) Close(fd int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.files[fd]
	if f == nil {
		return unix.EBADF
	}
	delete(k.files, fd)
	if f.a == nil {
		return nil
	}
	k.note("close %d", fd)
	if f.closed = slices.Contains(f.a.region.mappers, f); !f.closed {
		k.unbind(f)
	}
	return nil
}

// unbind frees the rings of a descriptor.
func (k *Kernel) unbind(f *file) {
	a := f.a
	a.region.freeExtra(f.ifOff)
	a.region.ifs.give(f.ifOff)
	for _, q := range append(append([]*kring(nil), f.rx...), f.tx...) {
		if q.users--; q.users == 0 && a.card != nil {
			a.card.Changes++
		}
	}
	a.exclusive = false
	if a.users--; a.users == 0 && (a.peer == nil || a.peer.users == 0) {
		a.freeRings()
		if a.region.adapters == 1 {
			k.forget(a.region)
		}
		k.drop(a)
	}
}

// forget is called when nobody uses a region any more: the kernel then takes
// all that is in it for free. It notes what was not.
func (k *Kernel) forget(r *region) {
	if n := r.bufs.out(); n > 0 {
		k.fault("%d buffers of region %d leaked", n, r.id)
	}
	if n := r.rings.out() + r.ifs.out(); n > 0 {
		k.fault("%d rings or interfaces of region %d leaked", n, r.id)
	}
	r.makePools()
}

// drop forgets an adapter that nobody uses.
func (k *Kernel) drop(a *adapter) {
	delete(k.adapters, a.name)
	a.region.adapters--
	k.release(a.region)
}

// release forgets a region that nobody uses.
func (k *Kernel) release(r *region) {
	if r.adapters > 0 || len(r.mappers) > 0 {
		return
	}
	delete(k.regions, r.id)
	k.used[len(r.words)] = append(k.used[len(r.words)], r.words)
	for name, p := range k.parents {
		if p == r {
			delete(k.parents, name)
		}
	}
}

var pipeName = regexp.MustCompile(`^([^{}]+)([{}])([0-9]+)$`)

// adapter returns the port called name, which is made if it is not a card and
// does not exist. r has the wishes for a new one.
func (k *Kernel) adapter(name string, r *abi.Register) (*adapter, error) {
	if r.MemID != 0 && k.regions[r.MemID] == nil {
		return nil, unix.EINVAL
	}
	if a := k.adapters[name]; a != nil {
		return a, nil
	}
	a := &adapter{kernel: k, name: name}
	nrx, ntx := max(int(r.RXRings), 1), max(int(r.TXRings), 1)
	a.rxSlots, a.txSlots = orDefault(r.RXSlots, 64), orDefault(r.TXSlots, 64)
	m := pipeName.FindStringSubmatch(name)
	switch {
	case r.Mode == abi.ModeNull:
		if r.MemID == 0 {
			return nil, unix.EINVAL
		}
		a.region, nrx, ntx = k.regions[r.MemID], 0, 0
	case strings.HasPrefix(name, "vale") && strings.Contains(name, ":"):
		a.vale, _, _ = strings.Cut(name, ":")
		a.region = k.private(nrx*a.rxSlots+ntx*a.txSlots, int(r.ExtraBufs))
	case m != nil:
		if c := k.cards[m[1]]; c != nil {
			a.region = k.global()
		} else if a.region = k.parents[m[1]]; a.region == nil {
			a.region = k.private(8*64, int(r.ExtraBufs)+64)
			k.parents[m[1]] = a.region
		}
		other := map[string]string{"{": "}", "}": "{"}[m[2]]
		a.peerName = m[1] + other + m[3]
		nrx, ntx = max(nrx, ntx), max(nrx, ntx)
		a.txSlots = a.rxSlots
		if p := k.adapters[a.peerName]; p != nil {
			a.peer, p.peer = p, a
			nrx, ntx, a.rxSlots, a.txSlots = len(p.tx), len(p.rx), p.txSlots, p.rxSlots
		}
	default:
		c := k.cards[name]
		if c == nil || c.Gone {
			return nil, unix.ENXIO
		}
		a.card, a.region = c, k.global()
		nrx, ntx, a.rxSlots, a.txSlots = c.RXRings, c.TXRings, c.RXSlots, c.TXSlots
	}
	if r.MemID != 0 {
		a.region = k.regions[r.MemID]
	}
	if a.card != nil {
		a.host[abi.DirRX] = &kring{a: a, dir: abi.DirRX, id: nrx, host: true}
		a.host[abi.DirTX] = &kring{a: a, dir: abi.DirTX, id: ntx, host: true}
	}
	a.region.adapters++
	for i := range nrx {
		a.rx = append(a.rx, &kring{a: a, dir: abi.DirRX, id: i})
	}
	for i := range ntx {
		a.tx = append(a.tx, &kring{a: a, dir: abi.DirTX, id: i})
	}
	k.adapters[name] = a
	return a, nil
}

func orDefault(n uint32, d int) int {
	if n == 0 {
		return d
	}
	return int(n)
}

// global returns the region of the cards.
func (k *Kernel) global() *region {
	if r := k.regions[1]; r != nil {
		return r
	}
	r := newRegion(k, 1, k.params)
	k.regions[1] = r
	return r
}

// private returns a new region with room for some buffers in rings and some
// extra ones.
func (k *Kernel) private(bufs, extra int) *region {
	id := uint16(2)
	for k.regions[id] != nil {
		id++
	}
	r := newRegion(k, id, Params{Ifs: 12, Rings: 20, Bufs: abi.FirstBuffer + bufs + extra, BufSize: k.params.BufSize})
	k.regions[id] = r
	return r
}
