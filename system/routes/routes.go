// Package routes follows the routes of the system, as ports can forward by them:
// those that a routing daemon or an operator puts into its main table.
//
// # What is followed
//
// Of the routes to a prefix the one with the lowest metric that has an interface
// which is up. Routes whose interfaces are all ports are followed as they are:
// with gateways, on the link, blackhole, unreachable, prohibit and throw, the MTU.
// All others are the host's to follow ([fib.Host]): by interfaces that are no
// ports, to the system's own addresses, with encapsulation, with a gateway of the
// other family, throw where rules come after that for the main table. So packets
// never take another way than the system's because a port cannot. Routes for some values of TOS or some sources are left out, and so are
// other tables and the rules that lead to them.
//
// # Ownership
//
// One goroutine reads what the system says, so that little is lost, and one takes
// it to the table, which a lock guards. What changes goes to feeds, one for each
// reader, and waits there: at most one change for each prefix, however long
// nobody looks.
//
// Whatever may have been missed is found by a new list of all, which changes only
// what differs. A list begins when everything older has been read or thrown away,
// and what is read from then on is taken after it, all of it and in order: it is
// the end of each story that counts. So after a loss the socket is emptied first,
// for the loss is told before what still waits there.
package routes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"nmfwd/fib"
)

const (
	// settle is how long a new list waits for what else happens.
	settle = 20 * time.Millisecond

	// rest is the least time between two lists, and restShare the least part of
	// the time that there is none.
	rest      = 100 * time.Millisecond
	restShare = 4

	compareShare = 20 // and the same of lists that nothing calls for

	listTries = 5        // for a list that somebody waits for
	maxNews   = 64 << 20 // bytes of changes that wait; there is a new list if they are more
)

// Errors of systems.
var (
	errNothing     = errors.New("nothing has changed")
	errLost        = errors.New("changes were lost")
	errClosed      = errors.New("closed")
	errInterrupted = errors.New("the list changed while it was read")
)

// A system has the routes.
type system interface {
	// wait returns when there is something to read.
	wait() error

	// read takes what the system said, without waiting, and returns the length of
	// what it wrote to b. The error wraps errNothing if there is nothing, errLost if
	// something was lost, before or after what can still be read.
	read(b []byte) (int, error)

	// compare returns how often to look for what was lost without an error, 0 for
	// never.
	compare() time.Duration

	// list calls do for parts of a list of all that there is. The error wraps
	// errInterrupted if it is not complete for others changed it.
	list(do func(b []byte) error) error

	// take takes what read or list gave to t.
	take(t *table, b []byte) error

	// stop makes wait return.
	stop() error

	// close frees what there is, when nothing else is called any more.
	close() error
}

// A Report counts routes after a list of them.
type Report struct {
	Routes [2]int        // prefixes with a route, of IPv4 and IPv6
	Host   int           // of these the host's to follow
	Odd    [NumOdd]int   // routes by what keeps ports from following them
	Took   time.Duration // to list them
	First  bool          // at the start
	Lost   bool          // changes were lost before
	Asked  bool          // somebody asked for it
	Timed  bool          // the system may have lost changes and not have said so
}

// A Watcher is told what an operator may want to know.
type Watcher struct {
	Listed func(Report)
	Failed func(error) // and tried again
}

// A Table follows the system's routes.
type Table struct {
	sys   system
	watch Watcher
	news  news
	syncs chan chan struct{} // who waits in Sync
	asked chan chan error    // who waits in Refresh
	done  chan struct{}
	tasks sync.WaitGroup

	reading sync.Mutex // held by who takes what the system said to news
	buf     []byte     // guarded by reading

	emptying sync.Mutex // held while what waits after a loss is thrown away

	mu    sync.Mutex // guards table
	table *table
}

// Open follows the routes of the system, by the network namespace of the calling
// thread on Linux. Ports names the interfaces that are ports, with their numbers.
// It returns when all routes of this moment have been read.
func Open(ports map[string]uint16, watch Watcher) (*Table, error) {
	sys, err := openSystem()
	if err != nil {
		return nil, fmt.Errorf("routes: %w", err)
	}
	return open(sys, ports, watch)
}

// Read returns the routes of the system at this moment, in the order of
// [fib.RIB.All].
func Read(ports map[string]uint16) ([]fib.Route, Report, error) {
	var r Report
	t, err := Open(ports, Watcher{Listed: func(first Report) { r = first }, Failed: func(error) {}})
	if err != nil {
		return nil, r, err
	}
	f, rs := t.Feed()
	f.Close()
	return rs, r, t.Close()
}

func open(sys system, ports map[string]uint16, watch Watcher) (*Table, error) {
	t := &Table{sys: sys, watch: watch, news: news{ready: make(chan struct{}, 1)}, syncs: make(chan chan struct{}), asked: make(chan chan error), done: make(chan struct{}), buf: make([]byte, 1<<16), table: newTable(ports)}
	t.tasks.Go(t.read)
	r := Report{First: true}
	if err := t.insist(&r); err != nil {
		return nil, errors.Join(fmt.Errorf("routes: list: %w", err), t.stop())
	}
	watch.Listed(r)
	t.tasks.Go(t.run)
	return t, nil
}

// insist lists until it succeeds, a few times at most.
func (t *Table) insist(r *Report) error {
	err := errInterrupted
	for i := 0; i < listTries && errors.Is(err, errInterrupted); i++ {
		err = t.list(r)
	}
	return err
}

// Close ends following.
func (t *Table) Close() error { return t.stop() }

func (t *Table) stop() error {
	close(t.done)
	err := t.sys.stop()
	t.tasks.Wait()
	return errors.Join(err, t.sys.close())
}

func (t *Table) closed() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// Feed returns the routes of this moment, in the order of [fib.RIB.All], and a
// feed of what changes from then on.
func (t *Table) Feed() (*Feed, []fib.Route) {
	f := &Feed{table: t, ready: make(chan struct{}, 1), at: map[prefix]int{}}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.table.feeds = append(t.table.feeds, f)
	return f, t.table.all()
}

func (t *Table) remove(f *Feed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, g := range t.table.feeds {
		if g == f {
			t.table.feeds = append(t.table.feeds[:i:i], t.table.feeds[i+1:]...)
			return
		}
	}
}

// Sync returns when feeds have all that the system said before. A list that is due
// is made at once.
func (t *Table) Sync(ctx context.Context) error {
	if err := t.drain(); err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	done := make(chan struct{})
	select {
	case t.syncs <- done:
	case <-t.done:
		return fmt.Errorf("routes: %w", errClosed)
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-done:
		return nil
	case <-t.done:
		return fmt.Errorf("routes: %w", errClosed)
	}
}

// Refresh makes the table what the system has, by a list of all of it, and returns
// when feeds have it. Nothing has to be known to be missing.
func (t *Table) Refresh(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case t.asked <- done:
		return <-done
	case <-t.done:
		return fmt.Errorf("routes: %w", errClosed)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// read reads what the system says until Close.
func (t *Table) read() {
	for {
		err := t.sys.wait()
		if err == nil {
			err = t.drain()
		}
		if t.closed() {
			return
		}
		if err == nil {
			continue
		}
		t.watch.Failed(fmt.Errorf("routes: %w", err))
		t.news.lose()
		select {
		case <-t.done:
			return
		case <-time.After(rest):
		}
	}
}

// drain takes to news all that the system said, without waiting for more. After a
// loss it throws away what there is: that is not whole, and older than the list
// that will be made.
func (t *Table) drain() error {
	t.reading.Lock()
	defer t.reading.Unlock()
	lost := false
	defer func() {
		if lost {
			t.emptying.Unlock()
		}
	}()
	for !t.closed() {
		n, err := t.sys.read(t.buf)
		switch {
		case err == nil && lost:
		case err == nil:
			t.news.add(t.buf[:n])
		case errors.Is(err, errLost):
			if !lost {
				t.emptying.Lock()
			}
			lost = true
			t.news.lose()
		case errors.Is(err, errNothing):
			return nil
		default:
			return err
		}
	}
	return nil
}

// run takes to the table what was read, and lists where that is not enough.
func (t *Table) run() {
	due := time.NewTimer(0)
	due.Stop()
	waiting := false // for due
	lost := false
	pause := rest
	last := time.Now()
	take := func() {
		parts, gap := t.news.take()
		lost = lost || gap
		if err := t.take(parts); err != nil {
			t.watch.Failed(fmt.Errorf("routes: %w", err))
			lost = true
		}
	}
	every := t.sys.compare()
	compare := time.NewTimer(every)
	defer compare.Stop()
	if every == 0 {
		compare.Stop()
	}
	list := func(r Report, list func(*Report) error) error {
		r.Lost = lost
		began := time.Now()
		err := list(&r)
		last = time.Now()
		took := last.Sub(began)
		pause = max(rest, restShare*took)
		if every > 0 {
			compare.Reset(max(every, compareShare*took))
		}
		switch {
		case err == nil:
			lost = false
			t.watch.Listed(r)
		case !errors.Is(err, errInterrupted) && !t.closed():
			t.watch.Failed(fmt.Errorf("routes: list: %w", err))
		}
		return err
	}
	for {
		var synced chan struct{}
		select {
		case <-t.done:
			return
		case <-due.C:
			waiting = false
			_ = list(Report{}, t.list) // it has been told, and is done again
		case <-compare.C:
			_ = list(Report{Timed: true}, t.list)
		case done := <-t.asked:
			done <- list(Report{Asked: true}, t.insist)
		case synced = <-t.syncs:
		case <-t.news.ready:
		}
		take()
		if synced != nil {
			for i := 0; i < listTries && (lost || t.wantsList()); i++ {
				_ = list(Report{}, t.list)
				take()
			}
			close(synced)
		}
		if !waiting && (lost || t.wantsList()) {
			waiting = true
			due.Reset(max(settle, time.Until(last.Add(pause))))
		}
	}
}

func (t *Table) wantsList() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.table.again
}

// take takes what was read to the table.
func (t *Table) take(parts [][]byte) error {
	for _, b := range parts {
		t.mu.Lock()
		err := t.takeOne(b)
		t.mu.Unlock()
		if err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.table.resolve()
	return nil
}

func (t *Table) takeOne(b []byte) error {
	if t.table.listing {
		return nil // a list that failed comes again
	}
	return t.sys.take(t.table, b)
}

// list makes the table what the system has. What changes meanwhile is read
// afterwards.
func (t *Table) list(r *Report) error {
	began := time.Now()
	t.emptying.Lock()
	t.news.take() // the list has it, and what of it was lost
	t.emptying.Unlock()
	t.mu.Lock()
	t.table.begin()
	t.mu.Unlock()
	err := t.sys.list(func(b []byte) error {
		if t.closed() {
			return errClosed
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.sys.take(t.table, b)
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.table.again = true
		return err
	}
	t.table.end(t.news.empty())
	why := *r
	*r = t.table.report()
	r.First, r.Lost, r.Asked, r.Timed = why.First, why.Lost, why.Asked, why.Timed
	r.Took = time.Since(began)
	return nil
}

// news are what the system said and nobody has taken yet.
type news struct {
	ready chan struct{}

	mu    sync.Mutex
	parts [][]byte
	bytes int
	lost  bool
}

// add adds a copy of b.
func (n *news) add(b []byte) {
	n.mu.Lock()
	if n.bytes += len(b); n.bytes > maxNews {
		n.lost, n.parts, n.bytes = true, nil, 0
	} else if !n.lost {
		n.parts = append(n.parts, append([]byte(nil), b...))
	}
	n.mu.Unlock()
	n.wake()
}

// lose says that something is missing.
func (n *news) lose() {
	n.mu.Lock()
	n.lost, n.parts, n.bytes = true, nil, 0
	n.mu.Unlock()
	n.wake()
}

func (n *news) wake() {
	select {
	case n.ready <- struct{}{}:
	default:
	}
}

// take returns what there is. If something is missing it is nothing, for only a
// list can tell what came of it.
func (n *news) take() (parts [][]byte, lost bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	parts, lost = n.parts, n.lost
	n.parts, n.bytes, n.lost = nil, 0, false
	return parts, lost
}

func (n *news) empty() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.parts) == 0 && !n.lost
}
