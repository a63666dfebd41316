package afxdp

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nmfwd/dataplane"
)

// A port is the control side of an open device.
type port struct {
	cfg              *dataplane.PortConfig
	name             string // when opened
	index            int    // what the device is known by: others may rename it, or make another of its name
	mac              net.HardwareAddr
	mtu              int
	rings            dataplane.Rings
	rxSlots, txSlots int
	native           bool

	ctl     int             // for ioctl(2) in the namespace of the port
	nl      *netlink.Handle // the same for netlink(7)
	prog    *program
	link    link.Link
	sockets []*socket
	umem    *umem

	mu     sync.Mutex // guards what follows, and the descriptors above against Close
	closed bool
	last   map[int]dataplane.DeviceCounters // of a closed port
}

// reader returns the worker that receives from queue q, or -1.
func (p *port) reader(q int) int {
	if q >= len(p.cfg.Owners.RX) {
		return -1
	}
	return p.cfg.Owners.RX[q]
}

// writer returns the worker that sends to queue q, or -1.
func (p *port) writer(q int) int {
	if q >= len(p.cfg.Owners.TX) {
		return -1
	}
	return p.cfg.Owners.TX[q]
}

// buffers returns the number of buffers that the port's queues hold.
func (p *port) buffers() int {
	n := len(p.cfg.Owners.RX) * p.rxSlots
	for _, owner := range p.cfg.Owners.TX {
		if owner >= 0 {
			n += p.txSlots
		}
	}
	return n
}

func attachNative(p *port) (link.Link, error) { return attachXDP(p, link.XDPDriverMode) }

func attachGeneric(p *port) (link.Link, error) { return attachXDP(p, link.XDPGenericMode) }

func attachXDP(p *port, mode link.XDPAttachFlags) (link.Link, error) {
	return link.AttachXDP(link.XDPOptions{Program: p.prog.prog, Interface: p.index, Flags: mode})
}

// occupied returns an error that names the program on the port when that is why
// attaching ours gave err.
func (p *port) occupied(err error) error {
	if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EEXIST) {
		return nil
	}
	what := "another XDP program"
	if l, e := p.nl.LinkByIndex(p.index); e == nil && l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached {
		id := l.Attrs().Xdp.ProgId
		what = fmt.Sprintf("XDP program %d", id)
		if other, e := ebpf.NewProgramFromID(ebpf.ProgramID(id)); e == nil {
			if info, e := other.Info(); e == nil && info.Name != "" {
				what = fmt.Sprintf("XDP program %q (id %d)", info.Name, id)
			}
			other.Close()
		}
	}
	return fmt.Errorf("afxdp: port %s: %s is on the port already: end the program that uses it; if none does, ip link set dev %s xdp off: %w", p.name, what, p.name, err)
}

// start lets frames in: from here on the program finds the sockets.
func (p *port) start() error {
	for _, s := range p.sockets {
		if s.rx == nil {
			continue
		}
		if err := p.prog.xsks.Put(uint32(s.queue), uint32(s.fd)); err != nil {
			return fmt.Errorf("afxdp: port %s queue %d: socket map: %w", p.name, s.queue, err)
		}
	}
	return nil
}

// ifreq returns a request about the device by the name that it has now. The
// error wraps ENODEV when the device has gone.
func (p *port) ifreq() (*unix.Ifreq, error) {
	r, err := unix.NewIfreq(p.name)
	if err != nil {
		return nil, err
	}
	r.SetUint32(uint32(p.index))
	if err := unix.IoctlIfreq(p.ctl, unix.SIOCGIFNAME, r); err != nil {
		return nil, err
	}
	return unix.NewIfreq(r.Name())
}

// LinkUp implements dataplane.Device.
func (p *port) LinkUp() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	r, err := p.ifreq()
	if err != nil || unix.IoctlIfreq(p.ctl, unix.SIOCGIFFLAGS, r) != nil {
		return false
	}
	const up = unix.IFF_UP | unix.IFF_RUNNING
	return r.Uint16()&up == up
}

// Changed implements dataplane.Watcher.
func (p *port) Changed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	link, err := p.nl.LinkByIndex(p.index)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return errors.New("the interface has gone: restart nmfwd when there is one again")
	}
	if err != nil {
		return nil // nothing is known
	}
	attrs := link.Attrs()
	if r := rings(p.ctl, attrs); r != p.rings {
		return fmt.Errorf("the interface has %d receive and %d transmit queues, %d and %d when it was opened: restart nmfwd, or change it back", r.RX, r.TX, p.rings.RX, p.rings.TX)
	}
	switch name := attrs.Name; {
	case name != p.name:
		return fmt.Errorf("the interface is now called %s: ip link set dev %s name %s, or restart nmfwd with that name", name, name, p.name)
	case !bytes.Equal(attrs.HardwareAddr, p.mac):
		return fmt.Errorf("the interface's MAC address is now %v: restart nmfwd, or ip link set dev %s address %v", attrs.HardwareAddr, name, p.mac)
	case attrs.MTU != p.mtu:
		return fmt.Errorf("the interface's MTU is now %d: restart nmfwd, or ip link set dev %s mtu %d", attrs.MTU, name, p.mtu)
	}
	return nil
}

// Counters implements dataplane.Device.
func (p *port) Counters(q int) dataplane.DeviceCounters {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return p.last[q]
	}
	return p.counters(q)
}

func (p *port) counters(q int) (c dataplane.DeviceCounters) {
	if q < len(p.cfg.Owners.RX) {
		c.HostPackets, c.HostBytes, _ = p.prog.counters(q) // an array map of our own: the lookup cannot fail
	}
	for _, s := range p.sockets {
		if s.queue != q {
			continue
		}
		if st, err := statistics(s.fd); err == nil {
			// A frame that finds the fill ring empty counts as dropped, not as met
			// by a full ring; to us it is the same. So does one longer than a buffer.
			c.RXRingFull += st.Rx_ring_full + st.Rx_dropped
			c.TXRingFull += st.Tx_invalid_descs
		}
		if s.tx != nil {
			c.TXRingFull += s.tx.refused.Load()
		}
	}
	return c
}

// SetAddrs implements dataplane.AddressFilter.
func (p *port) SetAddrs(addrs []netip.Addr) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("afxdp: port %s: %w", p.name, net.ErrClosed)
	}
	if err := p.prog.setAddrs(addrs); err != nil {
		return fmt.Errorf("afxdp: port %s: %w", p.name, err)
	}
	return nil
}

// SetHostRoutes implements dataplane.HostRouter.
func (p *port) SetHostRoutes(routes map[netip.Prefix]bool) (missing int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, fmt.Errorf("afxdp: port %s: %w", p.name, net.ErrClosed)
	}
	if missing, err = p.prog.setRoutes(routes); err != nil {
		return missing, fmt.Errorf("afxdp: port %s: %w", p.name, err)
	}
	return missing, nil
}

// AddHostRoute implements dataplane.HostRouter.
func (p *port) AddHostRoute(r netip.Prefix) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("afxdp: port %s: %w", p.name, net.ErrClosed)
	}
	if err := p.prog.addRoute(r); err != nil {
		return fmt.Errorf("afxdp: port %s: %w", p.name, err)
	}
	return nil
}

// Divert implements dataplane.Diverter: the program leaves to the host what it
// finds no socket for.
func (p *port) Divert() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	for _, s := range p.sockets {
		if s.rx == nil {
			continue
		}
		if err := p.prog.xsks.Delete(uint32(s.queue)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("afxdp: port %s queue %d: socket map: %w", p.name, s.queue, err)
		}
	}
	return nil
}

// Close implements dataplane.Device. The memory of the region goes with the
// last port.
func (p *port) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.last = make(map[int]dataplane.DeviceCounters)
	for _, s := range p.sockets {
		p.last[s.queue] = p.counters(s.queue)
	}
	p.closed = true
	err := p.release()
	if p.umem.users--; p.umem.users == 0 {
		err = errors.Join(err, p.umem.unmap())
	}
	if err != nil {
		return fmt.Errorf("afxdp: port %s: close: %w", p.name, err)
	}
	return nil
}

// release gives the device back to the kernel, as far as it was taken: first
// the program, so that no frame meets a closed socket.
func (p *port) release() (err error) {
	if p.link != nil {
		err = p.link.Close()
		p.link = nil
	}
	err = errors.Join(err, p.closeSockets())
	if p.prog != nil {
		p.prog.close()
		p.prog = nil
	}
	if p.nl != nil {
		p.nl.Close()
		p.nl = nil
	}
	if p.ctl >= 0 {
		err = errors.Join(err, unix.Close(p.ctl))
		p.ctl = -1
	}
	return err
}

func (p *port) closeSockets() (err error) {
	for _, s := range slices.Backward(p.sockets) {
		err = errors.Join(err, s.close())
	}
	return err
}
