package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"nmfwd/config/syntax"
)

// This file reads port and vlan lines.

// port reads: port NAME { addr | addr kernel | KEYWORD VALUE }.
func (p *parser) port() {
	if _, ok := p.argument(1, "a name"); !ok {
		p.noPort = true
		return
	}
	name := syntax.CanonicalName(p.words[1].s)
	port := Port{Host: true, Pos: p.at(p.words[0].col)}
	if syntax.NetmapOnly(name) || name != p.words[1].s {
		port.Driver = "netmap"
	}
	p.settings(&port, 2, nil)
	if wrong := syntax.PortName(name, port.Driver); wrong != "" {
		p.fail(1, wrong)
		p.noPort = true
		return
	}
	id := p.nameID(name)
	port.Name = p.list[id]
	if i := p.owner[id]; i == unset {
		p.owner[id] = int32(len(p.cfg.Ports))
		p.cfg.Ports = append(p.cfg.Ports, port)
	} else {
		same := samePort(&port, &p.cfg.Ports[i])
		p.noAddr = p.noAddr || !same // gateways may be right for either line
		p.again(same, "port "+port.Name, p.cfg.Ports[i].Pos)
	}
}

// again reports a line that sets what an earlier one has set: a warning where
// they say the same.
func (p *parser) again(same bool, what string, earlier Pos) {
	if same {
		p.warn(p.words[0].col, fmt.Sprintf("%s again, as at %s", what, earlier))
		return
	}
	p.errorAt(p.words[0].col, fmt.Sprintf("%s has another value at %s", what, earlier))
}

// vlanWords are the keywords of vlan lines.
var vlanWords = []string{"mtu", "pcp"}

// settings reads what follows the name on a port line, or on a vlan line if v
// is not nil, from word i on.
func (p *parser) settings(port *Port, i int, v *VLAN) {
	names := syntax.PortWords
	if v != nil {
		names = vlanWords
	}
	var seen []string
	for ; i < len(p.words); i++ {
		key := p.words[i].s
		if c := key[0]; c >= '0' && c <= '9' || strings.IndexByte(key, ':') >= 0 || strings.IndexByte(key, '/') >= 0 {
			p.portAddr(port, i)
			continue
		}
		if !slices.Contains(names, key) {
			p.noAddr = true
			p.unknown(i, "word", names)
			for i+1 < len(p.words) && !slices.Contains(names, p.words[i+1].s) && !strings.Contains(p.words[i+1].s, "/") {
				i++ // what belongs to the unknown word
			}
			continue
		}
		if key != "vmac" && slices.Contains(seen, key) {
			p.fail(i, fmt.Sprintf("%s twice on one line", key))
			i++
			continue
		}
		seen = append(seen, key)
		value, ok := p.argument(i+1, "a value")
		if !ok {
			return
		}
		i++
		if wrong := p.setting(port, v, key, value, i); wrong != "" {
			p.fail(i, wrong)
		}
	}
}

// setting stores the value of a keyword, word i, and returns what is wrong
// with it.
func (p *parser) setting(port *Port, v *VLAN, key, value string, i int) (wrong string) {
	var n int
	switch key {
	case "addr":
		if value != "kernel" {
			p.noAddr = true
			return fmt.Sprintf("%s after addr: only kernel is written so, an address stands alone", syntax.Quote(value))
		}
		port.AddrKernel = true
	case "mtu":
		port.MTU, wrong = syntax.Number(value, minMTU4, maxMTU)
		port.mtuAt = p.at(p.words[i].col)
	case "pcp":
		v.PCP, wrong = syntax.Number(value, 0, 7)
	case "mac":
		port.MAC, wrong = syntax.MAC(value)
	case "host":
		n, wrong = syntax.OneOf(value, []string{"on", "off"})
		port.Host = n == 0
	case "queues":
		port.Queues, wrong = syntax.Number(value, 1, maxQueues)
	case "driver":
		n, wrong = syntax.OneOf(value, Drivers)
		switch {
		case wrong != "":
		case port.Driver != "" && value != port.Driver:
			return fmt.Sprintf("driver %s: %s is a port of %s", value, syntax.Quote(p.words[1].s), port.Driver)
		default:
			port.Driver = Drivers[n]
		}
	case "offload":
		n, wrong = syntax.OneOf(value, []string{"off", "keep"})
		port.OffloadKeep = n == 1
	case "urpf":
		n, wrong = syntax.OneOf(value, urpfNames)
		port.URPF = URPF(n)
	case "vmac":
		var m net.HardwareAddr
		if m, wrong = syntax.MAC(value); wrong == "" {
			if slices.ContainsFunc(port.VMACs, func(o net.HardwareAddr) bool { return slices.Equal(o, m) }) {
				return fmt.Sprintf("vmac %s twice on one line", m)
			}
			port.VMACs = append(port.VMACs, m)
		}
	}
	return wrong
}

// portAddr adds word i to the port's addresses.
func (p *parser) portAddr(port *Port, i int) {
	a, wrong := syntax.PortAddress(p.words[i].s)
	if wrong == "" && slices.ContainsFunc(port.Addrs, func(o netip.Prefix) bool { return o.Addr() == a.Addr() }) {
		wrong = fmt.Sprintf("address %s twice on one line", a.Addr())
	}
	if wrong != "" {
		p.noAddr = true
		p.fail(i, wrong)
		return
	}
	port.Addrs = append(port.Addrs, a)
	port.at = append(port.at, p.at(p.words[i].col))
}

// vlan reads: vlan ID on NAME { addr | mtu N | pcp N }.
func (p *parser) vlan() {
	v := VLAN{PCP: KeepPCP, Pos: p.at(p.words[0].col)}
	port := Port{Host: true, Pos: v.Pos}
	id, ok := p.argument(1, "an ID")
	if !ok {
		p.noPort = true
		return
	}
	var wrong string
	if v.ID, wrong = syntax.Number(id, 1, syntax.MaxVLAN); wrong != "" {
		p.fail(1, "the VLAN ID "+wrong)
	}
	if p.word(2) != "on" {
		p.fail(2, "a vlan line reads: vlan ID on PORT")
		p.noPort = true
		return
	}
	name, ok := p.argument(3, "a port")
	if !ok {
		p.noPort = true
		return
	}
	p.settings(&port, 4, &v)
	if wrong != "" {
		p.noPort = true
		return
	}
	parent := p.ref(name, p.words[3].col)
	v.Parent = int(parent)
	n := p.nameID(fmt.Sprintf("%s.%d", p.list[parent], v.ID))
	port.Name = p.list[n]
	if i := p.owner[n]; i == unset {
		p.owner[n] = firstTag + int32(len(p.tags))
		p.tags = append(p.tags, port)
		p.cfg.VLANs = append(p.cfg.VLANs, v)
	} else {
		i -= firstTag // a device has no such name
		o := &p.cfg.VLANs[i]
		same := v.PCP == o.PCP && samePort(&port, &p.tags[i])
		p.noAddr = p.noAddr || !same
		p.again(same, "vlan "+port.Name, o.Pos)
	}
}

// samePort reports whether two lines set a port up alike.
func samePort(a, b *Port) bool {
	return a.AddrKernel == b.AddrKernel && a.MTU == b.MTU && a.Host == b.Host && a.Queues == b.Queues &&
		a.Driver == b.Driver && a.OffloadKeep == b.OffloadKeep && a.URPF == b.URPF &&
		slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.MAC, b.MAC) && sameMACs(a.VMACs, b.VMACs)
}

// sameMACs reports whether a and b list the same addresses.
func sameMACs(a, b []net.HardwareAddr) bool {
	return slices.EqualFunc(a, b, func(x, y net.HardwareAddr) bool { return slices.Equal(x, y) })
}
