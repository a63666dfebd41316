package main

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
	"nmfwd/wire"
)

// scale measures what a packet costs while 1 to n workers forward, each on
// queues of its own: what they share would show.
func scale(o *options) (*report, error) {
	r := &report{
		name: "scale", title: "Workers on queues of their own", unit: "ns of CPU time per packet", series: []string{"CPU time per packet"},
		columns: []string{"workers", "ns/packet", "M packets per CPU second, all workers", "cost / one worker"},
		notes:   []string{"IPv4, 2,000 flows for each worker, 4 routes. CPU time of the workers' threads, median of interleaved rounds, so that other programs do not count."},
	}
	n := min(runtime.NumCPU(), 8)
	var runs []func(int) float64
	for workers := 1; workers <= n; workers++ {
		b, err := scaleBed(workers)
		if err != nil {
			return nil, err
		}
		runs = append(runs, func(int) float64 {
			ns := make([]float64, workers)
			var all sync.WaitGroup
			for i, w := range b.Workers() {
				all.Go(func() {
					runtime.LockOSThread()
					defer runtime.UnlockOSThread()
					start, packets := threadTime(), 0
					for packets < 4*o.packets {
						packets += w.Step(0)
					}
					ns[i] = float64(threadTime()-start) / float64(packets)
				})
			}
			all.Wait()
			sum := 0.0
			for _, v := range ns {
				sum += v
			}
			return sum / float64(workers)
		})
	}
	got := race(o.rounds, runs...)
	for i, v := range got {
		m := median(v)
		r.rows = append(r.rows, row{[]string{fmt.Sprint(i + 1), ns(m), fmt.Sprintf("%.0f", 1e3/m*float64(i+1)), fmt.Sprintf("%.2f", ratio(v, got[0]))}, []float64{m}})
	}
	return r, nil
}

// scaleBed returns a router whose workers each have a loop of 2,000 frames.
func scaleBed(workers int) (*dataplane.Forwarder, error) {
	t, err := table{}.compile()
	if err != nil {
		return nil, err
	}
	owners := make([]int, workers)
	for i := range owners {
		owners[i] = i
	}
	region := memport.NewRegion("bench", workers*(4096+3*256), stride)
	cfg := memport.Config{Name: "A", MAC: macA[:], RX: workers, TX: workers, RXSlots: 4096, Owners: dataplane.Owners{RX: owners, TX: owners}}
	in, err := memport.New(region, cfg)
	if err != nil {
		return nil, err
	}
	cfg.Name, cfg.MAC, cfg.RXSlots = "B", macB[:], 256
	out, err := memport.New(region, cfg)
	if err != nil {
		return nil, err
	}
	for q := range workers {
		if err := memport.Loop(in, q, out, q, t.flows(table{}, v4, flows)); err != nil {
			return nil, err
		}
	}
	r, err := dataplane.NewForwarder([]*dataplane.Port{&in.Port, &out.Port}, workers, dataplane.Options{})
	if err != nil {
		return nil, err
	}
	r.Publish(labState(t))
	return r, nil
}

// labState is the state of the lab in memory.
func labState(t *fibOf) *dataplane.State {
	return &dataplane.State{FIB: t.fib, Ports: []dataplane.PortState{
		{Number: 0, MAC: wire.MACOf(macA[:]), MTU: 1500, Up: true},
		{Number: 1, MAC: wire.MACOf(macB[:]), MTU: 1500, Up: true},
	}}
}

// A live is a router in memory whose worker runs, as in the daemon.
type live struct {
	in, out *memport.Port
	router  *dataplane.Forwarder
	frame   []byte
}

func startLive(idle dataplane.IdleMode) (*live, error) {
	t, err := table{}.compile()
	if err != nil {
		return nil, err
	}
	l := &live{frame: frame4(0, 64)}
	region := memport.NewRegion("bench", 2048, stride)
	cfg := memport.Config{Name: "A", MAC: macA[:], OnDeliver: func(int) { l.router.Wake(0) }}
	if l.in, err = memport.New(region, cfg); err != nil {
		return nil, err
	}
	cfg.Name, cfg.MAC = "B", macB[:]
	if l.out, err = memport.New(region, cfg); err != nil {
		return nil, err
	}
	if l.router, err = dataplane.NewForwarder([]*dataplane.Port{&l.in.Port, &l.out.Port}, 1, dataplane.Options{Idle: idle}); err != nil {
		return nil, err
	}
	l.router.Publish(labState(t))
	return l, l.router.Start()
}

// forward delivers a frame and returns how long it took to come out, or an
// error after a second.
func (l *live) forward() (time.Duration, error) {
	start := time.Now()
	l.in.Deliver(0, l.frame)
	for l.out.Pending(0) == 0 {
		if time.Since(start) > time.Second {
			return 0, fmt.Errorf("no packet forwarded within a second")
		}
		runtime.Gosched()
	}
	d := time.Since(start)
	l.out.Discard(0)
	return d, nil
}

func (l *live) close() {
	l.router.Stop()
	l.router.Close()
}

var idleModes = []struct {
	name string
	mode dataplane.IdleMode
}{{"adaptive", dataplane.Adaptive}, {"poll", dataplane.Sleep}, {"busy", dataplane.Busy}}

// idle measures the CPU that a router without traffic uses, and how long the
// first packet takes then.
func idle(o *options) (*report, error) {
	r := &report{
		name: "idle", title: "No traffic, then one packet", unit: "% of a CPU", series: []string{"CPU use"},
		columns: []string{"idle mode", "CPU %", "first packet us: median", "90%", "99%", "max"},
		notes: []string{
			"CPU time of the whole process, over AF_XDP in the lab in hundredths of a second. The first packet comes after 20 ms of silence; its wait holds what other programs take of the CPUs.",
			"AF_XDP: the wait is that of a ping between the namespaces.",
		},
	}
	add := func(name string, use float64, took []time.Duration) {
		slices.Sort(took)
		r.rows = append(r.rows, row{append([]string{name, fmt.Sprintf("%.2f", use)}, percentiles(took, 50, 90, 99, 100)...), []float64{use}})
	}
	procs := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(procs)
	for _, m := range idleModes {
		l, err := startLive(m.mode)
		if err != nil {
			return nil, err
		}
		time.Sleep(100 * time.Millisecond)
		cpu, start := processTime(), time.Now()
		time.Sleep(2 * time.Second)
		use := 100 * float64(processTime()-cpu) / float64(time.Since(start))
		var took []time.Duration
		for range 10 * o.rounds {
			time.Sleep(20 * time.Millisecond)
			d, err := l.forward()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", m.name, err)
			}
			took = append(took, d)
		}
		l.close()
		add("ports in memory, "+m.name, use, took)
		if m.mode == dataplane.Adaptive {
			r.targets = append(r.targets, target{"adaptive: CPU use, %", use, 1, true},
				target{"adaptive: first packet, median, us", us(percentile(took, 50)), 1000, true},
				target{"adaptive: first packet, 99%, us", us(percentile(took, 99)), 1000, true})
		}
	}
	return r, labIdle(o, add)
}

// latency measures how long one packet at a time takes.
func latency(o *options) (*report, error) {
	r := &report{
		name: "latency", title: "One packet at a time", unit: "us, median", series: []string{"median"},
		columns: []string{"way", "median us", "90%", "99%", "99.9%", "max"},
		notes:   []string{"From delivery to the transmit ring. The upper percentiles hold what other programs take of the CPUs."},
	}
	add := func(name string, took []time.Duration) {
		slices.Sort(took)
		r.rows = append(r.rows, row{append([]string{name}, percentiles(took, 50, 90, 99, 99.9, 100)...), []float64{us(percentile(took, 50))}})
	}
	t, err := table{}.compile()
	if err != nil {
		return nil, err
	}
	n := o.packets / 10
	b := &bed{feed: once, burst: dataplane.DefaultBurst, stride: stride, table: t, frames: t.flows(table{}, v4, 1)}
	if err := b.open(); err != nil {
		return nil, err
	}
	defer b.close()
	b.worker.Step(0)
	b.out.Discard(0)
	var took []time.Duration
	for range n {
		start := time.Now()
		b.in.DeliverBurst(0, b.frames)
		b.worker.Step(0)
		took = append(took, time.Since(start))
		b.out.Discard(0)
	}
	add("Step in the same thread", took)
	procs := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(procs)
	for _, m := range idleModes {
		l, err := startLive(m.mode)
		if err != nil {
			return nil, err
		}
		took = took[:0]
		for range n / 10 {
			d, err := l.forward()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", m.name, err)
			}
			took = append(took, d)
		}
		l.close()
		add("worker on its own thread, "+m.name, took)
	}
	return r, labLatency(o, add)
}

// percentile returns the value that p percent of sorted values do not exceed.
func percentile(sorted []time.Duration, p float64) time.Duration {
	return sorted[min(len(sorted)-1, int(p/100*float64(len(sorted))))]
}

func percentiles(sorted []time.Duration, ps ...float64) []string {
	var cells []string
	for _, p := range ps {
		cells = append(cells, fmt.Sprintf("%.2f", us(percentile(sorted, p))))
	}
	return cells
}

func us(d time.Duration) float64 { return float64(d) / 1e3 }
