package netmap

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane"
	"nmfwd/dataplane/netmap/abi"
)

// Another netmap program on a port may be one that is about to end, such as the
// nmfwd before this one: its end is waited for.
const (
	usedTries = 20
	usedPause = 100 * time.Millisecond
)

// errUsed says that somebody else uses the rings of a port.
var errUsed = fmt.Errorf("another netmap program has it: %w", unix.EBUSY)

// enter opens the control descriptor and maps the region that it is in, unless
// an earlier port has.
func (p *port) enter(regions map[uint16]*region) error {
	for try := 1; ; try++ {
		err := p.tryEnter(regions)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		p.leave()
		maps.DeleteFunc(regions, func(_ uint16, m *region) bool { return m.users == 0 })
		if try == usedTries || p.still {
			if u := p.kernel.Users(); u != "" {
				err = fmt.Errorf("%w: netmap is in use by %s", err, u)
			}
			return err
		}
		time.Sleep(usedPause)
	}
}

func (p *port) tryEnter(regions map[uint16]*region) error {
	if p.kind == nic {
		if i, err := p.kernel.Interface(p.name); err == nil && i.InUse {
			return errUsed
		}
	}
	fd, err := open(p.kernel)
	if err != nil {
		return err
	}
	p.control = fd
	reg := abi.Register{}
	if p.kind != nic {
		reg.RXRings, reg.TXRings = uint16(len(p.cfg.Owners.RX)), uint16(len(p.cfg.Owners.TX))
	}
	have := 0
	if i, err := portInfo(p.kernel, fd, p.name); err == nil && regions[i.MemID] != nil {
		have = regions[i.MemID].spare
	}
	if have < p.cfg.Spare {
		reg.ExtraBufs = uint32(p.cfg.Spare - have)
	}
	if err := p.register(&reg); err != nil {
		return err
	}
	p.reg = reg
	m := regions[p.reg.MemID]
	if m == nil {
		if m, err = newRegion(p.kernel, fd, p.name, &p.reg); err != nil {
			return err
		}
		regions[m.id] = m
	}
	m.users++
	p.region = m
	if p.nifp, err = abi.IfAt(m.mem, p.reg.Offset); err != nil {
		return err
	}
	if p.reg.ExtraBufs == 0 {
		p.nifp.BufsHead = 0
	}
	fresh := true
	for dir, n := range []int{abi.DirRX: int(p.reg.RXRings), abi.DirTX: int(p.reg.TXRings)} {
		if p.hasHost() {
			n++
		}
		for i := range n {
			r, slots, err := p.ringAt(p.reg.Offset, dir, i)
			if err != nil {
				return err
			}
			start := uint32(0)
			if dir == abi.DirTX {
				start = uint32(len(slots)) - 1
			}
			fresh = fresh && r.Head == 0 && r.Cur == 0 && r.Tail == start
		}
	}
	if err := m.take(p.nifp, p.reg.ExtraBufs); err != nil {
		return err
	}
	p.spare = int(p.reg.ExtraBufs)
	if rx, tx := len(p.cfg.Owners.RX), len(p.cfg.Owners.TX); rx != int(p.reg.RXRings) || tx != int(p.reg.TXRings) {
		return fmt.Errorf("%d RX and %d TX rings, planned for %d and %d", p.reg.RXRings, p.reg.TXRings, rx, tx)
	}
	if p.kind == nic && !fresh {
		return fmt.Errorf("%w: its rings have been used", errUsed)
	}
	if got := m.spare; got < p.cfg.Spare {
		return fmt.Errorf("%d of %d buffers beyond those of the rings: %w", got, p.cfg.Spare, unix.ENOMEM)
	}
	return nil
}

// register binds the control descriptor to all rings that the port is to have.
func (p *port) register(r *abi.Register) error {
	r.Mode = abi.ModeAllNIC
	if p.hasHost() {
		r.Mode = abi.ModeNICSW
	}
	if err := register(p.kernel, p.control, p.name, r); err != nil {
		return p.explain(err)
	}
	return nil
}

// explain says what an error of a registration means.
func (p *port) explain(err error) error {
	why := ""
	switch {
	case errors.Is(err, unix.ENXIO):
		why = ": there is no such interface"
	case errors.Is(err, unix.EBUSY):
		why = ": another program has it for itself"
	case errors.Is(err, unix.EINVAL):
		why = ": netmap refuses it; the kernel's log tells why"
		pools := abi.PoolsInfo{}
		if e := poolsInfo(p.kernel, p.control, p.name, &pools); e == nil && p.iface.MTU+headLen > int(pools.BufSize) {
			why = ": " + tooLong(p.iface.MTU, int(pools.BufSize))
		} else if p.kind == nic && p.iface.MTU > 65000 {
			why = ": netmap has no loopback"
		}
	}
	return fmt.Errorf("register: %w%s", err, why)
}

// tooLong says that packets of an MTU do not fit buffers of some size.
func tooLong(mtu, size int) string {
	return fmt.Sprintf("mtu %d needs buffers of %d bytes, they have %d: %s", mtu, mtu+headLen, size, setParameter("buf_size", (mtu+headLen+63)/64*64))
}

// ringAt returns ring n of the registration whose If is at byte off. Host rings
// are numbered after those of the NIC.
func (p *port) ringAt(off uint64, dir, n int) (*abi.Ring, []abi.Slot, error) {
	fail := func(err error) (*abi.Ring, []abi.Slot, error) {
		return nil, nil, fmt.Errorf("ring %d: %w", n, err)
	}
	f, err := abi.IfAt(p.region.mem, off)
	if err != nil {
		return fail(err)
	}
	ofs, err := abi.Offsets(p.region.mem, off)
	if err != nil {
		return fail(err)
	}
	k := f.Pos(dir, n)
	if k >= len(ofs) || ofs[k] == 0 {
		return fail(errors.New("not bound to the descriptor"))
	}
	r, slots, err := p.region.ring(int(off) + ofs[k])
	if err != nil {
		return fail(err)
	}
	if int(r.Dir) != dir || int(r.RingID) != n {
		return fail(fmt.Errorf("ring %d of direction %d is in its place", r.RingID, r.Dir))
	}
	return r, slots, nil
}

// plan returns a descriptor for each ring pair of one owner and for each other
// ring that has an owner, and the workers that have them. The host rings come
// last, so that they are closed first: a kernel has crashed when they outlived
// those of the NIC.
func (p *port) plan() (descs []*descriptor, workers []int) {
	o := p.cfg.Owners
	add := func(ring, worker int, mode uint32, flags uint64) {
		d := &descriptor{port: p, ring: ring, mode: mode, flags: flags, fd: -1, call: new(dataplane.Call)}
		if flags&abi.TXRingsOnly == 0 {
			d.rx = &rx{state: &p.state}
		}
		if flags&abi.RXRingsOnly == 0 {
			d.tx = &tx{state: &p.state, sync: d.txSync}
			if d.tx.host = mode == abi.ModeSW; !d.tx.host {
				d.tx.least = minFrame
			}
		}
		descs, workers = append(descs, d), append(workers, worker)
	}
	for i := range max(len(o.RX), len(o.TX)) {
		rx, tx := -1, -1
		if i < len(o.RX) {
			rx = o.RX[i]
		}
		if i < len(o.TX) {
			tx = o.TX[i]
		}
		if rx == tx && rx >= 0 {
			add(i, rx, abi.ModeOneNIC, 0)
			continue
		}
		if rx >= 0 {
			add(i, rx, abi.ModeOneNIC, abi.RXRingsOnly)
		}
		if tx >= 0 {
			add(i, tx, abi.ModeOneNIC, abi.TXRingsOnly)
		}
	}
	if p.hasHost() {
		add(0, o.Host, abi.ModeSW, 0)
	}
	return descs, workers
}

// openQueues opens the descriptors of all queues.
func (p *port) openQueues() error {
	var workers []int
	p.descs, workers = p.plan()
	for i, d := range p.descs {
		if err := p.bind(d); err != nil {
			return err
		}
		q := dataplane.Queue{Index: d.ring, Worker: workers[i], Descriptor: d}
		if d.rx != nil {
			q.RX = d.rx
		}
		if d.tx != nil {
			q.TX = d.tx
		}
		if d.mode == abi.ModeSW {
			p.host = append(p.host, q)
		} else {
			p.queues = append(p.queues, q)
		}
	}
	p.opened = true
	return nil
}

// bind opens a descriptor for its rings. The registration has an If of its own.
func (p *port) bind(d *descriptor) error {
	fd, err := open(p.kernel)
	if err != nil {
		return err
	}
	d.fd = fd
	reg := abi.Register{Mode: d.mode, RingID: uint16(d.ring), Flags: d.flags}
	if err := register(p.kernel, fd, p.name, &reg); err != nil {
		return p.explain(err)
	}
	if reg.MemID != p.region.id || reg.MemSize != p.reg.MemSize {
		return fmt.Errorf("queue %d is in region %d, the port in %d", d.ring, reg.MemID, p.region.id)
	}
	f, err := abi.IfAt(p.region.mem, reg.Offset)
	if err != nil {
		return err
	}
	f.BufsHead = 0
	rxRing, txRing := d.ring, d.ring
	if d.mode == abi.ModeSW {
		rxRing, txRing = int(p.reg.RXRings), int(p.reg.TXRings)
	}
	if d.rx != nil {
		r, slots, err := p.ringAt(reg.Offset, abi.DirRX, rxRing)
		if err != nil {
			return err
		}
		d.rx.bind(r, slots, p.region)
	}
	if d.tx != nil {
		r, slots, err := p.ringAt(reg.Offset, abi.DirTX, txRing)
		if err != nil {
			return err
		}
		d.tx.bind(r, slots, p.region)
	}
	return nil
}
