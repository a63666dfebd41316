// Package fake is a netmap kernel in ordinary memory, for tests: it has network
// cards, VALE switches and pipes, divides regions into pools, and answers
// requests and syncs as the real one was seen to, errors included. A card
// remembers the buffer that each slot had when it was last told, so that a
// change without abi.BufChanged has the effect that it has on hardware.
//
// What a real kernel would suffer in silence is kept as a fault (see Faults):
// buffers freed twice or leaked, slots with flags that must not be set, calls
// that would have blocked (those of a kernel that Blocks do block).
package fake

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane/netmap"
	"nmfwd/dataplane/netmap/abi"
)

// Params are the sizes of the pools of the region that cards share.
type Params struct{ Ifs, Rings, Bufs, BufSize int }

// DefaultParams are small, but enough for several ports.
var DefaultParams = Params{Ifs: 64, Rings: 128, Bufs: 1200, BufSize: 2048}

// A Kernel is a netmap kernel. It implements netmap.Kernel.
type Kernel struct {
	// Missing says that there is no netmap device, Forbidden that it may not be
	// opened.
	Missing, Forbidden bool

	// Polls says that descriptors can be polled, with Poll.
	Polls bool

	// LockFree says that Poll behaves as on FreeBSD: it syncs no RX ring while
	// all have slots that were not looked at.
	LockFree bool

	// Blocks says that calls on a card that is down wait until it is up, as on
	// Linux. Without it they are a fault.
	Blocks bool

	// TellsUse says that Interface tells which cards are in netmap mode, as on
	// FreeBSD.
	TellsUse bool

	// Others is what Users returns.
	Others string

	// Caller tells who makes a call. If it is set, a ring that is synced by two
	// callers is a fault.
	Caller func() int

	// Quiet says that there is no news of links.
	Quiet bool

	// MinVersion and MaxVersion are the versions that requests may have.
	MinVersion, MaxVersion uint16

	mu       sync.Mutex
	up       *sync.Cond // some card came up or went
	waiting  int        // calls that are blocked
	calls    int        // syncs and polls
	news     map[*links]bool
	params   Params
	cards    map[string]*Card
	adapters map[string]*adapter
	regions  map[uint16]*region
	parents  map[string]*region // of pipes without a card
	files    map[int]*file
	maps     map[*byte]*region
	used     map[int][][]uint64 // memory of regions that are gone, by words
	nextFD   int
	trace    []string
	faults   []string
}

// New returns a kernel without cards.
func New(p Params) *Kernel {
	k := &Kernel{
		news:  map[*links]bool{},
		Polls: true, MinVersion: 14, MaxVersion: 15, params: p,
		cards: map[string]*Card{}, adapters: map[string]*adapter{}, regions: map[uint16]*region{}, parents: map[string]*region{},
		files: map[int]*file{}, maps: map[*byte]*region{}, used: map[int][][]uint64{}, nextFD: 1 << 20,
	}
	k.up = sync.NewCond(&k.mu)
	return k
}

// Calls returns the number of syncs and polls so far.
func (k *Kernel) Calls() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.calls
}

// Occupy lets another program open the card called name, and returns a function
// that ends it.
func (k *Kernel) Occupy(name string, exclusive bool) (end func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := &abi.Register{Mode: abi.ModeAllNIC}
	if exclusive {
		r.Flags = abi.Exclusive
	}
	k.nextFD++
	f := &file{fd: k.nextFD}
	k.files[f.fd] = f
	if err := k.register(f, name, r); err != nil {
		panic(err)
	}
	f.a.region.ifAt(f.ifOff).BufsHead = 0
	return func() { k.Close(f.fd) }
}

// Blocked returns the number of calls that wait for a card.
func (k *Kernel) Blocked() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.waiting
}

// Faults returns what a real kernel would not have reported.
func (k *Kernel) Faults() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, f := range k.faults {
		errs = append(errs, errors.New(f))
	}
	return errors.Join(errs...)
}

func (k *Kernel) fault(format string, a ...any) {
	if len(k.faults) < 20 {
		k.faults = append(k.faults, fmt.Sprintf(format, a...))
	}
}

// Trace returns and forgets the calls so far, one line each, syncs and polls
// excepted.
func (k *Kernel) Trace() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.trace
	k.trace = nil
	return t
}

func (k *Kernel) note(format string, a ...any) { k.trace = append(k.trace, fmt.Sprintf(format, a...)) }

// Idle returns an error when something is still open, mapped or allocated.
func (k *Kernel) Idle() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.news) > 0 {
		return fmt.Errorf("fake: %d listeners to links are left", len(k.news))
	}
	if len(k.files) > 0 || len(k.maps) > 0 || len(k.adapters) > 0 || len(k.regions) > 0 {
		return fmt.Errorf("fake: %d descriptors, %d mappings, %d ports and %d regions are left", len(k.files), len(k.maps), len(k.adapters), len(k.regions))
	}
	return nil
}

// A file is an open descriptor.
type file struct {
	fd     int
	a      *adapter // nil until registered
	rx, tx []*kring // bound
	ifOff  int      // of its netmap_if
	closed bool     // but mapped
}

// Open implements netmap.Kernel.
func (k *Kernel) Open() (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.Missing:
		return -1, &os.PathError{Op: "open", Path: abi.Device, Err: unix.ENOENT}
	case k.Forbidden:
		return -1, &os.PathError{Op: "open", Path: abi.Device, Err: unix.EACCES}
	}
	k.nextFD++
	k.files[k.nextFD] = &file{fd: k.nextFD}
	return k.nextFD, nil
}

// Pollable implements netmap.Kernel.
func (k *Kernel) Pollable() bool { return k.Polls }

// SetBufSize implements netmap.Kernel.
func (k *Kernel) SetBufSize(size int) (restore func() error, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.params.BufSize
	k.params.BufSize = size
	return func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.params.BufSize = old
		return nil
	}, nil
}

// BufSize returns the size of buffers in regions that get their first user from
// now on.
func (k *Kernel) BufSize() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.params.BufSize
}

// Interface implements netmap.Kernel.
func (k *Kernel) Interface(name string) (netmap.Interface, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.cards[name]
	if c == nil || c.Gone {
		return netmap.Interface{}, unix.ENXIO
	}
	i := c.Interface
	i.InUse = k.TellsUse && k.adapters[name] != nil
	return i, nil
}

// Link implements netmap.Kernel.
func (k *Kernel) Link(name string) (up, carrier bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.cards[name]
	if c == nil || c.Gone {
		return false, false, unix.ENXIO
	}
	if c.bouncing > 0 {
		c.bouncing--
		return c.Up, false, nil
	}
	return c.Up, c.Carrier, nil
}

// links are the news for one listener.
type links struct {
	k       *Kernel
	c, done chan struct{}
}

// Links implements netmap.Kernel.
func (k *Kernel) Links() (netmap.Links, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.Quiet {
		return nil, unix.EPERM
	}
	l := &links{k, make(chan struct{}, 1), make(chan struct{})}
	k.news[l] = true
	return l, nil
}

func (l *links) Wait() error {
	select {
	case <-l.c:
		return nil
	case <-l.done:
		return os.ErrClosed
	}
}

func (l *links) Close() error {
	l.k.mu.Lock()
	defer l.k.mu.Unlock()
	delete(l.k.news, l)
	close(l.done)
	return nil
}

// Received implements netmap.Kernel.
func (k *Kernel) Received(name string) (uint64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.cards[name]
	if c == nil || c.Gone {
		return 0, unix.ENXIO
	}
	return c.received, nil
}

// Users implements netmap.Kernel.
func (k *Kernel) Users() string { return k.Others }

// Unmap implements netmap.Kernel. Of several mappings of a region it ends the
// oldest.
func (k *Kernel) Unmap(mem []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.maps[&mem[0]]
	if r == nil {
		return unix.EINVAL
	}
	k.note("unmap")
	f := r.mappers[0]
	if r.mappers = r.mappers[1:]; len(r.mappers) == 0 {
		delete(k.maps, &mem[0])
	}
	if f.closed && !slices.Contains(r.mappers, f) {
		k.unbind(f)
	}
	k.release(r)
	return nil
}

// Close implements netmap.Kernel. A descriptor that is mapped stays bound to its
// rings until it is unmapped.
func (k *Kernel) Close(fd int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.files[fd]
	if f == nil {
		return unix.EBADF
	}
	delete(k.files, fd)
	if f.a == nil {
		return nil
	}
	k.note("close %d", fd)
	if f.closed = slices.Contains(f.a.region.mappers, f); !f.closed {
		k.unbind(f)
	}
	return nil
}
