package dataplane_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"nmfwd/test/race"

	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
	"nmfwd/fib"
	"nmfwd/wire"
)

// forwarded returns the frame that forwarding b from A to g2 has to give,
// computed the slow way.
func forwarded(b []byte) []byte {
	out := bytes.Clone(b)
	copy(out, g2[:])
	copy(out[6:], macB[:])
	ip := out[wire.EthernetLen:]
	n := 0
	if ip[0]>>4 == 4 {
		ip[8]--
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], wire.Checksum(ip[:int(ip[0]&15)*4]))
		n = int(binary.BigEndian.Uint16(ip[2:]))
	} else {
		ip[7]--
		n = 40 + int(binary.BigEndian.Uint16(ip[4:]))
	}
	return out[:wire.EthernetLen+n]
}

// checkSums fails the test unless every port has accounted for all that it
// received.
func checkSums(t *testing.T, r *dataplane.Forwarder) {
	t.Helper()
	var s dataplane.Snapshot
	r.Snapshot(&s)
	for _, p := range s.Ports {
		for q, rx := range p.RX {
			sum := rx.Forwarded4 + rx.Forwarded6 + rx.ToHost
			for _, n := range rx.Punted {
				sum += n
			}
			for _, n := range rx.Dropped {
				sum += n
			}
			if rx.Packets != sum {
				t.Errorf("port %s queue %d: received %d packets, accounted for %d: %+v", p.Info.Name, q, rx.Packets, sum, rx)
			}
		}
	}
}

func TestStepForwards(t *testing.T) {
	region := memport.NewRegion("test", 1200, memport.Stride)
	a := newPort(t, region, memport.Config{Name: "A"})
	b := newPort(t, region, memport.Config{Name: "B"})
	r := newRouter(t, labState(labRIB(t).Commit()), 1, dataplane.Options{}, &a.Port, &b.Port)
	var want [][]byte
	for i := range 67 {
		f := frame4(i, 64)
		if i%2 == 1 {
			f = frame6(i, 2)
		}
		if !a.Deliver(0, f) {
			t.Fatal("ring full")
		}
		want = append(want, forwarded(f))
	}
	w := r.Workers()[0]
	for w.Step(0) > 0 {
	}
	if got := b.Transmit(0); !slices.EqualFunc(got, want, bytes.Equal) {
		t.Errorf("got %d frames, want %d; first % x, want % x", len(got), len(want), got[0], want[0])
	}
	var s dataplane.Snapshot
	r.Snapshot(&s)
	if q := s.Ports[0].RX[0]; q.Forwarded4 != 34 || q.Forwarded6 != 33 || q.Bytes != 34*60+33*62 {
		t.Errorf("got %+v", q)
	}
	if q := s.Ports[1].TX[0]; q.Packets != 67 || q.Bytes != 34*60+33*62 {
		t.Errorf("got %+v", q)
	}
	checkSums(t, r)
}

// TestCopies sends between two regions: the frames arrive, and are counted as
// copied.
func TestCopies(t *testing.T) {
	a := newPort(t, memport.NewRegion("one", 1200, memport.Stride), memport.Config{Name: "A"})
	b := newPort(t, memport.NewRegion("two", 1200, 2048), memport.Config{Name: "B"})
	r := newRouter(t, labState(labRIB(t).Commit()), 1, dataplane.Options{}, &a.Port, &b.Port)
	for i := range 67 {
		a.Deliver(0, frame4(i, 64))
	}
	for r.Workers()[0].Step(0) > 0 {
	}
	if got := b.Transmit(0); len(got) != 67 || !bytes.Equal(got[66], forwarded(frame4(66, 64))) {
		t.Errorf("got %d frames, want 67", len(got))
	}
	var s dataplane.Snapshot
	r.Snapshot(&s)
	if got := s.Ports[1].TX[0].Copied; got != 67 {
		t.Errorf("got %d packets counted as copied, want 67", got)
	}
}

// TestBadFramesElsewhere: bad frames on one ring cost the flow on another
// nothing.
func TestBadFramesElsewhere(t *testing.T) {
	region := memport.NewRegion("test", 6000, memport.Stride)
	owners := dataplane.Owners{RX: []int{0, 0, 0, 0}, TX: []int{0, -1, -1, -1}}
	a := newPort(t, region, memport.Config{Name: "A", RX: 4, TX: 4, Owners: owners})
	b := newPort(t, region, memport.Config{Name: "B", RX: 4, TX: 4, Owners: owners})
	r := newRouter(t, labState(labRIB(t).Commit()), 1, dataplane.Options{}, &a.Port, &b.Port)
	bad := [][]byte{frame4(0, 1), frame4(0, 64)[:30], make([]byte, 60), {}}
	seq := uint32(0)
	for range 100 {
		for i := range 128 {
			if i%2 == 0 {
				a.Deliver(0, bad[i/2%len(bad)])
			} else {
				a.Deliver(0, frame4(i, 64))
			}
		}
		for range 20 {
			seq++
			f := frame4(7, 64)
			binary.BigEndian.PutUint32(f[42:], seq)
			if !a.Deliver(3, f) {
				t.Fatal("ring 3 is full")
			}
		}
		r.Workers()[0].Step(0)
		b.Discard(0)
	}
	for r.Workers()[0].Step(0) > 0 {
		b.Discard(0)
	}
	var s dataplane.Snapshot
	r.Snapshot(&s)
	if got := s.Ports[0].RX[3].Forwarded4; got != uint64(seq) {
		t.Errorf("got %d packets of the good flow forwarded, want %d", got, seq)
	}
	if got := s.Ports[0].RX[0].Dropped[dataplane.DropTTL]; got == 0 {
		t.Error("no bad frame was dropped")
	}
	checkSums(t, r)
}

// TestSchedules runs random schedules of deliver, step, transmit, publish and
// faults over ports of different regions, rings and workers. After each, every
// buffer is in exactly one place and every packet is accounted for; each flow
// left in order.
func TestSchedules(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { schedule(t, seed) })
	}
}

func schedule(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	workers := 1 + rnd.IntN(4)
	rings := []dataplane.Rings{{RX: 1 + rnd.IntN(4), TX: 1 + rnd.IntN(4)}, {RX: 1 + rnd.IntN(4), TX: 1 + rnd.IntN(4)}}
	plan := dataplane.MakePlan(rings, workers, workers)
	const buffers = 12000
	regions := []*dataplane.Region{memport.NewRegion("one", buffers, memport.Stride), memport.NewRegion("two", buffers, 2048)}
	if rnd.IntN(2) == 0 {
		regions[1] = regions[0]
	}
	var ports []*memport.Port
	var open []*dataplane.Port
	for i, name := range []string{"A", "B"} {
		p := newPort(t, regions[i], memport.Config{Name: name, RX: rings[i].RX, TX: rings[i].TX, RXSlots: 64, TXSlots: 32, Owners: plan.Ports[i], Headroom: rnd.IntN(2) * 16})
		ports = append(ports, p)
		open = append(open, memport.Fault(&p.Port, memport.Faults{Seed: seed, Truncate: 0.02, Corrupt: 0.02, Short: 0.1, Partial: 0.1, Full: 0.05, FullFor: 2}))
	}
	rib := labRIB(t)
	r := newRouter(t, labState(rib.Commit()), workers, dataplane.Options{Burst: 1 + rnd.IntN(64)}, open...)
	seq := make(map[int]uint32) // last sequence number of each flow seen at B
	next := uint32(0)
	for range 400 {
		switch rnd.IntN(6) {
		case 0, 1:
			for range rnd.IntN(40) {
				flow := rnd.IntN(20)
				f := frame4(flow, 64)
				next++
				binary.BigEndian.PutUint32(f[42:], next)
				binary.BigEndian.PutUint32(f[46:], ^next)
				f[50], f[51] = byte(flow), ^byte(flow)
				q := flow % rings[0].RX // a flow comes in by one queue
				if rnd.IntN(8) == 0 {
					f = frame6(flow, 64)
					q = rnd.IntN(rings[0].RX)
				}
				if rnd.IntN(10) == 0 {
					ports[0].DeliverChain(q, f, 34+rnd.IntN(40))
				} else {
					ports[0].Deliver(q, f)
				}
			}
		case 2, 3:
			r.Workers()[rnd.IntN(workers)].Step(0)
		case 4:
			checkFlows(t, ports[1], rings[1].TX, seq)
		case 5:
			st := labState(rib.Commit())
			st.Ports[1].Up = rnd.IntN(4) > 0
			r.Publish(st)
		}
	}
	for busy := true; busy; {
		busy = false
		for _, w := range r.Workers() {
			busy = w.Step(0) > 0 || busy
		}
		checkFlows(t, ports[1], rings[1].TX, seq)
		ports[0].Transmit(0)
	}
	checkSums(t, r)
	held := r.Held()
	for i, region := range regions[:1+min(1, len(held)-1)] {
		if i == 1 && region == regions[0] {
			break
		}
		if err := memport.CheckCensus(region, buffers, ports, held[region]); err != nil {
			t.Error(err)
		}
	}
}

// checkFlows takes what left by B and checks that no flow went back.
func checkFlows(t *testing.T, b *memport.Port, queues int, seq map[int]uint32) {
	t.Helper()
	for q := range queues {
		for _, f := range b.Transmit(q) {
			if len(f) < 52 || f[14] != 0x45 || binary.BigEndian.Uint32(f[42:]) != ^binary.BigEndian.Uint32(f[46:]) || f[50] != ^f[51] {
				continue // IPv6, or a bit was turned
			}
			flow, n := int(f[50]), binary.BigEndian.Uint32(f[42:])
			if n <= seq[flow] {
				t.Errorf("flow %d: frame %d after %d", flow, n, seq[flow])
			}
			seq[flow] = n
		}
	}
}

// TestStepAllocates: nothing is allocated, whatever a packet's end is.
func TestStepAllocates(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	region := memport.NewRegion("test", 1200, memport.Stride)
	a := newPort(t, region, memport.Config{Name: "A"})
	b := newPort(t, region, memport.Config{Name: "B"})
	r := newRouter(t, labState(labRIB(t).Commit()), 1, dataplane.Options{}, &a.Port, &b.Port)
	w := r.Workers()[0]
	frames := [][]byte{frame4(1, 64), frame6(1, 64), frame4(1, 1), make([]byte, 60), {1}}
	for _, f := range frames { // let the port's own memory grow
		a.Deliver(0, f)
	}
	w.Step(0)
	b.Discard(0)
	if n := testing.AllocsPerRun(100, func() {
		for _, f := range frames {
			a.Deliver(0, f)
		}
		if w.Step(0) != len(frames) {
			t.Error("not all frames were handled")
		}
		b.Discard(0)
	}); n != 0 {
		t.Errorf("got %v allocations per burst, want 0", n)
	}
}

// TestHandoffWakes hands frames to a worker that sleeps. They must leave within
// a millisecond. Where other programs take the CPUs not all can: the quickest one
// stands for that, and half must take far less than a sleep, which is what it
// takes when nobody is woken.
func TestHandoffWakes(t *testing.T) {
	region := memport.NewRegion("test", 4000, memport.Stride)
	var r *dataplane.Forwarder
	// Worker 0 reads A, worker 1 writes both ports.
	ports := [2]*memport.Port{}
	for i, name := range []string{"A", "B"} {
		ports[i] = newPort(t, region, memport.Config{Name: name, Owners: dataplane.Owners{RX: []int{i}, TX: []int{1}}, OnDeliver: func(int) { r.Wake(i) }})
	}
	r = newRouter(t, labState(labRIB(t).Commit()), 2, dataplane.Options{Idle: dataplane.Sleep}, &ports[0].Port, &ports[1].Port)
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	defer r.Stop()
	var took []time.Duration
	for i := range 101 {
		time.Sleep(2 * time.Millisecond) // both workers sleep again
		start := time.Now()
		ports[0].Deliver(0, frame4(i, 64))
		for ports[1].Pending(0) == 0 {
			if time.Since(start) > 10*time.Second {
				t.Fatal("frame never left")
			}
			runtime.Gosched()
		}
		took = append(took, time.Since(start))
		ports[1].Discard(0)
	}
	slices.Sort(took)
	if took[0] > time.Millisecond || took[50] > 100*time.Millisecond {
		t.Errorf("the quickest took %v from one worker through another, half %v or less, all %v", took[0], took[50], took[100])
	}
	var s dataplane.Snapshot
	r.Snapshot(&s)
	if got := s.Workers[0].Handoff; got != 101 {
		t.Errorf("got %d packets handed over, want 101", got)
	}
}

// TestHandoffLost: a worker that gets no CPU time takes nothing of what it is
// handed. What its ring has room for waits and leaves in order when it runs again;
// the rest is dropped as tx_full and counted for that worker.
func TestHandoffLost(t *testing.T) {
	const room, frames = 512, 701
	region := memport.NewRegion("test", 4000, memport.Stride)
	// Worker 0 reads A, worker 1 writes both ports and reads B.
	ports := [2]*memport.Port{}
	for i, name := range []string{"A", "B"} {
		ports[i] = newPort(t, region, memport.Config{Name: name, TXSlots: 1024, Owners: dataplane.Owners{RX: []int{i}, TX: []int{1}}})
	}
	r := newRouter(t, labState(labRIB(t).Commit()), 2, dataplane.Options{}, &ports[0].Port, &ports[1].Port)
	workers := r.Workers()
	var want [][]byte
	for i := range frames {
		f := frame4(i, 64)
		if i%2 == 1 {
			f = frame6(i, 2)
		}
		if !ports[0].Deliver(0, f) {
			t.Fatal("ring full")
		}
		workers[0].Step(0)
		want = append(want, forwarded(f))
	}
	counted := func(forwarded4, forwarded6, lost uint64) {
		t.Helper()
		var s dataplane.Snapshot
		r.Snapshot(&s)
		q := s.Ports[0].RX[0]
		if q.Forwarded4 != forwarded4 || q.Forwarded6 != forwarded6 || q.Dropped[dataplane.DropTXFull] != lost {
			t.Errorf("%d and %d forwarded, %d dropped as tx_full, want %d, %d and %d", q.Forwarded4, q.Forwarded6, q.Dropped[dataplane.DropTXFull], forwarded4, forwarded6, lost)
		}
		if w := s.Workers; w[0].Handoff != room || w[1].Handoff != 0 || w[0].HandoffLost != 0 || w[1].HandoffLost != lost {
			t.Errorf("handed over by the workers: %d and %d, lost: %d and %d, want %d, 0, 0, %d", w[0].Handoff, w[1].Handoff, w[0].HandoffLost, w[1].HandoffLost, room, lost)
		}
	}
	counted(0, 0, frames-room)
	for workers[1].Step(0) > 0 {
	}
	if got := ports[1].Transmit(0); !slices.EqualFunc(got, want[:room], bytes.Equal) {
		t.Errorf("%d frames left, want the first %d", len(got), room)
	}
	counted(room/2, room/2, frames-room)
	checkSums(t, r)
	if err := memport.CheckCensus(region, 4000, ports[:], r.Held()[region]); err != nil {
		t.Error(err)
	}
}

// TestSleepIsIdle: the time that a worker sleeps before a packet is idle, and all
// that it is awake busy, unless it never sleeps.
func TestSleepIsIdle(t *testing.T) {
	for _, idle := range []dataplane.IdleMode{dataplane.Adaptive, dataplane.Sleep, dataplane.Busy} {
		region := memport.NewRegion("test", 4000, memport.Stride)
		var r *dataplane.Forwarder
		a := newPort(t, region, memport.Config{Name: "A", OnDeliver: func(int) { r.Wake(0) }})
		b := newPort(t, region, memport.Config{Name: "B"})
		r = newRouter(t, labState(labRIB(t).Commit()), 1, dataplane.Options{Idle: idle}, &a.Port, &b.Port)
		began := time.Now()
		if err := r.Start(); err != nil {
			t.Fatal(err)
		}
		deadline := began.Add(30 * time.Second)
		wait := func(what string, done func() bool) {
			for !done() {
				if time.Now().After(deadline) {
					t.Fatalf("idle mode %d: %s", idle, what)
				}
				runtime.Gosched()
			}
		}
		slept := time.Duration(0)
		for i := range 23 {
			if idle != dataplane.Busy {
				wait("never asleep", func() bool { return r.Asleep(0) })
			}
			start := time.Now()
			time.Sleep(10 * time.Millisecond)
			slept += time.Since(start)
			a.Deliver(0, frame4(i, 64))
			wait("frame never left", func() bool { return b.Discard(0) > 0 })
		}
		r.Stop()
		var s dataplane.Snapshot
		r.Snapshot(&s)
		w, all := &s.Workers[0], time.Since(began)
		switch {
		case w.Busy <= 0 || w.Idle <= 0 || w.Busy+w.Idle > all:
			t.Errorf("idle mode %d: busy %v, idle %v, in %v", idle, w.Busy, w.Idle, all)
		case idle != dataplane.Busy && w.Idle < slept:
			t.Errorf("idle mode %d: busy %v, idle %v, though it slept %v", idle, w.Busy, w.Idle, slept)
		}
	}
}

// TestRunning passes frames through running workers while states are published
// and counters are read, for the race detector.
func TestRunning(t *testing.T) {
	region := memport.NewRegion("test", 4000, memport.Stride)
	var r *dataplane.Forwarder
	ports := [2]*memport.Port{}
	plan := dataplane.MakePlan([]dataplane.Rings{{RX: 2, TX: 1}, {RX: 2, TX: 1}}, 2, 2)
	for i, name := range []string{"A", "B"} {
		ports[i] = newPort(t, region, memport.Config{Name: name, RX: 2, RXSlots: 128, TXSlots: 64, Owners: plan.Ports[i], OnDeliver: func(q int) { r.Wake(plan.Ports[i].RX[q]) }})
	}
	rib := labRIB(t)
	r = newRouter(t, labState(rib.Commit()), 2, dataplane.Options{}, &ports[0].Port, &ports[1].Port)
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	const frames = 20000
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for i := range frames {
			for !ports[0].Deliver(i%2, frame4(i, 64)) {
				runtime.Gosched()
			}
		}
	})
	left, lost := 0, uint64(0)
	var s dataplane.Snapshot
	for deadline := time.Now().Add(30 * time.Second); left+int(lost) < frames; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d frames left, %d were dropped", left, frames, lost)
		}
		left += ports[1].Discard(0)
		if err := rib.SetNeighbor(1, addr("198.19.0.77"), g2); err != nil {
			t.Fatal(err)
		}
		if err := rib.RemoveNeighbor(1, addr("198.19.0.77")); err != nil {
			t.Fatal(err)
		}
		r.Publish(labState(rib.Commit()))
		rib.Reclaim(r.Oldest())
		r.Snapshot(&s)
		lost = s.Ports[0].RX[0].Dropped[dataplane.DropTXFull] + s.Ports[0].RX[1].Dropped[dataplane.DropTXFull]
	}
	tasks.Wait()
	r.Stop()
	checkSums(t, r)
	if err := memport.CheckCensus(region, 4000, ports[:], r.Held()[region]); err != nil {
		t.Error(err)
	}
}

// TestReplace gives running workers one new thread after another, which neither
// lose nor reorder anything.
func TestReplace(t *testing.T) {
	region := memport.NewRegion("test", 4000, memport.Stride)
	var r *dataplane.Forwarder
	ports := [2]*memport.Port{}
	plan := dataplane.MakePlan([]dataplane.Rings{{RX: 1, TX: 1}, {RX: 1, TX: 1}}, 2, 2)
	for i, name := range []string{"A", "B"} {
		ports[i] = newPort(t, region, memport.Config{Name: name, RXSlots: 128, TXSlots: 128, Owners: plan.Ports[i], OnDeliver: func(q int) { r.Wake(plan.Ports[i].RX[q]) }})
	}
	r = newRouter(t, labState(labRIB(t).Commit()), 2, dataplane.Options{Idle: dataplane.Sleep}, &ports[0].Port, &ports[1].Port)
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	replaced := 0
	deadline := time.Now().Add(time.Minute)
	for n := range 2000 {
		ports[0].Deliver(0, frame4(n, 64))
		if r.Replace(n % 2) {
			replaced++
		}
		for left := 0; left == 0; left = ports[1].Discard(0) {
			if time.Now().After(deadline) {
				t.Fatalf("%d frames left, %d threads replaced", n, replaced)
			}
			runtime.Gosched()
		}
	}
	r.Stop()
	for r.Hanging() > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d threads hang", r.Hanging())
		}
		runtime.Gosched()
	}
	if replaced == 0 {
		t.Error("no thread was replaced")
	}
	checkSums(t, r)
	if err := memport.CheckCensus(region, 4000, ports[:], r.Held()[region]); err != nil {
		t.Error(err)
	}
}

// TestErrorsPass checks the way of packets that deserve an ICMP error: as many
// as the rate allows go to control, the others are dropped, and ARP still comes
// through.
func TestErrorsPass(t *testing.T) {
	region := memport.NewRegion("test", 1200, memport.Stride)
	a := newPort(t, region, memport.Config{Name: "A"})
	b := newPort(t, region, memport.Config{Name: "B"})
	st := labState(labRIB(t).Commit())
	st.Ports[0].Every[dataplane.LimitErrors] = time.Second / 10
	r := newRouter(t, st, 1, dataplane.Options{}, &a.Port, &b.Port)
	w := r.Workers()[0]
	now := int64(time.Hour)
	for range 100 {
		a.Deliver(0, frame4(1, 1))
	}
	arp := make([]byte, 60)
	wire.PutEthernet(arp, wire.Broadcast, wire.MACOf(g1[:]), wire.TypeARP)
	a.Deliver(0, arp)
	for w.Step(now) > 0 {
	}
	var s dataplane.Snapshot
	r.Snapshot(&s)
	q := &s.Ports[0].RX[0]
	if q.Punted[dataplane.PuntTTL] != 10 || q.Dropped[dataplane.DropTTL] != 90 || q.Punted[dataplane.PuntARP] != 1 {
		t.Errorf("got %d errors punted, %d dropped, %d ARP punted; want 10, 90, 1", q.Punted[dataplane.PuntTTL], q.Dropped[dataplane.DropTTL], q.Punted[dataplane.PuntARP])
	}
	var kinds []dataplane.Kind
	r.Punts(func(p dataplane.Punt) {
		kinds = append(kinds, p.Kind)
		if p.Kind == dataplane.PuntTTL && !bytes.Equal(p.Frame, frame4(1, 1)) {
			t.Errorf("punted frame was changed: % x", p.Frame)
		}
	})
	if len(kinds) != 11 || kinds[0] != dataplane.PuntARP {
		t.Errorf("got punts %v, want ARP first and 11 in all", kinds)
	}
	for range 2 { // a tenth of a second is worth one more
		a.Deliver(0, frame4(1, 1))
	}
	w.Step(now + int64(100*time.Millisecond))
	r.Snapshot(&s)
	if got := s.Ports[0].RX[0].Punted[dataplane.PuntTTL]; got != 11 {
		t.Errorf("got %d errors punted after 100 ms, want 11", got)
	}
	checkSums(t, r)
}

func TestInject(t *testing.T) {
	region := memport.NewRegion("test", 1200, memport.Stride)
	a := newPort(t, region, memport.Config{Name: "A"})
	b := newPort(t, region, memport.Config{Name: "B"})
	r := newRouter(t, labState(labRIB(t).Commit()), 1, dataplane.Options{}, &a.Port, &b.Port)
	f := frame4(7, 64)
	n := 0
	for r.Inject(1, f, 0) {
		n++
	}
	if n != 256 {
		t.Errorf("got room for %d frames, want 256", n)
	}
	if r.Inject(1, make([]byte, dataplane.MaxControlFrame+1), 0) {
		t.Error("a frame longer than the ring's entries was taken")
	}
	r.Workers()[0].Step(0)
	got := b.Transmit(0)
	if len(got) != 256 || !bytes.Equal(got[0], f) || !bytes.Equal(got[255], f) {
		t.Errorf("got %d frames, want 256 of them: % x", len(got), f)
	}
	if !r.Inject(1, f, 0) {
		t.Error("no room after the worker's step")
	}
}

// FuzzStep gives the worker arbitrary frames, in one slot and in several. What
// it sends is what decide, which checks one thing after the other, says.
func FuzzStep(f *testing.F) {
	f.Add(frame4(1, 64), uint8(0))
	f.Add(frame6(1, 64), uint8(40))
	f.Add(frame6(1, 0), uint8(54))
	region := memport.NewRegion("test", 1200, memport.Stride)
	a := newPort(f, region, memport.Config{Name: "A"})
	b := newPort(f, region, memport.Config{Name: "B"})
	r := newRouter(f, labState(labRIB(f).Commit()), 1, dataplane.Options{}, &a.Port, &b.Port)
	w := r.Workers()[0]
	f.Fuzz(func(t *testing.T, p []byte, cut uint8) {
		if len(p) > 2000 {
			return
		}
		ok := false
		if cut > 0 {
			ok = a.DeliverChain(0, p, int(cut))
		} else {
			ok = a.Deliver(0, p)
		}
		if !ok {
			return
		}
		w.Step(0)
		r.Punts(func(dataplane.Punt) {})
		sent := append(a.Transmit(0), b.Transmit(0)...)
		want := r.State().Slow(0, p)
		if cut == 0 && (want == nil) != (len(sent) == 0) {
			t.Errorf("sent %d frames, decide says % x", len(sent), want)
		}
		for _, out := range sent {
			if len(out) > len(p) || !bytes.Equal(out, want) {
				t.Errorf("% x in, % x out, decide says % x", p, out, want)
			}
			switch ip := out[wire.EthernetLen:]; ip[0] >> 4 {
			case 4:
				if wire.CheckIPv4(ip, len(ip)) != wire.OK || wire.IPv4(ip).TTL() == 0 || wire.IPv4(ip).TotalLen() != len(ip) {
					t.Errorf("sent % x", out)
				}
			case 6:
				if wire.CheckIPv6(ip, len(ip)) != wire.OK || wire.IPv6(ip).HopLimit() == 0 || wire.IPv6(ip).TotalLen() != len(ip) {
					t.Errorf("sent % x", out)
				}
			default:
				t.Errorf("sent % x", out)
			}
		}
		checkSums(t, r)
		if err := memport.CheckCensus(region, 1200, []*memport.Port{a, b}); err != nil {
			t.Error(err)
		}
	})
}

// TestHostRoute: a packet whose route the host follows is given to the host of
// the port that it came in by, unchanged and whatever its TTL is, or dropped where
// there is none.
func TestHostRoute(t *testing.T) {
	for _, host := range []bool{true, false} {
		region := memport.NewRegion("test", 2400, memport.Stride)
		a := newPort(t, region, memport.Config{Name: "A", Host: host})
		b := newPort(t, region, memport.Config{Name: "B", Host: host})
		rib := labRIB(t)
		for _, p := range []string{"198.19.0.0/16", "2001:2:0:8000::/49"} {
			if err := rib.Add(fib.Route{Prefix: netip.MustParsePrefix(p), Origin: fib.Static, Kind: fib.Host}); err != nil {
				t.Fatal(err)
			}
		}
		st := labState(rib.Commit())
		st.Ports[0].Host = host
		r := newRouter(t, st, 1, dataplane.Options{}, &a.Port, &b.Port)
		frames := [][]byte{frame4(0, 64), frame4(0, 1), frame6(1, 2)}
		for _, f := range frames {
			a.Deliver(0, f)
		}
		for r.Workers()[0].Step(0) > 0 {
		}
		var s dataplane.Snapshot
		r.Snapshot(&s)
		q := s.Ports[0].RX[0]
		dropped := q.Dropped[dataplane.DropHostRoute] + q.Punted[dataplane.PuntUnreachable]
		switch got := a.ToHost(); {
		case host && !slices.EqualFunc(got, frames, bytes.Equal):
			t.Errorf("the host got % x, want % x", got, frames)
		case !host && (len(got) > 0 || dropped != 3):
			t.Errorf("no host: got % x, %+v", got, q)
		}
		checkSums(t, r)
	}
}
