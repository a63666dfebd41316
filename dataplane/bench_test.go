package dataplane_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
)

// BenchmarkStep measures Step over a loop in memory: every frame is received,
// checked, looked up, rewritten and sent, and comes in again. 2,000 flows, 4
// routes, every buffer touched in turn. A group has 4 gateways on the same port.
func BenchmarkStep(b *testing.B) {
	for _, c := range []struct {
		name  string
		frame func(n int) []byte
	}{
		{"v4", func(n int) []byte { return frame4(n, 255) }},
		{"v6", func(n int) []byte { return frame6(n, 255) }},
		{"mixed", func(n int) []byte {
			if n%2 == 0 {
				return frame4(n/2, 255)
			}
			return frame6(n/2, 255)
		}},
	} {
		for _, burst := range []int{16, 64, 256} {
			b.Run(fmt.Sprintf("%s/4 routes/burst=%d", c.name, burst), func(b *testing.B) {
				benchmarkStep(b, burst, 1, c.frame, nil)
			})
		}
		b.Run(c.name+"/group/burst=64", func(b *testing.B) { benchmarkStep(b, 64, 4, c.frame, nil) })
	}
}

func benchmarkStep(b *testing.B, burst, gateways int, frame func(n int) []byte, change func(*dataplane.State)) {
	region := memport.NewRegion("bench", 8192, memport.Stride)
	in := newPort(b, region, memport.Config{Name: "A", RXSlots: 4096, TXSlots: 64})
	out := newPort(b, region, memport.Config{Name: "B", RXSlots: 64, TXSlots: 64})
	rib := labRIB(b)
	if gateways > 1 {
		rib = groupRIB(b, gateways)
	}
	// The receiver is the router itself, so that what it sends comes in again.
	for _, gw := range []netip.Addr{addr("198.19.0.203"), addr("2001:2:0:8000::203")} {
		for range gateways {
			if err := rib.SetNeighbor(1, gw, macA); err != nil {
				b.Fatal(err)
			}
			gw = gw.Next()
		}
	}
	frames := make([][]byte, 2000)
	for i := range frames {
		frames[i] = frame(i)
	}
	if err := memport.Loop(in, 0, out, 0, frames); err != nil {
		b.Fatal(err)
	}
	st := labState(rib.Commit())
	if change != nil {
		change(st)
	}
	r := newRouter(b, st, 1, dataplane.Options{Burst: burst}, &in.Port, &out.Port)
	w := r.Workers()[0]
	b.ReportAllocs()
	packets := 0
	for b.Loop() {
		packets += w.Step(0)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(packets), "ns/pkt")
	var s dataplane.Snapshot
	r.Snapshot(&s)
	if got := s.Ports[0].RX[0]; got.Forwarded4+got.Forwarded6 != uint64(packets) {
		b.Fatalf("%d packets handled, %d forwarded: %+v", packets, got.Forwarded4+got.Forwarded6, got.Dropped)
	}
}

// BenchmarkCollection reports the longest time between two calls of Step while
// the garbage collector runs: what a receive ring has to hold.
func BenchmarkCollection(b *testing.B) {
	region := memport.NewRegion("bench", 8192, memport.Stride)
	in := newPort(b, region, memport.Config{Name: "A", RXSlots: 4096, TXSlots: 64})
	out := newPort(b, region, memport.Config{Name: "B", RXSlots: 64, TXSlots: 64})
	rib := labRIB(b)
	if err := rib.SetNeighbor(1, addr("198.19.0.203"), macA); err != nil {
		b.Fatal(err)
	}
	frames := make([][]byte, 2000)
	for i := range frames {
		frames[i] = frame4(i, 255)
	}
	if err := memport.Loop(in, 0, out, 0, frames); err != nil {
		b.Fatal(err)
	}
	w := newRouter(b, labState(rib.Commit()), 1, dataplane.Options{}, &in.Port, &out.Port).Workers()[0]
	var stop atomic.Bool
	var longest time.Duration
	var stepping sync.WaitGroup
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3)) // as Start sets it for one worker
	stepping.Go(func() {
		runtime.LockOSThread()
		for last := time.Now(); !stop.Load(); {
			w.Step(0)
			now := time.Now()
			longest = max(longest, now.Sub(last))
			last = now
		}
	})
	var keep [][]byte
	for b.Loop() {
		keep = keep[:0]
		for range 1000 {
			keep = append(keep, make([]byte, 10000))
		}
		runtime.GC()
	}
	stop.Store(true)
	stepping.Wait()
	b.ReportMetric(float64(longest.Microseconds()), "us-longest-gap")
}
