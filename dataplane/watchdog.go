package dataplane

import "time"

// Accounted returns the time that a worker has told to have been busy or idle.
// It grows at least as often as a worker sleeps at most, once a second, unless
// the worker hangs in a system call or has not been started.
func (r *Router) Accounted(worker int) time.Duration {
	s := &r.workers[worker].stats
	return time.Duration(s.busy.Load() + s.idle.Load())
}
