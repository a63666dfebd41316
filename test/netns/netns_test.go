//go:build integration && linux

package netns

import (
	"context"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestJoin(t *testing.T) {
	a, b := pair(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()

	if err := a.SetFeature("a0", TXChecksum, false); err != nil {
		t.Error(err)
	}
	for _, addr := range []string{"192.0.2.2", "2001:db8::2"} {
		p, err := a.NewPinger(netip.MustParseAddr(addr))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		for _, size := range []int{0, 1, 2, 57, 1452} {
			if err := p.Ping(size, 5*time.Second); err != nil {
				t.Error(err)
			}
		}
	}
	l, err := b.Listen("tcp", "[2001:db8::2]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := a.Dial(ctx, "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()

	p, err := b.Port("b0")
	if err != nil {
		t.Fatal(err)
	}
	if p.NumRxQueues != 2 || p.NumTxQueues != 2 {
		t.Errorf("b0 has %d receive and %d transmit queues, want 2 and 2", p.NumRxQueues, p.NumTxQueues)
	}
	if err := b.Remove("b0"); err != nil {
		t.Error(err)
	}
	if _, err := a.Port("a0"); err == nil {
		t.Error("a0 is there without its other end")
	}
}

// TestNamesDoNotMeet makes the same ports twice at the same time.
func TestNamesDoNotMeet(t *testing.T) {
	pair(t)
	pair(t)
}

func TestCloseEndsProcesses(t *testing.T) {
	n, err := New("n")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.String(); !strings.Contains(got, "killed") {
		t.Errorf("sleep ended with %q, want killed", got)
	}
}

func TestWait(t *testing.T) {
	a, _ := pair(t)
	for _, tt := range []struct {
		name, want string
		cmd        *exec.Cmd
	}{
		{"good", "", exec.Command("true")},
		{"bad", "exit status 1", exec.Command("false")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := a.Start(tt.cmd); err != nil {
				t.Fatal(err)
			}
			got := ""
			if err := a.Wait(t.Context(), tt.cmd); err != nil {
				got = err.Error()
			}
			if (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
				t.Errorf("Wait: %q, want %q", got, tt.want)
			}
		})
	}
}

// pair returns two namespaces joined by a0 and b0.
func pair(t *testing.T) (a, b *Namespace) {
	t.Helper()
	ns := func(name string) *Namespace {
		n, err := New(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		return n
	}
	a, b = ns("a"), ns("b")
	err := Join(
		Port{NS: a, Name: "a0", Queues: 2, Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}},
		Port{NS: b, Name: "b0", Queues: 2, Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/24"), netip.MustParsePrefix("2001:db8::2/64")}},
	)
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}
