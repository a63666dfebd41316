package conformance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"nmfwd/config"
	"nmfwd/dataplane"
	"nmfwd/dataplane/netmap"
	"nmfwd/dataplane/netmap/fake"
)

// A cards is a Router over the netmap backend on a fake kernel, whose cards the
// test delivers frames to, whatever their address. Ports with a host have host
// rings.
type cards struct {
	*Stepped
	kernel *fake.Kernel
	cards  map[string]*fake.Card
	stuck  map[string]int // frames that fill a card's TX ring
}

func newCards(t *testing.T, text string) *cards {
	t.Helper()
	cfg, err := config.Parse("routes.conf", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	k := fake.New(fake.Params{Ifs: 16, Rings: 32, Bufs: 4096, BufSize: 2048})
	k.Polls = false
	c := &cards{kernel: k, cards: make(map[string]*fake.Card), stuck: make(map[string]int)}
	var cfgs []dataplane.PortConfig
	for _, p := range cfg.Devices() {
		c.cards[p.Name] = k.AddCard(fake.Card{Name: p.Name, RXRings: 1, TXRings: 1, RXSlots: 256, TXSlots: 256,
			Interface: netmap.Interface{MAC: p.MAC, MTU: max(p.MTU, 1500), Up: true}, Carrier: true})
		cfgs = append(cfgs, dataplane.PortConfig{
			Name: p.Name, Host: p.Host,
			Owners: dataplane.Owners{RX: []int{0}, TX: []int{0}},
		})
	}
	ports, err := netmap.Open(cfgs, netmap.Options{Kernel: k, LockDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, p := range slices.Backward(ports) {
			if err := p.Device.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := k.Faults(); err != nil {
			t.Error(err)
		}
	})
	if c.Stepped, err = NewStepped(text, ports); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func (c *cards) Inject(port string, frame []byte) error {
	k := c.cards[port]
	if k == nil {
		return fmt.Errorf("no port %s", port)
	}
	k.Deliver(0, frame)
	return nil
}

func (c *cards) Collect() (map[string][][]byte, error) {
	c.settle()
	for name := range c.stuck {
		c.cards[name].Complete = nil
	}
	c.settle()
	out := make(map[string][][]byte)
	for name, k := range c.cards {
		if n := k.Waiting(0); n > 0 {
			return nil, fmt.Errorf("port %s: %d frames were not received", name, n)
		}
		out[name] = k.Sent(0)[c.stuck[name]:]
	}
	clear(c.stuck)
	return out, nil
}

// settle lets the router do all that there is to do.
func (c *cards) settle() {
	for quiet := 0; quiet < 3; quiet++ {
		if c.Step() > 0 {
			quiet = 0
		}
	}
}

// fill sends by a port until nothing more fits its TX ring, whose slots the card
// does not give back before the next Collect.
func (c *cards) fill(port string) error {
	k, q := c.cards[port], c.queue(port)
	k.Complete = func(int) int { return 0 }
	for before := -1; before < c.stuck[port]; c.Forwarder.Workers()[0].Poll(0) {
		before = c.stuck[port]
		c.stuck[port] += fillRing(q)
	}
	if c.stuck[port] == 0 {
		return fmt.Errorf("port %s: nothing fits the ring", port)
	}
	return nil
}

func (c *cards) ToHost() map[string][][]byte {
	out := make(map[string][][]byte)
	for name, k := range c.cards {
		out[name] = k.ToHost()
	}
	return out
}

// Do implements Router. The backend hears of links by a goroutine of its own.
func (c *cards) Do(e Event) error {
	switch e.Kind {
	case LinkDown, LinkUp:
	case TXFull:
		return c.fill(e.Port)
	default:
		return c.Stepped.Do(e)
	}
	up := e.Kind == LinkUp
	c.cards[e.Port].SetCarrier(up)
	for end := time.Now().Add(10 * time.Second); c.device(e.Port).Device.LinkUp() != up; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("port %s: link has not changed", e.Port)
		}
	}
	c.Look()
	return nil
}

// TestNetmap runs the table over netmap on a fake kernel.
func TestNetmap(t *testing.T) {
	Run(t, []Host{HostOff, HostRings}, nil, func(t *testing.T, config string, _ Host, _ []string) Router {
		t.Parallel() // to open a card is to wait for its link
		return newCards(t, config)
	})
}
