package rcconf

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
	"unique"

	"nmfwd/config"
	"nmfwd/config/foreign"
	"nmfwd/config/syntax"
)

// Import returns the routes.conf that the rc.conf(5) in data means: the
// addresses, static routes and static neighbors that FreeBSD would set up at
// boot. Data may also be sysrc(8) commands, several files one after another,
// and text between them; of two assignments the later counts. The result parses
// without errors. What cannot be translated is a comment in it and a warning
// with the place of the assignment.
//
// The error is an Errors: quotes that do not end, or no variable that matters.
func Import(name string, data []byte) (text []byte, warnings []syntax.Error, err error) {
	m := importer{file: unique.Make(name), src: strings.TrimPrefix(string(data), "\ufeff")}
	sh := shell{src: m.src, vars: make(map[string]*variable), warn: m.warnOff, fail: m.failOff}
	if i := strings.IndexByte(m.src, 0); i >= 0 {
		m.failOff(i, "a NUL byte: this is not a text file")
	} else {
		sh.run()
	}
	files := []unique.Handle[string]{m.file}
	if m.errs == nil {
		m.vars = sh.vars
		m.translate()
		if m.lines == nil && m.warnings == nil {
			m.failOff(0, "no variable of rc.conf(5) that sets up ports, routes or neighbors")
		}
	}
	if m.errs != nil {
		syntax.SortErrors(m.errs, files)
		return nil, nil, syntax.Errors(m.errs)
	}
	text = []byte(m.text())
	syntax.SortErrors(m.warnings, files)
	return text, m.warnings, nil
}

// An importer translates variables into lines.
type importer struct {
	file     unique.Handle[string]
	src      string
	vars     map[string]*variable
	lines    []importLine
	warnings []syntax.Error
	errs     []syntax.Error
	names    map[string]string // our names of ports by the system's, where they differ
}

// An importLine is a line of the result.
type importLine struct {
	text string
	off  int // of the assignment that it comes from
}

// place returns the place of an offset.
func (m *importer) place(off int) syntax.Pos {
	before := m.src[:off]
	return syntax.At(m.file, strings.Count(before, "\n")+1, off-strings.LastIndexByte(before, '\n'))
}

func (m *importer) warnOff(off int, msg string) {
	m.warnings = append(m.warnings, syntax.Error{Pos: m.place(off), Msg: msg})
}

func (m *importer) failOff(off int, msg string) {
	m.errs = append(m.errs, syntax.Error{Pos: m.place(off), Msg: msg})
}

// maxComment is the length up to which a line that turned out to be an error is
// shown in full.
const maxComment = 500

// skip says that part of a variable has no translation.
func (m *importer) skip(name string, why string) {
	v := m.vars[name]
	words := strings.Fields(v.value)
	for i := range words {
		if i > 0 && words[i-1] == "pass" {
			words[i] = "..." // the password of CARP
		}
	}
	m.warnOff(v.off, name+": "+why)
	m.lines = append(m.lines, importLine{fmt.Sprintf("# %s=%s: %s", name, syntax.Quote(strings.Join(words, " ")), why), v.off})
}

// add adds a line that comes from a variable.
func (m *importer) add(name, line string) {
	m.lines = append(m.lines, importLine{line, m.vars[name].off})
}

// section separates what follows from what was added before.
func (m *importer) section() {
	if n := len(m.lines); n > 0 && m.lines[n-1].text != "" {
		m.lines = append(m.lines, importLine{})
	}
}

// value returns the words of a variable, none if it is not set or its value is
// not known, which it says.
func (m *importer) value(name string) []string {
	v := m.vars[name]
	if v == nil {
		return nil
	}
	if v.wrong != "" {
		m.skip(name, v.wrong+" cannot be translated")
		return nil
	}
	if !utf8.ValidString(v.value) || strings.ContainsFunc(v.value, func(r rune) bool { return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0x7f || r == '#' }) {
		m.skip(name, "a character that no value has")
		return nil
	}
	return strings.Fields(v.value)
}

// translate makes the lines.
func (m *importer) translate() {
	m.names = make(map[string]string)
	m.ports()
	m.section()
	m.routes("static_routes", "route_", "defaultrouter", false)
	m.routes("ipv6_static_routes", "ipv6_route_", "ipv6_defaultrouter", true)
	m.section()
	m.stations("arp")
	m.stations("ndp")
}

// shellName returns a name as it stands in those of variables.
func shellName(s string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(".-/+:", r) {
			return '_'
		}
		return r
	}, s)
}

// An importPort is a device or a VLAN on one.
type importPort struct {
	name   string // the system's, as in variables
	conf   foreign.Ifconfig
	number int    // order
	from   string // variable that the line is said to come from
	dev    *importPort
}

// virtual are drivers whose ports have no rings of their own.
var virtual = []string{"lo", "gif", "gre", "tun", "tap", "bridge", "lagg", "wlan", "wg", "stf", "ipsec", "enc", "pflog", "pfsync", "vxlan", "me", "ng", "ovpn", "carp", "faith", "fwe", "usbus", "plip"}

// isVirtual reports whether a name is that of a port of one of the virtual
// drivers.
func isVirtual(port string) bool {
	return slices.Contains(virtual, strings.TrimRight(port, "0123456789"))
}

// isVLAN reports whether a name is that of a port of if_vlan(4).
func isVLAN(port string) bool {
	return strings.TrimRight(port, "0123456789") == "vlan"
}

// ports translates the variables of interfaces.
func (m *importer) ports() {
	ports := make(map[string]*importPort)
	get := func(name, from string) *importPort {
		p := ports[name]
		if p == nil {
			p = &importPort{name: name, number: len(ports), from: from}
			ports[name] = p
		}
		return p
	}
	names := slices.SortedFunc(maps.Keys(m.vars), func(a, b string) int { return cmp.Compare(m.vars[a].number, m.vars[b].number) })
	known := m.interfaces(names)
	for _, name := range names {
		kind, port, alias, ok := interfaceVariable(name, known)
		if !ok || kind == ignored {
			continue
		}
		words := m.value(name)
		switch {
		case port == "DEFAULT":
			m.skip(name, "each port needs a line of its own")
		case kind == prefixOf:
			m.skip(name, "the system makes the addresses from the MAC address: write them on the port line")
		case kind == clones:
			for _, s := range words {
				if dev, id, ok := dotted(s); ok && !isVirtual(dev) {
					m.vlan(get, get(dev, name), id, name)
				}
			}
		case isVirtual(port) || isVirtual(known[port]):
			m.virtual(name, port, words)
		case kind == vlansOf:
			dev := get(port, name)
			for _, v := range words {
				m.vlan(get, dev, v, name)
			}
		case kind == aliasOf && m.gap(name, alias):
			m.skip(name, "the system stops at the first number that is missing")
		case kind == createArgs && known[port] == "" && !slices.Contains(words, "vlandev"):
		default:
			conf := &get(port, name).conf
			conf.Parse(words)
			for _, why := range conf.Wrong {
				m.skip(name, why)
			}
			conf.Wrong = nil
		}
	}
	sorted := slices.SortedFunc(maps.Values(ports), func(a, b *importPort) int { return cmp.Compare(a.number, b.number) })
	var vlans []*importPort
	for _, p := range sorted {
		if p.dev == nil && p.conf.Dev != "" {
			p.dev = ports[shellName(p.conf.Dev)]
			if p.dev == nil {
				p.dev = &importPort{name: p.conf.Dev}
			}
		}
		switch {
		case p.dev != nil && p.conf.Tag == "":
			m.skip(p.from, p.name+" is a VLAN without an ID")
		case p.dev != nil:
			vlans = append(vlans, p)
			m.names[p.name] = p.dev.name + "." + p.conf.Tag
		case isVLAN(p.name):
			m.skip(p.from, p.name+" is a VLAN without a device")
		default:
			m.add(p.from, "port "+p.name+p.conf.Settings())
		}
	}
	for _, p := range vlans {
		if p.conf.MAC != "" {
			m.skip(p.from, "a VLAN has the MAC address of its device")
		}
		if p.conf.Kernel {
			m.skip(p.from, "a VLAN has no addr kernel: write its addresses")
			p.conf.Kernel = false
		}
		m.add(p.from, p.conf.VLAN(p.dev.name))
	}
}

// interfaces returns the device of each VLAN that a variable names, by the name
// that the VLAN has in those of variables: that of em0.5 is em0_5.
func (m *importer) interfaces(names []string) map[string]string {
	known := make(map[string]string)
	for _, n := range names {
		if dev, ok := strings.CutPrefix(n, "vlans_"); ok {
			for _, v := range strings.Fields(m.vars[n].value) {
				if syntax.AllDigits(v) {
					known[dev+"_"+v] = dev
				} else {
					known[shellName(v)] = dev
				}
			}
		}
	}
	if v := m.vars["cloned_interfaces"]; v != nil {
		for _, s := range strings.Fields(v.value) {
			if dev, id, ok := dotted(s); ok {
				known[dev+"_"+id] = dev
			}
		}
	}
	return known
}

// dotted splits the name of a VLAN such as em0.5 into those of its device, as
// in variables, and its ID.
func dotted(s string) (dev, id string, ok bool) {
	i := strings.LastIndexByte(s, '.')
	if i <= 0 || !syntax.AllDigits(s[i+1:]) {
		return "", "", false
	}
	return shellName(s[:i]), s[i+1:], true
}

// Kinds of variables of interfaces.
const (
	ignored = iota
	ifconfigOf
	ipv6Of
	aliasOf
	addrsOf
	vlansOf
	createArgs
	prefixOf
	clones
)

// interfaceVariable tells what a variable says of which interface.
func interfaceVariable(name string, known map[string]string) (kind int, port string, alias int, ok bool) {
	for _, p := range []struct {
		prefix string
		kind   int
	}{{"vlans_", vlansOf}, {"create_args_", createArgs}, {"ipv4_addrs_", addrsOf}, {"ipv6_addrs_", addrsOf}, {"ipv6_prefix_", prefixOf}} {
		if port, ok := strings.CutPrefix(name, p.prefix); ok && port != "" {
			return p.kind, port, 0, true
		}
	}
	if name == "cloned_interfaces" {
		return clones, "", 0, true
	}
	kind = ifconfigOf
	port, ok = strings.CutPrefix(name, "ipv6_ifconfig_")
	if ok {
		kind = ipv6Of
	} else if port, ok = strings.CutPrefix(name, "ifconfig_"); !ok {
		return 0, "", 0, false
	}
	if known[port] != "" {
		return kind, port, 0, port != ""
	}
	for _, s := range []struct {
		suffix string
		kind   int
	}{{"_ipv6", ipv6Of}, {"_aliases", ifconfigOf}, {"_name", ignored}, {"_descr", ignored}, {"_vlans", vlansOf}} {
		if base, ok := strings.CutSuffix(port, s.suffix); ok && base != "" {
			return s.kind, base, 0, true
		}
	}
	if i := strings.LastIndex(port, "_alias"); i > 0 && syntax.AllDigits(port[i+6:]) {
		n, err := strconv.Atoi(port[i+6:])
		return aliasOf, port[:i], n, err == nil
	}
	return kind, port, 0, port != ""
}

// gap reports whether a variable of the same kind with a lower number is
// missing.
func (m *importer) gap(name string, n int) bool {
	base := strings.TrimRight(name, "0123456789")
	for i := range min(n, len(m.vars)) {
		if m.vars[base+strconv.Itoa(i)] == nil {
			return true
		}
	}
	return n > len(m.vars)
}

// virtual says that a port without rings is left out, unless it is the loopback
// port with its usual addresses.
func (m *importer) virtual(name, port string, words []string) {
	var f foreign.Ifconfig
	f.Parse(words)
	usual := f.Wrong == nil
	for _, a := range f.Addrs {
		usual = usual && a.Addr().IsLoopback()
	}
	if port != "lo0" || !usual {
		m.skip(name, port+" is not a port with rings")
	}
}

// vlan adds VLAN v of a device, a number or a name.
func (m *importer) vlan(get func(name, from string) *importPort, dev *importPort, v, from string) {
	name := shellName(v)
	if syntax.AllDigits(v) {
		name = dev.name + "_" + v
	}
	p := get(name, from)
	p.dev, p.from = dev, from
	if syntax.AllDigits(v) {
		p.conf.Tag = v
	} else if args := "create_args_" + name; m.vars[args] != nil {
		p.from = args
	}
}

// portNamed returns our name of the system's port s.
func (m *importer) portNamed(s string) string {
	if n, ok := m.names[shellName(s)]; ok {
		return n
	}
	return s
}

// rename replaces in a line the system's names of ports by ours.
func (m *importer) rename(line string) string {
	f := strings.Split(line, " ")
	for i, w := range f {
		if host, zone, ok := strings.Cut(w, "%"); ok {
			f[i] = host + "%" + m.portNamed(zone)
		} else if i > 0 && f[i-1] == "on" {
			f[i] = m.portNamed(w)
		}
	}
	return strings.Join(f, " ")
}

// list returns the names that a variable lists, without the port with which
// one is set up, as in NAME:PORT.
func (m *importer) list(name string) []string {
	words := m.value(name)
	if len(words) == 1 && strings.EqualFold(words[0], "no") {
		return nil
	}
	for i := range words {
		words[i], _, _ = strings.Cut(words[i], ":")
	}
	return words
}

// routes translates the routes of a family: those that a list names, then the
// default route.
func (m *importer) routes(list, prefix, gateway string, ipv6 bool) {
	for _, n := range m.list(list) {
		name := prefix + shellName(n)
		if m.vars[name] == nil {
			m.warnOff(m.vars[list].off, fmt.Sprintf("%s: %s is not set", list, name))
			continue
		}
		// One variable may have several routes with an ampersand between.
		var args []string
		for _, w := range append(m.value(name), "&") {
			if w != "&" {
				args = append(args, w)
			} else if args != nil {
				m.route(name, args, ipv6)
				args = nil
			}
		}
	}
	if v := m.value(gateway); len(v) > 0 && !strings.EqualFold(v[0], "no") {
		m.route(gateway, append([]string{"default"}, v...), ipv6)
	}
	fib := gateway + "_fib"
	for _, name := range slices.Sorted(maps.Keys(m.vars)) {
		if strings.HasPrefix(name, fib) {
			m.skip(name, "there is only routing table 0")
		}
	}
}

// route adds one route.
func (m *importer) route(name string, args []string, ipv6 bool) {
	line, err := foreign.RouteLine(args, ipv6)
	if err != nil {
		m.skip(name, err.Error())
		return
	}
	m.add(name, m.rename(line))
}

// stations translates the static neighbors of a protocol.
func (m *importer) stations(kind string) {
	list := "static_" + kind + "_pairs"
	for _, n := range m.list(list) {
		name := "static_" + kind + "_" + shellName(n)
		if m.vars[name] == nil {
			m.warnOff(m.vars[list].off, fmt.Sprintf("%s: %s is not set", list, name))
			continue
		}
		args := m.value(name)
		if args == nil {
			continue
		}
		line, err := foreign.StationLine(kind, args)
		if err != nil {
			m.skip(name, err.Error())
			continue
		}
		m.add(name, m.rename(line))
	}
}

// text returns the lines, of which those are comments that would be errors:
// a gateway on a port that has no translation, for example.
func (m *importer) text() string {
	for {
		var b strings.Builder
		for _, l := range m.lines {
			b.WriteString(l.text + "\n")
		}
		text := strings.TrimLeft(strings.TrimRight(b.String(), "\n")+"\n", "\n")
		_, err := config.Parse("routes.conf", []byte(text))
		var errs syntax.Errors
		if !errors.As(err, &errs) {
			return text
		}
		for _, e := range errs {
			l := &m.lines[e.Pos.Line()-1]
			if !strings.HasPrefix(l.text, "#") {
				m.warnOff(l.off, e.Msg)
				if len(l.text) > maxComment {
					l.text = syntax.Quote(l.text)
				}
				l.text = "# " + l.text + ": " + e.Msg
			}
		}
	}
}
