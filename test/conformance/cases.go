// Package conformance holds what a router has to do as a table of cases: frames
// that come in, frames that leave, counters that move, and the requirement of
// an RFC that this shows.
//
// The table is data, in testdata/*.txtar; Run runs it over any ports through the
// interface Router: in memory and over AF_XDP by the tests here, over netmap by
// those of test/netmap. The requirements are in testdata/requirements.txt;
// docs/conformance.md is made of both.
//
// # Files
//
// A file groups cases by topic. Its section config, if it has one, is the
// configuration of the cases behind it; c0.conf is that of all others. Sections
// called "config NAME" are configurations to be loaded by a case. $HOST in a
// configuration stands for on or off. Every other section is a case, called by
// the section's name:
//
//	-- ttl two --
//	rfc: 1812 5.3.1, 791 3.2/ttl
//	> A F4 ttl=2
//	  0200000000aa 020000000101 0800
//	  ...
//	< B forward 1
//	  ...
//	A forwarded{family="ipv4"} 1
//	host on: same
//
// The lines of a case are, in this order:
//
//	# text                     a comment
//	rfc: KEY, KEY ...          the requirements that it shows (see Requirement);
//	                           without it those of the file, which are stated like
//	                           this before its first section
//	only: host off             it means nothing where a host stack is
//	do: EVENT                  what happens before the frames come (see Event)
//	> PORT [xN] EXPR           a frame received, N times
//	< PORT [xN] EXPR           a frame that leaves
//	PORT counter{label="v"} N  a counter's difference; all others do not move
//	host on: same              with a host stack the outcome is the same,
//	host on: host              or the host gets all frames,
//	host on:                   or what follows: frames and counters as above
//	host rings: as off         where frames for the host come from a worker, as on
//	                           netmap, they are looked at before: the outcome is that
//	                           of host off,
//	host rings:                or what follows
//	then                       the next step begins: all lines from do: on again
//
// Each step is over, and compared, before the next one begins. No time passes
// but by the event wait.
//
// The indented lines after a frame are its bytes in hexadecimal, and those are
// what is sent and expected. 55*16 is 16 times 55. EXPR says the same again in
// readable form (see Build), or derives the frame from the Nth one received:
// "forward N", "fragment N FROM TO", "error N KIND", "echo_reply N". Both are compared with the bytes, so that a wrong byte is
// noticed; go test -update writes the bytes from them. "raw" has no other form
// than the bytes.
//
// Counters have the names of the metrics without nmfwd_ and _packets_total.
// receive, receive_bytes, transmit and transmit_bytes follow from the frames
// and are never written.
package conformance

import (
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/tools/txtar"
)

//go:embed testdata
var data embed.FS

// A Case is a row of the table.
type Case struct {
	Name    string   // file/section
	RFC     []string // keys of requirements
	Config  string   // routes.conf, with $HOST in it
	Router  string   // name of the configuration, which cases share
	OnlyOff bool     // it means nothing with host on
	Steps   []Step
}

// A Step is what happens at once.
type Step struct {
	Events []Event
	In     []Frame
	Off    Outcome // with host off
	On     Outcome // with host on
	Rings  Outcome // with host on, over host rings
}

// A Host says who takes what is not for forwarding.
type Host uint8

// The ways of a host.
const (
	HostOff   Host = iota // nmfwd itself
	HostFirst             // a host, which gets its frames before a worker sees them: AF_XDP
	HostRings             // a host, by rings that a worker writes: netmap
)

var hostNames = [...]string{"host off", "host on", "host rings"}

// String returns the name of h in names of tests.
func (h Host) String() string { return hostNames[h] }

// An Event happens between frames.
type Event struct {
	Kind   string
	Port   string        // of link_down, link_up and tx_full
	Wait   time.Duration // of wait
	Config string        // of reload, with $HOST in it
}

// The kinds of events.
const (
	Wait          = "wait"           // time passes
	LinkDown      = "link_down"      // a port loses its carrier
	LinkUp        = "link_up"        // a port has a carrier again
	TXFull        = "tx_full"        // a port's transmit ring is full
	ControlAsleep = "control_asleep" // punted packets wait until all frames are in
	Reload        = "reload"         // another configuration is loaded
	Start         = "start"          // the router starts anew: what it sends then belongs to the step
)

// A Frame is received or sent on a port.
type Frame struct {
	Port  string
	Times int    // how often it is received or sent
	Expr  string // the same in readable form
	Bytes []byte
}

// An Outcome is what becomes of the frames of a step.
type Outcome struct {
	Out      []Frame           // in order, for each port
	Counters map[string]uint64 // differences by "PORT counter{label="value"}"
}

// withHost returns a configuration with the host switched on or off.
func withHost(config string, h Host) string {
	v := "on"
	if h == HostOff {
		v = "off"
	}
	return strings.ReplaceAll(config, "$HOST", v)
}

// ConfigFor returns the configuration with the host switched on or off.
func (c *Case) ConfigFor(h Host) string { return withHost(c.Config, h) }

// frames returns the frames received in all steps.
func (c *Case) frames() []Frame {
	var in []Frame
	for i := range c.Steps {
		in = append(in, c.Steps[i].In...)
	}
	return in
}

// Links returns the ports whose links go down in the case, each once.
func (c *Case) Links() []string {
	var ports []string
	for _, s := range c.Steps {
		for _, e := range s.Events {
			if e.Kind == LinkDown && !slices.Contains(ports, e.Port) {
				ports = append(ports, e.Port)
			}
		}
	}
	return ports
}

// breaks reports whether the case leaves a router other than it was.
func (c *Case) breaks() bool {
	return slices.ContainsFunc(c.Steps, func(s Step) bool {
		return slices.ContainsFunc(s.Events, func(e Event) bool { return e.Kind != Wait && e.Kind != Start })
	})
}

// Outcome returns the outcome with a host or without.
func (s *Step) Outcome(h Host) *Outcome {
	return [...]*Outcome{&s.Off, &s.On, &s.Rings}[h]
}

// All returns the whole table.
func All() ([]Case, error) {
	names, err := fs.Glob(data, "testdata/*.txtar")
	if err != nil {
		return nil, err
	}
	conf, err := data.ReadFile("testdata/c0.conf")
	if err != nil {
		return nil, err
	}
	var all []Case
	for _, name := range names {
		b, err := data.ReadFile(name)
		if err != nil {
			return nil, err
		}
		cs, err := Parse(name, b, string(conf))
		if err != nil {
			return nil, err
		}
		all = append(all, cs...)
	}
	return all, nil
}

// Parse reads a file of cases. Config is the configuration of cases before the
// file's own. Errors name file, case and line.
func Parse(file string, b []byte, config string) ([]Case, error) {
	a := txtar.Parse(b)
	var rfc []string
	for line := range strings.Lines(string(a.Comment)) {
		if keys, ok := strings.CutPrefix(line, "rfc:"); ok {
			rfc = append(rfc, splitKeys(keys)...)
		}
	}
	configs := make(map[string]string)
	for _, f := range a.Files {
		if name, ok := strings.CutPrefix(f.Name, "config "); ok {
			configs[name] = string(f.Data)
		}
	}
	var all []Case
	router, configured := "c0", 0
	topic := strings.TrimSuffix(path.Base(file), ".txtar")
	seen := make(map[string]bool)
	for _, f := range a.Files {
		switch {
		case f.Name == "config":
			config = string(f.Data)
			router = topic + strings.Repeat("'", configured)
			configured++
			continue
		case strings.HasPrefix(f.Name, "config "):
			continue
		case seen[f.Name]:
			return nil, fmt.Errorf("%s: %s: two cases of this name", file, f.Name)
		}
		seen[f.Name] = true
		p := parser{c: Case{Name: topic + "/" + f.Name, Config: config, Router: router}, configs: configs}
		if err := p.parse(string(f.Data)); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", file, f.Name, err)
		}
		if p.c.RFC == nil {
			p.c.RFC = rfc
		}
		all = append(all, p.c)
	}
	return all, nil
}

// splitKeys splits a list of requirements.
func splitKeys(s string) []string {
	var keys []string
	for k := range strings.SplitSeq(s, ",") {
		keys = append(keys, strings.Join(strings.Fields(k), " "))
	}
	return keys
}

// A parser reads the text of a case.
type parser struct {
	c       Case
	configs map[string]string // by name, for reloads

	step  *Step
	out   *Outcome // of step, that lines belong to
	frame *Frame   // whose bytes may follow
}

func (p *parser) parse(text string) error {
	p.begin()
	for n, line := range strings.Split(text, "\n") {
		rest, _, _ := strings.Cut(line, "#")
		if rest = strings.TrimRight(rest, " \t"); rest == "" {
			continue
		}
		if err := p.line(rest); err != nil {
			return fmt.Errorf("line %d: %w", n+1, err)
		}
	}
	return p.end()
}

// begin begins a step.
func (p *parser) begin() {
	p.c.Steps = append(p.c.Steps, Step{})
	p.step = &p.c.Steps[len(p.c.Steps)-1]
	p.out = &p.step.Off
	p.out.Counters = make(map[string]uint64)
	p.frame = nil
}

// end ends the step and checks that it is whole.
func (p *parser) end() error {
	if p.step.Rings.Counters == nil {
		p.step.Rings = Outcome{p.step.On.Out, maps.Clone(p.step.On.Counters)}
		for c, n := range p.step.Off.Counters { // what a worker gives to the host, control sees too
			if strings.Contains(c, " neighbor_conflicts{") {
				p.step.Rings.Counters[c] = n
			}
		}
	}
	switch {
	case len(p.step.In)+len(p.step.Events) == 0:
		return errors.New("no frame comes in and nothing happens")
	case p.out == &p.step.Off && !p.c.OnlyOff:
		return errors.New(`"host on:" is missing`)
	}
	return nil
}

func (p *parser) line(line string) (err error) {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "": // bytes
		if p.frame == nil {
			return errors.New("bytes without a frame")
		}
		b, err := parseHex(rest)
		p.frame.Bytes = append(p.frame.Bytes, b...)
		return err
	case "rfc:":
		p.c.RFC = append(p.c.RFC, splitKeys(rest)...)
	case "only:":
		if rest != "host off" || len(p.c.Steps) > 1 {
			return errors.New("only: want host off, in the first step")
		}
		p.c.OnlyOff = true
	case "do:":
		e, err := p.event(rest)
		p.step.Events = append(p.step.Events, e)
		return err
	case "then":
		if err := p.end(); err != nil {
			return err
		}
		p.begin()
	case ">":
		if p.out != &p.step.Off {
			return errors.New(`frames come in before "host on:"`)
		}
		p.frame, err = appendFrame(&p.step.In, rest)
	case "<":
		p.frame, err = appendFrame(&p.out.Out, rest)
	case "host":
		return p.host(rest)
	default:
		return p.counter(line)
	}
	return err
}

// event reads what is behind "do:".
func (p *parser) event(s string) (e Event, err error) {
	kind, arg, _ := strings.Cut(s, " ")
	e.Kind = kind
	switch kind {
	case Wait:
		if e.Wait, err = time.ParseDuration(arg); err == nil && e.Wait <= 0 {
			err = fmt.Errorf("wait %s: want a positive duration", arg)
		}
	case LinkDown, LinkUp, TXFull:
		if e.Port = arg; arg == "" {
			err = fmt.Errorf("%s: of which port?", kind)
		}
	case Reload:
		var ok bool
		if e.Config, ok = p.configs[arg]; !ok {
			err = fmt.Errorf("reload: no section called %q", "config "+arg)
		}
	case ControlAsleep, Start:
		if arg != "" {
			err = fmt.Errorf("%s: %q behind it", kind, arg)
		}
	default:
		err = fmt.Errorf("%q is no event", kind)
	}
	return e, err
}

// host reads what is behind "host".
func (p *parser) host(s string) error {
	if rings, ok := strings.CutPrefix(s, "rings:"); ok {
		if p.out != &p.step.On || rings != "" && rings != " as off" {
			return errors.New(`host rings: want "as off" or nothing, once behind host on`)
		}
		p.frame = nil
		if rings != "" {
			p.step.Rings = Outcome{p.step.Off.Out, maps.Clone(p.step.Off.Counters)}
		} else {
			p.step.Rings.Counters = make(map[string]uint64)
		}
		p.out = &p.step.Rings
		return nil
	}
	if p.out != &p.step.Off || p.c.OnlyOff {
		return errors.New("host on: not here")
	}
	on := &p.step.On
	on.Counters = make(map[string]uint64)
	switch s {
	case "on: same":
		on.Out = p.step.Off.Out
		on.Counters = maps.Clone(p.step.Off.Counters)
	case "on: host":
		for _, f := range p.step.In {
			on.Counters[f.Port+" to_host"] += uint64(f.Times)
		}
	case "on:":
	default:
		return errors.New(`"host on:" is followed by same, host or nothing`)
	}
	p.out, p.frame = on, nil
	return nil
}

func (p *parser) counter(line string) error {
	at := strings.LastIndexByte(line, ' ')
	if at < 0 || !strings.Contains(line[:at], " ") {
		return fmt.Errorf("%q is neither a frame nor a counter", line)
	}
	v, err := strconv.ParseUint(line[at+1:], 10, 64)
	if err != nil || v == 0 {
		return fmt.Errorf("counter %q: want a positive difference", line)
	}
	key := line[:at]
	if p.out.Counters[key] != 0 {
		return fmt.Errorf("counter %s: stated twice", key)
	}
	p.out.Counters[key] = v
	p.frame = nil
	return nil
}

// appendFrame reads a frame, but its bytes, and appends it to fs.
func appendFrame(fs *[]Frame, s string) (*Frame, error) {
	f, err := parseFrame(s)
	*fs = append(*fs, f)
	return &(*fs)[len(*fs)-1], err
}

func parseFrame(s string) (Frame, error) {
	port, expr, _ := strings.Cut(s, " ")
	f := Frame{Port: port, Times: 1, Expr: expr}
	if word, rest, _ := strings.Cut(expr, " "); len(word) > 1 && word[0] == 'x' {
		n, err := strconv.Atoi(word[1:])
		if err != nil || n < 1 {
			return f, fmt.Errorf("%q is no number of times", word)
		}
		f.Times, f.Expr = n, rest
	}
	if f.Expr == "" {
		return f, fmt.Errorf("frame without an expression: say raw")
	}
	return f, nil
}

// parseHex reads words of hexadecimal bytes, of which BYTE*N is N times BYTE.
func parseHex(s string) ([]byte, error) {
	var out []byte
	for _, w := range strings.Fields(s) {
		digits, times, repeated := strings.Cut(w, "*")
		b, err := hex.DecodeString(digits)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", w, err)
		}
		n := 1
		if repeated {
			if n, err = strconv.Atoi(times); err != nil || n < 1 || n > 1<<16 || len(b) != 1 {
				return nil, fmt.Errorf("%q: want BYTE*N", w)
			}
		}
		out = append(out, slices.Repeat(b, n)...)
	}
	return out, nil
}

// formatHex writes b such that parseHex reads it: a line per header, then lines
// of 32 bytes, with runs of 16 equal bytes and more folded.
func formatHex(b []byte) string {
	var s strings.Builder
	line := func(n int, cuts ...int) {
		n = min(n, len(b))
		if n == 0 {
			return
		}
		s.WriteString(" ")
		for at := 0; at < n; {
			end := n
			for _, c := range cuts {
				if c > at && c < end {
					end = c
				}
			}
			s.WriteString(" " + hex.EncodeToString(b[at:end]))
			at = end
		}
		s.WriteString("\n")
		b = b[n:]
	}
	kind := 0
	if len(b) >= 14 {
		kind = int(b[12])<<8 | int(b[13])
	}
	line(14, 6, 12)
	switch kind {
	case 0x0800:
		line(20, 2, 4, 6, 8, 10, 12, 16)
	case 0x86dd:
		line(40, 4, 6, 8, 24)
	case 0x0806:
		line(28, 8, 14, 18, 24)
	}
	for len(b) > 0 {
		run := 1
		for run < len(b) && b[run] == b[0] {
			run++
		}
		if run >= 16 {
			fmt.Fprintf(&s, "  %02x*%d\n", b[0], run)
			b = b[run:]
			continue
		}
		n := 1
		for n < min(32, len(b)) && !(n+16 <= len(b) && slices.Equal(b[n:n+16], slices.Repeat(b[n:n+1], 16))) {
			n++
		}
		line(n)
	}
	return s.String()
}
