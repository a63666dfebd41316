package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"nmfwd/test/netns"
)

// testXDPLiveFrames is BPF_F_TEST_XDP_LIVE_FRAMES of linux/bpf.h.
const testXDPLiveFrames = 1 << 1

// A Sender sends flows out of a port from one or more CPUs. CPU i of n sends the
// flows with number i modulo n, each in order.
type Sender struct {
	ns    *netns.Namespace
	flows *Flows
	cpus  []int
	progs []*ebpf.Program
	state []*ebpf.Map // one element of sendState for each CPU
	holds []*hold     // of progs
}

// sendState is where a sender's program is.
//
//	0 flow that is next   4 its sequence number   8 frames sent
const sendStateLen = 16

// NewSender prepares to send what r receives from cpus out of port in ns.
func NewSender(ns *netns.Namespace, port string, r *Receiver, cpus []int) (*Sender, error) {
	s := &Sender{ns: ns, flows: r.flows, cpus: cpus}
	if err := s.load(port, r.latest); err != nil {
		return nil, errors.Join(fmt.Errorf("traffic: sender on %s: %w", port, err), s.Close())
	}
	return s, nil
}

func (s *Sender) load(port string, latest *ebpf.Map) error {
	if err := rlimit.RemoveMemlock(); err != nil {
		return err
	}
	attrs, err := s.ns.Port(port)
	if err != nil {
		return err
	}
	for i := range s.cpus {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "lab_send", Type: ebpf.Array, KeySize: 4, ValueSize: sendStateLen, MaxEntries: 1})
		if err != nil {
			return err
		}
		s.state = append(s.state, m)
		first := make([]byte, sendStateLen)
		binary.NativeEndian.PutUint32(first, uint32(i))
		if err := m.Put(uint32(0), first); err != nil {
			return err
		}
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name:         "lab_send",
			Type:         ebpf.XDP,
			License:      "BSD",
			Instructions: s.flows.sendProgram(m, latest, attrs.Index, i, len(s.cpus)),
		})
		if err != nil {
			return err
		}
		s.progs = append(s.progs, p)
		h, err := newHold(s.ns, i, p)
		if err != nil {
			return err
		}
		s.holds = append(s.holds, h)
	}
	return nil
}

// A hold keeps a program attached to a port that is never up. The kernel patches
// its XDP dispatcher for a program that is attached nowhere before and after each
// run, which takes milliseconds (bpf_prog_change_xdp).
type hold struct {
	ns   *netns.Namespace
	port string
	link link.Link
}

func newHold(ns *netns.Namespace, i int, p *ebpf.Program) (*hold, error) {
	h := &hold{ns: ns, port: fmt.Sprintf("hold%d", i)}
	err := netns.Join(netns.Port{NS: ns, Name: h.port, Down: true}, netns.Port{NS: ns, Name: h.port + "x", Down: true})
	if err != nil {
		return nil, err
	}
	attrs, err := ns.Port(h.port)
	if err == nil {
		err = ns.Do(func() error {
			h.link, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: attrs.Index})
			return err
		})
	}
	if err != nil {
		return nil, errors.Join(err, ns.Remove(h.port))
	}
	return h, nil
}

func (h *hold) close() error { return errors.Join(h.link.Close(), h.ns.Remove(h.port)) }

// sendProgram writes the next frame of sender first of step, stores its sequence
// number in latest and redirects it to a port.
func (f *Flows) sendProgram(state, latest *ebpf.Map, port, first, step int) asm.Instructions {
	const (
		data, st, flow, seq, src, dst = asm.R7, asm.R9, asm.R8, asm.R6, asm.R4, asm.R5
		tmp, sum                      = asm.R1, asm.R2
	)
	n := f.Len()
	p := asm.Instructions{
		asm.LoadMem(data, asm.R1, 0, asm.Word),
		asm.LoadMem(tmp, asm.R1, 4, asm.Word),
		asm.Mov.Reg(sum, data),
		asm.Add.Imm(sum, int32(n)),
		asm.JGT.Reg(sum, tmp, "short"),

		asm.LoadMapValue(st, state.FD(), 0),
		asm.LoadMem(flow, st, 0, asm.Word),
		asm.LoadMem(seq, st, 4, asm.Word),
		asm.LoadMem(tmp, st, 8, asm.DWord),
		asm.Add.Imm(tmp, 1),
		asm.StoreMem(st, 8, tmp, asm.DWord),
		asm.Mov.Reg(tmp, flow),
		asm.Mov.Reg(sum, seq),
		asm.Add.Imm(tmp, int32(step)),
		asm.JLT.Imm(tmp, Count, "same round"),
		asm.Mov.Imm(tmp, int32(first)),
		asm.Add.Imm(sum, 1),
		asm.StoreMem(st, 0, tmp, asm.Word).WithSymbol("same round"),
		asm.StoreMem(st, 4, sum, asm.Word),
	}
	// The buffer may have been through a router: write all of it.
	frame := f.Sent(0, 0, 0)
	for off := 0; off < n; {
		size := asm.DWord
		for off+size.Sizeof() > n {
			size = map[asm.Size]asm.Size{asm.DWord: asm.Word, asm.Word: asm.Half}[size]
		}
		word := make([]byte, 8)
		copy(word, frame[off:off+size.Sizeof()])
		p = append(p,
			asm.LoadImm(tmp, int64(binary.NativeEndian.Uint64(word)), asm.DWord),
			asm.StoreMem(data, int16(off), tmp, size))
		off += size.Sizeof()
	}
	p = append(p,
		asm.Mov.Reg(src, flow),
		asm.Mod.Imm(src, int32(f.sources())),
		asm.Add.Imm(src, 1),
		asm.Mov.Reg(dst, flow),
		asm.Div.Imm(dst, int32(f.sources())),
		asm.Add.Imm(dst, 1),
	)
	// store writes reg in network byte order; reg is lost.
	store := func(off int, reg asm.Register, size asm.Size) {
		p = append(p, asm.HostTo(asm.BE, reg, size), asm.StoreMem(data, int16(off), reg, size))
	}
	// Finish a ones' complement sum whose part that never changes is base.
	checksum := func(base uint16, parts ...asm.Register) {
		p = append(p, asm.Mov.Imm(sum, int32(base)))
		for _, r := range parts {
			p = append(p, asm.Add.Reg(sum, r))
		}
		for range 2 {
			p = append(p,
				asm.Mov.Reg(asm.R3, sum),
				asm.RSh.Imm(asm.R3, 16),
				asm.And.Imm(sum, 0xffff),
				asm.Add.Reg(sum, asm.R3))
		}
		p = append(p, asm.Xor.Imm(sum, 0xffff))
	}
	// The template has address bytes of 1: what is added to the sum starts there.
	less := func(r asm.Register) asm.Instruction { return asm.Sub.Imm(r, 1) }
	if f.Family == 4 {
		p = append(p,
			asm.StoreMem(data, offSrc4+3, src, asm.Byte),
			asm.StoreMem(data, offDst4+3, dst, asm.Byte),
			less(src), less(dst),
			asm.Mov.Reg(tmp, seq),
			asm.And.Imm(tmp, 0xffff))
		checksum(^binary.BigEndian.Uint16(frame[offSum4:]), src, dst, tmp)
		store(offSum4, sum, asm.Half)
		store(18, tmp, asm.Half)
		p = append(p, asm.Mov.Reg(tmp, seq))
		store(offSeq4, tmp, asm.Word)
		store(offFlow4, flow, asm.Half) // flow is lost
		p = append(p,
			asm.FnKtimeGetNs.Call(),
			asm.Mov.Reg(flow, asm.R0),
			asm.Xor.Reg(seq, asm.R0), // seq becomes the check word
			asm.Mov.Reg(tmp, asm.R0),
			asm.RSh.Imm(tmp, 32),
			asm.Xor.Reg(seq, tmp),
			asm.Xor.Imm(seq, magic))
		store(offTime4, flow, asm.DWord)
		store(offCheck4, seq, asm.Word)
	} else {
		p = append(p,
			asm.StoreMem(data, offSrc6+15, src, asm.Byte),
			asm.StoreMem(data, offDst6+15, dst, asm.Byte),
			less(src), less(dst))
		checksum(^binary.BigEndian.Uint16(frame[offUDPSum6:]), src, dst)
		p = append(p,
			asm.JNE.Imm(sum, 0, "has checksum"),
			asm.Mov.Imm(sum, 0xffff),
			asm.HostTo(asm.BE, sum, asm.Half).WithSymbol("has checksum"),
			asm.StoreMem(data, offUDPSum6, sum, asm.Half),
			asm.StoreMem(asm.RFP, -4, flow, asm.Word),
			asm.LoadMapPtr(asm.R1, latest.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "short"),
			asm.StoreMem(asm.R0, 0, seq, asm.Word),
			asm.And.Imm(seq, 0xff),
			asm.LSh.Imm(seq, 20),
			asm.Or.Imm(seq, 6<<28),
			asm.Add.Reg(seq, flow),
			asm.Add.Imm(seq, 1))
		store(offClass6, seq, asm.Word)
	}
	return append(p,
		asm.Mov.Imm(asm.R1, int32(port)),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("short"), // XDP_ABORTED
		asm.Return(),
	)
}

// Paced frames are sent every tick in bursts of at most maxBurst, a quarter of what
// the ring of a veth holds. A sender that was held up makes good for maxLate and
// forgoes the rest, so that what it sends at once is bounded.
const (
	tick     = time.Millisecond
	maxBurst = 64
	maxLate  = 5 * time.Millisecond
)

// Send sends for a time, rate frames per second over all CPUs together in small
// bursts, or as many as it can when rate is 0. It returns early without an error
// when ctx ends.
func (s *Sender) Send(ctx context.Context, rate float64, d time.Duration) error {
	errs := make(chan error, len(s.cpus))
	for i := range s.cpus {
		go func() {
			errs <- s.ns.Do(func() error { return s.send(ctx, i, rate/float64(len(s.cpus)), d) })
		}()
	}
	var err error
	for range s.cpus {
		err = errors.Join(err, <-errs)
	}
	return err
}

func (s *Sender) send(ctx context.Context, i int, rate float64, d time.Duration) error {
	var set unix.CPUSet
	set.Set(s.cpus[i])
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("traffic: sender on CPU %d: %w", s.cpus[i], err)
	}
	run := ebpf.RunOptions{Data: s.flows.Sent(i, 0, 0), Flags: testXDPLiveFrames, Repeat: 1 << 16, BatchSize: 64}
	start := time.Now()
	var done float64 // frames sent or forgone
	for ctx.Err() == nil {
		elapsed := time.Since(start)
		if elapsed >= d {
			break
		}
		if rate > 0 {
			due := rate * elapsed.Seconds()
			done = max(done, due-rate*maxLate.Seconds())
			if due-done < 1 {
				if err := sleep(tick); err != nil {
					return err
				}
				continue
			}
			run.Repeat = uint32(min(due-done, maxBurst))
			run.BatchSize = run.Repeat
			done += float64(run.Repeat)
		}
		if _, err := s.progs[i].Run(&run); err != nil {
			return fmt.Errorf("traffic: sender on CPU %d: %w", s.cpus[i], err)
		}
		if run.Repeat < maxBurst {
			if err := sleep(tick); err != nil {
				return err
			}
		}
	}
	return nil
}

// sleep is time.Sleep for a thread that stays on its CPU: its timer is there too.
func sleep(d time.Duration) error {
	ts := unix.NsecToTimespec(d.Nanoseconds())
	if err := unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil); err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("traffic: clock_nanosleep: %w", err)
	}
	return nil
}

// Sent returns how many frames each CPU has sent.
func (s *Sender) Sent() ([]uint64, error) {
	sent := make([]uint64, len(s.state))
	for i, m := range s.state {
		var v [sendStateLen]byte
		if err := m.Lookup(uint32(0), &v); err != nil {
			return nil, fmt.Errorf("traffic: read sender: %w", err)
		}
		sent[i] = binary.NativeEndian.Uint64(v[8:])
	}
	return sent, nil
}

// SentOf returns how many frames of each flow were sent, out of what Sent says.
func (s *Sender) SentOf(sent []uint64) []uint64 {
	of := make([]uint64, Count)
	n := uint64(len(sent))
	for flow := range uint64(Count) {
		i := flow % n
		flows := (Count - i + n - 1) / n // of this CPU
		of[flow] = sent[i] / flows
		if flow/n < sent[i]%flows {
			of[flow]++
		}
	}
	return of
}

// Close frees the programs.
func (s *Sender) Close() error {
	var errs []error
	for _, h := range s.holds {
		errs = append(errs, h.close())
	}
	for _, p := range s.progs {
		errs = append(errs, p.Close())
	}
	for _, m := range s.state {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}
