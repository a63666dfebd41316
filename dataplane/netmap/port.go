package netmap

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"

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
