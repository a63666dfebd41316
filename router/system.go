package router

import (
	"log/slog"
	"time"

	"nmfwd/config"
	"nmfwd/control"
	"nmfwd/fib"
	"nmfwd/neigh"
	"nmfwd/system/neighbors"
	"nmfwd/system/routes"
)

// systemPorts returns the numbers of the ports whose host stack finds out
// neighbors, by name.
func systemPorts(spec *control.Spec) map[string]uint16 {
	interfaces := make(map[string]uint16)
	for i, p := range spec.Ports {
		if p.Source == neigh.System {
			interfaces[p.Name] = uint16(i)
		}
	}
	return interfaces
}

// follow follows the system's neighbors on interfaces; it returns nil where there
// is none.
func follow(interfaces map[string]uint16, log *slog.Logger) (*neighbors.Table, error) {
	if len(interfaces) == 0 {
		return nil, nil
	}
	return neighbors.Open(interfaces, func(s string) { log.Warn(s) })
}

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

// ReadRoutes returns the system's routes of this moment if cfg follows them, by the
// numbers that ports have with the devices in cfg's order.
func ReadRoutes(cfg *config.Config) ([]fib.Route, routes.Report, error) {
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
	for i, n := range Numbers(cfg, devices) {
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

// source returns where control has the system's routes from, nil for nowhere.
func (r *Router) source() control.RouteSource {
	if r.routes == nil {
		return r.kernel
	}
	t := r.routes
	return func() (control.RouteFeed, []fib.Route) { return t.Feed() }
}
