package conformance

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"nmfwd/config"
	"nmfwd/control"
	"nmfwd/dataplane"
	"nmfwd/neigh"
	"nmfwd/router"
	"nmfwd/wire/icmp"
)

// A Stepped is the part of a Router that is the same over all ports: one worker
// and control, which do something when they are told and at no other time.
type Stepped struct {
	*router.Router
	text   string
	past   map[string]uint64 // counters of controls that are gone
	now    time.Duration
	next   time.Duration // when control has something to do by itself
	asleep bool          // control does nothing while there are frames to forward
	held   bool          // the worker makes no system calls: what it sent stays in its rings
}

// NewStepped puts a router between open ports, all of worker 0, whose names are
// those of the configuration. Close it before the ports.
func NewStepped(text string, ports []*dataplane.Port) (*Stepped, error) {
	cfg, err := config.Parse("routes.conf", []byte(text))
	if err != nil {
		return nil, err
	}
	r, err := router.New(cfg, ports, router.Options{})
	if err != nil {
		return nil, err
	}
	return newStepped(text, r), nil
}

func newStepped(text string, r *router.Router) *Stepped {
	return &Stepped{Router: r, text: text, past: make(map[string]uint64)}
}

// load makes text the configuration.
func (r *Stepped) load(text string) error {
	cfg, err := config.Parse("routes.conf", []byte(text))
	if err != nil {
		return err
	}
	if err := r.Reload(context.Background(), cfg); err != nil {
		return err
	}
	r.text, r.next = text, r.Next()
	return nil
}

// Restart starts control anew.
func (r *Stepped) Restart() error {
	r.controlCounters(r.past)
	cfg, err := config.Parse("routes.conf", []byte(r.text))
	if err != nil {
		return err
	}
	spec, err := router.Spec(cfg, r.Forwarder.Ports())
	if err != nil {
		return err
	}
	r.Control, err = control.New(r.Forwarder, spec, slog.New(slog.DiscardHandler))
	r.next = r.now
	return err
}

// Look lets control see what happened to the links.
func (r *Stepped) Look() { r.next = r.Tick(r.now) }

// Begin implements Router.
func (r *Stepped) Begin() error {
	r.now += time.Hour
	r.next = r.now // what was due meanwhile is late, not done in the past
	r.asleep = false
	if r.Control.Neighbors().Len() > len(r.Config().Neighbors) {
		if err := r.Restart(); err != nil {
			return err
		}
	}
	r.pass(announced)
	return nil
}

// announced is how long control announces addresses after its start: less than
// it asks for gateways.
const announced = 2500 * time.Millisecond

// pass lets time pass, and what is due happen when it is.
func (r *Stepped) pass(d time.Duration) {
	for end := r.now + d; r.now < end; {
		r.now = min(end, max(r.now, r.next))
		for r.Step() > 0 {
		}
	}
}

// Do implements Router, for the events that do not concern ports.
func (r *Stepped) Do(e Event) error {
	switch e.Kind {
	case Wait:
		r.pass(e.Wait)
	case ControlAsleep:
		r.asleep = true
	case Reload:
		return r.load(e.Config)
	case Start:
		return r.Restart()
	default:
		return fmt.Errorf("the ports cannot be brought to %s", e.Kind)
	}
	return nil
}

// Step lets the worker and control do what there is to do, once, and returns
// how much it was.
func (r *Stepped) Step() int {
	var m router.Mode
	if r.asleep {
		m |= router.LateControl
	}
	if r.held {
		m |= router.NoCalls
	}
	n := r.Router.Step(r.now, m)
	r.next = r.Next()
	return n
}

// device returns a port.
func (r *Stepped) device(port string) *dataplane.Port {
	ports := r.Forwarder.Ports()
	return ports[slices.IndexFunc(ports, func(p *dataplane.Port) bool { return p.Name == port })]
}

// queue returns the queue of a port.
func (r *Stepped) queue(port string) *dataplane.Queue {
	return &r.device(port).Queues[0]
}

// fillRing sends by a queue until nothing more fits, and returns the number of
// frames that did.
func fillRing(q *dataplane.Queue) (n int) {
	const size = 60
	other := dataplane.NewRegion("other", make([]byte, size), size, nil)
	for q.TX.Send(other, []dataplane.Slot{{Len: size}}) == 1 {
		n++
	}
	return n
}

// Counters implements Router.
func (r *Stepped) Counters() (map[string]uint64, error) {
	var s dataplane.Snapshot
	r.Forwarder.Snapshot(&s)
	c := make(map[string]uint64)
	for _, p := range s.Ports {
		add := func(v uint64, format string, args ...any) {
			c[p.Info.Name+" "+fmt.Sprintf(format, args...)] += v
		}
		for _, q := range p.RX {
			add(q.Packets, "receive")
			add(q.Bytes, "receive_bytes")
			add(q.Forwarded4, `forwarded{family="ipv4"}`)
			add(q.Forwarded6, `forwarded{family="ipv6"}`)
			add(q.ToHost, "to_host")
			for k, v := range q.Punted {
				add(v, `punted{kind="%v"}`, dataplane.Kind(k))
			}
			for r, v := range q.Dropped {
				add(v, `dropped{reason="%v"}`, dataplane.Reason(r))
			}
		}
		for _, q := range p.TX {
			add(q.Packets, "transmit")
			add(q.Bytes, "transmit_bytes")
		}
	}
	maps.Copy(c, r.past)
	r.controlCounters(c)
	return c, nil
}

// controlCounters adds the counters of control to c, but for messages about which
// nothing is to be said.
func (r *Stepped) controlCounters(c map[string]uint64) {
	for i, name := range r.Names() {
		add := func(v uint64, format string, args ...any) {
			if v > 0 {
				c[name+" "+fmt.Sprintf(format, args...)] += v
			}
		}
		for _, k := range []neigh.Conflict{neigh.StaticConflict, neigh.OwnAddressConflict} {
			add(r.Control.Neighbors().Conflicts(uint16(i), k), `neighbor_conflicts{kind="%v"}`, k)
		}
		m := r.Control.Messages(i)
		for f, family := range []string{"ipv4", "ipv6"} {
			for k, v := range m.Sent[f] {
				add(v, `icmp_sent{family=%q,type="%v"}`, family, icmp.Kind(k))
			}
			for k, v := range m.Suppressed[f] {
				if icmp.Reason(k) == icmp.Silent {
					continue
				}
				add(v, `icmp_suppressed{family=%q,reason="%v"}`, family, icmp.Reason(k))
			}
		}
	}
}

// Run runs all cases on routers that open makes, with the hosts that there are
// on the ports; links are those that go down. Cases of one configuration share a router, but for those that
// leave it other than it was, which have one more open beside it. What open made
// is closed at the end of the test that it is given, which it may make parallel.
// Not are the cases that these routers cannot run, by name, with the reason: each
// other one has to run.
func Run(t *testing.T, hosts []Host, not map[string]string, open func(t *testing.T, config string, h Host, links []string) Router) {
	cases, err := All()
	if err != nil {
		t.Fatal(err)
	}
	var names []string // of configurations
	by := make(map[string][]*Case)
	for i := range cases {
		c := &cases[i]
		if by[c.Router] == nil {
			names = append(names, c.Router)
		}
		by[c.Router] = append(by[c.Router], c)
	}
	for name, reason := range not {
		if !slices.ContainsFunc(cases, func(c Case) bool { return c.Name == name }) {
			t.Errorf("there is no case %s", name)
		}
		t.Logf("not run: %s: %s", name, reason)
	}
	for _, h := range hosts {
		t.Run(h.String(), func(t *testing.T) {
			for _, name := range names {
				t.Run(name, func(t *testing.T) {
					shared := open(t, by[name][0].ConfigFor(h), h, nil)
					for _, c := range by[name] {
						if c.OnlyOff && h != HostOff || not[c.Name] != "" {
							continue
						}
						t.Run(c.Name, func(t *testing.T) {
							r := shared
							if c.breaks() {
								r = open(t, c.ConfigFor(h), h, c.Links())
							}
							if err := Check(r, c, h); err != nil {
								t.Error(err)
							}
						})
					}
				})
			}
		})
	}
}
