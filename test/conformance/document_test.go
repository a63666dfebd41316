package conformance

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

//go:generate go test -update

// An rfc is a document and what it asks for.
type rfc struct {
	number, title string
	requirements  []*requirement
}

// A requirement is what one sentence or more of an RFC ask for, in our words.
type requirement struct {
	key      string // "1812 5.3.1/expired", the part behind the slash is ours
	section  string
	strength string // MUST ... MAY, or - for a fact
	text     string
	notes    []note
	cases    []string
}

// A note says what the cases do not.
type note struct{ kind, text string }

// The kinds of notes.
const (
	elsewhere = "test"     // a test of another package shows it
	byHost    = "host"     // the host stack does it
	partly    = "partly"   // what is missing although cases show something
	notDone   = "not done" // nothing shows it, and why
	notOurs   = "not ours" // it asks nothing of this router, and why
)

func (q *requirement) note(kind string) (string, bool) {
	for _, n := range q.notes {
		if n.kind == kind {
			return n.text, true
		}
	}
	return "", false
}

// status returns the name of the column of the summary that q is counted in.
func (q *requirement) status() string {
	for _, k := range []string{notDone, partly} {
		if _, ok := q.note(k); ok {
			return k
		}
	}
	_, tested := q.note(elsewhere)
	if len(q.cases) > 0 || tested {
		return "shown"
	}
	for _, k := range []string{byHost, notOurs} {
		if _, ok := q.note(k); ok {
			return k
		}
	}
	return ""
}

// requirements returns the requirements with the cases that show them.
func requirements() ([]*rfc, error) {
	text, err := data.ReadFile("testdata/requirements.txt")
	if err != nil {
		return nil, err
	}
	rfcs, err := parseRequirements(string(text))
	if err != nil {
		return nil, err
	}
	byKey := make(map[string]*requirement)
	for _, r := range rfcs {
		for _, q := range r.requirements {
			if byKey[q.key] != nil {
				return nil, fmt.Errorf("requirement %s: stated twice", q.key)
			}
			byKey[q.key] = q
		}
	}
	cs, err := All()
	if err != nil {
		return nil, err
	}
	for _, c := range cs {
		for _, k := range c.RFC {
			q := byKey[k]
			if q == nil {
				return nil, fmt.Errorf("%s: there is no requirement %q", c.Name, k)
			}
			if !slices.Contains(q.cases, c.Name) {
				q.cases = append(q.cases, c.Name)
			}
		}
	}
	return rfcs, nil
}

func parseRequirements(text string) ([]*rfc, error) {
	var rfcs []*rfc
	var q *requirement
	for n, line := range strings.Split(text, "\n") {
		fail := func(what string) error { return fmt.Errorf("requirements.txt:%d: %s", n+1, what) }
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || line[0] == '#':
		case fields[0] == "rfc" && len(fields) > 2:
			rfcs = append(rfcs, &rfc{number: fields[1], title: strings.Join(fields[2:], " ")})
			q = nil
		case line[0] == '\t':
			kind, text, ok := strings.Cut(strings.TrimSpace(line), ":")
			if !ok || q == nil || !slices.Contains([]string{elsewhere, byHost, partly, notDone, notOurs}, kind) || text == "" {
				return nil, fail("not a note")
			}
			q.notes = append(q.notes, note{kind, strings.TrimSpace(text)})
		default:
			columns := strings.FieldsFunc(line, func(r rune) bool { return r == '\t' })
			if len(columns) != 3 || len(rfcs) == 0 || !slices.Contains([]string{"MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY", "-"}, columns[1]) {
				return nil, fail("want section, strength and text, with tabs between")
			}
			r := rfcs[len(rfcs)-1]
			q = &requirement{key: r.number + " " + columns[0], strength: columns[1], text: columns[2]}
			q.section, _, _ = strings.Cut(columns[0], "/")
			r.requirements = append(r.requirements, q)
		}
	}
	return rfcs, nil
}

const documentHead = `# Conformance

What RFCs ask of a router, in our own words, and what shows that nmfwd does it. This page is made by
` + "`go generate ./test/conformance`" + ` from the requirements and the cases in test/conformance/testdata: a
case is a row of a table that says which frames leave and which counters move when frames come in.
The cases run over ports in memory, over AF_XDP and over netmap.

A case is named by file and section, as in ` + "`ttl/v4, two`" + `. *Not done* is what nmfwd does not do;
*not ours* is what it need not, and why; *host* is left to the system's own stack, which has the
router's addresses with ` + "`host on`" + `. RFCs that are older than RFC 2119 have no strengths: those given
are by meaning, and - marks facts.

`

// document returns docs/conformance.md.
func document() ([]byte, error) {
	rfcs, err := requirements()
	if err != nil {
		return nil, err
	}
	cs, err := All()
	if err != nil {
		return nil, err
	}
	inFile := make(map[string]int)
	for _, c := range cs {
		file, _, _ := strings.Cut(c.Name, "/")
		inFile[file]++
	}
	var b bytes.Buffer
	b.WriteString(documentHead)
	columns := []string{"shown", partly, notDone, byHost, notOurs}
	fmt.Fprintf(&b, "%d cases show:\n\n| RFC | | requirements | %s |\n|---|---|---%s|\n", len(cs), strings.Join(columns, " | "), strings.Repeat("|---", len(columns)))
	sum := make(map[string]int)
	total := 0
	row := func(name, title string, n int, count map[string]int) {
		fmt.Fprintf(&b, "| %s | %s | %d |", name, title, n)
		for _, c := range columns {
			fmt.Fprintf(&b, " %d |", count[c])
		}
		b.WriteString("\n")
	}
	for _, r := range rfcs {
		count := make(map[string]int)
		for _, q := range r.requirements {
			count[q.status()]++
			sum[q.status()]++
		}
		total += len(r.requirements)
		row(fmt.Sprintf("[%s](#rfc-%s)", r.number, r.number), r.title, len(r.requirements), count)
	}
	row("all", "", total, sum)
	for _, r := range rfcs {
		fmt.Fprintf(&b, "\n## RFC %s\n\n%s\n\n| section | | requirement | shown by |\n|---|---|---|---|\n", r.number, r.title)
		for _, q := range r.requirements {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", q.section, q.strength, q.text, q.shown(inFile))
		}
	}
	return b.Bytes(), nil
}

// shown returns the cell that says what shows q. Of a file of cases that all
// show it, only the name is told.
func (q *requirement) shown(inFile map[string]int) string {
	files := make(map[string][]string)
	for _, c := range q.cases {
		file, _, _ := strings.Cut(c, "/")
		files[file] = append(files[file], c)
	}
	var s []string
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if n := len(files[file]); n > 1 && n == inFile[file] {
			s = append(s, fmt.Sprintf("all %d of `%s`", n, file))
			continue
		}
		for _, c := range files[file] {
			s = append(s, "`"+c+"`")
		}
	}
	for _, n := range q.notes {
		if n.kind == elsewhere {
			s = append(s, "`"+n.text+"`")
		} else {
			s = append(s, "*"+n.kind+"*: "+n.text)
		}
	}
	return strings.Join(s, "; ")
}

var documentFile = filepath.Join("..", "..", "docs", "conformance.md")

// TestDocument checks that docs/conformance.md is what requirements and cases
// say: go generate writes it.
func TestDocument(t *testing.T) {
	want, err := document()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(documentFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not current: run go generate", documentFile)
	}
}

// TestRequirements checks that each requirement is shown by something or says
// why not, and that each case shows one.
func TestRequirements(t *testing.T) {
	rfcs, err := requirements()
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Fields("791 792 826 1191 1624 1812 2644 2991 2992 3021 3704 3927 4291 4443 4861 6164 6437 6438 6980 7126 7424 8200 8201")
	var got []string
	for _, r := range rfcs {
		got = append(got, r.number)
		for _, q := range r.requirements {
			_, undone := q.note(notDone)
			_, part := q.note(partly)
			_, host := q.note(byHost)
			_, tested := q.note(elsewhere)
			switch {
			case q.status() == "":
				t.Errorf("requirement %s: nothing shows it and nothing says why", q.key)
			case undone && len(q.cases) > 0:
				t.Errorf("requirement %s: not done, but %s shows it", q.key, q.cases[0])
			case part && !host && !tested && len(q.cases) == 0:
				t.Errorf("requirement %s: done in part, but nothing shows that", q.key)
			}
			for _, n := range q.notes {
				if n.kind == elsewhere {
					if err := testExists(n.text); err != nil {
						t.Errorf("requirement %s: %v", q.key, err)
					}
				}
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got RFCs %v, want %v", got, want)
	}
	for _, c := range all(t) {
		if len(c.RFC) == 0 {
			t.Errorf("%s: shows no requirement", c.Name)
		}
	}
}

func TestParseRequirementsErrors(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"no RFC", "1\tMUST\ttext\n", "requirements.txt:1"},
		{"strength", "rfc 1 A\n1\tWILL\ttext\n", "requirements.txt:2"},
		{"columns", "rfc 1 A\n1\tMUST text\n", "requirements.txt:2"},
		{"kind of note", "rfc 1 A\n1\tMUST\ttext\n\tperhaps: x\n", "requirements.txt:3"},
		{"note of nothing", "rfc 1 A\n\tnot done: x\n", "requirements.txt:2"},
		{"empty note", "rfc 1 A\n1\tMUST\ttext\n\tnot done:\n", "requirements.txt:3"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := parseRequirements(tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
		})
	}
}

// testExists checks that there is a test, named by the folder of its package
// and its function.
func testExists(name string) error {
	at := strings.LastIndexByte(name, '.')
	if at < 0 {
		return fmt.Errorf("test %s: want PACKAGE.TEST", name)
	}
	files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(name[:at]), "*_test.go"))
	if err != nil {
		return err
	}
	function := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(name[at+1:]) + `\(`)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		if function.Match(b) {
			return nil
		}
	}
	return fmt.Errorf("there is no test %s", name)
}
