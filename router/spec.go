package router

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"nmfwd/config"
	"nmfwd/control"
	"nmfwd/dataplane"
	"nmfwd/fib"
	"nmfwd/neigh"
	"nmfwd/wire"
)

// Unavailable is an error about something that a configuration asks for and the
// system lacks: the file may be right.
type Unavailable struct{ error }

func (e Unavailable) Unwrap() error { return e.error }

// Invalid is an error about something that a configuration asks for and no system
// can do here.
type Invalid struct{ error }

func (e Invalid) Unwrap() error { return e.error }

// Numbers returns the numbers of ports by their index in cfg.Ports. Devices are the
// names of those of cfg.Devices in the order of their numbers, which need not be
// that of the file: one that is loaded again may name them in another. VLANs
// follow by device and ID, and so keep their numbers as well.
func Numbers(cfg *config.Config, devices []string) []uint16 {
	numbers := make([]uint16, len(cfg.Ports))
	for n, name := range devices {
		numbers[cfg.Port(name)] = uint16(n)
	}
	vlans := slices.SortedFunc(slices.Values(cfg.VLANs), func(a, b config.VLAN) int {
		return cmp.Or(cmp.Compare(numbers[a.Parent], numbers[b.Parent]), cmp.Compare(a.ID, b.ID))
	})
	for i, v := range vlans {
		numbers[v.Port] = uint16(len(devices) + i)
	}
	return numbers
}

// Spec returns what cfg, resolved, wants of ports, which are those of cfg.Devices
// in the order of their numbers. All ports are numbered as Numbers says.
func Spec(cfg *config.Config, ports []*dataplane.Port) (*control.Spec, error) {
	s := &control.Spec{
		Ports:        make([]control.Port, len(cfg.Ports)),
		Routes:       make([]fib.Route, 0, len(cfg.Routes)),
		MaxNeighbors: cfg.Options.Neighbors,
		ICMP:         control.ICMP{Rate: cfg.Options.ICMPRate, Egress: cfg.Options.ICMPSource == config.Egress},
		IPOptions:    cfg.Options.IPOptions == config.ForwardIPOptions,
		SmallPages:   cfg.Options.HugePages == config.HugeOff,
	}
	var devices []string
	for _, o := range ports {
		devices = append(devices, o.Name)
	}
	numbers := Numbers(cfg, devices)
	for n, o := range ports {
		p := &cfg.Ports[cfg.Port(o.Name)]
		q := control.Port{Name: p.Name, MAC: wire.MACOf(o.MAC), Addrs: p.Addrs, MTU: o.MTU, Host: p.Host && o.Info.Host, URPF: checks[p.URPF]}
		if p.MAC != nil {
			q.MAC = wire.MACOf(p.MAC)
		}
		if q.Host && o.Host == nil { // its ARP and Neighbor Discovery never come here
			q.Source = neigh.System
		}
		if p.MTU != 0 {
			if p.MTU > o.MTU {
				return nil, Unavailable{fmt.Errorf("%v: port %s: mtu %d is more than the device's %d", p.Pos, p.Name, p.MTU, o.MTU)}
			}
			q.MTU = p.MTU
		}
		for _, m := range p.VMACs {
			q.MACs = append(q.MACs, wire.MACOf(m))
		}
		s.Ports[n] = q
	}
	for i := range cfg.VLANs {
		v := &cfg.VLANs[i]
		p := &cfg.Ports[v.Port]
		q := s.Ports[numbers[v.Parent]]
		if p.MTU > q.MTU {
			return nil, Unavailable{fmt.Errorf("%v: port %s: mtu %d is more than the %d of %s", p.Pos, p.Name, p.MTU, q.MTU, cfg.Ports[v.Parent].Name)}
		}
		if p.MTU != 0 {
			q.MTU = p.MTU
		}
		q.Name, q.Addrs, q.VLAN, q.On = p.Name, p.Addrs, uint16(v.ID), int(numbers[v.Parent])
		q.PCP, q.KeepPCP = uint16(max(v.PCP, 0)), v.PCP == config.KeepPCP
		s.Ports[numbers[v.Port]] = q
	}
	for i := range cfg.Routes {
		s.Routes = append(s.Routes, route(&cfg.Routes[i], numbers))
		if n := len(s.Routes); n > 1 && slices.Equal(s.Routes[n-1].Hops, s.Routes[n-2].Hops) { // they come in runs
			s.Routes[n-1].Hops = s.Routes[n-2].Hops
		}
	}
	for _, n := range cfg.Neighbors {
		s.Neighbors = append(s.Neighbors, neigh.Entry{
			Key:   neigh.Key{Port: numbers[n.Port], Addr: n.Addr.WithZone("")},
			MAC:   wire.MACOf(n.MAC),
			State: neigh.Static,
		})
	}
	return s, nil
}

var checks = [...]dataplane.URPF{
	config.URPFOff:    dataplane.URPFOff,
	config.URPFLoose:  dataplane.URPFLoose,
	config.URPFStrict: dataplane.URPFStrict,
}

var kinds = [...]fib.Kind{
	config.Via:       fib.Via,
	config.OnLink:    fib.OnLink,
	config.Blackhole: fib.Blackhole,
	config.Reject:    fib.Reject,
}

func route(r *config.Route, numbers []uint16) fib.Route {
	f := fib.Route{Prefix: r.Prefix, Origin: fib.Static, Kind: kinds[r.Kind], MTU: r.MTU}
	switch r.Kind {
	case config.Via:
		if len(r.Hops) == 1 {
			f.Gateway, f.Port = r.Hops[0].Gateway.WithZone(""), numbers[r.Hops[0].Port]
			break
		}
		for _, h := range r.Hops {
			f.Hops = append(f.Hops, fib.Hop{Gateway: h.Gateway.WithZone(""), Port: numbers[h.Port]})
		}
	case config.OnLink:
		f.Port = numbers[r.Port]
	}
	return f
}

// VLANs returns the IDs of the VLANs on device number i of cfg.
func VLANs(cfg *config.Config, i int) []uint16 {
	var ids []uint16
	for _, v := range cfg.VLANs {
		if v.Parent == i {
			ids = append(ids, uint16(v.ID))
		}
	}
	return ids
}

// Own returns the addresses that belong to the router itself, on any port, and
// the broadcast addresses of its networks: packets to them are never forwarded.
func Own(cfg *config.Config) []netip.Addr {
	var own []netip.Addr
	for _, p := range cfg.Ports {
		for _, a := range p.Addrs {
			for _, r := range fib.ConnectedRoutes(0, a) {
				if r.Kind != fib.OnLink && !slices.Contains(own, r.Prefix.Addr()) {
					own = append(own, r.Prefix.Addr())
				}
			}
		}
	}
	return own
}

// HugePages returns why tables cannot lie in huge pages although cfg requires
// it; have is fib.HugePages.
func HugePages(cfg *config.Config, have func() error) error {
	if cfg.Options.HugePages != config.HugeOn {
		return nil
	}
	if err := have(); err != nil {
		at, _ := cfg.Options.Set("hugepages")
		return fmt.Errorf("%v: option hugepages on: %w", at, err)
	}
	return nil
}
