package afxdp

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane"
)

const (
	testFrame = 2048
	testSlots = 64
)

// A kernel is the other side of the four rings of a queue, over memory that
// both can see.
type kernel struct {
	fill, comp addrRing
	recv, send descRing
}

// newQueue returns the two sides of a queue whose ring indices begin at start,
// the kernel that serves them, and the region, of which 16 buffers are spare.
func newQueue(start uint32) (*kernel, *rx, *tx, *dataplane.Region) {
	off := unix.XDPRingOffset{Producer: 0, Consumer: 64, Flags: 128, Desc: 192}
	mem := func(entry int) []byte { return make([]byte, int(off.Desc)+testSlots*entry) }
	k := &kernel{
		fill: newAddrRing(mem(addrSize), &off, testSlots), comp: newAddrRing(mem(addrSize), &off, testSlots),
		recv: newDescRing(mem(descSize), &off, testSlots), send: newDescRing(mem(descSize), &off, testSlots),
	}
	for _, r := range []*ring{&k.fill.ring, &k.comp.ring, &k.recv.ring, &k.send.ring} {
		r.producer.Store(start)
		r.consumer.Store(start)
	}
	numbers := make([]uint32, 2*testSlots+16)
	for i := range numbers {
		numbers[i] = uint32(i)
	}
	region := dataplane.NewRegion("umem0", make([]byte, len(numbers)*testFrame), testFrame, numbers[2*testSlots:])
	b := buffers{region: region, shift: 11, n: uint64(len(numbers))}
	r := &rx{buffers: b, ring: k.recv, cons: start, prod: start, fill: k.fill, next: start, owed: testSlots}
	r.Release(numbers[:testSlots])
	t := newTX(b, k.send, k.comp, numbers[testSlots:2*testSlots])
	t.prod, t.cons = start, start
	return k, r, t, region
}

// deliver receives a frame into the next buffer of the fill ring and reports
// whether there was one.
func (k *kernel) deliver(region *dataplane.Region, frame []byte) bool {
	c := k.fill.consumer.Load()
	if c == k.fill.producer.Load() {
		return false
	}
	addr := k.fill.addrs[c&k.fill.mask] + headroom
	k.fill.consumer.Store(c + 1)
	copy(region.Buffer(uint32(addr / testFrame))[headroom:], frame)
	k.post(desc{addr: addr, len: uint32(len(frame))})
	return true
}

// post puts a descriptor into the receive ring.
func (k *kernel) post(d desc) {
	p := k.recv.producer.Load()
	k.recv.descs[p&k.recv.mask] = d
	k.recv.producer.Store(p + 1)
}

// transmit takes one frame to send, and completes it.
func (k *kernel) transmit(region *dataplane.Region) []byte {
	c := k.send.consumer.Load()
	if c == k.send.producer.Load() {
		return nil
	}
	d := k.send.descs[c&k.send.mask]
	k.send.consumer.Store(c + 1)
	frame := bytes.Clone(region.Bytes(&dataplane.Slot{Buf: uint32(d.addr / testFrame), Off: uint16(d.addr % testFrame), Len: uint16(d.len)}))
	k.complete(d.addr)
	return frame
}

// complete puts an address into the completion ring.
func (k *kernel) complete(addr uint64) {
	p := k.comp.producer.Load()
	k.comp.addrs[p&k.comp.mask] = addr
	k.comp.producer.Store(p + 1)
}

// TestIndexWrap forwards frames across the wrap of the 32-bit ring indices.
func TestIndexWrap(t *testing.T) {
	k, r, x, region := newQueue(math.MaxUint32 - 100)
	s := make([]dataplane.Slot, 48)
	for i := range 300 {
		frame := bytes.Repeat([]byte{byte(i)}, 60+i%7)
		if !k.deliver(region, frame) {
			t.Fatalf("frame %d: fill ring is empty", i)
		}
		if got := r.Recv(s); got != 1 {
			t.Fatalf("frame %d: received %d", i, got)
		}
		if got := x.Send(region, s[:1]); got != 1 {
			t.Fatalf("frame %d: sent %d", i, got)
		}
		if got := x.pending(); got != 1 {
			t.Fatalf("frame %d: %d pending, want 1", i, got)
		}
		r.Release([]uint32{s[0].Buf})
		if got := k.transmit(region); !bytes.Equal(got, frame) {
			t.Fatalf("frame %d: sent %x, want %x", i, got, frame)
		}
	}
}

func TestRecvNonsense(t *testing.T) {
	for _, test := range []struct {
		name string
		d    desc
		want []dataplane.Slot
	}{
		{"good", desc{addr: 3*testFrame + 256, len: 60}, []dataplane.Slot{{Buf: 3, Off: 256, Len: 60}}},
		{"whole buffer", desc{addr: 3 * testFrame, len: testFrame}, []dataplane.Slot{{Buf: 3, Len: testFrame}}},
		{"past the buffer", desc{addr: 3*testFrame + 256, len: testFrame - 255}, []dataplane.Slot{{Buf: 3}}},
		{"length wraps", desc{addr: 3*testFrame + 256, len: math.MaxUint32}, []dataplane.Slot{{Buf: 3}}},
		{"length 65536", desc{addr: 3 * testFrame, len: 1 << 16}, []dataplane.Slot{{Buf: 3}}},
		{"continued", desc{addr: 3 * testFrame, len: 60, options: unix.XDP_PKT_CONTD}, []dataplane.Slot{{Buf: 3}}},
		{"last buffer", desc{addr: (2*testSlots+15)*testFrame + 256, len: 60}, []dataplane.Slot{{Buf: 2*testSlots + 15, Off: 256, Len: 60}}},
		{"outside the region", desc{addr: (2*testSlots + 16) * testFrame, len: 60}, nil},
		{"address wraps", desc{addr: math.MaxUint64, len: 60}, nil},
		{"offset in the upper bits", desc{addr: 1<<48 + 3*testFrame, len: 60}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			k, r, _, region := newQueue(0)
			k.post(test.d)
			s := make([]dataplane.Slot, 4)
			got := s[:r.Recv(s)]
			if !slices.Equal(got, test.want) {
				t.Errorf("%+v, want %+v", got, test.want)
			}
			for i := range got {
				region.Bytes(&got[i])
			}
			if got := r.Recv(s); got != 0 {
				t.Errorf("received %d more", got)
			}
		})
	}
}

// TestRecvFarProducer has a producer index that is further ahead than the ring
// is long.
func TestRecvFarProducer(t *testing.T) {
	k, r, _, _ := newQueue(0)
	k.recv.producer.Store(1 << 31)
	if got := r.Recv(make([]dataplane.Slot, 3*testSlots)); got > testSlots {
		t.Errorf("received %d slots from a ring of %d", got, testSlots)
	}
}

func TestReleaseTooMany(t *testing.T) {
	_, r, _, _ := newQueue(0)
	defer func() {
		if recover() == nil {
			t.Error("a buffer was released that nobody took")
		}
	}()
	r.Release([]uint32{1})
}

func TestSend(t *testing.T) {
	other := dataplane.NewRegion("other", make([]byte, 8*testFrame), testFrame, nil)
	const more = dataplane.More
	for _, test := range []struct {
		name        string
		other       bool
		slots       []dataplane.Slot
		sent        []int // lengths of the frames
		taken       int
		refused     uint64
		lastChanged bool
	}{
		{"exchange", false, []dataplane.Slot{{Buf: 128, Off: 256, Len: 60}}, []int{60}, 1, 0, true},
		{"without ethernet header", false, []dataplane.Slot{{Buf: 128, Len: 13}}, nil, 1, 1, false},
		{"empty", false, []dataplane.Slot{{Buf: 128}}, nil, 1, 1, false},
		{"past the buffer", false, []dataplane.Slot{{Buf: 128, Off: 256, Len: 1793}}, nil, 1, 1, false},
		{"to the end of the buffer", false, []dataplane.Slot{{Buf: 128, Off: 256, Len: 1792}}, []int{1792}, 1, 0, true},
		{"refused between good ones", false, []dataplane.Slot{{Buf: 128, Len: 60}, {Buf: 129}, {Buf: 130, Len: 61}}, []int{60, 61}, 3, 1, true},
		{"copy", true, []dataplane.Slot{{Buf: 1, Off: 9, Len: 60}}, []int{60}, 1, 0, false},
		{"copy of an empty one", true, []dataplane.Slot{{Buf: 1}}, nil, 1, 1, false},
		{"chain", true, []dataplane.Slot{{Buf: 1, Len: 10, Flags: more}, {Buf: 2, Len: 50}}, []int{60}, 2, 0, false},
		{"chain in the same region", false, []dataplane.Slot{{Buf: 128, Len: 10, Flags: more}, {Buf: 129, Len: 50}}, []int{60}, 2, 0, false},
		{"chain too long", true, []dataplane.Slot{{Buf: 1, Len: 2048, Flags: more}, {Buf: 2, Len: 1}, {Buf: 3, Len: 60}}, []int{60}, 3, 1, false},
		{"part of a chain", true, []dataplane.Slot{{Buf: 1, Len: 60}, {Buf: 2, Len: 20, Flags: more}}, []int{60}, 1, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			k, _, x, own := newQueue(0)
			from := own
			if test.other {
				from = other
			}
			for _, s := range test.slots {
				for i, b := 0, from.Bytes(&s); i < len(b); i++ {
					b[i] = byte(s.Buf)
				}
			}
			s := slices.Clone(test.slots)
			if got := x.Send(from, s); got != test.taken {
				t.Errorf("%d slots taken, want %d", got, test.taken)
			}
			var sent []int
			for f := k.transmit(own); f != nil; f = k.transmit(own) {
				sent = append(sent, len(f))
			}
			if !slices.Equal(sent, test.sent) {
				t.Errorf("sent %d, want %d", sent, test.sent)
			}
			if got := x.refused.Load(); got != test.refused {
				t.Errorf("%d refused, want %d", got, test.refused)
			}
			last := test.taken - 1
			if got := s[last].Buf != test.slots[last].Buf; got != test.lastChanged {
				t.Errorf("the last buffer was exchanged: %t, want %t", got, test.lastChanged)
			}
			x.reap()
			if got := len(x.free); got != testSlots {
				t.Errorf("the queue holds %d buffers, want %d", got, testSlots)
			}
		})
	}
}

// TestSendFull fills the transmit ring while the kernel takes nothing.
func TestSendFull(t *testing.T) {
	k, _, x, region := newQueue(0)
	s := make([]dataplane.Slot, testSlots+10)
	for i := range s {
		s[i] = dataplane.Slot{Buf: uint32(i % 16), Len: 60}
	}
	if got := x.Send(region, s); got != testSlots {
		t.Fatalf("%d slots taken, want %d", got, testSlots)
	}
	if got := x.Send(region, s[testSlots:]); got != 0 {
		t.Fatalf("%d slots taken of a full ring", got)
	}
	k.transmit(region)
	k.transmit(region)
	if got := x.Send(region, s[testSlots:]); got != 2 {
		t.Errorf("%d slots taken, want the 2 that were sent", got)
	}
}

func TestReapNonsense(t *testing.T) {
	k, _, x, _ := newQueue(0)
	k.complete(math.MaxUint64) // outside the region
	k.complete(5 * testFrame)  // the queue has all of its buffers
	x.reap()
	if got := len(x.free); got != testSlots {
		t.Errorf("the queue holds %d buffers, want %d", got, testSlots)
	}
	k.comp.producer.Store(k.comp.consumer.Load() - 1) // 4 billion completions
	x.reap()
	if got := len(x.free); got != testSlots {
		t.Errorf("the queue holds %d buffers, want %d", got, testSlots)
	}
}

// FuzzRecv gives the receive side descriptors of any content: each slot that
// comes out can be read.
func FuzzRecv(f *testing.F) {
	f.Add(uint64(3*testFrame+256), uint32(60), uint32(0), uint32(1))
	f.Add(uint64(math.MaxUint64), uint32(math.MaxUint32), uint32(1), uint32(math.MaxUint32))
	f.Fuzz(func(t *testing.T, addr uint64, n, options, ahead uint32) {
		k, r, _, region := newQueue(0)
		for range testSlots {
			k.post(desc{addr: addr, len: n, options: options})
			addr, n = addr*31+7, n*31+7
		}
		k.recv.producer.Store(ahead)
		s := make([]dataplane.Slot, 2*testSlots)
		for range 3 {
			got := r.Recv(s)
			if got > testSlots {
				t.Fatalf("%d slots from a ring of %d", got, testSlots)
			}
			for i := range s[:got] {
				region.Bytes(&s[i])
				region.Buffer(s[i].Buf)
			}
		}
	})
}

// BenchmarkExchange is the cost of this package per frame, with the kernel's
// side of the rings in the same thread.
func BenchmarkExchange(b *testing.B) {
	k, r, x, region := newQueue(0)
	const burst = 32
	s := make([]dataplane.Slot, burst)
	free := make([]uint32, burst)
	b.ReportAllocs()
	for b.Loop() {
		c, p := k.fill.consumer.Load(), k.recv.producer.Load()
		for i := range uint32(burst) {
			k.recv.descs[(p+i)&k.recv.mask] = desc{addr: k.fill.addrs[(c+i)&k.fill.mask] + headroom, len: 60}
		}
		k.fill.consumer.Store(c + burst)
		k.recv.producer.Store(p + burst)

		n := r.Recv(s)
		x.Send(region, s[:n])
		for i := range s[:n] {
			free[i] = s[i].Buf
		}
		r.Release(free[:n])

		c, p = k.send.consumer.Load(), k.comp.producer.Load()
		for i := range uint32(n) {
			k.comp.addrs[(p+i)&k.comp.mask] = k.send.descs[(c+i)&k.send.mask].addr
		}
		k.send.consumer.Store(c + uint32(n))
		k.comp.producer.Store(p + uint32(n))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/burst, "ns/frame")
}

func TestNoAllocation(t *testing.T) {
	k, r, x, region := newQueue(0)
	s := make([]dataplane.Slot, 8)
	free := make([]uint32, 1)
	frame := make([]byte, 60)
	if got := testing.AllocsPerRun(100, func() {
		k.deliver(region, frame)
		r.Recv(s)
		x.Send(region, s[:1])
		free[0] = s[0].Buf
		r.Release(free)
		d := k.send.consumer.Load()
		k.send.consumer.Store(d + 1)
		k.complete(k.send.descs[d&k.send.mask].addr)
	}); got != 0 {
		t.Errorf("%v allocations per frame, want 0", got)
	}
}
