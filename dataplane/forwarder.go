package dataplane

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"nmfwd/wire"
)

// Sizes of the rings between workers and control, in entries.
const (
	handoffLen = 512
	puntLen    = 64

	// unknownLen is of the ring of packets for unknown neighbors: room for two
	// that are found while a few hundred packets come for each.
	unknownLen = 512
)

// InjectLen is how many frames Inject takes before a worker sends any.
const InjectLen = 256

// DefaultBurst is how many packets a worker takes from a queue at once where
// nothing else is asked for.
const DefaultBurst = 64

// MaxBurst is the largest burst.
const MaxBurst = 1024

// Options are the settings of a Forwarder.
type Options struct {
	Burst int      // packets taken from a queue at once; 0 for DefaultBurst
	Idle  IdleMode // what workers do when idle
	CPUs  []int    // workers are pinned to these in turn; nil leaves them free
	Rest  []int    // all other threads are confined to these; nil leaves them free

	// Fault is told of a descriptor that failed and is polled no more, on the
	// thread that polled it. It may be nil.
	Fault func(error)
}

// A Forwarder joins open ports by workers. Control, one goroutine, publishes the
// State, takes punted packets and injects its own; anyone may read counters.
type Forwarder struct {
	ports   []*Port
	workers []*Worker
	opt     Options
	state   atomic.Pointer[State]

	first   []int       // ingress number of each port's first RX queue
	ingress int         // how many RX queues there are
	rx      [][]*tally  // by worker, then ingress number
	tx      [][]txOwner // by port, then TX queue

	punt      *waker
	puntReady chan struct{}

	links   []linkState    // by port, written by Publish
	running sync.WaitGroup // workers, whatever thread has them
	hanging atomic.Int32   // threads that were replaced
	closed  atomic.Bool
}

type txOwner struct {
	worker *Worker
	tally  *txTally
}

type linkState struct {
	up      atomic.Bool
	changes atomic.Uint64
}

// NewForwarder puts workers between ports, whose queues say which one has them. The
// ports stay the caller's to close, after Stop. The forwarder sends nothing until
// Publish and Start.
func NewForwarder(ports []*Port, workers int, opt Options) (*Forwarder, error) {
	if opt.Burst == 0 {
		opt.Burst = DefaultBurst
	}
	if opt.Fault == nil {
		opt.Fault = func(error) {}
	}
	if opt.Burst < 1 || opt.Burst > MaxBurst {
		return nil, fmt.Errorf("dataplane: burst of %d packets: not between 1 and %d", opt.Burst, MaxBurst)
	}
	r := &Forwarder{ports: ports, opt: opt, puntReady: make(chan struct{}, 1), links: make([]linkState, len(ports))}
	var err error
	if r.punt, err = newWaker(); err != nil {
		return nil, err
	}
	for _, p := range ports {
		r.first = append(r.first, r.ingress)
		r.ingress += p.RXRings
		r.tx = append(r.tx, make([]txOwner, p.TXRings))
	}
	for i := range workers {
		w, err := r.newWorker(i)
		if err != nil {
			r.Close()
			return nil, err
		}
		r.workers = append(r.workers, w)
	}
	if err := r.connect(); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Forwarder) newWorker(id int) (*Worker, error) {
	wake, err := newWaker()
	if err != nil {
		return nil, err
	}
	w := &Worker{
		id: id, cpu: -1, burst: r.opt.Burst, idle: r.opt.Idle,
		state: &r.state, control: r.punt, inject: newInjectRing(InjectLen, r.ControlFrame()),
		slots:   make([]Slot, r.opt.Burst),
		ingress: make([]int32, r.opt.Burst),
		free:    make([]uint32, 0, r.opt.Burst),
		touched: make([]*outlet, 0, 2*len(r.ports)),
	}
	for i := range w.punts {
		n := puntLen
		if i == unknown {
			n = unknownLen
		}
		w.punts[i] = newPuntRing(n, r.ControlFrame())
	}
	if len(r.opt.CPUs) > 0 {
		w.cpu = r.opt.CPUs[id%len(r.opt.CPUs)]
	}
	w.seen.Store(math.MaxUint64)
	for range r.ingress {
		w.in = append(w.in, new(tally))
	}
	r.rx = append(r.rx, w.in)
	for i := range 2 * len(r.ports) {
		p := r.ports[i%len(r.ports)]
		o := outlet{port: i % len(r.ports), host: i >= len(r.ports), slots: make([]Slot, r.opt.Burst)}
		if o.host {
			o.longest = p.BufSize
		} else {
			o.minFrame = p.MinFrame
		}
		w.out = append(w.out, o)
	}
	w.poller = newPoller(wake, &w.call, nil, nil)
	return w, nil
}

// connect gives each worker its queues, and hand-offs for the ports of which
// it has none.
func (r *Forwarder) connect() error {
	descs := make([][]Descriptor, len(r.workers))
	for pi, p := range r.ports {
		for hi, queues := range [2][]Queue{p.Queues, p.Host} {
			for _, q := range queues {
				if q.Worker < 0 || q.Worker >= len(r.workers) {
					return fmt.Errorf("dataplane: port %s: queue %d is for worker %d of %d", p.Name, q.Index, q.Worker, len(r.workers))
				}
				w := r.workers[q.Worker]
				if q.RX != nil {
					in := r.first[pi] + q.Index
					w.rx = append(w.rx, rxQueue{rx: q.RX, region: q.RX.Region(), port: pi, ingress: in, tally: w.in[in], host: hi == 1})
				}
				if o := &w.out[hi*len(r.ports)+pi]; q.TX != nil && o.tx == nil {
					o.tx, o.region, o.txTally = q.TX, q.TX.Region(), new(txTally)
					if hi == 0 {
						r.tx[pi][q.Index] = txOwner{w, o.txTally}
					}
				}
				descs[q.Worker] = appendNew(descs[q.Worker], q.Descriptor)
			}
		}
	}
	regions := r.numberRegions()
	for out := range 2 * len(r.ports) {
		if err := r.connectHandoffs(out, regions); err != nil {
			return err
		}
	}
	for i, w := range r.workers {
		w.poller = newPoller(w.poller.wake, &w.call, descs[i], r.opt.Fault)
	}
	return nil
}

func appendNew(ds []Descriptor, d Descriptor) []Descriptor {
	for _, have := range ds {
		if have == d {
			return ds
		}
	}
	if d == nil {
		return ds
	}
	return append(ds, d)
}

// numberRegions numbers the regions of all RX queues and returns how many
// there are.
func (r *Forwarder) numberRegions() int {
	seen := make(map[*Region]int)
	for _, w := range r.workers {
		for i := range w.rx {
			q := &w.rx[i]
			n, ok := seen[q.region]
			if !ok {
				n = len(seen)
				seen[q.region] = n
			}
			q.regionNumber = n
		}
	}
	return len(seen)
}

// connectHandoffs gives every worker without a TX queue for outlet out a ring
// to one that has it, for each region that it receives in.
func (r *Forwarder) connectHandoffs(out, regions int) error {
	var writers []*Worker
	for _, w := range r.workers {
		if w.out[out].tx != nil {
			writers = append(writers, w)
		}
	}
	if len(writers) == 0 {
		if out < len(r.ports) {
			return fmt.Errorf("dataplane: port %s: no worker has a TX queue", r.ports[out].Name)
		}
		return nil
	}
	for _, w := range r.workers {
		o := &w.out[out]
		if o.tx != nil {
			continue
		}
		to := writers[w.id%len(writers)]
		o.handoffs = make([]*handoff, regions)
		for i := range w.rx {
			q := &w.rx[i]
			if o.handoffs[q.regionNumber] != nil {
				continue
			}
			h, err := newHandoff(q.region, handoffLen, to, out)
			if err != nil {
				return err
			}
			o.handoffs[q.regionNumber] = h
			to.handed = append(to.handed, h)
		}
	}
	return nil
}

// Workers returns the workers, for tests and benchmarks that step them.
func (r *Forwarder) Workers() []*Worker { return r.workers }

// Held returns, by region, the numbers of the buffers in hand-off rings, for a
// census. The workers must be at rest.
func (r *Forwarder) Held() map[*Region][]uint32 {
	held := make(map[*Region][]uint32)
	for _, w := range r.workers {
		for _, h := range w.handed {
			for i := range h.entries {
				held[h.region] = append(held[h.region], h.entries[i].slot.Buf)
			}
		}
	}
	return held
}

// Ports returns the ports in order of their numbers.
func (r *Forwarder) Ports() []*Port { return r.ports }

// State returns the state that was published last.
func (r *Forwarder) State() *State { return r.state.Load() }

// Publish makes st the state for all packets of later bursts, and wakes workers
// that sleep: a link that came up is theirs to poll again.
func (r *Forwarder) Publish(st *State) {
	for i := range r.links {
		l := &r.links[i]
		if old := r.state.Load(); l.up.Swap(st.Ports[i].Up) != st.Ports[i].Up && old != nil {
			l.changes.Add(1)
		}
	}
	r.state.Store(st)
	for _, w := range r.workers {
		w.poller.wake.wake()
	}
}

// Oldest returns the generation of the oldest tables that a worker may still
// read: those of earlier generations are free for reuse.
func (r *Forwarder) Oldest() uint64 {
	oldest := r.state.Load().FIB.Gen
	for _, w := range r.workers {
		oldest = min(oldest, w.seen.Load())
	}
	return oldest
}

// Start starts the workers. It returns when all run on their CPUs, or the
// first error, after which none runs.
func (r *Forwarder) Start() error {
	if r.state.Load() == nil {
		return errors.New("dataplane: no state published")
	}
	runtime.GOMAXPROCS(procs(len(r.workers)))
	if len(r.opt.Rest) > 0 {
		if err := confine(r.opt.Rest); err != nil {
			return err
		}
	}
	ready := make(chan error, len(r.workers))
	for _, w := range r.workers {
		r.running.Add(1)
		r.begin(w, ready)
	}
	var first error
	for range r.workers {
		if err := <-ready; err != nil && first == nil {
			first = err
		}
	}
	if first != nil {
		r.Stop()
		return first
	}
	r.running.Go(r.listenPunts)
	return nil
}

// procs returns the smallest GOMAXPROCS at which the garbage collector, which
// takes a quarter of the Ps for marking, leaves one for each worker and one for
// everything else.
func procs(workers int) int {
	p := workers + 1
	for p-(p+2)/4 < workers+1 {
		p++
	}
	return p
}

// Stop ends the workers once what they hold is sent, for a bounded time. What
// waits in receive rings is sent as well where ports can leave what comes after
// it to the host; elsewhere it is left to the kernel.
func (r *Forwarder) Stop() {
	r.divert()
	r.closed.Store(true)
	r.punt.signal()
	for _, w := range r.workers {
		w.stop.Store(true)
		w.poller.wake.signal()
	}
	r.running.Wait()
}

// divert makes ports leave what they receive to the host, and waits until the
// workers have taken what was received before.
func (r *Forwarder) divert() {
	diverted := false
	for _, p := range r.ports {
		if d, ok := p.Device.(Diverter); ok && d.Divert() == nil {
			diverted = true
		}
	}
	if !diverted {
		return
	}
	taken := func() (n uint64) {
		for _, w := range r.workers {
			n += w.stats.batchSum.Load()
		}
		return n
	}
	last := taken()
	end := time.Now().Add(drainFor)
	for quiet := 0; quiet < 10 && time.Now().Before(end); quiet++ {
		time.Sleep(time.Millisecond)
		if n := taken(); n != last {
			last, quiet = n, 0
		}
	}
}

// Close frees what the forwarder itself holds: buffers go back to their regions,
// so ports are closed after it. The workers must have stopped.
func (r *Forwarder) Close() {
	for region, bufs := range r.Held() {
		region.Give(bufs)
	}
	for _, w := range r.workers {
		w.poller.wake.close()
	}
	r.punt.close()
}

// Inject hands an untagged frame to the worker that writes a TX queue of port, a
// device or a VLAN on one, and reports whether there was room for it: a frame
// longer than ControlFrame is never taken. Priority, as in a Punt, is that of the
// frame that it is due to, which a VLAN may keep. Only control calls it.
func (r *Forwarder) Inject(port int, frame []byte, priority uint16) bool {
	device, tci := r.device(port, priority)
	for _, o := range r.tx[device] {
		if o.worker != nil {
			return r.inject(o.worker, device, tci, frame)
		}
	}
	return false
}

// InjectAs is Inject for a packet that a worker gave to control: it leaves before
// those that the worker forwards by a State that is published later.
func (r *Forwarder) InjectAs(worker, port int, frame []byte, priority uint16) bool {
	device, tci := r.device(port, priority)
	return r.inject(r.sender(worker, device), device, tci, frame)
}

// sender returns the worker that sends by a device what worker forwards.
func (r *Forwarder) sender(worker, device int) *Worker {
	w := r.workers[worker]
	for _, h := range w.out[device].handoffs {
		if h != nil {
			w = h.to
		}
	}
	return w
}

// RoomAs is Room for InjectAs.
func (r *Forwarder) RoomAs(worker, port int) int {
	device, _ := r.device(port, 0)
	return InjectLen - r.sender(worker, device).inject.len()
}

func (r *Forwarder) inject(w *Worker, device int, tci uint16, frame []byte) bool {
	if !w.inject.put(device, frame, tci, r.ports[device].MinFrame) {
		return false
	}
	w.poller.wake.wake()
	return true
}

// device returns the device that port is, or is a VLAN on, and the tag of frames
// that are due to one of a priority.
func (r *Forwarder) device(port int, priority uint16) (device int, tci uint16) {
	p := &r.state.Load().Ports[port]
	switch {
	case p.TCI == 0:
		return port, 0
	case p.KeepPCP:
		return int(p.On), p.TCI | priority
	}
	return int(p.On), p.TCI
}

// Room returns how many frames for port Inject takes before the worker sends
// any. Only control calls it.
func (r *Forwarder) Room(port int) int {
	port, _ = r.device(port, 0)
	for _, o := range r.tx[port] {
		if o.worker != nil {
			return InjectLen - o.worker.inject.len()
		}
	}
	return 0
}

// ControlFrame returns the longest frame that goes between the workers and
// control, in bytes: MaxControlFrame, or more where a port carries longer ones.
func (r *Forwarder) ControlFrame() int {
	n := MaxControlFrame
	for _, p := range r.ports {
		n = max(n, p.MTU+wire.EthernetLen+wire.VLANLen)
	}
	return n
}

// Wake ends the sleep of a worker: something that no descriptor tells of waits
// for it. It may be called from any goroutine.
func (r *Forwarder) Wake(worker int) { r.workers[worker].poller.wake.wake() }

// PuntReady receives a value when packets wait for Punts.
func (r *Forwarder) PuntReady() <-chan struct{} { return r.puntReady }

// Punts calls f for each packet that the workers gave to control: those of
// protocols first. Only control calls it.
func (r *Forwarder) Punts(f func(Punt)) {
	r.punt.sleeping(false)
	for ring := range numPuntRings {
		for _, w := range r.workers {
			w.punts[ring].drain(w.id, f)
		}
	}
	r.punt.sleeping(true)
	for _, w := range r.workers { // what came before sleeping was said
		for _, ring := range w.punts {
			if ring.len() > 0 {
				r.announce()
				return
			}
		}
	}
}

func (r *Forwarder) announce() {
	select {
	case r.puntReady <- struct{}{}:
	default:
	}
}

// Snapshot reads all counters into s, reusing its memory.
func (r *Forwarder) Snapshot(s *Snapshot) {
	s.Ports = resize(s.Ports, len(r.ports))
	st := r.state.Load()
	for i, p := range r.ports {
		o := &s.Ports[i]
		o.Info, o.MTU, o.Up = p.Info, p.MTU, r.links[i].up.Load()
		if st != nil {
			o.MTU = st.Ports[i].MTU
		}
		o.LinkChanges = r.links[i].changes.Load()
		o.Stalled, o.Reopened = [2]bool{}, 0
		if d, ok := p.Device.(Staller); ok {
			o.Stalled[0], o.Stalled[1] = d.Stalled()
			o.Reopened = d.Reopened()
		}
		o.RX, o.TX = resize(o.RX, p.RXRings), resize(o.TX, p.TXRings)
		for q := range o.RX {
			o.RX[q] = r.rxSnapshot(i, q)
		}
		for q := range o.TX {
			o.TX[q] = TXSnapshot{}
			if t := r.tx[i][q].tally; t != nil {
				o.TX[q] = TXSnapshot{t.packets.Load(), t.bytes.Load(), t.full.Load(), t.copied.Load()}
			}
			o.TX[q].RingFull += p.Device.Counters(q).TXRingFull
		}
	}
	s.Workers = resize(s.Workers, len(r.workers))
	for i, w := range r.workers {
		o := &s.Workers[i]
		o.CPU = w.cpu
		o.Busy, o.Idle = time.Duration(w.stats.busy.Load()), time.Duration(w.stats.idle.Load())
		o.Handoff, o.HandoffLost = w.stats.handoff.Load(), 0
		for _, h := range w.handed {
			o.HandoffLost += h.lost.Load()
		}
		for b := range o.Batch {
			o.Batch[b] = w.stats.batch[b].Load()
		}
		o.BatchSum = w.stats.batchSum.Load()
	}
}

// rxSnapshot sums over the workers what became of the packets of one queue.
// Ends are read before beginnings, so that no more packets have ended than
// came in.
func (r *Forwarder) rxSnapshot(port, queue int) (s RXSnapshot) {
	d := r.ports[port].Device.Counters(queue)
	s.ToHost, s.RingFull = d.HostPackets, d.RXRingFull
	for _, in := range r.rx {
		p := &in[r.first[port]+queue].pub
		s.Forwarded4 += p[cForwarded].Load()
		s.Forwarded6 += p[cForwarded+1].Load()
		s.ToHost += p[cToHost].Load()
		s.FromHost += p[cFromHost].Load()
		for k := range s.Punted {
			s.Punted[k] += p[cPunted+k].Load()
		}
		for k := range s.Dropped {
			s.Dropped[k] += p[cDropped+k].Load()
		}
		s.Limited4 += p[cLimited].Load()
		s.Limited6 += p[cLimited+1].Load()
	}
	s.Packets, s.Bytes = d.HostPackets, d.HostBytes
	for _, in := range r.rx {
		p := &in[r.first[port]+queue].pub
		s.Packets += p[cPackets].Load()
		s.Bytes += p[cBytes].Load()
	}
	return s
}

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
