package netmap_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"nmfwd/test/race"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane"
	"nmfwd/dataplane/netmap"
	"nmfwd/dataplane/netmap/abi"
	"nmfwd/dataplane/netmap/fake"
)

// A rig is a fake kernel and the ports open on it.
type rig struct {
	t *testing.T
	*fake.Kernel
	locks string
	ports []*dataplane.Port
}

// newRig returns a kernel with cards c0, c1, ... At the end of the test all has
// to be closed and free.
func newRig(t *testing.T, cards ...fake.Card) (*rig, []*fake.Card) {
	return newRigOf(t, fake.DefaultParams, t.TempDir(), cards...)
}

// newRigOf is newRig with pools of other sizes and a directory for lock files.
func newRigOf(t *testing.T, p fake.Params, locks string, cards ...fake.Card) (*rig, []*fake.Card) {
	r := &rig{t: t, Kernel: fake.New(p), locks: locks}
	var cs []*fake.Card
	for i, c := range cards {
		c.Name = fmt.Sprint("c", i)
		cs = append(cs, r.AddCard(c))
	}
	t.Cleanup(func() {
		r.close()
		if err := r.Faults(); err != nil {
			t.Error(err)
		}
		if err := r.Idle(); err != nil {
			t.Error(err)
		}
	})
	return r, cs
}

// config is a port with n RX and n TX rings, all of worker 0.
func config(name string, n int) dataplane.PortConfig {
	return dataplane.PortConfig{Name: name, Owners: dataplane.Owners{RX: make([]int, n), TX: make([]int, n)}}
}

func (r *rig) options() netmap.Options {
	return netmap.Still(netmap.Options{Kernel: r.Kernel, LockDir: r.locks})
}

func (r *rig) open(cfgs ...dataplane.PortConfig) []*dataplane.Port {
	r.t.Helper()
	ports, err := netmap.Open(cfgs, r.options())
	if err != nil {
		r.t.Fatal(err)
	}
	r.ports = append(r.ports, ports...)
	return ports
}

func (r *rig) close() {
	r.t.Helper()
	for i := len(r.ports) - 1; i >= 0; i-- {
		if err := r.ports[i].Device.Close(); err != nil {
			r.t.Error(err)
		}
	}
	r.ports = nil
}

// poll does for descriptors what a worker's poller does.
func (r *rig) poll(ds ...dataplane.Descriptor) {
	r.t.Helper()
	for _, d := range ds {
		events, err := d.Before(false)
		if err != nil {
			r.t.Fatal(err)
		}
		if events == 0 || d.FD() < 0 {
			continue
		}
		if rev := r.Poll(d.FD(), events); rev != 0 {
			if err := d.After(rev); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

// pollAll polls all queues of all ports.
func (r *rig) pollAll() {
	r.t.Helper()
	for _, p := range r.ports {
		for _, q := range append(p.Queues[:len(p.Queues):len(p.Queues)], p.Host...) {
			r.poll(q.Descriptor)
		}
	}
}

// forward moves up to len(s) slots from a queue to another.
func forward(s []dataplane.Slot, from dataplane.RX, to dataplane.TX) (received, sent int) {
	s = s[:from.Recv(s)]
	sent = to.Send(from.Region(), s)
	free := make([]uint32, len(s))
	for i := range s {
		free[i] = s[i].Buf
	}
	from.Release(free)
	return len(s), sent
}

// frame returns a frame of size bytes with number n at its end.
func frame(n, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i*7 + n)
	}
	copy(b, "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01")
	binary.BigEndian.PutUint32(b[size-4:], uint32(n))
	return b
}

func size(n int) int { return 60 + n*31%1455 }

// TestExchange sends 10,000 numbered frames through rings of 512 slots,
// forwarded ones and ones made here mixed. Each has to leave once, in order,
// and no buffer may be lost.
func TestExchange(t *testing.T) {
	for _, polls := range []bool{true, false} {
		t.Run(fmt.Sprintf("polls %v", polls), func(t *testing.T) {
			r, c := newRigOf(t, fake.Params{Ifs: 5, Rings: 4, Bufs: 2 + 4*512 + 32, BufSize: 2048}, t.TempDir(), fake.Card{RXSlots: 512, TXSlots: 512}, fake.Card{RXSlots: 512, TXSlots: 512})
			r.Polls = polls
			cfg := config("c1", 1)
			cfg.Spare = 32
			p := r.open(config("c0", 1), cfg)
			in, out := p[0].Queues[0], p[1].Queues[0]
			region := out.TX.Region()
			if in.RX.Region() != region {
				t.Fatal("cards are in two regions")
			}
			own, err := region.Take(32)
			if err != nil {
				t.Fatal(err)
			}
			rnd := rand.New(rand.NewPCG(1, 2))
			var slots [64]dataplane.Slot
			sent, got := 0, 0
			for got < 10000 {
				if rnd.IntN(3) == 0 {
					n := rnd.IntN(len(own))
					s := slots[:n]
					for i := range s {
						s[i] = dataplane.Slot{Buf: own[i]}
						s[i].Len = uint16(copy(region.Buffer(own[i]), frame(sent+i, size(sent+i))))
					}
					sent += out.TX.Send(region, s)
					for i := range s {
						own[i] = s[i].Buf
					}
				} else {
					n := rnd.IntN(100)
					for i := range n {
						c[0].Deliver(0, frame(sent+i, size(sent+i)))
					}
					want := sent + n
					for sent < want {
						r.pollAll()
						received, k := forward(slots[:1+rnd.IntN(64)], in.RX, out.TX)
						if k != received {
							t.Fatalf("%d of %d slots sent", k, received)
						}
						sent += k
					}
				}
				r.pollAll()
				for _, f := range c[1].Sent(0) {
					if !bytes.Equal(f, frame(got, size(got))) {
						t.Fatalf("frame %d: got %x", got, f)
					}
					got++
				}
				if err := r.Census(1, own, region.Spare()); err != nil {
					t.Fatal(err)
				}
			}
			region.Give(own)
		})
	}
}

// TestSchedules runs several ports at random, with drops and devices that are
// slow to complete, and counts the buffers after each step.
func TestSchedules(t *testing.T) {
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		r, c := newRig(t, fake.Card{RXSlots: 32, TXSlots: 16}, fake.Card{RXSlots: 16, TXSlots: 64, RXRings: 2, TXRings: 2})
		r.LockFree = seed%2 == 0
		for _, card := range c {
			card.ReportOnly = seed%3 == 0
			card.Complete = func(n int) int { return rnd.IntN(n + 1) }
		}
		cfg := config("c0", 1)
		cfg.Spare = 17
		p := r.open(cfg, config("c1", 2), config("x{1", 1), config("x}1", 1))
		var queues []dataplane.Queue
		for _, port := range p {
			queues = append(queues, port.Queues...)
		}
		pipeRegion := p[2].Queues[0].RX.Region()
		var slots [24]dataplane.Slot
		for step := range 500 {
			for _, card := range c {
				card.Deliver(rnd.IntN(card.RXRings), frame(step, 60+rnd.IntN(6000)))
			}
			from, to := queues[rnd.IntN(len(queues))], queues[rnd.IntN(len(queues))]
			s := slots[:from.RX.Recv(slots[:rnd.IntN(len(slots)+1)])]
			if rnd.IntN(4) > 0 {
				to.TX.Send(from.RX.Region(), s)
			}
			rnd.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
			free := make([]uint32, len(s))
			for i := range s {
				free[i] = s[i].Buf
			}
			cut := rnd.IntN(len(free) + 1)
			from.RX.Release(free[:cut])
			if rnd.IntN(2) == 0 {
				r.poll(queues[rnd.IntN(len(queues))].Descriptor)
			}
			from.RX.Release(free[cut:])
			if rnd.IntN(2) == 0 {
				r.pollAll()
			}
			if err := r.Census(1, p[0].Queues[0].RX.Region().Spare()); err != nil {
				t.Fatalf("seed %d step %d: %v", seed, step, err)
			}
			if err := r.Census(2, pipeRegion.Spare()); err != nil {
				t.Fatalf("seed %d step %d: %v", seed, step, err)
			}
		}
		r.close()
	}
}

// TestRegions forwards between ports that share no memory.
func TestRegions(t *testing.T) {
	for _, tt := range []struct {
		name   string
		a, b   string
		shared bool
	}{
		{"cards", "c0", "c1", true},
		{"card and its pipe", "c0", "c0{7", true},
		{"card and VALE port", "c0", "vale0:p", false},
		{"card and pipe", "c0", "x{1", false},
		{"pipes of one parent", "x{1", "x{2", true},
		{"pipes of two parents", "x{1", "y{1", false},
		{"VALE ports", "vale0:p", "vale1:q", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, _ := newRig(t, fake.Card{}, fake.Card{})
			p := r.open(config(tt.a, 1), config(tt.b, 1))
			a, b := p[0].Queues[0], p[1].Queues[0]
			if got := a.RX.Region() == b.TX.Region(); got != tt.shared {
				t.Errorf("one region: %v, want %v", got, tt.shared)
			}
		})
	}
	t.Run("bytes", func(t *testing.T) {
		r, c := newRig(t, fake.Card{})
		p := r.open(config("c0", 1), config("x{1", 1), config("x}1", 1))
		in, out, far := p[0].Queues[0], p[1].Queues[0], p[2].Queues[0]
		var slots [16]dataplane.Slot
		for n, got := 0, 0; got < 1000; n++ {
			c[0].Deliver(0, frame(n, size(n)))
			r.pollAll()
			forward(slots[:], in.RX, out.TX)
			r.pollAll()
			s := slots[:far.RX.Recv(slots[:])]
			var free []uint32
			for i := range s {
				if f := far.RX.Region().Bytes(&s[i]); !bytes.Equal(f, frame(got, size(got))) {
					t.Fatalf("frame %d: got %x", got, f)
				}
				got++
				free = append(free, s[i].Buf)
			}
			far.RX.Release(free)
		}
		for id := range uint16(2) {
			if err := r.Census(1 + id); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestSend has what Send must refuse, change or leave alone. A frame longer than
// a buffer is never cut.
func TestSend(t *testing.T) {
	const more = dataplane.More
	for _, tt := range []struct {
		name    string
		lens    []int
		flags   []dataplane.SlotFlags
		foreign bool // from another region
		want    int  // slots taken
		frames  []int
	}{
		{"one", []int{60}, nil, false, 1, []int{60}},
		{"short", []int{14, 59}, nil, false, 2, []int{60, 60}},
		{"short, copied", []int{14, 59}, nil, true, 2, []int{60, 60}},
		{"empty", []int{0}, nil, false, 1, []int{60}},
		{"around 64, copied", []int{60, 60, 64, 64, 65, 65}, nil, true, 6, []int{60, 60, 64, 64, 65, 65}},
		{"short among others", []int{60, 59, 61, 62, 14, 63}, nil, false, 6, []int{60, 60, 61, 62, 60, 63}},
		{"as long as a buffer", []int{2048}, nil, false, 1, []int{2048}},
		{"too long", []int{2049}, nil, true, 0, nil},
		{"too long behind others", []int{60, 61, 2049, 62}, nil, true, 2, []int{60, 61}},
		{"flags of others", []int{60}, []dataplane.SlotFlags{0xfffe}, false, 1, []int{60}},
		{"chain", []int{2048, 2048, 10}, []dataplane.SlotFlags{more, more, 0}, false, 3, []int{4106}},
		{"chain, copied", []int{2048, 2048, 10}, []dataplane.SlotFlags{more, more, 0}, true, 3, []int{4106}},
		{"chain without end", []int{60, 2048, 2048}, []dataplane.SlotFlags{0, more, more}, false, 1, []int{60}},
		{"chain with a part too long", []int{60, 1000, 2049}, []dataplane.SlotFlags{0, more, 0}, true, 1, []int{60}},
		{"ring full", []int{60, 60, 60, 60, 60, 60, 60, 60}, nil, false, 7, []int{60, 60, 60, 60, 60, 60, 60}},
		{"chain beyond the ring", []int{60, 60, 60, 60, 60, 60, 60, 60}, []dataplane.SlotFlags{0, 0, 0, 0, more, more, more, 0}, false, 4, []int{60, 60, 60, 60}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, c := newRig(t, fake.Card{TXSlots: 8})
			cfg := config("c0", 1)
			cfg.Spare = len(tt.lens)
			q := r.open(cfg)[0].Queues[0]
			region := q.TX.Region()
			bufs, err := region.Take(len(tt.lens))
			if err != nil {
				t.Fatal(err)
			}
			from := region
			if tt.foreign {
				from = dataplane.NewRegion("foreign", make([]byte, 16*4096), 4096, nil)
			}
			var s []dataplane.Slot
			for i, l := range tt.lens {
				slot := dataplane.Slot{Buf: bufs[i], Len: uint16(l)}
				if tt.foreign {
					slot.Buf, slot.Off = uint32(i), uint16(i%2*3)
				}
				if tt.flags != nil {
					slot.Flags = tt.flags[i]
				}
				for k := range from.Buffer(slot.Buf) {
					from.Buffer(slot.Buf)[k] = 0xee
				}
				clear(from.Buffer(slot.Buf)[:slot.Off])
				s = append(s, slot)
			}
			if got := q.TX.Send(from, s); got != tt.want {
				t.Errorf("%d slots taken, want %d", got, tt.want)
			}
			r.poll(q.Descriptor)
			frames := c[0].Sent(0)
			if len(frames) != len(tt.frames) {
				t.Fatalf("%d frames sent, want %d", len(frames), len(tt.frames))
			}
			at := 0
			for i, f := range frames {
				data := 0
				for data += tt.lens[at]; tt.flags != nil && tt.flags[at]&more != 0; data += tt.lens[at] {
					at++
				}
				at++
				want := append(bytes.Repeat([]byte{0xee}, data), make([]byte, max(60-data, 0))...)
				if len(f) != tt.frames[i] || !bytes.Equal(f, want) {
					t.Errorf("frame %d: got %d bytes %x, want %d", i, len(f), f, tt.frames[i])
				}
			}
			for i := range s {
				if tt.foreign && s[i].Buf != uint32(i) {
					t.Errorf("slot %d: buffer %d came back, want its own %d", i, s[i].Buf, i)
				} else if !tt.foreign {
					bufs[i] = s[i].Buf
				}
			}
			if err := r.Census(1, bufs); err != nil {
				t.Error(err)
			}
			region.Give(bufs)
		})
	}
}

// TestChains receives frames of several slots.
func TestChains(t *testing.T) {
	receive := func(q dataplane.RX, s []dataplane.Slot) (got []dataplane.Slot) {
		s = s[:q.Recv(s)]
		var free []uint32
		for i := range s {
			free = append(free, s[i].Buf)
		}
		q.Release(free)
		return s
	}
	var slots [16]dataplane.Slot
	for _, lockFree := range []bool{false, true} {
		r, c := newRig(t, fake.Card{RXSlots: 128})
		r.LockFree = lockFree
		q := r.open(config("c0", 1))[0].Queues[0]

		// The end of a frame comes late: nothing of it before.
		c[0].DeliverPart(0, frame(0, 100), false)
		c[0].DeliverPart(0, frame(1, 2048), true)
		r.poll(q.Descriptor)
		if s := receive(q.RX, slots[:]); len(s) != 1 || s[0].Len != 100 {
			t.Fatalf("got %+v, want one slot of 100 bytes", s)
		}
		for range 3 {
			r.poll(q.Descriptor)
			if s := receive(q.RX, slots[:]); len(s) != 0 {
				t.Fatalf("got %+v of a frame without end", s)
			}
		}
		c[0].DeliverPart(0, frame(1, 70), false)
		c[0].DeliverPart(0, frame(2, 64), false)
		r.poll(q.Descriptor)
		s := receive(q.RX, slots[:])
		if len(s) != 3 || s[0].Flags != dataplane.More || s[0].Len != 2048 || s[1].Flags != 0 || s[1].Len != 70 || s[2].Len != 64 {
			t.Fatalf("got %+v, want 2048 and 70 bytes of one frame and 64 of another", s)
		}

		// What does not fit the rest of a burst begins the next.
		c[0].Deliver(0, frame(3, 60))
		c[0].Deliver(0, frame(4, 3*2048))
		r.poll(q.Descriptor)
		if s := receive(q.RX, slots[:3]); len(s) != 1 {
			t.Fatalf("got %d slots, want 1", len(s))
		}
		if s := receive(q.RX, slots[:3]); len(s) != 3 {
			t.Fatalf("got %d slots, want 3", len(s))
		}

		// A frame longer than a burst, or than netmap allows, is dropped slot by
		// slot, and what follows is received.
		for _, parts := range []int{17, 64, 65, 100, 300} {
			for range parts - 1 {
				c[0].DeliverPart(0, frame(5, 2048), true)
			}
			c[0].DeliverPart(0, frame(5, 2048), false)
			c[0].DeliverPart(0, frame(6, 66), false)
			dropped := 0
			for tries := 0; ; tries++ {
				r.poll(q.Descriptor)
				s := receive(q.RX, slots[:])
				if n := len(s); n > 0 && s[n-1].Len == 66 {
					dropped += n - 1
					break
				}
				for _, d := range s {
					if d.Len != 0 || d.Flags != 0 {
						t.Fatalf("%d parts: got %+v", parts, d)
					}
				}
				dropped += len(s)
				if tries > 100 {
					t.Fatalf("%d parts: nothing behind them received", parts)
				}
			}
			if dropped != parts {
				t.Errorf("%d slots dropped, want %d", dropped, parts)
			}
		}
		if err := r.Census(1); err != nil {
			t.Error(err)
		}
	}
}

// TestBadSlots receives slots that the kernel or another program has spoiled.
func TestBadSlots(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(n int, s *abi.Slot)
		parts int
		want  []int // lengths received, of three frames
		bad   bool  // a buffer number was changed
	}{
		{"none", func(int, *abi.Slot) {}, 1, []int{100, 100, 100}, false},
		{"length beyond the buffer", func(n int, s *abi.Slot) {
			if n == 1 {
				s.Len = 2049
			}
		}, 1, []int{100, 0, 100}, false},
		{"length of a receive error", func(n int, s *abi.Slot) {
			if n == 0 {
				s.Len = 0
			}
		}, 1, []int{0, 100, 100}, false},
		{"length in a chain", func(n int, s *abi.Slot) {
			if n == 3 {
				s.Len = 65535
			}
		}, 2, []int{2048, 100, 0, 0, 2048, 100}, false},
		{"buffer 0 first", func(n int, s *abi.Slot) {
			if n == 0 {
				s.BufIdx = 0
			}
		}, 1, []int{100, 100}, true},
		{"buffer 1 last", func(n int, s *abi.Slot) {
			if n == 2 {
				s.BufIdx = 1
			}
		}, 1, []int{100, 100}, true},
		{"buffer beyond the region", func(n int, s *abi.Slot) {
			if n == 1 {
				s.BufIdx = 1 << 31
			}
		}, 1, []int{100, 100}, true},
		{"all buffers", func(n int, s *abi.Slot) { s.BufIdx = ^uint32(0) }, 1, nil, true},
		{"buffer at the end of a chain", func(n int, s *abi.Slot) {
			if n == 3 {
				s.BufIdx = 1 << 31
			}
		}, 2, []int{2048, 100, 0, 2048, 100}, true},
		{"all of a chain", func(n int, s *abi.Slot) {
			if n == 2 || n == 3 {
				s.BufIdx = 1
			}
		}, 2, []int{2048, 100, 2048, 100}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, c := newRig(t, fake.Card{})
			p := r.open(config("c0", 1))[0]
			q := p.Queues[0]
			var slot *abi.Slot
			var good uint32
			saved := map[*abi.Slot]uint32{}
			n := 0
			c[0].Corrupt = func(s *abi.Slot) {
				slot, good = s, s.BufIdx
				tt.spoil(n, s)
				if s.BufIdx != good {
					saved[slot] = good
				}
				n++
			}
			for i := range 3 {
				for range tt.parts - 1 {
					c[0].DeliverPart(0, frame(i, 2048), true)
				}
				c[0].DeliverPart(0, frame(i, 100), false)
			}
			r.poll(q.Descriptor)
			var slots [16]dataplane.Slot
			s := slots[:q.RX.Recv(slots[:])]
			var got []int
			var free []uint32
			for i := range s {
				got = append(got, int(s[i].Len))
				free = append(free, s[i].Buf)
			}
			q.RX.Release(free)
			if !slices.Equal(got, tt.want) {
				t.Errorf("got lengths %v, want %v", got, tt.want)
			}
			if len(s) > 0 && s[len(s)-1].Flags != 0 {
				t.Error("the last frame has no end")
			}
			if head, cur, tail := netmap.Ring(q.RX); head != tail || cur != tail {
				t.Errorf("head %d, cur %d, tail %d: not all given back", head, cur, tail)
			}
			if lost := p.Device.Counters(0).RXRingFull; (lost > 0) != tt.bad {
				t.Errorf("%d slots lost", lost)
			}
			c[0].Corrupt = nil
			for s, b := range saved {
				s.BufIdx = b
			}
			c[0].Deliver(0, frame(9, 99))
			r.poll(q.Descriptor)
			if n, _ := forward(slots[:], q.RX, q.TX); n != 1 {
				t.Errorf("%d frames received after that, want 1", n)
			}
			r.poll(q.Descriptor)
			if f := c[0].Sent(0); len(f) != 1 || !bytes.Equal(f[0], frame(9, 99)) {
				t.Errorf("got %x", f)
			}
			if err := r.Census(1); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSpoiledTX sends by a ring in which another program has written a buffer
// number that is none: nothing can be exchanged for it.
func TestSpoiledTX(t *testing.T) {
	r, _ := newRig(t, fake.Card{})
	cfg := config("c0", 1)
	cfg.Spare = 2
	p := r.open(cfg)[0]
	q := p.Queues[0]
	bufs, _ := q.TX.Region().Take(2)
	slot := netmap.TXSlot(q.TX, 1)
	good := slot.BufIdx
	slot.BufIdx = 1
	s := []dataplane.Slot{{Buf: bufs[0], Len: 60}, {Buf: bufs[1], Len: 60}}
	if n := q.TX.Send(q.TX.Region(), s); n != 1 {
		t.Errorf("%d slots taken, want 1", n)
	}
	if events, err := q.Descriptor.Before(false); events != 0 || err != nil {
		t.Errorf("got events %d, %v", events, err)
	}
	if err := p.Device.(dataplane.Watcher).Changed(); err == nil || !strings.Contains(err.Error(), "transmit: slot 1 has buffer 1, of 1200") {
		t.Errorf("got %v", err)
	}
	slot.BufIdx = good
	q.TX.Region().Give([]uint32{s[0].Buf, s[1].Buf})
}

// TestReport sends by a card that tells of no completion unless
// asked, bursts of eight frames and single ones.
func TestReport(t *testing.T) {
	r, c := newRig(t, fake.Card{TXSlots: 64, ReportOnly: true})
	cfg := config("c0", 1)
	cfg.Spare = 8
	q := r.open(cfg)[0].Queues[0]
	bufs, err := q.TX.Region().Take(8)
	if err != nil {
		t.Fatal(err)
	}
	sent, want := 0, 0
	for i := range 1000 {
		n := 8
		if i%2 == 0 {
			n = 1
		}
		want += n
		s := make([]dataplane.Slot, n)
		for i := range s {
			s[i] = dataplane.Slot{Buf: bufs[i], Len: 60}
		}
		sent += q.TX.Send(q.TX.Region(), s)
		for i := range s {
			bufs[i] = s[i].Buf
		}
		r.poll(q.Descriptor)
	}
	q.TX.Region().Give(bufs)
	if got := len(c[0].Sent(0)); sent != want || got != sent {
		t.Errorf("%d frames sent, %d on the wire, want %d", sent, got, want)
	}
	if n := netmap.Free(q.TX); n != 63 {
		t.Errorf("%d slots are free, want 63", n)
	}
}

// TestReportInBurst sends bursts longer than the quarter of a ring that may go
// without a report, across the ring's end.
func TestReportInBurst(t *testing.T) {
	r, _ := newRig(t, fake.Card{TXSlots: 64})
	cfg := config("c0", 1)
	cfg.Spare = 40
	q := r.open(cfg)[0].Queues[0]
	bufs, err := q.TX.Region().Take(40)
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for range 5 {
		s := make([]dataplane.Slot, len(bufs))
		for i := range s {
			s[i] = dataplane.Slot{Buf: bufs[i], Len: 60}
		}
		if n := q.TX.Send(q.TX.Region(), s); n != len(s) {
			t.Fatalf("%d slots taken, want %d", n, len(s))
		}
		for i := range s {
			bufs[i] = s[i].Buf
			want := i == 15 || i == 31 || i == 39
			if got := netmap.TXSlot(q.TX, (at+i)%64).Flags&abi.Report != 0; got != want {
				t.Errorf("slot %d of a burst from slot %d on is reported: %v, want %v", i, at, got, want)
			}
		}
		at = (at + len(s)) % 64
		r.poll(q.Descriptor)
	}
	q.TX.Region().Give(bufs)
}

// TestFullRing fills a TX ring, whose slots the kernel takes back in a sync
// only: they have to be free again without a frame more.
func TestFullRing(t *testing.T) {
	r, c := newRig(t, fake.Card{TXSlots: 16})
	cfg := config("c0", 1)
	cfg.Spare = 16
	q := r.open(cfg)[0].Queues[0]
	bufs, _ := q.TX.Region().Take(16)
	defer q.TX.Region().Give(bufs)
	send := func() int {
		s := make([]dataplane.Slot, 16)
		for i := range s {
			s[i] = dataplane.Slot{Buf: bufs[i], Len: 60}
		}
		n := q.TX.Send(q.TX.Region(), s)
		for i := range s {
			bufs[i] = s[i].Buf
		}
		return n
	}
	stuck := true
	c[0].Complete = func(n int) int {
		if stuck {
			return 0
		}
		return n
	}
	if n := send(); n != 15 {
		t.Fatalf("%d frames fit, want 15", n)
	}
	r.poll(q.Descriptor)
	if n := send(); n != 0 {
		t.Fatalf("%d frames fit a full ring", n)
	}
	stuck = false
	if n := send(); n != 0 {
		t.Fatalf("Send synced twice in a round, %d frames fit", n)
	}
	r.poll(q.Descriptor)
	if n := netmap.Free(q.TX); n != 15 {
		t.Errorf("%d slots are free after a poll, want 15", n)
	}
	if n := send(); n != 15 {
		t.Fatalf("%d frames fit after a poll, want 15", n)
	}
}

// TestUnequalRings opens cards with all combinations of rings and workers.
// Every RX ring has one reader, and what comes in by any of them leaves by a
// ring of the same worker, if it has one.
func TestUnequalRings(t *testing.T) {
	for _, rx := range []int{1, 2, 4, 8} {
		for _, tx := range []int{1, 2, 4, 8} {
			for _, workers := range []int{1, 2, 3, 4, 8} {
				t.Run(fmt.Sprintf("rx %d tx %d workers %d", rx, tx, workers), func(t *testing.T) {
					r, c := newRig(t, fake.Card{RXRings: rx, TXRings: tx})
					plan := dataplane.MakePlan([]dataplane.Rings{{RX: rx, TX: tx}}, workers, workers)
					cfg := dataplane.PortConfig{Name: "c0", Owners: plan.Ports[0]}
					p := r.open(cfg)[0]
					if p.RXRings != rx || p.TXRings != tx {
						t.Errorf("rings %d and %d", p.RXRings, p.TXRings)
					}
					rxs, txs := map[int]dataplane.Queue{}, map[int]dataplane.Queue{}
					for _, q := range p.Queues {
						if q.RX != nil {
							if _, ok := rxs[q.Index]; ok || q.Worker != cfg.Owners.RX[q.Index] {
								t.Errorf("RX ring %d: worker %d, want %d once", q.Index, q.Worker, cfg.Owners.RX[q.Index])
							}
							rxs[q.Index] = q
						}
						if q.TX != nil {
							if _, ok := txs[q.Index]; ok || q.Worker != cfg.Owners.TX[q.Index] {
								t.Errorf("TX ring %d: worker %d, want %d once", q.Index, q.Worker, cfg.Owners.TX[q.Index])
							}
							txs[q.Index] = q
						}
					}
					if len(rxs) != rx {
						t.Fatalf("%d RX queues, want %d", len(rxs), rx)
					}
					for i, q := range rxs {
						c[0].Deliver(i, frame(i, 100+i))
						r.poll(q.Descriptor)
						for k, out := range txs {
							var slots [4]dataplane.Slot
							if n, sent := forward(slots[:], q.RX, out.TX); n != 1 || sent != 1 {
								t.Errorf("RX ring %d: %d frames, %d sent by %d", i, n, sent, k)
							}
							r.poll(out.Descriptor)
							if f := c[0].Sent(k); len(f) != 1 || !bytes.Equal(f[0], frame(i, 100+i)) {
								t.Errorf("RX ring %d to TX ring %d: got %x", i, k, f)
							}
							c[0].Deliver(i, frame(i, 100+i))
							r.poll(q.Descriptor)
						}
					}
					if err := r.Census(1); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// TestRegistrations: what resets a card happens twice.
// All rings, those of the host too, enter netmap mode with the control
// descriptor and leave it with the last, the host's descriptor is closed first
// and that of the memory last, which alone is mapped then. Each registration has an If of its own: the kernel writes
// no ring of another into it.
func TestRegistrations(t *testing.T) {
	r, c := newRig(t, fake.Card{RXRings: 4, TXRings: 4})
	cfg := config("c0", 4)
	cfg.Owners.TX = []int{1, 1, 0, 0}
	cfg.Host = true
	r.open(cfg)
	if c[0].Changes != 10 {
		t.Errorf("%d ring changes, want 10", c[0].Changes)
	}
	want := []string{
		"register C c0 mode 3 ring 0 flags 0x0 extra 0: <nil>", "map C", "register M c0 mode 7 ring 0 flags 0x0 extra 0: <nil>", "map M", "unmap",
		"register 0 c0 mode 4 ring 0 flags 0x2000 extra 0: <nil>", "register 1 c0 mode 4 ring 0 flags 0x4000 extra 0: <nil>",
		"register 2 c0 mode 4 ring 1 flags 0x2000 extra 0: <nil>", "register 3 c0 mode 4 ring 1 flags 0x4000 extra 0: <nil>",
		"register 4 c0 mode 4 ring 2 flags 0x0 extra 0: <nil>",
		"register 5 c0 mode 4 ring 3 flags 0x0 extra 0: <nil>",
		"register 6 c0 mode 2 ring 0 flags 0x0 extra 0: <nil>",
		"close 6", "close 5", "close 4", "close 3", "close 2", "close 1", "close 0", "close C", "unmap", "close M",
	}
	for range 100 {
		r.pollAll()
		r.ports[0].Device.Counters(0)
		r.ports[0].Device.LinkUp()
	}
	if c[0].Changes != 10 {
		t.Errorf("%d ring changes after work, want 10", c[0].Changes)
	}
	r.close()
	if c[0].Changes != 20 {
		t.Errorf("%d ring changes after close, want 20", c[0].Changes)
	}
	got := r.Trace()
	names := map[string]string{} // by descriptor
	for i, l := range got {
		w := strings.Fields(l)
		if w[0] == "register" && names[w[1]] == "" {
			switch n := len(names); n {
			case 0:
				names[w[1]] = "C"
			case 1:
				names[w[1]] = "M"
			default:
				names[w[1]] = fmt.Sprint(n - 2)
			}
		}
		if len(w) > 1 {
			w[1] = names[w[1]]
		}
		got[i] = strings.Join(w, " ")
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestRestart opens and closes ports a thousand times, and leaves
// nothing behind.
func TestRestart(t *testing.T) {
	r, c := newRig(t, fake.Card{RXRings: 2, TXRings: 2}, fake.Card{})
	check := func() {}
	for n := range 1010 {
		if n == 10 {
			check = leaks(t, 200<<10)
		}
		a := config("c0", 2)
		a.Spare = 40
		p := r.open(a, config("c1", 1), config("vale0:p", 1), config("x{1", 1), config("x}1", 1))
		c[0].Deliver(1, frame(1, 60))
		r.pollAll()
		var slots [4]dataplane.Slot
		for _, q := range p[1:] {
			forward(slots[:], p[0].Queues[1].RX, q.Queues[0].TX)
			c[0].Deliver(1, frame(1, 60))
			r.pollAll()
		}
		spare, err := p[0].Queues[0].RX.Region().Take(8)
		if err != nil {
			t.Fatal(err)
		}
		p[0].Queues[0].RX.Region().Give(spare)
		r.close()
		if err := r.Idle(); err != nil {
			t.Fatal(err)
		}
		if err := r.Faults(); err != nil {
			t.Fatal(err)
		}
		r.Trace()
	}
	check()
}

// TestOpenErrors has what can be wrong at start. Nothing may stay open.
func TestOpenErrors(t *testing.T) {
	card := func(f func(*dataplane.PortConfig)) []dataplane.PortConfig {
		c := config("c0", 1)
		f(&c)
		return []dataplane.PortConfig{config("vale0:p", 1), c}
	}
	none := func(*dataplane.PortConfig) {}
	pipeOf := func(name string, spare int) dataplane.PortConfig {
		c := config(name, 1)
		c.Spare = spare
		return c
	}
	for _, tt := range []struct {
		name   string
		kernel func(*fake.Kernel, *fake.Card)
		cfgs   []dataplane.PortConfig
		want   error
		text   string
	}{
		{"no module", func(k *fake.Kernel, _ *fake.Card) { k.Missing = true }, card(none), fs.ErrNotExist, "open /dev/netmap: no such file or directory: load the module with "},
		{"no permission", func(k *fake.Kernel, _ *fake.Card) { k.Forbidden = true }, card(none), fs.ErrPermission, "run as root"},
		{"older kernel", func(k *fake.Kernel, _ *fake.Card) { k.MinVersion, k.MaxVersion = 11, 13 }, card(none), netmap.ErrVersion, "the kernel's is 11, nmfwd's is 14"},
		{"newer kernel", func(k *fake.Kernel, _ *fake.Card) { k.MinVersion, k.MaxVersion = 16, 17 }, card(none), netmap.ErrVersion, "the kernel's is 16, nmfwd's is 14"},
		{"ancient kernel", func(k *fake.Kernel, _ *fake.Card) { k.MinVersion, k.MaxVersion = 1, 2 }, card(none), netmap.ErrVersion, "older than 14"},
		{"no interface", nil, []dataplane.PortConfig{config("c0", 1), config("c9", 1)}, unix.ENXIO, "netmap: port c9: "},
		{"down", func(_ *fake.Kernel, c *fake.Card) { c.Up = false }, card(none), nil, "netmap: port c0: the interface is down: "},
		{"another mac with a host", nil, card(func(c *dataplane.PortConfig) { c.Host, c.MAC = true, net.HardwareAddr{2, 0, 0, 0, 0, 9} }), nil, "netmap: port c0: the host has the card's address 02:00:00:00:01:00, and no other"},
		{"registration refused for its mtu", func(_ *fake.Kernel, c *fake.Card) { c.MTU = 4000 }, card(none), unix.EINVAL, "netmap: port c0: register: invalid argument: mtu 4000 needs buffers of 4018 bytes, they have 2048: "},
		{"too many pipes of one parent", nil, []dataplane.PortConfig{pipeOf("x{1", 0), pipeOf("x{2", 0), pipeOf("x{3", 5000)}, unix.ENOMEM, "need at least 6 rings, 5386 buffers and 7 interfaces"},
		{"not native", func(_ *fake.Kernel, c *fake.Card) { c.Native = false }, card(func(c *dataplane.PortConfig) { c.Native = true }), nil, "no native netmap support"},
		{"emulated with a VLAN", func(_ *fake.Kernel, c *fake.Card) { c.Native = false }, card(func(c *dataplane.PortConfig) { c.VLANs = []uint16{100} }), nil, "netmap is emulated on it, which loses VLAN tags"},
		{"copies", func(_ *fake.Kernel, c *fake.Card) { c.Native = false }, card(func(c *dataplane.PortConfig) { c.ZeroCopy = true }), nil, "the device copies"},
		{"planned for other rings", nil, []dataplane.PortConfig{config("c0", 2)}, nil, "netmap: port c0: 1 RX and 1 TX rings, planned for 2 and 2"},
		{"mtu beyond the buffers", func(_ *fake.Kernel, c *fake.Card) { c.MTU = 9000 }, card(none), nil, "mtu 9000 needs buffers of 9018 bytes, they have 2048: "},
		{"a host and an mtu of the interface beyond the buffers", func(_ *fake.Kernel, c *fake.Card) { c.MTU, c.Part = 9000, 2048 }, card(func(c *dataplane.PortConfig) { c.Host, c.MTU = true, 1500 }), nil,
			"netmap: port c0: the host receives and sends packets of the interface's MTU, each in one buffer: mtu 9000 needs buffers of 9018 bytes, they have 2048: "},
		{"a host and an mtu that fits without a tag", func(_ *fake.Kernel, c *fake.Card) { c.MTU = 2034 }, card(func(c *dataplane.PortConfig) { c.Host, c.MTU = true, 1500 }), nil, "mtu 2034 needs buffers of 2052 bytes, they have 2048: "},
		{"mtu of the configuration", nil, card(func(c *dataplane.PortConfig) { c.MTU = 2031 }), nil, "mtu 2031 needs buffers of 2049 bytes"},
		{"two buffer sizes", nil, []dataplane.PortConfig{{Name: "c0", BufSize: 2112}, {Name: "vale0:p", BufSize: 4096}}, nil, "all ports have one size"},
		{"too many spare buffers", nil, card(func(c *dataplane.PortConfig) { c.Spare = 100000 }), unix.ENOMEM, "need at least 2 rings, 100130 buffers and 3 interfaces"},
		{"twice", nil, []dataplane.PortConfig{config("c0", 1), config("netmap:c0", 1)}, unix.EBUSY, "another nmfwd has it (pid "},
		{"ring picked", nil, []dataplane.PortConfig{config("c0-1", 1)}, nil, `use "port c0"`},
		{"host ring picked", nil, []dataplane.PortConfig{config("c0^", 1)}, nil, `rings cannot be picked, nmfwd manages them itself: use "port c0"`},
		{"vlan", nil, []dataplane.PortConfig{config("c0.100", 1)}, nil, `use "port c0" and "vlan 100 on c0"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, c := newRig(t, fake.Card{})
			if tt.kernel != nil {
				tt.kernel(r.Kernel, c[0])
			}
			p, err := netmap.Open(tt.cfgs, r.options())
			if err == nil {
				r.ports = p
				t.Fatal("no error")
			}
			var pe *dataplane.PortError
			if named := strings.HasPrefix(err.Error(), "netmap: port c0: ") && !errors.Is(err, unix.ENOMEM); named && (!errors.As(err, &pe) || pe.Port != "c0") {
				t.Errorf("the error does not tell its port: %#v", err)
			}
			if tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %v with %q", err, tt.want, tt.text)
			}
			if err := r.Idle(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOccupied opens a port that another program has: it is found and named. One
// that is about to end is waited for.
func TestOccupied(t *testing.T) {
	for _, tt := range []struct {
		name      string
		exclusive bool
		tellsUse  bool
		used      bool
		text      string
	}{
		{"exclusively", true, false, false, "netmap: port c0: register: device or resource busy: another program has it for itself: netmap is in use by pkt-gen (pid 77)"},
		{"as the system tells", false, true, false, "netmap: port c0: another netmap program has it: device or resource busy: netmap is in use by pkt-gen (pid 77)"},
		{"as the rings tell", false, false, true, "netmap: port c0: another netmap program has it: device or resource busy: its rings have been used: netmap is in use by pkt-gen (pid 77)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, c := newRig(t, fake.Card{})
			r.TellsUse, r.Others = tt.tellsUse, "pkt-gen (pid 77)"
			end := r.Occupy("c0", tt.exclusive)
			if tt.used {
				c[0].Reset(5)
			}
			cfg := config("c0", 1)
			cfg.Host = true
			_, err := netmap.Open([]dataplane.PortConfig{cfg}, r.options())
			if !errors.Is(err, unix.EBUSY) || err.Error() != tt.text {
				t.Errorf("\n got %v\nwant %s", err, tt.text)
			}
			timer := time.AfterFunc(150*time.Millisecond, end)
			defer timer.Stop()
			p, err := netmap.Open([]dataplane.PortConfig{cfg}, netmap.Options{Kernel: r.Kernel, LockDir: r.locks})
			if err != nil {
				t.Fatal(err)
			}
			r.ports = p
		})
	}
}

// TestNoMemory opens ports until the pools end, and reads what is
// needed.
func TestNoMemory(t *testing.T) {
	for _, tt := range []struct {
		name string
		p    fake.Params
	}{
		{"rings", fake.Params{Ifs: 64, Rings: 9, Bufs: 8192, BufSize: 2048}},
		{"buffers", fake.Params{Ifs: 64, Rings: 64, Bufs: 600, BufSize: 2048}},
		{"interfaces of descriptors", fake.Params{Ifs: 7, Rings: 64, Bufs: 8192, BufSize: 2048}},
		{"interfaces of ports", fake.Params{Ifs: 1, Rings: 64, Bufs: 8192, BufSize: 2048}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := fake.New(tt.p)
			for i := range 2 {
				k.AddCard(fake.Card{Name: fmt.Sprint("c", i), RXRings: 4, TXRings: 4, RXSlots: 64, TXSlots: 64})
			}
			_, err := netmap.Open([]dataplane.PortConfig{config("c0", 4), config("c1", 4)}, netmap.Options{Kernel: k, LockDir: t.TempDir()})
			if !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "need at least 16 rings, 1026 buffers and 11 interfaces") {
				t.Errorf("got %v", err)
			}
			if err := errors.Join(k.Idle(), k.Faults()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLock opens a port that another nmfwd has.
func TestLock(t *testing.T) {
	r, _ := newRig(t, fake.Card{})
	r.open(config("c0", 1))
	_, err := netmap.Open([]dataplane.PortConfig{config("c0", 1)}, netmap.Options{Kernel: fake.New(fake.DefaultParams), LockDir: r.locks})
	if err == nil || errors.Is(err, unix.EBUSY) {
		t.Errorf("another kernel without the card: got %v", err)
	}
	_, err = netmap.Open([]dataplane.PortConfig{config("c0", 1)}, r.options())
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), fmt.Sprintf("(pid %d, ", os.Getpid())) {
		t.Errorf("got %v, want %v", err, unix.EBUSY)
	}
	if n := strings.Count(strings.Join(r.Trace(), "\n"), "register"); n != 3 {
		t.Errorf("%d registrations, want those of the first alone", n)
	}
	r.close()
	r.open(config("c0", 1))
}

// TestInfo has what a port says of itself: native or emulated.
func TestInfo(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	r, c := newRig(t, fake.Card{RXSlots: 128, TXSlots: 256}, fake.Card{})
	c[1].Native = false
	h := config("c0", 1)
	h.Host = true
	o := config("c1", 1)
	o.MAC, o.MACs = mac, []net.HardwareAddr{{0, 0, 0x5e, 0, 1, 7}}
	v := config("netmap:vale0:p", 3)
	v.Host = true // the default of the configuration: there is none to be had
	x := config("x{1", 1)
	x.MAC = mac
	x.MTU = 1400
	for i, want := range []dataplane.Info{
		{Name: "c0", MAC: c[0].MAC, Driver: "fake", Mode: "native", ZeroCopy: true, RXRings: 1, TXRings: 1, RXSlots: 128, TXSlots: 256, MTU: 1500, Host: true},
		{Name: "c1", MAC: mac, Driver: "fake", Mode: "emulated", RXRings: 1, TXRings: 1, RXSlots: 64, TXSlots: 64, MTU: 1500},
		{Name: "netmap:vale0:p", MAC: netmap.NameMAC("vale0:p"), Driver: "vale", Mode: "native", RXRings: 3, TXRings: 3, RXSlots: 64, TXSlots: 64, MTU: 1500},
		{Name: "x{1", MAC: mac, Driver: "pipe", Mode: "native", ZeroCopy: true, RXRings: 1, TXRings: 1, RXSlots: 64, TXSlots: 64, MTU: 1400},
	} {
		want.Backend, want.BufSize, want.MinFrame = "netmap", 2048, 60
		got := r.open([]dataplane.PortConfig{h, o, v, x}[i])[0]
		if fmt.Sprintf("%+v", got.Info) != fmt.Sprintf("%+v", want) {
			t.Errorf("\n got %+v\nwant %+v", got.Info, want)
		}
		if !got.Device.LinkUp() {
			t.Errorf("%s: no link", want.Name)
		}
		if s := fmt.Sprint(got.Device); !strings.Contains(s, "rx ring 0 of worker 0: head 0 cur 0 tail 0 of") {
			t.Errorf("%s prints as %s", want.Name, s)
		}
	}
}

// TestBufSize sets the size before the first registration and restores it at
// once, also on errors, and says so where it is too late.
func TestBufSize(t *testing.T) {
	r, _ := newRig(t, fake.Card{}, fake.Card{})
	a, b := config("c0", 1), config("c1", 1)
	a.BufSize = 2112
	if got := r.open(a)[0].BufSize; got != 2112 {
		t.Errorf("buffers of %d bytes, want 2112", got)
	}
	b.BufSize = 4096
	_, err := netmap.Open([]dataplane.PortConfig{b}, r.options())
	if err == nil || !strings.Contains(err.Error(), "buffers have 2112 bytes, not 4096: another program") {
		t.Errorf("got %v", err)
	}
	if n := r.BufSize(); n != fake.DefaultParams.BufSize {
		t.Errorf("the next region would have buffers of %d bytes, want %d", n, fake.DefaultParams.BufSize)
	}
}

func TestProbe(t *testing.T) {
	r, _ := newRig(t, fake.Card{RXRings: 4, TXRings: 2})
	for _, tt := range []struct {
		name string
		want dataplane.Rings
	}{
		{"c0", dataplane.Rings{RX: 4, TX: 2}},
		{"netmap:c0", dataplane.Rings{RX: 4, TX: 2}},
		{"vale3:x", dataplane.Rings{RX: 1, TX: 1}},
		{"p{0", dataplane.Rings{RX: 1, TX: 1}},
	} {
		if got, err := netmap.ProbeOn(r.Kernel, tt.name); err != nil || got != tt.want {
			t.Errorf("%s: got %v, %v, want %v", tt.name, got, err, tt.want)
		}
	}
	if _, err := netmap.ProbeOn(r.Kernel, "c7"); !errors.Is(err, unix.ENXIO) {
		t.Errorf("got %v, want %v", err, unix.ENXIO)
	}
}

func TestParseName(t *testing.T) {
	for _, tt := range []struct {
		name string
		want string
		kind any
		text string // of the error
	}{
		{"igb1", "igb1", netmap.NIC, ""},
		{"netmap:igb1", "igb1", netmap.NIC, ""},
		{"veth-a", "veth-a", netmap.NIC, ""},
		{"veth-1", "veth-1", netmap.NIC, ""},
		{"vale0:p1", "vale0:p1", netmap.VALE, ""},
		{"netmap:vale0:p1", "vale0:p1", netmap.VALE, ""},
		{"valeX:a-1", "valeX:a-1", netmap.VALE, ""},
		{"x{1", "x{1", netmap.Pipe, ""},
		{"x}12", "x}12", netmap.Pipe, ""},
		{"igb0{3", "igb0{3", netmap.Pipe, ""},
		{"vale0:p{3", "vale0:p{3", netmap.Pipe, ""},
		{"", "", nil, "no name"},
		{"netmap:", "", nil, "no name"},
		{"an-interface-too-long", "", nil, "at most 15 characters"},
		{"igb1-2", "", nil, `rings cannot be picked, nmfwd manages them itself: use "port igb1"`},
		{"igb1^", "", nil, `use "port igb1"`},
		{"igb1*", "", nil, `use "port igb1"`},
		{"ix1^3/T", "", nil, `use "port ix1"`},
		{"igb1/R", "", nil, `use "port igb1"`},
		{"igb1@conf", "", nil, `use "port igb1"`},
		{"igb0.100", "", nil, `use "port igb0" and "vlan 100 on igb0"`},
		{"vale0:", "", nil, "not a VALE port"},
		{"x{", "", nil, "nor a pipe"},
		{"x{a", "", nil, "nor a pipe"},
		{"{1", "", nil, "nor a pipe"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, kind, err := netmap.ParseName(tt.name, func(s string) bool { return s == "veth-1" })
			if tt.text != "" {
				if err == nil || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("got %v, want %q", err, tt.text)
				}
				return
			}
			if err != nil || got != tt.want || kind != tt.kind {
				t.Errorf("got %q, %v, %v, want %q, %v", got, kind, err, tt.want, tt.kind)
			}
		})
	}
}

// TestDown takes a port down: no call that would block may be made, and what
// is sent meanwhile is refused.
func TestDown(t *testing.T) {
	r, c := newRig(t, fake.Card{})
	cfg := config("c0", 1)
	cfg.Spare = 1
	p := r.open(cfg)[0]
	q := p.Queues[0]
	buf, _ := q.TX.Region().Take(1)
	s := []dataplane.Slot{{Buf: buf[0], Len: 60}}
	c[0].SetUp(false)
	netmap.Look(p)
	if p.Device.LinkUp() {
		t.Error("link is up")
	}
	for range 3 {
		if n := q.TX.Send(q.TX.Region(), s); n != 0 {
			t.Error("a frame was taken")
		}
		r.pollAll()
		if err := q.Descriptor.After(unix.POLLERR); err != nil {
			t.Error(err)
		}
	}
	c[0].SetUp(true)
	netmap.Look(p)
	if !p.Device.LinkUp() {
		t.Error("link is down")
	}
	c[0].Deliver(0, frame(1, 77))
	r.pollAll()
	var slots [4]dataplane.Slot
	if n, sent := forward(slots[:], q.RX, q.TX); n != 1 || sent != 1 {
		t.Errorf("%d frames received, %d sent, want 1", n, sent)
	}
	if n := q.TX.Send(q.TX.Region(), s); n != 1 {
		t.Error("no frame was taken")
	}
	r.pollAll()
	if n := len(c[0].Sent(0)); n != 2 {
		t.Errorf("%d frames sent, want 2", n)
	}
	q.TX.Region().Give([]uint32{s[0].Buf})
}

// TestPollError goes on after POLLERR, and ends when the interface is gone. A
// ring that was found full is counted, whatever the card tells.
func TestPollError(t *testing.T) {
	r, c := newRig(t, fake.Card{RXSlots: 16})
	p := r.open(config("c0", 1))[0]
	q := p.Queues[0]
	var slots [32]dataplane.Slot
	got := 0
	for n := range 200 {
		c[0].Deliver(0, frame(n, 60))
		c[0].PollErr = n%5 == 0
		r.poll(q.Descriptor)
		k, _ := forward(slots[:], q.RX, q.TX)
		got += k
	}
	if got != 200 {
		t.Errorf("%d frames, want 200", got)
	}
	for range 20 {
		c[0].Deliver(0, frame(0, 60))
	}
	before := p.Device.Counters(0).RXRingFull
	r.poll(q.Descriptor)
	if n := p.Device.Counters(0).RXRingFull - before; n != 1 {
		t.Errorf("ring found full %d times, want 1", n)
	}
	c[0].Gone = true
	netmap.Look(p)
	if p.Device.LinkUp() {
		t.Error("link of a deleted interface is up")
	}
	if _, err := q.Descriptor.Before(false); err != nil {
		t.Errorf("Before: %v", err)
	}
	if err := q.Descriptor.After(r.Poll(netmap.FD(q.Descriptor), unix.POLLIN)); err != nil {
		t.Errorf("After: %v", err)
	}
	if err := p.Device.(dataplane.Watcher).Changed(); !errors.Is(err, unix.EIO) {
		t.Errorf("got %v, want %v", err, unix.EIO)
	}
}

// TestReset resets the card at any time, also while frames are in hand.
func TestReset(t *testing.T) {
	r, c := newRig(t, fake.Card{RXSlots: 16, TXSlots: 16})
	q := r.open(config("c0", 1))[0].Queues[0]
	rnd := rand.New(rand.NewPCG(3, 4))
	var slots [8]dataplane.Slot
	for n := range 5000 {
		c[0].Deliver(0, frame(n, 60))
		c[0].Deliver(0, frame(n, 60))
		r.poll(q.Descriptor)
		s := slots[:q.RX.Recv(slots[:1+rnd.IntN(4)])]
		if rnd.IntN(20) == 0 {
			c[0].Reset(rnd.IntN(16))
			if rnd.IntN(2) == 0 {
				c[0].Deliver(0, frame(n, 60))
				r.poll(q.Descriptor)
			}
		}
		s = slots[:len(s)+q.RX.Recv(slots[len(s):])]
		q.TX.Send(q.RX.Region(), s)
		var free []uint32
		for i := range s {
			free = append(free, s[i].Buf)
		}
		if rnd.IntN(20) == 0 {
			c[0].Reset(rnd.IntN(16))
		}
		q.RX.Release(free)
		if rnd.IntN(20) == 0 {
			c[0].Reset(rnd.IntN(16))
		}
		if err := r.Census(1); err != nil {
			t.Fatalf("step %d: %v", n, err)
		}
	}
	for n := 0; n < 100; {
		c[0].Deliver(0, frame(n, 60))
		r.poll(q.Descriptor)
		k, _ := forward(slots[:], q.RX, q.TX)
		if n += k; k == 0 {
			t.Fatal("nothing received after resets")
		}
	}
}

// TestReleaseTooMany repays more than was taken, which only a fault of the
// caller can do.
func TestReleaseTooMany(t *testing.T) {
	r, _ := newRig(t, fake.Card{})
	q := r.open(config("c0", 1))[0].Queues[0]
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	q.RX.Release([]uint32{2})
}

// TestAllocs forwards without allocating.
func TestAllocs(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	r, c := newRig(t, fake.Card{})
	q := r.open(config("c0", 1))[0].Queues[0]
	var slots [32]dataplane.Slot
	free := make([]uint32, 0, 32)
	for range 40 {
		c[0].Deliver(0, frame(0, 60))
	}
	r.poll(q.Descriptor)
	if n := testing.AllocsPerRun(30, func() {
		s := slots[:q.RX.Recv(slots[:1])]
		q.TX.Send(q.RX.Region(), s)
		free = free[:0]
		for i := range s {
			free = append(free, s[i].Buf)
		}
		q.RX.Release(free)
		if events, err := q.Descriptor.Before(false); events == 0 || err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzRings drives two queues by the bytes of its input: what the device does,
// what the worker does, and in which order. Whatever happens, head, cur and tail
// stay in order (the kernel notes it otherwise), what was received leaves in
// order and byte for byte, and no buffer is lost.
func FuzzRings(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 3, 1, 4, 1, 5})
	f.Add(bytes.Repeat([]byte{0x05, 0x31, 0x42, 0x03, 0x14, 0x26}, 40))
	f.Add(bytes.Repeat([]byte{0xf0, 0xf0, 0xff, 0x01, 0xff, 0x02, 0x03, 0x73, 0x06, 0x17}, 30))
	locks := f.TempDir()
	f.Fuzz(func(t *testing.T, ops []byte) {
		r, c := newRigOf(t, fake.Params{Ifs: 5, Rings: 4, Bufs: 64, BufSize: 2048}, locks, fake.Card{RXSlots: 8, TXSlots: 8}, fake.Card{RXSlots: 8, TXSlots: 16})
		if len(ops) > 0 {
			r.LockFree = ops[0]&1 != 0
			c[1].ReportOnly = ops[0]&2 != 0
			r.Polls = ops[0]&4 == 0
		}
		done := 0
		c[1].Complete = func(n int) int { return min(done, n) }
		p := r.open(config("c0", 1), config("c1", 1))
		in, out := p[0].Queues[0], p[1].Queues[0]
		var expect [][]byte // accepted by Send
		var held [][]uint32 // repaid later
		var slots [8]dataplane.Slot
		n := 0
		check := func() {
			for _, f := range c[1].Sent(0) {
				if len(expect) == 0 || !bytes.Equal(f, expect[0]) {
					t.Fatalf("got %x", f)
				}
				expect = expect[1:]
			}
			head, cur, tail := netmap.Ring(in.RX)
			if (cur+8-head)%8 > (tail+8-head)%8 {
				t.Fatalf("head %d, cur %d, tail %d", head, cur, tail)
			}
		}
		for _, op := range ops {
			arg := int(op >> 3)
			switch op & 7 {
			case 0:
				c[0].Deliver(0, frame(n, 60+arg))
				n++
			case 1:
				c[0].Deliver(0, frame(n, 60+arg*400))
				n++
			case 2, 3:
				s := slots[:in.RX.Recv(slots[:min(arg, len(slots))])]
				var free []uint32
				region := in.RX.Region()
				if op&7 == 3 {
					var frames [][]byte
					var ends []int
					var b []byte
					for i := range s {
						b = append(b, region.Bytes(&s[i])...)
						if s[i].Flags&dataplane.More == 0 {
							if len(b) < 60 {
								b = append(b, make([]byte, 60-len(b))...)
							}
							frames, ends, b = append(frames, b), append(ends, i+1), nil
						}
					}
					k := out.TX.Send(region, s)
					for i, e := range ends {
						if e <= k {
							expect = append(expect, frames[i])
						}
					}
				}
				for i := range s {
					free = append(free, s[i].Buf)
				}
				held = append(held, free)
			case 4:
				for ; len(held) > 0; held = held[1:] {
					in.RX.Release(held[0])
				}
			case 5:
				if len(held) > 0 {
					k := min(arg, len(held[0]))
					in.RX.Release(held[0][:k])
					held[0] = held[0][k:]
				}
			case 6:
				done = arg
				r.poll(in.Descriptor)
			case 7:
				done = arg
				r.poll(out.Descriptor)
			}
			check()
		}
		for _, h := range held {
			in.RX.Release(h)
		}
		done = 64
		r.pollAll()
		check()
		if len(expect) > 0 {
			t.Fatalf("%d frames have not left", len(expect))
		}
		if err := errors.Join(r.Census(1), r.Faults()); err != nil {
			t.Fatal(err)
		}
	})
}
