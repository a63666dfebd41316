package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

func lostLine(n int) []byte { return fmt.Appendf(nil, "%d lost\n", n) }

// A reader is a file that can stop or fail.
type reader struct {
	mu     sync.Mutex
	got    strings.Builder
	err    error
	writes int           // that ended
	most   int           // bytes that are taken before err
	stop   chan struct{} // not nil: a write waits until it is closed
}

func (r *reader) Write(p []byte) (int, error) {
	r.mu.Lock()
	stop := r.stop
	r.mu.Unlock()
	if stop != nil {
		<-stop
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		p = p[:min(len(p), r.most)]
	}
	r.got.Write(p)
	r.writes++
	return len(p), r.err
}

// set changes what r does.
func (r *reader) set(err error, most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err, r.most = err, most
}

func (r *reader) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got.String()
}

// await waits until so many writes have ended.
func (r *reader) await(t *testing.T, writes int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		n := r.writes
		r.mu.Unlock()
		if n >= writes {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d writes, want %d", n, writes)
		}
	}
}

// TestSpoolKeepsOrder: all lines come, in order, and the last ones before Close
// returns.
func TestSpoolKeepsOrder(t *testing.T) {
	var r reader
	s := newSpool(&r, lostLine)
	var want strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&want, "line %d\n", i)
		fmt.Fprintf(s, "line %d\n", i)
	}
	s.Close(20 * time.Second)
	if r.text() != want.String() {
		t.Errorf("got %d bytes, want %d", len(r.text()), want.Len())
	}
}

// TestSpoolWaitsForNobody: with a reader that has stopped lines are lost, not
// time; once it goes on it learns how many.
func TestSpoolWaitsForNobody(t *testing.T) {
	r := reader{stop: make(chan struct{})}
	s := newSpool(&r, lostLine)
	line := strings.Repeat("x", 99) + "\n"
	const all = 3 * maxSpool / 100
	for range all {
		io.WriteString(s, line)
	}
	s.Close(time.Millisecond) // returns
	if got := r.text(); got != "" {
		t.Fatalf("got %d bytes from a reader that has stopped", len(got))
	}
	close(r.stop)
	<-s.done
	got := r.text()
	lines, lost := strings.Count(got, line), 0
	for _, l := range strings.Split(got, "\n") {
		var n int
		if _, err := fmt.Sscanf(l, "%d lost", &n); err == nil {
			lost += n
		}
	}
	if lines+lost != all || lines < maxSpool/100 || lost == 0 {
		t.Errorf("of %d lines %d arrived and %d are told to be lost", all, lines, lost)
	}
}

// TestSpoolTriesAgain: lines that cannot be written are counted, those that can
// later are not held up.
func TestSpoolTriesAgain(t *testing.T) {
	var r reader
	s := newSpool(&r, lostLine)
	io.WriteString(s, "one\n")
	r.await(t, 1)
	r.set(errors.New("disk full"), 2)
	io.WriteString(s, "two\n") // of which "tw" is written
	r.await(t, 2)
	r.set(errors.New("disk full"), 0)
	for i := range 3 {
		io.WriteString(s, "gone\n")
		r.await(t, 3+i)
	}
	r.set(nil, 0)
	io.WriteString(s, "three\n")
	s.Close(20 * time.Second)
	if got, want := r.text(), "one\ntw\n4 lost\nthree\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestSpoolToAPipe: a pipe whose reader has gone is an error, not the end.
func TestSpoolToAPipe(t *testing.T) {
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in.Close()
	s := newSpool(out, lostLine)
	io.WriteString(s, "one\n")
	s.Close(20 * time.Second)
	select {
	case <-s.done:
	default:
		t.Error("it goes on")
	}
}
