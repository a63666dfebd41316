package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"

	"nmfwd/config"
	"nmfwd/dataplane"
	"nmfwd/dataplane/afxdp"
	"nmfwd/dataplane/netmap"
	"nmfwd/router"
	"nmfwd/system/nic"
)

// A backend opens ports of one kind.
type backend struct {
	name  string
	probe func(name string) (dataplane.Rings, error)
	hosts func(name string) bool // frames for the host of a port pass through nmfwd

	// open opens ports, and calls again before it opens one of them once more.
	open func(cfgs []dataplane.PortConfig, o config.Options, log *slog.Logger, again func(port string)) ([]*dataplane.Port, error)
}

var backends = []backend{
	{"netmap", netmap.Probe, netmap.HasHost, func(cfgs []dataplane.PortConfig, o config.Options, log *slog.Logger, again func(string)) ([]*dataplane.Port, error) {
		return netmap.Open(cfgs, netmap.Options{Note: func(s string) { log.Info(s) }, Prepare: again})
	}},
	{"afxdp", afxdp.Probe, func(string) bool { return false }, func(cfgs []dataplane.PortConfig, o config.Options, log *slog.Logger, _ func(string)) ([]*dataplane.Port, error) {
		return afxdp.Open(cfgs, afxdp.Options{FrameSize: o.BufferSize, Note: func(s string) { log.Info(s) }})
	}},
}

// choose returns the index in backends of the one that opens p: the one that
// the configuration asks for, or netmap where it is, or else AF_XDP on Linux.
func choose(p *config.Port) (int, error) {
	switch {
	case p.Driver == "netmap", plain(p):
		return 0, nil
	case p.Driver == "afxdp":
		return 1, nil
	}
	err := netmap.Available()
	if err == nil {
		return 0, nil
	}
	if haveAFXDP && !errors.Is(err, netmap.ErrVersion) {
		return 1, nil
	}
	return 0, fmt.Errorf("%v: port %s: %w", p.Pos, p.Name, err)
}

// devices are the ports of a configuration, opened, and their interfaces.
type devices struct {
	ports    []*dataplane.Port
	plan     dataplane.Plan
	at       router.Placement
	sys      nic.System
	before   []nic.Info // of the interfaces, as they were
	settings *nic.Taken
}

// openPorts opens cfg's devices, in their order. Errors name the port's line.
func openPorts(cfg *config.Config, log *slog.Logger) (_ *devices, err error) {
	all := cfg.Devices()
	kinds := make([]int, len(all))
	rings := make([]dataplane.Rings, len(all))
	for i := range all {
		p := &all[i]
		if kinds[i], err = choose(p); err != nil {
			return nil, err
		}
		if err = setQueues(p, kinds[i]); err != nil {
			return nil, coded{exUnavailable, fmt.Errorf("%v: %w", p.Pos, err)}
		}
		if rings[i], err = backends[kinds[i]].probe(p.Name); err != nil {
			return nil, coded{exUnavailable, fmt.Errorf("%v: %w", p.Pos, err)}
		}
	}
	d := &devices{ports: make([]*dataplane.Port, len(all)), before: make([]nic.Info, len(all))}
	defer func() {
		if err != nil {
			d.close(log)
		}
	}()
	cpus, err := dataplane.CPUs()
	if err != nil {
		return nil, err
	}
	if d.plan, d.at, err = router.Plan(cfg, rings, cpus); err != nil {
		return nil, coded{exDataErr, err}
	}
	hosts := make([]bool, len(all))
	for i, p := range all {
		hosts[i] = p.Host && backends[kinds[i]].hosts(p.Name)
	}
	if err := d.takeSettings(cfg, kinds); err != nil {
		return nil, err
	}
	own := router.Own(cfg)
	for k := range backends {
		var cfgs []dataplane.PortConfig
		var which []int
		for i, p := range all {
			if kinds[i] != k {
				continue
			}
			c := dataplane.PortConfig{
				Name: p.Name, Host: p.Host, MTU: p.MTU, BufSize: cfg.Options.BufferSize,
				Owners: d.plan.Ports[i], Spare: d.plan.Spare(hosts), Addrs: own, MAC: p.MAC, MACs: p.VMACs, VLANs: router.VLANs(cfg, i),
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
		opened, err := backends[k].open(cfgs, cfg.Options, log, func(port string) { takeAgain(d.settings, port, log) })
		var pe *dataplane.PortError
		if errors.As(err, &pe) {
			err = fmt.Errorf("%v: %w", cfg.Ports[cfg.Port(pe.Port)].Pos, err)
		}
		if err != nil {
			return nil, coded{exUnavailable, err}
		}
		for j, i := range which {
			d.ports[i] = opened[j]
		}
	}
	return d, nil
}

// takeSettings makes the interfaces behind the devices fit what they are to
// carry, before they are opened: afterwards some cards would lose their link.
func (d *devices) takeSettings(cfg *config.Config, kinds []int) (err error) {
	if d.sys, err = nic.Open(); err != nil {
		return err
	}
	var want []nic.Purpose
	all := cfg.Devices()
	for i := range all {
		p := &all[i]
		if plain(p) {
			continue
		}
		if d.before[i], err = d.sys.Info(p.Name); err != nil {
			return coded{exUnavailable, fmt.Errorf("%v: %w", p.Pos, err)}
		}
		want = append(want, purpose(cfg, p, kinds[i]))
	}
	if d.settings, err = nic.Take(d.sys, "", want); err != nil {
		return coded{exUnavailable, err}
	}
	return nil
}

// takeAgain takes the settings of a port that is about to be opened once more: a card
// that was reset or has gone and come back has lost them.
func takeAgain(settings *nic.Taken, port string, log *slog.Logger) {
	c, err := settings.Again(port)
	if err == nil {
		err = c.Err
	}
	if err != nil {
		log.Error("settings not changed again", "port", port, "err", err)
	}
	if len(c.Set) > 0 {
		log.Info("settings changed while nmfwd runs, again", "port", port, "settings", tools.Settings(port, c.Set))
	}
	var off []nic.Setting
	for _, s := range c.Stay {
		s.On = false
		off = append(off, s)
	}
	if len(off) > 0 {
		log.Warn("settings stay in the way", "port", port, "fix", tools.Settings(port, off))
	}
}

// close closes the ports and gives their interfaces the settings back that they
// had, in reverse order of opening.
func (d *devices) close(log *slog.Logger) {
	closePorts(d.ports, log)
	if d.settings != nil {
		if err := d.settings.Close(); err != nil {
			log.Error("settings not restored: nmfwd restore PORT... tries again", "err", err)
		}
	}
	if d.sys != nil {
		d.sys.Close()
	}
}

// setQueues gives a device the number of queues that its line asks for.
func setQueues(p *config.Port, kind int) error {
	if p.Queues == 0 {
		return nil
	}
	if backends[kind].name == "afxdp" {
		return afxdp.SetQueues(p.Name, p.Queues)
	}
	rings, err := netmap.Probe(p.Name)
	if err != nil {
		return err
	}
	if rings.RX != p.Queues {
		return fmt.Errorf("port %s: queues %d: the device has %d, which cannot be set from here: every RX ring needs a reader", p.Name, p.Queues, rings.RX)
	}
	return nil
}

// closePorts closes ports in reverse order of opening.
func closePorts(ports []*dataplane.Port, log *slog.Logger) {
	for _, p := range slices.Backward(ports) {
		if p == nil {
			continue
		}
		if err := p.Device.Close(); err != nil {
			log.Error("port not closed", "port", p.Name, "err", err)
		}
	}
}

// kernelAddrs returns the addresses that the system gives to a device, without
// link-local ones.
func kernelAddrs(name string) ([]netip.Prefix, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, coded{exUnavailable, err}
	}
	addrs, err := i.Addrs()
	if err != nil {
		return nil, err
	}
	var out []netip.Prefix
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		bits, _ := n.Mask.Size()
		ip, _ := netip.AddrFromSlice(n.IP)
		if ip = ip.Unmap(); !ip.IsLinkLocalUnicast() {
			out = append(out, netip.PrefixFrom(ip, bits))
		}
	}
	return out, nil
}

// resolve gives the ports of cfg, which was loaded without an error, the addresses
// that the system gives them. What is wrong then is so by what the system has now:
// the file alone was right.
func resolve(cfg *config.Config, addrs func(string) ([]netip.Prefix, error)) error {
	if err := cfg.Resolve(addrs); err != nil {
		return coded{exUnavailable, err}
	}
	return nil
}

// checkHost compares what cfg says of ports, its devices in any order, that have
// a host stack with what the system has: nmfwd does not configure the system.
func checkHost(cfg *config.Config, ports []*dataplane.Port) error {
	var errs config.Errors
	for _, o := range ports {
		p := &cfg.Ports[cfg.Port(o.Name)]
		if !o.Info.Host || !p.Host {
			continue
		}
		have, err := kernelAddrs(p.Name)
		if err != nil {
			return fmt.Errorf("%v: addresses of port %s: %w", p.Pos, p.Name, err)
		}
		for _, a := range p.Addrs {
			if !slices.ContainsFunc(have, func(h netip.Prefix) bool { return h.Addr() == a.Addr() }) {
				errs = append(errs, config.Error{Pos: p.Pos, Msg: fmt.Sprintf("port %s: the host lacks %v: %s, or say host off", p.Name, a, addCommand(p.Name, a))})
			}
		}
		if p.MAC != nil && p.MAC.String() != o.MAC.String() {
			errs = append(errs, config.Error{Pos: p.Pos, Msg: fmt.Sprintf("port %s: the host's MAC address is %v, not %v: change one of them, or say host off", p.Name, o.MAC, p.MAC)})
		}
	}
	if errs != nil {
		return coded{exUnavailable, errs}
	}
	return nil
}

// checkVLANs returns which interfaces of VLANs the host lacks: over AF_XDP the
// neighbors on a VLAN are those of the interface that has its name.
func checkVLANs(cfg *config.Config, ports []*dataplane.Port) error {
	var errs config.Errors
	for _, v := range cfg.VLANs {
		parent, name := &cfg.Ports[v.Parent], cfg.Ports[v.Port].Name
		if !slices.ContainsFunc(ports, func(o *dataplane.Port) bool {
			return o.Name == parent.Name && o.Info.Host && parent.Host && o.Backend == "afxdp"
		}) {
			continue
		}
		if _, err := net.InterfaceByName(name); err != nil {
			errs = append(errs, config.Error{Pos: v.Pos, Msg: fmt.Sprintf("port %s: the host lacks the interface: %s, or say host off on %s", name, vlanCommand(parent.Name, name, v.ID), parent.Name)})
		}
	}
	if errs != nil {
		return coded{exUnavailable, errs}
	}
	return nil
}
