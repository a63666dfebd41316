//go:build integration && linux

package afxdp

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"nmfwd/dataplane"
)

// liveFrames is BPF_F_TEST_XDP_LIVE_FRAMES of linux/bpf.h.
const liveFrames = 1 << 1

// BenchmarkForward moves frames from one veth pair to another on CPU 1, while
// CPU 0 offers more than that takes. An operation is one frame that was moved;
// "cpu-ns/op" is what it cost the moving thread, which includes the kernel's
// part of sending and is what to compare on a machine with other work, "slots"
// the mean burst, "sink/op" the share of frames that arrived at the other end.
func BenchmarkForward(b *testing.B) {
	for _, burst := range []int{32, 256} {
		b.Run(fmt.Sprintf("burst=%d", burst), func(b *testing.B) { benchmarkForward(b, burst) })
	}
}

func benchmarkForward(b *testing.B, burst int) {
	l := newLab(b, 1, 1500)
	ports := l.open(b, Options{Note: func(string) {}}, config("igb1", 1, true), config("igb2", 1, true))
	drop := xdpProgram(b, asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}) // XDP_DROP
	if err := l.sink.Do(func() error {
		i, err := net.InterfaceByName("x0")
		if err != nil {
			return err
		}
		x, err := link.AttachXDP(link.XDPOptions{Program: drop, Interface: i.Index, Flags: link.XDPDriverMode})
		b.Cleanup(func() { x.Close() })
		return err
	}); err != nil {
		b.Fatal(err)
	}
	before := l.received(b)

	var stop atomic.Bool
	offered := make(chan error)
	go func() { offered <- l.gen.Do(func() error { return flood(&stop, burst) }) }()

	done := make(chan struct{})
	go func() {
		defer close(done)
		pin(1)
		from, to := &ports[0].Queues[0], &ports[1].Queues[0]
		s := make([]dataplane.Slot, burst)
		free := make([]uint32, burst)
		move(b, from, to, 1<<14) // the generator has begun
		b.ResetTimer()
		b.ReportAllocs()
		start, steps := threadTime(b), 0
		for moved := 0; moved < b.N; {
			n := from.RX.Recv(s)
			to.TX.Send(to.TX.Region(), s[:n])
			for i := range s[:n] {
				free[i] = s[i].Buf
			}
			if n == 0 {
				await(b, from) // the generator is slower: other work on its CPU
				continue
			}
			if _, err := to.Descriptor.Before(false); err != nil {
				b.Error(err)
				return
			}
			from.RX.Release(free[:n])
			moved += n
			steps++
		}
		b.StopTimer()
		b.ReportMetric(float64(threadTime(b)-start)/float64(b.N), "cpu-ns/op")
		b.ReportMetric(float64(b.N)/float64(steps), "slots")
	}()
	<-done
	stop.Store(true)
	if err := <-offered; err != nil {
		b.Error(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mpps")
	b.ReportMetric(float64(l.received(b)-before)/float64(b.N+1<<14), "sink/op")
}

// threadTime returns the CPU time of the calling thread in nanoseconds.
func threadTime(b *testing.B) int64 {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &r); err != nil {
		b.Error(err)
	}
	return r.Utime.Nano() + r.Stime.Nano()
}

// received returns the number of frames that the sink has received.
func (l *lab) received(b *testing.B) uint64 {
	a, err := l.sink.Port("x0")
	if err != nil {
		b.Fatal(err)
	}
	return a.Statistics.RxPackets
}

func pin(cpu int) {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	_ = unix.SchedSetaffinity(0, &set) // with one CPU all run on that
}

func xdpProgram(b *testing.B, ins asm.Instructions) *ebpf.Program {
	b.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, Instructions: ins, License: "BSD"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { p.Close() })
	return p
}

// flood sends frames from g0 until stop is set.
func flood(stop *atomic.Bool, burst int) error {
	pin(0)
	i, err := net.InterfaceByName("g0")
	if err != nil {
		return err
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "BSD", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R1, int32(i.Index)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return(),
	}})
	if err != nil {
		return err
	}
	defer p.Close()
	frame := numbered(macIgb1, 0, 1, 60)[0]
	for !stop.Load() {
		if _, err := p.Run(&ebpf.RunOptions{Data: frame, Repeat: 1 << 14, BatchSize: 64, Flags: liveFrames}); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return nil
}

// BenchmarkProgram runs the programs of a port with a host and of one without
// over a frame that is for forwarding, without what the kernel does around.
func BenchmarkProgram(b *testing.B) {
	raiseMemlock()
	for _, test := range []struct {
		name string
		host bool
		len  int
		typ  [3]byte
	}{
		{"host=on/IPv4", true, 60, [3]byte{0x08, 0x00, 0x45}},
		{"host=on/IPv6", true, 62, [3]byte{0x86, 0xdd, 0x60}},
		{"host=off", false, 60, [3]byte{0x08, 0x00, 0x45}},
	} {
		b.Run(test.name, func(b *testing.B) {
			mac := net.HardwareAddr{0x02, 0, 0, 0, 0, 1}
			p, err := newProgram(1, test.host, false, []net.HardwareAddr{mac}, nil, most)
			if err != nil {
				b.Fatal(err)
			}
			defer p.close()
			frame := make([]byte, test.len)
			copy(frame, mac)
			copy(frame[etherType:], test.typ[:])
			frame[ip4Dst], frame[ip6Dst], frame[ip+6] = 198, 0x20, 17
			if _, err := p.prog.Run(&ebpf.RunOptions{Data: frame, Repeat: uint32(b.N)}); err != nil {
				b.Fatal(err)
			}
		})
	}
}
