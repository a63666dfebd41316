// Package router makes a running router of a configuration and open ports. It is
// the one place that knows configuration, data plane and control: what they have
// of each other they get here, in one order for all who need a router, whatever
// their ports are and whether it has threads.
//
//   - Spec says in the terms of control what a configuration means.
//   - Open opens the ports, by the backends that its caller has. Who has other ports
//     opens them by itself.
//   - New builds the forwarder and control. Ports stay the caller's to close after
//     it.
//   - Start gives them threads, and Stop ends these. Without threads Step does once
//     what they do all the time.
//   - Reload puts another configuration in the place of the one in use, on all
//     devices or on none.
package router

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"nmfwd/config"
	"nmfwd/control"
	"nmfwd/dataplane"
	"nmfwd/system/neighbors"
	"nmfwd/system/routes"
)

// Options are what a configuration does not say of a router.
type Options struct {
	Workers int       // that the queues of the ports name; 0 stands for 1
	At      Placement // of threads
	System  bool      // the system's neighbors and routes are followed where the configuration says so, and its networks known
	Kernel  control.RouteSource
	Log     *slog.Logger // nil for none
}

// A Router is what a configuration and ports became.
type Router struct {
	Forwarder *dataplane.Forwarder
	Control   *control.Control

	cfg       *config.Config // in use, without its routes
	names     []string       // of ports and VLANs, by number
	kernel    control.RouteSource
	neighbors *neighbors.Table // nil where no host stack finds out neighbors
	routes    *routes.Table    // nil where those of the system are not followed
	broadcast func(netip.Addr) bool
	addrs     *addresses
	log       *slog.Logger

	// With threads.
	cancel  context.CancelFunc // nil without
	running sync.WaitGroup

	// Without.
	now, next time.Duration
}

// New makes a router of cfg, which is resolved, and of ports, which are its devices
// in the order of their numbers. The routes are taken out of cfg: the tables have
// them, and nothing else is to keep what may be a million. Nothing is forwarded
// before Start or Step. Close it before the ports.
func New(cfg *config.Config, ports []*dataplane.Port, o Options) (_ *Router, err error) {
	r := &Router{cfg: cfg, kernel: o.Kernel, log: o.Log}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	spec, err := Spec(cfg, ports)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	for i := range spec.Ports {
		r.names = append(r.names, spec.Ports[i].Name)
	}
	r.Forwarder, err = dataplane.NewForwarder(ports, max(o.Workers, 1), dataplane.Options{
		Burst: burst(cfg, ports),
		Idle:  idleModes[cfg.Options.Idle],
		CPUs:  o.At.Workers,
		Rest:  o.At.Rest,
		Fault: func(err error) { r.log.Error("descriptor failed, its queues are out of use", "err", err) },
	})
	if err != nil {
		return nil, err
	}
	r.addrs = newAddresses(ports, Own(cfg), r.log)
	if o.System {
		if r.routes, err = followRoutes(cfg, names(ports), r.log); err != nil {
			return nil, err
		}
		r.broadcast = readBroadcasts(net.InterfaceAddrs).have
	}
	spec.Kernel, spec.Broadcast = r.source(), r.broadcast
	cfg.Routes = nil
	system := systemPorts(spec)
	if r.Control, err = control.New(r.Forwarder, spec, r.log); err != nil {
		return nil, err
	}
	if o.System {
		if r.neighbors, err = follow(system, r.log); err != nil {
			return nil, err
		}
	}
	if r.neighbors != nil {
		r.Control.FollowSystem(r.neighbors)
	}
	return r, nil
}

// Config returns the configuration in use, without its routes. It is not changed,
// and another one after a reload.
func (r *Router) Config() *config.Config { return r.cfg }

// Names returns the names of ports and VLANs by their numbers.
func (r *Router) Names() []string { return r.names }

// Start starts the workers and control.
func (r *Router) Start() error {
	if err := r.Forwarder.Start(); err != nil {
		return err
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	r.running.Go(func() { r.Control.Run(ctx) })
	r.running.Go(func() { r.addrs.run(ctx) })
	return nil
}

// Stop ends what Start started: the workers first, then control.
func (r *Router) Stop() {
	r.Forwarder.Stop()
	if r.cancel != nil {
		r.cancel()
		r.cancel = nil
	}
	r.running.Wait()
}

// Close stops the router and frees what it holds beside its ports.
func (r *Router) Close() {
	if r.Forwarder != nil {
		r.Stop()
	}
	if r.neighbors != nil {
		if err := r.neighbors.Close(); err != nil {
			r.log.Error("neighbors", "err", err)
		}
	}
	if r.routes != nil {
		if err := r.routes.Close(); err != nil {
			r.log.Error("routes of the system", "err", err)
		}
	}
	if r.Forwarder != nil {
		r.Forwarder.Close()
	}
}

// Sync returns when all is in use that the system told before.
func (r *Router) Sync(ctx context.Context) error {
	if r.neighbors != nil {
		if err := r.neighbors.Sync(); err != nil {
			return err
		}
	}
	if r.routes != nil {
		if err := r.routes.Sync(ctx); err != nil {
			return err
		}
	}
	return r.Control.Sync(ctx)
}

// burst returns how many packets workers take at once: what cfg asks for, or
// more where each burst sent costs a system call.
func burst(cfg *config.Config, ports []*dataplane.Port) int {
	if cfg.Options.Burst != 0 {
		return cfg.Options.Burst
	}
	for _, p := range ports {
		if p.Backend == "afxdp" || p.Backend == "netmap" {
			return 4 * dataplane.DefaultBurst
		}
	}
	return dataplane.DefaultBurst
}

var idleModes = [...]dataplane.IdleMode{
	config.Adaptive: dataplane.Adaptive,
	config.Poll:     dataplane.Sleep,
	config.Busy:     dataplane.Busy,
}

// names returns the names of ports.
func names(ports []*dataplane.Port) (all []string) {
	for _, p := range ports {
		all = append(all, p.Name)
	}
	return all
}
