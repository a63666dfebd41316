package dataplane

import (
	"math"
	"runtime"
	"time"
)

// An IdleMode says what a worker does when there is nothing to do.
type IdleMode uint8

// The idle modes.
const (
	Adaptive IdleMode = iota // look again for a while, then sleep
	Sleep                    // sleep at once
	Busy                     // never sleep
)

const (
	spinFor   = 50 * time.Microsecond  // how long Adaptive looks again,
	spinLooks = 16                     // and how often: where a look takes long, a sleep takes longer
	sleepFor  = time.Second            // longest sleep: nothing depends on its end
	drainFor  = 200 * time.Millisecond // longest wait for sent frames at the end
)

// run is the life of a worker's thread, which may be the worker's second one.
func (w *Worker) run(ready chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread ends with the worker
	err := pinThread(w.cpu)
	ready <- err
	if err != nil {
		return
	}
	last := time.Now()
	if w.began.IsZero() {
		w.began = last
	}
	idleSince, looks := last, 0 // since there was something to do
	for !w.stop.Load() {
		n := w.Step(int64(last.Sub(w.began)))
		now := time.Now()
		d := int64(now.Sub(last))
		last = now
		if n > 0 || w.idle != Busy {
			w.stats.busy.Store(w.stats.busy.Load() + d)
		} else { // awake, but only because it never sleeps
			w.stats.idle.Store(w.stats.idle.Load() + d)
		}
		if n > 0 {
			idleSince, looks = now, 0
		} else {
			looks++
		}
		var wait time.Duration
		if n == 0 && (w.idle == Sleep || w.idle == Adaptive && looks >= spinLooks && now.Sub(idleSince) >= spinFor) {
			wait = sleepFor
		}
		w.Poll(wait)
		if wait > 0 {
			last = time.Now()
			w.stats.idle.Store(w.stats.idle.Load() + int64(last.Sub(now)))
		}
	}
	w.drain()
}

// Poll makes the worker's system calls: it gives sent frames to the devices,
// collects received ones and waits at most wait for any. It belongs between
// calls of Step. Before the worker sleeps it says so, and looks once more: who
// puts something into a ring of its looks for that word after.
func (w *Worker) Poll(wait time.Duration) {
	if wait == 0 {
		w.poller.poll(0)
		return
	}
	w.seen.Store(math.MaxUint64) // reads no table while asleep
	w.poller.wake.sleeping(true)
	if w.pending() {
		wait = 0
	}
	w.poller.poll(wait)
	w.poller.wake.sleeping(false)
	w.gen = 0
	w.seen.Store(0)
}

// pending reports whether another thread left something to do.
func (w *Worker) pending() bool {
	if w.stop.Load() || w.inject.len() > 0 {
		return true
	}
	for _, h := range w.handed {
		if h.len() > 0 {
			return true
		}
	}
	return false
}

// drain sends what other workers and control still left, and gives the device
// time to take what was sent.
func (w *Worker) drain() {
	end := time.Now().Add(drainFor)
	for quiet := 0; quiet < 10 && time.Now().Before(end); quiet++ {
		st := w.state.Load()
		n := w.takeInjected()
		for _, h := range w.handed {
			n += w.takeHanded(st, h)
		}
		if n > 0 {
			quiet = 0
		}
		w.poller.poll(time.Millisecond)
	}
	for _, t := range w.in {
		t.publish()
	}
	w.seen.Store(math.MaxUint64)
}
