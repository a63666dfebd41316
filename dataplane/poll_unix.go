//go:build linux || freebsd

package dataplane

import (
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A poller makes a worker's system calls: it gives sent frames to the devices,
// collects received ones, and sleeps.
type poller struct {
	wake  *waker
	call  *Call
	descs []Descriptor
	fds   []unix.PollFd // the waker, then those of descs that asked for events
	which []int         // index in descs of fds[1:]
	fault func(error)
}

func newPoller(w *waker, call *Call, descs []Descriptor, fault func(error)) *poller {
	for _, d := range descs {
		if c, ok := d.(Caller); ok {
			c.Tell(call)
		}
	}
	p := &poller{wake: w, call: call, descs: descs, which: make([]int, len(descs)), fault: fault}
	p.renew()
	return p
}

// renew leaves what poll(2) writes to the thread that is in it.
func (p *poller) renew() { p.fds = make([]unix.PollFd, 1+len(p.descs)) }

// poll does the work of all descriptors and waits at most wait for one of
// them or for the waker. A descriptor that fails is left out from then on.
func (p *poller) poll(wait time.Duration) {
	n := 0
	for i, d := range p.descs {
		if d == nil {
			continue
		}
		events, err := d.Before(wait > 0)
		if err != nil {
			p.fail(i, err)
			continue
		}
		switch fd := d.FD(); {
		case events == 0:
		case fd < 0:
			wait = 0
		default:
			p.which[n] = i
			n++
			p.fds[n] = unix.PollFd{Fd: int32(fd), Events: events}
		}
	}
	if n == 0 && wait == 0 {
		return
	}
	p.fds[0] = unix.PollFd{Fd: int32(p.wake.fd()), Events: unix.POLLIN}
	fds := p.fds[:1+n] // from Enter on p may be another thread's
	turn := p.call.Enter()
	_, err := pollFor(fds, wait)
	p.call.Leave(turn)
	if err != nil && !errors.Is(err, unix.EINTR) {
		p.fault(err)
		return
	}
	if p.fds[0].Revents != 0 {
		p.wake.clear()
	}
	for k, i := range p.which[:n] {
		if r := p.fds[1+k].Revents; r != 0 {
			if err := p.descs[i].After(r); err != nil {
				p.fail(i, err)
			}
		}
	}
}

func (p *poller) fail(i int, err error) {
	p.descs[i] = nil
	p.fault(err)
}

// A waker ends the sleep of one consumer of rings. The consumer stores asleep,
// looks at its rings once more and sleeps; a producer publishes what it has and
// then calls wake, which costs a load while the consumer is awake.
type waker struct {
	_      line
	asleep atomic.Bool // written by the consumer
	_      line
	r, w   int
}

func (w *waker) fd() int { return w.r }

// sleeping says whether the consumer needs a word. Only the consumer calls it.
func (w *waker) sleeping(yes bool) { w.asleep.Store(yes) }

// wake may be called by anyone.
func (w *waker) wake() {
	if w.asleep.Load() {
		w.signal()
	}
}

// signal ends the sleep whether or not there is one. A descriptor that is full
// of words not yet heard is as good as one more.
func (w *waker) signal() {
	one := [8]byte{1} // what eventfd(2) adds; a pipe takes any bytes
	unix.Write(w.w, one[:])
}

// clear makes fd unreadable. Only the consumer calls it.
func (w *waker) clear() {
	var b [64]byte
	unix.Read(w.r, b[:])
}

// listenPunts announces on puntReady what workers left in the punt rings while
// control slept, until the router stops.
func (r *Forwarder) listenPunts() {
	fds := []unix.PollFd{{Fd: int32(r.punt.fd()), Events: unix.POLLIN}}
	for !r.closed.Load() {
		if _, err := pollFor(fds, time.Hour); err != nil && !errors.Is(err, unix.EINTR) {
			r.opt.Fault(err)
			return
		}
		r.punt.clear()
		r.announce()
	}
}
