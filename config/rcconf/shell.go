package rcconf

import (
	"fmt"
	"strings"

	"nmfwd/config/foreign"
	"nmfwd/config/syntax"
)

// A variable is what a shell variable of rc.conf(5) was last set to.
type variable struct {
	value  string
	off    int    // where in the text it was set
	wrong  string // why the value is not known
	number int    // of the assignment that first set it
}

// A shell reads the assignments to variables in a text that is an rc.conf(5), a
// script of sysrc(8) lines, or prose in which either stands. It knows quotes,
// continued lines, comments, here-documents and the values of variables set
// before; what else a shell would do it does not.
type shell struct {
	src  string
	vars map[string]*variable
	sets int // assignments so far
	warn func(off int, msg string)
	fail func(off int, msg string)
}

// An arg is one word of a command.
type arg struct {
	s     string
	off   int
	wrong string // why s is not known
}

// run reads the whole text.
func (sh *shell) run() {
	for at := 0; at < len(sh.src); {
		at = sh.lineAt(at)
	}
}

// eol returns the offset of the line behind the one that at lies in.
func (sh *shell) eol(at int) int {
	if i := strings.IndexByte(sh.src[at:], '\n'); i >= 0 {
		return at + i + 1
	}
	return len(sh.src)
}

// lineAt reads the line that begins at an offset, with those that it goes on in,
// and returns the offset of the next.
func (sh *shell) lineAt(at int) int {
	next := sh.eol(at)
	line := sh.src[at:next]
	start := len(line) - len(strings.TrimLeft(line, " \t"))
	body := line[start:]
	switch {
	case body == "" || body[0] == '#':
		return next
	}
	if i := command(body, "sysrc"); i >= 0 {
		return sh.commands(at+start+i, next)
	}
	if i := command(body, "echo"); i >= 0 && strings.Contains(body, "rc.conf") {
		return sh.commands(at+start+i, next)
	}
	if name, _, _ := foreign.Assignment(strings.TrimPrefix(body, "export ")); name != "" {
		return sh.commands(at+start, next)
	}
	if strings.Contains(body, "<<") {
		return sh.hereDocument(at, next)
	}
	sh.unread(at+start, body)
	return next
}

// unread warns of an assignment in a line that is not read as one: behind an
// if, for example, or with blanks around its sign.
func (sh *shell) unread(at int, body string) {
	words := strings.Fields(body)
	for i, w := range words {
		name, _, _ := foreign.Assignment(w)
		if i+1 < len(words) && words[i+1] == "=" {
			name = w
		}
		if foreign.Matters(name) {
			sh.warn(at+strings.Index(body, w), name+" is not set: its line does not begin with NAME=VALUE, as rc.conf(5) wants it")
		}
	}
}

// command returns where in line the command called name begins, behind a prompt
// or sudo(8) at most, or -1.
func command(line, name string) int {
	i := strings.Index(line, name+" ")
	if i <= 0 {
		return i
	}
	before := strings.TrimRight(line[:i], " ")
	if len(before) == i && line[i-1] != ' ' {
		return -1 // the end of another word
	}
	for _, s := range []string{"$", "#", "%", "sudo", "doas", "&&", ";"} {
		if strings.HasSuffix(before, s) {
			return i
		}
	}
	return -1
}

// hereDocument reads a line with a here-document, and its text unless that goes
// to a file that is no rc.conf.
func (sh *shell) hereDocument(at, next int) int {
	line := sh.src[at:next]
	_, after, _ := strings.Cut(line, "<<")
	after = strings.TrimLeft(strings.TrimPrefix(after, "-"), " \t")
	end := after
	if i := strings.IndexAny(after, " \t\r\n>;|&"); i >= 0 {
		end = after[:i]
	}
	if end = strings.Trim(end, `'"\`); end == "" || !strings.Contains(line, ">") || strings.Contains(line, "rc.conf") {
		return next // the lines are read as they come
	}
	for body := next; body < len(sh.src); {
		e := sh.eol(body)
		if strings.TrimSpace(sh.src[body:e]) == end {
			return e
		}
		body = e
	}
	return next // no end: prose
}

// commands runs the commands from an offset to the end of the line, which lies
// behind next if a quote or backslash continues it.
func (sh *shell) commands(at, next int) int {
	for {
		var args []arg
		var end bool
		var open int
		begin := at
		if args, at, end, open = sh.words(at); open >= 0 {
			// In a text an apostrophe is no quote: only a value counts.
			start := begin + strings.LastIndexAny(sh.src[begin:open], " \t\n;") + 1
			if name, _, value := foreign.Assignment(sh.src[start:]); foreign.Matters(name) && len(sh.src)-len(value) <= open {
				sh.fail(open, "a quote that does not end")
			} else if name, _, _ := foreign.Assignment(sh.src[begin:]); foreign.Matters(name) {
				sh.fail(begin, "a quote behind "+name+" that does not end")
			}
			return next
		}
		sh.execute(args)
		if end {
			return at
		}
	}
}

// words returns the words of a command, the offset behind it, and whether the
// line ends there. Open is the offset of a quote that does not end, or -1.
func (sh *shell) words(at int) (args []arg, next int, end bool, open int) {
	src := sh.src
	for at < len(src) {
		switch c := src[at]; {
		case c == '\n':
			return args, at + 1, true, -1
		case c == ' ' || c == '\t' || c == '\r':
			at++
		case c == '\\' && sh.continued(at) > 0:
			at = sh.continued(at)
		case c == '#':
			at = sh.eol(at) - 1
			if src[at] != '\n' {
				return args, len(src), true, -1
			}
		case c == ';' || c == '&' || c == '|':
			for at < len(src) && strings.IndexByte(";&|", src[at]) >= 0 {
				at++
			}
			return args, at, false, -1
		default:
			var a arg
			if a, at, open = sh.word(at); open >= 0 {
				return nil, at, true, open
			}
			args = append(args, a)
		}
	}
	return args, at, true, -1
}

// continued returns the offset of the next line if a backslash at an offset
// ends one, or 0.
func (sh *shell) continued(at int) int {
	switch rest := sh.src[at+1:]; {
	case strings.HasPrefix(rest, "\n"):
		return at + 2
	case strings.HasPrefix(rest, "\r\n"):
		return at + 3
	}
	return 0
}

// word reads one word with its quotes.
func (sh *shell) word(at int) (a arg, next, open int) {
	a = arg{off: at}
	var b strings.Builder
	quote, from := byte(0), 0
	src := sh.src
	for ; at < len(src); at++ {
		c := src[at]
		switch {
		case quote == '\'':
			if c == quote {
				quote = 0
			} else {
				b.WriteByte(c)
			}
		case c == '\\':
			switch n := sh.continued(at); {
			case n > 0:
				at = n - 1
			case at+1 == len(src):
			case quote == '"' && strings.IndexByte("\"\\$`", src[at+1]) < 0:
				b.WriteByte(c)
			default:
				at++
				b.WriteByte(src[at])
			}
		case c == '"' && quote == '"':
			quote = 0
		case c == '"' || c == '\'' && quote == 0:
			quote, from = c, at
		case c == '`':
			a.wrong = "the output of a command"
			b.WriteByte(c)
		case c == '$':
			value, n, wrong := sh.expand(src[at:])
			if wrong != "" {
				a.wrong = wrong
			}
			b.WriteString(value)
			at += n - 1
		case quote == 0 && strings.IndexByte(" \t\r\n;&|", c) >= 0:
			a.s = b.String()
			return a, at, -1
		default:
			b.WriteByte(c)
		}
	}
	if quote != 0 {
		return a, at, from
	}
	a.s = b.String()
	return a, at, -1
}

// expand returns the value of the variable at the beginning of s, how many
// bytes name it, and why the value is not known.
func (sh *shell) expand(s string) (value string, n int, wrong string) {
	braced := strings.HasPrefix(s, "${")
	n = 1
	if braced {
		n = 2
	}
	name := s[n : n+foreign.NameLength(s[n:])]
	if name == "" || braced && !strings.HasPrefix(s[n+len(name):], "}") {
		return s[:1], 1, "a value that only a shell knows"
	}
	n += len(name)
	if braced {
		n++
	}
	v := sh.vars[name]
	if v == nil {
		return "", n, "the unset variable " + name
	}
	return v.value, n, v.wrong
}

// set sets a variable.
func (sh *shell) set(name, value string, a arg) {
	sh.sets++
	v := sh.vars[name]
	if v == nil {
		v = &variable{number: sh.sets}
		sh.vars[name] = v
	}
	v.value, v.off, v.wrong = value, a.off, a.wrong
}

// execute runs one command.
func (sh *shell) execute(args []arg) {
	if len(args) == 0 {
		return
	}
	switch args[0].s {
	case "sysrc":
		sh.sysrc(args[1:])
		return
	case "echo":
		sh.echo(args[1:])
		return
	case "export":
		args = args[1:]
	}
	for i, a := range args {
		if name, _, _ := foreign.Assignment(sh.src[a.off:]); name != "" {
			continue
		}
		// NAME=VALUE COMMAND sets nothing: more often quotes are missing.
		if name, _, _ := foreign.Assignment(args[0].s); i > 0 && foreign.Matters(name) {
			sh.warn(args[0].off, fmt.Sprintf("%s is not set: %s behind its value", name, syntax.Quote(a.s)))
		}
		return
	}
	for _, a := range args {
		name, sign, value := foreign.Assignment(a.s)
		switch {
		case sign == 0:
			sh.set(name, value, a)
		case foreign.Matters(name):
			sh.warn(a.off, fmt.Sprintf("%s is not set: sh(1) has no %c=, only sysrc(8) has", name, sign))
		}
	}
}

// echo reads what echo(1) appends to an rc.conf.
func (sh *shell) echo(args []arg) {
	for _, a := range args {
		if name, sign, value := foreign.Assignment(a.s); name != "" && sign == 0 {
			inner := shell{src: value, vars: sh.vars}
			if words, _, end, open := inner.words(0); end && open < 0 && len(words) == 1 {
				sh.set(name, words[0].s, arg{off: a.off, wrong: words[0].wrong})
			}
		}
	}
}

// sysrc runs sysrc(8), unless it changes another file than an rc.conf or that
// of a jail.
func (sh *shell) sysrc(args []arg) {
	remove := false
	for len(args) > 0 && len(args[0].s) > 1 && args[0].s[0] == '-' {
		flags := args[0].s[1:]
		args = args[1:]
		for i := range len(flags) {
			switch flags[i] {
			case 'x':
				remove = true
			case 'f', 'j', 'R', 's':
				value := flags[i+1:]
				if value == "" && len(args) > 0 {
					value = args[0].s
					args = args[1:]
				}
				if flags[i] == 'j' || flags[i] == 'R' || flags[i] == 'f' && !strings.Contains(value, "rc.conf") {
					return
				}
			default:
				continue
			}
			if flags[i] != 'x' {
				break
			}
		}
	}
	for _, a := range args {
		if remove {
			delete(sh.vars, a.s)
			continue
		}
		name, sign, value := foreign.Assignment(a.s)
		if name == "" {
			continue
		}
		if old := sh.vars[name]; sign != 0 {
			if old == nil {
				old = &variable{}
			}
			if a.wrong == "" {
				a.wrong = old.wrong
			}
			value = change(old.value, sign, value)
		}
		sh.set(name, value, a)
	}
}

// change adds words to a list, or removes them, as sysrc(8) does: the first
// byte of the words separates them if it is no letter, digit, dash or period.
func change(list string, sign byte, words string) string {
	sep := " "
	if words != "" && strings.IndexByte(" ,;:/|\t", words[0]) >= 0 {
		sep, words = words[:1], words[1:]
	}
	split := func(s string) []string {
		return strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(sep, r) })
	}
	items := split(list)
	for _, w := range split(words) {
		at := -1
		for i, s := range items {
			if s == w {
				at = i
			}
		}
		switch {
		case sign == '+' && at < 0:
			items = append(items, w)
		case sign == '-' && at >= 0:
			items = append(items[:at], items[at+1:]...)
		}
	}
	return strings.Join(items, sep)
}
