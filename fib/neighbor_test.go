package fib

import (
	"errors"
	"testing"
)

// TestVerifyNeighbor: routes through a neighbor and its own address say that it
// is to be verified, until it was, moved or left.
func TestVerifyNeighbor(t *testing.T) {
	r := New(testPorts)
	gw := ip("198.18.0.203")
	for _, rt := range ConnectedRoutes(0, pfx("198.18.0.205/24")) {
		must(t, r.Add(rt))
	}
	must(t, r.Add(static("0.0.0.0/0", "198.18.0.203", 0)))
	if err := r.VerifyNeighbor(0, gw, true); !errors.Is(err, ErrNoNeighbor) {
		t.Errorf("unknown neighbor: got %v, want %v", err, ErrNoNeighbor)
	}
	const rest = " port 0 mtu 1500 neighbor 198.18.0.203 head 020100000000000db941ca3d0800"
	must(t, r.SetNeighbor(0, gw, [6]byte{2, 1}))
	for _, x := range []struct {
		name   string
		verify bool
		want   string
	}{{"at first", false, "forward"}, {"stale", true, "verify"}, {"still", true, "verify"}, {"verified", false, "forward"}, {"again", true, "verify"}} {
		must(t, r.VerifyNeighbor(0, gw, x.verify))
		f := r.Commit()
		via := r.Via(0, gw)
		if got := via.String(); got != x.want+rest {
			t.Errorf("%s: via: got %s, want %s", x.name, got, x.want+rest)
		}
		for _, dst := range []string{"198.18.0.203", "203.0.113.9"} {
			if got := f.Lookup(ip(dst)).String(); got != x.want+rest {
				t.Errorf("%s: %s: got %s, want %s", x.name, dst, got, x.want+rest)
			}
		}
	}
	must(t, r.RemoveNeighbor(0, gw))
	for _, a := range []string{"198.18.0.203", "198.18.0.204", "2001:2::1"} {
		via := r.Via(0, ip(a))
		if got, want := via.String(), "resolve port 0 mtu 1500 neighbor "+a; got != want {
			t.Errorf("via: got %s, want %s", got, want)
		}
	}
	must(t, r.SetNeighbor(0, gw, [6]byte{2, 1}))
	wantLookup(t, r.Commit(), "203.0.113.9", "forward"+rest)
}
