package dataplane

import "slices"

// A Plan says which worker has each ring of each port.
type Plan struct {
	Workers int
	Ports   []Owners
}

// MakePlan spreads the rings of ports over workers such that every RX ring has
// exactly one reader and every TX ring at most one writer. With workers == 0
// it uses as many as the widest port has RX rings, at most one per CPU, and
// two for ports of a single ring on two CPUs or more: one per direction.
func MakePlan(ports []Rings, workers, cpus int) Plan {
	if workers == 0 {
		for _, p := range ports {
			workers = max(workers, p.RX)
		}
		if workers == 1 && len(ports) > 1 {
			workers = 2
		}
		workers = max(1, min(workers, cpus))
	}
	p := Plan{Workers: workers}
	// Readers: a port with fewer rings than workers starts where the one
	// before it ended, so that single-queue ports fall to different workers.
	next := 0
	for _, r := range ports {
		o := Owners{RX: make([]int, r.RX), TX: make([]int, r.TX)}
		first := 0
		if r.RX%workers != 0 {
			first = next
		}
		for i := range o.RX {
			o.RX[i] = (first + i) % workers
		}
		next = (first + r.RX) % workers
		// A reader of the port has its host rings too: of another ring for each
		// port, so that not all hosts are one worker's.
		if r.RX > 0 {
			o.Host = o.RX[len(p.Ports)%r.RX]
		}
		p.Ports = append(p.Ports, o)
	}
	for i, r := range ports {
		p.Ports[i].TX = writers(p.Ports, i, r.TX, workers)
	}
	return p
}

// writers chooses the owners of the TX rings of port i. Where there are fewer
// rings than workers, those come first that read most rings of other ports,
// since what they read leaves here; then those that read nothing of this one.
func writers(ports []Owners, i, rings, workers int) []int {
	o := make([]int, rings)
	if rings >= workers {
		for t := range o {
			o[t] = -1
			if t < workers {
				o[t] = t
			}
		}
		// The reader of RX ring t writes TX ring t where it can, so that one
		// descriptor serves both.
		for t, w := range ports[i].RX {
			if t < rings && o[t] != w {
				for u := range o {
					if o[u] == w {
						o[t], o[u] = o[u], o[t]
						break
					}
				}
			}
		}
		return o
	}
	want := make([]int, workers)
	for p, q := range ports {
		for _, w := range q.RX {
			if p == i {
				want[w]--
			} else {
				want[w] += len(ports) * 2
			}
		}
	}
	for t := range o {
		best := -1
		for w := range want {
			if best < 0 || want[w] > want[best] {
				best = w
			}
		}
		o[t] = best
		want[best] = -1 << 30
	}
	return o
}

// Spare returns the number of buffers that hand-off rings need in a region in
// which every worker receives. Hosts, by port, say which ones have host rings;
// nil means none.
func (p *Plan) Spare(hosts []bool) int {
	reads := make([]bool, p.Workers)
	for _, o := range p.Ports {
		for _, w := range o.RX {
			reads[w] = true
		}
	}
	n := 0
	for i, o := range p.Ports {
		for w, reads := range reads {
			if reads && !slices.Contains(o.TX, w) {
				n++
			}
			if reads && i < len(hosts) && hosts[i] && w != o.Host {
				n++
			}
		}
	}
	return n * handoffLen
}

// Imbalance returns the largest and the smallest number of RX rings that a
// worker reads.
func (p *Plan) Imbalance() (most, least int) {
	load := make([]int, p.Workers)
	for _, o := range p.Ports {
		for _, w := range o.RX {
			load[w]++
		}
	}
	least = load[0]
	for _, n := range load {
		most, least = max(most, n), min(least, n)
	}
	return most, least
}
