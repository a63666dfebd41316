package control

import (
	"time"

	"nmfwd/dataplane"
)

// What control takes per second of a port.
const (
	// localRate is of packets of a family for the router itself: what keeps a
	// flood of echo requests from its processor.
	localRate = 10000

	// fragmentRate is of packets to be fragmented.
	fragmentRate = 50000
)

// errorBurst is how many errors are sent at once after a rest.
const errorBurst = 10

// every returns the time per error of a port and family, 0 for no errors.
func (i ICMP) every() time.Duration {
	if i.Rate == 0 {
		return 0
	}
	return time.Second / time.Duration(i.Rate)
}

// limits returns how often the queues of a port may give packets to control. A
// rate is of the whole port: its queues have equal parts.
func (c *Control) limits(port int) (every [dataplane.NumLimits]time.Duration) {
	queues := time.Duration(c.device(port).RXRings)
	every[dataplane.LimitErrors] = queues * c.spec.ICMP.every()
	every[dataplane.LimitLocal] = queues * time.Second / localRate
	every[dataplane.LimitFragments] = queues * time.Second / fragmentRate
	return every
}

// A bucket limits errors about packets that no worker has limited. It holds the
// time at which it is full again.
type bucket time.Duration

// take reports whether an error may be sent at now, and counts it.
func (b *bucket) take(now, every time.Duration) bool {
	full := min(max(time.Duration(*b), now), now+errorBurst*every)
	if every == 0 || full-now > (errorBurst-1)*every {
		return false
	}
	*b = bucket(full + every)
	return true
}
