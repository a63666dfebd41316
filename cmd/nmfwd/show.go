package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"time"

	"nmfwd/cmd/nmfwd/show"
	"nmfwd/config"
	"nmfwd/system/nic"
)

// socketFlags say which nmfwd is meant.
type socketFlags struct {
	Socket string `short:"s" xor:"socket" placeholder:"PATH" help:"The control socket, by default /var/run/nmfwd.sock."`
	Config string `short:"c" xor:"socket" placeholder:"FILE" help:"The configuration that says where the control socket is."`
}

// ask sends a request and prints the answer.
func (f *socketFlags) ask(r show.Request) error {
	path := f.Socket
	if path == "" {
		cfg := new(config.Config)
		if f.Config != "" {
			var err error
			if cfg, err = loadConfig(f.Config); err != nil {
				return err
			}
		}
		path, _ = cfg.ControlPath()
	}
	return show.Do(context.Background(), path, &r, os.Stdout)
}

type showCmd struct {
	socketFlags
	JSON bool `name:"json" help:"Print a JSON object a line."`

	Status    showStatus    `cmd:"" default:"1" help:"Version, process, configuration, sizes of tables. This is the default."`
	Ports     showPorts     `cmd:"" help:"Ports: link, driver, MTU, rates, addresses; or all about one."`
	Routes    showRoutes    `cmd:"" help:"All routes, those to a prefix, or those that cover an address."`
	Route     showRoute     `cmd:"" help:"What becomes of packets to an address."`
	Neighbors showNeighbors `cmd:"" help:"Neighbors and their states."`
	Counters  showCounters  `cmd:"" help:"What became of packets, by port."`
	Drops     showDrops     `cmd:"" help:"Packets dropped, by port and reason, and what the reasons mean."`
	Workers   showWorkers   `cmd:"" help:"Threads that forward: CPU, load, bursts, queues."`
	Unused    showUnused    `cmd:"" help:"Routes that no packet is for while packets are watched."`
}

type (
	showStatus struct{}
	showPorts  struct {
		Port string `arg:"" optional:"" help:"A port."`
	}
	showRoutes struct {
		To     string `arg:"" optional:"" name:"prefix" help:"A prefix or an address."`
		Longer bool   `help:"Those within the prefix too."`
	}
	showRoute struct {
		To string `arg:"" name:"address" help:"The destination."`
	}
	showNeighbors struct {
		Port string `arg:"" optional:"" help:"A port."`
	}
	showCounters struct {
		Port string `arg:"" optional:"" help:"A port."`
		All  bool   `help:"Those that are 0 too."`
	}
	showDrops struct {
		Port string `arg:"" optional:"" help:"A port."`
		All  bool   `help:"Reasons without packets too."`
	}
	showWorkers struct{}
	showUnused  struct {
		For time.Duration `default:"10s" help:"How long packets are watched, 10s by default."`
	}
)

// ask asks for what a sub-command of show is about.
func (c *showCmd) ask(r show.Request) error {
	r.JSON = c.JSON
	return c.socketFlags.ask(r)
}

// Run shows what nmfwd is and does.
func (*showStatus) Run(c *showCmd) error { return c.ask(show.Request{Command: "status"}) }

// Run shows ports.
func (s *showPorts) Run(c *showCmd) error {
	return c.ask(show.Request{Command: "ports", Arg: s.Port})
}

// Run shows routes.
func (s *showRoutes) Run(c *showCmd) error {
	return c.ask(show.Request{Command: "routes", Arg: s.To, Longer: s.Longer})
}

// Run shows what becomes of packets to an address.
func (s *showRoute) Run(c *showCmd) error {
	return c.ask(show.Request{Command: "route", Arg: s.To})
}

// Run shows neighbors.
func (s *showNeighbors) Run(c *showCmd) error {
	return c.ask(show.Request{Command: "neighbors", Arg: s.Port})
}

// Run shows counters.
func (s *showCounters) Run(c *showCmd) error {
	return c.ask(show.Request{Command: "counters", Arg: s.Port, All: s.All})
}

// Run shows drops.
func (s *showDrops) Run(c *showCmd) error {
	return c.ask(show.Request{Command: "drops", Arg: s.Port, All: s.All})
}

// Run shows workers.
func (*showWorkers) Run(c *showCmd) error { return c.ask(show.Request{Command: "workers"}) }

// Run shows routes without packets.
func (s *showUnused) Run(c *showCmd) error {
	return c.ask(show.Request{Command: "unused", For: s.For})
}

type reloadCmd struct{ socketFlags }

// Run has nmfwd reload and waits for the result.
func (c *reloadCmd) Run() error { return c.ask(show.Request{Command: "reload"}) }

type syncCmd struct{ socketFlags }

// Run waits until all is in use that the system told before.
func (c *syncCmd) Run() error { return c.ask(show.Request{Command: "sync"}) }

// listenControl makes the control socket. Without a line that names it nmfwd
// starts even if it cannot be had, and returns nil.
func listenControl(cfg *config.Config, log *slog.Logger) (*show.Server, error) {
	path, at := cfg.ControlPath()
	s, err := show.Listen(path)
	switch {
	case err == nil:
		log.Info("control socket", "path", path)
		return s, nil
	case !at.Valid():
		log.Warn("no control socket, so no nmfwd show: name another path by listen control", "err", err)
		return nil, nil
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("%v: %w", at, err)
	}
	return nil, coded{exUnavailable, fmt.Errorf("%v: %w", at, err)}
}

// source is what the control socket shows.
func (d *daemon) source() show.Source {
	s := show.Source{
		Snapshot: d.router.Forwarder.Snapshot, Ports: d.Ports, Control: d.router.Control, Counts: d.router.Control.Snapshot, Status: d.status, Reload: d.askReload, Code: exitCode, Sync: d.router.Sync,
		Failed:  func(err error) { d.log.Error("control socket: clients are not accepted, tried again", "err", err) },
		Devices: make([]show.Device, len(d.Ports)),
	}
	for i, p := range d.Ports {
		s.Devices[i].Speed = d.Before[i].Speed
		s.Devices[i].Settings = func() (set, lost string) { return settingsNow(d.Settings, p.Name) }
	}
	return s
}

// settingsNow returns the commands that do what nmfwd has changed of a port, and what
// it has changed but is not so any more.
func settingsNow(settings *nic.Taken, port string) (set, lost string) {
	c := settings.Now(port)
	if len(c.Set) > 0 {
		set = tools.Settings(port, c.Set)
	}
	if len(c.Lost) > 0 {
		lost = tools.Settings(port, c.Lost)
	}
	return set, lost
}

// askReload has the goroutine that reloads do it.
func (d *daemon) askReload(ctx context.Context) (string, error) {
	r := reloadRequest{done: make(chan reloadRequest, 1)}
	select {
	case d.asked <- r:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	select {
	case r = <-r.done:
		return r.said, r.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// status is what the daemon knows of itself.
func (d *daemon) status() show.Status {
	s := show.Status{Version: version(), GoVersion: runtime.Version(), PID: os.Getpid(), Started: d.started, Config: d.path}
	var err error
	if s.Reloads, s.ReloadsFailed, s.Loaded, err = d.reloads.Last(); err != nil {
		s.ReloadError, _, _ = strings.Cut(err.Error(), "\n")
	}
	return s
}
