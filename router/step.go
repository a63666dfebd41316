package router

import "time"

// A Mode says what Step leaves out.
type Mode uint8

// Modes, which can be added.
const (
	OnlyPackets Mode = 1 << iota // nothing happens that only time brings: control answers what comes
	LateControl                  // control does nothing while there are frames to forward
	NoCalls                      // workers make no system calls: what they sent stays in their rings
)

// Step lets the workers and control do once what there is to do, and returns how
// many packets that was. Now is the caller's clock, which never falls. Only without
// Start may it be called.
func (r *Router) Step(now time.Duration, m Mode) int {
	n := r.forward(now, m)
	if m&LateControl != 0 && n > 0 {
		return n
	}
	if m&OnlyPackets != 0 {
		r.Control.HandlePunts()
	} else {
		r.Tick(now)
	}
	return n + r.forward(now, m) // what control answered
}

// forward lets each worker take a burst.
func (r *Router) forward(now time.Duration, m Mode) (n int) {
	for _, w := range r.Forwarder.Workers() {
		n += w.Step(int64(now))
		if m&NoCalls == 0 {
			w.Poll(0)
		}
	}
	return n
}

// Tick lets control look at the links, do what time brings, and take a reload. It
// returns when something is due that nobody asks for.
func (r *Router) Tick(now time.Duration) time.Duration {
	r.now = now
	r.next = min(r.Control.Step(now), r.addrs.step(now))
	return r.next
}

// Next returns what the last Tick did, of which Step has one.
func (r *Router) Next() time.Duration { return r.next }

// Drain steps until nothing is left to do.
func (r *Router) Drain(now time.Duration, m Mode) {
	for r.Step(now, m) > 0 {
	}
}
