package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"nmfwd/config/syntax"
)

// This file reads arp, ndp, listen and option lines.

// neighbor reads: ( arp | ndp ) ADDRESS MAC [ on NAME ].
func (p *parser) neighbor() {
	kind := p.words[0].s
	if _, ok := p.argument(1, "an address"); !ok {
		return
	}
	a, on, ok := p.gateway(1)
	if !ok {
		return
	}
	if kind != protocol(a) {
		p.fail(1, fmt.Sprintf("%s is not an address for %s: write %s", a, kind, protocol(a)))
		return
	}
	if _, ok := p.argument(2, "a MAC address"); !ok {
		return
	}
	mac, wrong := syntax.MAC(p.words[2].s)
	if wrong != "" {
		p.fail(2, wrong)
		return
	}
	i := 3
	if p.word(i) == "on" {
		name, ok := p.argument(i+1, "a port")
		if !ok {
			return
		}
		id := p.ref(name, p.words[i+1].col)
		if on != noName && on != id {
			p.fail(i+1, fmt.Sprintf("neighbor %s%%%s is not on %s", a, p.list[on], p.list[id]))
			return
		}
		on = id
		i += 2
	}
	if !p.rest(i) {
		return
	}
	if linkLocal(a) && on == noName {
		p.fail(1, fmt.Sprintf("link-local neighbor %s needs its port: write on PORT", a))
		return
	}
	key := station{a, noName}
	if linkLocal(a) {
		key.on = int(on)
	}
	if j, ok := p.stations[key]; ok {
		o := &p.cfg.Neighbors[j]
		p.again(slices.Equal(mac, o.MAC) && int(on) == o.Port, kind+" "+a.String(), o.Pos)
		return
	}
	p.stations[key] = len(p.cfg.Neighbors)
	p.cfg.Neighbors = append(p.cfg.Neighbors, Neighbor{
		Addr: a, MAC: mac, Port: int(on), Pos: p.at(p.words[0].col),
		off: uint16(p.words[1].col - p.words[0].col), named: on != noName,
	})
}

// protocol returns the word for neighbors of the family of a.
func protocol(a netip.Addr) string {
	if a.Is4() {
		return "arp"
	}
	return "ndp"
}

// listen reads: listen ( metrics HOSTPORT | control PATH ).
func (p *parser) listen() {
	names := []string{"metrics", "control"}
	if _, ok := p.argument(1, "metrics or control"); !ok {
		return
	}
	var value *string
	var at *Pos
	var check func(string) string
	switch what := p.words[1].s; what {
	case "metrics":
		value, at, check = &p.cfg.Metrics, &p.cfg.metricsPos, hostPort
		if _, ok := p.argument(2, "an address and port, such as 127.0.0.1:9469"); !ok {
			return
		}
	case "control":
		value, at, check = &p.cfg.Control, &p.cfg.controlPos, socketPath
		if _, ok := p.argument(2, "a path"); !ok {
			return
		}
	default:
		p.unknown(1, "word", names)
		return
	}
	s := p.words[2].s
	if wrong := check(s); wrong != "" {
		p.fail(2, wrong)
		return
	}
	if !p.rest(3) {
		return
	}
	if at.Valid() {
		p.again(s == *value, "listen "+p.words[1].s, *at)
		return
	}
	*value, *at = strings.Clone(s), p.at(p.words[0].col)
}

// hostPort says what is wrong with s as an address and port to listen on. The
// host is an address, localhost, or empty for all addresses; port 0 lets the
// system choose.
func hostPort(s string) string {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		if a, err := netip.ParseAddr(s); err == nil && a.Is6() {
			port := "9469"
			i := strings.LastIndexByte(s, ':')
			if b, err := netip.ParseAddr(s[:i]); err == nil { // or without brackets
				a, port = b, s[i+1:]
			}
			return fmt.Sprintf("%s is not an address and port: write [%s]:%s", syntax.Quote(s), a, port)
		}
		return fmt.Sprintf("%s is not an address and port, such as 127.0.0.1:9469 or [::1]:9469", syntax.Quote(s))
	}
	if _, wrong := syntax.Number(port, 0, 65535); wrong != "" {
		return "the port " + wrong
	}
	if host == "" || host == "localhost" {
		return ""
	}
	if _, err := netip.ParseAddr(host); err != nil {
		if host == "*" {
			return fmt.Sprintf("%s: all addresses are written :%s", syntax.Quote(s), port)
		}
		return syntax.WrongAddress(host)
	}
	if strings.Contains(s, "[") != strings.Contains(host, ":") {
		return fmt.Sprintf("%s: write %s", syntax.Quote(s), net.JoinHostPort(host, port))
	}
	return ""
}

// socketPath says what is wrong with s as the path of a socket: sun_path has
// 104 bytes in the smaller of sys/un.h.
func socketPath(s string) string {
	const most = 103
	switch {
	case s[0] != '/':
		return fmt.Sprintf("%s is not an absolute path", syntax.Quote(s))
	case s[len(s)-1] == '/':
		return fmt.Sprintf("%s is a directory", syntax.Quote(s))
	case len(s) > most:
		return fmt.Sprintf("%s is longer than the %d bytes of a socket's path", syntax.Quote(s), most)
	}
	return ""
}

// option reads: option KEY VALUE.
func (p *parser) option() {
	if _, ok := p.argument(1, "a name"); !ok {
		return
	}
	i := slices.IndexFunc(options[:], func(o option) bool { return o.name == p.words[1].s })
	if i < 0 {
		p.unknown(1, "option", optionNames())
		return
	}
	if _, ok := p.argument(2, "a value"); !ok {
		return
	}
	o := &p.cfg.Options
	value := defaults()
	if wrong := options[i].parse(&value, p.words[2].s); wrong != "" {
		p.fail(2, wrong)
		return
	}
	if !p.rest(3) {
		return
	}
	if o.at[i].Valid() {
		p.again(options[i].print(&value) == options[i].print(o), "option "+options[i].name, o.at[i])
		return
	}
	options[i].parse(o, p.words[2].s)
	o.at[i] = p.at(p.words[0].col)
}
