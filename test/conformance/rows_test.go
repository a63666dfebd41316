package conformance

import (
	"slices"
	"strings"
	"testing"
)

// TestRows checks that every row of the table of known faults has a case, a
// test elsewhere, or a reason.
func TestRows(t *testing.T) {
	text, err := data.ReadFile("testdata/rows.txt")
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, c := range all(t) {
		names[c.Name] = true
	}
	var got []string
	for n, line := range strings.Split(string(text), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		row, what, ok := strings.Cut(line, "\t")
		if !ok {
			t.Fatalf("rows.txt:%d: want number and what has it, with a tab between", n+1)
		}
		got = append(got, row)
		kind, rest, _ := strings.Cut(what, " ")
		switch kind {
		case "case":
			for name := range strings.SplitSeq(rest, "; ") {
				if !names[name] {
					t.Errorf("row %s: there is no case %q", row, name)
				}
			}
		case "test":
			if err := testExists(rest); err != nil {
				t.Errorf("row %s: %v", row, err)
			}
		case "not":
			if reason, ok := strings.CutPrefix(rest, "done: "); !ok || reason == "" {
				t.Errorf("row %s: not done, and no reason", row)
			}
		default:
			t.Errorf("rows.txt:%d: want case, test or not done", n+1)
		}
	}
	want := strings.Fields(`B15 B16 B17 B18 B19 B30 B34 B74
		B21 B22 B23 B25 B27 B28 B29 B32 B33 B35 B37 B67 B72 B83
		B49 B81
		X21 X22 X23 X24 X25 X26 X27 X28 X29 X30
		N1 N2 N3 N4 N5 N6 N7 N9 N10 N11 N12 N13 N14 N15 N16 N17 N19 N20`)
	if got := slices.Compact(got); !slices.Equal(got, want) {
		t.Errorf("got rows %v, want %v", got, want)
	}
}
