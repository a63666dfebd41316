package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"

	"nmfwd/test/netns"
)

// A Receiver takes the frames of flows from a port and checks each. All other
// frames go on to the kernel.
type Receiver struct {
	flows  *Flows
	prog   *ebpf.Program
	link   link.Link
	totals *ebpf.Map // per CPU: totals
	order  *ebpf.Map // per flow: orderState
	latest *ebpf.Map // per flow: sequence number sent last, written by the sender
	delay  *ebpf.Map // per CPU: a counter for each delayUnit
	ring   *ebpf.Map // samples
	reader *ringbuf.Reader
	done   chan struct{} // closed when the reader has ended

	flushed chan struct{} // told when all samples up to a flush have been read

	mu      sync.Mutex
	sampled uint64
	wrong   uint64
	errs    []error // the first of them
}

// What the program counts for each CPU.
const (
	totalReceived = iota // right or wrong
	totalWrong           // differs in a byte
	totalOther           // no frame of the flows
	totalUnseen          // sample that found the ring full
	totalsCount
)

// What the program keeps for each flow:
//
//	0 sequence number that is next   8 frames   16 out of order
const orderStateLen = 24

// Delays are counted in units of 1<<delayShift nanoseconds.
const (
	delayShift = 10
	delays     = 1 << 16
)

// A sample is the length as received and the first Len bytes.
const sampleLen = 8 + 64

// maxErrs is how many wrong frames are told in full.
const maxErrs = 5

// NewReceiver attaches to port in ns. One frame of each sample, which is a power
// of two, is compared in user space as well; those that the program found wrong
// always are.
func NewReceiver(ns *netns.Namespace, port string, flows *Flows, sample uint32) (*Receiver, error) {
	r := &Receiver{flows: flows, done: make(chan struct{}), flushed: make(chan struct{}, 1)}
	err := r.load(ns, port, sample)
	if err == nil {
		r.reader, err = ringbuf.NewReader(r.ring)
	}
	if err != nil {
		close(r.done)
		return nil, errors.Join(fmt.Errorf("traffic: receiver on %s: %w", port, err), r.Close())
	}
	go r.read()
	return r, nil
}

func (r *Receiver) load(ns *netns.Namespace, port string, sample uint32) error {
	if bits.OnesCount32(sample) != 1 {
		return fmt.Errorf("one frame of %d: not a power of two", sample)
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return err
	}
	for _, m := range []struct {
		to   **ebpf.Map
		spec ebpf.MapSpec
	}{
		{&r.totals, ebpf.MapSpec{Name: "lab_totals", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8 * totalsCount, MaxEntries: 1}},
		{&r.order, ebpf.MapSpec{Name: "lab_order", Type: ebpf.Array, KeySize: 4, ValueSize: orderStateLen, MaxEntries: Count}},
		{&r.latest, ebpf.MapSpec{Name: "lab_latest", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: Count}},
		{&r.delay, ebpf.MapSpec{Name: "lab_delay", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: delays}},
		{&r.ring, ebpf.MapSpec{Name: "lab_samples", Type: ebpf.RingBuf, MaxEntries: 1 << 22}},
	} {
		var err error
		if *m.to, err = ebpf.NewMap(&m.spec); err != nil {
			return err
		}
	}
	var err error
	r.prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:         "lab_receive",
		Type:         ebpf.XDP,
		License:      "BSD",
		Instructions: r.program(sample),
	})
	if err != nil {
		return err
	}
	attrs, err := ns.Port(port)
	if err != nil {
		return err
	}
	return ns.Do(func() error {
		r.link, err = link.AttachXDP(link.XDPOptions{Program: r.prog, Interface: attrs.Index, Flags: link.XDPDriverMode})
		return err
	})
}

// program checks a frame. In R9 it gathers all bits that differ from the frame
// as it has to be.
func (r *Receiver) program(sample uint32) asm.Instructions {
	const (
		ctx, data, flow, diff = asm.R6, asm.R7, asm.R8, asm.R9
		r0, tmp, sum, arg     = asm.R0, asm.R1, asm.R2, asm.R3
		// On the stack, below the frame pointer.
		fpKey, fpTotals, fpSeq, fpLen = -4, -16, -24, -32
		xdpDrop, xdpPass              = 1, 2
	)
	f := r.flows
	n := f.Len()
	be := binary.BigEndian
	lookup := func(m *ebpf.Map) asm.Instructions {
		return asm.Instructions{
			asm.LoadMapPtr(asm.R1, m.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, fpKey),
			asm.FnMapLookupElem.Call(),
		}
	}
	add1 := func(ptr asm.Register, off int16) asm.Instructions {
		return asm.Instructions{
			asm.LoadMem(tmp, ptr, off, asm.DWord),
			asm.Add.Imm(tmp, 1),
			asm.StoreMem(ptr, off, tmp, asm.DWord),
		}
	}
	total := func(i int) asm.Instructions {
		return append(asm.Instructions{asm.LoadMem(arg, asm.RFP, fpTotals, asm.DWord)}, add1(arg, int16(8*i))...)
	}
	want := f.Received(0, 0, 0)
	word := func(b []byte) uint64 {
		return binary.NativeEndian.Uint64(append(append([]byte(nil), b...), make([]byte, 8)...))
	}

	p := asm.Instructions{
		asm.Mov.Reg(ctx, asm.R1),
		asm.StoreImm(asm.RFP, fpKey, 0, asm.Word),
	}
	p = append(p, lookup(r.totals)...)
	p = append(p,
		asm.JEq.Imm(r0, 0, "pass"),
		asm.StoreMem(asm.RFP, fpTotals, r0, asm.DWord),
		asm.LoadMem(data, ctx, 0, asm.Word),
		asm.LoadMem(tmp, ctx, 4, asm.Word),
		asm.Mov.Reg(sum, tmp),
		asm.Sub.Reg(sum, data),
		asm.StoreMem(asm.RFP, fpLen, sum, asm.DWord),
		asm.Mov.Reg(sum, data),
		asm.Add.Imm(sum, int32(n)),
		asm.JGT.Reg(sum, tmp, "other"),
		asm.LoadMem(tmp, data, 12, asm.Half),
		asm.JNE.Imm(tmp, int32(uint16(word(want[12:14]))), "other"),
	)
	// Ours are the frames to the destinations' network.
	offDst, prefix, src, dst := offDst4, 3, offSrc4+3, offDst4+3
	if f.Family == 6 {
		offDst, prefix, src, dst = offDst6, 8, offSrc6+15, offDst6+15
	}
	for i := range prefix {
		p = append(p,
			asm.LoadMem(tmp, data, int16(offDst+i), asm.Byte),
			asm.JNE.Imm(tmp, int32(want[offDst+i]), "other"))
	}
	p = append(p, total(totalReceived)...)
	// The length, then all bytes that are the same in every frame.
	mask := make([]byte, n)
	for i := range mask {
		mask[i] = 0xff
	}
	varies := func(from, to int) { clear(mask[from:to]) }
	varies(src, src+1)
	varies(dst, dst+1)
	if f.Family == 4 {
		varies(offID4, offID4+2)
		varies(offSum4, offSum4+2)
		varies(offSeq4, n)
	} else {
		varies(offClass6+1, offClass6+4)
		mask[offClass6] = 0xf0
		varies(offUDPSum6, offUDPSum6+2)
	}
	p = append(p,
		asm.LoadMem(diff, asm.RFP, fpLen, asm.DWord),
		asm.Xor.Imm(diff, int32(n)))
	for off := 0; off < n; off += 8 {
		off := min(off, n-8)
		p = append(p,
			asm.LoadMem(tmp, data, int16(off), asm.DWord),
			asm.LoadImm(sum, int64(word(want[off:off+8])), asm.DWord),
			asm.Xor.Reg(tmp, sum),
			asm.LoadImm(sum, int64(word(mask[off:off+8])), asm.DWord),
			asm.And.Reg(tmp, sum),
			asm.Or.Reg(diff, tmp))
	}
	// The flow, from the addresses.
	p = append(p,
		asm.LoadMem(tmp, data, int16(src), asm.Byte),
		asm.Sub.Imm(tmp, 1),
		asm.JGE.Imm(tmp, int32(f.sources()), "wrong"),
		asm.LoadMem(flow, data, int16(dst), asm.Byte),
		asm.Sub.Imm(flow, 1),
		asm.JGE.Imm(flow, int32(Count/f.sources()), "wrong"),
		asm.Mul.Imm(flow, int32(f.sources())),
		asm.Add.Reg(flow, tmp))
	// The checksum over the 16-bit words in [from, to), added to base, has to be
	// all ones (RFC 1071; in any byte order).
	checksum := func(base int32, from, to int) {
		p = append(p, asm.Mov.Imm(sum, base))
		for off := from; off < to; off += 2 {
			p = append(p, asm.LoadMem(tmp, data, int16(off), asm.Half), asm.Add.Reg(sum, tmp))
		}
		for range 2 {
			p = append(p,
				asm.Mov.Reg(tmp, sum),
				asm.RSh.Imm(tmp, 16),
				asm.And.Imm(sum, 0xffff),
				asm.Add.Reg(sum, tmp))
		}
		p = append(p, asm.Xor.Imm(sum, 0xffff), asm.Or.Reg(diff, sum))
	}
	load := func(reg asm.Register, off int, size asm.Size) {
		p = append(p, asm.LoadMem(reg, data, int16(off), size), asm.HostTo(asm.BE, reg, size))
	}
	if f.Family == 4 {
		checksum(0, 14, 34)
		load(arg, offSeq4, asm.Word)
		p = append(p, asm.StoreMem(asm.RFP, fpSeq, arg, asm.DWord), asm.Mov.Reg(sum, arg))
		load(tmp, offID4, asm.Half)
		p = append(p, asm.Xor.Reg(sum, tmp), asm.And.Imm(sum, 0xffff), asm.Or.Reg(diff, sum))
		load(tmp, offFlow4, asm.Half)
		p = append(p, asm.Xor.Reg(tmp, flow), asm.Or.Reg(diff, tmp))
		load(tmp, offTime4, asm.DWord)
		p = append(p,
			asm.Xor.Reg(arg, tmp), asm.RSh.Imm(tmp, 32), asm.Xor.Reg(arg, tmp),
			asm.Xor.Imm(arg, magic))
		load(tmp, offCheck4, asm.Word)
		p = append(p, asm.Xor.Reg(arg, tmp), asm.LSh.Imm(arg, 32), asm.Or.Reg(diff, arg))
	} else {
		// The length and the protocol count in the pseudo header as well.
		var pseudo [4]byte
		be.PutUint16(pseudo[:], Len6-54)
		be.PutUint16(pseudo[2:], 17)
		base := int32(uint16(word(pseudo[:2]))) + int32(uint16(word(pseudo[2:])))
		checksum(base, offSrc6, n)
		load(arg, offClass6, asm.Word)
		p = append(p,
			asm.Mov.Reg(tmp, arg),
			asm.And.Imm(tmp, 0xfffff),
			asm.Sub.Imm(tmp, 1),
			asm.Xor.Reg(tmp, flow),
			asm.Or.Reg(diff, tmp),
			asm.RSh.Imm(arg, 20),
			asm.And.Imm(arg, 0xff),
			asm.StoreMem(asm.RFP, fpSeq, arg, asm.DWord))
	}
	p = append(p, asm.JNE.Imm(diff, 0, "wrong"))

	p = append(p, asm.StoreMem(asm.RFP, fpKey, flow, asm.Word))
	if f.Family == 6 {
		// The rest of the sequence number is that of the frame sent last: of one
		// flow there are never 256 frames between sender and receiver.
		p = append(p, lookup(r.latest)...)
		p = append(p,
			asm.JEq.Imm(r0, 0, "pass"),
			asm.LoadMem(tmp, r0, 0, asm.Word),
			asm.LoadMem(arg, asm.RFP, fpSeq, asm.DWord),
			asm.Mov.Reg(sum, tmp),
			asm.Sub.Reg(sum, arg),
			asm.And.Imm(sum, 0xff),
			asm.Sub.Reg(tmp, sum),
			asm.StoreMem(asm.RFP, fpSeq, tmp, asm.DWord))
	}
	// The order within the flow, in the arithmetic of sequence numbers.
	p = append(p, lookup(r.order)...)
	p = append(p, asm.JEq.Imm(r0, 0, "pass"))
	p = append(p, add1(r0, 8)...)
	p = append(p,
		asm.LoadMem(arg, asm.RFP, fpSeq, asm.DWord),
		asm.LoadMem(tmp, r0, 0, asm.Word),
		asm.Mov.Reg(sum, arg),
		asm.Sub.Reg(sum, tmp),
		asm.LSh.Imm(sum, 32),
		asm.JSLT.Imm(sum, 0, "late"),
		asm.Add.Imm(arg, 1),
		asm.StoreMem(r0, 0, arg, asm.Word),
		asm.Ja.Label("in order"),
		asm.LoadMem(tmp, r0, 16, asm.DWord).WithSymbol("late"),
		asm.Add.Imm(tmp, 1),
		asm.StoreMem(r0, 16, tmp, asm.DWord),
		asm.Mov.Imm(tmp, 0).WithSymbol("in order"),
	)
	if f.Family == 4 {
		p = append(p, asm.FnKtimeGetNs.Call(), asm.Mov.Reg(arg, r0))
		load(tmp, offTime4, asm.DWord)
		p = append(p,
			asm.Sub.Reg(arg, tmp),
			asm.RSh.Imm(arg, delayShift),
			asm.JLT.Imm(arg, delays, "delay"),
			asm.Mov.Imm(arg, delays-1),
			asm.StoreMem(asm.RFP, fpKey, arg, asm.Word).WithSymbol("delay"))
		p = append(p, lookup(r.delay)...)
		p = append(p, asm.JEq.Imm(r0, 0, "pass"))
		p = append(p, add1(r0, 0)...)
	}
	p = append(p,
		asm.LoadMem(tmp, asm.RFP, fpSeq, asm.DWord),
		asm.Add.Reg(tmp, flow),
		asm.And.Imm(tmp, int32(sample-1)),
		asm.JNE.Imm(tmp, 0, "drop"),
		asm.Ja.Label("sample"),
	)
	wrong := total(totalWrong)
	wrong[0] = wrong[0].WithSymbol("wrong")
	p = append(p, wrong...)
	p = append(p,
		asm.LoadMapPtr(asm.R1, r.ring.FD()).WithSymbol("sample"),
		asm.Mov.Imm(asm.R2, sampleLen),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnRingbufReserve.Call(),
		asm.JEq.Imm(r0, 0, "unseen"),
		asm.Mov.Reg(flow, r0),
		asm.LoadMem(tmp, asm.RFP, fpLen, asm.DWord),
		asm.StoreMem(flow, 0, tmp, asm.DWord),
	)
	for off := 0; off < n; off += 8 {
		off := min(off, n-8)
		p = append(p, asm.LoadMem(tmp, data, int16(off), asm.DWord), asm.StoreMem(flow, int16(8+off), tmp, asm.DWord))
	}
	p = append(p,
		asm.Mov.Reg(asm.R1, flow),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRingbufSubmit.Call(),
		asm.Ja.Label("drop"))
	unseen := total(totalUnseen)
	unseen[0] = unseen[0].WithSymbol("unseen")
	p = append(p, unseen...)
	p = append(p, asm.Mov.Imm(r0, xdpDrop).WithSymbol("drop"), asm.Return())
	other := total(totalOther)
	other[0] = other[0].WithSymbol("other")
	p = append(p, other...)
	return append(p, asm.Mov.Imm(r0, xdpPass).WithSymbol("pass"), asm.Return())
}

// read compares samples until the reader is closed.
func (r *Receiver) read() {
	defer close(r.done)
	var rec ringbuf.Record
	for {
		if err := r.reader.ReadInto(&rec); errors.Is(err, ringbuf.ErrFlushed) {
			r.flushed <- struct{}{}
			continue
		} else if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				r.note(fmt.Errorf("traffic: read samples: %w", err))
			}
			return
		}
		n := int(binary.NativeEndian.Uint64(rec.RawSample))
		p := rec.RawSample[8 : 8+r.flows.Len()]
		if n != len(p) {
			r.note(fmt.Errorf("traffic: frame of %d bytes, want %d: %x", n, len(p), p))
		} else if err := r.flows.Compare(p); err != nil {
			r.note(fmt.Errorf("%w\n%x", err, p))
		}
		r.mu.Lock()
		r.sampled++
		r.mu.Unlock()
	}
}

// note counts a wrong frame and keeps the first few.
func (r *Receiver) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrong++
	if len(r.errs) < maxErrs {
		r.errs = append(r.errs, err)
	}
}

// Received returns the number of frames of the flows received so far, and of
// other frames.
func (r *Receiver) Received() (flows, others uint64, err error) {
	t, err := r.sum()
	return t[totalReceived], t[totalOther], err
}

func (r *Receiver) sum() (t [totalsCount]uint64, err error) {
	var cpus [][totalsCount]uint64
	if err := r.totals.Lookup(uint32(0), &cpus); err != nil {
		return t, fmt.Errorf("traffic: read receiver: %w", err)
	}
	for _, c := range cpus {
		for i := range t {
			t[i] += c[i]
		}
	}
	return t, nil
}

// A Result says what became of what a Sender sent. All are frames.
type Result struct {
	Sent       uint64
	Received   uint64
	Lost       uint64 // did not arrive, by flow
	Duplicated uint64 // by flow
	Reordered  uint64 // behind a later one of its flow
	Wrong      uint64 // differs in a byte
	Sampled    uint64 // compared in user space as well
	Unseen     uint64 // to be compared there, but there were too many
	Others     uint64 // received, of no flow
	Flows      int    // of which at least one arrived
	Errors     []error
	Delay      Delay // sender to receiver, of IPv4 only
}

// Result compares what s sent with what arrived. Both must be at rest.
func (r *Receiver) Result(s *Sender) (*Result, error) {
	sent, err := s.Sent()
	if err != nil {
		return nil, err
	}
	t, err := r.sum()
	if err != nil {
		return nil, err
	}
	res := &Result{Received: t[totalReceived], Wrong: t[totalWrong], Unseen: t[totalUnseen], Others: t[totalOther]}
	for flow, n := range s.SentOf(sent) {
		res.Sent += n
		var v [orderStateLen]byte
		if err := r.order.Lookup(uint32(flow), &v); err != nil {
			return nil, fmt.Errorf("traffic: read receiver: %w", err)
		}
		got := binary.NativeEndian.Uint64(v[8:])
		res.Reordered += binary.NativeEndian.Uint64(v[16:])
		if got > 0 {
			res.Flows++
		}
		if got > n {
			res.Duplicated += got - n
		} else {
			res.Lost += n - got
		}
	}
	if res.Delay, err = r.delays(); err != nil {
		return nil, err
	}
	if err := r.reader.Flush(); err != nil {
		return nil, fmt.Errorf("traffic: read samples: %w", err)
	}
	select {
	case <-r.flushed:
	case <-r.done:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	res.Sampled, res.Errors = r.sampled, r.errs
	res.Wrong = max(res.Wrong, r.wrong)
	res.Lost -= min(res.Lost, res.Wrong) // a wrong frame counts for no flow
	return res, nil
}

// A Delay is the distribution of the time from sender to receiver, the time in
// their own queues included.
type Delay struct{ Median, P99, Max time.Duration }

func (r *Receiver) delays() (d Delay, err error) {
	if r.flows.Family == 6 {
		return d, nil
	}
	keys := make([]uint32, delays)
	values := make([]uint64, delays*ebpf.MustPossibleCPU()) // one after the other for each key
	var at ebpf.MapBatchCursor
	n, err := r.delay.BatchLookup(&at, keys, values, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) || n != delays { // the error says that these are all
		return d, fmt.Errorf("traffic: read receiver: %d of %d delays: %w", n, delays, err)
	}
	counts := make([]uint64, delays)
	var all uint64
	for i, v := range values {
		counts[keys[i/ebpf.MustPossibleCPU()]] += v
		all += v
	}
	var seen uint64
	for i, c := range counts {
		if c == 0 {
			continue
		}
		at := time.Duration(i+1) << delayShift
		if seen < (all+1)/2 {
			d.Median = at
		}
		if seen < all-all/100 {
			d.P99 = at
		}
		d.Max = at
		seen += c
	}
	return d, nil
}

// Close detaches from the port.
func (r *Receiver) Close() error {
	var errs []error
	if r.reader != nil {
		errs = append(errs, r.reader.Close())
	}
	<-r.done
	if r.link != nil {
		errs = append(errs, r.link.Close())
	}
	if r.prog != nil {
		errs = append(errs, r.prog.Close())
	}
	for _, m := range []*ebpf.Map{r.totals, r.order, r.latest, r.delay, r.ring} {
		errs = append(errs, m.Close()) // nil is fine
	}
	return errors.Join(errs...)
}
