package control

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
)

// workersOf are workers that a test moves.
type workersOf struct {
	at       []time.Duration
	calls    []bool // in a call
	replaced []int
	hanging  int
}

func (w *workersOf) Accounted(i int) time.Duration { return w.at[i] }
func (w *workersOf) Hanging() int                  { return w.hanging }

func (w *workersOf) Replace(i int) bool {
	if w.calls[i] {
		w.replaced = append(w.replaced, i)
		w.hanging++
	}
	return w.calls[i]
}

// TestWatchdog stops one of two workers for a while.
func TestWatchdog(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	w := &workersOf{at: []time.Duration{0, time.Second}}
	d := newWatchdog(log, 2, w)
	look := func(n int, moves bool) string {
		for range n {
			if moves {
				w.at[1]++
			}
			d.look([]string{"igb1"})
		}
		defer out.Reset()
		return out.String()
	}
	if s := look(10, true); s != "" {
		t.Errorf("workers that work: %s", s)
	}
	if s := look(hangs-1, false); s != "" {
		t.Errorf("too early: %s", s)
	}
	if s := look(10, false); strings.Count(s, "\n") != 1 || !strings.Contains(s, "worker=1 ports_without_link=[igb1]") {
		t.Errorf("got %q", s)
	}
	if s := look(10, true); strings.Count(s, "\n") != 1 || !strings.Contains(s, `msg="worker goes on" worker=1`) {
		t.Errorf("got %q", s)
	}
}

// TestRescue loses a link: of the workers that have done nothing since, those in
// a system call get new threads, once.
func TestRescue(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	w := &workersOf{at: make([]time.Duration, 3), calls: make([]bool, 3)}
	d := newWatchdog(log, 3, w)
	rescue := func(replaced ...int) {
		t.Helper()
		w.replaced = nil
		d.rescue([]string{"igb1"})
		if !slices.Equal(w.replaced, replaced) {
			t.Errorf("replaced %v, want %v", w.replaced, replaced)
		}
	}
	w.calls[0], w.calls[1] = true, true // both sleep
	rescue()
	rescue()
	d.lost()
	w.at[0]++ // woken
	rescue(1)
	if s := out.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "worker=1 ports_without_link=[igb1]") {
		t.Errorf("got %q", s)
	}
	rescue() // worker 2 can only be waited for
	w.calls[2] = true
	rescue(2)
	rescue()
	d.lost()
	w.at[0]++
	w.at[1]++
	w.at[2]++
	rescue()
	out.Reset()
	w.hanging = 1
	rescue()
	rescue()
	if s := out.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "have come back\" left=1") {
		t.Errorf("got %q", s)
	}
}
