//go:build netmap

package netmap

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"nmfwd/config"
	"nmfwd/dataplane"
	"nmfwd/dataplane/netmap"
	"nmfwd/dataplane/netmap/abi"
	"nmfwd/test/conformance"
)

// A pipes is a conformance.Router whose ports are pipes, named as the
// configuration has them; the test is at their other ends.
type pipes struct {
	*conformance.Stepped
	t     *testing.T
	ports map[string]*dataplane.Port
	far   map[string]*rawEnd
	in    map[string]uint64 // frames received by each port at the last Collect
	sent  map[string]uint64 // frames given to each port since
	stuck map[string]int    // frames that fill the pipe of a port
}

// newPipes makes a router between the pipes of a parent called name, which no
// other open pipe has: each router has a region of its own.
func newPipes(t *testing.T, name, text string) *pipes {
	t.Helper()
	cfg, err := config.Parse("routes.conf", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p := &pipes{
		t: t, ports: make(map[string]*dataplane.Port), far: make(map[string]*rawEnd),
		in: make(map[string]uint64), sent: make(map[string]uint64), stuck: make(map[string]int),
	}
	var near []string
	for i := range cfg.Devices() {
		near = append(near, fmt.Sprintf("%s}%d", name, i+1))
	}
	ports := open(t, configs(near...))
	for i, c := range cfg.Devices() {
		ports[i].Name = c.Name
		if c.MAC != nil {
			ports[i].MAC = c.MAC
		}
		p.ports[c.Name] = ports[i]
		p.far[c.Name] = newRawEnd(t, fmt.Sprintf("%s{%d", name, i+1))
	}
	if p.Stepped, err = conformance.NewStepped(text, ports); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// MinFrame implements conformance.Padder.
func (p *pipes) MinFrame(port string) int { return p.ports[port].MinFrame }

// Do implements conformance.Router. A pipe has no carrier to lose.
func (p *pipes) Do(e conformance.Event) error {
	switch e.Kind {
	case conformance.LinkDown, conformance.LinkUp:
		return fmt.Errorf("a pipe has no carrier: %w", errors.ErrUnsupported)
	case conformance.TXFull:
		return p.fill(e.Port)
	}
	return p.Stepped.Do(e)
}

// fill sends by a port until nothing more fits the pipe, which is not read
// before the next Collect is done.
func (p *pipes) fill(port string) error {
	const size = 60
	q := p.ports[port].Queues[0]
	other := dataplane.NewRegion("other", make([]byte, size), size, nil)
	for before := -1; before < p.stuck[port]; poll(p.t, 0, q.Descriptor) {
		before = p.stuck[port]
		for q.TX.Send(other, []dataplane.Slot{{Len: size}}) == 1 {
			p.stuck[port]++
		}
	}
	if p.stuck[port] == 0 {
		return fmt.Errorf("port %s: nothing fits the pipe", port)
	}
	return nil
}

// Inject implements conformance.Router.
func (p *pipes) Inject(port string, frame []byte) error {
	e := p.far[port]
	for deadline := time.Now().Add(patience); e.full(); {
		if time.Now().After(deadline) {
			return fmt.Errorf("port %s: the pipe is full", port)
		}
		if err := e.sync(); err != nil {
			return err
		}
		p.Step()
	}
	p.sent[port]++
	return e.send(frame)
}

// Collect steps the router until it has received what was sent and done all
// that there was to do, and takes what arrived at the far ends.
func (p *pipes) Collect() (map[string][][]byte, error) {
	out := make(map[string][][]byte)
	if err := p.settle(out); err != nil || len(p.stuck) == 0 {
		return out, err
	}
	stuck := p.stuck
	p.stuck = make(map[string]int)
	if err := p.settle(out); err != nil {
		return nil, err
	}
	for port, n := range stuck {
		if len(out[port]) < n {
			return nil, fmt.Errorf("port %s: %d frames arrived of %d that filled the pipe", port, len(out[port]), n)
		}
		out[port] = out[port][n:]
	}
	return out, nil
}

// settle adds to out what Collect returns, but leaves alone the far ends of
// pipes that are to stay full.
func (p *pipes) settle(out map[string][][]byte) error {
	deadline := time.Now().Add(patience)
	for quiet := 0; quiet < 3; {
		quiet++
		if p.Step() > 0 {
			quiet = 0
		}
		for name, e := range p.far {
			if err := e.sync(); err != nil {
				return err
			}
			if p.stuck[name] > 0 {
				continue
			}
			if f := e.take(); len(f) > 0 {
				out[name] = append(out[name], f...)
				quiet = 0
			}
		}
		c, err := p.Counters()
		if err != nil {
			return err
		}
		for name := range p.ports {
			if got := c[name+" receive"] - p.in[name]; got < p.sent[name] {
				quiet = 0
				if time.Now().After(deadline) {
					return fmt.Errorf("port %s: %d frames of %d received", name, got, p.sent[name])
				}
			}
		}
		if quiet == 3 {
			for name := range p.ports {
				p.in[name], p.sent[name] = c[name+" receive"], 0
			}
		}
	}
	return nil
}

// A rawEnd is an end of a pipe without the backend, which pads what it sends:
// here frames of any length leave as they are.
type rawEnd struct {
	fd      int
	bufs    []byte // of the region, from buffer 0 on
	tx, rx  *abi.Ring
	txSlots []abi.Slot
	rxSlots []abi.Slot
}

// newRawEnd opens an end of a pipe for the time of the test.
func newRawEnd(t *testing.T, name string) *rawEnd {
	t.Helper()
	e := &rawEnd{fd: openDevice(t)}
	reg := abi.Register{Mode: abi.ModeAllNIC}
	if err := control(e.fd, abi.API, abi.ReqRegister, name, &reg); err != nil {
		t.Fatalf("register %s: %v", name, err)
	}
	mem, err := netmap.System().Map(e.fd, int(reg.MemSize))
	if err != nil {
		t.Fatalf("map %s: %v", name, err)
	}
	t.Cleanup(func() {
		if err := netmap.System().Unmap(mem); err != nil {
			t.Error(err)
		}
	})
	f, err := abi.IfAt(mem, reg.Offset)
	if err != nil {
		t.Fatal(err)
	}
	offsets, err := abi.Offsets(mem, reg.Offset)
	if err != nil {
		t.Fatal(err)
	}
	ring := func(dir int) (*abi.Ring, []abi.Slot) {
		at := int(reg.Offset) + offsets[f.Pos(dir, 0)]
		r, slots, err := abi.RingAt(mem, at)
		if err != nil {
			t.Fatal(err)
		}
		base, _, err := abi.Buffers(mem, at, r)
		if err != nil {
			t.Fatal(err)
		}
		e.bufs = mem[base:]
		return r, slots
	}
	e.tx, e.txSlots = ring(abi.DirTX)
	e.rx, e.rxSlots = ring(abi.DirRX)
	return e
}

// sync gives the rings to the kernel.
func (e *rawEnd) sync() error {
	return errors.Join(netmap.System().TXSync(e.fd), netmap.System().RXSync(e.fd))
}

// full reports whether no frame can be sent before a sync.
func (e *rawEnd) full() bool { return e.tx.Head == e.tx.Tail }

// send queues a frame, for which there is room.
func (e *rawEnd) send(frame []byte) error {
	if len(frame) > int(e.tx.BufSize) {
		return fmt.Errorf("frame of %d bytes: longer than a buffer", len(frame))
	}
	s := &e.txSlots[e.tx.Head]
	s.Len = uint16(copy(e.bufs[int(s.BufIdx)*int(e.tx.BufSize):], frame))
	e.tx.Head = (e.tx.Head + 1) % uint32(len(e.txSlots))
	e.tx.Cur = e.tx.Head
	return nil
}

// take returns what has arrived at the last sync.
func (e *rawEnd) take() [][]byte {
	var frames [][]byte
	for e.rx.Head != e.rx.Tail {
		s := &e.rxSlots[e.rx.Head]
		frames = append(frames, slices.Clone(e.bufs[int(s.BufIdx)*int(e.rx.BufSize):][:s.Len]))
		e.rx.Head = (e.rx.Head + 1) % uint32(len(e.rxSlots))
	}
	e.rx.Cur = e.rx.Head
	return frames
}

// TestConformance runs the conformance cases over pipes, which have no host.
func TestConformance(t *testing.T) {
	routers := 0
	conformance.Run(t, []conformance.Host{conformance.HostOff}, func(t *testing.T, config string, _ conformance.Host) conformance.Router {
		routers++
		return newPipes(t, fmt.Sprintf("cnf%d", routers), config)
	})
}
