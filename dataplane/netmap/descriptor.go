package netmap

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A descriptor is a kernel descriptor bound to the rings of one queue. One
// poll(2) of it both sends and receives: the kernel gives queued frames to the
// device whatever events are asked for, and with POLLIN collects received ones.
// So a descriptor with an RX ring needs no other system call, and a frame that
// Send took leaves in the poll that ends the worker's round. An explicit sync is
// made for a descriptor that has a TX ring only, for it would end every sleep,
// and to take sent slots back, which poll(2) puts off until the ring is full.
type descriptor struct {
	kernel Kernel
	port   string
	fd     int
	down   *atomic.Bool // the port's
	rx     *rx          // nil where the queue has none
	tx     *tx
}

// FD returns the descriptor to poll, -1 where poll(2) does not know it.
func (d *descriptor) FD() int {
	if !d.kernel.Pollable() {
		return -1
	}
	return d.fd
}

// Before syncs what poll(2) does not.
func (d *descriptor) Before(bool) (int16, error) {
	if d.down.Load() {
		return 0, nil
	}
	polled := d.rx != nil && d.kernel.Pollable()
	if t := d.tx; t != nil {
		if t.err != nil {
			return 0, t.err
		}
		if t.queued && !polled || t.low() {
			if err := t.sync(); err != nil {
				return 0, err
			}
		}
		t.queued, t.synced = false, false
	}
	if d.rx == nil {
		return 0, nil
	}
	if !polled {
		return unix.POLLIN, d.rxSync()
	}
	return unix.POLLIN, nil
}

// After looks at what poll(2) returned. POLLERR alone is not fatal: the kernel
// has put the ring right and goes on. Where the port has gone a sync says so.
func (d *descriptor) After(revents int16) error {
	switch {
	case d.rx == nil:
	case revents&unix.POLLNVAL != 0:
		return fmt.Errorf("netmap: port %s: poll: %w", d.port, unix.EBADF)
	case revents&unix.POLLERR != 0 && !d.down.Load():
		return d.rxSync()
	default:
		d.rx.watch()
	}
	return nil
}

func (d *descriptor) rxSync() error {
	if err := d.kernel.RXSync(d.fd); err != nil {
		return fmt.Errorf("netmap: port %s: receive: %w", d.port, err)
	}
	d.rx.watch()
	return nil
}

func (d *descriptor) txSync() error {
	if err := d.kernel.TXSync(d.fd); err != nil {
		return fmt.Errorf("netmap: port %s: transmit: %w", d.port, err)
	}
	return nil
}
