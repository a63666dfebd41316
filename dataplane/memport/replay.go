package memport

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"nmfwd/dataplane"
	"nmfwd/pcap"
)

// A Replay opens ports that receive the frames of capture files and write what
// they send to others. Frames come in the order of their times, over all
// ports, so that the result does not depend on how fast the machine is. A
// frame that is forwarded is written with the time it was received at.
//
// A port sends as much as it is given at once. Between workers a mutex, taken
// once per burst, guards what the ports share.
type Replay struct {
	region *dataplane.Region

	mu    sync.Mutex
	when  []time.Time // of the frame in each buffer
	now   time.Time   // of the last frame received
	ports []*replayPort
	files []Pcap
	err   error // the first
}

// NewReplay returns a Replay without ports, whose region has n buffers of
// stride bytes.
func NewReplay(n, stride int) *Replay {
	return &Replay{region: NewRegion("replay", n, stride), when: make([]time.Time, n)}
}

// Region returns the region of all ports.
func (r *Replay) Region() *dataplane.Region { return r.region }

// A replayPort is a port of a Replay, with one queue.
type replayPort struct {
	cfg    Config
	replay *Replay
	in     *pcap.Reader // nil: receives nothing, or no more
	frame  []byte       // of in, to be received next
	when   time.Time
	free   []uint32
	lost   dataplane.DeviceCounters // frames that no burst can hold

	out     *pcap.Writer // nil: what is sent is thrown away
	outFile *os.File
	scratch []byte
}

// Open opens a port that receives the frames of the capture file in and writes
// what it sends to the file out; "" or "-" mean none. A frame whose capture was
// cut is received as captured. Of cfg, rings, headroom and host are not used.
// Errors name the file.
func (r *Replay) Open(cfg Config, in, out string) (*dataplane.Port, error) {
	cfg.RX, cfg.TX, cfg.TXSlots, cfg.Headroom, cfg.Host = 1, 1, 0, 0, false
	if err := cfg.complete(r.region); err != nil {
		return nil, err
	}
	p := &replayPort{cfg: cfg, replay: r}
	fail := func(err error) (*dataplane.Port, error) {
		return nil, errors.Join(fmt.Errorf("memport: port %s: %w", cfg.Name, err), p.Close())
	}
	files := append(r.files, Pcap{cfg.Name, in, out})
	err := Distinct(files)
	if err != nil {
		return nil, fmt.Errorf("memport: %w", err)
	}
	if !none(in) {
		if p.in, err = pcap.Open(in); err != nil {
			return fail(err)
		}
	}
	if !none(out) {
		if p.outFile, err = os.Create(out); err != nil {
			return fail(err)
		}
		p.out = pcap.NewWriter(p.outFile)
	}
	if p.free, err = r.region.Take(cfg.RXSlots); err != nil {
		return fail(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p.read()
	r.ports, r.files = append(r.ports, p), files
	d := replayDescriptor{p}
	return &dataplane.Port{
		Info:   info(cfg),
		Queues: queues(0, cfg.Owners.RX[0], cfg.Owners.TX[0], replayRX{p}, replayTX{p}, d),
		Device: p,
	}, nil
}

// Done reports whether all frames of all inputs were received, or an error
// ended the replay.
func (r *Replay) Done() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.ports {
		if p.in != nil && r.err == nil {
			return false
		}
	}
	return true
}

// Err returns the first error of reading or writing a capture.
func (r *Replay) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *Replay) fail(name string, err error) {
	if r.err == nil {
		r.err = fmt.Errorf("memport: port %s: %w", name, err)
	}
}

// read fetches the frame to be received next.
func (p *replayPort) read() {
	if p.in == nil {
		return
	}
	var err error
	if p.frame, p.when, err = p.in.Next(); err == nil {
		return
	}
	if err != io.EOF {
		p.replay.fail(p.cfg.Name, err)
	}
	if err := p.in.Close(); err != nil {
		p.replay.fail(p.cfg.Name, err)
	}
	p.in = nil
}

// first reports whether no port has an older frame to receive.
func (p *replayPort) first() bool {
	for _, o := range p.replay.ports {
		if o.in != nil && o.when.Before(p.when) {
			return false
		}
	}
	return true
}

type replayRX struct{ *replayPort }

func (p replayRX) Region() *dataplane.Region { return p.replay.region }

func (p replayRX) Recv(s []dataplane.Slot) int {
	p.replay.mu.Lock()
	defer p.replay.mu.Unlock()
	n := 0
	for p.in != nil && p.replay.err == nil && p.first() {
		size := p.cfg.BufSize
		slots := max(1, (len(p.frame)+size-1)/size)
		switch {
		case slots > p.cfg.RXSlots || n == 0 && slots > len(s) && len(s) > 0:
			p.lost.RXRingFull++
			p.lost.DroppedBytes += uint64(len(p.frame))
		case slots > min(len(s)-n, len(p.free)):
			return n
		default:
			for range slots {
				s[n] = p.fill()
				n++
			}
		}
		p.read()
	}
	return n
}

// fill puts the next part of the frame into a free buffer.
func (p *replayPort) fill() dataplane.Slot {
	buf := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	r := p.replay
	n := copy(r.region.Buffer(buf)[:p.cfg.BufSize], p.frame)
	p.frame = p.frame[n:]
	r.when[buf], r.now = p.when, p.when
	s := dataplane.Slot{Buf: buf, Len: uint16(n)}
	if len(p.frame) > 0 {
		s.Flags = dataplane.More
	}
	return s
}

func (p replayRX) Release(free []uint32) {
	p.replay.mu.Lock()
	defer p.replay.mu.Unlock()
	p.free = append(p.free, free...)
}

type replayTX struct{ *replayPort }

func (p replayTX) Region() *dataplane.Region { return p.replay.region }

func (p replayTX) Send(from *dataplane.Region, s []dataplane.Slot) int {
	r := p.replay
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.out == nil {
		return len(s)
	}
	for i := 0; i < len(s); i++ {
		when := r.now
		if from == r.region {
			when = r.when[s[i].Buf]
		}
		p.scratch = append(p.scratch[:0], from.Bytes(&s[i])...)
		for s[i].Flags&dataplane.More != 0 && i+1 < len(s) {
			i++
			p.scratch = append(p.scratch, from.Bytes(&s[i])...)
		}
		for len(p.scratch) < p.cfg.MinFrame {
			p.scratch = append(p.scratch, 0)
		}
		if err := p.out.Write(when, p.scratch); err != nil {
			r.fail(p.cfg.Name, fmt.Errorf("%s: %w", p.outFile.Name(), err))
			break // what is left is lost
		}
	}
	return len(s)
}

type replayDescriptor struct{ *replayPort }

func (d replayDescriptor) FD() int { return -1 }

func (d replayDescriptor) Before(bool) (int16, error) {
	d.replay.mu.Lock()
	defer d.replay.mu.Unlock()
	if d.in != nil {
		return pollIn, nil
	}
	return 0, nil
}

func (d replayDescriptor) After(int16) error { return nil }

// LinkUp implements dataplane.Device.
func (p *replayPort) LinkUp() bool { return true }

// Counters implements dataplane.Device.
func (p *replayPort) Counters(q int) dataplane.DeviceCounters {
	if q != 0 {
		return dataplane.DeviceCounters{}
	}
	p.replay.mu.Lock()
	defer p.replay.mu.Unlock()
	return p.lost
}

// Close implements dataplane.Device: it ends both captures.
func (p *replayPort) Close() error {
	var errs []error
	if p.in != nil {
		errs = append(errs, p.in.Close())
		p.in = nil
	}
	if p.outFile != nil {
		errs = append(errs, p.out.Flush(), p.outFile.Close())
		p.outFile, p.out = nil, nil
	}
	p.replay.region.Give(p.free)
	p.free = nil
	return errors.Join(errs...)
}
