package config

import (
	"fmt"
	"slices"

	"nmfwd/config/syntax"
)

// NeedsRestart returns what differs between a running configuration and a new
// one that cannot change while the program runs: the set of ports, what they
// are opened with, listen lines, and options about workers and memory. Each
// error is at the line of the new configuration, or at that of the running one
// if it is gone. Routes, neighbors, addresses, MTUs and limits may change.
func NeedsRestart(running, next *Config) []Error {
	var errs []Error
	add := func(at Pos, format string, args ...any) {
		errs = append(errs, Error{Pos: at, Msg: fmt.Sprintf(format, args...) + " needs a restart"})
	}
	for i := range next.Ports {
		p := &next.Ports[i]
		j := running.Port(p.Name)
		if j < 0 {
			add(p.Pos, "new port %s", p.Name)
			continue
		}
		o := &running.Ports[j]
		for _, s := range []struct {
			what string
			same bool
		}{
			{"driver", p.Driver == o.Driver},
			{"queues", p.Queues == o.Queues},
			{"host", p.Host == o.Host},
			{"mac", slices.Equal(p.MAC, o.MAC)},
			{"vmac", sameMACs(p.VMACs, o.VMACs)},
			{"offload", p.OffloadKeep == o.OffloadKeep},
		} {
			if !s.same {
				add(p.Pos, "a change of %s on port %s", s.what, p.Name)
			}
		}
	}
	for i := range running.Ports {
		if p := &running.Ports[i]; next.Port(p.Name) < 0 {
			add(p.Pos, "taking away port %s", p.Name)
		}
	}
	for i, o := range options {
		switch o.name {
		case "icmp-rate", "icmp-source", "ip-options", "neighbors":
			continue
		}
		if o.print(&running.Options) != o.print(&next.Options) {
			add(either(next.Options.at[i], running.Options.at[i]), "a change of option %s", o.name)
		}
	}
	if running.Metrics != next.Metrics {
		add(either(next.metricsPos, running.metricsPos), "a change of listen metrics")
	}
	if running.Control != next.Control {
		add(either(next.controlPos, running.controlPos), "a change of listen control")
	}
	syntax.SortErrors(errs, append(slices.Clip(next.files), running.files...))
	return errs
}

// either returns p, or else q if p is no place.
func either(p, q Pos) Pos {
	if p.Valid() {
		return p
	}
	return q
}
