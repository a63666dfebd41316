//go:build integration && linux

package traffic

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"nmfwd/test/netns"
)

// TestSend joins a sender to a receiver directly: all frames arrive as sent,
// which a receiver that expects a router's work must find wrong, and a receiver
// that expects them unchanged must find right.
//
//	gen g0 ---- r0 rcv
func TestSend(t *testing.T) {
	for _, tt := range []struct {
		name   string
		family int
		cpus   []int
	}{
		{"IPv4 one sender", 4, []int{0}},
		{"IPv4 three senders", 4, []int{0, 0, 0}},
		{"IPv6 one sender", 6, []int{0}},
		{"IPv6 two senders", 6, []int{0, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			gen, rcv := join(t)
			flows := testFlows(tt.family)
			r, err := NewReceiver(rcv, "r0", flows, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			s, err := NewSender(gen, "g0", r, tt.cpus)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- s.Send(ctx, 100_000, time.Minute) }()
			sent := func() (n uint64) {
				by, err := s.Sent()
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range by {
					n += c
				}
				return n
			}
			until(t, "1000 frames sent", func() bool { return sent() >= 1000 })
			cancel()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			until(t, "all frames received", func() bool {
				got, _, err := r.Received()
				if err != nil {
					t.Fatal(err)
				}
				return got >= sent()
			})
			res, err := r.Result(s)
			if err != nil {
				t.Fatal(err)
			}
			if res.Sent == 0 || res.Received != res.Sent || res.Wrong != res.Sent || len(res.Errors) != maxErrs {
				t.Errorf("sent %d received %d wrong %d, %d errors: want all wrong", res.Sent, res.Received, res.Wrong, len(res.Errors))
			}
		})
	}
}

// until waits for what another thread or the kernel brings about, for a time
// that is more than enough.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 10 s", what)
		}
	}
}

// TestSendProgram runs the program on one buffer and compares the frames with
// those of plain code. The buffer comes back with rubbish each time.
func TestSendProgram(t *testing.T) {
	for _, family := range []int{4, 6} {
		flows := testFlows(family)
		gen, rcv := join(t)
		r, err := NewReceiver(rcv, "r0", flows, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		s, err := NewSender(gen, "g0", r, []int{0, 0, 0})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		of := make([]uint64, Count)
		for i, p := range s.progs {
			flow, seq := i, uint32(0)
			for n := range 2*Count/3 + 5 {
				in := bytes.Repeat([]byte{byte(n)}, flows.Len())
				out := make([]byte, len(in))
				if verdict, err := p.Run(&ebpf.RunOptions{Data: in, DataOut: out}); err != nil || verdict != 4 {
					t.Fatalf("IPv%d: verdict %d, %v, want 4 (XDP_REDIRECT)", family, verdict, err)
				}
				var time uint64
				if family == 4 {
					time = binary.BigEndian.Uint64(out[offTime4:])
				}
				if want := flows.Sent(flow, seq, time); !bytes.Equal(out, want) {
					t.Fatalf("IPv%d: flow %d frame %d:\n got %x\nwant %x", family, flow, seq, out, want)
				}
				of[flow]++
				if flow += 3; flow >= Count {
					flow, seq = i, seq+1
				}
			}
		}
		sent, err := s.Sent()
		if err != nil {
			t.Fatal(err)
		}
		if got := s.SentOf(sent); !slices.Equal(got, of) {
			t.Errorf("IPv%d: SentOf:\n got %v\nwant %v", family, got, of)
		}
	}
}

// TestReceiveProgram gives single frames to the receiver's program.
func TestReceiveProgram(t *testing.T) {
	const drop, pass = 1, 2
	for _, family := range []int{4, 6} {
		flows := testFlows(family)
		r, err := NewReceiver(netns.ForTest(t, "rcv"), "lo", flows, 1<<10)
		if err == nil {
			r.Close()
			t.Fatal("a port without native XDP is accepted")
		}
		_, rcv := join(t)
		if r, err = NewReceiver(rcv, "r0", flows, 1<<10); err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		give := func(p []byte, want uint32) (wrong, other uint64) {
			t.Helper()
			before, err := r.sum()
			if err != nil {
				t.Fatal(err)
			}
			if got, err := r.prog.Run(&ebpf.RunOptions{Data: p}); err != nil || got != want {
				t.Fatalf("IPv%d: verdict %d, %v, want %d: %x", family, got, err, want, p)
			}
			after, err := r.sum()
			if err != nil {
				t.Fatal(err)
			}
			return after[totalWrong] - before[totalWrong], after[totalOther] - before[totalOther]
		}
		// All flows and many values of the checksum are right.
		for flow := range Count {
			if wrong, other := give(flows.Received(flow, uint32(flow)*7919, 1), drop); wrong+other > 0 {
				t.Fatalf("IPv%d: flow %d is wrong", family, flow)
			}
		}
		// Each bit of a frame counts, but a traffic class is its number.
		for i := range flows.Len() * 8 {
			p := flows.Received(1234, 567, 89)
			p[i/8] ^= 1 << (i % 8)
			alien := i/8 >= 12 && i/8 < 14 || i/8 >= offDst4 && i/8 < offDst4+3
			if family == 6 {
				alien = i/8 >= 12 && i/8 < 14 || i/8 >= offDst6 && i/8 < offDst6+8
			}
			class := family == 6 && (i/8 == 14 && i%8 < 4 || i/8 == 15 && i%8 >= 4)
			verdict := uint32(drop)
			if alien {
				verdict = pass
			}
			wrong, other := give(p, verdict)
			if (wrong == 1) != (!alien && !class) || (other == 1) != alien {
				t.Errorf("IPv%d: bit %d of byte %d changed: wrong %d, other %d", family, i%8, i/8, wrong, other)
			}
		}
		// Fields that belong to another frame count though the checksum is right.
		if family == 4 {
			for _, off := range []int{offID4 + 1, offSrc4 + 3, offDst4 + 3, offFlow4 + 1} {
				p := flows.Received(1, 2, 3)
				p[off]++
				copy(p[offSum4:], []byte{0, 0})
				binary.BigEndian.PutUint16(p[offSum4:], ^onesSum(p[14:34]))
				if wrong, _ := give(p, drop); wrong != 1 {
					t.Errorf("byte %d of another frame is right", off)
				}
			}
		}
		p := flows.Received(1, 2, 3)
		if wrong, _ := give(append(p, 0), drop); wrong != 1 {
			t.Errorf("IPv%d: a frame with a byte more is right", family)
		}
		if _, other := give(p[:len(p)-1], pass); other != 1 {
			t.Errorf("IPv%d: a frame with a byte less is no other frame", family)
		}
	}
}

// TestDelay receives frames that were sent a known time ago.
func TestDelay(t *testing.T) {
	gen, rcv := join(t)
	flows := testFlows(4)
	r, err := NewReceiver(rcv, "r0", flows, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s, err := NewSender(gen, "g0", r, []int{0})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 100 {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			t.Fatal(err)
		}
		ago := 20 * time.Millisecond
		if i >= 90 {
			ago = time.Second // beyond what is counted
		}
		if _, err := r.prog.Run(&ebpf.RunOptions{Data: flows.Received(i, 0, uint64(now.Nano()-ago.Nanoseconds()))}); err != nil {
			t.Fatal(err)
		}
	}
	res, err := r.Result(s)
	if err != nil {
		t.Fatal(err)
	}
	const most = delays << delayShift
	if d := res.Delay; d.Median < 20*time.Millisecond || d.Median > 60*time.Millisecond || d.P99 != most || d.Max != most {
		t.Errorf("delays %+v, want a median of 20 ms and the others %v", d, time.Duration(most))
	}
	if res.Duplicated != 100 {
		t.Errorf("%d frames that nobody sent, want 100", res.Duplicated)
	}
}

// TestOrder receives frames of one flow in several orders.
func TestOrder(t *testing.T) {
	for _, tt := range []struct {
		name   string
		family int
		seqs   []uint32
		want   uint64
	}{
		{"in order", 4, []uint32{0, 1, 2, 3}, 0},
		{"gap", 4, []uint32{0, 5, 6}, 0},
		{"late", 4, []uint32{0, 2, 1, 3}, 1},
		{"twice", 4, []uint32{0, 1, 1, 2}, 1},
		{"late IPv6", 6, []uint32{0, 2, 1, 3}, 1},
		{"long gap IPv6", 6, []uint32{0, 255, 1000, 1255}, 0},
		{"late after a long gap IPv6", 6, []uint32{0, 1000, 999, 1001}, 1},
		{"wrapped", 4, []uint32{0x7fffffff, 0xfffffffe, 0xffffffff, 0, 1}, 0},
		{"late over the wrap", 4, []uint32{0x7fffffff, 0xfffffffe, 0, 0xffffffff, 1}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, rcv := join(t)
			flows := testFlows(tt.family)
			r, err := NewReceiver(rcv, "r0", flows, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			for i, seq := range tt.seqs {
				if err := r.latest.Put(uint32(77), slices.Max(tt.seqs[:i+1])+1); err != nil { // one more is on its way
					t.Fatal(err)
				}
				if _, err := r.prog.Run(&ebpf.RunOptions{Data: flows.Received(77, seq, 1)}); err != nil {
					t.Fatal(err)
				}
			}
			var v [orderStateLen]byte
			if err := r.order.Lookup(uint32(77), &v); err != nil {
				t.Fatal(err)
			}
			if got := binary.NativeEndian.Uint64(v[16:]); got != tt.want {
				t.Errorf("%d out of order, want %d", got, tt.want)
			}
			if got := binary.NativeEndian.Uint64(v[8:]); got != uint64(len(tt.seqs)) {
				t.Errorf("%d frames, want %d", got, len(tt.seqs))
			}
		})
	}
}

// BenchmarkSend measures what the sender alone reaches from one CPU.
func BenchmarkSend(b *testing.B) {
	gen, rcv := join(b)
	drop, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "BSD", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
	if err != nil {
		b.Fatal(err)
	}
	defer drop.Close()
	for _, family := range []int{4, 6} {
		b.Run(map[int]string{4: "v4", 6: "v6"}[family], func(b *testing.B) {
			r, err := NewReceiver(rcv, "r0", testFlows(family), 1<<20)
			if err != nil {
				b.Fatal(err)
			}
			defer r.Close()
			if err := r.link.Update(drop); err != nil {
				b.Fatal(err)
			}
			s, err := NewSender(gen, "g0", r, []int{0})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			start := time.Now()
			for b.Loop() {
				if err := s.Send(b.Context(), 0, 100*time.Millisecond); err != nil {
					b.Fatal(err)
				}
			}
			sent, err := s.Sent()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(sent[0])/time.Since(start).Seconds()/1e6, "Mpps")
		})
	}
}

// join returns two namespaces whose ports g0 and r0 are joined and silent.
func join(t testing.TB) (gen, rcv *netns.Namespace) {
	t.Helper()
	gen, rcv = netns.ForTest(t, "gen"), netns.ForTest(t, "rcv")
	for _, n := range []*netns.Namespace{gen, rcv} {
		if err := n.Sysctl("net/ipv6/conf/default/disable_ipv6", "1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := netns.Join(netns.Port{NS: gen, Name: "g0"}, netns.Port{NS: rcv, Name: "r0"}); err != nil {
		t.Fatal(err)
	}
	return gen, rcv
}
