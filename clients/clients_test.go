package clients

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const patience = 20 * time.Second

// A faulty listener fails so many times before each connection.
type faulty struct {
	net.Listener
	err   error
	times int
	left  int
	calls atomic.Int64
}

func (f *faulty) Accept() (net.Conn, error) {
	f.calls.Add(1)
	if f.left > 0 {
		f.left--
		return nil, f.err
	}
	f.left = f.times
	return f.Listener.Accept()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func dial(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{Timeout: patience}).DialContext(context.Background(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// isOpen reports whether the other end, which sends nothing, has not closed c
// within a time.
func isOpen(t *testing.T, c net.Conn, within time.Duration) bool {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	_, err := c.Read(make([]byte, 1))
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// TestAcceptGoesOn: errors of accept are not those of Accept, whatever they are,
// and are told once.
func TestAcceptGoesOn(t *testing.T) {
	for _, err := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED, syscall.ENOBUFS, syscall.ENOMEM, syscall.EPROTO, syscall.EPERM, syscall.ENETDOWN, io.EOF} {
		f := &faulty{Listener: listen(t), err: err, times: 3, left: 3}
		told := 0
		l := Listen(f, 0, func(got error) {
			if told++; got != err {
				t.Errorf("told %v, want %v", got, err)
			}
		})
		for range 2 {
			dial(t, l)
			c, got := l.Accept()
			if got != nil {
				t.Fatalf("%v: got %v", err, got)
			}
			c.Close()
		}
		if told != 1 {
			t.Errorf("%v: told %d times", err, told)
		}
	}
}

// TestCloseEndsAccept: also while it waits to try again.
func TestCloseEndsAccept(t *testing.T) {
	f := &faulty{Listener: listen(t), err: syscall.EMFILE, left: 1 << 30}
	l := Listen(f, 3, nil)
	done := make(chan error)
	go func() {
		_, err := l.Accept()
		done <- err
	}()
	for end := time.Now().Add(patience); f.calls.Load() < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not tried again")
		}
	}
	l.Close()
	select {
	case err := <-done:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v", err)
		}
	case <-time.After(patience):
		t.Error("Accept goes on")
	}
	if l.spare != nil {
		t.Error("the spare descriptor is left open")
	}
}

// TestOldestSilentGoesFirst: those that are being answered stay as long as others
// can go.
func TestOldestSilentGoesFirst(t *testing.T) {
	l := Listen(listen(t), 3, nil)
	var clients []net.Conn
	var conns []*Conn
	add := func() {
		t.Helper()
		clients = append(clients, dial(t, l))
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c.(*Conn))
	}
	gone := func(want int) {
		t.Helper()
		if isOpen(t, clients[want], patience) {
			t.Fatalf("connection %d is open", want)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.open) != 3 {
			t.Fatalf("%d connections", len(l.open))
		}
	}
	for range 3 {
		add()
	}
	conns[0].SetBusy(true)
	add()
	gone(1)
	conns[2].SetBusy(true)
	conns[2].SetBusy(false) // answered: silent since now, later than connection 3
	add()
	gone(3)
	for _, i := range []int{2, 4} {
		conns[i].SetBusy(true)
	}
	add()
	gone(0) // all were busy, it the longest
	conns[2].Close()
	conns[2].Close()
	add() // there is room
	if !isOpen(t, clients[5], time.Millisecond) || !isOpen(t, clients[4], time.Millisecond) {
		t.Error("one went for nothing")
	}
}

// TestSpareDescriptor: the descriptor that is kept for a connection when there is
// none left is given free for it, and had again after.
func TestSpareDescriptor(t *testing.T) {
	f := &faulty{Listener: listen(t), err: syscall.EMFILE, left: 1}
	l := Listen(f, 0, nil)
	defer l.Close()
	if l.spare == nil {
		t.Fatal("no spare descriptor")
	}
	dial(t, l)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if f.calls.Load() != 2 {
		t.Errorf("%d calls of accept, want 2", f.calls.Load())
	}
	c.Close()
	if l.spare == nil {
		t.Error("no spare descriptor after")
	}
}
