package show

import (
	"context"
	"fmt"
	"sync"
	"time"

	"nmfwd/dataplane"
)

// rateEvery is how long what is told as a rate was counted.
const rateEvery = time.Second

// rates are the counters of the last seconds.
type rates struct {
	mu        sync.Mutex
	old, last reading
}

// A reading is all counters at a time.
type reading struct {
	at       time.Time
	snapshot dataplane.Snapshot
}

// follow reads the counters, every so often, until ctx is done.
func (r *rates) follow(ctx context.Context, every time.Duration, read func(*dataplane.Snapshot)) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		r.take(time.Now(), read)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (r *rates) take(now time.Time, read func(*dataplane.Snapshot)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.old, r.last = r.last, r.old
	r.last.at = now
	read(&r.last.snapshot)
}

// A rate is what moves by a port in one direction.
type rate struct{ packets, bits float64 } // per second

// port returns the rates of a device, 0 in the first second.
func (r *rates) port(i int) (rx, tx rate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.old.at.IsZero() {
		return rx, tx
	}
	s := r.last.at.Sub(r.old.at).Seconds()
	per := func(last, old traffic) rate {
		return rate{float64(last.Packets-old.Packets) / s, float64(last.Bytes-old.Bytes) * 8 / s}
	}
	a, b := sum(&r.old.snapshot.Ports[i]), sum(&r.last.snapshot.Ports[i])
	return per(b.received, a.received), per(b.transmitted, a.transmitted)
}

// busy returns the part of its time that a worker was busy, 0 in the first second.
func (r *rates) busy(worker int) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.old.at.IsZero() {
		return 0
	}
	a, b := &r.old.snapshot.Workers[worker], &r.last.snapshot.Workers[worker]
	return part(b.Busy-a.Busy, b.Idle-a.Idle)
}

// part returns the part of busy in busy and idle.
func part(busy, idle time.Duration) float64 {
	if busy+idle == 0 {
		return 0
	}
	return float64(busy) / float64(busy+idle)
}

// short writes a rate with a prefix of its unit, such as 1.49M.
func short(v float64) string {
	for _, p := range []string{"", "k", "M"} {
		switch {
		case v >= 999.5:
			v /= 1000
			continue
		case p == "" || v >= 99.95:
			return fmt.Sprintf("%.0f%s", v, p)
		case v >= 9.995:
			return fmt.Sprintf("%.1f%s", v, p)
		}
		return fmt.Sprintf("%.2f%s", v, p)
	}
	return fmt.Sprintf("%.2fG", v)
}
