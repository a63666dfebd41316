package routes

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// A script is a system whose messages and losses come in an order that a test says.
type script struct {
	reader  netlinkReader
	batches chan []step // closed by stop
	now     []step      // that wait to be read
	have    func() [][]byte
	lists   atomic.Int32 // that ended
	given   atomic.Bool  // the last step
	every   time.Duration
}

// A step is what one read gives.
type step struct {
	b     []byte
	err   error
	last  bool          // the last of all
	until time.Duration // given when a list after the first one ended, but no later than that
}

func newScript(have func() [][]byte) *script {
	return &script{batches: make(chan []step, 100), have: have}
}

func (s *script) wait() error {
	for len(s.now) == 0 {
		ok := false
		if s.now, ok = <-s.batches; !ok {
			return errClosed
		}
	}
	return nil
}

func (s *script) read(b []byte) (int, error) {
	if len(s.now) == 0 {
		return 0, errNothing
	}
	st := s.now[0]
	s.now = s.now[1:]
	for end := time.Now().Add(st.until); s.lists.Load() < 2 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if st.last {
		s.given.Store(true)
	}
	return copy(b, st.b), st.err
}

func (s *script) compare() time.Duration { return s.every }

func (s *script) list(do func([]byte) error) error {
	for _, b := range s.have() {
		if err := do(b); err != nil {
			return err
		}
	}
	s.lists.Add(1)
	return nil
}

func (s *script) take(t *table, b []byte) error {
	s.reader.table = t
	return eachMessage(b, s.reader.message)
}

func (s *script) stop() error { close(s.batches); return nil }

func (s *script) close() error { return nil }

// follow opens a table of a script, and returns what its feed has told.
func (s *script) follow(t *testing.T) (*Table, *Feed, mirror) {
	t.Helper()
	tab, err := open(s, testPorts, Watcher{Listed: func(Report) {}, Failed: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tab.Close(); err != nil {
			t.Error(err)
		}
	})
	f, rs := tab.Feed()
	m := mirror{}
	for _, r := range rs {
		m[r.Prefix] = r
	}
	return tab, f, m
}

const patient = 10 * time.Second

// becomes waits until the feed has told what want says.
func (m mirror) becomes(t *testing.T, f *Feed, want string) {
	t.Helper()
	end := time.After(patient)
	for {
		if m.take(f); m.String() == want {
			return
		}
		select {
		case <-f.Ready():
		case <-end:
			t.Fatalf("the feed told\n%swant\n%s", m, want)
		}
	}
}

// TestOverrunLeavesNothingOld: a loss is told before what still waits in the
// socket, which is older than the list that is made: it must change nothing.
func TestOverrunLeavesNothingOld(t *testing.T) {
	lost := step{err: fmt.Errorf("full: %w", errLost)}
	old := step{until: 300 * time.Millisecond} // the reader has no CPU for so long
	for _, r := range []routeMsg{via("203.0.113.0/24", a, "198.18.0.1"), via("203.0.114.0/24", a, "198.18.0.1"), via("0.0.0.0/0", a, "198.18.0.1"), via("::/0", a, "fe80::1"), via("2001:db8::/32", a, "fe80::1").gone()} {
		old.b = append(old.b, r.bytes()...)
	}
	for _, c := range []struct {
		name    string
		batches [][]step
	}{
		{"a loss, then the rest", [][]step{{lost, old, old}}},
		{"two losses", [][]step{{lost, old, lost, old}}},
		{"another loss before the list", [][]step{{lost}, {lost, old}}},
		{"another loss while old messages are read", [][]step{{lost, old}, {lost, old, old}}},
		{"messages before the loss", [][]step{{{b: old.b}, lost, old}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := append(links(), via("203.0.114.0/24", b, "198.19.0.1").bytes(), via("2001:db8::/32", b, "fe80::2").bytes())
			newer := via("203.0.115.0/24", b, "198.19.0.1").bytes()
			s := newScript(nil)
			s.have = func() [][]byte {
				if s.given.Load() {
					return append(slices.Clone(now), newer)
				}
				return now
			}
			_, f, m := s.follow(t)
			for _, b := range c.batches {
				s.batches <- b
			}
			s.batches <- []step{{b: newer, until: patient, last: true}}
			m.becomes(t, f, "203.0.114.0/24 via 198.19.0.1 port 1\n203.0.115.0/24 via 198.19.0.1 port 1\n2001:db8::/32 via fe80::2 port 1\n")
		})
	}
}

// TestRefresh: what no message told is found when somebody asks, and where the
// system does not say what it loses at intervals.
func TestRefresh(t *testing.T) {
	for _, every := range []time.Duration{0, 20 * time.Millisecond} {
		var has atomic.Pointer[[][]byte]
		set := func(r routeMsg) {
			now := append(links(), r.bytes())
			has.Store(&now)
		}
		set(via("203.0.113.0/24", a, "198.18.0.1"))
		s := newScript(func() [][]byte { return *has.Load() })
		s.every = every
		tab, f, m := s.follow(t)
		set(via("203.0.113.0/24", b, "198.19.0.1"))
		if every == 0 {
			if err := tab.Refresh(t.Context()); err != nil {
				t.Error(err)
			}
		}
		m.becomes(t, f, "203.0.113.0/24 via 198.19.0.1 port 1\n")
	}
}
