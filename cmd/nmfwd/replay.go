package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"

	"nmfwd/config"
	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
	"nmfwd/router"
)

// replay forwards capture files by cfg, from file path, and prints the counters. Every port of
// cfg exists; those without a capture receive nothing. What is for a host goes
// to hosts in memory, which forget it.
func replay(path string, cfg *config.Config, pcaps []string, log *slog.Logger) error {
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
	files, err := replayFiles(path, cfg, pcaps)
	if err != nil {
		return coded{exUsage, err}
	}
	r := memport.NewReplay(4096, 1<<16)
	var ports []*dataplane.Port
	var hosts []*memport.Port
	for _, p := range cfg.Devices() {
		port, err := r.Open(memport.Config{Name: p.Name, MAC: p.MAC, MTU: p.MTU, MinFrame: 60}, files[p.Name].In, files[p.Name].Out)
		if err != nil {
			router.ClosePorts(ports, log)
			return captureError(err)
		}
		if p.MAC == nil {
			log.Info("frames have to be addressed to the port's MAC address, which is made up: set mac in its line", "port", p.Name, "mac", port.MAC.String())
		}
		if p.Host {
			host, err := memport.New(r.Region(), memport.Config{Name: p.Name + " host"})
			if err != nil {
				router.ClosePorts(append(ports, port), log)
				return err
			}
			port.Host, port.Info.Host = host.Queues, true
			hosts = append(hosts, host)
		}
		ports = append(ports, port)
	}
	err = replayPorts(cfg, r, ports, hosts, log)
	for _, p := range ports {
		err = errors.Join(err, p.Device.Close())
	}
	return errors.Join(err, captureError(r.Err()))
}

// replayFiles returns what --pcap flags say, by port. What would overwrite a file
// that the replay needs is an error.
func replayFiles(path string, cfg *config.Config, pcaps []string) (map[string]memport.Pcap, error) {
	files := make(map[string]memport.Pcap)
	var all []memport.Pcap
	for _, s := range pcaps {
		p, err := memport.ParsePcap(s)
		if err != nil {
			return nil, fmt.Errorf("--pcap %s: %w", s, err)
		}
		i := cfg.Port(p.Port)
		if i < 0 {
			return nil, fmt.Errorf("--pcap %s: the configuration has no port %s", s, p.Port)
		}
		p.Port = cfg.Ports[i].Name
		if _, ok := files[p.Port]; ok {
			return nil, fmt.Errorf("--pcap %s: port %s is given twice", s, p.Port)
		}
		if memport.SameFile(p.Out, path) {
			return nil, fmt.Errorf("--pcap %s: %s is the configuration", s, p.Out)
		}
		files[p.Port] = p
		all = append(all, p)
	}
	if err := memport.Distinct(all); err != nil {
		return nil, fmt.Errorf("--pcap: %w", err)
	}
	return files, nil
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
	run, err := router.New(cfg, ports, router.Options{Log: log})
	if err != nil {
		return err
	}
	defer run.Close()
	for run.Step(0, router.OnlyPackets) > 0 || !r.Done() {
		for _, h := range hosts {
			h.Discard(0)
		}
	}
	return printCounters(os.Stdout, run.Forwarder)
}

// printCounters prints what became of all packets, without zeros.
func printCounters(out io.Writer, r *dataplane.Forwarder) error {
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
