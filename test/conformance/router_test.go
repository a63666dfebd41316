package conformance

import (
	"fmt"
	"log/slog"
	"testing"

	"nmfwd/cmd/nmfwd/setup"
	"nmfwd/config"
	"nmfwd/dataplane"
	"nmfwd/dataplane/control"
	"nmfwd/fib/neigh"
)

func parse(t *testing.T, text string) *config.Config {
	t.Helper()
	cfg, err := config.Parse("routes.conf", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// A stepped is a router with one worker that the test steps, and control that
// runs when the test says so.
type stepped struct {
	spec   *control.Spec
	router *dataplane.Router
	ctl    *control.Control
	asleep bool // control does not run while there are frames to forward
}

func (r *stepped) start(t *testing.T, cfg *config.Config, ports []*dataplane.Port) {
	t.Helper()
	var err error
	if r.spec, err = setup.Spec(cfg, ports); err != nil {
		t.Fatal(err)
	}
	if r.router, err = dataplane.NewRouter(ports, 1, dataplane.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.router.Close)
	if err := r.control(); err != nil {
		t.Fatal(err)
	}
}

// control starts control anew, which looks at the links.
func (r *stepped) control() (err error) {
	r.ctl, err = control.New(r.router, r.spec, slog.New(slog.DiscardHandler))
	return err
}

// step lets the worker and control do what there is to do, once, and returns
// how much it was.
func (r *stepped) step() int {
	w := r.router.Workers()[0]
	n := w.Step(0)
	if !r.asleep || n == 0 {
		r.ctl.HandlePunts()
		n += w.Step(0) // what control answered
	}
	w.Poll(0)
	return n
}

func (r *stepped) Counters() (map[string]uint64, error) {
	var s dataplane.Snapshot
	r.router.Snapshot(&s)
	c := make(map[string]uint64)
	for i, p := range s.Ports {
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
		for _, k := range []neigh.Conflict{neigh.StaticConflict, neigh.OwnAddressConflict} {
			add(r.ctl.Neighbors().Conflicts(uint16(i), k), `neighbor_conflicts{kind="%v"}`, k)
		}
	}
	return c, nil
}
