package routes

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestGenerate(t *testing.T) {
	for _, v4 := range []bool{true, false} {
		ps := Generate(5000, v4, 1)
		if len(ps) != 5000 || !slices.IsSortedFunc(ps, netip.Prefix.Compare) {
			t.Fatalf("v4=%v: %d prefixes, not 5000 in order", v4, len(ps))
		}
		if !slices.Equal(ps, Generate(5000, v4, 1)) {
			t.Errorf("v4=%v: the same seed gives other prefixes", v4)
		}
		rnd := rand.New(rand.NewPCG(1, 1))
		for _, p := range ps {
			if p != p.Masked() || p.Addr().Is4() != v4 {
				t.Fatalf("%v: host bits or the wrong family", p)
			}
			if h := Host(rnd, p); !p.Contains(h) {
				t.Fatalf("host %v of %v", h, p)
			}
		}
	}
}

func TestReal(t *testing.T) {
	name := filepath.Join(t.TempDir(), "prefixes")
	t.Setenv(Env, name)
	if err := os.WriteFile(name, []byte("198.19.0.0/16\n2001:2::/48\n198.18.0.0/16\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := Real(true)
	want := []netip.Prefix{netip.MustParsePrefix("198.18.0.0/16"), netip.MustParsePrefix("198.19.0.0/16")}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("Real: %v, %v, want %v", got, err, want)
	}
	if err := os.WriteFile(name, []byte("198.19.0.0/16\nx\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Real(true); err == nil {
		t.Error("Real read a line that is no prefix")
	}
}
