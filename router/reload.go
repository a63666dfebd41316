package router

import (
	"context"
	"runtime"

	"nmfwd/config"
	"nmfwd/control"
)

// Reload makes cfg, which is resolved and needs no restart, the configuration in
// use. After an error the one before is in use, on all devices: soon after ctx is
// done that is the error. The routes are taken out of cfg, as by New.
//
// The devices give the host what either configuration calls its own while both may
// be in use: they are prepared before the tables are swapped, and what only the old
// one had is taken from them after it. That can fail, and is tried again then: the
// reload is done all the same.
func (r *Router) Reload(ctx context.Context, cfg *config.Config) error {
	spec, err := Spec(cfg, r.Forwarder.Ports())
	if err != nil {
		return err
	}
	if r.routes != nil {
		if err := r.routes.Refresh(ctx); err != nil {
			r.log.Error("routes of the system: as they were before the reload", "err", err)
		}
	}
	spec.Kernel, spec.Broadcast = r.source(), r.broadcast
	cfg.Routes = nil
	runtime.GC() // what is read no longer: the tables are about to be there twice
	own := Own(cfg)
	if err := r.addrs.prepare(own); err != nil {
		return err
	}
	if err := r.swap(ctx, spec); err != nil {
		r.addrs.restore()
		return err
	}
	r.cfg = cfg
	r.addrs.narrow(own)
	return nil
}

// swap has control put spec in the place of the one in use.
func (r *Router) swap(ctx context.Context, spec *control.Spec) error {
	if r.cancel != nil {
		return r.Control.Reload(ctx, spec)
	}
	done := make(chan error, 1)
	go func() { done <- r.Control.Reload(ctx, spec) }()
	for {
		select {
		case err := <-done:
			return err
		default:
			r.Tick(r.now)
			runtime.Gosched()
		}
	}
}
