package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// page returns a manual page without the macros and escapes that separate what
// belongs together.
func page(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("../../contrib/man/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), `\&`, "")
}

// TestManualCommands: nmfwd(8) has every sub-command, flag and argument.
func TestManualCommands(t *testing.T) {
	text := page(t, "nmfwd.8")
	var c cli
	model := kong.Must(&c, kong.Name("nmfwd")).Model
	var visit func(n *kong.Node, path string)
	visit = func(n *kong.Node, path string) {
		for _, f := range n.Flags {
			long := regexp.MustCompile(`(Fl|,) -` + f.Name + `\b`)
			if !long.MatchString(text) {
				t.Errorf("no flag --%s of %q", f.Name, path)
			}
			if f.Short != 0 && !strings.Contains(text, "Fl "+string(f.Short)+" ") {
				t.Errorf("no flag -%c of %q", f.Short, path)
			}
		}
		for _, a := range n.Positional {
			if !regexp.MustCompile(`(?m)^\.It Cm ` + regexp.QuoteMeta(path) + ` .*Ar ` + a.Name).MatchString(text) {
				t.Errorf("no argument %s of %q", a.Name, path)
			}
		}
		for _, child := range n.Children {
			path := strings.TrimSpace(path + " " + child.Name)
			if len(child.Children) == 0 && !regexp.MustCompile(`(?m)^\.It Cm `+regexp.QuoteMeta(path)+`\b`).MatchString(text) {
				t.Errorf("no command %q", path)
			}
			visit(child, path)
		}
	}
	visit(model.Node, "")
	for _, code := range []string{"64", "65", "66", "69", "71", "77", "78"} {
		if !strings.Contains(text, "\n.It "+code+"\n") {
			t.Errorf("no exit status %s", code)
		}
	}
}

// TestManualConfig: routes.conf(5) has every word of the grammar and every option
// and value of the tables in docs/routes.conf.md.
func TestManualConfig(t *testing.T) {
	text := page(t, "routes.conf.5")
	doc, err := os.ReadFile("../../docs/routes.conf.md")
	if err != nil {
		t.Fatal(err)
	}
	has := func(words ...string) {
		t.Helper()
		for _, l := range strings.Split(text, "\n") {
			rest := l
			found := true
			for _, w := range words {
				m := regexp.MustCompile(`(^|[ /])` + regexp.QuoteMeta(w) + `($|[ /])`).FindStringIndex(rest)
				if m == nil {
					found = false
					break
				}
				rest = rest[m[0]:]
			}
			if found && strings.HasPrefix(l, ".") {
				return
			}
		}
		t.Errorf("no line with %q", words)
	}
	_, grammar, _ := strings.Cut(string(doc), "## Grammar")
	grammar, _, ok := strings.Cut(grammar, "\n## ")
	words := regexp.MustCompile(`"([a-z]+)"`).FindAllStringSubmatch(grammar, -1)
	if !ok || len(words) < 25 {
		t.Fatalf("%d words in the grammar", len(words))
	}
	for _, w := range words {
		has(w[1])
	}
	_, options, ok := strings.Cut(string(doc), "## Options")
	options, _, _ = strings.Cut(options, "\n## ")
	rows := regexp.MustCompile("(?m)^\\| (`[^|]*)\\|([^|]*)\\|").FindAllStringSubmatch(options, -1)
	if !ok || len(rows) < 8 {
		t.Fatalf("%d rows of options", len(rows))
	}
	for _, r := range rows {
		for _, name := range regexp.MustCompile("`([a-z-]+)`").FindAllStringSubmatch(r[1], -1) {
			has("option", name[1])
			for _, v := range regexp.MustCompile(`\b[a-z]+\b`).FindAllString(strings.ReplaceAll(r[2], "a set such as", ""), -1) {
				has("option", name[1], v)
			}
		}
	}
}

// TestManualLint: mandoc finds nothing wrong but pages that this machine lacks.
func TestManualLint(t *testing.T) {
	mandoc, err := exec.LookPath("mandoc")
	if err != nil {
		t.Skip("mandoc is not installed")
	}
	out, _ := exec.CommandContext(t.Context(), mandoc, "-T", "lint", "../../contrib/man/nmfwd.8", "../../contrib/man/routes.conf.5").CombinedOutput()
	for _, l := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		if l != "" && !strings.Contains(l, "referenced manual not found") && !strings.Contains(l, "mandoc.db") {
			t.Error(l)
		}
	}
}
