package config

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"
	"unique"
)

// Bounds of the language.
const (
	maxLine   = 65535 // bytes
	maxVLAN   = 4094  // IEEE 802.1Q: 0 means no VLAN, 4095 is reserved
	maxQueues = 1024
	maxHops   = 64
	maxMTU    = 65535 // total length of RFC 791
	minMTU4   = 68    // RFC 791
	minMTU6   = 1280  // RFC 8200, section 5
)

// Parse reads the text of a routes.conf called name. It reads no other files:
// an include line is an error. Resolve has to be called if a port of the result
// has AddrKernel.
//
// The error is an Errors.
func Parse(name string, data []byte) (*Config, error) {
	p := newParser()
	p.text(name, string(data))
	return p.finish()
}

// A word is a part of a line between blanks.
type word struct {
	s   string
	col int // counted from 1
}

// A pending is a reference to a port before the line that sets it up.
type pending struct {
	id  int32
	pos Pos
}

// While a file is read, ports are known by the number of their name: the
// fields Port of Route and Hop, Parent of VLAN and Port of Neighbor hold it.
const (
	noName   = -1      // no port is named
	unset    = -1      // the name has no port
	firstTag = 1 << 24 // see parser.owner
)

// A parser reads one configuration.
type parser struct {
	cfg   *Config
	errs  []Error
	files []sourceFile // open include lines, outermost first; nil in Parse
	read  readings     // of files
	ctx   context.Context

	file  unique.Handle[string]
	line  int
	words []word
	col   int  // after the last word
	stop  bool // the line has had its one message

	strict bool // offer no conversion of lines of other tools

	names    map[string]int32 // number of a name
	list     []string         // name of a number
	owner    []int32          // index in Ports of a number's port; firstTag+i for that of VLANs[i]; or unset
	pending  []pending        // references to names that had no port yet
	tags     []Port           // ports of VLANs
	noPort   bool             // a port line has no readable name: references may be right
	noAddr   bool             // an address of a port was not readable: gateways may be right
	prefixes prefixIndex      // of Routes
	stations map[station]int  // index in Neighbors

	hops  []Hop         // of the current line
	slab  []Hop         // free hops
	slabs [][]Hop       // all hops handed out
	cache [512][2][]Hop // single gateways, the latest first
}

// station identifies a neighbor: on is the number of the port's name for a
// link-local address.
type station struct {
	addr netip.Addr
	on   int
}

func newParser() *parser {
	return &parser{
		cfg:      &Config{Options: defaults()},
		ctx:      context.Background(),
		names:    make(map[string]int32),
		stations: make(map[station]int),
	}
}

// class tells bytes apart: see split.
var class = func() (t [256]byte) {
	for i := range t {
		switch {
		case i == ' ' || i == '\t':
			t[i] = blank
		case i < ' ' || i == 0x7f:
			t[i] = control
		case i >= utf8.RuneSelf:
			t[i] = high
		}
	}
	t['#'] = comment
	return t
}()

const (
	plain = iota
	blank
	comment
	control
	high
)

// linesAtOnce are read before ctx is looked at: a part of a millisecond's.
const linesAtOnce = 256

// text reads the lines of a file.
func (p *parser) text(name, src string) {
	p.file = unique.Make(name)
	p.cfg.files = append(p.cfg.files, p.file)
	p.cfg.Routes = slices.Grow(p.cfg.Routes, strings.Count(src, "\nroute")+1)
	p.prefixes.grow(cap(p.cfg.Routes))
	p.line = 1
	if strings.HasPrefix(src, "\xff\xfe") || strings.HasPrefix(src, "\xfe\xff") {
		p.errorAt(1, "the file is UTF-16: save it as UTF-8")
		return
	}
	src = strings.TrimPrefix(src, "\ufeff")
	for ; src != ""; p.line++ {
		if p.line%linesAtOnce == 0 && p.ctx.Err() != nil {
			return
		}
		l := src
		if i := strings.IndexByte(src, '\n'); i >= 0 {
			l, src = src[:i], src[i+1:]
		} else {
			src = ""
		}
		if p.split(strings.TrimSuffix(l, "\r")) {
			p.directive()
		}
	}
}

// split cuts a line into words and reports whether there are any and all bytes
// may stand where they do.
func (p *parser) split(l string) bool {
	p.words = p.words[:0]
	p.stop = false
	if len(l) > maxLine {
		p.errorAt(1, fmt.Sprintf("the line is longer than %d bytes", maxLine))
		return false
	}
	start, end, ascii := -1, len(l), true
scan:
	for i := range len(l) {
		switch class[l[i]] {
		case plain:
			if start < 0 {
				start = i
			}
			continue
		case high:
			ascii = false
			if start < 0 {
				start = i
			}
			continue
		case control:
			p.badByte(l, i)
			return false
		case comment:
			end = i
			for j := i + 1; j < len(l); j++ {
				if class[l[j]] == control {
					p.badByte(l, j)
					return false
				}
			}
			break scan
		}
		if start >= 0 {
			p.words = append(p.words, word{l[start:i], start + 1})
			start = -1
		}
	}
	if start >= 0 {
		p.words = append(p.words, word{l[start:end], start + 1})
	}
	if len(p.words) == 0 {
		return false
	}
	last := p.words[len(p.words)-1]
	p.col = last.col + len(last.s)
	if !ascii {
		for _, w := range p.words {
			if !utf8.ValidString(w.s) {
				p.errorAt(w.col, fmt.Sprintf("%s is not UTF-8", quote(w.s)))
				return false
			}
		}
	}
	return true
}

// badByte reports the control character l[i].
func (p *parser) badByte(l string, i int) {
	if l[i] == 0 {
		p.errorAt(i+1, "a NUL byte: this is not a text file")
		return
	}
	p.errorAt(i+1, fmt.Sprintf("control character %q", l[i]))
}

// at returns the place of a column of the current line.
func (p *parser) at(col int) Pos { return pos(p.file, p.line, col) }

// errorAt adds an error of the current line.
func (p *parser) errorAt(col int, msg string) {
	p.errs = append(p.errs, Error{p.at(col), msg})
}

// warn adds a warning about the current line.
func (p *parser) warn(col int, msg string) {
	p.cfg.Warnings = append(p.cfg.Warnings, Error{p.at(col), msg})
}

// fail reports that word i is wrong, or missing if the line has no word i. A
// line in the manner of route(8), ifconfig(8) or arp(8) gets one message: how
// to write it here.
func (p *parser) fail(i int, msg string) {
	if p.stop {
		return
	}
	if j, line, err := convert(p.words); j >= 0 && !p.strict && (err != nil || readable(line)) {
		p.stop = true
		msg := quote(p.words[j].s) + " is not a word of this language"
		if err != nil {
			msg += ", and the line cannot be converted: " + err.Error()
		} else {
			msg += ": write " + line
		}
		p.errorAt(p.words[j].col, msg)
		return
	}
	col := p.col
	if i < len(p.words) {
		col = p.words[i].col
	}
	p.errorAt(col, msg)
}

// readable reports whether a line reads without an error of its own.
func readable(line string) bool {
	p := newParser()
	p.strict = true
	p.text("", line)
	return len(p.errs) == 0
}

// word returns word i, or "" behind the last.
func (p *parser) word(i int) string {
	if i < len(p.words) {
		return p.words[i].s
	}
	return ""
}

// argument returns word i, the value of the word before it. If there is none it
// reports that want is missing.
func (p *parser) argument(i int, want string) (string, bool) {
	if i < len(p.words) {
		return p.words[i].s, true
	}
	p.fail(i, fmt.Sprintf("%s without %s", p.words[i-1].s, want))
	return "", false
}

// rest reports word i as one too many, if there is one.
func (p *parser) rest(i int) bool {
	if i < len(p.words) {
		p.fail(i, fmt.Sprintf("unexpected %s at the end of the line", quote(p.words[i].s)))
		return false
	}
	return true
}

// unknown reports word i, which is none of names.
func (p *parser) unknown(i int, what string, names []string) {
	s := p.words[i].s
	msg := fmt.Sprintf("unknown %s %s", what, quote(s))
	if n, ok := nearest(s, names); ok {
		msg += ": did you mean " + n + "?"
	} else {
		msg += ": known are " + strings.Join(names, ", ")
	}
	p.fail(i, msg)
}

var directives = []string{"port", "vlan", "route", "arp", "ndp", "listen", "option", "include"}

// directive reads one line.
func (p *parser) directive() {
	switch p.words[0].s {
	case "route":
		p.route()
	case "port":
		p.port()
	case "vlan":
		p.vlan()
	case "arp", "ndp":
		p.neighbor()
	case "listen":
		p.listen()
	case "option":
		p.option()
	case "include":
		p.include()
	default:
		if name, _, value := assignment(p.words[0].s); relevant(name) || strings.HasPrefix(value, `"`) || p.words[0].s == "sysrc" {
			p.fail(0, "this is a line of rc.conf(5) or sysrc(8): nmfwd import rc.conf FILE translates it")
			return
		}
		p.unknown(0, "directive", directives)
	}
}

// nameID returns the number of a port's canonical name.
func (p *parser) nameID(name string) int32 {
	id, ok := p.names[name]
	if !ok {
		id = int32(len(p.list))
		name = strings.Clone(name) // not to keep the file
		p.names[name] = id
		p.list = append(p.list, name)
		p.owner = append(p.owner, unset)
	}
	return id
}

// ref returns the number of the port's name s, to which the line refers at
// column col.
func (p *parser) ref(s string, col int) int32 {
	id := p.nameID(canonicalName(s))
	if p.owner[id] == unset {
		p.pending = append(p.pending, pending{id, p.at(col)})
	}
	return id
}

// port reads: port NAME { addr | addr kernel | KEYWORD VALUE }.
func (p *parser) port() {
	if _, ok := p.argument(1, "a name"); !ok {
		p.noPort = true
		return
	}
	name := canonicalName(p.words[1].s)
	port := Port{Host: true, Pos: p.at(p.words[0].col)}
	if netmapOnly(name) || name != p.words[1].s {
		port.Driver = "netmap"
	}
	p.settings(&port, 2, nil)
	if wrong := portName(name, port.Driver); wrong != "" {
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

// Keywords of port and vlan lines.
var (
	portWords = []string{"addr", "mtu", "mac", "host", "queues", "driver", "offload", "urpf", "vmac"}
	vlanWords = []string{"mtu", "pcp"}
)

// settings reads what follows the name on a port line, or on a vlan line if v
// is not nil, from word i on.
func (p *parser) settings(port *Port, i int, v *VLAN) {
	names := portWords
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
			return fmt.Sprintf("%s after addr: only kernel is written so, an address stands alone", quote(value))
		}
		port.AddrKernel = true
	case "mtu":
		port.MTU, wrong = number(value, minMTU4, maxMTU)
		port.mtuAt = p.at(p.words[i].col)
	case "pcp":
		v.PCP, wrong = number(value, 0, 7)
	case "mac":
		port.MAC, wrong = macAddress(value)
	case "host":
		n, wrong = oneOf(value, []string{"on", "off"})
		port.Host = n == 0
	case "queues":
		port.Queues, wrong = number(value, 1, maxQueues)
	case "driver":
		n, wrong = oneOf(value, Drivers)
		switch {
		case wrong != "":
		case port.Driver != "" && value != port.Driver:
			return fmt.Sprintf("driver %s: %s is a port of %s", value, quote(p.words[1].s), port.Driver)
		default:
			port.Driver = Drivers[n]
		}
	case "offload":
		n, wrong = oneOf(value, []string{"off", "keep"})
		port.OffloadKeep = n == 1
	case "urpf":
		n, wrong = oneOf(value, urpfNames)
		port.URPF = URPF(n)
	case "vmac":
		var m net.HardwareAddr
		if m, wrong = macAddress(value); wrong == "" {
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
	a, wrong := portAddress(p.words[i].s)
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
	if v.ID, wrong = number(id, 1, maxVLAN); wrong != "" {
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

// gateway parses word i. A link-local address may name its port behind a
// percent sign; on is noName otherwise.
func (p *parser) gateway(i int) (a netip.Addr, on int32, ok bool) {
	on = noName
	s := p.words[i].s
	host := s
	percent := strings.IndexByte(s, '%')
	if percent >= 0 {
		host = s[:percent]
	}
	a, err := netip.ParseAddr(host)
	switch {
	case err != nil || a.Is4In6():
		p.fail(i, wrongAddress(s))
		return a, on, false
	case percent >= 0 && !linkLocal(a):
		p.fail(i, fmt.Sprintf("%s names a port, which only a link-local address needs: write %s", quote(s), a))
		return a, on, false
	case percent >= 0 && percent == len(s)-1:
		p.fail(i, fmt.Sprintf("%s names no port behind the percent sign", quote(s)))
		return a, on, false
	case percent >= 0:
		on = p.ref(s[percent+1:], p.words[i].col+percent+1)
	}
	if wrong := unusable(a); wrong != "" {
		p.fail(i, fmt.Sprintf("%s is %s, which no neighbor has", quote(s), wrong))
		return a, on, false
	}
	return a, on, true
}

// linkLocal reports whether a means nothing without a port. IPv4's own
// link-local addresses are looked up in the connected networks like others.
func linkLocal(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

// route reads: route DESTINATION ( GW | { via GW } [ on NAME ] | on NAME |
// blackhole | reject ) [ mtu N ].
func (p *parser) route() {
	dst, ok := p.argument(1, "a destination")
	if !ok {
		return
	}
	r := Route{Pos: p.at(p.words[0].col), Port: noName}
	isDefault := dst == "default"
	if !isDefault {
		if r.Prefix, ok = p.destination(dst); !ok {
			return
		}
	}
	p.hops = p.hops[:0]
	i := 2
	switch p.word(i) {
	case "":
		p.fail(i, "a route needs a gateway (via ADDRESS), a port (on PORT), blackhole or reject")
		return
	case "blackhole":
		r.Kind = Blackhole
		i++
	case "reject":
		r.Kind = Reject
		i++
	case "via":
		for p.word(i) == "via" {
			i++
			if _, ok := p.argument(i, "a gateway"); !ok || !p.hop(i) {
				return
			}
			i++
		}
	case "on":
		r.Kind = OnLink
	default:
		if !p.gatewayLike(i) {
			p.unknown(i, "word", []string{"via", "on", "blackhole", "reject"})
			return
		}
		if !p.hop(i) {
			return
		}
		i++
	}
	if p.word(i) == "on" && (r.Kind == Via || r.Kind == OnLink) {
		name, ok := p.argument(i+1, "a port")
		if !ok {
			return
		}
		r.Port = p.ref(name, p.words[i+1].col)
		i += 2
	}
	mtuAt := i
	if p.word(i) == "mtu" {
		s, ok := p.argument(i+1, "a value")
		if !ok {
			return
		}
		mtu, wrong := number(s, minMTU4, maxMTU)
		if wrong != "" {
			p.fail(i+1, "the MTU "+wrong)
			return
		}
		r.MTU = uint16(mtu)
		i += 2
	}
	if !p.rest(i) {
		return
	}
	if isDefault {
		switch {
		case r.Kind == OnLink:
			p.fail(1, fmt.Sprintf("default on %s has no family: write 0.0.0.0/0 or ::/0", p.list[r.Port]))
			return
		case r.Kind == Via && p.hops[0].Gateway.Is6():
			r.Prefix = defaultV6
		default:
			r.Prefix = defaultV4
		}
	}
	if r.MTU > 0 {
		switch {
		case r.Kind == Blackhole || r.Kind == Reject:
			p.warn(p.words[mtuAt].col, fmt.Sprintf("the MTU has no effect on a %s route", r.Kind))
		case r.Prefix.Addr().Is6() && r.MTU < minMTU6:
			p.fail(mtuAt+1, fmt.Sprintf("MTU %d is less than the %d that IPv6 needs", r.MTU, minMTU6))
			return
		}
	}
	if r.Kind == Via && !p.settleHops(&r) {
		return
	}
	r.Hops = p.share(p.hops)
	p.addRoute(r)
	if isDefault && r.Kind != Via {
		r.Prefix = defaultV6
		p.addRoute(r)
	}
}

var (
	defaultV4 = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	defaultV6 = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
)

// gatewayLike reports whether word i is meant as an address, whether or not it
// is one.
func (p *parser) gatewayLike(i int) bool {
	s := p.words[i].s
	return strings.ContainsAny(s, ".:%") || s[0] >= '0' && s[0] <= '9'
}

// destination parses the second word of a route line.
func (p *parser) destination(s string) (netip.Prefix, bool) {
	if strings.IndexByte(s, '/') >= 0 {
		pfx, wrong := prefix(s)
		if wrong != "" {
			p.fail(1, wrong)
			return pfx, false
		}
		return pfx, true
	}
	a, wrong := address(s)
	switch {
	case wrong != "":
		p.fail(1, wrong)
		return netip.Prefix{}, false
	case a.IsUnspecified():
		p.fail(1, fmt.Sprintf("%s is no host: write default or %s/0", a, a))
		return netip.Prefix{}, false
	}
	return hostPrefix(a), true
}

// hop adds the gateway in word i to those of the line.
func (p *parser) hop(i int) bool {
	if len(p.hops) == maxHops {
		p.fail(i, fmt.Sprintf("more than %d gateways", maxHops))
		return false
	}
	a, on, ok := p.gateway(i)
	if !ok {
		return false
	}
	if len(p.hops) > 0 && p.hops[0].Gateway.Is4() != a.Is4() {
		p.fail(i, fmt.Sprintf("gateways %s and %s are of two families", p.hops[0].Gateway, a))
		return false
	}
	p.hops = append(p.hops, Hop{a, on, uint16(p.words[i].col - p.words[0].col)})
	return true
}

// settleHops checks the gateways of the line against the rest of it, and gives
// them the port that the line names.
func (p *parser) settleHops(r *Route) bool {
	wrong := func(h *Hop, format string, args ...any) bool {
		col := p.words[0].col + int(h.off)
		p.fail(slices.IndexFunc(p.words, func(w word) bool { return w.col == col }), fmt.Sprintf(format, args...))
		return false
	}
	zoned := true
	for i := range p.hops {
		h := &p.hops[i]
		local := linkLocal(h.Gateway)
		zoned = zoned && local
		switch {
		case h.Gateway.Is4() != r.Prefix.Addr().Is4():
			return wrong(h, "gateway %s is of another family than %s", h.Gateway, r.Prefix)
		case local && h.Port == noName && r.Port == noName:
			return wrong(h, "link-local gateway %s needs its port: write %s%%PORT", h.Gateway, h.Gateway)
		case h.Port != noName && r.Port != noName && h.Port != r.Port:
			return wrong(h, "gateway %s%%%s is not on %s", h.Gateway, p.list[h.Port], p.list[r.Port])
		case h.Port == noName:
			h.Port = r.Port
		}
	}
	if zoned {
		r.Port = noName // each gateway has it
	}
	return true
}

// share returns hops in memory that routes share. A single gateway is found
// again in a small cache: most tables have few.
func (p *parser) share(hops []Hop) []Hop {
	if len(hops) == 0 {
		return nil
	}
	var set *[2][]Hop
	if len(hops) == 1 {
		h := &hops[0]
		b := h.Gateway.As16()
		k := (binary.LittleEndian.Uint64(b[8:]) ^ binary.LittleEndian.Uint64(b[:8]) ^ uint64(h.off)) * 0x9e3779b97f4a7c15
		set = &p.cache[k>>32%uint64(len(p.cache))]
		for _, s := range set {
			if len(s) == 1 && s[0] == *h {
				return s
			}
		}
	}
	n := len(hops)
	if len(p.slab) < n {
		p.slab = make([]Hop, maxHops<<min(7, len(p.slabs)))
		p.slabs = append(p.slabs, p.slab)
	}
	s := p.slab[:n:n]
	p.slab = p.slab[n:]
	copy(s, hops)
	if set != nil {
		set[0], set[1] = s, set[0]
	}
	return s
}

// addRoute adds a route unless its prefix has one.
func (p *parser) addRoute(r Route) {
	if i, ok := p.prefixes.add(r.Prefix, p.cfg.Routes); ok {
		o := &p.cfg.Routes[i]
		same := r.Kind == o.Kind && r.Port == o.Port && r.MTU == o.MTU && sameHops(r.Hops, o.Hops)
		p.again(same, "route "+r.Prefix.String(), o.Pos)
		return
	}
	if neverForwarded(r.Prefix) {
		p.warn(p.words[1].col, fmt.Sprintf("route %s has no effect: packets for it are never forwarded", r.Prefix))
	}
	p.cfg.Routes = append(p.cfg.Routes, r)
}

// sameHops reports whether a and b are the same gateways as often in any order.
func sameHops(a, b []Hop) bool {
	if len(a) != len(b) {
		return false
	}
	times := func(hops []Hop, h Hop) (n int) {
		for _, o := range hops {
			if h.Gateway == o.Gateway && h.Port == o.Port {
				n++
			}
		}
		return n
	}
	for _, h := range a {
		if times(a, h) != times(b, h) {
			return false
		}
	}
	return true
}

// A prefixIndex finds the index of a route by its prefix: an open hash table
// that costs a million routes 16 MB.
type prefixIndex struct {
	slots []uint64 // hash, of which the upper half is kept, and index+1; 0 for empty
	n     int      // slots in use
}

// grow makes place for n routes; the routes so far have to be added again.
func (x *prefixIndex) grow(n int) {
	if size := 1 << bits.Len(uint(2*max(n, 32)-1)); size > len(x.slots) {
		x.slots = make([]uint64, size)
		x.n = 0
	}
}

// add returns the index of the route for pfx among routes and true, or adds
// len(routes) and returns false.
func (x *prefixIndex) add(pfx netip.Prefix, routes []Route) (int, bool) {
	if 2*len(routes) >= len(x.slots) {
		x.grow(2 * (len(routes) + 1))
	}
	for x.n < len(routes) {
		s, h := x.find(routes[x.n].Prefix, routes)
		x.n++
		*s = h | uint64(x.n)
	}
	s, h := x.find(pfx, routes)
	if *s != 0 {
		return int(uint32(*s)) - 1, true
	}
	x.n++
	*s = h | uint64(x.n)
	return 0, false
}

// find returns the slot of pfx, empty or not, and the part of the hash that
// belongs in it.
func (x *prefixIndex) find(pfx netip.Prefix, routes []Route) (slot *uint64, hash uint64) {
	b := pfx.Addr().As16()
	h := binary.LittleEndian.Uint64(b[:8])*0x9e3779b97f4a7c15 + uint64(pfx.Bits())
	h = (bits.RotateLeft64(h, 32) ^ binary.LittleEndian.Uint64(b[8:])) * 0xd6e8feb86659fd93
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	hash = h &^ (1<<32 - 1)
	mask := uint64(len(x.slots) - 1)
	for i := h >> 32; ; i++ {
		s := &x.slots[i&mask]
		if *s == 0 || *s&^(1<<32-1) == hash && routes[uint32(*s)-1].Prefix == pfx {
			return s, hash
		}
	}
}

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
	mac, wrong := macAddress(p.words[2].s)
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
			return fmt.Sprintf("%s is not an address and port: write [%s]:%s", quote(s), a, port)
		}
		return fmt.Sprintf("%s is not an address and port, such as 127.0.0.1:9469 or [::1]:9469", quote(s))
	}
	if _, wrong := number(port, 0, 65535); wrong != "" {
		return "the port " + wrong
	}
	if host == "" || host == "localhost" {
		return ""
	}
	if _, err := netip.ParseAddr(host); err != nil {
		if host == "*" {
			return fmt.Sprintf("%s: all addresses are written :%s", quote(s), port)
		}
		return wrongAddress(host)
	}
	if strings.Contains(s, "[") != strings.Contains(host, ":") {
		return fmt.Sprintf("%s: write %s", quote(s), net.JoinHostPort(host, port))
	}
	return ""
}

// socketPath says what is wrong with s as the path of a socket: sun_path has
// 104 bytes in the smaller of sys/un.h.
func socketPath(s string) string {
	const most = 103
	switch {
	case s[0] != '/':
		return fmt.Sprintf("%s is not an absolute path", quote(s))
	case s[len(s)-1] == '/':
		return fmt.Sprintf("%s is a directory", quote(s))
	case len(s) > most:
		return fmt.Sprintf("%s is longer than the %d bytes of a socket's path", quote(s), most)
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

// finish turns names into ports and checks what no line alone shows.
func (p *parser) finish() (*Config, error) {
	c := p.cfg
	p.references()
	devices := len(c.Ports)
	index := func(id int32) int32 {
		if id == noName {
			return noName
		}
		i := p.owner[id]
		if i >= firstTag {
			i += int32(devices) - firstTag
		}
		return i
	}
	c.Ports = append(c.Ports, p.tags...)
	for i := range c.VLANs {
		p.settleVLAN(&c.VLANs[i], int(index(int32(c.VLANs[i].Parent))), devices+i)
	}
	for i := range c.Routes {
		c.Routes[i].Port = index(c.Routes[i].Port)
	}
	for _, s := range p.slabs {
		for i := range s {
			if s[i].Gateway.IsValid() {
				s[i].Port = index(s[i].Port)
			}
		}
	}
	for i := range c.Neighbors {
		c.Neighbors[i].Port = int(index(int32(c.Neighbors[i].Port)))
	}
	if o := &c.Options; o.CPUs != nil && o.Workers > len(o.CPUs) {
		at, _ := o.Set("workers")
		p.errs = append(p.errs, Error{at, fmt.Sprintf("%d workers, but option cpus has only %d", o.Workers, len(o.CPUs))})
	}
	if n := c.Options.Neighbors; len(c.Neighbors) > n {
		p.errs = append(p.errs, Error{c.Neighbors[n].Pos, fmt.Sprintf("%d neighbors, but option neighbors is %d", len(c.Neighbors), n)})
	}
	c.fromText = c.Warnings
	kernel := slices.ContainsFunc(c.Ports, func(p Port) bool { return p.AddrKernel })
	p.errs = append(p.errs, c.check(!kernel && !p.noAddr && !p.noPort)...)
	if len(p.errs) > 0 {
		sortErrors(p.errs, c.files)
		return nil, Errors(p.errs)
	}
	return c, nil
}

// references reports names that no line sets up.
func (p *parser) references() {
	var known []string
	for id, o := range p.owner {
		if o != unset {
			known = append(known, p.list[id])
		}
	}
	for _, r := range p.pending {
		if p.owner[r.id] != unset || p.noPort {
			continue
		}
		p.noAddr = true // what is on that port cannot be checked
		msg := "no port is called " + quote(p.list[r.id])
		if n, ok := nearest(p.list[r.id], known); ok {
			msg += ": did you mean " + n + "?"
		}
		p.errs = append(p.errs, Error{r.pos, msg})
	}
}

// settleVLAN sets what a VLAN and its port take from the device.
func (p *parser) settleVLAN(v *VLAN, parent, port int) {
	c := p.cfg
	v.Parent, v.Port = parent, port
	if parent < 0 {
		return
	}
	tag, dev := &c.Ports[port], &c.Ports[parent]
	if parent >= len(c.Ports)-len(c.VLANs) {
		p.errs = append(p.errs, Error{v.Pos, fmt.Sprintf("%s is a VLAN itself: a vlan line names a device", dev.Name)})
		return
	}
	tag.Host, tag.Driver = dev.Host, dev.Driver
	switch {
	case tag.MTU == 0:
		tag.MTU = dev.MTU
	case dev.MTU > 0 && tag.MTU > dev.MTU:
		p.errs = append(p.errs, Error{tag.mtuAt, fmt.Sprintf("MTU %d is more than the %d of %s", tag.MTU, dev.MTU, dev.Name)})
	}
}
