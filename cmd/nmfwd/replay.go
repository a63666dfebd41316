package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"

	"nmfwd/cmd/nmfwd/setup"
	"nmfwd/config"
	"nmfwd/dataplane"
	"nmfwd/dataplane/control"
	"nmfwd/dataplane/memport"
)

// replay forwards capture files by cfg and prints the counters. Every port of
// cfg exists; those without a capture receive nothing. What is for a host goes
// to hosts in memory, which forget it.
func replay(cfg *config.Config, pcaps []string, log *slog.Logger) error {
	var errs config.Errors
	for _, p := range cfg.Devices() {
		if p.AddrKernel {
			errs = append(errs, config.Error{Pos: p.Pos, Msg: fmt.Sprintf("port %s: addr kernel means nothing with --pcap: write the addresses", p.Name)})
		}
	}
	if at, _ := cfg.Options.Set("routes"); cfg.Options.Routes == config.KernelRoutes {
		errs = append(errs, config.Error{Pos: at, Msg: "option routes kernel means nothing with --pcap: write the routes"})
	}
	if errs != nil {
		return errs
	}
	files := make(map[string][2]string)
	for _, s := range pcaps {
		name, in, out, err := memport.SplitPcap(s)
		if err != nil {
			return coded{exUsage, fmt.Errorf("--pcap %s: %w", s, err)}
		}
		i := cfg.Port(name)
		if i < 0 {
			return coded{exUsage, fmt.Errorf("--pcap %s: the configuration has no port %s", s, name)}
		}
		name = cfg.Ports[i].Name
		if _, ok := files[name]; ok {
			return coded{exUsage, fmt.Errorf("--pcap %s: port %s is given twice", s, name)}
		}
		files[name] = [2]string{in, out}
	}
	r := memport.NewReplay(4096, 1<<16)
	var ports []*dataplane.Port
	var hosts []*memport.Port
	for _, p := range cfg.Devices() {
		port, err := r.Open(memport.Config{Name: p.Name, MAC: p.MAC, MTU: p.MTU, MinFrame: 60}, files[p.Name][0], files[p.Name][1])
		if err != nil {
			closePorts(ports, log)
			return captureError(err)
		}
		if p.MAC == nil {
			log.Info("frames have to be addressed to the port's MAC address, which is made up: set mac in its line", "port", p.Name, "mac", port.MAC.String())
		}
		if p.Host {
			host, err := memport.New(r.Region(), memport.Config{Name: p.Name + " host"})
			if err != nil {
				closePorts(append(ports, port), log)
				return err
			}
			port.Host, port.Info.Host = host.Queues, true
			hosts = append(hosts, host)
		}
		ports = append(ports, port)
	}
	err := replayPorts(cfg, r, ports, hosts, log)
	for _, p := range ports {
		err = errors.Join(err, p.Device.Close())
	}
	return errors.Join(err, captureError(r.Err()))
}

// captureError gives an error about a capture its exit code.
func captureError(err error) error {
	var system *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return coded{exNoInput, err}
	case err == nil, errors.As(err, &system):
		return err
	}
	return coded{exDataErr, err}
}

func replayPorts(cfg *config.Config, r *memport.Replay, ports []*dataplane.Port, hosts []*memport.Port, log *slog.Logger) error {
	spec, err := setup.Spec(cfg, ports)
	if err != nil {
		return err
	}
	router, err := dataplane.NewRouter(ports, 1, dataplane.Options{Burst: cfg.Options.Burst})
	if err != nil {
		return err
	}
	defer router.Close()
	ctl, err := control.New(router, spec, log)
	if err != nil {
		return err
	}
	w := router.Workers()[0]
	for n := 1; n > 0 || !r.Done(); {
		n = w.Step(0)
		w.Poll(0)
		ctl.HandlePunts()
		n += w.Step(0) // what control answered
		for _, h := range hosts {
			h.Discard(0)
		}
	}
	return printCounters(os.Stdout, router)
}

// printCounters prints what became of all packets, without zeros.
func printCounters(out io.Writer, r *dataplane.Router) error {
	var s dataplane.Snapshot
	r.Snapshot(&s)
	var err error
	line := func(port, what string, n uint64) {
		if n > 0 && err == nil {
			_, err = fmt.Fprintf(out, "%-16s %-24s %12d\n", port, what, n)
		}
	}
	for _, p := range s.Ports {
		q := p.RX[0]
		line(p.Info.Name, "received", q.Packets)
		line(p.Info.Name, "forwarded ipv4", q.Forwarded4)
		line(p.Info.Name, "forwarded ipv6", q.Forwarded6)
		line(p.Info.Name, "to host", q.ToHost)
		for k, n := range q.Punted {
			line(p.Info.Name, "punted "+dataplane.Kind(k).String(), n)
		}
		for d, n := range q.Dropped {
			line(p.Info.Name, "dropped "+dataplane.Reason(d).String(), n)
		}
		line(p.Info.Name, "transmitted", p.TX[0].Packets)
	}
	return err
}
