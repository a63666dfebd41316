package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"nmfwd/test/lab/apu2"
	"nmfwd/test/lab/traffic"
	"nmfwd/test/netns"
	"nmfwd/wire"
)

// A source sends through a lab and says what arrived.
type source interface {
	Send(ctx context.Context, rate float64, d time.Duration) error
	counts() (sent, received uint64, err error)
	Close() error
}

// A flowSource is the lab's own traffic, of which every frame is checked.
type flowSource struct {
	*traffic.Sender
	rcv *traffic.Receiver
}

func newFlowSource(l *apu2.Lab, family int, cpus []int) (source, error) {
	rcv, err := traffic.NewReceiver(l.Receiver, apu2.Rcv0, apu2.Flows(family), 1<<12)
	if err != nil {
		return nil, err
	}
	gen, err := traffic.NewSender(l.Generator, apu2.Gen0, rcv, cpus)
	if err != nil {
		return nil, errors.Join(err, rcv.Close())
	}
	return &flowSource{gen, rcv}, nil
}

func (s *flowSource) counts() (sent, received uint64, err error) {
	of, err := s.Sent()
	if err != nil {
		return 0, 0, err
	}
	for _, n := range of {
		sent += n
	}
	received, _, err = s.rcv.Received()
	return sent, received, err
}

func (s *flowSource) Close() error { return errors.Join(s.Sender.Close(), s.rcv.Close()) }

// A plainSource sends frames of one flow, or with one of 2,000 UDP source ports,
// or of several lengths, at random; an XDP program drops what arrives and the port counts it.
type plainSource struct {
	l     *apu2.Lab
	cpus  []int
	frame []byte // what the program makes all others of
	prog  *ebpf.Program
	links []link.Link
	drop  *ebpf.Program
	sent  atomic.Uint64
}

// The mix of the labs: frames of three lengths, 7:4:1.
const imix = "IMIX"

var imixShares, imixLens = []int{7, 4, 1}, []int{54, 590, 1514}

// imixBits is the labs' estimate of bits per packet of the mix, as frames
// without FCS.
const imixBits = (7*54 + 4*590 + 1514) * 8 / 12.0

func newPlainSource(l *apu2.Lab, kind string, cpus []int) (_ source, err error) {
	s := &plainSource{l: l, cpus: cpus}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	out, err := l.Generator.Port(apu2.Gen0)
	if err != nil {
		return nil, err
	}
	lens, shares := []int{60}, []int{1}
	if kind == imix {
		lens, shares = imixLens, imixShares
	}
	code := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), asm.FnGetPrandomU32.Call(), asm.Mov.Reg(asm.R7, asm.R0), asm.Mov.Reg(asm.R8, asm.R0)}
	all := 0
	for _, n := range shares {
		all += n
	}
	code = append(code, asm.Mod.Imm32(asm.R7, int32(all)))
	s.frame = make([]byte, slices.Max(lens))
	sum := 0
	for i, n := range lens {
		sum += shares[i]
		next := fmt.Sprintf("frame%d", i+1)
		code = append(code, asm.JGE.Imm32(asm.R7, int32(sum), next).WithSymbol(fmt.Sprintf("frame%d", i)))
		if n < len(s.frame) {
			code = append(code, asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, int32(n-len(s.frame))), asm.FnXdpAdjustTail.Call())
		}
		code = append(code,
			asm.LoadMem(asm.R1, asm.R6, 0, asm.Word),
			asm.LoadMem(asm.R2, asm.R6, 4, asm.Word),
			asm.Mov.Reg(asm.R3, asm.R1),
			asm.Add.Imm(asm.R3, headersLen),
			asm.JGT.Reg(asm.R3, asm.R2, "send"))
		// The buffer may have been through a router: write all headers.
		h := headers(n)
		for off := 0; off < headersLen; off += 2 {
			code = append(code, asm.StoreImm(asm.R1, int16(off), int64(binary.NativeEndian.Uint16(h[off:])), asm.Half))
		}
		if kind == udpPorts { // the UDP checksum is zero, and so there is none to mend
			code = append(code, asm.Mod.Imm32(asm.R8, 2000), asm.StoreMem(asm.R1, 34, asm.R8, asm.Half))
		}
		code = append(code, asm.Ja.Label("send"))
	}
	code = append(code,
		asm.Mov.Imm(asm.R0, 0).WithSymbol(fmt.Sprintf("frame%d", len(lens))), // XDP_ABORTED
		asm.Return(),
		asm.Mov.Imm(asm.R1, int32(out.Index)).WithSymbol("send"),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return())
	if s.prog, err = xdpProgram(code); err != nil {
		return nil, err
	}
	if s.drop, err = xdpProgram(dropAll); err != nil {
		return nil, err
	}
	// A program that is attached nowhere takes milliseconds to be run.
	err = netns.Join(netns.Port{NS: l.Generator, Name: "hold", Down: true}, netns.Port{NS: l.Generator, Name: "holdx", Down: true})
	if err == nil {
		err = errors.Join(s.attach(l.Generator, "hold", s.prog), s.attach(l.Receiver, apu2.Rcv0, s.drop))
	}
	return s, err
}

const headersLen = wire.EthernetLen + wire.IPv4Len + 8

// headers returns the headers of a frame of n bytes in one of the lab's flows.
func headers(n int) []byte {
	f := frame4(0, 64)[:headersLen]
	copy(f, apu2.IGB1MAC)
	copy(f[6:], apu2.GeneratorMAC)
	binary.BigEndian.PutUint16(f[16:], uint16(n-wire.EthernetLen))
	sum4(f)
	udp(f[34:], uint16(n-34))
	return f
}

func xdpProgram(code asm.Instructions) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{Name: "bench", Type: ebpf.XDP, License: "BSD", Instructions: code})
}

var dropAll = asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()} // XDP_DROP

func (s *plainSource) attach(ns *netns.Namespace, port string, p *ebpf.Program) error {
	l, err := attachTo(ns, port, p)
	if err == nil {
		s.links = append(s.links, l)
	}
	return err
}

func attachTo(ns *netns.Namespace, port string, p *ebpf.Program) (l link.Link, err error) {
	attrs, err := ns.Port(port)
	if err != nil {
		return nil, err
	}
	err = ns.Do(func() error {
		l, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: attrs.Index})
		return err
	})
	return l, err
}

// Paced frames are sent in bursts that the ring of a veth holds twice. A sender
// that was held up makes good for a few of them.
const (
	pacedBurst = 128
	maxDue     = 8 * pacedBurst
)

// Send sends for a time, rate frames per second over all CPUs together, or as
// many as it can when rate is 0.
func (s *plainSource) Send(ctx context.Context, rate float64, d time.Duration) error {
	errs := make(chan error, len(s.cpus))
	for _, cpu := range s.cpus {
		go func() {
			errs <- s.l.Generator.Do(func() error {
				var set unix.CPUSet
				set.Set(cpu)
				err := unix.SchedSetaffinity(0, &set)
				if err == nil && rate > 0 {
					err = s.pace(ctx, rate/float64(len(s.cpus)), d)
				} else if err == nil {
					err = s.flood(ctx, d)
				}
				if err != nil {
					return fmt.Errorf("sender on CPU %d: %w", cpu, err)
				}
				return nil
			})
		}()
	}
	var err error
	for range s.cpus {
		err = errors.Join(err, <-errs)
	}
	return err
}

func (s *plainSource) flood(ctx context.Context, d time.Duration) error {
	for start := time.Now(); time.Since(start) < d && ctx.Err() == nil; {
		if err := s.run(1 << 16); err != nil {
			return err
		}
	}
	return nil
}

func (s *plainSource) pace(ctx context.Context, rate float64, d time.Duration) error {
	start, done := time.Now(), 0.0
	for ctx.Err() == nil {
		elapsed := time.Since(start)
		if elapsed >= d {
			break
		}
		due := rate*elapsed.Seconds() - done
		if due < pacedBurst {
			wait := unix.NsecToTimespec(int64((pacedBurst - due) / rate * 1e9))
			if err := unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &wait, nil); err != nil && !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("clock_nanosleep: %w", err)
			}
			continue
		}
		done += max(due-maxDue, 0) + pacedBurst
		if err := s.run(pacedBurst); err != nil {
			return err
		}
	}
	return nil
}

// run sends n frames.
func (s *plainSource) run(n int) error {
	const liveFrames = 1 << 1 // BPF_F_TEST_XDP_LIVE_FRAMES of linux/bpf.h
	if _, err := s.prog.Run(&ebpf.RunOptions{Data: s.frame, Flags: liveFrames, Repeat: uint32(n), BatchSize: 64}); err != nil {
		return err
	}
	s.sent.Add(uint64(n))
	return nil
}

func (s *plainSource) counts() (sent, received uint64, err error) {
	p, err := s.l.Receiver.Port(apu2.Rcv0)
	if err != nil {
		return 0, 0, err
	}
	return s.sent.Load(), p.Statistics.RxPackets, nil
}

func (s *plainSource) Close() error {
	var errs []error
	for _, l := range s.links {
		errs = append(errs, l.Close())
	}
	for _, p := range []*ebpf.Program{s.prog, s.drop} {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	return errors.Join(errs...)
}
