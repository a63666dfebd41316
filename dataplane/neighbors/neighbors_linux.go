package neighbors

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"nmfwd/dataplane/wire"
	"nmfwd/fib/neigh"
)

const (
	// buffer is the size in bytes of the socket's buffer, as far as the system
	// grants it: room for some thousand changes at once.
	buffer = 1 << 20

	askTimeout = time.Second            // the longest that control waits for the system
	retry      = 100 * time.Millisecond // until a broken subscription is tried again
)

// A Table follows the system's table for some interfaces.
type Table struct {
	*news
	ports   map[int]uint16 // port number by interface index
	indexes map[uint16]int
	ns      netns.NsHandle
	handle  *netlink.Handle // for questions and lists
	note    func(string)
	known   map[neigh.Key]bool // what the system has, as told; of the goroutine
	done    chan struct{}
	running sync.WaitGroup
}

// Open follows the table for interfaces, which are named with the numbers of
// their ports, in the network namespace of the calling thread. Note is told what
// an operator may have to know.
func Open(interfaces map[string]uint16, note func(string)) (_ *Table, err error) {
	t := &Table{
		news: newNews(), ports: map[int]uint16{}, indexes: map[uint16]int{}, ns: netns.None(),
		note: note, known: map[neigh.Key]bool{}, done: make(chan struct{}),
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("neighbors: %w", err), t.release())
		}
	}()
	for name, port := range interfaces {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", name, err)
		}
		t.ports[i.Index], t.indexes[port] = port, i.Index
	}
	if t.ns, err = netns.Get(); err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	if t.handle, err = netlink.NewHandleAt(t.ns, unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	if err = t.handle.SetSocketTimeout(askTimeout); err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	s, err := t.subscribe()
	if err != nil {
		return nil, err
	}
	t.running.Go(func() { t.run(s) })
	return t, nil
}

// Close ends following.
func (t *Table) Close() error {
	close(t.done)
	t.running.Wait()
	return t.release()
}

func (t *Table) release() error {
	if t.handle != nil {
		t.handle.Close()
	}
	if !t.ns.IsOpen() {
		return nil
	}
	return t.ns.Close()
}

// Ready receives a value when there is something for Take.
func (t *Table) Ready() <-chan struct{} { return t.ready }

// Take calls f for what is new since the last call: the latest of each neighbor,
// in no order.
func (t *Table) Take(f func(neigh.Update)) { t.take(f) }

// Ask has the system find out k, or verify it. The answer comes by Take.
func (t *Table) Ask(k neigh.Key) error {
	err := t.handle.NeighSet(&netlink.Neigh{LinkIndex: t.indexes[k.Port], IP: k.Addr.AsSlice(), State: netlink.NUD_NONE, Flags: netlink.NTF_USE})
	if err != nil {
		return fmt.Errorf("neighbors: ask for %s: %w", k.Addr, err)
	}
	return nil
}

// A subscription is a stream of changes.
type subscription struct {
	updates chan netlink.NeighUpdate
	done    chan struct{}
	err     error // why updates was closed
}

// subscribe begins a stream and takes the table as it is.
func (t *Table) subscribe() (*subscription, error) {
	s := &subscription{updates: make(chan netlink.NeighUpdate), done: make(chan struct{})}
	err := netlink.NeighSubscribeWithOptions(s.updates, s.done, netlink.NeighSubscribeOptions{
		Namespace: &t.ns, ReceiveBufferSize: buffer,
		ErrorCallback: func(err error) { s.err = err },
	})
	if err != nil {
		close(s.done)
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	if err := t.list(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *subscription) close() {
	close(s.done)
	for range s.updates { // until the reader has ended
	}
}

// list takes the table as it is. Changes that the stream holds from before are
// followed there by those that led to what the list says.
func (t *Table) list() error {
	gone := maps.Clone(t.known)
	for index := range t.ports {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			ns, err := t.handle.NeighList(index, family)
			if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // what changed meanwhile is in the stream
				return fmt.Errorf("list: %w", err)
			}
			for i := range ns {
				if u, ok := t.update(&ns[i], false); ok {
					delete(gone, u.Key)
					t.tell(u)
				}
			}
		}
	}
	for k := range gone {
		t.tell(neigh.Update{Entry: neigh.Entry{Key: k}, Gone: true})
	}
	return nil
}

// run reads s, and the subscriptions that have to take its place.
func (t *Table) run(s *subscription) {
	for {
		open := true
		for open {
			var u netlink.NeighUpdate
			select {
			case <-t.done:
				s.close()
				return
			case u, open = <-s.updates:
				if v, ok := t.update(&u.Neigh, u.Type == unix.RTM_DELNEIGH); open && ok {
					t.tell(v)
				}
			}
		}
		s.close()
		if !errors.Is(s.err, unix.ENOBUFS) { // more changes at once than the buffer holds are nothing to tell
			t.note(fmt.Sprintf("neighbors: the stream of changes ended and is opened again: %v", s.err))
		}
		for s = nil; s == nil; {
			select {
			case <-t.done:
				return
			case <-time.After(retry):
			}
			var err error
			if s, err = t.subscribe(); err != nil {
				t.note(err.Error())
			}
		}
	}
}

func (t *Table) tell(u neigh.Update) {
	if u.Gone {
		delete(t.known, u.Key)
	} else {
		t.known[u.Key] = true
	}
	t.add(u)
}

// update returns what a message says, and whether it is about a neighbor of a
// port.
func (t *Table) update(n *netlink.Neigh, deleted bool) (u neigh.Update, ok bool) {
	port, ok := t.ports[n.LinkIndex]
	addr, isAddr := netip.AddrFromSlice(n.IP)
	if !ok || !isAddr || addr.IsMulticast() || n.Flags&netlink.NTF_PROXY != 0 || n.Family != unix.AF_INET && n.Family != unix.AF_INET6 {
		return u, false
	}
	if n.Family == unix.AF_INET {
		addr = addr.Unmap()
	}
	u.Key = neigh.Key{Port: port, Addr: addr}
	u.State, ok = stateOf(n.State)
	u.Gone = deleted || !ok
	if len(n.HardwareAddr) == 6 {
		u.MAC = wire.MACOf(n.HardwareAddr)
	}
	return u, true
}

// stateOf returns what the state of a neighbor of the system means (linux/neighbour.h),
// false for none.
func stateOf(nud int) (neigh.State, bool) {
	switch {
	case nud&(netlink.NUD_PERMANENT|netlink.NUD_NOARP|netlink.NUD_REACHABLE) != 0:
		return neigh.Reachable, true
	case nud&netlink.NUD_STALE != 0:
		return neigh.Stale, true
	case nud&netlink.NUD_DELAY != 0:
		return neigh.Delay, true
	case nud&netlink.NUD_PROBE != 0:
		return neigh.Probe, true
	case nud&netlink.NUD_INCOMPLETE != 0:
		return neigh.Incomplete, true
	case nud&netlink.NUD_FAILED != 0:
		return neigh.Failed, true
	}
	return 0, false
}
