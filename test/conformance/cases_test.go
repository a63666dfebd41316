package conformance

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

	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "write the bytes of frames in testdata from their expressions, and docs/conformance.md")

func TestMain(m *testing.M) {
	flag.Parse()
	if *update {
		if err := errors.Join(rewrite(), rewriteDocument()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("written; run the tests again without -update")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// rewrite writes the bytes of all frames anew that have an expression.
func rewrite() error {
	names, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		return err
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		cs, err := Parse(name, b, "")
		if err != nil {
			return err
		}
		a := txtar.Parse(b)
		for i := range a.Files {
			f := &a.Files[i]
			if f.Name == "config" || strings.HasPrefix(f.Name, "config ") {
				continue
			}
			if f.Data, err = rewriteCase(&cs[0], string(f.Data)); err != nil {
				return fmt.Errorf("%s: %w", cs[0].Name, err)
			}
			cs = cs[1:]
		}
		if err := os.WriteFile(name, txtar.Format(a), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// rewriteDocument writes docs/conformance.md.
func rewriteDocument() error {
	doc, err := document()
	if err != nil {
		return err
	}
	return os.WriteFile(documentFile, doc, 0o644)
}

func rewriteCase(c *Case, text string) ([]byte, error) {
	var out bytes.Buffer
	skip := false // bytes that were there
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, " ") && skip {
			continue
		}
		out.WriteString(line)
		skip = false
		if line[0] != '>' && line[0] != '<' {
			continue
		}
		expr, _, _ := strings.Cut(line[1:], "#")
		f, err := parseFrame(strings.TrimSpace(expr))
		if err != nil {
			return nil, err
		}
		b, err := c.expected(&f)
		if err != nil {
			return nil, err
		}
		if b != nil {
			out.WriteString(formatHex(b))
			skip = true
		}
	}
	return out.Bytes(), nil
}

func all(t *testing.T) []Case {
	t.Helper()
	cs, err := All()
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// all returns the frames of the case, in and out.
func (c *Case) all() []Frame {
	all := c.frames()
	for i := range c.Steps {
		all = slices.Concat(all, c.Steps[i].Off.Out, c.Steps[i].On.Out, c.Steps[i].Rings.Out)
	}
	return all
}

// TestOracle compares the bytes that the table states with what the
// expressions beside them say.
func TestOracle(t *testing.T) {
	cs := all(t)
	if len(cs) < 300 {
		t.Errorf("%d cases, want at least 300", len(cs))
	}
	for _, c := range cs {
		for _, f := range c.all() {
			want, err := c.expected(&f)
			if err != nil {
				t.Errorf("%s: %s %s: %v", c.Name, f.Port, f.Expr, err)
			} else if want != nil && !bytes.Equal(f.Bytes, want) {
				t.Errorf("%s: %s %s: the table states\n%swant\n%s", c.Name, f.Port, f.Expr, formatHex(f.Bytes), formatHex(want))
			}
		}
	}
}

// TestTableConserved checks that the table itself obeys what the router has to.
func TestTableConserved(t *testing.T) {
	for _, c := range all(t) {
		for _, h := range []Host{HostOff, HostFirst, HostRings} {
			if h != HostOff && c.OnlyOff {
				continue
			}
			after := make(map[string]uint64)
			for _, s := range c.Steps {
				for k, v := range s.Outcome(h).Counters {
					after[k] += v
				}
				for _, f := range s.In {
					after[f.Port+" receive"] += uint64(f.Times)
				}
			}
			for _, err := range conserved(nil, after) {
				t.Errorf("%s, %v: %v", c.Name, h, err)
			}
		}
	}
}

// TestReasons checks that the table has every drop reason that a router can
// reach, and every way to end.
func TestReasons(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range all(t) {
		for _, s := range c.Steps {
			for _, o := range []*Outcome{&s.Off, &s.On} {
				for k := range o.Counters {
					_, name, _ := strings.Cut(k, " ")
					seen[name] = true
				}
			}
		}
	}
	want := []string{`forwarded{family="ipv4"}`, `forwarded{family="ipv6"}`, "to_host", `punted{kind="arp"}`, `punted{kind="nd"}`, `punted{kind="local"}`}
	for r := range strings.FieldsSeq(`truncated bad_header bad_checksum bad_options source_route ip_option not_our_mac l2_broadcast
		ethertype vlan_unknown ttl martian link_local multicast no_route blackhole reject no_neighbor too_big oversize
		link_down tx_full router_alert bad_ext punt_full`) {
		want = append(want, `dropped{reason="`+r+`"}`)
	}
	for _, w := range want {
		if !seen[w] {
			t.Errorf("no case has %s", w)
		}
	}
}

func TestHex(t *testing.T) {
	tests := []struct {
		name  string
		bytes []byte
	}{
		{"nothing", nil},
		{"one byte", []byte{7}},
		{"15 equal", bytes.Repeat([]byte{0x55}, 15)},
		{"16 equal", bytes.Repeat([]byte{0x55}, 16)},
		{"equal after others", append([]byte{1, 2, 3}, bytes.Repeat([]byte{0}, 40)...)},
		{"pattern", pattern(1500)},
	}
	for _, expr := range []string{"F4", "F4 opts=01010101", "F6", "ARP", "NS", "F4 cut=20", "F4 tag=0064", "F4 payload=1472"} {
		b, err := Build(expr)
		if err != nil {
			t.Fatal(err)
		}
		tests = append(tests, struct {
			name  string
			bytes []byte
		}{expr, b})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := formatHex(tt.bytes)
			got, err := parseHex(text)
			if err != nil || !bytes.Equal(got, tt.bytes) {
				t.Errorf("%x, %v, want %x; text\n%s", got, err, tt.bytes, text)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"no frame", "-- a --\nhost on: same\n", "no frame"},
		{"no second frame", "-- a --\n> A F4\nhost on: same\nthen\nhost on: same\n", "no frame"},
		{"host on in the first step", "-- a --\n> A F4\nthen\n> A F4\nhost on: same\n", "host on"},
		{"frame late", "-- a --\n> A F4\nhost on: same\n> A F4\n", "before"},
		{"only", "-- a --\nonly: host on\n> A F4\n", "host off"},
		{"only off", "-- a --\nonly: host off\n> A F4\nhost on: same\n", "not here"},
		{"rings before on", "-- a --\n> A F4\nhost rings: as off\nhost on: same\n", "behind host on"},
		{"rings twice", "-- a --\n> A F4\nhost on: same\nhost rings: as off\nhost rings: as off\n", "behind host on"},
		{"reload", "-- a --\ndo: reload x\nhost on: same\n", "config x"},
		{"wait", "-- a --\ndo: wait -1s\nhost on: same\n", "positive duration"},
		{"link", "-- a --\ndo: link_down\nhost on: same\n", "which port"},
		{"start", "-- a --\ndo: start now\nhost on: same\n", "behind it"},
		{"no host on", "-- a --\n> A F4\n", "host on"},
		{"twice", "-- a --\n> A F4\nhost on: same\n-- a --\n> A F4\nhost on: same\n", "two cases"},
		{"hex", "-- a --\n> A raw\n  zz\nhost on: same\n", "line 2"},
		{"repeat", "-- a --\n> A raw\n  55*x\nhost on: same\n", "BYTE*N"},
		{"stray bytes", "-- a --\n  00\n", "bytes without"},
		{"no expression", "-- a --\n> A\n", "say raw"},
		{"times", "-- a --\n> A x0 F4\n", "number of times"},
		{"event", "-- a --\ndo: on_fire B\n", "no event"},
		{"counter", "-- a --\n> A F4\nA to_host none\n", "positive difference"},
		{"counter twice", "-- a --\n> A F4\nA to_host 1\nA to_host 1\n", "twice"},
		{"no number", "-- a --\n> A F4\nforwarded\n", "neither"},
		{"host", "-- a --\n> A F4\nhost on: maybe\n", "followed by"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Parse("x.txtar", []byte(tt.text), ""); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
		})
	}
}

func TestBuildErrors(t *testing.T) {
	for _, expr := range []string{"", "F5", "F4 tll=1", "F4 ttl=x", "F4 src=2001:2::1", "F4 to=nobody", "F4 opts=1", "ARP ttl=1", "NA flags=X"} {
		if _, err := Build(expr); err == nil {
			t.Errorf("%q: no error", expr)
		}
	}
}

// TestBuild pins one frame of each kind to bytes made by hand.
func TestBuild(t *testing.T) {
	tests := []struct{ expr, want string }{
		{"F4", "0200000000aa 020000000101 0800 4500002e00000000 4011 da97 c6120a01 c6130a01 07d007d0 001a fe97 010203040506070809 0a0b0c0d0e0f101112"},
		{"F6", "0200000000aa 020000000101 86dd 60000000 0008 11 40 20010002000000010000000000000001 20010002000080010000000000000001 07d007d0 0008 3034"},
		{"ARP", "ffffffffffff 020000000101 0806 0001080006040001 020000000101 c61200cb 000000000000 c61200cd 00*18"},
	}
	for _, tt := range tests {
		t.Run(tt.expr, func(t *testing.T) {
			got, err := Build(tt.expr)
			if err != nil {
				t.Fatal(err)
			}
			want, err := parseHex(tt.want)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("got\n%swant\n%s", formatHex(got), formatHex(want))
			}
		})
	}
}
