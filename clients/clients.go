// Package clients accepts the connections of clients that may be many, slow or
// silent. Nothing that they or the system do ends a Listener but Close, and it
// keeps no more connections than it may.
package clients

import (
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	firstPause   = 5 * time.Millisecond // after an error of accept,
	longestPause = time.Second          // twice as long after each further one
	tellEvery    = 10 * time.Second     // errors of accept that are told

	// How long a new connection has at least to say something before it makes room
	// for others.
	grace = 10 * time.Millisecond
)

// A Listener is a net.Listener whose Accept fails only once it is closed.
type Listener struct {
	net.Listener
	most   int
	failed func(error)
	closed chan struct{}
	close  sync.Once

	mu    sync.Mutex
	open  []*Conn
	spare *os.File  // a descriptor to accept a connection by when there is none left; nil while it is used
	told  time.Time // when failed was called last
}

// Listen returns a Listener on l that keeps at most so many connections, 0 for any
// number: a new one then takes the place of the one that has been silent longest,
// or of the one that is being answered for longest. Failed is told of errors of
// accept, from time to time; it may be nil.
func Listen(l net.Listener, most int, failed func(error)) *Listener {
	n := &Listener{Listener: l, most: most, failed: failed, closed: make(chan struct{})}
	n.keepSpare()
	return n
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		c, err := l.Listener.Accept()
		if err == nil {
			return l.admit(c), nil
		}
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		l.tell(err)
		if l.useSpare() {
			continue
		}
		l.makeRoom(1) // for whoever needs a descriptor
		select {
		case <-time.After(pause):
		case <-l.closed:
			return nil, net.ErrClosed
		}
	}
}

// Close implements net.Listener. Connections stay open.
func (l *Listener) Close() error {
	l.close.Do(func() {
		close(l.closed)
		l.useSpare()
	})
	return l.Listener.Close()
}

func (l *Listener) tell(err error) {
	l.mu.Lock()
	due := l.told.IsZero() || time.Since(l.told) >= tellEvery
	if due {
		l.told = time.Now()
	}
	l.mu.Unlock()
	if due && l.failed != nil {
		l.failed(err)
	}
}

// keepSpare opens the spare descriptor, if there is one to be had.
func (l *Listener) keepSpare() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closed:
	default:
		if l.spare == nil {
			l.spare, _ = os.Open(os.DevNull) // tried again at the end of each connection
		}
	}
}

// useSpare gives the spare descriptor free and reports whether there was one.
func (l *Listener) useSpare() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spare == nil {
		return false
	}
	l.spare.Close()
	l.spare = nil
	return true
}

// admit adds a connection, for which another one may have to go.
func (l *Listener) admit(c net.Conn) *Conn {
	l.keepSpare()
	l.makeRoom(l.most)
	n := &Conn{Conn: c, listener: l, since: time.Now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, n)
	return n
}

// makeRoom closes a connection if there are as many as most. Without a limit for
// them none has to go.
func (l *Listener) makeRoom(most int) {
	if l.most == 0 {
		return
	}
	c, since := l.first(most)
	if left := grace - time.Since(since); c != nil && left > 0 {
		select {
		case <-time.After(left):
		case <-l.closed:
		}
		c, _ = l.first(most)
	}
	if c != nil {
		c.Close()
	}
}

// first returns the connection that goes first if there are as many as most, else
// nil, and since when it is as it is.
func (l *Listener) first(most int) (*Conn, time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) < most {
		return nil, time.Time{}
	}
	c := slices.MinFunc(l.open, func(a, b *Conn) int {
		switch {
		case a.busy && !b.busy:
			return 1
		case b.busy && !a.busy:
			return -1
		}
		return a.since.Compare(b.since)
	})
	return c, c.since
}

// A Conn is a connection of a Listener.
type Conn struct {
	net.Conn
	listener *Listener

	// Guarded by the listener's mutex.
	busy  bool
	since time.Time // when busy last changed
}

// SetBusy says whether the client has asked for something and is being answered.
func (c *Conn) SetBusy(busy bool) {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.busy, c.since = busy, time.Now()
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	l := c.listener
	l.mu.Lock()
	l.open = slices.DeleteFunc(l.open, func(o *Conn) bool { return o == c })
	l.mu.Unlock()
	err := c.Conn.Close()
	l.keepSpare()
	return err
}
