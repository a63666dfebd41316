package control

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestWatchdog stops one of two workers for a while.
func TestWatchdog(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	at := []time.Duration{0, time.Second}
	d := newWatchdog(log, 2, func(w int) time.Duration { return at[w] })
	look := func(n int, moves bool) string {
		for range n {
			if moves {
				at[1]++
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
