package dataplane

import "time"

// A Staller is a Device that can stop to move packets while its link is up.
type Staller interface {
	// Stalled reports whether the device receives but its RX queues do not, and
	// whether it has stopped to take packets from a TX queue. It may be called
	// from any goroutine.
	Stalled() (rx, tx bool)

	// Reopened returns how often the device was opened again, because it had
	// stalled, failed or been gone. It may be called from any goroutine.
	Reopened() uint64
}

// Accounted returns the time that a worker has told to have been busy or idle.
// It grows at least as often as a worker sleeps at most, once a second, unless
// the worker hangs in a system call or has not been started.
func (r *Forwarder) Accounted(worker int) time.Duration {
	s := &r.workers[worker].stats
	return time.Duration(s.busy.Load() + s.idle.Load())
}
