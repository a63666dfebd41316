package memport

import (
	"bytes"
	"strings"
	"testing"

	"nmfwd/dataplane"
)

// pass does what a worker does with one burst: the last byte of each frame
// counts down.
func pass(in dataplane.RX, out dataplane.TX, s []dataplane.Slot, free []uint32) int {
	n := in.Recv(s)
	r := in.Region()
	for i := range s[:n] {
		b := r.Bytes(&s[i])
		b[len(b)-1]--
	}
	out.Send(r, s[:n])
	for i := range s[:n] {
		free[i] = s[i].Buf
	}
	in.Release(free[:n])
	return n
}

func TestLoop(t *testing.T) {
	const n, frames = 512, 67
	region := NewRegion("m", n, 256)
	a := newPort(t, region, Config{Name: "a", RXSlots: 100, TXSlots: 64})
	b := newPort(t, region, Config{Name: "b", RXSlots: 64, TXSlots: 64})
	var preset [][]byte
	for i := range uint32(frames) {
		f := frame(i, 60+int(i))
		f[len(f)-1] = 255
		preset = append(preset, f)
	}
	if err := Loop(a, 0, b, 0, preset); err != nil {
		t.Fatal(err)
	}
	// Positions wrap while the test runs.
	in := a.rx[0]
	s, free := make([]dataplane.Slot, 16), make([]uint32, 16)
	var total, low int
	for total < 5*Rounds*frames {
		k := in.Recv(s)
		for i := range s[:k] {
			f := region.Bytes(&s[i])
			want := preset[(total+i)%frames]
			if !bytes.Equal(f[:len(f)-1], want[:len(want)-1]) {
				t.Fatalf("frame %d is % x, want % x", total+i, f, want)
			}
			f[len(f)-1]--
			low = max(low, 255-int(f[len(f)-1]))
			if s[i].Flags != 0 {
				t.Fatalf("frame %d has the flags of who sent it: %x", total+i, s[i].Flags)
			}
			s[i].Flags = 1 << 8 // a worker's own
			if f[len(f)-1] == 0 {
				t.Fatalf("frame %d went round 255 times", total+i)
			}
		}
		if got := b.Queues[0].TX.Send(region, s[:k]); got != k {
			t.Fatalf("Send = %d, want %d", got, k)
		}
		for i := range s[:k] {
			free[i] = s[i].Buf
		}
		in.Release(free[:k])
		total += k
		if k == 0 {
			t.Fatal("nothing to receive")
		}
		if total%100 == 0 {
			if err := CheckCensus(region, n, []*Port{a, b}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if low < Rounds-1 || low > Rounds+1 {
		t.Errorf("frames went round %d times before they were restored, want about %d", low, Rounds)
	}
	if avg := testing.AllocsPerRun(100, func() { pass(in, b.tx[0], s, free) }); avg != 0 {
		t.Errorf("%v allocations per burst", avg)
	}
	for _, p := range []*Port{b, a} {
		if err := p.Device.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := CheckCensus(region, n, nil); err != nil {
		t.Error(err)
	}
}

func TestLoopErrors(t *testing.T) {
	tests := []struct {
		name   string
		frames [][]byte
		dirty  bool
		other  bool
		want   string
	}{
		{"none", nil, false, false, "no frames"},
		{"too many", make([][]byte, 16), false, false, "no room"},
		{"too long", [][]byte{make([]byte, 300)}, false, false, "frame of 300 bytes"},
		{"in use", [][]byte{make([]byte, 60)}, true, false, "in use"},
		{"regions", [][]byte{make([]byte, 60)}, false, true, "differ"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			region := NewRegion("m", 64, 256)
			a := newPort(t, region, Config{Name: "a", RXSlots: 16, TXSlots: 16})
			if tt.other {
				region = NewRegion("m2", 64, 256)
			}
			b := newPort(t, region, Config{Name: "b", RXSlots: 16, TXSlots: 16})
			if tt.dirty {
				a.Deliver(0, frame(1, 60))
			}
			if err := Loop(a, 0, b, 0, tt.frames); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
		})
	}
}

// BenchmarkLoop measures what a loop costs a benchmark of a worker: the rings'
// share of a packet.
func BenchmarkLoop(b *testing.B) {
	region := NewRegion("m", 8192, Stride)
	in := newPort(b, region, Config{Name: "a", RXSlots: 2560})
	out := newPort(b, region, Config{Name: "b"})
	var preset [][]byte
	for i := range uint32(2000) {
		preset = append(preset, frame(i, 60))
	}
	if err := Loop(in, 0, out, 0, preset); err != nil {
		b.Fatal(err)
	}
	rx, tx := in.Queues[0].RX, out.Queues[0].TX
	s, free := make([]dataplane.Slot, 64), make([]uint32, 64)
	packets := 0
	b.ReportAllocs()
	for b.Loop() {
		n := rx.Recv(s)
		tx.Send(region, s[:n])
		for i := range s[:n] {
			free[i] = s[i].Buf
		}
		rx.Release(free[:n])
		packets += n
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(packets), "ns/pkt")
}
