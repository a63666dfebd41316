// Package conformance holds the end-to-end table: what becomes of single frames.
//
// A case gives frames to a router and says which frames leave, and which
// counters move by how much, with `host off` and with `host on`. The table is
// data, in testdata/*.txtar; it runs over ports in memory here, and over any
// other ports through the interface Router.
//
// # Files
//
// A file groups cases by topic. Its section config, if it has one, is the
// configuration of the cases behind it; c0.conf is that of all others. $HOST in
// a configuration stands for on or off. Every other section is a case, called
// by the section's name:
//
//	-- ttl two --
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
//	setup: link_down B         what is broken (see Setup)
//	> PORT [xN] EXPR           a frame received, N times
//	< PORT EXPR                a frame that leaves
//	PORT counter{label="v"} N  a counter's difference; all others do not move
//	host on: same              with a host stack the outcome is the same,
//	host on: host              or the host gets all frames,
//	host on:                   or what follows: frames and counters as above
//
// The indented lines after a frame are its bytes in hexadecimal, and those are
// what is sent and expected. 55*16 is 16 times 55. EXPR says the same again in
// readable form (see Build), or is "forward N": the Nth frame received, as the
// RFCs say that a router sends it on (see Forwarded). Both are compared with
// the bytes, so that a wrong byte is noticed; go test -update writes the bytes
// from them. "raw" has no other form than the bytes.
//
// Counters have the names of the metrics without nmfwd_ and _packets_total.
// receive, receive_bytes, transmit and transmit_bytes follow from the frames
// and are never written.
package conformance

import (
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/txtar"
)

//go:embed testdata
var data embed.FS

// A Case is a row of the table.
type Case struct {
	Name   string // file/section
	Config string // routes.conf, with $HOST in it
	Setup  []Setup
	In     []Frame
	Off    Outcome // with host off
	On     Outcome // with host on
}

// A Setup is something that is broken before the frames come.
type Setup struct {
	Kind string // link_down, tx_full, or control_asleep: punted packets wait
	Port string
}

// A Frame is received or sent on a port.
type Frame struct {
	Port  string
	Times int    // how often it is received
	Expr  string // the same in readable form
	Bytes []byte
}

// An Outcome is what becomes of the frames of a case.
type Outcome struct {
	Out      []Frame           // in order, for each port
	Counters map[string]uint64 // differences by "PORT counter{label="value"}"
}

// ConfigFor returns the configuration with the host switched on or off.
func (c *Case) ConfigFor(host bool) string {
	v := "off"
	if host {
		v = "on"
	}
	return strings.ReplaceAll(c.Config, "$HOST", v)
}

// Outcome returns the outcome with the host switched on or off.
func (c *Case) Outcome(host bool) *Outcome {
	if host {
		return &c.On
	}
	return &c.Off
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
	var all []Case
	topic := strings.TrimSuffix(path.Base(file), ".txtar")
	seen := make(map[string]bool)
	for _, f := range txtar.Parse(b).Files {
		if f.Name == "config" {
			config = string(f.Data)
			continue
		}
		c := Case{Name: topic + "/" + f.Name, Config: config}
		if seen[f.Name] {
			return nil, fmt.Errorf("%s: %s: two cases of this name", file, f.Name)
		}
		seen[f.Name] = true
		if err := c.parse(string(f.Data)); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", file, f.Name, err)
		}
		all = append(all, c)
	}
	return all, nil
}

func (c *Case) parse(text string) error {
	c.Off.Counters = make(map[string]uint64)
	out := &c.Off
	var frame *Frame // whose bytes may follow
	for n, line := range strings.Split(text, "\n") {
		fail := func(format string, args ...any) error {
			return fmt.Errorf("line %d: %s", n+1, fmt.Sprintf(format, args...))
		}
		rest, _, _ := strings.Cut(line, "#")
		word, rest, _ := strings.Cut(strings.TrimRight(rest, " \t"), " ")
		switch {
		case word == "" && rest == "":
		case word == "":
			if frame == nil {
				return fail("bytes without a frame")
			}
			b, err := parseHex(rest)
			if err != nil {
				return fail("%v", err)
			}
			frame.Bytes = append(frame.Bytes, b...)
		case word == "setup:":
			kind, port, ok := strings.Cut(rest, " ")
			if !ok || kind != "link_down" && kind != "tx_full" && kind != "control_asleep" {
				return fail("setup is link_down, tx_full or control_asleep, and a port")
			}
			c.Setup = append(c.Setup, Setup{kind, port})
		case word == ">" && out == &c.Off:
			f, err := parseFrame(rest)
			if err != nil {
				return fail("%v", err)
			}
			c.In = append(c.In, f)
			frame = &c.In[len(c.In)-1]
		case word == "<":
			f, err := parseFrame(rest)
			if err != nil {
				return fail("%v", err)
			}
			out.Out = append(out.Out, f)
			frame = &out.Out[len(out.Out)-1]
		case word == "host" && out == &c.Off:
			out, frame = &c.On, nil
			switch rest {
			case "on: same":
				c.On.Out = c.Off.Out
				c.On.Counters = maps.Clone(c.Off.Counters)
			case "on: host":
				c.On.Counters = make(map[string]uint64)
				for _, f := range c.In {
					c.On.Counters[f.Port+" to_host"] += uint64(f.Times)
				}
			case "on:":
				c.On.Counters = make(map[string]uint64)
			default:
				return fail(`"host on:" is followed by same, host or nothing`)
			}
		default:
			at := strings.LastIndexByte(rest, ' ')
			if at < 0 {
				return fail("%q is neither a frame nor a counter", line)
			}
			v, err := strconv.ParseUint(rest[at+1:], 10, 64)
			if err != nil || v == 0 {
				return fail("counter %q: want a positive difference", rest)
			}
			key := word + " " + rest[:at]
			if out.Counters[key] != 0 {
				return fail("counter %s: stated twice", key)
			}
			out.Counters[key] = v
			frame = nil
		}
	}
	switch {
	case len(c.In) == 0:
		return fmt.Errorf("no frame comes in")
	case out == &c.Off:
		return fmt.Errorf(`"host on:" is missing`)
	}
	return nil
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
