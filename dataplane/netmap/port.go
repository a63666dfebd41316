package netmap

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane"
	"nmfwd/dataplane/netmap/abi"
)

// Options are what Open needs besides the ports.
type Options struct {
	Kernel  Kernel // nil for the real one
	LockDir string // where the lock files of ports are, empty for the system's place
}

// linkInterval is the time between looks at a port's link state.
const linkInterval = 100 * time.Millisecond

// Available returns nil when the netmap device opens and speaks our version.
func Available() error {
	k := System()
	fd, err := open(k)
	if err != nil {
		return err
	}
	return k.Close(fd)
}

// Probe returns the numbers of rings of a network card, a VALE port or a pipe.
// A VALE port or pipe that does not exist yet can be opened with other numbers
// than these.
func Probe(name string) (dataplane.Rings, error) { return probe(System(), name) }

// HasHost reports whether there is a host stack behind the port called name: a
// VALE port or pipe has none.
func HasHost(name string) bool {
	_, k, err := parseName(name, func(string) bool { return true })
	return err == nil && k == nic
}

func probe(k Kernel, name string) (dataplane.Rings, error) {
	kernelName, _, err := parseName(name, exists(k))
	if err != nil {
		return dataplane.Rings{}, err
	}
	fd, err := open(k)
	if err != nil {
		return dataplane.Rings{}, err
	}
	defer k.Close(fd)
	p, err := portInfo(k, fd, kernelName)
	if err != nil {
		return dataplane.Rings{}, explain(name, err)
	}
	return dataplane.Rings{RX: int(p.RXRings), TX: int(p.TXRings)}, nil
}

// exists returns a function that reports whether there is a network card of a
// name.
func exists(k Kernel) func(string) bool {
	return func(name string) bool {
		_, err := k.Interface(name)
		return err == nil
	}
}

// open opens the netmap device and checks its version.
func open(k Kernel) (int, error) {
	fd, err := k.Open()
	switch {
	case errors.Is(err, os.ErrNotExist):
		return -1, fmt.Errorf("netmap: %w: load the module with %q", err, loadCommand)
	case errors.Is(err, os.ErrPermission):
		return -1, fmt.Errorf("netmap: %w: run as root, or let the user read and write %s", err, abi.Device)
	case err != nil:
		return -1, fmt.Errorf("netmap: %w", err)
	}
	if err := checkVersion(k, fd); err != nil {
		k.Close(fd)
		return -1, fmt.Errorf("netmap: %w", err)
	}
	return fd, nil
}

// explain says what an error of a registration means.
func explain(name string, err error) error {
	why := ""
	switch {
	case errors.Is(err, unix.ENXIO):
		why = ": there is no such interface"
	case errors.Is(err, unix.EBUSY):
		why = ": another program has it for itself"
	case errors.Is(err, unix.EINVAL):
		why = ": netmap refuses it; the kernel's log tells why (loopback and ports with an MTU beyond the buffer size cannot be opened)"
	}
	return fmt.Errorf("netmap: port %s: register: %w%s", name, err, why)
}

// A port is one open port, from its lock to its queues.
type port struct {
	kernel Kernel
	cfg    dataplane.PortConfig
	name   string // as the kernel knows it
	kind   kind
	iface  Interface // of a nic
	lock   *os.File

	control int // descriptor, -1 until opened
	reg     abi.Register
	region  *region
	nifp    *abi.If
	queues  []dataplane.Queue
	fds     []int // of the queues

	down      atomic.Bool // known to be down: calls would block
	noCarrier atomic.Bool
	done      chan struct{} // closed to stop the link watcher
	watcher   sync.WaitGroup

	close sync.Once
}

// Open opens ports. Either all are opened or none. The ports have to be closed
// in reverse order.
//
// A port has cfg.MAC or that of its interface; a VALE port or pipe, which has
// none, gets one derived from its name. A VALE port or pipe is made with as many
// rings as cfg.Owners has, and never has a host stack.
func Open(cfgs []dataplane.PortConfig, opt Options) (_ []*dataplane.Port, err error) {
	k := opt.Kernel
	if k == nil {
		k = System()
	}
	var opened []*port
	defer func() {
		if err != nil {
			for i := len(opened) - 1; i >= 0; i-- {
				opened[i].shut()
			}
		}
	}()
	for _, cfg := range cfgs {
		p, err := newPort(k, cfg, opt.LockDir)
		if err != nil {
			return nil, err
		}
		opened = append(opened, p)
	}
	if err := setBufSize(k, cfgs); err != nil {
		return nil, err
	}
	// All control descriptors first: none of what follows resets a card.
	regions := map[uint16]*region{}
	for _, step := range []func(*port) error{
		func(p *port) error { return p.register(regions) },
		func(p *port) error { return p.eachQueue(p.openQueue) },
	} {
		for _, p := range opened {
			if err := step(p); errors.Is(err, unix.ENOMEM) {
				return nil, fmt.Errorf("%w: %s", err, need(opened, p))
			} else if err != nil {
				return nil, err
			}
		}
	}
	ports := make([]*dataplane.Port, len(opened))
	for i, p := range opened {
		info, err := p.info()
		if err != nil {
			return nil, err
		}
		ports[i] = &dataplane.Port{Info: info, Queues: p.queues, Device: p}
	}
	for _, p := range opened {
		p.watch()
	}
	return ports, nil
}

// setBufSize asks for the buffer size that the ports want.
func setBufSize(k Kernel, cfgs []dataplane.PortConfig) error {
	size := 0
	for _, c := range cfgs {
		if c.BufSize == 0 || c.BufSize == size {
			continue
		}
		if size != 0 {
			return fmt.Errorf("netmap: port %s: buffers of %d bytes are asked for, elsewhere of %d: all ports have one size", c.Name, c.BufSize, size)
		}
		size = c.BufSize
	}
	if size == 0 {
		return nil
	}
	if err := k.SetBufSize(size); err != nil {
		return fmt.Errorf("netmap: set the buffer size to %d: %w", size, err)
	}
	return nil
}

// newPort checks what can be before the kernel is asked, and locks the port.
func newPort(k Kernel, cfg dataplane.PortConfig, lockDir string) (*port, error) {
	name, kind, err := parseName(cfg.Name, exists(k))
	if err != nil {
		return nil, err
	}
	p := &port{kernel: k, cfg: cfg, name: name, kind: kind, control: -1}
	if kind == nic {
		if cfg.Host {
			return nil, fmt.Errorf("netmap: port %s: host rings are not supported yet: use host off", cfg.Name)
		}
		if p.iface, err = k.Interface(name); err != nil {
			return nil, fmt.Errorf("netmap: port %s: %w", cfg.Name, err)
		}
		if cfg.MAC != nil && !bytes.Equal(cfg.MAC, p.iface.MAC) || len(cfg.MACs) > 0 {
			return nil, fmt.Errorf("netmap: port %s: addresses other than the card's, %v, are not supported yet: leave mac and vmac away", cfg.Name, p.iface.MAC)
		}
		if !p.iface.Up {
			return nil, fmt.Errorf("netmap: port %s: the interface is down: %q", cfg.Name, fmt.Sprintf(upCommand, name))
		}
		if cfg.Native && !p.iface.Native {
			return nil, fmt.Errorf("netmap: port %s: driver %s has no native netmap support", cfg.Name, p.iface.Driver)
		}
	}
	if cfg.ZeroCopy && !p.zeroCopy() {
		return nil, fmt.Errorf("netmap: port %s: the device copies", cfg.Name)
	}
	if p.lock, err = lockPort(lockDir, name); err != nil {
		return nil, fmt.Errorf("netmap: port %s: %w", cfg.Name, err)
	}
	return p, nil
}

// zeroCopy reports whether the device works on the region itself: the emulated
// adapter and VALE copy.
func (p *port) zeroCopy() bool { return p.kind == pipe || p.kind == nic && p.iface.Native }

// register opens the control descriptor and maps the region that it is in,
// unless an earlier port has.
func (p *port) register(regions map[uint16]*region) error {
	fd, err := open(p.kernel)
	if err != nil {
		return err
	}
	p.control = fd
	p.reg = abi.Register{Mode: abi.ModeAllNIC, ExtraBufs: uint32(p.cfg.Spare)}
	if p.kind != nic {
		p.reg.RXRings, p.reg.TXRings = uint16(len(p.cfg.Owners.RX)), uint16(len(p.cfg.Owners.TX))
	}
	if err := register(p.kernel, fd, p.name, &p.reg); err != nil {
		return explain(p.cfg.Name, err)
	}
	m := regions[p.reg.MemID]
	if m == nil {
		if p.reg.MemSize != uint64(int(p.reg.MemSize)) || int(p.reg.MemSize) <= 0 {
			return fmt.Errorf("netmap: port %s: a region of %d bytes cannot be mapped", p.cfg.Name, p.reg.MemSize)
		}
		mem, err := p.kernel.Map(fd, int(p.reg.MemSize))
		if err != nil {
			return fmt.Errorf("netmap: port %s: map %d bytes: %w", p.cfg.Name, p.reg.MemSize, err)
		}
		m = &region{id: p.reg.MemID, kernel: p.kernel, mem: mem}
		regions[m.id] = m
	}
	m.users++
	p.region = m
	if p.nifp, err = abi.IfAt(m.mem, p.reg.Offset); err != nil {
		return fmt.Errorf("netmap: port %s: %w", p.cfg.Name, err)
	}
	for _, dir := range []int{abi.DirRX, abi.DirTX} {
		if _, _, err := p.ring(p.reg.Offset, dir, 0); err != nil {
			return err
		}
	}
	if err := m.take(p.nifp, p.reg.ExtraBufs); err != nil {
		return fmt.Errorf("netmap: port %s: %w", p.cfg.Name, err)
	}
	if rx, tx := len(p.cfg.Owners.RX), len(p.cfg.Owners.TX); rx != int(p.reg.RXRings) || tx != int(p.reg.TXRings) {
		return fmt.Errorf("netmap: port %s: %d RX and %d TX rings, planned for %d and %d", p.cfg.Name, p.reg.RXRings, p.reg.TXRings, rx, tx)
	}
	if got := int(p.reg.ExtraBufs); got < p.cfg.Spare {
		return fmt.Errorf("netmap: port %s: %d of %d buffers beyond those of the rings: %w", p.cfg.Name, got, p.cfg.Spare, unix.ENOMEM)
	}
	return nil
}

// ring returns ring n of the registration whose If is at byte off.
func (p *port) ring(off uint64, dir, n int) (*abi.Ring, []abi.Slot, error) {
	fail := func(err error) (*abi.Ring, []abi.Slot, error) {
		return nil, nil, fmt.Errorf("netmap: port %s: ring %d: %w", p.cfg.Name, n, err)
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

// eachQueue calls f for each descriptor that the queues need: one for a ring
// pair of one owner, else one for each ring, as flags say.
func (p *port) eachQueue(f func(ring, worker int, flags uint64) error) error {
	o := p.cfg.Owners
	for i := range max(len(o.RX), len(o.TX)) {
		rx, tx := -1, -1
		if i < len(o.RX) {
			rx = o.RX[i]
		}
		if i < len(o.TX) {
			tx = o.TX[i]
		}
		if rx == tx && rx >= 0 {
			if err := f(i, rx, 0); err != nil {
				return err
			}
			continue
		}
		if rx >= 0 {
			if err := f(i, rx, abi.RXRingsOnly); err != nil {
				return err
			}
		}
		if tx >= 0 {
			if err := f(i, tx, abi.TXRingsOnly); err != nil {
				return err
			}
		}
	}
	return nil
}

// openQueue binds a descriptor to rings i, to one of them only as flags say.
func (p *port) openQueue(i, worker int, flags uint64) error {
	fd, err := open(p.kernel)
	if err != nil {
		return err
	}
	p.fds = append(p.fds, fd)
	reg := abi.Register{Mode: abi.ModeOneNIC, RingID: uint16(i), Flags: flags}
	if err := register(p.kernel, fd, p.name, &reg); err != nil {
		return explain(p.cfg.Name, err)
	}
	if reg.MemID != p.region.id || reg.MemSize != p.reg.MemSize {
		return fmt.Errorf("netmap: port %s: queue %d is in region %d, the port in %d", p.cfg.Name, i, reg.MemID, p.region.id)
	}
	f, err := abi.IfAt(p.region.mem, reg.Offset)
	if err != nil {
		return fmt.Errorf("netmap: port %s: %w", p.cfg.Name, err)
	}
	f.BufsHead = 0
	d := &descriptor{kernel: p.kernel, port: p.cfg.Name, fd: fd, down: &p.down}
	q := dataplane.Queue{Index: i, Worker: worker, Descriptor: d}
	if flags&abi.TXRingsOnly == 0 {
		r, slots, err := p.ring(reg.Offset, abi.DirRX, i)
		if err != nil {
			return err
		}
		d.rx = &rx{ring: r, slots: slots, region: p.region.buffer, bufs: p.region.bufs, rel: r.Head, next: r.Head}
		q.RX = d.rx
	}
	if flags&abi.RXRingsOnly == 0 {
		r, slots, err := p.ring(reg.Offset, abi.DirTX, i)
		if err != nil {
			return err
		}
		d.tx = &tx{ring: r, slots: slots, region: p.region.buffer, bufs: p.region.bufs, port: p.cfg.Name, down: &p.down, sync: d.txSync}
		q.TX = d.tx
	}
	p.queues = append(p.queues, q)
	return nil
}

// info describes the open port.
func (p *port) info() (dataplane.Info, error) {
	i := dataplane.Info{
		Name: p.cfg.Name, Backend: "netmap", Driver: p.iface.Driver, Mode: "native", ZeroCopy: p.zeroCopy(),
		RXRings: int(p.reg.RXRings), TXRings: int(p.reg.TXRings), RXSlots: int(p.reg.RXSlots), TXSlots: int(p.reg.TXSlots),
		BufSize: p.region.stride, MTU: 1500, MinFrame: minFrame,
	}
	switch p.kind {
	case nic:
		i.MAC, i.MTU = p.iface.MAC, p.iface.MTU
		if !p.iface.Native {
			i.Mode = "emulated"
		}
	case vale:
		i.MAC, i.Driver = nameMAC(p.name), "vale"
	case pipe:
		i.MAC, i.Driver = nameMAC(p.name), "pipe"
	}
	if p.cfg.MAC != nil {
		i.MAC = p.cfg.MAC
	}
	if p.cfg.BufSize > i.BufSize {
		return i, fmt.Errorf("netmap: port %s: buffers have %d bytes, not %d: another program has set netmap's memory up: end it, or ask for no more", p.cfg.Name, i.BufSize, p.cfg.BufSize)
	}
	mtu := i.MTU
	if p.cfg.MTU != 0 {
		mtu = p.cfg.MTU
	}
	most := i.BufSize - headLen
	if mtu > most {
		return i, fmt.Errorf("netmap: port %s: mtu %d needs buffers of %d bytes, they have %d: %s", p.cfg.Name, mtu, mtu+headLen, i.BufSize, setParameter("buf_size", (mtu+headLen+63)/64*64))
	}
	if p.kind == nic { // a reload may ask for anything up to what the card carries
		mtu = min(i.MTU, most)
	}
	i.MTU = mtu
	return i, nil
}

// headLen is the longest header before the IP packet: Ethernet and a tag.
const headLen = 18

// need says how much of netmap's memory port p needs, with the other ports that
// share it, and how to get it. It asks the kernel for what it has not told yet.
func need(ports []*port, p *port) string {
	prefix := "priv_"
	if p.kind == nic {
		prefix = ""
	} else {
		ports = []*port{p}
	}
	rings, bufs, ifs := 0, abi.FirstBuffer, 0
	for _, o := range ports {
		if o.kind != p.kind {
			continue
		}
		reg := o.reg
		if fd, err := o.kernel.Open(); err == nil {
			if i, err := portInfo(o.kernel, fd, o.name); err == nil {
				reg.RXRings, reg.TXRings, reg.RXSlots, reg.TXSlots = i.RXRings, i.TXRings, i.RXSlots, i.TXSlots
			}
			o.kernel.Close(fd)
		}
		rings += int(reg.RXRings) + int(reg.TXRings)
		bufs += int(reg.RXRings)*int(reg.RXSlots) + int(reg.TXRings)*int(reg.TXSlots) + o.cfg.Spare
		ifs += 1 + o.descriptors()
	}
	return fmt.Sprintf("the ports need at least %d rings, %d buffers and %d interfaces of netmap's memory: end other netmap programs, then %s, %s and %s",
		rings, bufs, ifs, setParameter(prefix+"ring_num", rings), setParameter(prefix+"buf_num", bufs), setParameter(prefix+"if_num", ifs))
}

// descriptors returns the number of queues' descriptors that the port needs.
func (p *port) descriptors() int {
	n := 0
	p.eachQueue(func(int, int, uint64) error {
		n++
		return nil
	})
	return n
}

// watch looks after the link state of a network card until the port is closed.
func (p *port) watch() {
	if p.kind != nic {
		return
	}
	p.look()
	p.done = make(chan struct{})
	p.watcher.Go(func() {
		t := time.NewTicker(linkInterval)
		defer t.Stop()
		for {
			select {
			case <-p.done:
				return
			case <-t.C:
				p.look()
			}
		}
	})
}

// look reads the link state. An interface that is gone is not down: its
// descriptors have to be synced to learn of it.
func (p *port) look() {
	up, carrier, err := p.kernel.Link(p.name)
	p.down.Store(err == nil && !up)
	p.noCarrier.Store(err != nil || !carrier)
}

// LinkUp reports whether the port is up and has a carrier, as it was a tenth of
// a second ago. A VALE port and a pipe are always up.
func (p *port) LinkUp() bool { return !p.down.Load() && !p.noCarrier.Load() }

// Counters returns the counters of queue i. RXRingFull counts the times that the
// ring was found full, when at least one frame was probably lost, and the slots
// whose buffer number was none. TXRingFull counts frames that can never be sent.
func (p *port) Counters(i int) (c dataplane.DeviceCounters) {
	for _, q := range p.queues {
		if q.Index != i {
			continue
		}
		d := q.Descriptor.(*descriptor)
		if d.rx != nil {
			c.RXRingFull += d.rx.full.Load() + d.rx.lost.Load()
		}
		if d.tx != nil {
			c.TXRingFull += d.tx.refused.Load()
		}
	}
	return c
}

// String tells all that a report of a fault needs: what the kernel answered to
// the registration, and where the rings are. Workers must have stopped.
func (p *port) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "port %s: registration %+v", p.name, p.reg)
	for _, q := range p.queues {
		d := q.Descriptor.(*descriptor)
		if d.rx != nil {
			fmt.Fprintf(&b, "\n  rx ring %d of worker %d: head %d cur %d tail %d of %d, next %d", q.Index, q.Worker, d.rx.ring.Head, d.rx.ring.Cur, d.rx.ring.Tail, len(d.rx.slots), d.rx.next)
		}
		if d.tx != nil {
			fmt.Fprintf(&b, "\n  tx ring %d of worker %d: head %d cur %d tail %d of %d", q.Index, q.Worker, d.tx.ring.Head, d.tx.ring.Cur, d.tx.ring.Tail, len(d.tx.slots))
		}
	}
	return b.String()
}

// Close gives the port back to the kernel.
func (p *port) Close() error { return p.shut() }

// shut undoes what was opened so far: the queues, the buffers that no ring
// holds, the control descriptor, the mapping, the lock. The order matters: the
// card is reset once, when the last descriptor goes, and kernels have crashed
// when rings went one by one under traffic.
func (p *port) shut() (err error) {
	p.close.Do(func() {
		if p.done != nil {
			close(p.done)
			p.watcher.Wait()
		}
		var errs []error
		for i := len(p.fds) - 1; i >= 0; i-- {
			errs = append(errs, p.kernel.Close(p.fds[i]))
		}
		if p.nifp != nil && p.region.buffer != nil {
			n := int(p.reg.ExtraBufs)
			if p.region.users == 1 {
				n = len(p.region.buffer.Spare())
			}
			p.region.give(p.nifp, n)
		}
		if p.control >= 0 {
			errs = append(errs, p.kernel.Close(p.control))
		}
		if p.region != nil {
			errs = append(errs, p.region.leave())
		}
		if p.lock != nil {
			errs = append(errs, p.lock.Close())
		}
		if err = errors.Join(errs...); err != nil {
			err = fmt.Errorf("netmap: port %s: close: %w", p.cfg.Name, err)
		}
	})
	return err
}
