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

	"nmfwd/fib/neigh"
)

// news are what the system said and nobody has taken yet: the latest of each
// neighbor, so that they need no more room than the system's table, however long
// nobody looks.
type news struct {
	mu    sync.Mutex
	last  map[neigh.Key]neigh.Update
	ready chan struct{}
}

func newNews() *news {
	return &news{last: map[neigh.Key]neigh.Update{}, ready: make(chan struct{}, 1)}
}

func (n *news) add(u neigh.Update) {
	n.mu.Lock()
	n.last[u.Key] = u
	n.mu.Unlock()
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
