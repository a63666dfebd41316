package netmap

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
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
	Kernel  Kernel       // nil for the real one
	LockDir string       // where the lock files of ports are, empty for the system's place
	Note    func(string) // is told what happens to ports, by any goroutine; it may be nil

	// Prepare, if it is not nil, is called by any goroutine before a card is opened
	// again: what was set of it before Open may be lost.
	Prepare func(port string)

	still bool // tests look after links themselves, and nobody waits for them
}

// Available returns nil when the netmap device opens and speaks our version.
func Available() error {
	k := System()
	fd, err := open(k)
	if err != nil {
		return fmt.Errorf("netmap: %w", err)
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
		return dataplane.Rings{}, fmt.Errorf("netmap: %w", err)
	}
	defer k.Close(fd)
	i, err := portInfo(k, fd, kernelName)
	if err != nil {
		p := port{kernel: k, name: kernelName, control: fd}
		return dataplane.Rings{}, fmt.Errorf("netmap: port %s: %w", name, p.explain(err))
	}
	return dataplane.Rings{RX: int(i.RXRings), TX: int(i.TXRings)}, nil
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
		return -1, fmt.Errorf("%w: load the module with %q", err, loadCommand)
	case errors.Is(err, os.ErrPermission):
		return -1, fmt.Errorf("%w: run as root, or let the user read and write %s", err, abi.Device)
	case err != nil:
		return -1, err
	}
	if err := checkVersion(k, fd); err != nil {
		k.Close(fd)
		return -1, err
	}
	return fd, nil
}

// A port is one open port, from its lock to its queues.
type port struct {
	kernel Kernel
	cfg    dataplane.PortConfig
	name   string // as the kernel knows it
	kind   kind
	iface  Interface // of a nic
	lock   *os.File
	note   func(string)
	still  bool // of Options

	prepare func(port string) // of Options

	control int          // descriptor, -1 while closed
	reg     abi.Register // what the first one was answered
	region  *region
	nifp    *abi.If       // of control
	spare   int           // buffers without a ring that came with the port
	descs   []*descriptor // host's last
	queues  []dataplane.Queue
	host    []dataplane.Queue

	state     atomic.Uint32 // bits of what keeps workers off
	noCarrier atomic.Bool
	health

	close sync.Once
}

// The bits of a port's state. Workers look at it before each call.
const (
	down   = 1 << iota // the interface is down: calls could block
	closed             // the descriptors are closed, or to be closed when all workers have let go
)

// Open opens ports. Either all are opened or none. The ports have to be closed
// in reverse order.
//
// A port has cfg.MAC or that of its interface; a VALE port or pipe, which has
// none, gets one derived from its name. A card has to be promiscuous to receive
// what is sent to other addresses than its own, which is not Open's to see to. A VALE port or pipe is made with as many
// rings as cfg.Owners has, and never has a host stack. The spare buffers of a
// region are as many as the port in it wants that wants most.
//
// Network cards lose their link when they enter netmap mode. Open returns when
// those that had one have it again, or after a bounded time.
func Open(cfgs []dataplane.PortConfig, opt Options) (_ []*dataplane.Port, err error) {
	k := opt.Kernel
	if k == nil {
		k = System()
	}
	if opt.Note == nil {
		opt.Note = func(string) {}
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
		p, err := newPort(k, cfg, opt)
		if err != nil {
			return nil, &dataplane.PortError{Port: cfg.Name, Err: err}
		}
		opened = append(opened, p)
	}
	restore, err := setBufSize(k, cfgs)
	if err != nil {
		return nil, err
	}
	err = enterAll(opened)
	// The kernel looks at the size when a region gets its first user: it need not
	// stay changed for longer, nor after a killed nmfwd.
	if err := restore(); err != nil {
		opt.Note(fmt.Sprintf("netmap: the buffer size is not restored: %v", err))
	}
	if err != nil {
		return nil, err
	}
	ports := make([]*dataplane.Port, len(opened))
	for i, p := range opened {
		info, err := p.info()
		if err != nil {
			return nil, &dataplane.PortError{Port: p.cfg.Name, Err: err}
		}
		ports[i] = &dataplane.Port{Info: info, Queues: p.queues, Host: p.host, Device: p}
	}
	if !opt.still {
		waitLinks(opened)
	}
	for _, p := range opened {
		p.look()
		if !opt.still {
			p.watch()
		}
	}
	return ports, nil
}

// enterAll opens all descriptors of ports, those of control first: none of the
// others resets a card.
func enterAll(ports []*port) error {
	regions := map[uint16]*region{}
	for _, step := range []func(*port) error{
		func(p *port) error { return p.enter(regions) },
		(*port).openQueues,
	} {
		for _, p := range ports {
			if err := step(p); errors.Is(err, unix.ENOMEM) {
				return fmt.Errorf("netmap: port %s: %w: %s", p.cfg.Name, err, need(ports, p))
			} else if err != nil {
				return &dataplane.PortError{Port: p.cfg.Name, Err: fmt.Errorf("netmap: port %s: %w", p.cfg.Name, err)}
			}
		}
	}
	return nil
}

// setBufSize asks for the buffer size that the ports want, and returns what
// makes it as it was before.
func setBufSize(k Kernel, cfgs []dataplane.PortConfig) (restore func() error, err error) {
	size := 0
	for _, c := range cfgs {
		if c.BufSize == 0 || c.BufSize == size {
			continue
		}
		if size != 0 {
			return nil, fmt.Errorf("netmap: port %s: buffers of %d bytes are asked for, elsewhere of %d: all ports have one size", c.Name, c.BufSize, size)
		}
		size = c.BufSize
	}
	if size == 0 {
		return func() error { return nil }, nil
	}
	if restore, err = k.SetBufSize(size); err != nil {
		return nil, fmt.Errorf("netmap: set the buffer size to %d: %w", size, err)
	}
	return restore, nil
}

// newPort checks what can be before the kernel is asked, and locks the port.
func newPort(k Kernel, cfg dataplane.PortConfig, opt Options) (*port, error) {
	name, kind, err := parseName(cfg.Name, exists(k))
	if err != nil {
		return nil, err
	}
	p := &port{kernel: k, cfg: cfg, name: name, kind: kind, note: opt.Note, still: opt.still, prepare: opt.Prepare, control: -1}
	if kind == nic {
		if p.iface, err = k.Interface(name); err != nil {
			return nil, fmt.Errorf("netmap: port %s: %w", cfg.Name, err)
		}
		if cfg.Host && cfg.MAC != nil && !bytes.Equal(cfg.MAC, p.iface.MAC) {
			return nil, fmt.Errorf("netmap: port %s: the host has the card's address %v, and no other: leave mac away, name further addresses with vmac, or say host off", cfg.Name, p.iface.MAC)
		}
		if !p.iface.Up {
			return nil, fmt.Errorf("netmap: port %s: the interface is down: %q", cfg.Name, fmt.Sprintf(upCommand, name))
		}
		if cfg.Native && !p.iface.Native {
			return nil, fmt.Errorf("netmap: port %s: driver %s has no native netmap support", cfg.Name, p.iface.Driver)
		}
		if len(cfg.VLANs) > 0 && !p.iface.Native {
			return nil, fmt.Errorf("netmap: port %s: netmap is emulated on it, which loses VLAN tags: vlan lines need a driver that supports netmap, which %s does not, or driver afxdp", cfg.Name, p.iface.Driver)
		}
		_, p.hadCarrier, _ = k.Link(name)
	}
	if cfg.ZeroCopy && !p.zeroCopy() {
		return nil, fmt.Errorf("netmap: port %s: the device copies", cfg.Name)
	}
	if p.lock, err = lockPort(opt.LockDir, name); err != nil {
		return nil, fmt.Errorf("netmap: port %s: %w", cfg.Name, err)
	}
	return p, nil
}

// zeroCopy reports whether the device works on the region itself: the emulated
// adapter and VALE copy.
func (p *port) zeroCopy() bool { return p.kind == pipe || p.kind == nic && p.iface.Native }

// hasHost reports whether the port is opened with its host rings.
func (p *port) hasHost() bool { return p.kind == nic && p.cfg.Host }

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

// info describes the open port.
func (p *port) info() (dataplane.Info, error) {
	i := dataplane.Info{
		Name: p.cfg.Name, Backend: "netmap", Driver: p.iface.Driver, Mode: "native", ZeroCopy: p.zeroCopy(),
		RXRings: int(p.reg.RXRings), TXRings: int(p.reg.TXRings), RXSlots: int(p.reg.RXSlots), TXSlots: int(p.reg.TXSlots),
		BufSize: p.region.stride, MTU: 1500, MinFrame: minFrame,
	}
	switch p.kind {
	case nic:
		i.MAC, i.MTU, i.Host = p.iface.MAC, p.iface.MTU, p.cfg.Host
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
	if p.hasHost() && p.iface.MTU > most {
		return i, fmt.Errorf("netmap: port %s: the host receives and sends packets of the interface's MTU, each in one buffer: %s, or lower the MTU, or say host off", p.cfg.Name, tooLong(p.iface.MTU, i.BufSize))
	}
	if mtu > most {
		return i, fmt.Errorf("netmap: port %s: %s", p.cfg.Name, tooLong(mtu, i.BufSize))
	}
	if p.kind == nic { // a reload may ask for anything up to what the card carries
		mtu = min(i.MTU, most)
	}
	i.MTU = mtu
	return i, nil
}

// headLen is the longest header before the IP packet: Ethernet and a tag.
const headLen = 18

// Sizes of the parts of netmap's memory, in bytes: as the kernel makes them
// unless told otherwise, and what a ring needs.
const (
	defaultRingSize = 9 * 4096
	defaultIfSize   = 1024
	ringHead        = 256
	slotSize        = 16
	ifHead          = 56
	ifPerRing       = 8
)

// parent returns what the ports that share a region as a rule have in common:
// cards nothing, pipes the name before the brace, VALE ports all of theirs.
func (p *port) parent() string {
	switch p.kind {
	case nic:
		return ""
	case pipe:
		return p.name[:strings.IndexAny(p.name, "{}")]
	}
	return p.name
}

// need says how much of netmap's memory port p needs, with the other ports that
// share it, and how to get it. It asks the kernel for what it has not told yet.
func need(ports []*port, p *port) string {
	prefix := "priv_"
	if p.kind == nic {
		prefix = ""
	}
	rings, bufs, ifs, spare, ringSize, ifSize := 0, abi.FirstBuffer, 1, 0, 0, 0 // the region itself has an interface
	for _, o := range ports {
		if o.kind != p.kind || o.parent() != p.parent() {
			continue
		}
		reg := o.reg
		if fd, err := o.kernel.Open(); err == nil {
			if i, err := portInfo(o.kernel, fd, o.name); err == nil {
				reg.RXRings, reg.TXRings, reg.RXSlots, reg.TXSlots = i.RXRings, i.TXRings, i.RXSlots, i.TXSlots
			}
			o.kernel.Close(fd)
		}
		rx, tx := int(reg.RXRings), int(reg.TXRings)
		if o.hasHost() {
			rx, tx = rx+1, tx+1
		}
		descs, _ := o.plan()
		rings += rx + tx
		bufs += rx*int(reg.RXSlots) + tx*int(reg.TXSlots)
		ifs += 1 + len(descs)
		spare = max(spare, o.cfg.Spare)
		ringSize = max(ringSize, ringHead+slotSize*int(max(reg.RXSlots, reg.TXSlots)))
		ifSize = max(ifSize, ifHead+ifPerRing*(rx+tx+2))
	}
	bufs += spare
	set := []string{setParameter(prefix+"ring_num", rings), setParameter(prefix+"buf_num", bufs), setParameter(prefix+"if_num", ifs)}
	if ringSize > defaultRingSize {
		set = append(set, setParameter(prefix+"ring_size", (ringSize+63)/64*64))
	}
	if ifSize > defaultIfSize {
		set = append(set, setParameter(prefix+"if_size", (ifSize+63)/64*64))
	}
	return fmt.Sprintf("the ports need at least %d rings, %d buffers and %d interfaces of netmap's memory: end other netmap programs, then %s", rings, bufs, ifs, strings.Join(set, ", "))
}

// Counters returns the counters of queue i. RXRingFull counts the times that the
// ring was found full, when at least one frame was probably lost, and the slots
// whose buffer number was none. TXRingFull counts frames that can never be sent.
func (p *port) Counters(i int) (c dataplane.DeviceCounters) {
	for _, d := range p.descs {
		if d.ring != i || d.mode == abi.ModeSW {
			continue
		}
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
	for _, q := range append(p.queues[:len(p.queues):len(p.queues)], p.host...) {
		d := q.Descriptor.(*descriptor)
		of := ""
		if d.mode == abi.ModeSW {
			of = "host "
		}
		if d.fd < 0 {
			fmt.Fprintf(&b, "\n  %sring %d of worker %d: closed", of, q.Index, q.Worker)
			continue
		}
		if d.rx != nil {
			fmt.Fprintf(&b, "\n  %srx ring %d of worker %d: head %d cur %d tail %d of %d, next %d", of, q.Index, q.Worker, d.rx.ring.Head, d.rx.ring.Cur, d.rx.ring.Tail, len(d.rx.slots), d.rx.next)
		}
		if d.tx != nil {
			fmt.Fprintf(&b, "\n  %stx ring %d of worker %d: head %d cur %d tail %d of %d", of, q.Index, q.Worker, d.tx.ring.Head, d.tx.ring.Cur, d.tx.ring.Tail, len(d.tx.slots))
		}
	}
	return b.String()
}

// Close gives the port back to the kernel, after what is in its rings, for a
// bounded time: what was sent leaves, what was received goes to the host, what
// the host gave is sent.
func (p *port) Close() error {
	p.unwatch()
	p.drain()
	return p.shut()
}

// shut undoes what was opened so far: the queues, the buffers that no ring
// holds, the control descriptor, the mapping, the lock. The order matters: the
// card is reset once, when the last descriptor goes, and kernels have crashed
// when rings went one by one under traffic.
func (p *port) shut() (err error) {
	p.close.Do(func() {
		errs := []error{p.leave()}
		if p.lock != nil {
			errs = append(errs, p.lock.Close())
		}
		if err = errors.Join(errs...); err != nil {
			err = fmt.Errorf("netmap: port %s: close: %w", p.cfg.Name, err)
		}
	})
	return err
}

// leave closes all descriptors and leaves the region.
func (p *port) leave() error {
	errs := p.closeQueues()
	if p.nifp != nil && p.region.buffer != nil && p.control >= 0 {
		p.region.give(p.nifp, p.spare)
		p.region.spare -= p.spare
		p.spare = 0
	}
	errs = append(errs, p.closeControl())
	if p.region != nil {
		errs = append(errs, p.region.leave())
	}
	p.region, p.nifp = nil, nil
	return errors.Join(errs...)
}

// closeQueues closes the descriptors of the queues, the last one first.
func (p *port) closeQueues() (errs []error) {
	for i := len(p.descs) - 1; i >= 0; i-- {
		if d := p.descs[i]; d.fd >= 0 {
			errs = append(errs, p.kernel.Close(d.fd))
			d.fd = -1
		}
	}
	return errs
}

// closeControl closes the control descriptor, and with it the port.
func (p *port) closeControl() (err error) {
	if p.control >= 0 {
		err = p.kernel.Close(p.control)
		p.control = -1
	}
	return err
}

// drainFor is the longest wait for frames in rings at the end.
const drainFor = 200 * time.Millisecond

// drain lets a card send what its rings hold. Frames that nobody took from the
// RX rings go to the host, which forwards from now on if it does, and those of
// the host to the card.
func (p *port) drain() {
	if p.kind != nic || !p.opened || !p.LinkUp() {
		return
	}
	var send *tx
	for _, d := range p.descs {
		if d.mode != abi.ModeSW && d.tx != nil {
			send = d.tx
		}
	}
	if p.hasHost() {
		host := p.descs[len(p.descs)-1]
		for _, d := range p.descs {
			switch {
			case d == host && send != nil:
				if p.kernel.RXSync(d.fd) == nil {
					moveAll(d.rx, send)
				}
			case d != host && d.rx != nil:
				moveAll(d.rx, host.tx)
			}
		}
	}
	for end := time.Now().Add(drainFor); ; time.Sleep(time.Millisecond) {
		left := 0
		for _, d := range p.descs {
			if d.tx == nil {
				continue
			}
			if p.kernel.TXSync(d.fd) != nil {
				return
			}
			left += len(d.tx.slots) - 1 - d.tx.free()
		}
		if left == 0 {
			return
		}
		if !time.Now().Before(end) {
			p.note(fmt.Sprintf("netmap: port %s: %d slots had not been sent when it was closed", p.cfg.Name, left))
			return
		}
	}
}

// moveAll sends all frames that wait in a ring by another. Those for the host that
// do not fit one buffer are lost.
func moveAll(from *rx, to *tx) {
	var slots [64]dataplane.Slot
	var free [len(slots)]uint32
	for {
		s := slots[:from.Recv(slots[:])]
		if len(s) == 0 {
			return
		}
		for rest := s; len(rest) > 0; {
			f := rest[:max(dataplane.FrameSlots(rest), 1)]
			rest = rest[len(f):]
			if to.host && len(f) > 1 && from.region.Join(f, int(to.ring.BufSize)) {
				f = f[:1]
			}
			to.Send(from.region, f)
		}
		for i := range s {
			free[i] = s[i].Buf
		}
		from.Release(free[:len(s)])
	}
}
