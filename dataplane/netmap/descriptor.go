package netmap

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane"
)

// A descriptor is a kernel descriptor bound to the rings of one queue. One
// poll(2) of it both sends and receives: the kernel gives queued frames to the
// device whatever events are asked for, and with POLLIN collects received ones.
// So a descriptor with an RX ring needs no other system call, and a frame that
// Send took leaves in the poll that ends the worker's round. An explicit sync is
// made for a descriptor that has a TX ring only, for it would end every sleep,
// and to take sent slots back, which poll(2) puts off until the ring is full.
//
// The worker alone touches fd and the rings, but while parked is set: then the
// port may bind them anew.
type descriptor struct {
	port   *port
	ring   int // number
	mode   uint32
	flags  uint64
	fd     int // -1 while it is closed
	call   *dataplane.Call
	rx     *rx           // nil where the queue has none
	tx     *tx           //
	parked atomic.Bool   // set by the worker when it has let go of closed rings, cleared by the port
	rounds atomic.Uint32 // calls of Before that did their work
}

// Tell implements dataplane.Caller.
func (d *descriptor) Tell(c *dataplane.Call) { d.call = c }

// FD returns the descriptor to poll, -1 where poll(2) does not know it.
func (d *descriptor) FD() int {
	if d.parked.Load() || !d.port.kernel.Pollable() {
		return -1
	}
	return d.fd
}

// Before syncs what poll(2) does not. A descriptor of which a call failed is no
// error for the worker: the port takes care of it.
func (d *descriptor) Before(bool) (int16, error) {
	if s := d.port.state.Load(); s != 0 {
		if s&closed != 0 && !d.parked.Load() && (d.rx == nil || d.rx.idle()) {
			d.parked.Store(true)
		}
		return 0, nil
	}
	d.rounds.Store(d.rounds.Load() + 1)
	polled := d.rx != nil && d.port.kernel.Pollable()
	if t := d.tx; t != nil {
		if t.err != nil {
			d.port.met(t.err)
			t.err = nil
			return 0, nil
		}
		if t.queued && !polled || t.low() {
			turn := d.call.Enter()
			err := t.sync()
			d.call.Leave(turn)
			if err != nil {
				d.port.met(err)
				return 0, nil
			}
		}
		t.queued, t.synced = false, false
		t.watch()
	}
	if d.rx == nil {
		return 0, nil
	}
	if !polled {
		d.rxSync()
	}
	return unix.POLLIN, nil
}

// After looks at what poll(2) returned. POLLERR alone is not fatal: the kernel
// has put the ring right and goes on, or has stopped it while the card is reset.
// A sync says which.
func (d *descriptor) After(revents int16) error {
	switch {
	case d.rx == nil:
	case revents&unix.POLLNVAL != 0:
		d.port.fail(fmt.Errorf("poll: %w", unix.EBADF))
	case revents&unix.POLLERR != 0:
		if d.port.state.Load() == 0 {
			d.rxSync()
		}
	default:
		d.rx.watch()
	}
	return nil
}

func (d *descriptor) rxSync() {
	fd, call := d.fd, d.call
	turn := call.Enter()
	err := d.port.kernel.RXSync(fd)
	call.Leave(turn)
	if err != nil {
		d.port.met(fmt.Errorf("receive: %w", err))
		return
	}
	d.rx.watch()
}

func (d *descriptor) txSync() error {
	if err := d.port.kernel.TXSync(d.fd); err != nil {
		return fmt.Errorf("transmit: %w", err)
	}
	return nil
}
