package control

import (
	"maps"
	"net/netip"
	"testing"

	"nmfwd/dataplane"
	"nmfwd/fib"
)

// A filter is a device that has to know the host's routes.
type filter struct {
	dataplane.Device
	routes map[netip.Prefix]bool
	told   int
}

func (f *filter) SetHostRoutes(routes map[netip.Prefix]bool) error {
	f.routes = maps.Clone(routes)
	f.told++
	return nil
}

// TestHostRoutes: devices are told which routes the host follows, and no more than
// they need to know.
func TestHostRoutes(t *testing.T) {
	host := func(p string) fib.Route { return fib.Route{Prefix: netip.MustParsePrefix(p), Kind: fib.Host} }
	none := func(p string) fib.Route { return fib.Route{Prefix: netip.MustParsePrefix(p)} }
	r, k := newKernelRig(t, host("10.0.0.0/8"), kernelVia("10.1.0.0/16", "198.18.0.203", 0), host("10.1.2.0/24"), host("10.2.0.0/16"), kernelVia("203.0.113.0/24", "198.18.0.203", 0))
	f := &filter{}
	r.hostRouter.devices = []dataplane.HostRouter{f}
	want := func(what string, hosts, others []string) {
		t.Helper()
		for range 3 {
			r.at += r.wait()
			r.Step(r.at)
		}
		all := make(map[netip.Prefix]bool)
		for _, p := range hosts {
			all[netip.MustParsePrefix(p)] = true
		}
		for _, p := range others {
			all[netip.MustParsePrefix(p)] = false
		}
		if !maps.Equal(f.routes, all) {
			t.Errorf("%s: devices were told %v, want %v", what, f.routes, all)
		}
	}
	r.hostRouter.changed = true
	want("start", []string{"10.0.0.0/8", "10.1.2.0/24"}, []string{"10.1.0.0/16"})
	k.set(kernelVia("10.3.0.0/16", "198.18.0.203", 0))
	want("one within", []string{"10.0.0.0/8", "10.1.2.0/24"}, []string{"10.1.0.0/16", "10.3.0.0/16"})
	told := f.told
	k.set(kernelVia("203.0.114.0/24", "198.18.0.203", 0))
	want("one elsewhere", []string{"10.0.0.0/8", "10.1.2.0/24"}, []string{"10.1.0.0/16", "10.3.0.0/16"})
	if f.told != told {
		t.Error("devices were told of a route that is nothing to them")
	}
	k.set(none("10.0.0.0/8"), none("10.3.0.0/16"))
	want("outermost gone", []string{"10.1.2.0/24", "10.2.0.0/16"}, nil)
	k.set(host("0.0.0.0/0"), none("10.2.0.0/16"))
	want("default", []string{"0.0.0.0/0", "10.1.2.0/24"}, []string{"10.1.0.0/16", "203.0.113.0/24", "203.0.114.0/24", "198.18.0.0/16", "198.19.0.0/16"})
}
