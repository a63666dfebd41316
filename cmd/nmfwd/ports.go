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

var backends = []router.Backend{
	{Name: "netmap", Netmap: true, Probe: netmap.Probe, Hosts: netmap.HasHost, SetQueues: compareQueues, Open: func(cfgs []dataplane.PortConfig, o config.Options, log *slog.Logger, again func(string)) ([]*dataplane.Port, error) {
		return netmap.Open(cfgs, netmap.Options{Note: func(s string) { log.Info(s) }, Prepare: again})
	}},
	{Name: "afxdp", Probe: afxdp.Probe, Hosts: func(string) bool { return false }, SetQueues: afxdp.SetQueues, Open: func(cfgs []dataplane.PortConfig, o config.Options, log *slog.Logger, _ func(string)) ([]*dataplane.Port, error) {
		return afxdp.Open(cfgs, afxdp.Options{FrameSize: o.BufferSize, Note: func(s string) { log.Info(s) }})
	}},
}

// opening says how ports are opened.
func opening(log *slog.Logger) router.Opening {
	return router.Opening{Backends: backends, Choose: choose, System: nic.Open, Commands: tools.Settings, Log: log}
}

// choose returns the index in backends of the one that opens p: the one that
// the configuration asks for, or netmap where it is, or else AF_XDP on Linux.
func choose(p *config.Port) (int, error) {
	switch {
	case p.Driver == "netmap", router.Plain(p):
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

// compareQueues compares the number of queues that a line asks for with what a
// netmap device has.
func compareQueues(name string, n int) error {
	rings, err := netmap.Probe(name)
	if err != nil {
		return err
	}
	if rings.RX != n {
		return fmt.Errorf("port %s: queues %d: the device has %d, which cannot be set from here: every RX ring needs a reader", name, n, rings.RX)
	}
	return nil
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
