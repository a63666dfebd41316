package control

import (
	"log/slog"
	"time"
)

// hangs is how many looks in a row, deviceEvery apart, a worker has to stand
// still before it is said to hang.
const hangs = 4

// When a port has lost its link, workers are looked at for some time, linkEvery
// apart, and woken each time: the kernel says late that the port is down, so a
// new thread may get into the same call. One that stood still twice in a row
// hangs.
const (
	alertLooks = 30
	alertStill = 2
)

// A watchdog looks after workers that hang in a system call, as on a netmap port
// that went down on Linux.
type watchdog struct {
	log    *slog.Logger
	router workers
	last   []time.Duration // accounted, by worker
	still  []int           // looks in a row that found no progress, by worker

	alert   int             // looks of rescue to come
	woken   []time.Duration // accounted when it was woken, by worker
	asleep  []int           // looks of rescue in a row that found no progress, by worker
	hanging int             // threads, as last told
}

// workers are what a watchdog looks after: the router's.
type workers interface {
	Accounted(worker int) time.Duration
	Wake(worker int)
	Replace(worker int) bool
	Hanging() int
}

func newWatchdog(log *slog.Logger, n int, r workers) *watchdog {
	return &watchdog{log: log, router: r, last: make([]time.Duration, n), still: make([]int, n), woken: make([]time.Duration, n), asleep: make([]int, n)}
}

// lost is called when a port has lost its link.
func (d *watchdog) lost() { d.alert = alertLooks }

// rescue lets new threads go on with the work of workers that do nothing though
// they are woken, for some time after lost. It is called every linkEvery.
func (d *watchdog) rescue(down []string) {
	if n := d.router.Hanging(); n != d.hanging {
		if n < d.hanging {
			d.log.Info("threads that hung have come back", "left", n)
		}
		d.hanging = n
	}
	if d.alert == 0 {
		return
	}
	d.alert--
	for i := range d.asleep {
		at := d.router.Accounted(i)
		if at != d.woken[i] {
			d.asleep[i] = 0
		} else if d.asleep[i]++; d.asleep[i] >= alertStill && d.router.Replace(i) {
			d.asleep[i] = 0
			d.alert = alertLooks
			d.log.Warn("a thread hangs in a system call, another one goes on with its work: calls on a port that is down can last until it is up", "worker", i, "ports_without_link", down)
		}
		d.woken[i] = at
		d.router.Wake(i)
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
