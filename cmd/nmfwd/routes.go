package main

import (
	"log/slog"
	"time"

	"nmfwd/cmd/nmfwd/setup"
	"nmfwd/config"
	"nmfwd/control"
	"nmfwd/fib"
	"nmfwd/system/routes"
)

// followRoutes follows the system's routes if cfg says so; it returns nil if not.
// Devices are the names of the devices in the order of their numbers.
func followRoutes(cfg *config.Config, devices []string, log *slog.Logger) (*routes.Table, error) {
	if cfg.Options.Routes != config.KernelRoutes {
		return nil, nil
	}
	return routes.Open(portNumbers(cfg, devices), routes.Watcher{
		Listed: func(r routes.Report) { logRoutes(log, r) },
		Failed: func(err error) { log.Error("routes of the system: tried again", "err", err) },
	})
}

// readRoutes returns the system's routes of this moment if cfg follows them, by the
// numbers that ports have with the devices in cfg's order.
func readRoutes(cfg *config.Config) ([]fib.Route, routes.Report, error) {
	if cfg.Options.Routes != config.KernelRoutes {
		return nil, routes.Report{}, nil
	}
	var devices []string
	for _, p := range cfg.Devices() {
		devices = append(devices, p.Name)
	}
	return routes.Read(portNumbers(cfg, devices))
}

// portNumbers returns the numbers of ports by the names of their interfaces.
func portNumbers(cfg *config.Config, devices []string) map[string]uint16 {
	numbers := make(map[string]uint16, len(cfg.Ports))
	for i, n := range setup.Numbers(cfg, devices) {
		numbers[cfg.Ports[i].Name] = n
	}
	return numbers
}

// logRoutes logs what a list of the system's routes found.
func logRoutes(log *slog.Logger, r routes.Report) {
	why := "changes of interfaces, addresses or nexthops"
	switch {
	case r.First:
		why = "start"
	case r.Lost:
		why = "changes were lost"
	case r.Asked:
		why = "reload"
	case r.Timed:
		return // it comes again and again
	}
	log.Info("routes of the system", "listed_for", why, "ipv4", r.Routes[0], "ipv6", r.Routes[1], "left_to_host", r.Host, "took", r.Took.Round(time.Millisecond))
	for o, n := range r.Odd {
		if n > 0 {
			log.Warn("routes of the system that ports cannot follow", "what", routes.Odd(o), "routes", n, "then", routes.Odd(o).Then())
		}
	}
}

// feed returns what control follows, nil for nothing.
func feed(t *routes.Table) control.RouteSource {
	if t == nil {
		return nil
	}
	return func() (control.RouteFeed, []fib.Route) { return t.Feed() }
}
