package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"nmfwd/cmd/nmfwd/report"
	"nmfwd/config"
	"nmfwd/dataplane"
	"nmfwd/dataplane/afxdp"
	"nmfwd/dataplane/netmap"
	"nmfwd/router"
	"nmfwd/system/nic"
)

// threads adds what is known of workers to f.
func threads(f *report.Facts, cfg *config.Config, plan dataplane.Plan, at router.Placement) {
	f.Tools, f.Workers, f.CPUs, f.Rest = tools, plan.Workers, at.Workers, at.Rest
	f.Busy = cfg.Options.Idle == config.Busy
	f.Native = cfg.Options.Require != config.RequireNothing
	f.Most, f.Least = plan.Imbalance()
}

// foresee returns what a start with cfg would find, and why it would fail. It
// opens no port and changes nothing.
func foresee(cfg *config.Config, sys nic.System) *report.Facts {
	devices := cfg.Devices()
	f := &report.Facts{Tools: tools}
	refuse := func(port string, err error) { f.Refused = append(f.Refused, report.Refusal{Port: port, Err: err}) }
	rings := make([]dataplane.Rings, len(devices))
	hosts := make([]bool, len(devices))
	var probed []*dataplane.Port
	for i := range devices {
		p := &devices[i]
		q := report.Port{Place: p.Pos.String(), Plain: router.Plain(p), MTU: p.MTU, VLANs: router.Tagged(cfg, p)}
		kind, err := choose(p)
		if err != nil {
			refuse(p.Name, err)
			continue
		}
		b := &backends[kind]
		q.Backend = b.Name
		hosts[i] = p.Host && b.Hosts(p.Name)
		q.Host = p.Host && !q.Plain
		if !q.Plain {
			if q.Info, err = sys.Info(p.Name); err != nil {
				refuse(p.Name, coded{exUnavailable, fmt.Errorf("%v: %w", p.Pos, err)})
				continue
			}
			want := b.Purpose(cfg, p)
			s := want.Plan(&q.Info)
			q.Set, q.Stay = s.Set, s.Stay
			left, err := nic.Left(sys, "", &q.Info)
			q.Left, q.Busy = left, errors.Is(err, nic.ErrBusy)
		}
		if rings[i], err = b.Probe(p.Name); err == nil && p.Queues != 0 && b.Netmap {
			err = b.SetQueues(p.Name, p.Queues) // which only compares
		} else if err == nil && p.Queues != 0 {
			rings[i] = dataplane.Rings{RX: p.Queues, TX: p.Queues}
		}
		if err != nil {
			refuse(p.Name, coded{exUnavailable, fmt.Errorf("%v: %w", p.Pos, err)})
			continue
		}
		q.Name, q.Rings = p.Name, rings[i]
		if err := buffers(cfg, p, &q); err != nil {
			refuse(p.Name, coded{exUnavailable, fmt.Errorf("%v: %w", p.Pos, err)})
		}
		kernelBeside(cfg, drops(cfg), p, &q)
		f.Ports = append(f.Ports, q)
		probed = append(probed, &dataplane.Port{Info: dataplane.Info{Name: p.Name, MAC: q.MAC, Host: q.Host, Backend: q.Backend}})
	}
	for _, check := range []func(*config.Config, []*dataplane.Port) error{checkHost, checkVLANs} {
		if err := check(cfg, probed); err != nil {
			refuse("", err)
		}
	}
	if len(probed) < len(devices) {
		return f // what there is to plan for is not known
	}
	cpus, err := dataplane.CPUs()
	if err != nil {
		refuse("", err)
		return f
	}
	plan, at, err := router.Plan(cfg, rings, cpus)
	if err != nil {
		refuse("", err)
		return f
	}
	threads(f, cfg, plan, at)
	for i := range f.Ports {
		f.Ports[i].Owners, f.Ports[i].Spare = plan.Ports[i], plan.Spare(hosts)
	}
	f.Memory = netmapMemory()
	if n := cfg.Options.BufferSize; n != 0 {
		f.Memory.BufSize = n
	}
	return f
}

// kernelBeside adds what the kernel does with what it has of a device before
// nmfwd, if that is less than cfg asks. Drops is drops of it.
func kernelBeside(cfg *config.Config, drops bool, p *config.Port, q *report.Port) {
	if q.Backend != "afxdp" || !q.Host {
		return
	}
	if p.URPF != config.URPFOff {
		at := cfg.Port(p.Name)
		all := kernelSetting("ipv4", "all", "rp_filter")
		for i := range cfg.Ports {
			on := i == at || slices.ContainsFunc(cfg.VLANs, func(v config.VLAN) bool { return v.Port == i && v.Parent == at })
			if !on {
				continue
			}
			r := &cfg.Ports[i]
			s := report.Sources{Name: r.Name, Strict: p.URPF == config.URPFStrict, Own: kernelSetting("ipv4", r.Name, "rp_filter"), All: all}
			s.IPv6 = slices.ContainsFunc(r.Addrs, func(a netip.Prefix) bool { return a.Addr().Is6() })
			q.Sources = append(q.Sources, s)
		}
	}
	// Where routes of the system are followed it is to forward what no port can.
	if cfg.Options.Routes != config.KernelRoutes && drops {
		q.Forwards = kernelSetting("ipv4", p.Name, "forwarding") != 0 || kernelSetting("ipv6", "all", "forwarding") != 0
	}
}

// drops reports whether cfg has packets dropped that a route leads on.
func drops(cfg *config.Config) bool {
	return slices.ContainsFunc(cfg.Ports, func(p config.Port) bool { return p.URPF != config.URPFOff }) ||
		slices.ContainsFunc(cfg.Routes, func(r config.Route) bool { return r.Kind == config.Blackhole || r.Kind == config.Reject })
}

// buffers finds out how a device's mode, slots and buffers will be.
func buffers(cfg *config.Config, p *config.Port, q *report.Port) (err error) {
	if q.Backend == "afxdp" {
		q.BufSize, err = afxdp.BufSize(p.Name, cfg.Options.BufferSize, q.Info.MTU)
		return err
	}
	if q.RXSlots, q.TXSlots, err = netmap.Slots(p.Name); err != nil {
		return err
	}
	if q.BufSize = cfg.Options.BufferSize; q.BufSize == 0 {
		q.BufSize = netmapMemory().BufSize
	}
	if q.Plain {
		return nil
	}
	i, err := netmap.System().Interface(p.Name)
	if q.Mode = "emulated"; i.Native {
		q.Mode = "native"
	}
	return err
}

// facts returns what was found when the ports were opened. Drops is drops of the
// configuration.
func (d *daemon) facts(drops bool) *report.Facts {
	f := &report.Facts{Opened: true}
	threads(f, d.router.Config(), d.Plan, d.At)
	changes := d.Settings.Changes()
	for i, o := range d.Ports {
		p := &d.router.Config().Ports[d.router.Config().Port(o.Name)]
		q := report.Port{
			Info: d.Before[i], Place: p.Pos.String(), Plain: router.Plain(p), Backend: o.Backend, Mode: o.Mode, ZeroCopy: o.ZeroCopy, Region: o.Queues[0].Region().Name(),
			Rings: dataplane.Rings{RX: o.RXRings, TX: o.TXRings}, RXSlots: o.RXSlots, TXSlots: o.TXSlots, BufSize: o.BufSize, MTU: d.router.Forwarder.State().Ports[i].MTU,
			Host: o.Info.Host, VLANs: router.Tagged(d.router.Config(), p), Owners: d.Plan.Ports[i],
		}
		q.Name, q.MAC, q.Driver = o.Name, o.MAC, o.Driver
		kernelBeside(d.router.Config(), drops, p, &q)
		for _, c := range changes {
			if c.Name == o.Name {
				q.Set, q.Stay, q.SetErr, q.Left = c.Set, c.Stay, c.Err, c.Left
			}
		}
		f.Ports = append(f.Ports, q)
	}
	return f
}
