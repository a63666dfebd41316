package fib

import (
	"bufio"
	"fmt"
	"os"
	"testing"

	"nmfwd/bench/routes"
)

// huge returns how many bytes of the mapping that holds w lie in huge pages.
func huge(t *testing.T, w []uint32) int {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := addressOf(w)
	in := false
	for s := bufio.NewScanner(f); s.Scan(); {
		var from, to uintptr
		var kb int
		if n, _ := fmt.Sscanf(s.Text(), "%x-%x", &from, &to); n == 2 {
			in = from <= at && at < to
		}
		if n, _ := fmt.Sscanf(s.Text(), "AnonHugePages: %d kB", &kb); n == 1 && in {
			return kb << 10
		}
	}
	t.Fatal("no mapping holds the words")
	return 0
}

// Large tables and the roots lie in huge pages, in the first version and in
// later ones; without huge pages the tables are the same.
func TestHugePages(t *testing.T) {
	if err := HugePages(); err != nil {
		t.Skip(err)
	}
	var rts []Route
	for i, p := range routes.Generate(200_000, true, 1) {
		rts = append(rts, Route{Prefix: p, Origin: Static, Kind: OnLink, Port: uint16(i % 3), MTU: uint16(i % 1000)})
	}
	r, f := load(t, rts)
	small := New(testPorts)
	small.UseSmallPages()
	must(t, small.Load(rts))
	if dump(t, small.Commit()) != dump(t, f) {
		t.Error("another table in small pages")
	}
	for range 3 {
		for name, w := range map[string][]uint32{"words": f.V4.words, "root": f.V4.root[:], "root of IPv6": f.V6.root} {
			if huge(t, w) == 0 {
				t.Errorf("generation %d: no %s in huge pages", f.Gen, name)
			}
		}
		must(t, r.Add(rts[0]))
		f = r.Commit()
	}
}
