// Package examples checks the configurations beside it.
package examples

import (
	"net/netip"
	"path/filepath"
	"testing"

	"nmfwd/config"
)

// TestLabs loads each lab and compares it with the facts of that lab.
func TestLabs(t *testing.T) {
	tests := []struct {
		name      string
		ports     [2]string
		host, far string // last part of the router's and of the neighbors' addresses
		macs      [2]string
	}{
		{"apu2", [2]string{"igb1", "igb2"}, "205", "203", [2]string{"00:1b:21:c4:95:7a", "00:1b:21:c4:95:7b"}},
		{"c2758", [2]string{"vcxl0", "vcxl1"}, "8", "110", [2]string{"00:07:43:2e:e4:71", "00:07:43:2e:e4:79"}},
		{"apu1", [2]string{"re1", "re2"}, "207", "203", [2]string{"00:1b:21:c4:95:7a", "00:1b:21:c4:95:7b"}},
	}
	files, err := filepath.Glob("*/routes.conf")
	if err != nil || len(files) != len(tests) {
		t.Errorf("%d configurations (%v), %d tested", len(files), err, len(tests))
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := config.Load(filepath.Join(tt.name, "routes.conf"))
			if err != nil {
				t.Fatal(err)
			}
			if len(c.Warnings) > 0 {
				t.Errorf("warnings: %v", c.Warnings)
			}
			nets := [2][2]string{{"198.18.0.", "2001:2::"}, {"198.19.0.", "2001:2:0:8000::"}}
			routes := [2][2]string{{"198.18.0.0/16", "2001:2::/49"}, {"198.19.0.0/16", "2001:2:0:8000::/49"}}
			if len(c.Ports) != 2 || len(c.Routes) != 4 || len(c.Neighbors) != 4 {
				t.Fatalf("%d ports, %d routes and %d neighbors, want 2, 4 and 4", len(c.Ports), len(c.Routes), len(c.Neighbors))
			}
			for i, p := range c.Ports {
				want := []netip.Prefix{netip.MustParsePrefix(nets[i][0] + tt.host + "/24"), netip.MustParsePrefix(nets[i][1] + tt.host + "/64")}
				if p.Name != tt.ports[i] || len(p.Addrs) != 2 || p.Addrs[0] != want[0] || p.Addrs[1] != want[1] {
					t.Errorf("port %s %v, want %s %v", p.Name, p.Addrs, tt.ports[i], want)
				}
				for family := range 2 {
					r, n := c.Routes[2*i+family], c.Neighbors[2*i+family]
					gw := netip.MustParseAddr(nets[i][family] + tt.far)
					if r.Prefix != netip.MustParsePrefix(routes[i][family]) || len(r.Hops) != 1 || r.Hops[0].Gateway != gw || int(r.Hops[0].Port) != i {
						t.Errorf("route %v %v, want %s via %v on port %d", r.Prefix, r.Hops, routes[i][family], gw, i)
					}
					if n.Addr != gw || n.MAC.String() != tt.macs[i] || int(n.Port) != i {
						t.Errorf("neighbor %v %v on port %d, want %v %s on port %d", n.Addr, n.MAC, n.Port, gw, tt.macs[i], i)
					}
				}
			}
		})
	}
}
