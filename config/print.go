package config

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

// String returns the configuration as WriteTo writes it.
func (c *Config) String() string {
	var b strings.Builder
	c.WriteTo(&b)
	return b.String()
}

// WriteTo writes the configuration as one routes.conf that reads the same:
// without comments, includes and what is the default. Addresses that Resolve
// has added are left out.
func (c *Config) WriteTo(w io.Writer) (int64, error) {
	n := &countingWriter{w: w}
	b := bufio.NewWriter(n)
	for i := range c.Devices() {
		c.writePort(b, &c.Ports[i])
	}
	for i := range c.VLANs {
		c.writeVLAN(b, &c.VLANs[i])
	}
	var buf []byte
	for i := range c.Routes {
		buf = append(c.appendRoute(buf[:0], &c.Routes[i]), '\n')
		b.Write(buf)
	}
	for i := range c.Neighbors {
		n := &c.Neighbors[i]
		fmt.Fprintf(b, "%s %s %s", map[bool]string{true: "arp", false: "ndp"}[n.Addr.Is4()], n.Addr, n.MAC)
		if n.named && n.Port >= 0 {
			fmt.Fprintf(b, " on %s", c.Ports[n.Port].Name)
		}
		b.WriteByte('\n')
	}
	if c.Metrics != "" {
		fmt.Fprintf(b, "listen metrics %s\n", c.Metrics)
	}
	if c.Control != "" {
		fmt.Fprintf(b, "listen control %s\n", c.Control)
	}
	usual := defaults()
	for i, o := range options {
		if v := o.print(&c.Options); c.Options.at[i].Valid() || v != o.print(&usual) {
			fmt.Fprintf(b, "option %s %s\n", o.name, v)
		}
	}
	err := b.Flush()
	return n.n, err
}

// A countingWriter counts what it has written to w.
type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// fileAddrs returns the addresses that the file names.
func (p *Port) fileAddrs() []netip.Prefix {
	if p.AddrKernel {
		return p.Addrs[:len(p.at)]
	}
	return p.Addrs
}

func (c *Config) writePort(b *bufio.Writer, p *Port) {
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

func (c *Config) writeAddrs(b *bufio.Writer, p *Port) {
	for _, a := range p.fileAddrs() {
		fmt.Fprintf(b, " %s", a)
	}
	if p.AddrKernel {
		b.WriteString(" addr kernel")
	}
}

func (c *Config) writeVLAN(b *bufio.Writer, v *VLAN) {
	p, parent := &c.Ports[v.Port], &c.Ports[v.Parent]
	fmt.Fprintf(b, "vlan %d on %s", v.ID, parent.Name)
	c.writeAddrs(b, p)
	if p.MTU > 0 && p.MTU != parent.MTU {
		fmt.Fprintf(b, " mtu %d", p.MTU)
	}
	if v.PCP > 0 {
		fmt.Fprintf(b, " pcp %d", v.PCP)
	}
	b.WriteByte('\n')
}

// appendRoute appends the line of a route without its end.
func (c *Config) appendRoute(b []byte, r *Route) []byte {
	b = append(b, "route "...)
	b = r.Prefix.AppendTo(b)
	switch r.Kind {
	case Blackhole, Reject:
		b = append(b, ' ')
		b = append(b, r.Kind.String()...)
	}
	for i := range r.Hops {
		h := &r.Hops[i]
		b = append(b, " via "...)
		b = h.Gateway.AppendTo(b)
		if linkLocal(h.Gateway) {
			b = append(b, '%')
			b = append(b, c.Ports[h.Port].Name...)
		}
	}
	if r.Port >= 0 {
		b = append(b, " on "...)
		b = append(b, c.Ports[r.Port].Name...)
	}
	if r.MTU > 0 {
		b = append(b, " mtu "...)
		b = strconv.AppendUint(b, uint64(r.MTU), 10)
	}
	return b
}
