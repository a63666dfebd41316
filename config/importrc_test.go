package config

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite the results in testdata")

// TestImportRC compares the translation of rc.conf with that kept beside it,
// and reads it.
func TestImportRC(t *testing.T) {
	paths, err := filepath.Glob("testdata/import/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no archives: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			ar, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			text, warnings, err := ImportRC("rc.conf", ar.Files[0].Data)
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
			c, err := Parse("routes.conf", text)
			if err != nil {
				t.Fatal(err)
			}
			roundTrip(t, c)
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
			ar, err := txtar.ParseFile("testdata/import/" + test.archive + ".txtar")
			if err != nil {
				t.Fatal(err)
			}
			text, warnings, err := ImportRC("rc.conf", ar.Files[0].Data)
			if err != nil || warnings != nil {
				t.Fatalf("got %v, %v, want no errors and warnings", warnings, err)
			}
			// The pairs of neighbors are listed in the other order.
			lines := strings.SplitAfter(mustParse(t, string(text)).String(), "\n")
			lines[6], lines[7] = lines[7], lines[6]
			lines[8], lines[9] = lines[9], lines[8]
			if got := strings.Join(lines, ""); got != test.want {
				t.Errorf("got\n%swant\n%s", got, test.want)
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
			text, _, err := ImportRC("rc.conf", []byte(test.text))
			compare(t, "errors", messages(t, err), test.want)
			if (text == nil) != (err != nil) {
				t.Errorf("got text %q with error %v", text, err)
			}
			var errs Errors
			if err != nil && !errors.As(err, &errs) {
				t.Errorf("got %T, want Errors", err)
			}
		})
	}
}
