// Package neighbors follows the neighbor table of the system and has it find out
// neighbors: where a host stack owns ARP and Neighbor Discovery and frames of
// these never come to the router, as on AF_XDP ports with a host.
//
// The system does not see the packets that the router forwards. Ask makes it
// believe that it sends one itself: it solicits what it does not know and
// verifies what it has not heard of for long.
package neighbors

import (
	"sync"

	"nmfwd/neigh"
)

// news are what the system said and nobody has taken yet: the latest of each
// neighbor, so that they need no more room than the system's table, however long
// nobody looks.
type news struct {
	mu    sync.Mutex
	last  map[neigh.Key]neigh.Update
	known map[neigh.Key]neigh.Update // those that the system has a MAC address of
	ready chan struct{}
}

func newNews() *news {
	return &news{last: map[neigh.Key]neigh.Update{}, known: map[neigh.Key]neigh.Update{}, ready: make(chan struct{}, 1)}
}

// add takes what the system said. One that fails after it was known is gone: the
// system asks anew for the next packet, and nobody that waits is told anything.
func (n *news) add(u neigh.Update) {
	n.mu.Lock()
	_, known := n.known[u.Key]
	switch {
	case u.Gone || u.State == neigh.Failed || u.State == neigh.Incomplete:
		u.Gone = u.Gone || known && u.State == neigh.Failed
		delete(n.known, u.Key)
	default:
		n.known[u.Key] = u
	}
	n.last[u.Key] = u
	n.mu.Unlock()
	n.announce()
}

// repeat says what is known of k, which is asked for: the system does not say again
// what it has said, nor that it will verify what is stale.
func (n *news) repeat(k neigh.Key) {
	n.mu.Lock()
	u, known := n.known[k]
	if u.State == neigh.Stale {
		u.State = neigh.Delay
	}
	if _, told := n.last[k]; known && !told {
		n.last[k] = u
	}
	n.mu.Unlock()
	if known {
		n.announce()
	}
}

func (n *news) announce() {
	select {
	case n.ready <- struct{}{}:
	default:
	}
}

func (n *news) take(f func(neigh.Update)) {
	n.mu.Lock()
	last := n.last
	n.last = map[neigh.Key]neigh.Update{}
	n.mu.Unlock()
	for _, u := range last {
		f(u)
	}
}
