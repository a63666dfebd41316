package afxdp

import (
	"errors"
	"fmt"
	"math/bits"
	"net"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nmfwd/dataplane"
	"nmfwd/system/nic"
)

// Open opens the ports of cfgs in the network namespace of the calling thread,
// all over one UMEM. On an error nothing stays open. Each port's Owners must
// give every receive queue that Probe reports a worker.
func Open(cfgs []dataplane.PortConfig, opt Options) (ports []*dataplane.Port, err error) {
	o := opener{opt: &opt}
	defer func() {
		if err != nil {
			o.close()
		}
	}()
	raiseMemlock()
	for _, cfg := range cfgs {
		if err := o.prepare(&cfg); err != nil {
			return nil, &dataplane.PortError{Port: cfg.Name, Err: err}
		}
	}
	if len(o.ports) == 0 {
		return nil, nil
	}
	if err := o.allocate(); err != nil {
		return nil, err
	}
	for _, p := range o.ports {
		if err := o.attach(p); err != nil {
			return nil, &dataplane.PortError{Port: p.name, Err: err}
		}
	}
	if err := o.bind(); err != nil {
		return nil, err
	}
	for _, p := range o.ports {
		if err := p.start(); err != nil {
			return nil, &dataplane.PortError{Port: p.name, Err: err}
		}
		ports = append(ports, o.port(p))
	}
	return ports, nil
}

// raiseMemlock lifts the limit on locked memory, which UMEMs count against, and
// BPF maps before Linux 5.11. Without the privilege to do so it becomes the
// largest that is allowed, and what does not fit says so.
func raiseMemlock() {
	if unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}) == nil {
		return
	}
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) == nil {
		l.Cur = l.Max
		_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &l)
	}
}

// An opener is an Open under way.
type opener struct {
	opt   *Options
	ports []*port // the device side, in order
	umem  *umem
	frame int
	zc    bool
}

// close undoes what was opened, in reverse order.
func (o *opener) close() {
	for _, p := range slices.Backward(o.ports) {
		p.release()
	}
	if o.umem != nil {
		o.umem.unmap()
	}
}

// prepare checks what cfg asks for against the device, before anything of it is
// changed.
func (o *opener) prepare(cfg *dataplane.PortConfig) error {
	attrs, err := find(cfg.Name)
	if err != nil {
		return err
	}
	fail := func(format string, args ...any) error {
		return fmt.Errorf("afxdp: port %s: %w", cfg.Name, fmt.Errorf(format, args...))
	}
	if attrs.Name != cfg.Name {
		return fail("this is another name of %s: use that", attrs.Name)
	}
	if len(attrs.HardwareAddr) != 6 || attrs.EncapType != "ether" {
		return fail("not an Ethernet device (%s)", attrs.EncapType)
	}
	if attrs.Flags&net.FlagUp == 0 {
		return fail("interface is down: ip link set dev %s up", cfg.Name)
	}
	if cfg.MTU > attrs.MTU {
		return fail("MTU %d is more than the interface's %d: ip link set dev %s mtu %d", cfg.MTU, attrs.MTU, cfg.Name, cfg.MTU)
	}
	if cfg.MAC != nil {
		cfg.MACs = slices.Concat([]net.HardwareAddr{cfg.MAC}, cfg.MACs)
	}
	for _, mac := range cfg.MACs {
		if len(mac) != 6 {
			return fail("%v is not an Ethernet address", mac)
		}
	}
	want := max(o.opt.FrameSize, cfg.BufSize)
	size, err := frameSize(want, os.Getpagesize(), cfg.Name, attrs.MTU)
	if err != nil {
		return err
	}
	o.frame = max(o.frame, size)

	p := &port{cfg: cfg, name: cfg.Name, index: attrs.Index, mac: attrs.HardwareAddr, mtu: attrs.MTU, ctl: -1}
	o.ports = append(o.ports, p)
	if p.ctl, err = control(); err != nil {
		return err
	}
	if p.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fail("netlink socket: %w", err)
	}
	if p.rxSlots, p.txSlots, err = o.opt.slots(len(cfg.Owners.RX)); err != nil {
		return err
	}
	p.rings = rings(p.ctl, attrs)
	if len(cfg.Owners.RX) != p.rings.RX {
		return fail("%d receive queues have a reader, the device has %d: ethtool --set-channels, or queues in the port line", len(cfg.Owners.RX), p.rings.RX)
	}
	if len(cfg.Owners.TX) > p.rings.TX {
		return fail("%d transmit queues wanted, the device has %d", len(cfg.Owners.TX), p.rings.TX)
	}
	for i, owner := range cfg.Owners.RX {
		if owner < 0 {
			return fail("receive queue %d has no reader", i)
		}
	}
	return nil
}

// allocate maps the UMEM and deals its buffers to the queues.
func (o *opener) allocate() error {
	n, spare := 0, 0
	for _, p := range o.ports {
		n += p.buffers()
		spare += p.cfg.Spare
	}
	u, err := newUMEM(n+spare, o.frame)
	if err != nil {
		return err
	}
	o.umem = u
	next := uint32(0)
	deal := func(n int) []uint32 {
		b := make([]uint32, n)
		for i := range b {
			b[i] = next
			next++
		}
		return b
	}
	for _, p := range o.ports {
		for q := range max(len(p.cfg.Owners.RX), len(p.cfg.Owners.TX)) {
			var s *socket
			reader, writer := p.reader(q), p.writer(q)
			if reader >= 0 {
				s = &socket{port: p, queue: q, worker: reader, rxBufs: deal(p.rxSlots), fd: -1}
				p.sockets = append(p.sockets, s)
			}
			if writer < 0 {
				continue
			}
			if writer != reader {
				s = &socket{port: p, queue: q, worker: writer, peer: s, fd: -1}
				p.sockets = append(p.sockets, s)
			}
			s.txBufs = deal(p.txSlots)
		}
	}
	u.region = dataplane.NewRegion("umem0", u.mem, o.frame, deal(spare))
	return nil
}

// attach loads the port's program and attaches it, native where the driver can.
func (o *opener) attach(p *port) error {
	macs := append([]net.HardwareAddr{p.mac}, p.cfg.MACs...)
	var err error
	if p.prog, err = newProgram(len(p.cfg.Owners.RX), p.cfg.Host, p.cfg.Routes, macs, p.cfg.VLANs, most); err != nil {
		return fmt.Errorf("afxdp: port %s: load XDP %w%s", p.name, err, hint(err))
	}
	if err := p.prog.setAddrs(p.cfg.Addrs); err != nil {
		return fmt.Errorf("afxdp: port %s: %w", p.name, err)
	}
	p.link, err = attachNative(p)
	if err == nil {
		p.native = true
		return nil
	}
	if err := p.occupied(err); err != nil {
		return err
	}
	if p.cfg.Native {
		return fmt.Errorf("afxdp: port %s: no native XDP: %w%s", p.name, err, hint(err))
	}
	refused := err
	if p.link, err = attachGeneric(p); err != nil {
		if err := p.occupied(err); err != nil {
			return err
		}
		return fmt.Errorf("afxdp: port %s: attach XDP program: %w%s", p.name, err, attachHint(err))
	}
	o.opt.note("port %s: the driver refused native XDP (%v): generic XDP, slower", p.name, refused)
	return nil
}

// attachHint is hint for attaching a program.
func attachHint(err error) string {
	if errors.Is(err, unix.EINVAL) {
		return " (XDP links need Linux 5.9)"
	}
	return hint(err)
}

// bind makes the sockets: with zero copy for all ports, or else with copies for
// all, for they share the UMEM.
func (o *opener) bind() error {
	var refused error
	for _, p := range o.ports {
		if !p.native && refused == nil {
			refused = fmt.Errorf("port %s: generic XDP: %w", p.name, unix.EOPNOTSUPP)
		}
	}
	if refused == nil {
		if refused = o.bindAll(unix.XDP_ZEROCOPY); refused == nil {
			o.zc = true
			return nil
		}
		o.unbindAll()
	}
	if !zeroCopyRefused(refused) {
		return fmt.Errorf("afxdp: %w", refused)
	}
	for _, p := range o.ports {
		if p.cfg.ZeroCopy {
			return fmt.Errorf("afxdp: port %s: no zero copy: %w", p.name, refused)
		}
	}
	if err := o.bindAll(unix.XDP_COPY); err != nil {
		return fmt.Errorf("afxdp: %w", err)
	}
	o.opt.note("zero copy refused (%v): the kernel copies the frames of all ports", refused)
	return nil
}

// zeroCopyRefused reports whether err may be gone when the kernel copies. What
// else there is would only be told less clearly by a second attempt.
func zeroCopyRefused(err error) bool {
	return !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EAFNOSUPPORT)
}

func (o *opener) bindAll(mode uint16) error {
	first := -1
	for _, p := range o.ports {
		for _, s := range p.sockets {
			if err := s.open(o.umem, first, mode); err != nil {
				return fmt.Errorf("port %s queue %d: %w%s", p.name, s.queue, err, hint(err))
			}
			if first < 0 {
				first = s.fd
			}
		}
	}
	return nil
}

func (o *opener) unbindAll() {
	for _, p := range slices.Backward(o.ports) {
		p.closeSockets()
	}
}

// port returns what the caller sees of p.
func (o *opener) port(p *port) *dataplane.Port {
	mode := "generic"
	if p.native {
		mode = "native"
	}
	o.umem.users++
	p.umem = o.umem
	d := &dataplane.Port{
		Info: dataplane.Info{
			Name: p.name, MAC: p.mac, Backend: "afxdp", Driver: nic.Driver(p.ctl, p.name), Mode: mode, ZeroCopy: o.zc,
			RXRings: len(p.cfg.Owners.RX), TXRings: len(p.cfg.Owners.TX), RXSlots: p.rxSlots, TXSlots: p.txSlots,
			BufSize: o.frame - headroom, MTU: p.mtu, Host: p.cfg.Host,
		},
		Device: p,
	}
	for _, s := range p.sockets {
		q := dataplane.Queue{Index: s.queue, Worker: s.worker, Descriptor: &descriptor{fd: s.fd, rx: s.rx, tx: s.tx}}
		// Fields of interface type must stay nil where there is no side.
		if s.rx != nil {
			q.RX = s.rx
		}
		if s.tx != nil {
			q.TX = s.tx
		}
		d.Queues = append(d.Queues, q)
	}
	return d
}

// A umem is the memory of all ports of one Open.
type umem struct {
	mem    []byte
	frame  int
	region *dataplane.Region
	users  int // ports that are open
}

func newUMEM(n, frame int) (*umem, error) {
	size := n * frame
	if size <= 0 || size/frame != n {
		return nil, fmt.Errorf("afxdp: %d buffers of %d bytes: %w", n, frame, unix.ENOMEM)
	}
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("afxdp: map %d buffers of %d bytes: %w", n, frame, err)
	}
	return &umem{mem: mem, frame: frame}, nil
}

func (u *umem) unmap() error {
	mem := u.mem
	u.mem = nil
	return unix.Munmap(mem)
}

func (u *umem) buffers() buffers {
	return buffers{region: u.region, shift: uint(bits.TrailingZeros(uint(u.frame))), n: uint64(len(u.mem) / u.frame)}
}

// A socket is the AF_XDP socket of one queue, or of one side of it where the
// sides have different workers: the kernel looks, for each frame that it has
// sent, for somebody who sleeps on the socket, and would find the reader.
type socket struct {
	port           *port
	queue          int
	worker         int
	rxBufs, txBufs []uint32 // dealt to the sides; nil where there is none
	peer           *socket  // of the same queue, whose fill and completion rings this one shares
	fd             int
	maps           [][]byte
	fill, comp     addrRing
	rx             *rx
	tx             *tx
}

// How long the kernel may take to free a queue whose socket was closed: it does
// so behind the scenes, in 10 to 20 ms where it was measured.
const (
	bindPatience = time.Second
	bindPause    = 2 * time.Millisecond
)

// skbOverhead is what a frame costs beside its bytes in the send buffer: struct
// sk_buff and struct skb_shared_info, rounded up.
const skbOverhead = 1024

// open makes the socket and binds it to its queue. The first socket, with first
// negative, registers the UMEM and asks for mode; the others share both. A peer
// is open already.
func (s *socket) open(u *umem, first int, mode uint16) error {
	var err error
	if s.fd, err = unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		s.fd = -1
		return fmt.Errorf("socket: %w", err)
	}
	if first < 0 {
		if err := registerUMEM(s.fd, u.mem, u.frame); err != nil {
			return fmt.Errorf("register %d buffers of %d bytes: %w", len(u.mem)/u.frame, u.frame, err)
		}
	}
	off, err := offsets(s.fd)
	if err != nil {
		return fmt.Errorf("ring offsets: %w", err)
	}
	if s.peer != nil {
		first = s.peer.fd
		s.fill, s.comp = s.peer.fill, s.peer.comp
	} else if err := s.mapUMEMRings(&off); err != nil { // whatever sides there are
		return err
	}
	if n := len(s.rxBufs); n > 0 {
		mem, err := s.mapRing(unix.XDP_RX_RING, n, descSize, unix.XDP_PGOFF_RX_RING, &off.Rx)
		if err != nil {
			return fmt.Errorf("receive ring: %w", err)
		}
		// Filled before bind: a zero-copy driver takes buffers there.
		s.rx = newRX(u.buffers(), newDescRing(mem, &off.Rx, n), s.fill, s.rxBufs)
	}
	if n := len(s.txBufs); n > 0 {
		mem, err := s.mapRing(unix.XDP_TX_RING, n, descSize, unix.XDP_PGOFF_TX_RING, &off.Tx)
		if err != nil {
			return fmt.Errorf("transmit ring: %w", err)
		}
		s.tx = newTX(u.buffers(), newDescRing(mem, &off.Tx, n), s.comp, s.txBufs)
		// Frames that one system call sends in copy mode: 32, or up to this
		// where the kernel can be told.
		_ = unix.SetsockoptInt(s.fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, min(n, 256))
		// What it copied counts against the socket's send buffer until the
		// device has sent it: room for a full ring.
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, n*(u.frame+skbOverhead))
	}
	addr := &unix.SockaddrXDP{Flags: mode | unix.XDP_USE_NEED_WAKEUP, Ifindex: uint32(s.port.index), QueueID: uint32(s.queue)}
	if first >= 0 {
		addr.Flags, addr.SharedUmemFD = unix.XDP_SHARED_UMEM, uint32(first)
	}
	for end := time.Now().Add(bindPatience); ; time.Sleep(bindPause) {
		err := unix.Bind(s.fd, addr)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EBUSY):
			return fmt.Errorf("bind: %w", err)
		case time.Now().After(end):
			return fmt.Errorf("bind: another AF_XDP socket has the queue: %w", err)
		}
	}
}

// mapUMEMRings makes the rings that a queue has for buffers.
func (s *socket) mapUMEMRings(off *unix.XDPMmapOffsets) error {
	n := s.port.rxSlots
	mem, err := s.mapRing(unix.XDP_UMEM_FILL_RING, n, addrSize, unix.XDP_UMEM_PGOFF_FILL_RING, &off.Fr)
	if err != nil {
		return fmt.Errorf("fill ring: %w", err)
	}
	s.fill = newAddrRing(mem, &off.Fr, n)
	n = s.port.txSlots
	if mem, err = s.mapRing(unix.XDP_UMEM_COMPLETION_RING, n, addrSize, unix.XDP_UMEM_PGOFF_COMPLETION_RING, &off.Cr); err != nil {
		return fmt.Errorf("completion ring: %w", err)
	}
	s.comp = newAddrRing(mem, &off.Cr, n)
	return nil
}

func (s *socket) mapRing(opt, slots, entry int, pgoff int64, off *unix.XDPRingOffset) ([]byte, error) {
	mem, err := mapRing(s.fd, opt, slots, entry, pgoff, off)
	if err == nil {
		s.maps = append(s.maps, mem)
	}
	return mem, err
}

// close gives the queue back. It is safe on a socket that open did not finish.
func (s *socket) close() (err error) {
	if s.fd >= 0 {
		err = unix.Close(s.fd)
		s.fd = -1
	}
	for _, mem := range s.maps {
		err = errors.Join(err, unix.Munmap(mem))
	}
	s.maps, s.rx, s.tx = nil, nil, nil
	return err
}
