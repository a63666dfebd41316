// Package metrics exports the counters of a router to Prometheus. It reads what
// the workers publish and takes no lock that they know of, so that it answers
// however busy they are.
package metrics

import (
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"nmfwd/control"
	"nmfwd/dataplane"
	"nmfwd/fib"
	"nmfwd/neigh"
	"nmfwd/wire/icmp"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// The series. Bytes are those of the Ethernet frame without FCS.
var (
	buildInfo       = desc("nmfwd_build_info", "The running program, always 1.", "version", "goversion")
	reloadOK        = desc("nmfwd_config_last_reload_successful", "Whether the last attempt to load the configuration succeeded.")
	reloadTime      = desc("nmfwd_config_last_reload_success_timestamp_seconds", "When the configuration in use was loaded.")
	reloadsTotal    = desc("nmfwd_config_reloads_total", "Attempts to load the configuration.", "result")
	portInfo        = desc("nmfwd_port_info", "The port as it was opened, always 1.", "device", "mac", "driver", "mode", "zerocopy", "rx_rings", "tx_rings")
	portUp          = desc("nmfwd_port_up", "Whether the port has a link.", "device")
	linkChanges     = desc("nmfwd_port_link_changes_total", "Times that the port's link went up or down.", "device")
	portStalled     = desc("nmfwd_port_stalled", "Whether the port receives but its rings do not (rx), or nothing leaves its full ring (tx), with its link up.", "device", "direction")
	portReopened    = desc("nmfwd_port_reopened_total", "Times that the port was opened again, because it had stalled, failed or been gone.", "device")
	portMTU         = desc("nmfwd_port_mtu_bytes", "Largest IP packet of the port.", "device")
	receivePackets  = desc("nmfwd_receive_packets_total", "Packets received.", "device", "queue")
	receiveBytes    = desc("nmfwd_receive_bytes_total", "Bytes received.", "device", "queue")
	transmitPackets = desc("nmfwd_transmit_packets_total", "Packets sent.", "device", "queue")
	transmitBytes   = desc("nmfwd_transmit_bytes_total", "Bytes sent.", "device", "queue")
	copied          = desc("nmfwd_copied_packets_total", "Packets sent that had to be copied, for they came from another memory region.", "device", "queue")
	forwarded       = desc("nmfwd_forwarded_packets_total", "Packets forwarded, by the queue that they came in by.", "device", "queue", "family")
	dropped         = desc("nmfwd_dropped_packets_total", "Packets dropped, by the queue that they came in by and by reason.", "device", "queue", "reason")
	hostPackets     = desc("nmfwd_host_packets_total", "Packets given to the host stack and taken from it.", "device", "queue", "direction")
	punted          = desc("nmfwd_punted_packets_total", "Packets that nmfwd kept to handle itself, by kind.", "device", "queue", "kind")
	parked          = desc("nmfwd_parked_packets", "Packets that wait for their neighbor to be resolved.", "device")
	unresolved      = desc("nmfwd_unresolved_packets_total", "Packets punted for their neighbor and given up: it does not answer, or too many wait.", "device")
	handoff         = desc("nmfwd_handoff_packets_total", "Packets that a worker handed to the one that writes their TX queue.", "worker")
	handoffLost     = desc("nmfwd_handoff_lost_packets_total", "Packets dropped because this worker had not taken those handed to it before.", "worker")
	icmpSent        = desc("nmfwd_icmp_sent_total", "ICMP messages sent about packets that came in by the port.", "device", "family", "type")
	icmpSuppressed  = desc("nmfwd_icmp_suppressed_total", "ICMP messages that were due about packets that came in by the port, and not sent.", "device", "family", "reason")
	fragmented      = desc("nmfwd_fragmented_packets_total", "Packets that came in by the port and were to be fragmented.", "device", "result")
	fragments       = desc("nmfwd_fragments_total", "Fragments made of packets that came in by the port.", "device")
	conflicts       = desc("nmfwd_neighbor_conflicts_total", "Frames that claimed a static neighbor's or an own address for another MAC address.", "device", "kind")
	ringFull        = desc("nmfwd_ring_full_total", "Packets lost, and bursts that did not fit, because a ring was full.", "device", "queue", "direction")
	workerBusy      = desc("nmfwd_worker_busy_seconds_total", "Time that a worker was awake: its part of a CPU; with idle busy, that it spent on packets.", "worker", "cpu")
	workerIdle      = desc("nmfwd_worker_idle_seconds_total", "Time that a worker slept; with idle busy, that it found nothing to do.", "worker", "cpu")
	workerBatch     = desc("nmfwd_worker_batch_packets", "Packets that a worker took from a queue at once.", "worker")
	routes          = desc("nmfwd_routes", "Routes in the RIB.", "family", "origin")
	neighbors       = desc("nmfwd_neighbors", "Neighbors by state.", "family", "state")
	compileSeconds  = desc("nmfwd_fib_compile_seconds", "Time to compile the forwarding tables from a configuration.")
	hostMissing     = desc("nmfwd_host_routes_missing", "Routes that devices have no place for, so that the host gets packets that ports could forward.")
	fibBytes        = desc("nmfwd_fib_bytes", "Memory of the forwarding tables.", "family")
)

// A Router is what the counters are read from.
type Router interface {
	Snapshot(*dataplane.Snapshot)
}

// Reloads count attempts to load the configuration. The zero value is ready
// for use.
type Reloads struct {
	mu           sync.Mutex
	good, failed uint64
	at           time.Time // of the configuration in use
	err          error     // of the last attempt
}

// Start says that the program started with a configuration at now.
func (r *Reloads) Start(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = now
}

// Done counts an attempt that ended at now with err.
func (r *Reloads) Done(now time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err = err; err == nil {
		r.good++
		r.at = now
	} else {
		r.failed++
	}
}

// A Collector is the prometheus.Collector of a router.
type Collector struct {
	Router  Router
	Control func(*control.Snapshot)
	Reloads *Reloads
	Version string
}

// Describe sends the descriptor of every series.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect reads all counters.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	e := emitter(ch)
	e.gauge(buildInfo, 1, c.Version, runtime.Version())
	c.Reloads.collect(e)
	var s dataplane.Snapshot
	c.Router.Snapshot(&s)
	for i := range s.Ports {
		e.port(&s.Ports[i])
	}
	for i := range s.Workers {
		e.worker(strconv.Itoa(i), &s.Workers[i])
	}
	var t control.Snapshot
	c.Control(&t)
	e.tables(&t)
	for i := range t.Ports {
		e.control(&t.Ports[i], limited(&s, i))
	}
}

// Last returns how many attempts succeeded and failed, when the configuration in
// use was loaded, and the error of the last attempt.
func (r *Reloads) Last() (good, failed uint64, at time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.good, r.failed, r.at, r.err
}

func (r *Reloads) collect(e emitter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.gauge(reloadOK, truth(!r.at.IsZero() && r.err == nil))
	at := 0.0
	if !r.at.IsZero() {
		at = float64(r.at.UnixMilli()) / 1000
	}
	e.gauge(reloadTime, at)
	e.counter(reloadsTotal, r.good, "success")
	e.counter(reloadsTotal, r.failed, "failure")
}

// An emitter sends metrics.
type emitter chan<- prometheus.Metric

func (e emitter) gauge(d *prometheus.Desc, v float64, labels ...string) {
	e <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (e emitter) counter(d *prometheus.Desc, v uint64, labels ...string) {
	e.seconds(d, float64(v), labels...)
}

func (e emitter) seconds(d *prometheus.Desc, v float64, labels ...string) {
	e <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (e emitter) port(p *dataplane.PortSnapshot) {
	i := &p.Info
	e.gauge(portInfo, 1, i.Name, i.MAC.String(), i.Driver, i.Mode, strconv.FormatBool(i.ZeroCopy), strconv.Itoa(i.RXRings), strconv.Itoa(i.TXRings))
	e.gauge(portUp, truth(p.Up), i.Name)
	e.counter(linkChanges, p.LinkChanges, i.Name)
	e.gauge(portStalled, truth(p.Stalled[0]), i.Name, "rx")
	e.gauge(portStalled, truth(p.Stalled[1]), i.Name, "tx")
	e.counter(portReopened, p.Reopened, i.Name)
	e.gauge(portMTU, float64(p.MTU), i.Name)
	for n := range p.RX {
		r, q := &p.RX[n], strconv.Itoa(n)
		e.counter(receivePackets, r.Packets, i.Name, q)
		e.counter(receiveBytes, r.Bytes, i.Name, q)
		e.counter(forwarded, r.Forwarded4, i.Name, q, "ipv4")
		e.counter(forwarded, r.Forwarded6, i.Name, q, "ipv6")
		e.counter(hostPackets, r.ToHost, i.Name, q, "to_host")
		e.counter(hostPackets, r.FromHost, i.Name, q, "from_host")
		for k, v := range r.Punted {
			e.counter(punted, v, i.Name, q, dataplane.Kind(k).String())
		}
		for k, v := range r.Dropped[1:] {
			e.counter(dropped, v, i.Name, q, dataplane.Reason(k+1).String())
		}
		e.counter(ringFull, r.RingFull, i.Name, q, "rx")
	}
	for n := range p.TX {
		t, q := &p.TX[n], strconv.Itoa(n)
		e.counter(transmitPackets, t.Packets, i.Name, q)
		e.counter(transmitBytes, t.Bytes, i.Name, q)
		e.counter(copied, t.Copied, i.Name, q)
		e.counter(ringFull, t.RingFull, i.Name, q, "tx")
	}
}

func (e emitter) worker(n string, w *dataplane.WorkerSnapshot) {
	cpu := ""
	if w.CPU >= 0 {
		cpu = strconv.Itoa(w.CPU)
	}
	e.counter(handoff, w.Handoff, n)
	e.counter(handoffLost, w.HandoffLost, n)
	e.seconds(workerBusy, w.Busy.Seconds(), n, cpu)
	e.seconds(workerIdle, w.Idle.Seconds(), n, cpu)
	var bounds []float64
	for _, b := range dataplane.BatchBuckets {
		bounds = append(bounds, float64(b))
	}
	e.histogram(workerBatch, bounds, w.Batch[:], float64(w.BatchSum), n)
}

// families are the values of the label, in the order of counts by family.
var families = [2]string{"ipv4", "ipv6"}

func (e emitter) tables(s *control.Snapshot) {
	for f, family := range families {
		for o, n := range s.Routes[f] {
			e.gauge(routes, float64(n), family, fib.Origin(o).String())
		}
		for n, count := range s.Neighbors[f] {
			e.gauge(neighbors, float64(count), family, neigh.State(n).String())
		}
		e.gauge(fibBytes, float64(s.FIBBytes[f]), family)
	}
	e.gauge(hostMissing, float64(s.Missing))
	var bounds []float64
	for _, b := range control.CompileBuckets {
		bounds = append(bounds, b.Seconds())
	}
	e.histogram(compileSeconds, bounds, s.Compiles[:], s.CompileTime.Seconds())
}

// control emits what control counts of a port. Limited is what workers suppressed
// on it, all because of the rate, by family.
func (e emitter) control(p *control.PortSnapshot, limited [2]uint64) {
	e.gauge(parked, float64(p.Parked), p.Name)
	e.counter(unresolved, p.Unresolved, p.Name)
	for f, family := range families {
		for k, n := range p.Sent[f] {
			e.counter(icmpSent, n, p.Name, family, icmp.Kind(k).String())
		}
		for r, n := range p.Suppressed[f] {
			switch icmp.Reason(r) {
			case icmp.OK:
				continue
			case icmp.Rate:
				n += limited[f]
			}
			e.counter(icmpSuppressed, n, p.Name, family, icmp.Reason(r).String())
		}
	}
	e.counter(fragmented, p.Fragmented.Packets, p.Name, "sent")
	e.counter(fragmented, p.Fragmented.Failed, p.Name, "failed")
	e.counter(fragments, p.Fragmented.Fragments, p.Name)
	for k, n := range p.Conflicts {
		if k := neigh.Conflict(k); k != neigh.NoConflict {
			e.counter(conflicts, n, p.Name, k.String())
		}
	}
}

// limited returns how many errors of each family workers suppressed on a port. VLANs
// are not among the ports of s: their packets are counted with those of the device.
func limited(s *dataplane.Snapshot, port int) (n [2]uint64) {
	if port >= len(s.Ports) {
		return n
	}
	for _, q := range s.Ports[port].RX {
		n[0] += q.Limited4
		n[1] += q.Limited6
	}
	return n
}

// histogram emits counts of observations: counts[i] are those of at most bounds[i]
// and more than the bound before, the last of counts those beyond all bounds.
func (e emitter) histogram(d *prometheus.Desc, bounds []float64, counts []uint64, sum float64, labels ...string) {
	buckets := make(map[float64]uint64)
	total := uint64(0)
	for i, n := range counts {
		total += n
		if i < len(bounds) {
			buckets[bounds[i]] = total
		}
	}
	e <- prometheus.MustNewConstHistogram(d, total, sum, buckets, labels...)
}
