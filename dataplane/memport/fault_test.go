package memport

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"nmfwd/dataplane"
	"nmfwd/pcap"
)

// run passes frames through a port with faults and returns what was received
// and sent.
func run(t *testing.T, f Faults, frames int) (received, sent [][]byte) {
	t.Helper()
	const n = 256
	region := NewRegion("m", n, 256)
	a := newPort(t, region, Config{Name: "a", RXSlots: 64, TXSlots: 64})
	p := Fault(&a.Port, f)
	in, out := p.Queues[0].RX, p.Queues[0].TX
	s := make([]dataplane.Slot, 16)
	for i := range frames {
		a.Deliver(0, frame(uint32(i), 64))
		if i%2 == 0 {
			continue
		}
		k := in.Recv(s)
		free := make([]uint32, k)
		for j := range s[:k] {
			received = append(received, slotBytes(region, s[j:j+1]))
		}
		out.Send(region, s[:k])
		for j := range s[:k] {
			free[j] = s[j].Buf
		}
		in.Release(free)
		sent = append(sent, a.Transmit(0)...)
		if err := CheckCensus(region, n, []*Port{a}); err != nil {
			t.Fatal(err)
		}
	}
	return received, sent
}

func TestFaults(t *testing.T) {
	const frames = 2000
	tests := []struct {
		name  string
		f     Faults
		check func(received, sent [][]byte) bool
	}{
		{"none", Faults{}, func(r, s [][]byte) bool { return len(r) == frames && len(s) == frames }},
		{"drop", Faults{Drop: 0.5}, func(r, s [][]byte) bool {
			return len(r) > frames/3 && len(r) < 2*frames/3 && len(s) == len(r)
		}},
		{"drop all", Faults{Drop: 1}, func(r, s [][]byte) bool { return len(r) == 0 }},
		{"truncate", Faults{Truncate: 1}, func(r, s [][]byte) bool {
			for i, f := range r {
				if len(f) == 0 || len(f) >= 64 || !bytes.Equal(f, frame(uint32(i), 64)[:len(f)]) {
					return false
				}
			}
			return len(r) == frames
		}},
		{"corrupt", Faults{Corrupt: 1}, func(r, s [][]byte) bool {
			for i, f := range r {
				if want := frame(uint32(i), 64); len(f) != 64 || bytes.Equal(f, want) {
					return false
				}
			}
			return len(r) == frames
		}},
		{"short", Faults{Short: 0.5}, func(r, s [][]byte) bool {
			for i, f := range r { // nothing is lost, all comes later
				if !bytes.Equal(f, frame(uint32(i), 64)) {
					return false
				}
			}
			return len(r) > frames-64
		}},
		{"partial", Faults{Partial: 1}, func(r, s [][]byte) bool { return len(r) == frames && len(s) < frames*3/4 && len(s) > frames/10 }},
		{"full", Faults{Full: 0.1, FullFor: 9}, func(r, s [][]byte) bool {
			return len(r) == frames && len(s) > frames/4 && len(s) < 3*frames/4
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			received, sent := run(t, tt.f, frames)
			if !tt.check(received, sent) {
				t.Errorf("%d frames received, %d sent, or not as they should be", len(received), len(sent))
			}
			again, _ := run(t, tt.f, frames)
			if len(again) != len(received) {
				t.Errorf("%d frames received with the same seed, %d before", len(again), len(received))
			}
		})
	}
}

func TestFaultDescriptor(t *testing.T) {
	region := NewRegion("m", 32, 256)
	a := newPort(t, region, Config{Name: "a", RXSlots: 8, TXSlots: 8})
	d := Fault(&a.Port, Faults{Fail: 1}).Queues[0].Descriptor
	if _, err := d.Before(false); !errors.Is(err, ErrFault) {
		t.Errorf("Before: %v, want ErrFault", err)
	}
	if err := d.After(0); !errors.Is(err, ErrFault) {
		t.Errorf("After: %v, want ErrFault", err)
	}
	if err := a.Queues[0].Descriptor.After(0); err != nil {
		t.Errorf("After without faults: %v", err)
	}
}

// TestFaultChains runs chains through all faults and a tap at once: what the
// tap saw going out is what was transmitted, and frames stay whole.
func TestFaultChains(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 2))
		const n = 256
		region := NewRegion("m", n, 128)
		a := newPort(t, region, Config{Name: "a", RXSlots: 64, TXSlots: 48})
		var file bytes.Buffer
		tapped := pcap.NewWriter(&file)
		clock := time.Unix(1000, 0)
		now := func() time.Time { clock = clock.Add(time.Microsecond); return clock }
		p := Tap(Fault(&a.Port, Faults{Seed: seed, Drop: 0.1, Short: 0.3, Partial: 0.2, Full: 0.05, FullFor: 3}), nil, tapped, now)
		s := make([]dataplane.Slot, 16)
		var got [][]byte
		for i := range uint32(500) {
			a.DeliverChain(0, frame(i, 4+rng.IntN(200)), 50)
			k := p.Queues[0].RX.Recv(s)
			p.Queues[0].TX.Send(region, s[:k])
			free := make([]uint32, k)
			for j := range free {
				free[j] = s[j].Buf
			}
			p.Queues[0].RX.Release(free)
			if rng.IntN(3) == 0 {
				got = append(got, a.Transmit(0)...)
			}
			if err := CheckCensus(region, n, []*Port{a}); err != nil {
				t.Fatal(err)
			}
		}
		got = append(got, a.Transmit(0)...)
		if err := tapped.Flush(); err != nil {
			t.Fatal(err)
		}
		src, err := pcap.NewReader("tap", &file)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range got {
			f, when, err := src.Next()
			if err != nil || !bytes.Equal(f, want) || when.Before(time.Unix(1000, 0)) {
				t.Fatalf("seed %d, frame %d in the tap: %x at %v, %v; want %x", seed, i, f, when, err, want)
			}
			if seq := uint32(f[0])<<24 | uint32(f[1])<<16 | uint32(f[2])<<8 | uint32(f[3]); !bytes.Equal(f, frame(seq, len(f))) {
				t.Fatalf("frame %d is broken: %x", seq, f)
			}
		}
		if _, _, err := src.Next(); err == nil {
			t.Error("the tap has more frames than were sent")
		}
		if len(got) < 100 {
			t.Errorf("only %d frames sent", len(got))
		}
	}
}
