package dataplane

import (
	"runtime"
	"sync/atomic"
)

// A Call tells when a worker's thread is in a system call that may not return
// for long: then another thread can take the worker over (Forwarder.Replace). The
// old one ends as soon as its call returns, in Leave.
//
// Only between whole pieces of work may a call be told of, for the new thread
// starts with the next round of the worker.
type Call struct {
	turn atomic.Uint64 // of the thread that has the worker, times 2, plus 1 while it is in a call
}

// Enter says that the worker's thread is about to make a call. What it returns
// is for Leave.
func (c *Call) Enter() (turn uint64) {
	turn = c.turn.Load()
	c.turn.Store(turn | 1)
	return turn
}

// Leave says that the call has returned. To a thread that was replaced meanwhile
// it does not: the thread's goroutine ends (runtime.Goexit) and touches nothing
// that belongs to the worker any more.
func (c *Call) Leave(turn uint64) {
	if !c.turn.CompareAndSwap(turn|1, turn) {
		runtime.Goexit()
	}
}

// take takes the worker from a thread that is in a call.
func (c *Call) take() bool {
	turn := c.turn.Load()
	return turn&1 != 0 && c.turn.CompareAndSwap(turn, turn+1)
}

// A Caller is a Descriptor that makes system calls in Before and After which
// may not return for long. It tells of them by the Call of its worker.
type Caller interface {
	Descriptor

	// Tell gives the Call of the worker. It comes before all else.
	Tell(*Call)
}

// Replace lets a new thread go on with the work of a worker whose thread is in a
// system call, and reports whether it did. It is meant for a thread that does
// not return from there, and harmless for one that does. All descriptors go on
// but those that ask for nothing, as those of a port that is known to be down.
func (r *Forwarder) Replace(worker int) bool {
	w := r.workers[worker]
	if !w.call.take() {
		return false
	}
	r.hanging.Add(1)
	w.poller.renew()
	w.poller.wake.sleeping(false)
	w.gen = 0
	w.seen.Store(0)
	ready := make(chan error, 1)
	r.begin(w, ready)
	if err := <-ready; err != nil {
		r.opt.Fault(err)
	}
	return true
}

// Hanging returns the number of threads that were replaced and have not come
// back from their system call.
func (r *Forwarder) Hanging() int { return int(r.hanging.Load()) }

// begin starts a thread for a worker.
func (r *Forwarder) begin(w *Worker, ready chan<- error) {
	go func() {
		replaced := true
		defer func() { // by Leave too
			if replaced {
				r.hanging.Add(-1)
			} else {
				r.running.Done()
			}
		}()
		w.run(ready)
		replaced = false
	}()
}
