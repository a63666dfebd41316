package router

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"nmfwd/config"
	"nmfwd/dataplane"
	"nmfwd/system/nic"
)

// A Backend opens ports of one kind.
type Backend struct {
	Name      string
	Netmap    bool // as nic.Purpose says it
	Probe     func(name string) (dataplane.Rings, error)
	Hosts     func(name string) bool         // frames for the host of a port pass through nmfwd
	SetQueues func(name string, n int) error // gives a device n queues, before Probe

	// Open opens ports, and calls again before it opens one of them once more.
	Open func(cfgs []dataplane.PortConfig, o config.Options, log *slog.Logger, again func(port string)) ([]*dataplane.Port, error)
}

// An Opening says how devices are opened.
type Opening struct {
	Backends []Backend
	Choose   func(p *config.Port) (int, error)           // the index of the backend that opens p
	System   func() (nic.System, error)                  // which has the interfaces
	Commands func(port string, set []nic.Setting) string // what makes settings of a port so by hand
	Log      *slog.Logger
}

// Devices are the ports of a configuration, opened, and their interfaces.
type Devices struct {
	Ports    []*dataplane.Port
	Plan     dataplane.Plan
	At       Placement
	Before   []nic.Info // of the interfaces, as they were
	Settings *nic.Taken // changed of them

	sys nic.System
	log *slog.Logger
}

// Open opens cfg's devices, in their order. Errors name the port's line.
func Open(cfg *config.Config, o Opening) (_ *Devices, err error) {
	all := cfg.Devices()
	kinds := make([]int, len(all))
	rings := make([]dataplane.Rings, len(all))
	for i := range all {
		p := &all[i]
		if kinds[i], err = o.Choose(p); err != nil {
			return nil, err
		}
		if p.Queues != 0 {
			if err := o.Backends[kinds[i]].SetQueues(p.Name, p.Queues); err != nil {
				return nil, Unavailable{fmt.Errorf("%v: %w", p.Pos, err)}
			}
		}
		if rings[i], err = o.Backends[kinds[i]].Probe(p.Name); err != nil {
			return nil, Unavailable{fmt.Errorf("%v: %w", p.Pos, err)}
		}
	}
	d := &Devices{log: o.Log, Ports: make([]*dataplane.Port, len(all)), Before: make([]nic.Info, len(all))}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	cpus, err := dataplane.CPUs()
	if err != nil {
		return nil, err
	}
	if d.Plan, d.At, err = Plan(cfg, rings, cpus); err != nil {
		return nil, err
	}
	hosts := make([]bool, len(all))
	for i, p := range all {
		hosts[i] = p.Host && o.Backends[kinds[i]].Hosts(p.Name)
	}
	if err := d.takeSettings(cfg, o, kinds); err != nil {
		return nil, err
	}
	own := Own(cfg)
	for k := range o.Backends {
		var cfgs []dataplane.PortConfig
		var which []int
		for i, p := range all {
			if kinds[i] != k {
				continue
			}
			c := dataplane.PortConfig{
				Name: p.Name, Host: p.Host, MTU: p.MTU, BufSize: cfg.Options.BufferSize,
				Owners: d.Plan.Ports[i], Spare: d.Plan.Spare(hosts), Addrs: own, MAC: p.MAC, MACs: p.VMACs, VLANs: VLANs(cfg, i),
				Routes:   cfg.Options.Routes == config.KernelRoutes,
				Native:   cfg.Options.Require == config.RequireNative,
				ZeroCopy: cfg.Options.Require == config.RequireZeroCopy,
			}
			cfgs = append(cfgs, c)
			which = append(which, i)
		}
		if len(cfgs) == 0 {
			continue
		}
		opened, err := o.Backends[k].Open(cfgs, cfg.Options, o.Log, func(port string) { o.TakeAgain(d.Settings, port) })
		var pe *dataplane.PortError
		if errors.As(err, &pe) {
			err = fmt.Errorf("%v: %w", cfg.Ports[cfg.Port(pe.Port)].Pos, err)
		}
		if err != nil {
			return nil, Unavailable{err}
		}
		for j, i := range which {
			d.Ports[i] = opened[j]
		}
	}
	return d, nil
}

// takeSettings makes the interfaces behind the devices fit what they are to
// carry, before they are opened: afterwards some cards would lose their link.
func (d *Devices) takeSettings(cfg *config.Config, o Opening, kinds []int) (err error) {
	if d.sys, err = o.System(); err != nil {
		return err
	}
	var want []nic.Purpose
	all := cfg.Devices()
	for i := range all {
		p := &all[i]
		if Plain(p) {
			continue
		}
		if d.Before[i], err = d.sys.Info(p.Name); err != nil {
			return Unavailable{fmt.Errorf("%v: %w", p.Pos, err)}
		}
		want = append(want, o.Backends[kinds[i]].Purpose(cfg, p))
	}
	if d.Settings, err = nic.Take(d.sys, "", want); err != nil {
		return Unavailable{err}
	}
	return nil
}

// TakeAgain takes the settings of a port that is about to be opened once more: a card
// that was reset or has gone and come back has lost them.
func (o *Opening) TakeAgain(settings *nic.Taken, port string) {
	c, err := settings.Again(port)
	if err == nil {
		err = c.Err
	}
	if err != nil {
		o.Log.Error("settings not changed again", "port", port, "err", err)
	}
	if len(c.Set) > 0 {
		o.Log.Info("settings changed while nmfwd runs, again", "port", port, "settings", o.Commands(port, c.Set))
	}
	var off []nic.Setting
	for _, s := range c.Stay {
		s.On = false
		off = append(off, s)
	}
	if len(off) > 0 {
		o.Log.Warn("settings stay in the way", "port", port, "fix", o.Commands(port, off))
	}
}

// Close closes the ports and gives their interfaces the settings back that they
// had, in reverse order of opening.
func (d *Devices) Close() {
	ClosePorts(d.Ports, d.log)
	if d.Settings != nil {
		if err := d.Settings.Close(); err != nil {
			d.log.Error("settings not restored: nmfwd restore PORT... tries again", "err", err)
		}
	}
	if d.sys != nil {
		d.sys.Close()
	}
}

// ClosePorts closes ports in reverse order of opening.
func ClosePorts(ports []*dataplane.Port, log *slog.Logger) {
	for _, p := range slices.Backward(ports) {
		if p == nil {
			continue
		}
		if err := p.Device.Close(); err != nil {
			log.Error("port not closed", "port", p.Name, "err", err)
		}
	}
}

// Purpose says what a device of cfg is to carry.
func (b *Backend) Purpose(cfg *config.Config, p *config.Port) nic.Purpose {
	want := nic.Purpose{Name: p.Name, Netmap: b.Netmap, Host: p.Host, VLANs: Tagged(cfg, p), MACs: p.VMACs, Keep: p.OffloadKeep}
	if p.MAC != nil {
		want.MACs = append(want.MACs[:len(want.MACs):len(want.MACs)], p.MAC)
	}
	return want
}

// Tagged reports whether there are VLANs on a device.
func Tagged(cfg *config.Config, p *config.Port) bool {
	return len(VLANs(cfg, cfg.Port(p.Name))) > 0
}

// Plain reports whether no interface stands behind a device: it is a VALE port
// or an end of a pipe.
func Plain(p *config.Port) bool { return strings.ContainsAny(p.Name, ":{}") }
