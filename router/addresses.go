package router

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"nmfwd/dataplane"
)

// againAfter is how long after a failure devices are told their addresses again.
const againAfter = time.Second

// addresses tells the devices that keep the host's packets apart which addresses
// are the router's own.
type addresses struct {
	log   *slog.Logger
	again chan struct{} // receives a value when one is to be told again

	mu    sync.Mutex
	ports []filter
	own   []netip.Addr // of the configuration in use

	due time.Duration // by the clock of step: when told again, 0 for never
}

// A filter is a port whose device has to know.
type filter struct {
	name   string
	device dataplane.AddressFilter
	late   bool // it has more than it should, or nobody knows what
}

// newAddresses expects ports that were opened with own.
func newAddresses(ports []*dataplane.Port, own []netip.Addr, log *slog.Logger) *addresses {
	a := &addresses{log: log, own: own, again: make(chan struct{}, 1)}
	for _, p := range ports {
		if f, ok := p.Device.(dataplane.AddressFilter); ok {
			a.ports = append(a.ports, filter{name: p.Name, device: f})
		}
	}
	return a
}

// prepare has all devices know own beside what they know. After an error all know
// what they knew.
func (a *addresses) prepare(own []netip.Addr) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	both := slices.Clone(a.own)
	for _, o := range own {
		if !slices.Contains(both, o) {
			both = append(both, o)
		}
	}
	for i := range a.ports {
		if err := a.ports[i].device.SetAddrs(both); err != nil {
			a.tell(a.ports[:i+1])
			return fmt.Errorf("port %s: addresses: %w", a.ports[i].name, err)
		}
	}
	return nil
}

// restore takes back what prepare did.
func (a *addresses) restore() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tell(a.ports)
}

// narrow has all devices know own and nothing else.
func (a *addresses) narrow(own []netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.own = own
	a.tell(a.ports)
}

// tell tells ports what is in use. Those that fail are told again later: they give
// the host too much until then.
func (a *addresses) tell(ports []filter) {
	failed := false
	for i := range ports {
		p := &ports[i]
		err := p.device.SetAddrs(a.own)
		switch {
		case err != nil && !p.late:
			a.log.Error("the device may give the host packets to addresses that are the router's no longer, tried again", "port", p.name, "err", err)
		case err == nil && p.late:
			a.log.Info("the device gives the host packets to the router's addresses only, again", "port", p.name)
		}
		p.late = err != nil
		failed = failed || p.late
	}
	if failed {
		select {
		case a.again <- struct{}{}:
		default:
		}
	}
}

// retry tells again those that failed.
func (a *addresses) retry() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.ports {
		if a.ports[i].late {
			a.tell(a.ports[i : i+1])
		}
	}
}

// late reports whether a device has to be told again.
func (a *addresses) late() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.ports, func(p filter) bool { return p.late })
}

// run tells again what has to be, until ctx is done.
func (a *addresses) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.again:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(againAfter):
			a.retry()
		}
	}
}

// step is run without a thread, by the clock of the caller. It returns when it is
// to be called again.
func (a *addresses) step(now time.Duration) time.Duration {
	select {
	case <-a.again:
		a.due = now + againAfter
	default:
	}
	if a.due == 0 {
		return math.MaxInt64
	}
	if now < a.due {
		return a.due
	}
	a.due = 0
	a.retry()
	return a.step(now) // which asks for another time if that failed
}
