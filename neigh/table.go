package neigh

import (
	"container/heap"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"nmfwd/wire"
)

// Limits.
const (
	// MaxUnanswered is how many neighbors of a port may be unknown at a time,
	// gateways aside: asked for and without an answer. When there are more, the
	// oldest is forgotten. It keeps a scan of addresses out of the rest of the
	// table.
	MaxUnanswered = 1024

	// AskRate and AskBurst limit the questions for unknown neighbors that a
	// port sends, per second and at once. Those for gateways and the
	// verification of known neighbors are not among them.
	AskRate  = 1000
	AskBurst = 200
)

// A Table holds the neighbors of the router.
type Table struct {
	max       int
	now       time.Duration  // of the last call
	random    func() float64 // in [0, 1)
	entries   map[Key]*entry
	ports     []portTable
	timers    timers
	events    []Event
	counts    [2][NumStates]atomic.Int64 // by familyIndex
	conflicts [][NumConflicts]atomic.Uint64
}

// A portTable is the part of a Table for one port.
type portTable struct {
	source  Source
	old     [numClasses]list // what may be forgotten, oldest first
	asks    float64          // questions that may be sent
	askedAt time.Duration    // when asks was right
}

// held returns how many entries of the port are in the first classes.
func (p *portTable) held(classes int) (n int) {
	for c := range classes {
		n += p.old[c].n
	}
	return n
}

// The classes of entries that may be forgotten for others, first ones first.
const (
	classFailed = iota
	classStale
	classIncomplete
	classUsed // only for a port that holds less
	numClasses
	classNone = numClasses // never: static ones, gateways
)

// An entry is a neighbor with what the state machine needs.
type entry struct {
	Entry
	kept     bool          // a gateway: kept known whether packets come or not
	asks     int           // sent and not answered in this state
	since    time.Duration // when its state was entered, or confirmed
	deadline time.Duration // when something happens by itself
	timer    int           // index in timers, -1 for none

	told      bool     // forwarding knows of the neighbor
	toldMAC   wire.MAC // what it knows
	toldStale bool

	class      int    // one of the port's lists, classNone for none
	prev, next *entry // in it
}

// New returns an empty table that holds at most max entries, for the ports
// whose neighbors come from sources.
func New(sources []Source, max int) *Table {
	t := &Table{
		max:       max,
		random:    rand.Float64,
		entries:   map[Key]*entry{},
		ports:     make([]portTable, len(sources)),
		conflicts: make([][NumConflicts]atomic.Uint64, len(sources)),
	}
	for i := range t.ports {
		p := &t.ports[i]
		p.source, p.asks = sources[i], AskBurst
		for c := range p.old {
			p.old[c].init()
		}
	}
	return t
}

// Lookup returns the entry of addr on port.
func (t *Table) Lookup(port uint16, addr netip.Addr) (Entry, bool) {
	if e := t.entries[Key{port, addr}]; e != nil {
		return e.Entry, true
	}
	return Entry{}, false
}

// Len returns the number of entries.
func (t *Table) Len() int { return len(t.entries) }

// All returns the entries, ordered by port and address.
func (t *Table) All() []Entry {
	all := make([]Entry, 0, len(t.entries))
	for e := range maps.Values(t.entries) {
		all = append(all, e.Entry)
	}
	slices.SortFunc(all, func(a, b Entry) int { return a.compare(b.Key) })
	return all
}

// Each yields the entries in no order, each with the time at which its state was
// entered or last confirmed. Other methods may be called between two of them: what
// they add is yielded or not, what they remove is not.
func (t *Table) Each() iter.Seq2[Entry, time.Duration] {
	return func(yield func(Entry, time.Duration) bool) {
		for _, e := range t.entries {
			if !yield(e.Entry, e.since) {
				return
			}
		}
	}
}

// Count returns the number of entries of an address family, 4 or 6, in state s.
// It may be called from any goroutine.
func (t *Table) Count(family int, s State) int {
	return int(t.counts[familyIndex(family == 6)][s].Load())
}

// Conflicts returns how many conflicts of kind c were seen on port. It may be
// called from any goroutine.
func (t *Table) Conflicts(port uint16, c Conflict) uint64 { return t.conflicts[port][c].Load() }

// Replace makes static the static entries of the table, in place of those that
// there were, and max the number of all entries that it may hold; others stay as
// far as there is room. When one of static cannot be an entry, nothing is
// changed: the error says why, or is [ErrFull].
func (t *Table) Replace(static map[Key]wire.MAC, max int) error {
	if len(static) > max {
		return fmt.Errorf("%d neighbors: %w (%d entries)", len(static), ErrFull, max)
	}
	for k, mac := range static {
		if err := t.check(k, mac); err != nil {
			return err
		}
	}
	t.max = max
	for k, e := range t.entries {
		if _, ok := static[k]; !ok && e.State == Static {
			t.remove(e)
		}
	}
	for k, mac := range static {
		e := t.entries[k]
		if e == nil {
			e = t.insert(k)
		}
		e.MAC = mac
		t.enter(e, Static, 0)
	}
	for len(t.entries) > max && t.evict(nobody) {
	}
	for _, e := range t.entries {
		if len(t.entries) <= max {
			break
		}
		if e.State != Static {
			t.remove(e)
		}
	}
	return nil
}

// Claim compares with the table what a frame received on p says: that addr is
// at mac. A claim that contradicts what is known for certain is counted. A
// static entry is contradicted by any other MAC address, an address of the
// router by one that is not the router's.
func (t *Table) Claim(p *Port, addr netip.Addr, mac wire.MAC) Conflict {
	c := NoConflict
	if p.Owns(addr) {
		if !p.IsOwnMAC(mac) {
			c = OwnAddressConflict
		}
	} else if e := t.entries[Key{p.Num, addr}]; e != nil && e.State == Static && e.MAC != mac {
		c = StaticConflict
	}
	if c != NoConflict {
		t.conflicts[p.Num][c].Add(1)
	}
	return c
}

func (t *Table) check(k Key, mac wire.MAC) error {
	switch {
	case int(k.Port) >= len(t.ports):
		return fmt.Errorf("neighbor %s: no port %d", k.Addr, k.Port)
	case !isNeighbor(k.Addr):
		return fmt.Errorf("neighbor %s: not the address of a neighbor", k.Addr)
	case !IsUnicast(mac):
		b := mac.Bytes()
		return fmt.Errorf("neighbor %s: %s is not a unicast MAC address", k.Addr, net.HardwareAddr(b[:]))
	}
	return nil
}

// create returns a new entry, or nil when the table is full of entries that are
// better.
func (t *Table) create(k Key) *entry {
	if len(t.entries) >= t.max && !t.evict(int(k.Port)) {
		return nil
	}
	return t.insert(k)
}

func (t *Table) insert(k Key) *entry {
	e := &entry{Entry: Entry{Key: k}, timer: -1, class: classNone}
	t.entries[k] = e
	t.count(e, 1)
	return e
}

func (t *Table) count(e *entry, n int64) {
	t.counts[familyIndex(e.Addr.Is6())][e.State].Add(n)
}

// nobody is no port.
const nobody = -1

// evict forgets an entry for one more of a port, or for nobody's, and reports
// whether there was one. The port that holds most gives way first, so that none
// fills the table at the cost of others: what failed, what is stale, what is asked
// for, and only for a port that holds less what is in use; each time the oldest.
// When the port itself holds most and uses all of it, others give what they do
// not use or ask for.
func (t *Table) evict(port int) bool {
	most := t.most(port, numClasses)
	if most != nil && port != nobody && most == &t.ports[port] && most.held(classUsed) == 0 {
		most = t.most(port, classIncomplete)
	}
	if most == nil {
		return false
	}
	for c := range most.old {
		if e := most.old[c].first(); e != nil {
			t.remove(e)
			break
		}
	}
	return true
}

// most returns the port that holds most, where one more is to be port's, of those
// that hold something of the first classes; nil for none.
func (t *Table) most(port, classes int) (most *portTable) {
	held := 0
	for i := range t.ports {
		p := &t.ports[i]
		if p.held(classes) == 0 {
			continue
		}
		n := p.held(numClasses)
		if i == port {
			n++
		}
		if n > held || n == held && i == port {
			most, held = p, n
		}
	}
	return most
}

// remove forgets e.
func (t *Table) remove(e *entry) {
	t.schedule(e, 0)
	t.classify(e, classNone)
	t.count(e, -1)
	delete(t.entries, e.Key)
	if e.told || e.State == Incomplete {
		t.tell(Event{Kind: Gone, Key: e.Key})
	}
}

func (e *entry) unanswered() bool { return e.State == Incomplete || e.State == Failed }

// classify puts e at the end of the list of class c.
func (t *Table) classify(e *entry, c int) {
	if e.class != classNone {
		t.ports[e.Port].old[e.class].remove(e)
	}
	if e.class = c; c != classNone {
		t.ports[e.Port].old[c].append(e)
	}
}

// schedule makes something happen to e at a time; 0 means never.
func (t *Table) schedule(e *entry, at time.Duration) {
	e.deadline = at
	switch {
	case at == 0 && e.timer >= 0:
		heap.Remove(&t.timers, e.timer)
	case at == 0:
	case e.timer >= 0:
		heap.Fix(&t.timers, e.timer)
	default:
		heap.Push(&t.timers, e)
	}
}

// A list is a ring of entries around a head that is none.
type list struct {
	head entry
	n    int
}

func (l *list) init() { l.head.prev, l.head.next = &l.head, &l.head }

func (l *list) first() *entry {
	if l.n == 0 {
		return nil
	}
	return l.head.next
}

func (l *list) append(e *entry) {
	e.prev, e.next = l.head.prev, &l.head
	e.prev.next, e.next.prev = e, e
	l.n++
}

func (l *list) remove(e *entry) {
	e.prev.next, e.next.prev = e.next, e.prev
	e.prev, e.next = nil, nil
	l.n--
}

// timers are the entries to which something happens by itself, as a heap: the
// next one first.
type timers []*entry

func (h timers) Len() int           { return len(h) }
func (h timers) Less(i, j int) bool { return h[i].deadline < h[j].deadline }

func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].timer, h[j].timer = i, j
}

// Push is part of heap.Interface.
func (h *timers) Push(x any) {
	e := x.(*entry)
	e.timer = len(*h)
	*h = append(*h, e)
}

// Pop is part of heap.Interface.
func (h *timers) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	e.timer = -1
	return e
}
