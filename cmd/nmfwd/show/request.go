package show

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// version begins each request: another one means another protocol.
const version = "nmfwd/1"

// maxRequest is the longest request in bytes, with its end of line.
const maxRequest = 512

// Limits of Request.For.
const (
	minFor = time.Second
	maxFor = 24 * time.Hour
)

// Exit codes of sysexits(3) that an [Error] has.
const (
	CodeUsage       = 64 // the request is wrong
	CodeUnavailable = 69 // no nmfwd answers, or it cannot just now
	CodeSystem      = 71 // the system refused something, or a defect
	CodeNoPerm      = 77 // the socket is not ours to open
	CodeProtocol    = 78 // what answers speaks something else
)

// An Error is what a command ends with.
type Error struct {
	Code int // of sysexits(3)
	Text string
}

// Error returns the text.
func (e *Error) Error() string { return e.Text }

func usage(format string, args ...any) error {
	return &Error{CodeUsage, fmt.Sprintf(format, args...)}
}

// A Request asks for one answer.
type Request struct {
	Command string
	Arg     string        // a port, a prefix or an address; empty for none
	JSON    bool          // one JSON object a line
	Longer  bool          // of routes: those within the prefix too
	All     bool          // of counters and drops: those that are 0 too
	For     time.Duration // of unused: how long packets are watched
}

// A command is what can be asked for.
type command struct {
	arg   string // what its argument is, empty for none
	must  bool   // it has to be there
	flags []string
	run   func(*answer, *Request) error
}

var commands = map[string]command{
	"status":    {run: (*answer).status},
	"ports":     {arg: "port", run: (*answer).ports},
	"routes":    {arg: "prefix or address", flags: []string{"longer"}, run: (*answer).routes},
	"route":     {arg: "address", must: true, run: (*answer).route},
	"neighbors": {arg: "port", run: (*answer).neighbors},
	"counters":  {arg: "port", flags: []string{"all"}, run: (*answer).counters},
	"drops":     {arg: "port", flags: []string{"all"}, run: (*answer).drops},
	"workers":   {run: (*answer).workers},
	"unused":    {flags: []string{"for"}, run: (*answer).unused},
	"reload":    {run: (*answer).reload},
	"sync":      {run: (*answer).sync},
}

// ParseRequest reads a request without its end of line.
func ParseRequest(line string) (*Request, error) {
	for i := range len(line) {
		if line[i] < ' ' || line[i] > '~' {
			return nil, usage("request: byte %#x", line[i])
		}
	}
	words := strings.Fields(line)
	if len(words) == 0 || words[0] != version {
		return nil, &Error{CodeProtocol, "this nmfwd speaks " + version + ": use the program of the same release"}
	}
	if len(words) == 1 {
		return nil, usage("no command: there are %s", names())
	}
	r := &Request{Command: words[1]}
	for _, w := range words[2:] {
		if err := r.word(w); err != nil {
			return nil, err
		}
	}
	return r, r.Check()
}

// word takes a word behind the command.
func (r *Request) word(w string) error {
	name, isFlag := strings.CutPrefix(w, "--")
	name, value, valued := strings.Cut(name, "=")
	switch {
	case !isFlag && r.Arg == "":
		r.Arg = w
	case !isFlag:
		return usage("%s: %q is one word too many", r.Command, w)
	case name == "for":
		d, err := time.ParseDuration(value)
		if err != nil || r.For != 0 {
			return usage("%s: %q: not a time, such as 10s", r.Command, w)
		}
		if r.For = d; d == 0 { // 0 is for none
			r.For = -1
		}
	case valued:
		return usage("%s: %q: no value is expected", r.Command, w)
	case name == "json":
		r.JSON = true
	case name == "longer":
		r.Longer = true
	case name == "all":
		r.All = true
	default:
		return usage("%s: no flag %q", r.Command, w)
	}
	return nil
}

// Check says what is wrong with the request, an [Error], or returns nil.
func (r *Request) Check() error {
	c, ok := commands[r.Command]
	if !ok {
		return usage("no command %q: there are %s", r.Command, names())
	}
	switch {
	case r.Arg != "" && c.arg == "":
		return usage("%s: %q is one word too many", r.Command, r.Arg)
	case r.Arg == "" && c.must:
		return usage("%s: the %s is missing", r.Command, c.arg)
	case strings.HasPrefix(r.Arg, "-"), strings.ContainsFunc(r.Arg, func(c rune) bool { return c <= ' ' || c > '~' }):
		return usage("%s: %q is no %s", r.Command, r.Arg, c.arg)
	case r.For != 0 && (r.For < minFor || r.For > maxFor):
		return usage("%s: --for is from %v to %v", r.Command, minFor, maxFor)
	}
	for _, f := range []struct {
		name string
		set  bool
	}{{"longer", r.Longer}, {"all", r.All}, {"for", r.For != 0}} {
		if f.set && !slices.Contains(c.flags, f.name) {
			return usage("%s: --%s means nothing here", r.Command, f.name)
		}
	}
	if len(r.String()) >= maxRequest {
		return usage("%s: the request is longer than %d bytes", r.Command, maxRequest)
	}
	return nil
}

// String returns the request as ParseRequest reads it.
func (r *Request) String() string {
	words := []string{version, r.Command}
	if r.Arg != "" {
		words = append(words, r.Arg)
	}
	if r.JSON {
		words = append(words, "--json")
	}
	if r.Longer {
		words = append(words, "--longer")
	}
	if r.All {
		words = append(words, "--all")
	}
	if r.For != 0 {
		words = append(words, "--for="+r.For.String())
	}
	return strings.Join(words, " ")
}

func names() string { return strings.Join(slices.Sorted(maps.Keys(commands)), ", ") }

// prefix reads the argument, a prefix or an address: isAddr says which.
func (r *Request) prefix() (p netip.Prefix, isAddr bool, err error) {
	if !strings.Contains(r.Arg, "/") {
		a, err := r.addr()
		if err != nil {
			return p, true, err
		}
		return netip.PrefixFrom(a, a.BitLen()), true, nil
	}
	p, err = netip.ParsePrefix(r.Arg)
	switch {
	case err != nil:
		return p, false, usage("%s: %q is no prefix, such as 10.0.0.0/8", r.Command, r.Arg)
	case p != p.Masked():
		return p, false, usage("%s: %v has bits set beyond its length: %v", r.Command, p, p.Masked())
	case p.Addr().Is4In6():
		return p, false, usage("%s: %v is of IPv4 in the form of IPv6", r.Command, p)
	}
	return p, false, nil
}

// addr reads the argument, an address.
func (r *Request) addr() (netip.Addr, error) {
	a, err := netip.ParseAddr(r.Arg)
	switch {
	case err != nil:
		return a, usage("%s: %q is no address", r.Command, r.Arg)
	case a.Zone() != "":
		return a, usage("%s: %v has a zone, and routes have none", r.Command, a)
	case a.Is4In6():
		return a, usage("%s: %v is %v in the form of IPv6", r.Command, a, a.Unmap())
	}
	return a, nil
}
