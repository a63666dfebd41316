//go:build netmap

package netmap

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"nmfwd/config"
	"nmfwd/dataplane"
	"nmfwd/test/conformance"
)

// A pipes is a conformance.Router whose ports are pipes, named as the
// configuration has them; the test is at their other ends.
type pipes struct {
	*conformance.Stepped
	t     *testing.T
	ports map[string]*dataplane.Port
	far   map[string]*end
	in    map[string]uint64 // frames received by each port at the last Collect
	sent  map[string]uint64 // frames given to each port since
}

func newPipes(t *testing.T, text string) *pipes {
	t.Helper()
	cfg, err := config.Parse("routes.conf", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p := &pipes{t: t, ports: make(map[string]*dataplane.Port), far: make(map[string]*end), in: make(map[string]uint64), sent: make(map[string]uint64)}
	var near []string
	for i := range cfg.Devices() {
		near = append(near, fmt.Sprintf("cnf}%d", i+1))
	}
	ports := open(t, configs(near...))
	for i, c := range cfg.Devices() {
		ports[i].Name = c.Name
		if c.MAC != nil {
			ports[i].MAC = c.MAC
		}
		p.ports[c.Name] = ports[i]
		p.far[c.Name] = newEnd(t, open(t, spare(configs(fmt.Sprintf("cnf{%d", i+1))))[0])
	}
	if p.Stepped, err = conformance.NewStepped(text, ports); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// MinFrame implements conformance.Padder.
func (p *pipes) MinFrame(port string) int { return p.ports[port].MinFrame }

func (p *pipes) Inject(port string, frame []byte) error {
	e := p.far[port]
	r := e.q.TX.Region()
	s := []dataplane.Slot{{Buf: e.bufs[0], Len: uint16(len(frame))}}
	copy(r.Buffer(e.bufs[0]), frame)
	for deadline := time.Now().Add(patience); e.q.TX.Send(r, s) == 0; poll(p.t, time.Millisecond, e.q.Descriptor) {
		if time.Now().After(deadline) {
			return fmt.Errorf("port %s: the pipe is full", port)
		}
		p.Step()
	}
	e.bufs[0] = s[0].Buf
	p.sent[port]++
	return nil
}

// Collect steps the router until it has received what was sent and done all
// that there was to do, and takes what arrived at the far ends.
func (p *pipes) Collect() (map[string][][]byte, error) {
	out := make(map[string][][]byte)
	deadline := time.Now().Add(patience)
	for quiet := 0; quiet < 3; {
		for _, e := range p.far {
			poll(p.t, 0, e.q.Descriptor)
		}
		quiet++
		if p.Step() > 0 {
			quiet = 0
		}
		for name, e := range p.far {
			if f := e.take(); len(f) > 0 {
				out[name] = append(out[name], f...)
				quiet = 0
			}
		}
		c, err := p.Counters()
		if err != nil {
			return nil, err
		}
		for name := range p.ports {
			if got := c[name+" receive"] - p.in[name]; got < p.sent[name] {
				quiet = 0
				if time.Now().After(deadline) {
					return nil, fmt.Errorf("port %s: %d frames of %d received", name, got, p.sent[name])
				}
			}
		}
		if quiet == 3 {
			for name := range p.ports {
				p.in[name], p.sent[name] = c[name+" receive"], 0
			}
		}
	}
	return out, nil
}

// take returns what the end has received.
func (e *end) take() [][]byte {
	r := e.q.RX.Region()
	s := e.slots[:e.q.RX.Recv(e.slots[:])]
	var frames [][]byte
	var free []uint32
	for i := range s {
		frames = append(frames, slices.Clone(r.Bytes(&s[i])))
		free = append(free, s[i].Buf)
	}
	e.q.RX.Release(free)
	return frames
}

// TestConformance runs the conformance cases over pipes, which have no host.
func TestConformance(t *testing.T) {
	conformance.Run(t, []conformance.Host{conformance.HostOff}, func(t *testing.T, config string, _ conformance.Host) conformance.Router {
		return newPipes(t, config)
	})
}
