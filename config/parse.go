package config

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"
	"unique"

	"nmfwd/config/foreign"
	"nmfwd/config/syntax"
)

// Bounds of the language.
const (
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
	if len(l) > syntax.MaxLine {
		p.errorAt(1, fmt.Sprintf("the line is longer than %d bytes", syntax.MaxLine))
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
				p.errorAt(w.col, fmt.Sprintf("%s is not UTF-8", syntax.Quote(w.s)))
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
func (p *parser) at(col int) Pos { return syntax.At(p.file, p.line, col) }

// errorAt adds an error of the current line.
func (p *parser) errorAt(col int, msg string) {
	p.errs = append(p.errs, Error{Pos: p.at(col), Msg: msg})
}

// warn adds a warning about the current line.
func (p *parser) warn(col int, msg string) {
	p.cfg.Warnings = append(p.cfg.Warnings, Error{Pos: p.at(col), Msg: msg})
}

// fail reports that word i is wrong, or missing if the line has no word i. A
// line in the manner of route(8), ifconfig(8) or arp(8) gets one message: how
// to write it here.
func (p *parser) fail(i int, msg string) {
	if p.stop {
		return
	}
	if j, line, err := foreign.Convert(p.lineWords()); j >= 0 && !p.strict && (err != nil || readable(line)) {
		p.stop = true
		msg := syntax.Quote(p.words[j].s) + " is not a word of this language"
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

// lineWords returns the words of the line.
func (p *parser) lineWords() []string {
	words := make([]string, len(p.words))
	for i := range words {
		words[i] = p.words[i].s
	}
	return words
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
		p.fail(i, fmt.Sprintf("unexpected %s at the end of the line", syntax.Quote(p.words[i].s)))
		return false
	}
	return true
}

// unknown reports word i, which is none of names.
func (p *parser) unknown(i int, what string, names []string) {
	s := p.words[i].s
	msg := fmt.Sprintf("unknown %s %s", what, syntax.Quote(s))
	if n, ok := syntax.Nearest(s, names); ok {
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
		if name, _, value := foreign.Assignment(p.words[0].s); foreign.Matters(name) || strings.HasPrefix(value, `"`) || p.words[0].s == "sysrc" {
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
	id := p.nameID(syntax.CanonicalName(s))
	if p.owner[id] == unset {
		p.pending = append(p.pending, pending{id, p.at(col)})
	}
	return id
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
		p.errs = append(p.errs, Error{Pos: at, Msg: fmt.Sprintf("%d workers, but option cpus has only %d", o.Workers, len(o.CPUs))})
	}
	if n := c.Options.Neighbors; len(c.Neighbors) > n {
		p.errs = append(p.errs, Error{Pos: c.Neighbors[n].Pos, Msg: fmt.Sprintf("%d neighbors, but option neighbors is %d", len(c.Neighbors), n)})
	}
	c.fromText = c.Warnings
	kernel := slices.ContainsFunc(c.Ports, func(p Port) bool { return p.AddrKernel })
	p.errs = append(p.errs, c.check(!kernel && !p.noAddr && !p.noPort)...)
	if len(p.errs) > 0 {
		syntax.SortErrors(p.errs, c.files)
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
		msg := "no port is called " + syntax.Quote(p.list[r.id])
		if n, ok := syntax.Nearest(p.list[r.id], known); ok {
			msg += ": did you mean " + n + "?"
		}
		p.errs = append(p.errs, Error{Pos: r.pos, Msg: msg})
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
		p.errs = append(p.errs, Error{Pos: v.Pos, Msg: fmt.Sprintf("%s is a VLAN itself: a vlan line names a device", dev.Name)})
		return
	}
	tag.Host, tag.Driver = dev.Host, dev.Driver
	switch {
	case tag.MTU == 0:
		tag.MTU = dev.MTU
	case dev.MTU > 0 && tag.MTU > dev.MTU:
		p.errs = append(p.errs, Error{Pos: tag.mtuAt, Msg: fmt.Sprintf("MTU %d is more than the %d of %s", tag.MTU, dev.MTU, dev.Name)})
	}
}
