package main

import (
	"fmt"
	"time"

	"nmfwd/dataplane"
)

// A sample is a reading of the counters at a time.
type sample struct {
	at                      time.Time
	packets, bytes, dropped uint64
	bursts, inBursts        uint64
	snapshot                dataplane.Snapshot
}

func (s *sample) take(r *dataplane.Forwarder) {
	s.at = time.Now()
	r.Snapshot(&s.snapshot)
	for _, p := range s.snapshot.Ports {
		for _, q := range p.TX {
			s.packets += q.Packets
			s.bytes += q.Bytes
		}
		for _, q := range p.RX {
			for _, n := range q.Dropped {
				s.dropped += n
			}
		}
	}
	for _, w := range s.snapshot.Workers {
		for _, n := range w.Batch {
			s.bursts += n
		}
		s.inBursts += w.BatchSum
	}
}

// since returns a line in the manner of pkt-gen: what was sent between two
// samples.
func (s *sample) since(old *sample) string {
	d := s.at.Sub(old.at)
	packets := float64(s.packets - old.packets)
	bits := float64(s.bytes-old.bytes) * 8
	batch := 0.0
	if n := s.bursts - old.bursts; n > 0 {
		batch = float64(s.inBursts-old.inBursts) / float64(n)
	}
	return fmt.Sprintf("%s (%s %s in %d usec) %.2f avg_batch %d dropped",
		norm(packets/d.Seconds(), "pps"), norm(packets, "pkts"), norm(bits/d.Seconds(), "bps"), d.Microseconds(), batch, s.dropped-old.dropped)
}

// norm prints a number with three decimals and a prefix of its unit.
func norm(v float64, unit string) string {
	for _, p := range []string{"", "K", "M"} {
		if v < 1000 {
			return fmt.Sprintf("%.3f %s%s", v, p, unit)
		}
		v /= 1000
	}
	return fmt.Sprintf("%.3f G%s", v, unit)
}
