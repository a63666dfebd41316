package show

import (
	"fmt"
	"strconv"
	"strings"

	"nmfwd/dataplane"
)

// A workerDoc is a thread that forwards.
type workerDoc struct {
	Worker      int      `json:"worker"`
	CPU         int      `json:"cpu"`          // -1 where it is not pinned
	Busy        float64  `json:"busy"`         // part of the last second
	BusyAlways  float64  `json:"busy_always"`  // part of all time
	BusySeconds float64  `json:"busy_seconds"` //
	IdleSeconds float64  `json:"idle_seconds"` //
	Bursts      uint64   `json:"bursts"`       // taken from queues
	Packets     uint64   `json:"packets"`      // in them
	Handoff     uint64   `json:"handoff_packets"`
	HandoffLost uint64   `json:"handoff_lost_packets"` // that this worker did not take in time
	Reads       []string `json:"reads"`                // PORT:QUEUE
	Writes      []string `json:"writes"`               // PORT:QUEUE
}

// workers answers with the threads that forward.
func (a *answer) workers(*Request) error {
	var s dataplane.Snapshot
	a.source.Snapshot(&s)
	a.head(">WORKER", ">CPU", ">BUSY", ">ALWAYS", ">PACKETS", ">BURSTS", ">MEAN", ">HANDED-OVER", ">NOT-TAKEN", "READS", "WRITES")
	for i := range s.Workers {
		w := &s.Workers[i]
		d := workerDoc{
			Worker: i, CPU: w.CPU, Busy: a.rates.busy(i), BusyAlways: part(w.Busy, w.Idle), BusySeconds: w.Busy.Seconds(), IdleSeconds: w.Idle.Seconds(),
			Packets: w.BatchSum, Handoff: w.Handoff, HandoffLost: w.HandoffLost, Reads: []string{}, Writes: []string{},
		}
		for _, n := range w.Batch {
			d.Bursts += n
		}
		for _, p := range a.source.Ports {
			for _, q := range p.Queues {
				name := p.Name + ":" + strconv.Itoa(q.Index)
				if q.Worker == i && q.RX != nil {
					d.Reads = append(d.Reads, name)
				}
				if q.Worker == i && q.TX != nil {
					d.Writes = append(d.Writes, name)
				}
			}
		}
		mean, cpu := "", ""
		if d.Bursts > 0 {
			mean = fmt.Sprintf("%.1f", float64(d.Packets)/float64(d.Bursts))
		}
		if d.CPU >= 0 {
			cpu = strconv.Itoa(d.CPU)
		}
		if err := a.item(d, strconv.Itoa(i), cpu, fmt.Sprintf("%.0f%%", 100*d.Busy), fmt.Sprintf("%.0f%%", 100*d.BusyAlways),
			strconv.FormatUint(d.Packets, 10), strconv.FormatUint(d.Bursts, 10), mean, strconv.FormatUint(d.Handoff, 10), strconv.FormatUint(d.HandoffLost, 10),
			strings.Join(d.Reads, ","), strings.Join(d.Writes, ",")); err != nil {
			return err
		}
	}
	return nil
}
