package control

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"nmfwd/fib"
)

// An expiring context is done once it has been asked so many times.
type expiring struct {
	context.Context
	left int
}

func (c *expiring) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestCompileEnds: compiling ends at the step at which its context is done, and no
// feed of the system's routes stays open.
func TestCompileEnds(t *testing.T) {
	k := &kernel{routes: map[netip.Prefix]fib.Route{}}
	for left := 0; ; left++ {
		tab, err := compile(&expiring{t.Context(), left}, &Spec{Kernel: k.source})
		if err == nil {
			if left < 3 {
				t.Errorf("looked %d times only", left)
			}
			tab.close()
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("done after %d looks: got %v", left, err)
		}
	}
	if len(k.feeds) > 0 {
		t.Errorf("%d feeds left open", len(k.feeds))
	}
}
