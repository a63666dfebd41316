package control

import (
	"log/slog"
	"time"
)

// hangs is how many looks in a row, deviceEvery apart, a worker has to stand
// still before it is said to hang.
const hangs = 4

// A watchdog tells of workers that hang in a system call, as on a netmap port
// that went down on Linux.
type watchdog struct {
	log       *slog.Logger
	accounted func(worker int) time.Duration // of the router
	last      []time.Duration                // by worker
	still     []int                          // looks in a row that found no progress, by worker
}

func newWatchdog(log *slog.Logger, workers int, accounted func(int) time.Duration) *watchdog {
	return &watchdog{log, accounted, make([]time.Duration, workers), make([]int, workers)}
}

// look logs each worker that hangs, and each one that goes on, once. Down are
// the ports without a link.
func (d *watchdog) look(down []string) {
	for i := range d.last {
		at := d.accounted(i)
		moved := at != d.last[i]
		d.last[i] = at
		switch {
		case at == 0: // not started
		case !moved:
			if d.still[i]++; d.still[i] == hangs {
				d.log.Error("worker hangs in a system call, its queues with it: calls on a port that is down can last until it is up", "worker", i, "ports_without_link", down)
			}
		default:
			if d.still[i] >= hangs {
				d.log.Info("worker goes on", "worker", i)
			}
			d.still[i] = 0
		}
	}
}

// down returns the names of the ports without a link.
func (c *Control) down() (names []string) {
	for _, p := range c.router.Ports() {
		if !p.Device.LinkUp() {
			names = append(names, p.Name)
		}
	}
	return names
}
