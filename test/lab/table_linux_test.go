package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"nmfwd/test/lab/apu2"
	"nmfwd/test/lab/traffic"
)

// goodRound returns a round without fault.
func goodRound() *round {
	return &round{
		family: 4,
		res: &traffic.Result{Sent: 400_000, Received: 400_000, Sampled: 25_000, Flows: 2000,
			Delay: traffic.Delay{Median: 20 * time.Microsecond, P99: 100 * time.Microsecond, Max: 1234 * time.Microsecond}},
		elapsed: 4 * time.Second,
		bySent:  []uint64{200_000, 200_000},
		cpu:     2 * time.Second,
		kernel:  map[string]uint64{"igb1": 0, "rcv0": 0},
		metrics: apu2.Metrics{
			`nmfwd_receive_packets_total{device="igb1",queue="0"}`:                   200_001,
			`nmfwd_receive_packets_total{device="igb1",queue="1"}`:                   200_000,
			`nmfwd_forwarded_packets_total{device="igb1",queue="0",family="ipv4"}`:   200_000,
			`nmfwd_forwarded_packets_total{device="igb1",queue="1",family="ipv4"}`:   200_000,
			`nmfwd_host_packets_total{device="igb1",queue="0",direction="to_host"}`:  1,
			`nmfwd_transmit_packets_total{device="igb2",queue="0"}`:                  200_000,
			`nmfwd_transmit_packets_total{device="igb2",queue="1"}`:                  200_000,
			`nmfwd_dropped_packets_total{device="igb1",queue="0",reason="no_route"}`: 0,
		},
	}
}

func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name     string
		change   func(*round)
		overload bool
		want     string // part of the fault, "" for none
	}{
		{"none", func(*round) {}, false, ""},
		{"lost", func(r *round) { r.res.Lost = 1 }, false, "1 frames lost"},
		{"lost at overload", func(r *round) { r.res.Lost = 1 }, true, ""},
		{"nothing received", func(r *round) { r.res.Received = 0 }, true, "nothing arrived"},
		{"duplicated", func(r *round) { r.res.Duplicated = 2 }, true, "2 frames duplicated"},
		{"reordered", func(r *round) { r.res.Reordered = 3 }, true, "3 frames out of order"},
		{"wrong", func(r *round) { r.res.Wrong = 4 }, true, "4 frames with wrong bytes"},
		{"wrong frame", func(r *round) { r.res.Errors = []error{errors.New("byte 22 is 0x40")} }, true, "byte 22 is 0x40"},
		{"no sample", func(r *round) { r.res.Sampled = 0 }, true, "no frame was compared"},
		{"idle sender", func(r *round) { r.bySent[1] = 0 }, true, "sender 1 sent nothing"},
		{"not conserved", func(r *round) { r.atRest = errors.New("igb1: received 2") }, true, "not accounted for: igb1: received 2"},
		{"idle receive queue", func(r *round) { r.metrics[`nmfwd_receive_packets_total{device="igb1",queue="1"}`] = 0 }, true, "queue 1: no traffic in direction receive"},
		{"idle transmit queue", func(r *round) { r.metrics[`nmfwd_transmit_packets_total{device="igb2",queue="0"}`] = 0 }, true, "queue 0: no traffic in direction transmit"},
		{"one queue", func(r *round) { delete(r.metrics, `nmfwd_transmit_packets_total{device="igb2",queue="0"}`) }, true, "transmit counters of 1 queues"},
		{"too few counted", func(r *round) {
			r.metrics[`nmfwd_forwarded_packets_total{device="igb1",queue="0",family="ipv4"}`]--
		}, true, "nmfwd counts 399999 forwarded, 400000 arrived"},
		{"dropped", func(r *round) {
			r.metrics[`nmfwd_dropped_packets_total{device="igb1",queue="0",reason="no_route"}`] = 1
		}, false, "nmfwd dropped 1: no_route"},
		{"the kernel forwards", func(r *round) { r.metrics = nil }, false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := goodRound()
			tt.change(r)
			got := ""
			if err := r.faults(tt.overload); err != nil {
				got = err.Error()
			}
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("faults: %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTable(t *testing.T) {
	r := goodRound()
	r.metrics[`nmfwd_dropped_packets_total{device="igb1",queue="0",reason="no_route"}`] = 1
	r.kernel["igb1"] = 7
	var b strings.Builder
	table(&b, []*round{r}, true)
	const want = `
                                              IPv4
sent                                       400,000
received                                   400,000
received per second                        100,000
flows                                        2,000
lost                                             0
duplicated                                       0
out of order in their flow                       0
wrong in a byte                                  0
compared in user space as well              25,000
dropped by the kernel into igb1                  7
dropped by nmfwd: no_route                       1
dropped by nmfwd                                 1
lost to a full receive ring                      0
received by igb1 queue 0                   200,001
received by igb1 queue 1                   200,000
sent by igb2 queue 0                       200,000
sent by igb2 queue 1                       200,000
CPU of nmfwd                                   50%
delay, median                                20 us
delay, 99% below                            100 us
delay, greatest                            1234 us
`
	if got := b.String(); got != want {
		t.Errorf("table:\n%s\nwant:\n%s", got, want)
	}
}

func TestPickCPUs(t *testing.T) {
	for _, tt := range []struct {
		name string
		may  []int
		want []int // nil for an error
	}{
		{"two", []int{0, 1}, []int{0, 1}},
		{"four", []int{0, 1, 2, 3}, []int{2, 3}},
		{"three", []int{0, 1, 2}, []int{2, 1}},
		{"not from zero", []int{5, 6}, []int{6, 5}},
		{"one", []int{0}, nil},
		{"even", []int{0, 2, 4}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := pickCPUs(tt.may); !slices.Equal(got, tt.want) || (err != nil) != (tt.want == nil) {
				t.Errorf("pickCPUs(%v) = %v, %v, want %v", tt.may, got, err, tt.want)
			}
		})
	}
}

func TestGrouped(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", 12345.6: "12,346", 1234567: "1,234,567"} {
		if got := grouped(v); got != want {
			t.Errorf("grouped(%v) = %s, want %s", v, got, want)
		}
	}
}
