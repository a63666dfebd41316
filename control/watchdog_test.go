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
	woken    []int // times, by worker
	hanging  int
}

func (w *workersOf) Accounted(i int) time.Duration { return w.at[i] }
func (w *workersOf) Hanging() int                  { return w.hanging }

func (w *workersOf) Wake(i int) { w.woken[i]++ }

func (w *workersOf) Replace(i int) bool {
	if w.calls[i] {
		w.replaced = append(w.replaced, i)
		w.hanging++
	}
	defer func() { w.calls[i] = false }()
	return w.calls[i]
}

// TestWatchdog stops one of two workers for a while.
func TestWatchdog(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	w := &workersOf{at: []time.Duration{0, time.Second}, woken: make([]int, 2)}
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

// TestRescue loses a link: workers that do nothing though they are woken get new
// threads where they are in a system call, again and again if need be.
func TestRescue(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	w := &workersOf{at: make([]time.Duration, 3), calls: []bool{true, true, false}, woken: make([]int, 3)}
	d := newWatchdog(log, 3, w)
	rescue := func(moves []int, replaced ...int) {
		t.Helper()
		for _, i := range moves {
			w.at[i]++
		}
		w.replaced = nil
		d.rescue([]string{"igb1"})
		if !slices.Equal(w.replaced, replaced) {
			t.Errorf("replaced %v, want %v", w.replaced, replaced)
		}
	}
	for range 10 { // all sleep, or are busy with something long
		rescue(nil)
	}
	if w.woken[0] != 0 {
		t.Error("woken though no link was lost")
	}
	w.at = []time.Duration{5, 5, 5}
	d.lost()
	rescue(nil)
	rescue([]int{0})
	rescue([]int{0}, 1)
	w.calls[1] = true // again
	rescue([]int{0, 1})
	rescue([]int{0})
	rescue([]int{0}, 1)
	if s := out.String(); strings.Count(s, "\n") != 2 || strings.Count(s, "worker=1 ports_without_link=[igb1]") != 2 {
		t.Errorf("got %q", s)
	}
	for range alertLooks {
		rescue([]int{0, 1, 2})
	}
	woken := w.woken[0]
	w.calls[0] = true
	for range 10 {
		rescue(nil)
	}
	if w.woken[0] != woken {
		t.Error("woken long after")
	}
	out.Reset()
	w.hanging = 1
	rescue(nil)
	rescue(nil)
	if s := out.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "have come back\" left=1") {
		t.Errorf("got %q", s)
	}
}
