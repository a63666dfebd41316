package config

import (
	"fmt"
	"strings"
)

// String returns the configuration as one routes.conf that reads the same:
// without comments, includes and what is the default. Addresses that Resolve
// has added are left out.
func (c *Config) String() string {
	var b strings.Builder
	for i := range c.Devices() {
		c.writePort(&b, &c.Ports[i])
	}
	for i := range c.VLANs {
		c.writeVLAN(&b, &c.VLANs[i])
	}
	for i := range c.Routes {
		c.writeRoute(&b, &c.Routes[i])
	}
	for _, n := range c.Neighbors {
		fmt.Fprintf(&b, "%s %s %s", protocol(n.Addr), n.Addr, n.MAC)
		if n.named && n.Port >= 0 {
			fmt.Fprintf(&b, " on %s", c.Ports[n.Port].Name)
		}
		b.WriteByte('\n')
	}
	if c.Metrics != "" {
		fmt.Fprintf(&b, "listen metrics %s\n", c.Metrics)
	}
	if c.Control != "" {
		fmt.Fprintf(&b, "listen control %s\n", c.Control)
	}
	usual := defaults()
	for i, o := range options {
		if v := o.print(&c.Options); c.Options.at[i].Valid() || v != o.print(&usual) {
			fmt.Fprintf(&b, "option %s %s\n", o.name, v)
		}
	}
	return b.String()
}

func (c *Config) writePort(b *strings.Builder, p *Port) {
	fmt.Fprintf(b, "port %s", p.Name)
	c.writeAddrs(b, p)
	if p.MTU > 0 {
		fmt.Fprintf(b, " mtu %d", p.MTU)
	}
	if p.MAC != nil {
		fmt.Fprintf(b, " mac %s", p.MAC)
	}
	for _, m := range p.VMACs {
		fmt.Fprintf(b, " vmac %s", m)
	}
	if !p.Host {
		b.WriteString(" host off")
	}
	if p.Queues > 0 {
		fmt.Fprintf(b, " queues %d", p.Queues)
	}
	if p.Driver != "" {
		fmt.Fprintf(b, " driver %s", p.Driver)
	}
	if p.OffloadKeep {
		b.WriteString(" offload keep")
	}
	if p.URPF != URPFOff {
		fmt.Fprintf(b, " urpf %s", p.URPF)
	}
	b.WriteByte('\n')
}

func (c *Config) writeAddrs(b *strings.Builder, p *Port) {
	for _, a := range p.Addrs[:len(p.at)] {
		fmt.Fprintf(b, " %s", a)
	}
	if p.AddrKernel {
		b.WriteString(" addr kernel")
	}
}

func (c *Config) writeVLAN(b *strings.Builder, v *VLAN) {
	p, parent := &c.Ports[v.Port], &c.Ports[v.Parent]
	fmt.Fprintf(b, "vlan %d on %s", v.ID, parent.Name)
	c.writeAddrs(b, p)
	if p.MTU > 0 && p.MTU != parent.MTU {
		fmt.Fprintf(b, " mtu %d", p.MTU)
	}
	if v.PCP != KeepPCP {
		fmt.Fprintf(b, " pcp %d", v.PCP)
	}
	b.WriteByte('\n')
}

func (c *Config) writeRoute(b *strings.Builder, r *Route) {
	fmt.Fprintf(b, "route %s", r.Prefix)
	if r.Kind == Blackhole || r.Kind == Reject {
		fmt.Fprintf(b, " %s", r.Kind)
	}
	for _, h := range r.Hops {
		fmt.Fprintf(b, " via %s", h.Gateway)
		if linkLocal(h.Gateway) {
			fmt.Fprintf(b, "%%%s", c.Ports[h.Port].Name)
		}
	}
	if r.Port >= 0 {
		fmt.Fprintf(b, " on %s", c.Ports[r.Port].Name)
	}
	if r.MTU > 0 {
		fmt.Fprintf(b, " mtu %d", r.MTU)
	}
	b.WriteByte('\n')
}
