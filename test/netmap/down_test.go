//go:build netmap

package netmap

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// TestDownBeside takes an interface down and up again while the worker that has
// it forwards between two other ports, which do not wait for it: on Linux the
// worker's thread does, in a system call, until the interface is up.
func TestDownBeside(t *testing.T) {
	card, _ := cards(t)
	conf := labConf(t, "dnb}1", "dnb}2", "port "+card+" 10.9.9.1/24 host off\noption workers 1\n")
	a, d := newEnds(t, "dnb{1", "dnb{2")
	a.made = func(n int) []byte { return packet(n, false) }
	d.want = func(n int) []byte { return packet(n, true) }
	cmd := exec.Command(nmfwd(t), "-c", conf)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		setUp(card, true) // or nmfwd cannot end
		cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	// pass lets packets pass for some time, and returns the longest time that none did.
	n := 0
	pass := func(wait time.Duration) (gap time.Duration) {
		last := time.Now()
		for end := last.Add(wait); time.Now().Before(end); {
			if a.sent-d.got < 64 {
				n += 16
				a.send(n)
			}
			poll(t, 0, a.q.Descriptor)
			poll(t, time.Millisecond, d.q.Descriptor)
			before := d.got
			if d.receive(); d.got != before {
				gap = max(gap, time.Since(last))
				last = time.Now()
			}
		}
		return max(gap, time.Since(last))
	}
	for start := time.Now(); d.got == 0; pass(100 * time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatal("nmfwd forwards nothing")
		}
	}
	const wait = 4 * time.Second
	t.Logf("before: no packet for %v", pass(wait/4))
	// A machine that gives nmfwd no CPU looks as if a worker stood still: such a
	// round says nothing and is repeated.
	const rounds, atMost = 3, 9
	good := 0
	for n := 0; n < atMost && good < rounds; n++ {
		still := false
		for _, up := range []bool{false, true} {
			if err := setUp(card, up); err != nil {
				t.Fatal(err)
			}
			gap := pass(wait)
			t.Logf("up %v: no packet for %v", up, gap)
			still = still || gap > wait/2
		}
		if !still {
			good++
		}
	}
	if good < rounds {
		t.Errorf("other ports went on in %d of %d rounds, want %d: in each of the others no packet passed for half of %v", good, atMost, rounds, wait)
	}
}
