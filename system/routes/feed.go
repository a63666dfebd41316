package routes

import (
	"sync"

	"nmfwd/fib"
)

// A Feed tells one reader what changes: how each prefix is followed now, once for
// all that happened to it since it was told the last time.
type Feed struct {
	table *Table
	ready chan struct{}

	mu   sync.Mutex
	news []change       // from head on
	head int            //
	at   map[prefix]int // places in news
}

// A change says how a prefix is followed now, nil for not at all.
type change struct {
	prefix prefix
	to     *fib.Route
}

// add adds a change.
func (f *Feed) add(p prefix, to *fib.Route) {
	f.mu.Lock()
	if i, ok := f.at[p]; ok {
		f.news[i].to = to
	} else {
		f.at[p] = len(f.news)
		f.news = append(f.news, change{p, to})
	}
	f.mu.Unlock()
	f.wake()
}

func (f *Feed) wake() {
	select {
	case f.ready <- struct{}{}:
	default:
	}
}

// Ready receives a value when there is something for Take.
func (f *Feed) Ready() <-chan struct{} { return f.ready }

// Take calls do for up to n prefixes that changed, in the order of the first
// change: with the route that is followed now, or gone. Ready receives another
// value if there are more.
func (f *Feed) Take(n int, do func(r fib.Route, gone bool)) {
	f.mu.Lock()
	taken := f.news[f.head:min(f.head+n, len(f.news))]
	f.head += len(taken)
	for i := range taken {
		delete(f.at, taken[i].prefix)
	}
	more := f.head < len(f.news)
	if !more {
		f.news, f.head = nil, 0 // taken is read below
		if len(taken) > 0 {
			f.at = map[prefix]int{}
		}
	}
	f.mu.Unlock()
	for _, c := range taken {
		if c.to == nil {
			do(fib.Route{Prefix: c.prefix.netip(), Origin: fib.Kernel}, true)
			continue
		}
		r := *c.to
		r.Prefix = c.prefix.netip()
		do(r, false)
	}
	if more {
		f.wake()
	}
}

// Close ends the feed.
func (f *Feed) Close() { f.table.remove(f) }
