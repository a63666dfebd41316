package fake

import (
	"fmt"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane/netmap/abi"
)

const errNoMemory = unix.ENOMEM

// An adapter is a port.
type adapter struct {
	kernel           *Kernel
	name             string
	region           *region
	rx, tx           []*kring
	rxSlots, txSlots int
	host             [2]*kring // of a card, by direction
	users            int
	exclusive        bool

	card     *Card            // of a card
	vale     string           // switch of a VALE port
	peerName string           // other end of a pipe
	peer     *adapter         // nil while it is not open
	wire     [][]part         // to RX rings of a VALE port
	macs     map[[6]byte]bool // that a VALE port was seen to send from
}

func (a *adapter) rings() []*kring {
	r := append(append([]*kring(nil), a.rx...), a.tx...)
	if a.host[0] != nil {
		r = append(r, a.host[:]...)
	}
	return r
}

// A kring is a ring as the kernel sees it.
type kring struct {
	a     *adapter
	dir   int
	id    int
	host  bool
	off   int // in the region
	ring  *abi.Ring
	slots []abi.Slot
	users int

	hwcur, hwtail      uint32
	rhead, rcur, rtail uint32
	hw                 []uint32 // buffer that the device has for each slot
	report             []bool   // TX slots that are to be reported

	pipe     *kring // other end's ring
	pipeTail uint32

	owner int // who synced the ring first, where the kernel is told
}

func (q *kring) next(i uint32) uint32 { return (i + 1) % uint32(len(q.slots)) }
func (q *kring) prev(i uint32) uint32 { return (i + uint32(len(q.slots)) - 1) % uint32(len(q.slots)) }

// reset puts the ring to slot at, with nothing in it.
func (q *kring) reset(at uint32) {
	q.hwcur, q.hwtail = at, at
	if q.dir == abi.DirTX {
		q.hwtail = q.prev(at)
	}
	q.rhead, q.rcur, q.rtail = q.hwcur, q.hwcur, q.hwtail
	q.pipeTail = q.hwtail
	q.report = make([]bool, len(q.slots))
	q.ring.Head, q.ring.Cur, q.ring.Tail = q.hwcur, q.hwcur, q.hwtail
	for i := range q.slots {
		q.hw[i] = q.slots[i].BufIdx
	}
}

// slots returns the number of slots of a ring.
func (a *adapter) slots(dir int) int {
	if dir == abi.DirTX {
		return a.txSlots
	}
	return a.rxSlots
}

// makeHostRings makes the host rings of a card unless they are there.
func (a *adapter) makeHostRings() error {
	for _, q := range a.host {
		if q.ring == nil {
			if err := a.region.newRing(q, a.slots(q.dir), nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// makeRings makes all NIC rings of a port, and those of the other end of a pipe.
func (a *adapter) makeRings() error {
	if a.peer != nil && a.peer.users > 0 {
		return nil // made with the first end
	}
	a.wire = make([][]part, len(a.rx))
	a.macs = map[[6]byte]bool{}
	for _, q := range append(append([]*kring(nil), a.rx...), a.tx...) {
		if err := a.region.newRing(q, a.slots(q.dir), nil); err != nil {
			a.freeRings()
			return err
		}
	}
	if a.peerName == "" {
		return nil
	}
	p, err := a.kernel.adapter(a.peerName, &abi.Register{})
	if err != nil {
		return err
	}
	a.peer, p.peer = p, a
	for i, q := range a.tx {
		o := p.rx[i]
		q.pipe, o.pipe = o, q
		if err := a.region.newRing(o, a.txSlots, q); err != nil {
			return err
		}
	}
	for i, q := range a.rx {
		o := p.tx[i]
		q.pipe, o.pipe = o, q
		if err := a.region.newRing(o, a.rxSlots, q); err != nil {
			return err
		}
	}
	return nil
}

// freeRings frees all rings of a port. Those of a pipe go with the second end,
// each pair with its buffers once.
func (a *adapter) freeRings() {
	if a.peer == nil {
		for _, q := range a.rings() {
			a.region.freeRing(q, true)
		}
		return
	}
	for _, q := range a.tx {
		a.region.freeRing(q, true)
	}
	for _, q := range a.peer.tx {
		a.region.freeRing(q, true)
	}
	for _, q := range append(append([]*kring(nil), a.rx...), a.peer.rx...) {
		a.region.freeRing(q, false)
	}
	a.kernel.drop(a.peer)
}

// bufferOf returns the buffer that slot i of a TX ring has. In a pipe that is
// the one in the other end's RX ring for what has not been released there.
func (q *kring) bufferOf(i int) uint32 {
	if q.pipe != nil && q.pipe.ring != nil {
		n := uint32(len(q.slots))
		if (uint32(i)+n-q.pipe.hwcur)%n < (q.hwcur+n-q.pipe.hwcur)%n {
			return q.pipe.slots[i].BufIdx
		}
	}
	return q.slots[i].BufIdx
}

// A place is where a buffer is: slot n of a ring, the list of a descriptor, or
// the n-th that is held, from 1 on.
type place struct {
	q *kring
	f *file
	n int
}

func (p place) String() string {
	switch {
	case p.q != nil:
		return fmt.Sprintf("%v slot %d", p.q, p.n)
	case p.f != nil:
		return "list of " + p.f.a.name
	}
	return fmt.Sprintf("held %d", p.n)
}

// Census checks that each buffer of region id that is not free is in exactly
// one place: a slot, the list of a descriptor or one of held. No frame may be
// in the hands of a reader, other than in held.
func (k *Kernel) Census(id uint16, held ...[]uint32) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.regions[id]
	if r == nil {
		return fmt.Errorf("fake: no region %d", id)
	}
	places := make([]place, len(r.bufs.used))
	put := func(b uint32, at place) error {
		switch {
		case r.buffer(b) == nil || !r.bufs.used[b]:
			return fmt.Errorf("fake: buffer %d, %v, is not one", b, at)
		case places[b] != place{}:
			return fmt.Errorf("fake: buffer %d is in two places: %v and %v", b, places[b], at)
		}
		places[b] = at
		return nil
	}
	for _, a := range k.adapters {
		if a.region != r {
			continue
		}
		for _, q := range a.rings() {
			if q.pipe != nil && q.dir == abi.DirRX {
				continue // the same buffers as in the other end's TX ring
			}
			for i := range q.slots {
				if err := put(q.bufferOf(i), place{q: q, n: i}); err != nil {
					return err
				}
			}
		}
	}
	for _, f := range k.files {
		if f.a == nil || f.a.region != r {
			continue
		}
		for b := r.ifAt(f.ifOff).BufsHead; b != 0; b = *abi.Word(r.buffer(b)) {
			if err := put(b, place{f: f}); err != nil {
				return err
			}
		}
	}
	for i, h := range held {
		for _, b := range h {
			if err := put(b, place{n: i + 1}); err != nil {
				return err
			}
		}
	}
	for b, used := range r.bufs.used {
		if used && places[b] == (place{}) {
			return fmt.Errorf("fake: buffer %d is lost", b)
		}
	}
	return nil
}

// TXSync implements netmap.Kernel.
func (k *Kernel) TXSync(fd int) error { return k.sync(fd, abi.DirTX) }

// RXSync implements netmap.Kernel.
func (k *Kernel) RXSync(fd int) error { return k.sync(fd, abi.DirRX) }

func (k *Kernel) sync(fd, dir int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.files[fd]
	switch {
	case f == nil:
		return unix.EBADF
	case f.a == nil:
		return unix.ENXIO
	case f.a.card != nil && (f.a.card.Gone || f.a.card.Stopped):
		return unix.EIO
	}
	k.calls++
	if k.blocks(f) {
		return nil
	}
	rings := f.rx
	if dir == abi.DirTX {
		rings = f.tx
	}
	for _, q := range rings {
		if q.prologue() {
			q.sync(true)
		}
	}
	return nil
}

// blocks keeps a call on a card that is down, or notes it, and reports whether
// it did. A call that waited does nothing after: the rings may be another
// thread's by then.
func (k *Kernel) blocks(f *file) (did bool) {
	for c := f.a.card; c != nil && !c.Up && !c.Gone; did = true {
		if !k.Blocks {
			k.fault("a call on %s, which is down, would block", f.a.name)
			return false
		}
		k.waiting++
		k.up.Wait()
		k.waiting--
	}
	return did
}

// Poll is poll(2) for one descriptor with a timeout of 0.
func (k *Kernel) Poll(fd int, events int16) (revents int16) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.files[fd]
	switch {
	case f == nil:
		return unix.POLLNVAL
	case f.a == nil || f.a.card != nil && (f.a.card.Gone || f.a.card.Stopped):
		return unix.POLLERR
	}
	k.calls++
	if k.blocks(f) {
		return 0
	}
	if c := f.a.card; c != nil && c.PollErr {
		c.PollErr = false
		revents |= unix.POLLERR
	}
	wantRX := events&unix.POLLIN != 0
	if wantRX && k.LockFree {
		needed := len(f.rx) == 0
		for _, q := range f.rx {
			needed = needed || q.ring.Cur == q.ring.Tail || q.rhead != q.ring.Head
		}
		if !needed {
			revents |= unix.POLLIN
			wantRX = false
		}
	}
	for _, q := range f.tx {
		if events&unix.POLLOUT == 0 && q.ring.Head == q.hwcur {
			continue
		}
		if !q.prologue() {
			revents |= unix.POLLERR
			continue
		}
		q.sync(false)
		if q.rcur != q.rtail {
			revents |= events & unix.POLLOUT
		}
	}
	if wantRX {
		for _, q := range f.rx {
			if !q.prologue() {
				revents |= unix.POLLERR
			}
			q.sync(false)
			if q.rcur != q.rtail {
				revents |= unix.POLLIN
			}
		}
	}
	return revents
}

// within reports whether a, b and c are in this order in the ring, from a on.
func (q *kring) within(a, b, c uint32) bool {
	n := uint32(len(q.slots))
	return a < n && b < n && c < n && (b+n-a)%n <= (c+n-a)%n
}

// prologue takes head and cur over from the owner of the ring. If they are
// wrong the ring is put back to what the kernel knows, and false returned.
func (q *kring) prologue() bool {
	if k := q.a.kernel; k.Caller != nil {
		c := k.Caller()
		if q.owner == 0 {
			q.owner = c
		}
		if q.owner != c {
			k.fault("%s: synced by %d and %d", q, q.owner, c)
		}
	}
	head, cur := q.ring.Head, q.ring.Cur
	from := q.rhead
	if q.dir == abi.DirRX {
		from = q.hwcur
	}
	if !q.within(from, head, q.rtail) || !q.within(head, cur, q.rtail) {
		q.a.kernel.fault("%s: head %d and cur %d are not between %d and %d", q, head, cur, from, q.rtail)
		q.rhead, q.rcur, q.rtail = q.hwcur, q.hwcur, q.hwtail
		q.ring.Head, q.ring.Cur, q.ring.Tail = q.rhead, q.rcur, q.rtail
		return false
	}
	if q.ring.Tail != q.rtail {
		q.a.kernel.fault("%s: tail was overwritten", q)
		q.ring.Tail = q.rtail
	}
	q.rhead, q.rcur = head, cur
	return true
}

// sync is a driver's txsync or rxsync. Force asks for sent slots back.
func (q *kring) sync(force bool) {
	switch {
	case q.pipe != nil:
		q.syncPipe()
	case q.dir == abi.DirTX:
		q.transmit(force)
	default:
		q.receive()
	}
	q.rtail = q.hwtail
	q.ring.Tail = q.rtail
}

// load tells the device of the buffer in slot i if that is marked as changed.
func (q *kring) load(i uint32) {
	s := &q.slots[i]
	if s.Flags&abi.BufChanged != 0 {
		q.hw[i] = s.BufIdx
		s.Flags &^= abi.BufChanged
	}
}

// minHostFrame is the shortest frame that the host takes: an Ethernet header.
const minHostFrame = 14

// transmit sends what was queued.
func (q *kring) transmit(force bool) {
	full := q.rhead == q.rtail
	var frame []byte
	for i := q.hwcur; i != q.rhead; i = q.next(i) {
		s := &q.slots[i]
		if bad := s.Flags &^ (abi.BufChanged | abi.Report | abi.MoreFrag); bad != 0 {
			q.a.kernel.fault("%s: slot %d has flags %#x", q, i, bad)
		}
		q.load(i)
		q.report[i] = s.Flags&abi.Report != 0
		b := q.a.region.buffer(q.hw[i])
		if int(s.Len) > len(b) {
			q.a.kernel.fault("%s: slot %d has %d bytes in buffer %d of %d", q, i, s.Len, q.hw[i], len(b))
		} else {
			frame = append(frame, b[:s.Len]...)
		}
		switch {
		case q.host:
			// The stack gets a packet of each slot, whatever its flags say
			// (netmap_grab_packets of netmap.c), unless it is no frame at all.
			if len(frame) >= minHostFrame {
				q.a.card.toHost = append(q.a.card.toHost, frame)
			}
			frame = nil
		case s.Flags&abi.MoreFrag == 0:
			q.a.send(q.id, frame)
			frame = nil
		}
	}
	if frame != nil {
		q.a.kernel.fault("%s: the end of a frame is not queued", q)
	}
	q.hwcur = q.rhead
	if q.host {
		q.hwtail = q.prev(q.hwcur)
		return
	}
	if !force && !full && q.a.card != nil {
		return
	}
	n := uint32(len(q.slots))
	pending := int((q.hwcur + n - 1 - q.hwtail) % n)
	done := pending
	if c := q.a.card; c != nil && c.Complete != nil {
		done = min(max(c.Complete(pending), 0), pending)
	}
	at := q.hwtail
	for range done {
		at = q.next(at)
		if c := q.a.card; c == nil || !c.ReportOnly || q.report[at] {
			q.hwtail = at
		}
	}
}

// send puts a frame on the wire, or through the switch.
func (a *adapter) send(ring int, frame []byte) {
	if a.card != nil {
		a.card.tx[ring] = append(a.card.tx[ring], frame)
		return
	}
	if len(frame) < 14 {
		return
	}
	dst, src := [6]byte(frame), [6]byte(frame[6:])
	a.macs[src] = true
	var to []*adapter
	for _, o := range a.kernel.adapters {
		if o == a || o.vale != a.vale || o.users == 0 {
			continue
		}
		if o.macs[dst] {
			to = []*adapter{o}
			break
		}
		to = append(to, o)
	}
	for _, o := range to {
		n := ring % len(o.rx)
		if len(o.wire[n]) < o.rxSlots-1 {
			o.wire[n] = append(o.wire[n], part{frame, false})
		}
	}
}

// receive puts frames from the wire into the slots that the device has, then
// takes those that were released.
func (q *kring) receive() {
	wire, flags := (*[]part)(nil), uint16(0)
	switch c := q.a.card; {
	case q.host:
		wire = &c.fromHost
	case c != nil && c.Wedged:
		wire = &[]part{}
	case c != nil:
		wire = &c.rx[q.id]
	default:
		wire, flags = &q.a.wire[q.id], 0x100
	}
	for len(*wire) > 0 && q.next(q.hwtail) != q.hwcur {
		p := (*wire)[0]
		*wire = (*wire)[1:]
		s := &q.slots[q.hwtail]
		s.Len, s.Flags = uint16(copy(q.a.region.buffer(q.hw[q.hwtail]), p.bytes)), flags
		if p.more {
			s.Flags |= abi.MoreFrag
		}
		if q.a.card != nil && q.a.card.Corrupt != nil {
			q.a.card.Corrupt(s)
		}
		q.hwtail = q.next(q.hwtail)
	}
	for i := q.hwcur; i != q.rhead; i = q.next(i) {
		q.load(i)
	}
	q.hwcur = q.rhead
}

// syncPipe hands slots to the other end, or back to it.
func (q *kring) syncPipe() {
	o := q.pipe
	q.hwtail = q.pipeTail
	whole := q.hwcur
	for i := q.hwcur; i != q.rhead; i = q.next(i) {
		if q.dir == abi.DirTX {
			if bad := q.slots[i].Flags &^ (abi.BufChanged | abi.Report | abi.MoreFrag); bad != 0 {
				q.a.kernel.fault("%s: slot %d has flags %#x", q, i, bad)
			}
		}
		o.slots[i] = q.slots[i]
		if q.slots[i].Flags&abi.MoreFrag == 0 {
			whole = q.next(i)
		}
		q.slots[i].Flags &^= abi.BufChanged
	}
	if q.hwcur == q.rhead {
		return
	}
	q.hwcur = q.rhead
	if q.dir == abi.DirTX {
		o.pipeTail = whole
	} else {
		o.pipeTail = q.prev(q.rhead)
	}
}
