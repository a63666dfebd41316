package show

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"nmfwd/control"
	"nmfwd/dataplane"
	"nmfwd/fib"
	"nmfwd/neigh"
)

// A Status is what the daemon knows of itself.
type Status struct {
	Version   string    `json:"version"`
	GoVersion string    `json:"go_version"`
	PID       int       `json:"pid"`
	Started   time.Time `json:"started"`
	Config    string    `json:"config"` // the file

	// Of the configuration in use, and of attempts to replace it.
	Loaded        time.Time `json:"loaded"`
	Reloads       uint64    `json:"reloads"`
	ReloadsFailed uint64    `json:"reloads_failed"`
	ReloadError   string    `json:"reload_error,omitempty"` // of the last attempt
}

// A statusDoc is Status with the sizes of things.
type statusDoc struct {
	Status
	Uptime    float64                   `json:"uptime_seconds"`
	Workers   int                       `json:"workers"`
	Ports     int                       `json:"ports"` // devices
	PortsUp   int                       `json:"ports_up"`
	Routes    map[string]map[string]int `json:"routes"`    // by family and origin
	Neighbors map[string]map[string]int `json:"neighbors"` // by family and state
	FIBBytes  map[string]int            `json:"fib_bytes"` // by family
}

// status answers with what nmfwd is and does, in short.
func (a *answer) status(*Request) error {
	var s dataplane.Snapshot
	a.source.Snapshot(&s)
	var c control.Snapshot
	a.source.Counts(&c)
	d := statusDoc{
		Status: a.source.Status(), Workers: len(s.Workers), Ports: len(s.Ports),
		Routes: map[string]map[string]int{}, Neighbors: map[string]map[string]int{}, FIBBytes: map[string]int{},
	}
	for f, family := range families {
		d.FIBBytes[family] = c.FIBBytes[f]
		d.Routes[family], d.Neighbors[family] = map[string]int{}, map[string]int{}
		for o, n := range c.Routes[f] {
			d.Routes[family][fib.Origin(o).String()] = n
		}
		for s, n := range c.Neighbors[f] {
			d.Neighbors[family][neigh.State(s).String()] = n
		}
	}
	d.Uptime = time.Since(d.Started).Seconds()
	for i := range s.Ports {
		if s.Ports[i].Up {
			d.PortsUp++
		}
	}
	if a.json {
		return a.item(d)
	}
	a.head()
	line := func(name, format string, args ...any) {
		a.table.add(a.out, []string{name, fmt.Sprintf(format, args...)})
	}
	at := func(t time.Time) string { return t.Format("2006-01-02 15:04:05 -0700") }
	line("version", "%s, %s", d.Version, d.GoVersion)
	line("process", "%d, since %s, for %v", d.PID, at(d.Started), time.Since(d.Started).Round(time.Second))
	line("configuration", "%s, loaded %s", d.Config, at(d.Loaded))
	line("reloads", "%d, and %d refused", d.Reloads, d.ReloadsFailed)
	if d.ReloadError != "" {
		line("last reload", "refused, the configuration before it stays in use: %s", d.ReloadError)
	}
	line("workers", "%d", d.Workers)
	line("ports", "%d, %d with a link", d.Ports, d.PortsUp)
	for f, family := range families {
		list := func(what string, counts []int, name func(int) string) {
			text := ""
			for i, n := range counts {
				if n > 0 {
					text += ", " + strconv.Itoa(n) + " " + name(i)
				}
			}
			if text != "" {
				line(what+" "+family, "%s", text[2:])
			}
		}
		list("routes", c.Routes[f][:], func(i int) string { return fib.Origin(i).String() })
		list("neighbors", c.Neighbors[f][:], func(i int) string { return neigh.State(i).String() })
	}
	return nil
}

// reload has the configuration read again and waits for the end of that.
func (a *answer) reload(*Request) error {
	var said string
	err := a.await(func(ctx context.Context) (err error) {
		said, err = a.source.Reload(ctx)
		return err
	})
	switch {
	case errors.Is(err, errGone):
		return err
	case err != nil:
		return &Error{a.source.Code(err), err.Error()}
	case a.json:
		return a.item(map[string]string{"result": said})
	}
	return a.note("%s", said)
}

// sync waits until all is in use that the system told before. People are told by
// its end.
func (a *answer) sync(*Request) error {
	if err := a.await(a.source.Sync); err != nil || !a.json {
		return err
	}
	return a.item(map[string]string{"result": "synced"})
}

// errGone says that the client does not wait any more.
var errGone = errors.New("the client has gone")

// await returns the error of f, or errGone as soon as nobody waits for it.
func (a *answer) await(f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-alive.C:
			if a.alive() != nil {
				return errGone
			}
		}
	}
}
