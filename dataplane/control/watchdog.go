package control

import (
	"log/slog"
	"time"
)

// hangs is how many looks in a row, deviceEvery apart, a worker has to stand
// still before it is said to hang.
const hangs = 4

// A watchdog looks after workers that hang in a system call, as on a netmap port
// that went down on Linux.
type watchdog struct {
	log     *slog.Logger
	router  workers
	last    []time.Duration // accounted, by worker
	still   []int           // looks in a row that found no progress, by worker
	suspect []bool          // has to show progress, by worker
	since   []time.Duration // accounted before it became a suspect, by worker
	hanging int             // threads, as last told
}

// workers are what a watchdog looks after: the router's.
type workers interface {
	Accounted(worker int) time.Duration
	Replace(worker int) bool
	Hanging() int
}

func newWatchdog(log *slog.Logger, n int, r workers) *watchdog {
	return &watchdog{log: log, router: r, last: make([]time.Duration, n), still: make([]int, n), suspect: make([]bool, n), since: make([]time.Duration, n)}
}

// lost makes all workers suspects: after the last rescue a port has lost its
// link, and they were woken to hear of it.
func (d *watchdog) lost() {
	for i := range d.suspect {
		d.suspect[i] = true
	}
}

// rescue lets new threads go on with the work of suspects that have done nothing
// since they were woken. It is called every linkEvery.
func (d *watchdog) rescue(down []string) {
	for i, suspect := range d.suspect {
		at := d.router.Accounted(i)
		moved := at != d.since[i]
		switch d.since[i] = at; {
		case !suspect:
		case moved:
			d.suspect[i] = false
		case d.router.Replace(i):
			d.suspect[i] = false
			d.log.Warn("a thread hangs in a system call, another one goes on with its work: calls on a port that is down can last until it is up", "worker", i, "ports_without_link", down)
		}
	}
	if n := d.router.Hanging(); n != d.hanging {
		if n < d.hanging {
			d.log.Info("threads that hung have come back", "left", n)
		}
		d.hanging = n
	}
}

// look logs each worker that hangs, and each one that goes on, once. Down are
// the ports without a link.
func (d *watchdog) look(down []string) {
	for i := range d.last {
		at := d.router.Accounted(i)
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
