package memport

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"nmfwd/dataplane"
)

func newPort(t testing.TB, region *dataplane.Region, cfg Config) *Port {
	t.Helper()
	p, err := New(region, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// frame returns a frame of n bytes that begins with seq.
func frame(seq uint32, n int) []byte {
	f := make([]byte, n)
	for i := range f {
		f[i] = byte(int(seq) + i)
	}
	binary.BigEndian.PutUint32(f, seq)
	return f
}

func slotBytes(r *dataplane.Region, s []dataplane.Slot) []byte {
	var b []byte
	for i := range s {
		b = append(b, r.Bytes(&s[i])...)
	}
	return b
}

func TestExchange(t *testing.T) {
	const n = 128
	region := NewRegion("m", n, Stride)
	a := newPort(t, region, Config{Name: "a", RXSlots: 10, TXSlots: 5})
	b := newPort(t, region, Config{Name: "b", RXSlots: 3, TXSlots: 7})
	in, out := a.Queues[0].RX, b.Queues[0].TX
	s := make([]dataplane.Slot, 4)
	var seq, want uint32
	for range 67 {
		for a.Deliver(0, frame(seq, 60)) {
			seq++
		}
		k := in.Recv(s)
		if k != 4 {
			t.Fatalf("Recv = %d, want 4", k)
		}
		if sent := out.Send(region, s[:k]); sent != k {
			t.Fatalf("Send = %d, want %d", sent, k)
		}
		in.Release([]uint32{s[3].Buf, s[1].Buf})
		in.Release([]uint32{s[0].Buf, s[2].Buf})
		if err := CheckCensus(region, n, []*Port{a, b}); err != nil {
			t.Fatal(err)
		}
		for _, f := range b.Transmit(0) {
			if !bytes.Equal(f, frame(want, 60)) {
				t.Fatalf("frame %d: % x", want, f)
			}
			want++
		}
	}
	if want != 67*4 {
		t.Errorf("%d frames left, want %d", want, 67*4)
	}
	if c := a.Device.Counters(0); c.RXRingFull != 67 || c.DroppedBytes != 67*60 {
		t.Errorf("counters %+v, want 67 frames of 60 bytes lost", c)
	}
	for _, p := range []*Port{b, a} {
		if err := p.Device.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(region.Spare()); got != n {
		t.Errorf("%d spare buffers after Close, want %d", got, n)
	}
}

// TestCensusSees checks that the census notices what it is there for.
func TestCensusSees(t *testing.T) {
	tests := []struct {
		name   string
		free   func(s []dataplane.Slot) []uint32
		held   []uint32
		errors []string
	}{
		{"lost", func(s []dataplane.Slot) []uint32 { return []uint32{s[0].Buf} }, nil, []string{"lost"}},
		{"twice", func(s []dataplane.Slot) []uint32 { return []uint32{s[0].Buf, s[0].Buf} }, nil, []string{"in port a, RX ring 0, free and in", "lost"}},
		{"no such buffer", func(s []dataplane.Slot) []uint32 { return []uint32{s[0].Buf, 999} }, nil, []string{"buffer 999 of 16", "lost"}},
		{"held and free", func(s []dataplane.Slot) []uint32 { return []uint32{s[0].Buf, s[1].Buf} }, []uint32{0}, []string{"and in list 0"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			region := NewRegion("m", 16, Stride)
			a := newPort(t, region, Config{Name: "a", RXSlots: 8, TXSlots: 8})
			a.Deliver(0, frame(0, 60))
			a.Deliver(0, frame(1, 60))
			s := make([]dataplane.Slot, 2)
			a.Queues[0].RX.Recv(s)
			a.Queues[0].RX.Release(tt.free(s))
			err := CheckCensus(region, 16, []*Port{a}, tt.held)
			if err == nil {
				t.Fatal("nothing noticed")
			}
			for _, want := range tt.errors {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q, want %q in it", err, want)
				}
			}
		})
	}
}

func TestChains(t *testing.T) {
	region := NewRegion("m", 64, 512)
	a := newPort(t, region, Config{Name: "a", RXSlots: 8, TXSlots: 8, Headroom: 12})
	b := newPort(t, region, Config{Name: "b", RXSlots: 8, TXSlots: 5})
	long := frame(1, 1200) // three slots of up to 500 bytes
	if !a.Deliver(0, long) || !a.DeliverChain(0, frame(2, 100), 64) {
		t.Fatal("not received")
	}
	if a.DeliverChain(0, frame(3, 100), 25) {
		t.Error("a frame of four slots was received in three")
	}
	in := a.Queues[0].RX
	s := make([]dataplane.Slot, 8)
	if n := in.Recv(s[:4]); n != 3 {
		t.Errorf("Recv into 4 slots = %d, want the 3 of one frame", n)
	}
	if n := in.Recv(s[3:]); n != 2 {
		t.Errorf("Recv = %d, want 2", n)
	}
	if s[0].Off != 12 || s[0].Len != 500 || s[2].Len != 200 || s[2].Flags != 0 || s[1].Flags != dataplane.More {
		t.Errorf("slots %+v", s[:3])
	}
	if !bytes.Equal(slotBytes(region, s[:3]), long) {
		t.Error("frame differs")
	}
	out := b.Queues[0].TX
	if n := out.Send(region, s[:5]); n != 5 {
		t.Errorf("Send = %d, want 5", n)
	}
	if n := out.Send(region, s[:1]); n != 0 {
		t.Errorf("Send into a full ring = %d", n)
	}
	if got := b.Pending(0); got != 5 {
		t.Errorf("%d pending, want 5", got)
	}
	f := b.Transmit(0)
	if len(f) != 2 || !bytes.Equal(f[0], long) || !bytes.Equal(f[1], frame(2, 100)) {
		t.Errorf("%d frames sent, or others", len(f))
	}
	in.Release([]uint32{s[0].Buf, s[1].Buf, s[2].Buf, s[3].Buf, s[4].Buf})

	// Four slots are free, a frame of three slots has to leave the next whole.
	if n := out.Send(region, nil); n != 0 {
		t.Errorf("Send of nothing = %d", n)
	}
	a.Deliver(0, long)
	a.Deliver(0, long)
	in.Recv(s[:6])
	if n := out.Send(region, s[:6]); n != 3 {
		t.Errorf("Send = %d, want 3: one whole frame", n)
	}
	if c := b.Device.Counters(0); c.TXRingFull != 4 {
		t.Errorf("TXRingFull = %d, want 4", c.TXRingFull)
	}
}

// TestChainTooLong checks that a frame of more slots than a burst is lost and
// stalls nothing.
func TestChainTooLong(t *testing.T) {
	region := NewRegion("m", 64, 512)
	a := newPort(t, region, Config{Name: "a", RXSlots: 16, TXSlots: 16})
	a.DeliverChain(0, frame(1, 100), 10)
	a.DeliverChain(0, frame(2, 100), 20)
	a.Deliver(0, frame(3, 100))
	s := make([]dataplane.Slot, 4)
	if n := a.Queues[0].RX.Recv(s); n != 1 || !bytes.Equal(region.Bytes(&s[0]), frame(3, 100)) {
		t.Errorf("Recv = %d, want the 1 frame that a burst can hold", n)
	}
	a.Queues[0].RX.Release([]uint32{s[0].Buf})
	if c := a.Device.Counters(0); c.RXRingFull != 2 || c.DroppedBytes != 200 {
		t.Errorf("counters %+v, want 2 frames of 100 bytes lost", c)
	}
	if err := CheckCensus(region, 64, []*Port{a}); err != nil {
		t.Error(err)
	}
}

func TestCopyAcrossRegions(t *testing.T) {
	r1, r2 := NewRegion("m1", 32, 1024), NewRegion("m2", 32, 2048)
	a := newPort(t, r1, Config{Name: "a", RXSlots: 16, TXSlots: 16})
	b := newPort(t, r2, Config{Name: "b", RXSlots: 16, TXSlots: 16, MinFrame: 60})
	a.Deliver(0, frame(7, 40))
	s := make([]dataplane.Slot, 1)
	a.Queues[0].RX.Recv(s)
	own := s[0].Buf
	b.Queues[0].TX.Send(r1, s)
	if s[0].Buf != own {
		t.Errorf("buffer %d came back, want the frame's own %d", s[0].Buf, own)
	}
	a.Queues[0].RX.Release([]uint32{own})
	want := append(frame(7, 40), make([]byte, 20)...)
	if f := b.Transmit(0); len(f) != 1 || !bytes.Equal(f[0], want) {
		t.Errorf("sent % x, want % x", f, want)
	}
	for _, r := range []*dataplane.Region{r1, r2} {
		if err := CheckCensus(r, 32, []*Port{a, b}); err != nil {
			t.Error(err)
		}
	}
}

// TestPad checks that what an earlier frame left behind does not get out.
func TestPad(t *testing.T) {
	tests := []struct {
		name     string
		headroom int
	}{{"front", 0}, {"end of the buffer", 208}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			region := NewRegion("m", 4, 256)
			a := newPort(t, region, Config{Name: "a", RXSlots: 2, TXSlots: 2, Headroom: tt.headroom, MinFrame: 48, BufSize: 48})
			for b := range uint32(4) {
				copy(region.Buffer(b), bytes.Repeat([]byte{0xee}, 256))
			}
			a.Deliver(0, frame(1, 20))
			s := make([]dataplane.Slot, 1)
			a.Queues[0].RX.Recv(s)
			s[0].Off += 4 // a tag was removed
			s[0].Len -= 4
			a.Queues[0].TX.Send(region, s)
			want := append(frame(1, 20)[4:], make([]byte, 32)...)
			if f := a.Transmit(0); !bytes.Equal(f[0], want) {
				t.Errorf("sent % x, want % x", f[0], want)
			}
		})
	}
}

func TestLinkAndHost(t *testing.T) {
	region := NewRegion("m", 32, Stride)
	woken := 0
	a := newPort(t, region, Config{
		Name: "a", RXSlots: 8, TXSlots: 8, Host: true,
		Keeps:     func(f []byte) bool { return f[0] == 1 },
		OnDeliver: func(int) { woken++ },
	})
	d := a.Queues[0].Descriptor
	if ev, err := d.Before(true); ev != 0 || err != nil || d.FD() != -1 {
		t.Errorf("idle: events %d, error %v, descriptor %d", ev, err, d.FD())
	}
	a.SetLink(false)
	if a.Device.LinkUp() || a.Deliver(0, frame(0, 60)) || woken != 0 {
		t.Error("frame received without a link")
	}
	a.SetLink(true)
	if !a.Deliver(0, []byte{1, 2, 3}) || !a.Deliver(0, []byte{2, 3}) || woken != 2 {
		t.Errorf("frames not received, or woken %d times instead of 2", woken)
	}
	if ev, _ := d.Before(true); ev != pollIn {
		t.Errorf("events %d while a frame waits, want POLLIN", ev)
	}
	if c := a.Device.Counters(0); c.HostPackets != 1 || c.HostBytes != 3 {
		t.Errorf("counters %+v", c)
	}
	if h := a.ToHost(); len(h) != 1 || !bytes.Equal(h[0], []byte{1, 2, 3}) {
		t.Errorf("to host: %x", h)
	}
	s := make([]dataplane.Slot, 8)
	if n := a.Queues[0].RX.Recv(s); n != 1 || s[0].Len != 2 {
		t.Errorf("received %d frames, first %d bytes, want 1 of 2", n, s[0].Len)
	}
}

func TestHostQueues(t *testing.T) {
	region := NewRegion("m", 64, 256)
	a := newPort(t, region, Config{Name: "a", RXSlots: 8, TXSlots: 8, MinFrame: 60, Host: true, Owners: dataplane.Owners{RX: []int{3}, TX: []int{2}}})
	if len(a.Host) != 1 || a.Host[0].Worker != 3 {
		t.Fatalf("host queues %+v, want one pair of worker 3", a.Host)
	}
	if !a.FromHost(frame(1, 42)) {
		t.Fatal("no room for one frame")
	}
	s := make([]dataplane.Slot, 4)
	in, out := a.Host[0].RX, a.Host[0].TX
	if n := in.Recv(s); n != 1 || !bytes.Equal(region.Bytes(&s[0]), frame(1, 42)) {
		t.Fatalf("Recv = %d, %+v", n, s[0])
	}
	out.Send(region, s[:1])
	in.Release([]uint32{s[0].Buf})
	if err := CheckCensus(region, 64, []*Port{a}); err != nil {
		t.Error(err)
	}
	if h := a.ToHost(); len(h) != 1 || !bytes.Equal(h[0], frame(1, 42)) {
		t.Errorf("to host: %x, want the frame as it came, not padded", h)
	}
	for i := range uint32(9) {
		if got, want := a.FromHost(frame(i, 42)), i < 8; got != want {
			t.Errorf("frame %d from the host: %v, want %v", i, got, want)
		}
	}
	a.Device.Close()
	if err := CheckCensus(region, 64, nil); err != nil {
		t.Error(err)
	}
}

func TestOwners(t *testing.T) {
	region := NewRegion("m", 1024, 256)
	p := newPort(t, region, Config{Name: "a", RX: 3, TX: 2, RXSlots: 8, TXSlots: 8, Owners: dataplane.Owners{RX: []int{0, 1, -1}, TX: []int{0, 0}}})
	type key struct {
		index, worker int
		rx, tx        bool
	}
	want := map[key]bool{{0, 0, true, true}: true, {1, 1, true, false}: true, {1, 0, false, true}: true}
	for _, q := range p.Queues {
		k := key{q.Index, q.Worker, q.RX != nil, q.TX != nil}
		if !want[k] {
			t.Errorf("queue %+v", k)
		}
		delete(want, k)
	}
	if len(want) != 0 {
		t.Errorf("missing %v", want)
	}
}

func TestConfigErrors(t *testing.T) {
	tests := []struct {
		name string
		cfg  Config
		want string
	}{
		{"negative", Config{RX: -1}, "negative"},
		{"too few buffers", Config{RXSlots: 100}, "spare buffers"},
		{"headroom", Config{Headroom: 3000}, "do not fit"},
		{"buffer size", Config{BufSize: 2500}, "do not fit"},
		{"padding", Config{BufSize: 40, MinFrame: 60}, "padded"},
		{"owners", Config{RX: 2, RXSlots: 1, Owners: dataplane.Owners{RX: []int{0}}}, "owners"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			region := NewRegion("m", 16, Stride)
			tt.cfg.Name = "a"
			tt.cfg.TXSlots = 1
			if _, err := New(region, tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
			if err := CheckCensus(region, 16, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSchedules runs random schedules of deliver, forward and transmit over
// ports of two regions and counts buffers.
func TestSchedules(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		const n = 400
		regions := []*dataplane.Region{NewRegion("m0", n, 256), NewRegion("m1", n, 320)}
		var ports []*Port
		for i := range 4 {
			ports = append(ports, newPort(t, regions[i/3], Config{
				Name: string(rune('a' + i)), RX: 1 + rng.IntN(2), TX: 1 + rng.IntN(2),
				RXSlots: 1 + rng.IntN(30), TXSlots: 1 + rng.IntN(30), BufSize: 200,
			}))
		}
		var in, out uint64
		for range 500 {
			p := ports[rng.IntN(4)]
			q := rng.IntN(p.RXRings)
			for range rng.IntN(10) {
				p.DeliverChain(q, frame(rng.Uint32(), 4+rng.IntN(196)), 1+rng.IntN(200))
			}
			s := make([]dataplane.Slot, 1+rng.IntN(32))
			s = s[:p.rx[q].Recv(s)]
			in += uint64(len(s))
			to := ports[rng.IntN(4)]
			sent := to.tx[rng.IntN(to.TXRings)].Send(p.region, s)
			out += uint64(sent)
			if sent < len(s) && sent > 0 && s[sent-1].Flags&dataplane.More != 0 {
				t.Fatal("a frame was sent in part")
			}
			free := make([]uint32, len(s))
			for i, j := range rng.Perm(len(s)) {
				free[i] = s[j].Buf
			}
			p.rx[q].Release(free)
			if rng.IntN(3) == 0 {
				to.Transmit(rng.IntN(to.TXRings))
			}
			for _, r := range regions {
				if err := CheckCensus(r, n, ports); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		}
		if in == 0 || out == 0 {
			t.Errorf("seed %d: %d slots in, %d out", seed, in, out)
		}
	}
}

// TestFarGoroutines delivers and transmits from goroutines of their own while
// a worker forwards: frames arrive in order and unharmed.
func TestFarGoroutines(t *testing.T) {
	const n, frames = 64, 20000
	region := NewRegion("m", n, 256)
	a := newPort(t, region, Config{Name: "a", RXSlots: 16, TXSlots: 16})
	b := newPort(t, region, Config{Name: "b", RXSlots: 16, TXSlots: 16})
	var done atomic.Bool
	stopped := make(chan struct{})
	go func() {
		for seq := uint32(0); seq < frames && !done.Load(); runtime.Gosched() {
			if a.Deliver(0, frame(seq, 64)) {
				seq++
			}
		}
		stopped <- struct{}{}
	}()
	go func() {
		s, free := make([]dataplane.Slot, 7), make([]uint32, 7)
		for ; !done.Load(); runtime.Gosched() {
			k := a.Queues[0].RX.Recv(s)
			for sent := 0; sent < k && !done.Load(); runtime.Gosched() {
				sent += b.Queues[0].TX.Send(region, s[sent:k])
			}
			for i := range k {
				free[i] = s[i].Buf
			}
			a.Queues[0].RX.Release(free[:k])
		}
		stopped <- struct{}{}
	}()
	for seq := uint32(0); seq < frames; runtime.Gosched() {
		for _, f := range b.Transmit(0) {
			if !bytes.Equal(f, frame(seq, 64)) {
				t.Errorf("frame %d is % x", seq, f)
				seq = frames
				break
			}
			seq++
		}
	}
	done.Store(true)
	<-stopped
	<-stopped
	if err := CheckCensus(region, n, []*Port{a, b}); err != nil {
		t.Error(err)
	}
}
