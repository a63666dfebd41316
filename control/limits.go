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

// due reports whether an error about ip, which came in by port and no worker has
// limited, may be sent now, and counts it.
func (c *Control) due(port int, ip []byte) bool {
	every := c.spec.ICMP.every()
	return every != 0 && c.messages[port].limits[family(ip)].Take(int64(c.now()), int64(every), errorBurst)
}
