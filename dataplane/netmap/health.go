package netmap

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane/netmap/abi"
)

const (
	linkInterval  = 100 * time.Millisecond // between looks at a port, whatever the system tells of links
	checkEvery    = 10                     // looks between checks for a stall
	stallChecks   = 3                      // in a row that find a port stalled
	healthyChecks = 60                     // in a row after which a port may be opened again once more
	quietChecks   = 3                      // in a row after which what a card received before is of no account: some bring their counters up to date every two seconds
	linkPatience  = 10 * time.Second       // for links to come back that were lost at opening
	linkSettled   = 300 * time.Millisecond // that a link stays up before it is believed
)

// health is what a port knows of its condition. All but the atomic variables is
// guarded by tending.
type health struct {
	hadCarrier bool // a card's, before the port was opened
	news       chan struct{}
	done       chan struct{} // closed to end the watcher, nil where there is none
	watcher    sync.WaitGroup
	links      Links

	fault   atomic.Pointer[error] // why the port was closed
	differs atomic.Pointer[error] // what is different since it was opened again, nil for nothing
	stalled [2]atomic.Bool        // RX, TX
	again   atomic.Uint64         // times that the port was opened again
	gone    atomic.Bool           // a worker found that there is no interface, which may be back by now

	tending  sync.Mutex
	opened   bool // the queues have descriptors
	retried  bool // opened again since it was healthy
	absent   bool // the interface was gone
	looks    int
	received uint64   // of the last check
	moved    uint32   // of the last check, of all RX rings
	stuck    []uint32 // of the last check, by descriptor
	rounds   []uint32 // of the last check, by descriptor
	silent   int      // checks that found the card to have received, since any ring did
	quiet    int      // checks in a row in which neither did
	full     int      // checks in a row in which a TX ring was low and did not move
	healthy  int      // checks in a row without a stall
}

// waitLinks waits until the cards that had a carrier before they were opened
// have it again: entering netmap mode takes the link down, and what is sent to
// a port meanwhile is lost.
func waitLinks(ports []*port) {
	if !slices.ContainsFunc(ports, func(p *port) bool { return p.hadCarrier }) {
		return
	}
	end := time.Now().Add(linkPatience)
	since := time.Now()
	for time.Since(since) < linkSettled && time.Now().Before(end) {
		for _, p := range ports {
			if p.hadCarrier {
				if up, carrier, err := p.kernel.Link(p.name); err == nil && !(up && carrier) {
					since = time.Now()
				}
			}
		}
		time.Sleep(linkSettled / 10)
	}
	for _, p := range ports {
		if p.look(); p.hadCarrier && !p.LinkUp() {
			p.note(fmt.Sprintf("netmap: port %s: the link has not come back in %v since the port was opened", p.cfg.Name, linkPatience))
		}
	}
}

// watch looks after the port until unwatch: at news of links, at faults that
// workers met, and now and then.
func (p *port) watch() {
	p.news = make(chan struct{}, 1)
	p.done = make(chan struct{})
	if p.kind == nic {
		var err error
		if p.links, err = p.kernel.Links(); err != nil {
			p.links = nil
			p.note(fmt.Sprintf("netmap: port %s: links are looked at every %v, the system does not tell of them: %v", p.cfg.Name, linkInterval, err))
		}
	}
	if l := p.links; l != nil {
		p.watcher.Go(func() {
			for l.Wait() == nil {
				p.tell()
			}
		})
	}
	p.watcher.Go(func() {
		t := time.NewTicker(linkInterval)
		defer t.Stop()
		for {
			select {
			case <-p.done:
				return
			case <-p.news:
				p.tend(false)
			case <-t.C:
				p.tend(true)
			}
		}
	})
}

// tell makes the watcher look at once.
func (p *port) tell() {
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// unwatch ends what watch began.
func (p *port) unwatch() {
	if p.done == nil {
		return
	}
	close(p.done)
	if p.links != nil {
		p.links.Close()
	}
	p.watcher.Wait()
	p.done = nil
}

// fail takes the port out of use for an error that a worker met: the watcher
// closes it when all workers have let go of it, and opens it again if it can.
func (p *port) fail(err error) {
	p.fault.CompareAndSwap(nil, &err)
	p.state.Or(closed)
	p.tell()
}

// met judges an error that a worker met. The kernel answers EIO while it keeps
// the rings stopped: for good where the interface has gone, but while it is down
// or is being reset from FreeBSD 13 on.
func (p *port) met(err error) {
	if errors.Is(err, unix.EIO) && p.kind == nic {
		if up, _, gone := p.kernel.Link(p.name); gone == nil {
			if !up {
				p.state.Or(down)
			}
			return
		}
		p.gone.Store(true)
	}
	p.fail(err)
}

// look reads the link state. An interface that is gone is not down: its
// descriptors have to be synced to learn of it.
func (p *port) look() {
	if p.kind != nic {
		return
	}
	up, carrier, err := p.kernel.Link(p.name)
	if err == nil && !up {
		p.state.Or(down)
	} else {
		p.state.And(^uint32(down))
	}
	p.noCarrier.Store(err != nil || !carrier)
}

// LinkUp reports whether the port is open, up and has a carrier. A VALE port and
// a pipe are always up.
func (p *port) LinkUp() bool { return p.state.Load() == 0 && !p.noCarrier.Load() }

// Stalled reports whether the card receives but its rings do not, and whether a
// TX ring is full that nothing leaves.
func (p *port) Stalled() (rx, tx bool) { return p.stalled[0].Load(), p.stalled[1].Load() }

// Reopened returns how often the port was opened again.
func (p *port) Reopened() uint64 { return p.again.Load() }

// Changed says why the port is out of use.
func (p *port) Changed() error {
	switch err := p.fault.Load(); {
	case err != nil:
		return fmt.Errorf("out of use: %w: it is opened again once, and when its interface comes back; else restart nmfwd", *err)
	case p.stalled[0].Load():
		return errSilent
	case p.stalled[1].Load():
		return errFull
	}
	if err := p.differs.Load(); err != nil {
		return *err
	}
	return nil
}

// compare finds out what is different of a card since it was opened for the first time.
func (p *port) compare() {
	if p.kind != nic {
		return
	}
	i, err := p.kernel.Interface(p.name)
	switch was := &p.iface; {
	case err != nil:
		return // nothing is known
	case !bytes.Equal(i.MAC, was.MAC):
		err = fmt.Errorf("the interface came back with MAC address %v: restart nmfwd, or give it %v", i.MAC, was.MAC)
	case i.MTU != was.MTU:
		err = fmt.Errorf("the interface came back with MTU %d: restart nmfwd, or set it to %d", i.MTU, was.MTU)
	default:
		p.differs.Store(nil)
		return
	}
	p.differs.Store(&err)
}

var (
	errSilent = errors.New("stalled: the card receives, its RX rings do not")
	errFull   = errors.New("stalled: a TX ring stays full, the card takes nothing from it")
)

// tend looks at the port, and does what is to be done about it.
func (p *port) tend(regular bool) {
	p.tending.Lock()
	defer p.tending.Unlock()
	p.look()
	if p.state.Load()&closed != 0 {
		p.mend()
		return
	}
	if p.looks++; regular && p.looks%checkEvery == 0 {
		if p.differs.Load() != nil {
			p.compare()
		}
		p.check()
	}
}

// check looks whether the rings move. A port that has stalled is opened again,
// once.
func (p *port) check() {
	if p.stuck == nil {
		p.stuck, p.rounds = make([]uint32, len(p.descs)), make([]uint32, len(p.descs))
	}
	// What no worker has looked at is neither well nor ill.
	moved, looked, full := uint32(0), true, false
	for i, d := range p.descs {
		rounds := d.rounds.Load()
		worked := rounds != p.rounds[i]
		p.rounds[i] = rounds
		looked = looked && worked
		if d.rx != nil && d.mode != abi.ModeSW {
			moved += d.rx.moved.Load()
		}
		if d.tx != nil {
			at := d.tx.stuck.Load()
			full = full || at != 0 && at == p.stuck[i]
			p.stuck[i] = at
		}
	}
	n, err := p.kernel.Received(p.name)
	received := moved != p.moved
	silent := err == nil && n > p.received && !received
	p.received, p.moved = n, moved
	if !looked || !p.LinkUp() {
		return
	}
	p.full, p.healthy = p.full+1, p.healthy+1
	switch {
	case silent:
		p.silent, p.quiet = p.silent+1, 0
	case received:
		p.silent, p.quiet = 0, 0
	default:
		if p.quiet++; p.quiet >= quietChecks {
			p.silent = 0
		}
	}
	if !full {
		p.full = 0
	}
	p.stalled[0].Store(p.silent >= stallChecks)
	p.stalled[1].Store(p.full >= stallChecks)
	switch {
	case p.silent >= stallChecks && !p.retried:
		p.fail(errSilent)
	case p.full >= stallChecks && !p.retried:
		p.fail(errFull)
	case silent || full:
		p.healthy = 0
	case p.healthy >= healthyChecks:
		p.retried = false
	}
}

// mend closes a port that is out of use as soon as all workers have let go of
// it, and opens it again: once, or when its interface was gone and is back.
// Nobody can delete an interface before its descriptors are closed.
func (p *port) mend() {
	up, _, err := true, true, error(nil)
	if p.kind == nic {
		up, _, err = p.kernel.Link(p.name)
	}
	if p.opened {
		for _, d := range p.descs {
			if !d.parked.Load() {
				return
			}
		}
		p.closeQueues()
		p.closeControl()
		p.opened = false
		p.note(fmt.Sprintf("netmap: port %s: closed: %v", p.cfg.Name, *p.fault.Load()))
	}
	switch {
	case err != nil:
		p.absent = true
		return
	case p.gone.Swap(false), p.absent:
		p.absent, p.retried = false, false
	}
	if !up || p.retried {
		return
	}
	p.retried = true
	if p.prepare != nil && p.kind == nic {
		p.prepare(p.cfg.Name)
	}
	if err := p.reopen(); err != nil {
		p.closeQueues()
		p.closeControl()
		p.fault.Store(&err)
		return
	}
	p.opened, p.silent, p.quiet, p.full, p.healthy = true, 0, 0, 0, 0
	p.stalled[0].Store(false)
	p.stalled[1].Store(false)
	p.again.Add(1)
	p.compare()
	p.fault.Store(nil)
	p.state.And(^uint32(closed))
	for _, d := range p.descs { // after the state, which parks
		d.parked.Store(false)
	}
	p.note(fmt.Sprintf("netmap: port %s: opened again", p.cfg.Name))
}

// reopen opens a port with the same rings in the same region as before. Its
// spare buffers are still there.
func (p *port) reopen() error {
	fd, err := open(p.kernel)
	if err != nil {
		return err
	}
	p.control = fd
	r := abi.Register{}
	if p.kind != nic {
		r.RXRings, r.TXRings, r.MemID = p.reg.RXRings, p.reg.TXRings, p.reg.MemID
	}
	if err := p.register(&r); err != nil {
		return err
	}
	if r.MemID != p.region.id || r.RXRings != p.reg.RXRings || r.TXRings != p.reg.TXRings {
		return fmt.Errorf("it came back with %d RX and %d TX rings in region %d, and had %d and %d in %d: %w", r.RXRings, r.TXRings, r.MemID, p.reg.RXRings, p.reg.TXRings, p.region.id, unix.ENXIO)
	}
	if p.nifp, err = abi.IfAt(p.region.mem, r.Offset); err != nil {
		return err
	}
	p.nifp.BufsHead = 0
	for _, d := range p.descs {
		if err := p.bind(d); err != nil {
			return err
		}
	}
	return nil
}
