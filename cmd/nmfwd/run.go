package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"nmfwd/cmd/nmfwd/show"
	"nmfwd/config"
	"nmfwd/dataplane"
	"nmfwd/fib"
	"nmfwd/metrics"
	"nmfwd/router"
)

type runCmd struct {
	Config string   `short:"c" required:"" placeholder:"FILE" help:"The configuration, routes.conf."`
	Test   bool     `short:"t" help:"Check the configuration and exit."`
	Status bool     `help:"Print a line with the rate every second."`
	Pcap   []string `placeholder:"PORT=IN:OUT" sep:"none" help:"Forward the frames of capture file IN to OUT instead of using the port, then print the counters; for any number of ports."`
	Debug  bool     `help:"Log more."`
}

// How long the end of the daemon waits for the readers of its output.
const flushFor = time.Second

// lostMessages is the line of a log that says how many are missing.
func lostMessages(n int) []byte {
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Warn("messages lost here: the log could not be written", "messages", n)
	return b.Bytes()
}

// lostLines is lostMessages for the lines of --status.
func lostLines(n int) []byte { return fmt.Appendf(nil, "%d lines lost here\n", n) }

// Run is the daemon.
func (c *runCmd) Run() (err error) {
	collect(restPercent)
	// A daemon that still reads its configuration must not die of a reload.
	hup := make(chan os.Signal, 1) // one waiting stands for all that come meanwhile
	signal.Notify(hup, syscall.SIGHUP)
	cfg, err := loadConfig(c.Config)
	if err != nil {
		return err
	}
	warn(cfg.Warnings)
	if len(cfg.Ports) == 0 {
		return noPorts(c.Config)
	}
	if c.Test {
		return cfg.Resolve(nil)
	}
	level := slog.LevelInfo
	if c.Debug {
		level = slog.LevelDebug
	}
	newLog := func(w io.Writer) *slog.Logger {
		return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
	}
	if len(c.Pcap) > 0 {
		return replay(c.Config, cfg, c.Pcap, newLog(os.Stderr))
	}
	if err := resolve(cfg, kernelAddrs); err != nil {
		return err
	}
	// Who sees a port taken, or metrics served, may send a signal at once.
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	// Who reads the log may end, or stop to read.
	signal.Ignore(syscall.SIGPIPE)
	stderr := newSpool(os.Stderr, lostMessages)
	defer func() {
		if err != nil {
			complain(stderr, err)
			err = told{err}
		}
		stderr.Close(flushFor)
	}()
	log := newLog(stderr)
	slog.SetDefault(log) // for packages that log by themselves
	d, err := start(c.Config, cfg, log)
	if err != nil {
		return err
	}
	var status io.Writer
	if c.Status {
		stdout := newSpool(os.Stdout, lostLines)
		defer stdout.Close(flushFor)
		status = stdout
	}
	return d.serve(stop, hup, status)
}

// noPorts is the error of a file without ports.
func noPorts(path string) error {
	return coded{exDataErr, fmt.Errorf("%s: no port line, so nothing to forward", path)}
}

// readFile reads a file, or standard input for "-".
func readFile(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(name)
}

func loadConfig(path string) (*config.Config, error) { return loadUntil(context.Background(), path) }

// loadUntil is loadConfig until ctx is done. It does not wait for the file then:
// on a disk that hangs it may take for ever.
func loadUntil(ctx context.Context, path string) (*config.Config, error) {
	var cfg *config.Config
	done := make(chan error, 1)
	go func() {
		c, err := config.LoadContext(ctx, path)
		cfg = c
		done <- err
	}()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var pe *fs.PathError
	if errors.As(err, &pe) && !errors.Is(err, fs.ErrPermission) {
		return nil, coded{exNoInput, err}
	}
	return cfg, err
}

// A daemon is a running router.
type daemon struct {
	path string
	log  *slog.Logger
	*router.Devices
	router *router.Router // nil before it is made
	socket *show.Server   // nil if it could not be had

	started time.Time
	reloads metrics.Reloads
	asked   chan reloadRequest // by the control socket
	cancel  context.CancelFunc
	tasks   sync.WaitGroup
	failed  chan error
}

// A reloadRequest waits for a reload.
type reloadRequest struct {
	said string
	err  error
	done chan reloadRequest // receives the result
}

// start opens the ports and starts the workers, control, metrics and the control
// socket.
func start(path string, cfg *config.Config, log *slog.Logger) (_ *daemon, err error) {
	if err := router.HugePages(cfg, fib.HugePages); err != nil {
		return nil, err
	}
	d := &daemon{path: path, log: log, Devices: &router.Devices{}, started: time.Now(), failed: make(chan error, 2), asked: make(chan reloadRequest)}
	defer func() {
		if err != nil {
			d.stop()
		}
	}()
	if d.socket, err = listenControl(cfg, log); err != nil {
		return nil, err
	}
	opened, err := router.Open(cfg, opening(log))
	if err != nil {
		return nil, err
	}
	d.Devices = opened
	if err := checkHost(cfg, d.Ports); err != nil {
		return nil, err
	}
	if err := checkVLANs(cfg, d.Ports); err != nil {
		return nil, err
	}
	drops := drops(cfg) // before the router takes the routes out
	d.router, err = router.New(cfg, d.Ports, router.Options{Workers: d.Plan.Workers, At: d.At, System: true, Log: log})
	if err != nil {
		return nil, err
	}
	f := d.facts(drops)
	f.Log(log)
	if err := f.Err(); err != nil {
		return nil, coded{exUnavailable, err}
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	if cfg.Metrics != "" {
		s, err := metrics.Listen(cfg.Metrics, &metrics.Collector{Router: d.router.Forwarder, Control: d.router.Control.Snapshot, Reloads: &d.reloads, Version: version()})
		if err != nil {
			return nil, coded{exUnavailable, err}
		}
		log.Info("metrics", "url", "http://"+s.Addr().String()+"/metrics")
		d.tasks.Go(func() {
			refused := func(err error) { log.Error("metrics: connections are not accepted, tried again", "err", err) }
			if err := s.Serve(ctx, refused); err != nil {
				d.failed <- err
			}
		})
	}
	if err := d.router.Start(); err != nil {
		return nil, err
	}
	if s := d.socket; s != nil {
		d.socket = nil // it closes itself
		source := d.source()
		d.tasks.Go(func() {
			if err := s.Serve(ctx, source); err != nil {
				d.failed <- err
			}
		})
	}
	d.reloads.Start(time.Now())
	log.Info("forwarding", "workers", d.Plan.Workers)
	d.tasks.Go(func() { d.ready(ctx) })
	return d, nil
}

// How long a port that had a carrier may take to have it again: cards negotiate
// the link anew for seconds when they are opened by netmap.
const (
	linkPatience = 10 * time.Second
	linkInterval = 50 * time.Millisecond
)

// ready waits until all ports that had a carrier before they were opened have it
// again, and tells the service manager.
func (d *daemon) ready(ctx context.Context) {
	began := time.Now()
	t := time.NewTicker(linkInterval)
	defer t.Stop()
	for {
		down := d.waitedFor()
		if len(down) == 0 || time.Since(began) > linkPatience {
			if len(down) > 0 {
				d.log.Warn("ports have no carrier any more", "ports", down)
			}
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
	d.log.Info("ready", "after", time.Since(began).Round(time.Millisecond))
	if err := notify("READY=1"); err != nil {
		d.log.Error("service manager not told", "err", err)
	}
}

// waitedFor returns the ports that had a carrier before and have none now.
func (d *daemon) waitedFor() (names []string) {
	for i, p := range d.Ports {
		if d.Before[i].Carrier && !p.Device.LinkUp() {
			names = append(names, p.Name)
		}
	}
	return names
}

// stop ends everything in reverse order of starting.
func (d *daemon) stop() {
	if d.router != nil {
		d.router.Stop()
	}
	if d.cancel != nil {
		d.cancel()
	}
	d.tasks.Wait()
	if d.router != nil {
		d.router.Close()
	}
	d.Close()
	if d.socket != nil {
		if err := d.socket.Close(); err != nil {
			d.log.Error("control socket not closed", "err", err)
		}
	}
}

// serve handles signals until one ends the program. Each second a line goes to
// status, if that is not nil.
func (d *daemon) serve(stop, hup <-chan os.Signal, status io.Writer) error {
	defer d.stop()
	ctx, cancel := context.WithCancel(context.Background())
	var reloading sync.WaitGroup
	defer reloading.Wait()
	defer cancel()
	reloading.Go(func() {
		for {
			d.giveBack(ctx)
			select {
			case <-hup:
				d.reload(ctx)
			case r := <-d.asked:
				r.said, r.err = d.reload(ctx)
				r.done <- r
			case <-ctx.Done():
				return
			}
		}
	})
	var tick <-chan time.Time
	var last sample
	if status != nil {
		t := time.NewTicker(time.Second)
		defer t.Stop()
		tick = t.C
		last.take(d.router.Forwarder)
	}
	for {
		select {
		case s := <-stop:
			d.log.Info("stopping", "signal", s.String())
			if err := notify("STOPPING=1"); err != nil {
				d.log.Error("service manager not told", "err", err)
			}
			return nil
		case err := <-d.failed:
			return err
		case <-tick:
			var now sample
			now.take(d.router.Forwarder)
			fmt.Fprintln(status, now.since(&last))
			last = now
		}
	}
}

// reload makes the configuration file the one in use, or changes nothing, and says
// what was done.
func (d *daemon) reload(ctx context.Context) (string, error) {
	began := time.Now()
	collect(reloadPercent)
	cfg, routes, err := d.tryReload(ctx)
	d.reloads.Done(time.Now(), err)
	if err != nil {
		d.log.Error("reload refused, the old configuration stays in use", "err", err)
		return "", err
	}
	said := ""
	for _, w := range cfg.Warnings {
		d.log.Warn("configuration", "at", w.Pos, "warning", w.Msg)
		said += fmt.Sprintf("%v: warning: %s\n", w.Pos, w.Msg)
	}
	took := time.Since(began).Round(time.Millisecond)
	d.log.Info("reloaded", "routes", routes, "neighbors", len(cfg.Neighbors), "took", took)
	return said + fmt.Sprintf("reloaded %s in %v: %d routes, %d neighbors", d.path, took, routes, len(cfg.Neighbors)), nil
}

func (d *daemon) tryReload(ctx context.Context) (_ *config.Config, routes int, err error) {
	cfg, err := loadUntil(ctx, d.path)
	if err != nil {
		return nil, 0, err
	}
	debug.FreeOSMemory() // what was read; a collection that goes on beside ends too late on a busy machine
	if errs := config.NeedsRestart(d.router.Config(), cfg); errs != nil {
		return nil, 0, config.Errors(errs)
	}
	if err := resolve(cfg, func(name string) ([]netip.Prefix, error) {
		a, err := kernelAddrs(name)
		if len(a) == 0 && d.away(name) {
			old := d.router.Config()
			return old.Ports[old.Port(name)].Addrs, nil
		}
		return a, err
	}); err != nil {
		return nil, 0, err
	}
	if err := d.checkPorts(cfg); err != nil {
		return nil, 0, err
	}
	routes = len(cfg.Routes)
	return cfg, routes, d.router.Reload(ctx, cfg)
}

// checkPorts is checkHost for the ports that are as they were opened. Somebody took
// the interfaces of others away, which is a warning: it is no reason to refuse what
// a file says of the rest.
func (d *daemon) checkPorts(cfg *config.Config) error {
	var here []*dataplane.Port
	for _, p := range d.Ports {
		if !d.away(p.Name) {
			here = append(here, p)
		} else if err := checkHost(cfg, []*dataplane.Port{p}); err != nil {
			at := cfg.Ports[cfg.Port(p.Name)].Pos
			cfg.Warnings = append(cfg.Warnings, config.Error{Pos: at, Msg: fmt.Sprintf("port %s: its interface is not the one that it was opened on: the host's addresses are not known to be right", p.Name)})
		}
	}
	return checkHost(cfg, here)
}

// away reports whether the interface of a port is gone, or another one has its name.
func (d *daemon) away(name string) bool {
	for i, p := range d.Ports {
		if p.Name == name {
			now, err := net.InterfaceByName(name)
			return err != nil || now.Index != d.Before[i].Index
		}
	}
	return false
}
