package memport

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"nmfwd/dataplane"
)

// Stride is the usual size of a buffer in bytes. It is no multiple of 2,048,
// so that the heads of frames spread over all sets of a cache.
const Stride = 2112

// NewRegion returns a region called name with n buffers of stride bytes, all
// spare. Ports take theirs from it; several ports may share a region.
func NewRegion(name string, n, stride int) *dataplane.Region {
	spare := make([]uint32, n)
	for i := range spare {
		spare[i] = uint32(n - 1 - i) // the last is taken first
	}
	return dataplane.NewRegion(name, make([]byte, n*stride), stride, spare)
}

// A Config says what a port is like. The zero value of each field but Name is
// a usable default.
type Config struct {
	Name     string
	MAC      net.HardwareAddr // by default a locally administered address made from Name
	RX, TX   int              // rings, 1 each
	RXSlots  int              // slots of an RX ring, 256
	TXSlots  int              // slots of a TX ring, 256
	Headroom int              // bytes before a received frame in its buffer
	BufSize  int              // longest frame of one slot, by default all that a buffer holds
	MTU      int              // largest IP packet in bytes, 1500
	MinFrame int              // short frames are padded to this length, 0 for none
	Host     bool             // a host stack takes what is not for forwarding
	Owners   dataplane.Owners // by default worker 0 has all rings

	// Keeps says whether the host stack keeps a received frame before a worker
	// sees it, as an XDP program does; the device counts such frames. Without
	// it a port with a host has a pair of host queues, as netmap has: the worker
	// sends what is for the host there. Either way Port.ToHost has the frames.
	Keeps func(frame []byte) bool

	// OnDeliver is called after frames were put into an RX ring, by the
	// goroutine that did, to wake the worker that may sleep.
	OnDeliver func(queue int)
}

// A Port is a port in memory. &p.Port is what a worker is given.
type Port struct {
	dataplane.Port
	cfg    Config
	region *dataplane.Region
	rx     []*rx
	tx     []*tx
	far    []farEnd // of each RX ring
	hostRX *rx      // from the host, nil without host queues
	hostTX *tx      // to the host
	down   atomic.Bool

	mu   sync.Mutex
	kept [][]byte // frames that the host kept
}

// A farEnd is the producer's side of an RX ring.
type farEnd struct{ hostPackets, hostBytes atomic.Uint64 }

// complete sets the defaults and checks what was given.
func (cfg *Config) complete(region *dataplane.Region) error {
	if cfg.RX < 0 || cfg.TX < 0 || cfg.RXSlots < 0 || cfg.TXSlots < 0 || cfg.Headroom < 0 {
		return fmt.Errorf("memport: port %s: negative number of rings, slots or bytes", cfg.Name)
	}
	cfg.RX = cmp.Or(cfg.RX, 1)
	cfg.TX = cmp.Or(cfg.TX, 1)
	cfg.RXSlots = cmp.Or(cfg.RXSlots, 256)
	cfg.TXSlots = cmp.Or(cfg.TXSlots, 256)
	cfg.MTU = cmp.Or(cfg.MTU, 1500)
	cfg.BufSize = cmp.Or(cfg.BufSize, min(region.Stride()-cfg.Headroom, 1<<16-1))
	if cfg.MAC == nil {
		cfg.MAC = nameMAC(cfg.Name)
	}
	if cfg.Owners.RX == nil {
		cfg.Owners.RX = make([]int, cfg.RX)
	}
	if cfg.Owners.TX == nil {
		cfg.Owners.TX = make([]int, cfg.TX)
	}
	switch {
	case cfg.BufSize <= 0 || cfg.Headroom+cfg.BufSize > region.Stride() || cfg.Headroom+cfg.BufSize >= 1<<16:
		return fmt.Errorf("memport: port %s: frames of %d bytes at offset %d do not fit buffers of %d", cfg.Name, cfg.BufSize, cfg.Headroom, region.Stride())
	case cfg.MinFrame < 0 || cfg.MinFrame > cfg.BufSize:
		return fmt.Errorf("memport: port %s: frames cannot be padded to %d bytes, buffers have %d", cfg.Name, cfg.MinFrame, cfg.BufSize)
	case len(cfg.Owners.RX) != cfg.RX || len(cfg.Owners.TX) != cfg.TX:
		return fmt.Errorf("memport: port %s: owners of %d RX and %d TX rings given, the port has %d and %d", cfg.Name, len(cfg.Owners.RX), len(cfg.Owners.TX), cfg.RX, cfg.TX)
	}
	return nil
}

// New opens a port with buffers from region's spare.
func New(region *dataplane.Region, cfg Config) (*Port, error) {
	if err := cfg.complete(region); err != nil {
		return nil, err
	}
	p := &Port{cfg: cfg, region: region, far: make([]farEnd, cfg.RX)}
	var taken []uint32
	take := func(n int) (*ring, error) {
		bufs, err := region.Take(n)
		if err != nil {
			region.Give(taken)
			return nil, fmt.Errorf("memport: port %s: %w", cfg.Name, err)
		}
		r := new(ring)
		r.init(bufs)
		taken = append(taken, bufs...)
		return r, nil
	}
	newRX := func() (*rx, error) {
		r, err := take(cfg.RXSlots)
		return &rx{ring: r, region: region}, err
	}
	newTX := func(minFrame int) (*tx, error) {
		r, err := take(cfg.TXSlots)
		return &tx{ring: r, region: region, minFrame: uint16(minFrame)}, err
	}
	for range cfg.RX {
		q, err := newRX()
		if err != nil {
			return nil, err
		}
		p.rx = append(p.rx, q)
	}
	for range cfg.TX {
		q, err := newTX(cfg.MinFrame)
		if err != nil {
			return nil, err
		}
		p.tx = append(p.tx, q)
	}
	p.Port = dataplane.Port{Info: info(cfg), Device: device{p}}
	for i := range max(cfg.RX, cfg.TX) {
		var r dataplane.RX
		var t dataplane.TX
		rw, tw := -1, -1
		var d descriptor
		if i < cfg.RX {
			r, rw, d.rx = p.rx[i], cfg.Owners.RX[i], p.rx[i]
		}
		if i < cfg.TX {
			t, tw = p.tx[i], cfg.Owners.TX[i]
		}
		p.Queues = append(p.Queues, queues(i, rw, tw, r, t, d)...)
	}
	if cfg.Host && cfg.Keeps == nil {
		var err error
		if p.hostRX, err = newRX(); err != nil {
			return nil, err
		}
		if p.hostTX, err = newTX(0); err != nil {
			return nil, err
		}
		w := max(0, slices.Max(cfg.Owners.RX))
		p.Host = queues(0, w, w, p.hostRX, p.hostTX, descriptor{p.hostRX})
	}
	return p, nil
}

// queues returns ring i of a port as its workers open it: together where one
// worker owns both sides.
func queues(i, rxWorker, txWorker int, r dataplane.RX, t dataplane.TX, d dataplane.Descriptor) []dataplane.Queue {
	var qs []dataplane.Queue
	if rxWorker >= 0 {
		qs = append(qs, dataplane.Queue{Index: i, Worker: rxWorker, RX: r, Descriptor: d})
	}
	switch {
	case txWorker < 0:
	case txWorker == rxWorker:
		qs[0].TX = t
	default:
		qs = append(qs, dataplane.Queue{Index: i, Worker: txWorker, TX: t, Descriptor: descriptor{}})
	}
	return qs
}

func info(cfg Config) dataplane.Info {
	return dataplane.Info{
		Name:     cfg.Name,
		MAC:      cfg.MAC,
		Backend:  "memory",
		Mode:     "memory",
		ZeroCopy: true,
		RXRings:  cfg.RX,
		TXRings:  cfg.TX,
		RXSlots:  cfg.RXSlots,
		TXSlots:  cfg.TXSlots,
		BufSize:  cfg.BufSize,
		MTU:      cfg.MTU,
		MinFrame: cfg.MinFrame,
		Host:     cfg.Host,
	}
}

// nameMAC returns a locally administered unicast address that depends on name
// alone (FNV-1a).
func nameMAC(name string) net.HardwareAddr {
	h := fnv.New64a()
	h.Write([]byte(name))
	return append(net.HardwareAddr{0x02}, h.Sum(nil)[3:]...)
}

// Deliver receives a frame on RX ring queue. A frame longer than Info.BufSize
// takes several slots, an empty one stands for a descriptor that the device
// filled with nonsense. Deliver reports whether the frame was received: it was
// not when the link is down, or when the ring is full, which is counted.
func (p *Port) Deliver(queue int, frame []byte) bool {
	return p.DeliverBurst(queue, [][]byte{frame}) == 1
}

// DeliverBurst receives frames like Deliver, in order and with one hand-over,
// up to the first that finds the ring full, and returns their number. The rest
// is lost and counted.
func (p *Port) DeliverBurst(queue int, frames [][]byte) int {
	return p.deliver(queue, frames, p.BufSize)
}

// DeliverChain receives a frame like Deliver in slots of at most size bytes.
func (p *Port) DeliverChain(queue int, frame []byte, size int) bool {
	return p.deliver(queue, [][]byte{frame}, min(size, p.BufSize)) == 1
}

func (p *Port) deliver(queue int, frames [][]byte, size int) int {
	if p.down.Load() {
		return 0
	}
	q, far := p.rx[queue], &p.far[queue]
	at, free, taken := q.tail.Load(), q.free(), 0
	for i, f := range frames {
		if p.cfg.Host && p.cfg.Keeps != nil && p.cfg.Keeps(f) {
			far.hostPackets.Add(1)
			far.hostBytes.Add(uint64(len(f)))
			p.mu.Lock()
			p.kept = append(p.kept, slices.Clone(f))
			p.mu.Unlock()
			taken++
			continue
		}
		n := q.put(at, free, f, p.cfg.Headroom, size)
		if n == 0 {
			q.lose(frames[i:])
			break
		}
		at += uint32(n)
		free -= n
		taken++
	}
	q.tail.Store(at)
	if p.cfg.OnDeliver != nil {
		p.cfg.OnDeliver(queue)
	}
	return taken
}

// FromHost puts a frame that the host stack sends into the port's host queue,
// and reports whether there was room. The port must have host queues.
func (p *Port) FromHost(frame []byte) bool {
	q := p.hostRX
	at := q.tail.Load()
	n := q.put(at, q.free(), frame, p.cfg.Headroom, p.BufSize)
	if n == 0 {
		return false
	}
	q.tail.Store(at + uint32(n))
	if p.cfg.OnDeliver != nil {
		p.cfg.OnDeliver(0)
	}
	return true
}

// ToHost takes the frames that the host stack got: what Config.Keeps kept, or
// what was sent to the host queue.
func (p *Port) ToHost() [][]byte {
	if p.hostTX != nil {
		return p.hostTX.take(true)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.kept
	p.kept = nil
	return h
}

// Transmit takes the frames that were sent on TX ring queue, oldest first, and
// completes their slots.
func (p *Port) Transmit(queue int) [][]byte { return p.tx[queue].take(false) }

// Discard completes the slots that were sent on TX ring queue without looking
// at the frames, and returns their number.
func (p *Port) Discard(queue int) int {
	return p.tx[queue].complete(func(*dataplane.Slot) {})
}

// Pending returns the number of slots sent on TX ring queue and not yet
// completed.
func (p *Port) Pending(queue int) int {
	q := p.tx[queue]
	return int(q.tail.Load() - q.head.Load())
}

// SetLink says whether the port has a carrier. A port starts with one.
func (p *Port) SetLink(up bool) { p.down.Store(!up) }

// A device is the control side of a port in memory.
type device struct{ p *Port }

func (d device) LinkUp() bool { return !d.p.down.Load() }

func (d device) Counters(q int) dataplane.DeviceCounters {
	var c dataplane.DeviceCounters
	if q < len(d.p.rx) {
		f, r := &d.p.far[q], d.p.rx[q]
		c.HostPackets = f.hostPackets.Load()
		c.HostBytes = f.hostBytes.Load()
		c.RXRingFull = r.full.Load()
		c.DroppedBytes = r.lostBytes.Load()
	}
	if q < len(d.p.tx) {
		c.TXRingFull = d.p.tx[q].full.Load()
	}
	return c
}

// Close gives the port's buffers back to its region.
func (d device) Close() error {
	var bufs []uint32
	d.p.Census(func(b uint32, _ string) { bufs = append(bufs, b) })
	d.p.region.Give(bufs)
	d.p.rx, d.p.tx, d.p.hostRX, d.p.hostTX = nil, nil, nil, nil
	return nil
}
