package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"nmfwd/config/syntax"
)

// Resolve gives ports with AddrKernel the addresses that addrs returns for
// them, in place of those of an earlier call, finds the port of each gateway
// and neighbor, and checks all that depends on addresses. A nil addrs means
// that the kernel's addresses are not known, as on another machine: gateways
// and neighbors in networks that the file does not show then keep port -1 and
// are taken to be right.
//
// The error is an Errors, or wraps what addrs returned.
func (c *Config) Resolve(addrs func(port string) ([]netip.Prefix, error)) error {
	complete := true
	var failed []error
	for i := range c.Ports {
		p := &c.Ports[i]
		if !p.AddrKernel {
			continue
		}
		p.Addrs = slices.Clip(p.Addrs[:len(p.at)])
		if addrs == nil {
			complete = false
			continue
		}
		a, err := addrs(p.Name)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: addresses of port %s: %w", p.Pos, p.Name, err))
		}
		for _, a := range a {
			if !slices.ContainsFunc(p.Addrs, func(o netip.Prefix) bool { return o.Addr() == a.Addr() }) {
				p.Addrs = append(p.Addrs, a)
			}
		}
	}
	if failed != nil {
		return errors.Join(failed...)
	}
	if errs := c.check(complete); len(errs) > 0 {
		syntax.SortErrors(errs, c.files)
		return Errors(errs)
	}
	return nil
}

// A checker validates what depends on addresses.
type checker struct {
	c        *Config
	complete bool                 // all addresses are known
	nets     map[netip.Prefix]int // port of a connected network, link-local ones left out
	own      map[netip.Addr]int   // port of an own address, link-local ones left out
	bits     [2][]int             // lengths of the connected networks, longest first; IPv6 second
	errs     []Error
}

// check resolves gateways and neighbors, renews the warnings and returns what is
// wrong. Unless complete, some addresses are not known.
func (c *Config) check(complete bool) []Error {
	c.Warnings = slices.Clone(c.fromText)
	k := checker{c: c, complete: complete, nets: make(map[netip.Prefix]int), own: make(map[netip.Addr]int)}
	k.ports()
	k.overlaps()
	last := (*Hop)(nil)
	for i := range c.Routes {
		r := &c.Routes[i]
		k.route(r)
		for j := range r.Hops {
			h := &r.Hops[j]
			if h == last {
				continue // as the route before
			}
			if wrong := k.hop(h, r); wrong != "" {
				k.errorAt(r.Pos.Plus(h.off), wrong)
				continue
			}
			last = h
		}
	}
	for i := range c.Neighbors {
		n := &c.Neighbors[i]
		if wrong := k.neighbor(n); wrong != "" {
			k.errorAt(n.Pos.Plus(n.off), wrong)
		}
	}
	syntax.SortErrors(c.Warnings, c.files)
	return k.errs
}

func (k *checker) errorAt(at Pos, msg string) { k.errs = append(k.errs, Error{Pos: at, Msg: msg}) }

func (k *checker) warn(at Pos, msg string) {
	k.c.Warnings = append(k.c.Warnings, Error{Pos: at, Msg: msg})
}

// place returns where address i of the port is written: in the port line as a
// whole if it is one of the kernel's.
func (p *Port) place(i int) Pos {
	if i < len(p.at) {
		return p.at[i]
	}
	return p.Pos
}

// ports collects the networks and addresses of all ports.
func (k *checker) ports() {
	for i := range k.c.Ports {
		p := &k.c.Ports[i]
		v6 := false
		for j, a := range p.Addrs {
			v6 = v6 || a.Addr().Is6()
			if linkLocal(a.Addr()) {
				continue
			}
			if o, ok := k.own[a.Addr()]; ok && o != i {
				k.errorAt(p.place(j), fmt.Sprintf("address %s is also that of %s", a.Addr(), k.c.Ports[o].Name))
				continue
			}
			k.own[a.Addr()] = i
			n := a.Masked()
			if _, ok := k.nets[n]; !ok {
				k.nets[n] = i
			}
			f := family(a.Addr())
			if !slices.Contains(k.bits[f], n.Bits()) {
				k.bits[f] = append(k.bits[f], n.Bits())
			}
		}
		if v6 && p.MTU > 0 && p.MTU < minMTU6 {
			at := p.mtuAt
			if !at.Valid() {
				at = p.Pos
			}
			k.errorAt(at, fmt.Sprintf("MTU %d is less than the %d that IPv6 needs", p.MTU, minMTU6))
		}
	}
	for f := range k.bits {
		slices.SortFunc(k.bits[f], func(a, b int) int { return b - a })
	}
}

// family returns 0 for IPv4 and 1 for IPv6.
func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// overlaps reports connected networks of two ports that have addresses in
// common.
func (k *checker) overlaps() {
	type network struct {
		netip.Prefix
		port, addr int
	}
	var all []network
	for i := range k.c.Ports {
		for j, a := range k.c.Ports[i].Addrs {
			if o, ok := k.own[a.Addr()]; ok && o == i {
				all = append(all, network{a.Masked(), i, j})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b network) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits())
	})
	var outer []network // networks that hold the current one, widest first
	for _, n := range all {
		for len(outer) > 0 && !outer[len(outer)-1].Contains(n.Addr()) {
			outer = outer[:len(outer)-1]
		}
		if i := slices.IndexFunc(outer, func(o network) bool { return o.port != n.port }); i >= 0 {
			// The later of the two lines is where to look.
			first, second := outer[i], n
			if first.port > second.port {
				first, second = second, first
			}
			k.errorAt(k.c.Ports[second.port].place(second.addr), fmt.Sprintf("network %s of %s overlaps %s of %s",
				second.Prefix, k.c.Ports[second.port].Name, first.Prefix, k.c.Ports[first.port].Name))
		}
		outer = append(outer, n)
	}
}

// network returns the longest connected network that holds a and its port.
func (k *checker) network(a netip.Addr) (netip.Prefix, int, bool) {
	for _, b := range k.bits[family(a)] {
		n, _ := a.Prefix(b)
		if port, ok := k.nets[n]; ok {
			return n, port, true
		}
	}
	return netip.Prefix{}, 0, false
}

// route warns of a route that has no effect.
func (k *checker) route(r *Route) {
	if port, ok := k.nets[r.Prefix]; ok {
		k.warn(r.Pos, fmt.Sprintf("route %s is to the network connected to %s, which comes first", r.Prefix, k.c.Ports[port].Name))
		return
	}
	if r.Prefix.IsSingleIP() {
		if port, ok := k.own[r.Prefix.Addr()]; ok {
			k.warn(r.Pos, fmt.Sprintf("route %s is to an address of %s, which comes first", r.Prefix, k.c.Ports[port].Name))
		} else if n, _, ok := k.network(r.Prefix.Addr()); ok {
			if own := syntax.NotHost(n, r.Prefix.Addr()); own != "" {
				k.warn(r.Pos, fmt.Sprintf("route %s has no effect: it is to %s", r.Prefix, own))
			}
		}
	}
	if r.MTU > 0 && r.Port >= 0 {
		if m := k.c.Ports[r.Port].MTU; m > 0 && int(r.MTU) > m {
			k.warn(r.Pos, fmt.Sprintf("MTU %d of route %s is more than the %d of %s, which holds", r.MTU, r.Prefix, m, k.c.Ports[r.Port].Name))
		}
	}
}

// hop finds the port of a gateway and returns what is wrong with it.
func (k *checker) hop(h *Hop, r *Route) string {
	if linkLocal(h.Gateway) {
		if h.Port >= 0 && k.c.Ports[h.Port].has(h.Gateway) {
			return fmt.Sprintf("gateway %s is an address of %s itself", h.Gateway, k.c.Ports[h.Port].Name)
		}
		return ""
	}
	port, wrong := k.station("gateway", h.Gateway, int(r.Port))
	h.Port = int32(port)
	return wrong
}

// has reports whether a is one of the port's addresses.
func (p *Port) has(a netip.Addr) bool {
	return slices.ContainsFunc(p.Addrs, func(o netip.Prefix) bool { return o.Addr() == a })
}

// ownMAC reports whether m is one of the port's MAC addresses that the file
// names.
func (p *Port) ownMAC(m net.HardwareAddr) bool {
	return slices.Equal(m, p.MAC) || slices.ContainsFunc(p.VMACs, func(o net.HardwareAddr) bool { return slices.Equal(m, o) })
}

// neighbor finds the port of a neighbor and returns what is wrong with it.
func (k *checker) neighbor(n *Neighbor) (wrong string) {
	on := -1
	if n.named {
		if on = n.Port; on < 0 {
			return "" // no such port, reported as that
		}
	}
	if linkLocal(n.Addr) {
		if k.c.Ports[on].has(n.Addr) {
			wrong = fmt.Sprintf("neighbor %s is an address of %s itself", n.Addr, k.c.Ports[on].Name)
		}
	} else {
		n.Port, wrong = k.station("neighbor", n.Addr, on)
	}
	if wrong == "" && n.Port >= 0 && k.c.Ports[n.Port].ownMAC(n.MAC) {
		wrong = fmt.Sprintf("neighbor %s has the MAC address of %s itself", n.Addr, k.c.Ports[n.Port].Name)
	}
	return wrong
}

// station returns the port by which the station with address a is reached, -1
// if that is not known, and what is wrong with it. The line names port on,
// unless that is -1.
func (k *checker) station(what string, a netip.Addr, on int) (port int, wrong string) {
	if o, ok := k.own[a]; ok {
		return o, fmt.Sprintf("%s %s is an address of %s itself", what, a, k.c.Ports[o].Name)
	}
	n, port, ok := k.network(a)
	switch {
	case !ok && on < 0 && k.complete:
		return -1, fmt.Sprintf("%s %s is in no connected network: write on PORT if it is directly connected", what, a)
	case !ok:
		return on, ""
	case on >= 0 && on != port:
		return on, fmt.Sprintf("%s %s is not on %s: its network %s is on %s", what, a, k.c.Ports[on].Name, n, k.c.Ports[port].Name)
	}
	if bad := syntax.NotHost(n, a); bad != "" {
		return port, fmt.Sprintf("%s %s is %s", what, a, bad)
	}
	return port, ""
}
