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
// configuration has them; the test is at their other ends. Ports whose links go
// down are cards, for a pipe has none, and the test has the cards joined to them.
type pipes struct {
	*conformance.Stepped
	t     *testing.T
	ports map[string]*dataplane.Port
	cards map[string][2]string // the router's card and the test's, by port
	far   map[string]*rawEnd
	out   map[string]uint64 // frames taken from each far end
	in    map[string]uint64 // frames received by each port at the last Collect
	sent  map[string]uint64 // frames given to each port since
	stuck map[string]int    // frames that fill the pipe of a port
}

// newPipes makes a router between the pipes of a parent called name, which no
// other open pipe has: each router has a region of its own. The ports called links
// are the first ones of pairs of cards.
func newPipes(t *testing.T, name, text string, links []string, pairs [][2]string) *pipes {
	t.Helper()
	cfg, err := config.Parse("routes.conf", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p := &pipes{
		t: t, ports: make(map[string]*dataplane.Port), cards: make(map[string][2]string), far: make(map[string]*rawEnd), out: make(map[string]uint64),
		in: make(map[string]uint64), sent: make(map[string]uint64), stuck: make(map[string]int),
	}
	for i, l := range links {
		p.cards[l] = pairs[i]
		for _, c := range pairs[i] {
			listenToAll(t, c)
		}
	}
	var near []dataplane.PortConfig
	for i, c := range cfg.Devices() {
		if pair, ok := p.cards[c.Name]; ok {
			near = append(near, cardConfig(t, pair[0], false))
		} else {
			near = append(near, configs(fmt.Sprintf("%s}%d", name, i+1))...)
		}
	}
	ports := open(t, near)
	for i, c := range cfg.Devices() {
		ports[i].Name = c.Name
		if c.MAC != nil {
			ports[i].MAC = c.MAC
		}
		p.ports[c.Name] = ports[i]
		end := fmt.Sprintf("%s{%d", name, i+1)
		if pair, ok := p.cards[c.Name]; ok {
			end = pair[1]
		}
		p.far[c.Name] = newRawEnd(t, end)
	}
	for l, pair := range p.cards {
		t.Cleanup(func() {
			if err := setUp(pair[0], true); err != nil { // what is down is not closed in time
				t.Error(err)
			}
		})
		p.waitLink(l, true)
	}
	if p.Stepped, err = conformance.NewStepped(text, ports); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// MinFrame implements conformance.Padder.
func (p *pipes) MinFrame(port string) int { return p.ports[port].MinFrame }

// waitLink waits until the link of a card is up at both ends, or down, and stays so:
// some cards take a link back once, and a port that has lost its carrier may not
// know yet that it is down, when calls would wait until it is up.
func (p *pipes) waitLink(port string, up bool) {
	p.t.Helper()
	const settled = time.Second
	start := time.Now()
	for since := start; ; time.Sleep(10 * time.Millisecond) {
		farUp, carrier, err := netmap.System().Link(p.cards[port][1])
		if err != nil {
			p.t.Fatal(err)
		}
		if p.ports[port].Device.LinkUp() != up || up && !(farUp && carrier) {
			since = time.Now()
		} else if time.Since(since) >= settled {
			return
		}
		if time.Since(start) > patience {
			p.t.Fatalf("port %s: the link has not become %t: %v; that of %s has a carrier: %t", port, up, p.ports[port].Device, p.cards[port][1], carrier)
		}
	}
}

// Do implements conformance.Router.
func (p *pipes) Do(e conformance.Event) error {
	switch e.Kind {
	case conformance.LinkDown, conformance.LinkUp:
		up := e.Kind == conformance.LinkUp
		if err := setUp(p.cards[e.Port][0], up); err != nil {
			return err
		}
		p.waitLink(e.Port, up)
		p.Look()
		return nil
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
				p.out[name] += uint64(len(f))
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
		for name := range p.cards { // a wire takes its time
			if got, want := p.out[name], c[name+" transmit"]; got < want {
				quiet = 0
				if time.Now().After(deadline) {
					return fmt.Errorf("port %s: %d frames arrived of %d that were sent", name, got, want)
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
	fd   int
	bufs []byte // of the region, from buffer 0 on
	tx   rawRing
	rx   []rawRing
}

type rawRing struct {
	*abi.Ring
	slots []abi.Slot
}

// newRawEnd opens an end of a pipe, or a card, for the time of the test.
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
	ring := func(dir, n int) rawRing {
		at := int(reg.Offset) + offsets[f.Pos(dir, n)]
		r, slots, err := abi.RingAt(mem, at)
		if err != nil {
			t.Fatal(err)
		}
		base, _, err := abi.Buffers(mem, at, r)
		if err != nil {
			t.Fatal(err)
		}
		e.bufs = mem[base:]
		return rawRing{r, slots}
	}
	e.tx = ring(abi.DirTX, 0)
	for n := range int(reg.RXRings) {
		e.rx = append(e.rx, ring(abi.DirRX, n))
	}
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
	s := &e.tx.slots[e.tx.Head]
	s.Len = uint16(copy(e.bufs[int(s.BufIdx)*int(e.tx.BufSize):], frame))
	e.tx.Head = (e.tx.Head + 1) % uint32(len(e.tx.slots))
	e.tx.Cur = e.tx.Head
	return nil
}

// take returns what has arrived at the last sync.
func (e *rawEnd) take() [][]byte {
	var frames [][]byte
	for _, r := range e.rx {
		for r.Head != r.Tail {
			s := &r.slots[r.Head]
			frames = append(frames, slices.Clone(e.bufs[int(s.BufIdx)*int(r.BufSize):][:s.Len]))
			r.Head = (r.Head + 1) % uint32(len(r.slots))
		}
		r.Cur = r.Head
	}
	return frames
}

// TestConformance runs the conformance cases over pipes, which have no host. Ports
// whose links go down are cards: cases that take down more links than there are
// pairs of cards do not run here. Package conformance has them on a fake kernel.
func TestConformance(t *testing.T) {
	pairs := pairs()
	if len(pairs) > 0 {
		joined(t)
	}
	all, err := conformance.All()
	if err != nil {
		t.Fatal(err)
	}
	not := make(map[string]string)
	for _, c := range all {
		if n := len(c.Links()); n > len(pairs) {
			not[c.Name] = fmt.Sprintf("the links of %d ports go down, and NMFWD_TEST_PORTS names %d pairs of cards", n, len(pairs))
		}
	}
	routers := 0
	conformance.Run(t, []conformance.Host{conformance.HostOff}, not, func(t *testing.T, config string, _ conformance.Host, links []string) conformance.Router {
		routers++
		return newPipes(t, fmt.Sprintf("cnf%d", routers), config, links, pairs)
	})
}
