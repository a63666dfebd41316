package control

import (
	"time"

	"nmfwd/dataplane"
)

// localRate is how many packets of a family for the router itself control takes
// per second and port: what keeps a flood of echo requests from its processor.
const localRate = 10000

// limits returns how often the queues of a port may give packets to control. A
// rate is of the whole port: its queues have equal parts.
func (c *Control) limits(port int) (every [dataplane.NumLimits]time.Duration) {
	queues := time.Duration(c.device(port).RXRings)
	every[dataplane.LimitLocal] = queues * time.Second / localRate
	return every
}
