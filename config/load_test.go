package config

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// writeTree writes the files of an archive into a new folder.
func writeTree(t *testing.T, archive string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range txtar.Parse([]byte(archive)).Files {
		path := filepath.Join(dir, f.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestIncludes has includes of every kind.
func TestIncludes(t *testing.T) {
	for _, test := range []struct {
		name, archive string
		setup         func(t *testing.T, dir string)
		errs, warns   string // FILE:LINE:COLUMN: PART|...
		ports         string
	}{
		{name: "literal", archive: "-- main --\ninclude sub/a\nport c\n-- sub/a --\nport a\ninclude b\n-- sub/b --\nport b\n", ports: "a b c"},
		{name: "glob in order", archive: "-- main --\ninclude conf.d/*.conf\n-- conf.d/20.conf --\nport b\n-- conf.d/10.conf --\nport a\n-- conf.d/9.conf --\nport c\n-- conf.d/x.bak --\nbla\n-- conf.d/.hidden.conf --\nbla\n", ports: "a b c"},
		{name: "glob of dots", archive: "-- main --\ninclude .*.conf\n-- .a.conf --\nport a\n", ports: "a"},
		{name: "glob without match", archive: "-- main --\ninclude conf.d/*.conf\n", warns: "main:1:9: no file matches"},
		{name: "bad pattern", archive: "-- main --\ninclude [a\n", errs: "main:1:9: is not a pattern"},
		{name: "order of names", archive: "-- main --\nroute 10.0.0.0/8 on a\ninclude a\n-- a --\nport a\n", ports: "a"},
		{name: "loop", archive: "-- main --\ninclude a\n-- a --\ninclude b\n-- b --\n\n  include ./a\n", errs: "b:2:11: include loop"},
		{name: "self", archive: "-- main --\ninclude main\n", errs: "main:1:9: include loop"},
		{name: "loop by a link", archive: "-- main --\ninclude a\n", setup: func(t *testing.T, dir string) {
			if err := os.Symlink("main", filepath.Join(dir, "a")); err != nil {
				t.Skip(err)
			}
		}, errs: "main:1:9: include loop"},
		{name: "missing", archive: "-- main --\ninclude gone\n", errs: "main:1:9: no such file"},
		{name: "directory", archive: "-- main --\ninclude sub\n-- sub/x --\n", errs: "main:1:9: a directory: not a regular file"},
		{name: "directory in a glob", archive: "-- main --\ninclude s*\n-- sub/x --\n", errs: "main:1:9: a directory"},
		{name: "FIFO", archive: "-- main --\ninclude fifo\n", setup: func(t *testing.T, dir string) { mkfifo(t, filepath.Join(dir, "fifo")) }, errs: "main:1:9: a FIFO: not a regular file"},
		{name: "writable", archive: "-- main --\ninclude a\n-- a --\nport a\n", setup: func(t *testing.T, dir string) {
			for _, f := range []string{"main", "a"} {
				if err := os.Chmod(filepath.Join(dir, f), 0o666); err != nil {
					t.Fatal(err)
				}
			}
		}, warns: "main:1:1: writable by everyone|main:1:9: writable by everyone", ports: "a"},
		{name: "errors in files", archive: "-- main --\nbla\ninclude a\nport c mtu 1\n-- a --\nport a mtu 2\nroute 10.0.0.0/8 on d\n", errs: "main:1:1: unknown|main:3:12: not a number|a:1:12: not a number|a:2:21: no port is called"},
		{name: "other value in a file", archive: "-- main --\nroute 10.0.0.0/8 reject\ninclude a\n-- a --\nroute 10.0.0.0/8 blackhole\n", errs: "a:1:1: another value at DIR/main:1:1"},
		{name: "rest", archive: "-- main --\ninclude a b\n", errs: `main:1:11: unexpected "b"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := writeTree(t, test.archive)
			if test.setup != nil {
				test.setup(t, dir)
			}
			c, err := Load(filepath.Join(dir, "main"))
			strip := func(errs []Error) (s []string) {
				for _, e := range errs {
					s = append(s, strings.TrimPrefix(e.Error(), dir+"/"))
				}
				return s
			}
			var errs Errors
			if err != nil && !errors.As(err, &errs) {
				t.Fatalf("error %v, want Errors", err)
			}
			compare(t, "errors", strip(errs), strings.ReplaceAll(test.errs, "DIR", dir))
			if err != nil {
				return
			}
			compare(t, "warnings", strip(c.Warnings), test.warns)
			var names []string
			for _, p := range c.Ports {
				names = append(names, p.Name)
			}
			if got := strings.Join(names, " "); got != test.ports {
				t.Errorf("got ports %q, want %q", got, test.ports)
			}
		})
	}
}

// TestGlobInStrangeFolder includes by a pattern from a folder whose own name is
// one.
func TestGlobInStrangeFolder(t *testing.T) {
	dir := writeTree(t, "-- a[b]*?\\c/main --\ninclude *.conf\n-- a[b]*?\\c/x.conf --\nport x\n")
	c, err := Load(filepath.Join(dir, `a[b]*?\c`, "main"))
	if err != nil || len(c.Ports) != 1 {
		t.Errorf("got %v, %v, want one port", c, err)
	}
}

func TestIncludeDepth(t *testing.T) {
	var b strings.Builder
	name := func(i int) string { return strings.Repeat("x", i+1) }
	for i := range maxDepth + 2 {
		b.WriteString("-- " + name(i) + " --\ninclude " + name(i+1) + "\n")
	}
	dir := writeTree(t, b.String())
	_, err := Load(filepath.Join(dir, "x"))
	if got := messages(t, err); len(got) != 1 || !strings.Contains(got[0], "deeper than 16 files") {
		t.Errorf("got %q, want one error about depth", got)
	}
}

// TestIncludeGrowth: includes that double from file to file end with one error at
// the line that is too much, as do those of a large file; to name a file twice is
// allowed.
func TestIncludeGrowth(t *testing.T) {
	var double strings.Builder
	for i := range maxDepth {
		fmt.Fprintf(&double, "-- %d --\ninclude %d\n include %d\n", i, i+1, i+1)
	}
	fmt.Fprintf(&double, "-- %d --\n", maxDepth)
	large := "-- 0 --\n" + strings.Repeat("include 1\n", 5) + "-- 1 --\n" + strings.Repeat("# a comment of 32 characters ...\n", maxAgainSize/3/33)
	for _, c := range []struct{ name, archive, want string }{
		{"doubled", double.String(), "2:10: include lines read files again more than 64 times: "},
		{"large", large, "5:9: include lines read files again, more than 16777216 bytes: "},
		{"twice", "-- 0 --\ninclude 1\ninclude 1\n-- 1 --\noption burst 8\n", ""},
	} {
		_, err := Load(filepath.Join(writeTree(t, c.archive), "0"))
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: got %v", c.name, err)
			}
			continue
		}
		if got := messages(t, err); len(got) != 1 || !strings.Contains(got[0], c.want) {
			t.Errorf("%s: got %q, want one error with %q", c.name, got, c.want)
		}
	}
}

// An expiring context is done once it has been asked so many times.
type expiring struct {
	context.Context
	left int
}

func (c *expiring) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestLoadContext: reading ends soon after its context does, without a result.
func TestLoadContext(t *testing.T) {
	dir := writeTree(t, "-- main --\n"+strings.Repeat("include a\n", 10)+"-- a --\n"+strings.Repeat("bla\n", 100*linesAtOnce))
	for _, left := range []int{0, 1, 5, 50} {
		ctx := &expiring{t.Context(), left}
		c, err := LoadContext(ctx, filepath.Join(dir, "main"))
		if c != nil || err != context.Canceled || ctx.left < -20 {
			t.Errorf("done after %d questions: got %v, %v, and %d more questions", left, c, err, -ctx.left)
		}
	}
}

// TestLoadFile has main files that cannot be read: no Errors, so that they have
// another exit code.
func TestLoadFile(t *testing.T) {
	dir := t.TempDir()
	mkfifo(t, filepath.Join(dir, "fifo"))
	for _, test := range []struct {
		name, path string
		want       error
	}{
		{"missing", filepath.Join(dir, "gone"), fs.ErrNotExist},
		{"directory", dir, ErrNotFile},
		{"FIFO", filepath.Join(dir, "fifo"), ErrNotFile},
		{"device", "/dev/null", ErrNotFile},
		{"empty name", "", fs.ErrNotExist},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Load(test.path)
			var errs Errors
			var pathError *fs.PathError
			if !errors.Is(err, test.want) || errors.As(err, &errs) || !errors.As(err, &pathError) {
				t.Errorf("got %v (%T), want a PathError for %v", err, err, test.want)
			}
		})
	}
}
