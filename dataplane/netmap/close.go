package netmap

import (
	"errors"
	"fmt"
	"time"

	"nmfwd/dataplane"
	"nmfwd/dataplane/netmap/abi"
)

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
