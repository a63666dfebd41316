package rcconf

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nmfwd/config"
	"nmfwd/config/syntax"

	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite the results in testdata")

// lab is what the labs' files mean.
const lab = `port igb1 198.18.0.205/24 2001:2::205/64
port igb2 198.19.0.205/24 2001:2:0:8000::205/64
route 198.18.0.0/16 via 198.18.0.203
route 198.19.0.0/16 via 198.19.0.203
route 2001:2::/49 via 2001:2::203
route 2001:2:0:8000::/49 via 2001:2:0:8000::203
arp 198.18.0.203 00:1b:21:c4:95:7a
arp 198.19.0.203 00:1b:21:c4:95:7b
ndp 2001:2::203 00:1b:21:c4:95:7a
ndp 2001:2:0:8000::203 00:1b:21:c4:95:7b
`

// TestImport compares the translation of rc.conf with that kept beside it,
// and reads it.
func TestImport(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no archives: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			ar, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			text, warnings, err := Import("rc.conf", ar.Files[0].Data)
			if err != nil {
				t.Fatal(err)
			}
			var warns bytes.Buffer
			for _, w := range warnings {
				warns.WriteString(w.Error() + "\n")
			}
			got := []txtar.File{ar.Files[0], {Name: "routes.conf", Data: text}, {Name: "warnings", Data: warns.Bytes()}}
			if *update {
				ar.Files = got
				if err := os.WriteFile(path, txtar.Format(ar), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if len(ar.Files) != len(got) {
				t.Fatalf("got %d files in the archive, want %d: run with -update", len(ar.Files), len(got))
			}
			for i, f := range got {
				if want := ar.Files[i]; !bytes.Equal(f.Data, want.Data) {
					t.Errorf("%s: got\n%swant\n%s", f.Name, f.Data, want.Data)
				}
			}
			if _, err := config.Parse("routes.conf", text); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestImportLab compares what the labs' rc.conf means with the labs' facts.
func TestImportLab(t *testing.T) {
	for _, test := range []struct{ archive, want string }{
		{"apu2-sysrc", lab},
		{"apu1-rcconf", strings.NewReplacer("igb", "re", "205", "207").Replace(lab)},
	} {
		t.Run(test.archive, func(t *testing.T) {
			ar, err := txtar.ParseFile("testdata/" + test.archive + ".txtar")
			if err != nil {
				t.Fatal(err)
			}
			text, warnings, err := Import("rc.conf", ar.Files[0].Data)
			if err != nil || warnings != nil {
				t.Fatalf("got %v, %v, want no errors and warnings", warnings, err)
			}
			got, want := facts(t, string(text)), facts(t, test.want)
			if !slices.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

func TestImportErrors(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"nothing", "", "1:1: no variable"},
		{"prose", "It's a page without any.\nhostname=\"x\"\n", "1:1: no variable"},
		{"open quote", "hostname=\"a\"\nifconfig_em0=\"inet 10.0.0.1/24\n", "2:14: a quote that does not end"},
		{"open single quote", "sysrc defaultrouter='10.0.0.1\n", "1:21: a quote that does not end"},
		{"open quote elsewhere", "motd=\"a\nifconfig_em0='up'\nx='\n", ""},
		{"open quote closed by the next", "ifconfig_em0=\"inet 10.0.0.1/24\nifconfig_em1=\"inet 10.0.1.1/24\"\n", "1:1: a quote behind ifconfig_em0 that does not end"},
		{"BOM", "\ufeffifconfig_em0=\"inet 10.0.0.1/24\"\n", ""},
		{"NUL", "ifconfig_em0=\"up\"\n\x00", "2:1: a NUL byte"},
	} {
		t.Run(test.name, func(t *testing.T) {
			text, _, err := Import("rc.conf", []byte(test.text))
			if (text == nil) != (err != nil) {
				t.Errorf("got text %q with error %v", text, err)
			}
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var errs syntax.Errors
			if !errors.As(err, &errs) || len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), "rc.conf:"+test.want) {
				t.Errorf("got %v (%T), want one of Errors: rc.conf:%s", err, err, test.want)
			}
		})
	}
}

// facts returns what a configuration says, sorted.
func facts(t *testing.T, text string) []string {
	t.Helper()
	c, err := config.Parse("routes.conf", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, p := range c.Ports {
		all = append(all, fmt.Sprint("port ", p.Name, p.Addrs, p.MTU, p.MAC, p.Host))
	}
	for _, r := range c.Routes {
		all = append(all, fmt.Sprint("route ", r.Prefix, r.Kind, r.MTU))
		for _, h := range r.Hops {
			all = append(all, fmt.Sprint("hop ", r.Prefix, h.Gateway, c.Ports[h.Port].Name))
		}
	}
	for _, n := range c.Neighbors {
		all = append(all, fmt.Sprint("neighbor ", n.Addr, n.MAC, c.Ports[n.Port].Name))
	}
	slices.Sort(all)
	return all
}

// FuzzImport checks that no text makes Import panic or return a text that
// has errors.
func FuzzImport(f *testing.F) {
	for _, name := range []string{"apu2-sysrc", "apu1-rcconf", "ifconfig", "vlans", "routes", "shell"} {
		ar, err := txtar.ParseFile("testdata/" + name + ".txtar")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(ar.Files[0].Data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		text, _, err := Import("f", data)
		if err != nil {
			return
		}
		if _, err := config.Parse("routes.conf", text); err != nil {
			t.Fatalf("%s%v", text, err)
		}
	})
}
