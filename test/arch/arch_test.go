// Package arch tests the rules of the architecture that a compiler does not
// know: who may import whom, and where unsafe and system calls may stand.
package arch

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "nmfwd"

// may lists, for each package, which others of the module it may import. What
// is not listed here is a command, a test or a benchmark: it may import all.
var may = map[string][]string{
	"config":                {"config/foreign", "config/syntax"},
	"config/foreign":        {"config/syntax"},
	"config/rcconf":         {"config", "config/foreign", "config/syntax"},
	"config/syntax":         {},
	"wire":                  {},
	"fib":                   {"wire"},
	"pcap":                  {},
	"neigh":                 {"fib", "wire"},
	"arp":                   {"neigh", "wire"},
	"ndp":                   {"neigh", "wire"},
	"dataplane":             {"fib", "wire"},
	"dataplane/afxdp":       {"dataplane", "system/nic", "wire"},
	"dataplane/memport":     {"dataplane", "pcap"},
	"dataplane/netmap":      {"dataplane", "system/lock", "wire", "dataplane/netmap/abi"},
	"dataplane/netmap/abi":  {},
	"dataplane/netmap/fake": {"dataplane", "wire", "dataplane/netmap", "dataplane/netmap/abi"},
	"control":               {"arp", "ndp", "fib", "neigh", "dataplane", "wire/icmp", "wire"},
	"wire/icmp":             {"wire"},
	"router":                {"config", "control", "dataplane", "dataplane/memport", "fib", "neigh", "system/neighbors", "system/nic", "system/routes", "wire"},
	"clients":               {},
	"metrics":               {"clients", "control", "dataplane", "fib", "neigh", "wire/icmp"},
	"system/routes":         {"fib"},
	"system/neighbors":      {"neigh", "wire"},
	"system/lock":           {},
	"system/nic":            {"system/lock"},
	"system/nic/fake":       {"system/nic"},
}

// commands are the folders whose packages may import everything.
var commands = []string{"cmd", "test", "bench"}

// A file is a Go file of the module.
type file struct {
	name    string // relative to the module's root, with slashes
	pkg     string
	imports []string
}

func files(t *testing.T) []file {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var all []file
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && p != root || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(p, ".go") {
			return nil
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		src, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, src, parser.ImportsOnly)
		if err != nil {
			return err
		}
		x := file{name: filepath.ToSlash(rel), pkg: path.Dir(filepath.ToSlash(rel))}
		for _, i := range f.Imports {
			s, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			x.imports = append(x.imports, s)
		}
		all = append(all, x)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 50 {
		t.Fatalf("only %d Go files found: this test does not see the module", len(all))
	}
	return all
}

func TestImports(t *testing.T) {
	for _, f := range files(t) {
		if strings.HasSuffix(f.name, "_test.go") || slices.Contains(commands, strings.Split(f.pkg, "/")[0]) {
			continue
		}
		allowed, ok := may[f.pkg]
		if !ok {
			t.Errorf("%s: package %s is not in the list of this test", f.name, f.pkg)
			continue
		}
		for _, i := range f.imports {
			if p, ours := strings.CutPrefix(i, module+"/"); ours && !slices.Contains(allowed, p) {
				t.Errorf("%s: package %s must not import %s", f.name, f.pkg, p)
			}
		}
	}
}

func TestClientGolang(t *testing.T) {
	for _, f := range files(t) {
		for _, i := range f.imports {
			if strings.HasPrefix(i, "github.com/prometheus/") && f.pkg != "metrics" && !strings.HasPrefix(f.pkg, "test/") {
				t.Errorf("%s: imports %s, which only the collector may", f.name, i)
			}
		}
	}
}

func TestUnsafe(t *testing.T) {
	for _, f := range files(t) {
		base := strings.TrimSuffix(strings.TrimSuffix(path.Base(f.name), ".go"), "_test")
		if slices.Contains(f.imports, "unsafe") && !strings.HasSuffix(base, "_unsafe") {
			t.Errorf("%s: imports unsafe, which only files named *_unsafe.go may", f.name)
		}
	}
}

// TestSystemCalls finds packages of system calls outside of the backends, the
// files of one operating system, and tests.
func TestSystemCalls(t *testing.T) {
	calls := []string{"syscall", "golang.org/x/sys/unix"}
	for _, f := range files(t) {
		name := strings.TrimSuffix(path.Base(f.name), ".go")
		switch {
		case strings.HasSuffix(name, "_test"),
			strings.HasSuffix(name, "_linux"), strings.HasSuffix(name, "_freebsd"), strings.HasSuffix(name, "_unix"), strings.HasSuffix(name, "_unsafe"),
			strings.HasPrefix(f.pkg, "dataplane/netmap"), strings.HasPrefix(f.pkg, "dataplane/afxdp"),
			f.pkg == "cmd/nmfwd": // signals
			continue
		}
		for _, i := range f.imports {
			if slices.Contains(calls, i) {
				t.Errorf("%s: imports %s outside of a backend or a file of one system", f.name, i)
			}
		}
	}
}

// TestNoRuntimeGOOS finds switches by operating system where a file of that
// system belongs.
func TestNoRuntimeGOOS(t *testing.T) {
	for _, f := range files(t) {
		if strings.HasSuffix(f.name, "_test.go") || strings.HasSuffix(f.name, "_other.go") || strings.HasPrefix(f.name, "test/") {
			continue
		}
		src, err := os.ReadFile(filepath.Join("..", "..", f.name))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(src), "runtime.GOOS") {
			t.Errorf("%s: asks for the operating system at run time", f.name)
		}
	}
}

// TestMonotonic: nothing that runs goes by the clock on the wall,
// which jumps. Differences of what time.Now returns, and timers, go by a monotonic
// clock; what takes that from a time, or asks the system for another clock, is
// found here. What is in the list tells the time of day to others.
func TestMonotonic(t *testing.T) {
	wall := regexp.MustCompile(`\.(Unix|UnixMilli|UnixMicro|UnixNano|UTC|Local)\(\)|\.(Round\(0|AddDate\(|In\(time)|\btime\.(Unix|UnixMilli|UnixMicro|Date|Parse)\(|CLOCK_REALTIME|[cC]lock_?[gG]et_?[tT]ime|[gG]ettimeofday`)
	for _, f := range files(t) {
		switch dir := strings.Split(f.pkg, "/")[0]; {
		case strings.HasSuffix(f.name, "_test.go"), dir == "test", dir == "bench",
			f.pkg == "metrics", f.name == "pcap/pcap.go",
			f.name == "control/icmp.go": // timestamps in packets
			continue
		}
		src, err := os.ReadFile(filepath.Join("..", "..", f.name))
		if err != nil {
			t.Fatal(err)
		}
		if m := wall.Find(src); m != nil {
			t.Errorf("%s: %s is the time of day", f.name, m)
		}
	}
}
