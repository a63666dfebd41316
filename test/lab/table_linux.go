package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"nmfwd/test/lab/apu2"
)

// faults returns an error for each thing that must not happen.
func (r *round) faults(overload bool) error {
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf("IPv%d: "+format, append([]any{r.family}, args...)...))
		}
	}
	fault(r.res.Received == 0, "nothing arrived")
	fault(r.res.Lost > 0 && !overload, "%d frames lost", r.res.Lost)
	fault(r.res.Duplicated > 0, "%d frames duplicated", r.res.Duplicated)
	fault(r.res.Reordered > 0, "%d frames out of order", r.res.Reordered)
	fault(r.res.Wrong > 0, "%d frames with wrong bytes", r.res.Wrong)
	for _, err := range r.res.Errors {
		fault(true, "%w", err)
	}
	fault(r.res.Sampled == 0, "no frame was compared in user space")
	for i, n := range r.bySent {
		fault(n == 0, "sender %d sent nothing", i)
	}
	if r.metrics == nil {
		return errors.Join(errs...)
	}
	fault(r.atRest != nil, "not accounted for: %w", r.atRest)
	for _, direction := range []string{"receive", "transmit"} {
		byQueue := r.byQueue(direction)
		fault(len(byQueue) != queues, "%s counters of %d queues, want %d", direction, len(byQueue), queues)
		for q, n := range byQueue {
			fault(n == 0, "queue %s: no traffic in direction %s", q, direction)
		}
	}
	forwarded := r.metrics.Sum("nmfwd_forwarded_packets_total", `device="igb1"`, fmt.Sprintf(`family="ipv%d"`, r.family))
	fault(forwarded < float64(r.res.Received), "nmfwd counts %.0f forwarded, %d arrived", forwarded, r.res.Received)
	if !overload {
		for reason, n := range r.dropped() {
			fault(true, "nmfwd dropped %.0f: %s", n, reason)
		}
	}
	return errors.Join(errs...)
}

// byQueue returns the packets of the queues that the flows use: received by
// igb1, transmitted by igb2.
func (r *round) byQueue(direction string) map[string]float64 {
	device := map[string]string{"receive": apu2.IGB1, "transmit": apu2.IGB2}[direction]
	return r.metrics.By("queue", "nmfwd_"+direction+"_packets_total", `device="`+device+`"`)
}

// dropped returns nmfwd's drops by reason, without those that did not happen.
func (r *round) dropped() map[string]float64 {
	d := r.metrics.By("reason", "nmfwd_dropped_packets_total")
	maps.DeleteFunc(d, func(_ string, n float64) bool { return n == 0 })
	return d
}

// table prints what happened, one column for each family.
func table(w io.Writer, rounds []*round, nmfwd bool) {
	row := func(name string, value func(*round) string) {
		fmt.Fprintf(w, "%-34s", name)
		for _, r := range rounds {
			fmt.Fprintf(w, "%16s", value(r))
		}
		fmt.Fprintln(w)
	}
	count := func(name string, n func(*round) float64) {
		row(name, func(r *round) string { return grouped(n(r)) })
	}
	// counts prints a row for each key that any round has.
	counts := func(name string, of func(*round) map[string]float64) {
		keys := map[string]bool{}
		for _, r := range rounds {
			for k := range of(r) {
				keys[k] = true
			}
		}
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			count(name+k, func(r *round) float64 { return of(r)[k] })
		}
	}
	fmt.Fprintln(w)
	row("", func(r *round) string { return fmt.Sprintf("IPv%d", r.family) })
	count("sent", func(r *round) float64 { return float64(r.res.Sent) })
	count("received", func(r *round) float64 { return float64(r.res.Received) })
	count("received per second", func(r *round) float64 { return float64(r.res.Received) / r.elapsed.Seconds() })
	count("flows", func(r *round) float64 { return float64(r.res.Flows) })
	count("lost", func(r *round) float64 { return float64(r.res.Lost) })
	count("duplicated", func(r *round) float64 { return float64(r.res.Duplicated) })
	count("out of order in their flow", func(r *round) float64 { return float64(r.res.Reordered) })
	count("wrong in a byte", func(r *round) float64 { return float64(r.res.Wrong) })
	count("compared in user space as well", func(r *round) float64 { return float64(r.res.Sampled) })
	counts("dropped by the kernel into ", func(r *round) map[string]float64 {
		d := map[string]float64{}
		for port, n := range r.kernel {
			if n > 0 {
				d[port] = float64(n)
			}
		}
		return d
	})
	if nmfwd {
		counts("dropped by nmfwd: ", (*round).dropped)
		count("dropped by nmfwd", func(r *round) float64 { return r.metrics.Sum("nmfwd_dropped_packets_total") })
		count("lost to a full receive ring", func(r *round) float64 { return r.metrics.Sum("nmfwd_ring_full_total", `direction="rx"`) })
		counts("received by igb1 queue ", func(r *round) map[string]float64 { return r.byQueue("receive") })
		counts("sent by igb2 queue ", func(r *round) map[string]float64 { return r.byQueue("transmit") })
		row("CPU of nmfwd", func(r *round) string {
			return fmt.Sprintf("%.0f%%", 100*r.cpu.Seconds()/r.elapsed.Seconds())
		})
	}
	for i, name := range []string{"delay, median", "delay, 99% below", "delay, greatest"} {
		row(name, func(r *round) string {
			d := r.res.Delay
			v := [...]float64{d.Median.Seconds(), d.P99.Seconds(), d.Max.Seconds()}[i]
			if v == 0 {
				return "-" // the smallest IPv6 frame has no room for a time
			}
			return fmt.Sprintf("%.0f us", v*1e6)
		})
	}
}

// grouped prints a number with commas.
func grouped(v float64) string {
	s := strconv.FormatFloat(v, 'f', 0, 64)
	var parts []string
	for len(s) > 3 {
		parts = append([]string{s[len(s)-3:]}, parts...)
		s = s[:len(s)-3]
	}
	return strings.Join(append([]string{s}, parts...), ",")
}
