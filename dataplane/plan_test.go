package dataplane

import (
	"fmt"
	"slices"
	"testing"
)

// TestMakePlan checks the rules of ownership for every mix of ring numbers and
// workers: each RX ring has one reader, each TX ring at most one writer, every
// worker that has none of a port's TX rings can hand over to one that has.
func TestMakePlan(t *testing.T) {
	counts := []int{1, 2, 3, 4, 8}
	for _, rx := range counts {
		for _, tx := range counts {
			for _, rx2 := range counts {
				for workers := 1; workers <= 8; workers++ {
					name := fmt.Sprintf("rx %d tx %d, rx %d tx 2, workers %d", rx, tx, rx2, workers)
					rings := []Rings{{rx, tx}, {rx2, 2}}
					p := MakePlan(rings, workers, 16)
					if p.Workers != workers {
						t.Fatalf("%s: got %d workers", name, p.Workers)
					}
					for i, o := range p.Ports {
						if len(o.RX) != rings[i].RX || len(o.TX) != rings[i].TX {
							t.Fatalf("%s: port %d: got owners of %d and %d rings", name, i, len(o.RX), len(o.TX))
						}
						for q, w := range o.RX {
							if w < 0 || w >= workers {
								t.Errorf("%s: port %d: RX ring %d has no reader but %d", name, i, q, w)
							}
						}
						writers := make(map[int]bool)
						for q, w := range o.TX {
							if w < -1 || w >= workers {
								t.Errorf("%s: port %d: TX ring %d is written by %d", name, i, q, w)
							}
							if w >= 0 && writers[w] {
								t.Errorf("%s: port %d: worker %d writes two TX rings and uses one", name, i, w)
							}
							writers[w] = true
						}
						delete(writers, -1)
						if !slices.Contains(o.RX, o.Host) {
							t.Errorf("%s: port %d: worker %d has the host rings and reads no other", name, i, o.Host)
						}
						if want := min(workers, rings[i].TX); len(writers) != want {
							t.Errorf("%s: port %d: got %d writers, want %d", name, i, len(writers), want)
						}
					}
					if most, least := p.Imbalance(); (rx+rx2)%workers == 0 && rx%workers == 0 && most != least {
						t.Errorf("%s: workers read between %d and %d rings", name, least, most)
					}
				}
			}
		}
	}
}

func TestMakePlanDefaults(t *testing.T) {
	for _, c := range []struct {
		name  string
		ports []Rings
		cpus  int
		want  int
	}{
		{"two ports of one ring, four CPUs: one worker per direction", []Rings{{1, 1}, {1, 1}}, 4, 2},
		{"two ports of one ring, one CPU", []Rings{{1, 1}, {1, 1}}, 1, 1},
		{"one port of one ring", []Rings{{1, 1}}, 4, 1},
		{"four rings, four CPUs", []Rings{{4, 4}, {4, 4}}, 4, 4},
		{"eight rings, four CPUs", []Rings{{8, 8}, {8, 8}}, 4, 4},
		{"the widest port counts", []Rings{{1, 1}, {4, 4}}, 8, 4},
	} {
		if got := MakePlan(c.ports, 0, c.cpus).Workers; got != c.want {
			t.Errorf("%s: got %d workers, want %d", c.name, got, c.want)
		}
	}
	// One worker per direction: it reads one port and writes the other.
	p := MakePlan([]Rings{{1, 1}, {1, 1}}, 2, 2)
	if p.Ports[0].RX[0] == p.Ports[1].RX[0] || p.Ports[0].TX[0] != p.Ports[1].RX[0] || p.Ports[1].TX[0] != p.Ports[0].RX[0] {
		t.Errorf("two single-ring ports: got %+v, want each worker to read one and write the other", p.Ports)
	}
	// As many rings as workers: RX i and TX i belong together.
	p = MakePlan([]Rings{{4, 4}, {4, 4}}, 4, 4)
	for _, o := range p.Ports {
		for i := range o.RX {
			if o.RX[i] != o.TX[i] {
				t.Errorf("ring %d: read by worker %d, written by %d", i, o.RX[i], o.TX[i])
			}
		}
	}
}

func TestSpare(t *testing.T) {
	for _, c := range []struct {
		name    string
		ports   []Rings
		workers int
		hosts   []bool
		want    int // hand-off rings
	}{
		{"a ring for each worker", []Rings{{2, 2}, {2, 2}}, 2, nil, 0},
		{"one worker per direction", []Rings{{1, 1}, {1, 1}}, 2, nil, 2},
		{"workers that read nothing", []Rings{{1, 1}, {1, 1}}, 1000, nil, 2},
		{"three readers, one TX ring", []Rings{{3, 3}, {3, 1}}, 3, nil, 2},
		{"hosts of one worker", []Rings{{1, 1}, {1, 1}}, 1, []bool{true, true}, 0},
		{"hosts of four workers", []Rings{{4, 4}, {4, 4}}, 4, []bool{true, true}, 6},
		{"a host of two", []Rings{{4, 4}, {4, 4}}, 4, []bool{false, true}, 3},
	} {
		p := MakePlan(c.ports, c.workers, 8)
		if got := p.Spare(c.hosts); got != c.want*handoffLen {
			t.Errorf("%s: got %d buffers, want those of %d rings of %d", c.name, got, c.want, handoffLen)
		}
	}
}

// TestProcs checks that the collector's quarter of the Ps never reaches the
// workers.
func TestProcs(t *testing.T) {
	for workers := 1; workers <= 64; workers++ {
		p := procs(workers)
		quarter := func(p int) int { return int(float64(p)/4 + 0.5) }
		if p-quarter(p) < workers+1 {
			t.Errorf("%d workers: %d Ps leave %d", workers, p, p-quarter(p))
		}
		if q := p - 1; q-quarter(q) >= workers+1 {
			t.Errorf("%d workers: %d Ps, but %d would do", workers, p, q)
		}
	}
}
