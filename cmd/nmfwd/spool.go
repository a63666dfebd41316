package main

import (
	"bytes"
	"io"
	"slices"
	"sync"
	"time"
)

// maxSpool is how many bytes wait for a reader at most.
const maxSpool = 1 << 18

// A spool writes lines to a file whose reader may be slow, stop or end: nobody who
// writes waits for it. Lines that find no room are lost, and counted.
type spool struct {
	file io.Writer
	note func(lost int) []byte // a line that tells how many were lost at its place
	wake chan struct{}
	done chan struct{} // closed at the end

	mu     sync.Mutex
	lines  []byte // that wait
	lost   int    // lines that would follow them
	closed bool
}

func newSpool(file io.Writer, note func(lost int) []byte) *spool {
	s := &spool{file: file, note: note, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go s.run()
	return s
}

// Write adds whole lines, all or none. It never waits and never fails.
func (s *spool) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.lost > 0 || len(s.lines) > 0 && len(s.lines)+len(p) > maxSpool {
		s.lost += countLines(p)
		return len(p), nil
	}
	s.lines = append(s.lines, p...)
	s.signal()
	return len(p), nil
}

func countLines(b []byte) int { return bytes.Count(b, []byte("\n")) }

func (s *spool) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Close writes what waits, as far as that can be done in a time.
func (s *spool) Close(patience time.Duration) {
	s.mu.Lock()
	s.closed = true
	s.signal()
	s.mu.Unlock()
	select {
	case <-s.done:
	case <-time.After(patience):
	}
}

// run writes. What cannot be written is lost too, and the next line tried again.
func (s *spool) run() {
	defer close(s.done)
	var lines []byte
	missed := 0   // lines lost before those that come next
	works := true // the last write did
	cut := false  // what was written has no end
	for {
		s.mu.Lock()
		lines, s.lines = s.lines, lines[:0]
		after, closed := s.lost, s.closed
		s.lost = 0
		s.mu.Unlock()
		if len(lines) == 0 && (missed == 0 || !works) {
			if closed {
				return
			}
			<-s.wake
			continue
		}
		var head []byte
		if cut {
			head = append(head, '\n')
		}
		if missed > 0 {
			head = append(head, s.note(missed)...)
		}
		text := slices.Concat(head, lines)
		n, err := s.file.Write(text)
		if n > 0 {
			cut = text[n-1] != '\n'
		}
		if n >= len(head) {
			missed, head = 0, text[:n]
		}
		missed += after + countLines(text[len(head):])
		works = err == nil
	}
}
