package netmap_test

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"
	"time"

	"nmfwd/test/race"

	"nmfwd/dataplane"
	"nmfwd/dataplane/netmap"
	"nmfwd/dataplane/netmap/fake"
	"nmfwd/wire"
)

// soak says that tests run in their long forms, for hours in all.
var soak = os.Getenv("SOAK") == "1"

// span returns how long a test that is to last so long lasts.
func span(long time.Duration) time.Duration {
	switch {
	case soak:
		return long
	case testing.Short() || race.Enabled:
		return 2 * time.Second
	}
	return 20 * time.Second
}

// leaks returns what fails unless there are as few goroutines, descriptors and,
// but for some bytes, live objects as there are now.
func leaks(t *testing.T, bytes uint64) (check func()) {
	t.Helper()
	descriptors := func() int {
		d, err := os.ReadDir("/dev/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(d)
	}
	live := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	goroutines, fds, before := runtime.NumGoroutine(), descriptors(), live()
	return func() {
		t.Helper()
		await(t, "goroutines to end", func() bool { return runtime.NumGoroutine() <= goroutines })
		if n := descriptors(); n > fds {
			t.Errorf("%d descriptors, %d before", n, fds)
		}
		if n := live(); n > before+bytes {
			t.Errorf("%d bytes of live objects, %d before", n, before)
		}
	}
}

// TestCycles for all of a router: its ports, looked after, its
// workers in their threads. Starts and stops leave nothing behind.
func TestCycles(t *testing.T) {
	r, c := newRigOf(t, fake.Params{Ifs: 64, Rings: 64, Bufs: 4096, BufSize: 2048}, t.TempDir(), fake.Card{RXRings: 2, TXRings: 1}, fake.Card{})
	r.Polls = false
	l := &lab{rig: r, card: c, host: true, mtu: 1500}
	cycle := func() {
		for _, c := range l.card {
			c.SetCarrier(false) // Open waits for links only that were there
		}
		l.assemble(2, netmap.Options{Kernel: r.Kernel, LockDir: r.locks})
		defer r.close()
		defer l.disassemble()
		for _, c := range l.card {
			c.SetCarrier(true)
		}
		if err := l.router.Start(); err != nil {
			t.Fatal(err)
		}
		for n := range 4 {
			l.card[0].Deliver(n%2, l.packet(n, 0, 80))
		}
		got := 0
		await(t, "packets", func() bool { got += len(l.card[1].Sent(0)); return got == 4 })
	}
	for range 10 {
		cycle()
	}
	check := leaks(t, 200<<10)
	n := 200
	switch {
	case soak:
		n = 10_000
	case testing.Short() || race.Enabled:
		n = 50
	}
	for range n {
		cycle()
		if err := r.Idle(); err != nil {
			t.Fatal(err)
		}
		r.Trace()
	}
	check()
}

// TestSingleQueue has cards as they are in an APU1: one queue each,
// two workers, one per direction, traffic both ways all the time. None is lost,
// flows stay in order, nothing stalls.
func TestSingleQueue(t *testing.T) {
	t.Parallel()
	l := newLab(t, 2, true, true, fake.Card{RXSlots: 256, TXSlots: 256}, fake.Card{RXSlots: 256, TXSlots: 256})
	// The way back is for the generator's network, by the same flow numbers.
	back := func(n, flow int) []byte {
		b := l.packet(2*n, flow, 80)
		copy(b, l.ports[1].MAC)
		b[27], b[31] = 19, 18
		binary.BigEndian.PutUint32(b[len(b)-4:], uint32(n))
		b[24], b[25] = 0, 0
		binary.BigEndian.PutUint16(b[24:], wire.Checksum(b[14:34]))
		return b
	}
	const flows = 3
	var sent, got [2][flows]int
	take := func(way int) {
		for _, f := range l.card[1-way].Sent(0) {
			flow := int(f[len(f)-5])
			if n := int(binary.BigEndian.Uint32(f[len(f)-4:])); n != got[way][flow] {
				t.Fatalf("way %d flow %d: packet %d, want %d", way, flow, n, got[way][flow])
			}
			got[way][flow]++
		}
	}
	pending := func() (n int) {
		for way := range sent {
			for f := range flows {
				n += sent[way][f] - got[way][f]
			}
		}
		return n
	}
	for end := time.Now().Add(span(30 * time.Minute)); time.Now().Before(end); {
		l.step()
		take(0)
		take(1)
		for f := range flows {
			if pending() > 400 {
				break
			}
			b := l.packet(sent[0][f], f, 80)
			b[len(b)-5] = byte(f)
			l.card[0].Deliver(0, b)
			sent[0][f]++
			b = back(sent[1][f], f)
			b[len(b)-5] = byte(f)
			l.card[1].Deliver(0, b)
			sent[1][f]++
		}
	}
	await(t, "the last packets", func() bool {
		l.step()
		take(0)
		take(1)
		return pending() == 0
	})
	for i, p := range l.ports {
		if rx, tx := p.Device.(dataplane.Staller).Stalled(); rx || tx || !p.Device.LinkUp() {
			t.Errorf("port %d: stalled %v, %v", i, rx, tx)
		}
		l.conserved(i)
	}
	l.census()
	t.Logf("%d packets", sent[0][0]*flows*2)
}

// TestStorm: frames of 14 bytes, of 60 zero bytes and of random
// bytes come as fast as they are taken. All are accounted for, and between them
// what is good is forwarded.
func TestStorm(t *testing.T) {
	t.Parallel()
	l := newLab(t, 2, true, true, fake.Card{RXRings: 2, RXSlots: 256, TXSlots: 256}, fake.Card{TXSlots: 256})
	rnd := rand.New(rand.NewPCG(1, 2))
	random := func(b []byte) []byte {
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		return b
	}
	ours := func(b []byte) []byte { copy(b, l.ports[0].MAC); return b }
	kinds := []func() []byte{
		func() []byte { return ours(random(make([]byte, 14))) },
		func() []byte { return random(make([]byte, 14)) },
		func() []byte { return make([]byte, 14) },
		func() []byte { return make([]byte, 60) },
		func() []byte { return random(make([]byte, 1+rnd.IntN(1600))) },
		func() []byte { return ours(random(make([]byte, 60+rnd.IntN(1460)))) },
		func() []byte { // almost good
			b := l.packet(rnd.IntN(2), 1, 66+rnd.IntN(900))
			for range 1 + rnd.IntN(3) {
				b[12+rnd.IntN(54)] ^= 1 << rnd.IntN(8)
			}
			return b
		},
	}
	storm, good, got := uint64(0), 0, 0
	take := func() {
		l.step()
		for _, f := range l.card[1].Sent(0) {
			// Some of the almost good are good: only a flow of its own counts.
			if f[len(f)-5] == 0xaa && (f[12] == 8 && f[29] == 77 || f[12] == 0x86 && f[37] == 78) {
				got++
			}
		}
		for _, c := range l.card {
			c.ToHost()
		}
		l.card[0].Sent(0)
	}
	for end := time.Now().Add(span(10 * time.Minute)); time.Now().Before(end); {
		take()
		for range 64 {
			l.card[0].Deliver(0, kinds[rnd.IntN(len(kinds))]())
			storm++
		}
		if good-got < 64 {
			b := l.packet(good, 76+good%2, 80)
			b[len(b)-5] = 0xaa
			l.card[0].Deliver(1, b)
			good++
		}
	}
	await(t, "the good packets", func() bool { take(); return got == good })
	await(t, "the storm to end", func() bool { take(); return l.card[0].Waiting(0) == 0 })
	take()
	if s := l.counts(0); s.Packets != storm+uint64(good) {
		t.Errorf("%d received, want %d", s.Packets, storm+uint64(good))
	}
	l.conserved(0)
	l.census()
	t.Logf("%d frames, %d good packets among them", storm, good)
}
