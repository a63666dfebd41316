package router

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"nmfwd/config"
	"nmfwd/config/rcconf"
	"nmfwd/control"
	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// compile returns the tables that a configuration means, as text.
func compile(t *testing.T, cfg *config.Config) string {
	t.Helper()
	r, err := NewMemory(cfg, Options{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var b strings.Builder
	if err := r.Forwarder.State().FIB.Dump(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func parse(t *testing.T, text string) *config.Config {
	t.Helper()
	cfg, err := config.Parse("routes.conf", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestImported compiles what two labs' rc.conf mean: one written as sysrc
// commands, one as assignments.
func TestImported(t *testing.T) {
	for _, name := range []string{"apu2", "apu1"} {
		t.Run(name, func(t *testing.T) {
			rc, err := os.ReadFile(filepath.Join("testdata", name+".rc"))
			if err != nil {
				t.Fatal(err)
			}
			text, warnings, err := rcconf.Import(name+".rc", rc)
			if err != nil || len(warnings) > 0 {
				t.Fatalf("got error %v, warnings %v", err, warnings)
			}
			got := compile(t, parse(t, string(text)))
			golden := filepath.Join("testdata", name+".fib")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got tables\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// TestVLANNumbers: devices and VLANs keep their numbers when the file names them
// in another order.
func TestVLANNumbers(t *testing.T) {
	region := memport.NewRegion("test", 4096, memport.Stride)
	var ports []*dataplane.Port
	for _, name := range []string{"A", "B"} {
		m, err := memport.New(region, memport.Config{Name: name, MAC: []byte{2, 0, 0, 0, 0, name[0]}, MTU: 1500})
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, &m.Port)
	}
	lines := []string{"port A", "port B", "vlan 20 on B 10.0.20.1/24", "vlan 10 on B 10.0.10.1/24", "vlan 30 on A 10.0.30.1/24", "route default via 10.0.20.9"}
	for range len(lines) {
		lines = append(lines[1:], lines[0])
		cfg := parse(t, strings.Join(lines, "\n"))
		s, err := Spec(cfg, ports)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range s.Ports {
			got = append(got, p.Name)
		}
		for i, n := range Numbers(cfg, []string{"A", "B"}) {
			if s.Ports[n].Name != cfg.Ports[i].Name {
				t.Errorf("number of %s: got that of %s", cfg.Ports[i].Name, s.Ports[n].Name)
			}
		}
		if want := []string{"A", "B", "A.30", "B.10", "B.20"}; !slices.Equal(got, want) || s.Routes[0].Port != 4 || s.Ports[4].On != 1 {
			t.Errorf("got ports %v, a route by %d, want %v, 4", got, s.Routes[0].Port, want)
		}
	}
}

// TestOrder: the same lines in any order mean the same tables.
func TestOrder(t *testing.T) {
	lines := []string{
		"port A 198.18.0.205/24 mac 02:00:00:00:00:0a",
		"port B 198.19.0.205/24 mac 02:00:00:00:00:0b",
		"route 198.19.0.0/16 via 198.19.0.203",
		"arp 198.19.0.203 00:1b:21:c4:95:7b",
		"route default via 198.18.0.203",
	}
	want := ""
	perm := slices.Clone(lines)
	var permute func(n int)
	permute = func(n int) {
		if n == 1 {
			// Ports are numbered in order of their lines.
			if slices.Index(perm, lines[0]) > slices.Index(perm, lines[1]) {
				return
			}
			got := compile(t, parse(t, strings.Join(perm, "\n")))
			if want == "" {
				want = got
			}
			if got != want {
				t.Fatalf("order %q: got tables\n%s\nwant\n%s", perm, got, want)
			}
			return
		}
		for i := range n {
			permute(n - 1)
			if n%2 == 0 {
				perm[i], perm[n-1] = perm[n-1], perm[i]
			} else {
				perm[0], perm[n-1] = perm[n-1], perm[0]
			}
		}
	}
	permute(len(perm))
	if want == "" {
		t.Fatal("nothing was compared")
	}
}

func TestOwn(t *testing.T) {
	cfg := parse(t, "port A 198.18.0.205/24 2001:2::205/64\nport B 10.0.0.1/31 2001:db8::1/127\n")
	var want []netip.Addr
	for _, a := range []string{"198.18.0.205", "198.18.0.0", "198.18.0.255", "2001:2::205", "2001:2::", "10.0.0.1", "2001:db8::1"} {
		want = append(want, netip.MustParseAddr(a))
	}
	if got := Own(cfg); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestPlan has fewer CPUs than workers, and one that is not there.
func TestPlan(t *testing.T) {
	two := []dataplane.Rings{{RX: 2, TX: 2}, {RX: 2, TX: 2}}
	for _, c := range []struct {
		name, options string
		cpus          []int
		workers       int
		at, rest      []int
		err           string
	}{
		{"two rings on two CPUs", "", []int{0, 1}, 2, []int{0, 1}, nil, ""},
		{"two rings on four CPUs leave the first", "", []int{0, 1, 2, 3}, 2, []int{1, 2, 3}, []int{0, 3}, ""},
		{"one CPU", "", []int{5}, 1, []int{5}, nil, ""},
		{"more workers than CPUs", "option workers 4", []int{0, 1}, 4, []int{0, 1}, nil, ""},
		{"chosen CPUs, in order", "option cpus 2-3", []int{0, 1, 2, 3}, 2, []int{2, 3}, []int{0, 1}, ""},
		{"a CPU that is not there", "option cpus 7", []int{0, 1}, 0, nil, nil, "routes.conf:3:1: CPU 7"},
	} {
		cfg := parse(t, "port A 198.18.0.205/24\nport B 198.19.0.205/24\n"+c.options)
		plan, at, err := Plan(cfg, two, c.cpus)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: got error %v, want %q", c.name, err, c.err)
			}
			continue
		}
		if err != nil || plan.Workers != c.workers || !slices.Equal(at.Workers, c.at) || !slices.Equal(at.Rest, c.rest) {
			t.Errorf("%s: got %d workers on %v, rest on %v, error %v; want %d, %v, %v", c.name, plan.Workers, at.Workers, at.Rest, err, c.workers, c.at, c.rest)
		}
	}
}

func TestHugePages(t *testing.T) {
	none := errors.New("no huge page")
	for _, c := range []struct {
		name, option string
		have         error
		small        bool
		want         string
	}{
		{"default", "", none, false, ""},
		{"auto", "option hugepages auto", none, false, ""},
		{"off", "option hugepages off", none, true, ""},
		{"on", "option hugepages on", nil, false, ""},
		{"on, but not to be had", "option hugepages on", none, false, "routes.conf:1:1: option hugepages on: no huge page"},
	} {
		cfg := parse(t, c.option)
		got := ""
		if err := HugePages(cfg, func() error { return c.have }); err != nil {
			got = err.Error()
		}
		s, err := Spec(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got != c.want || s.SmallPages != c.small {
			t.Errorf("%s: got error %q and small pages %v, want %q and %v", c.name, got, s.SmallPages, c.want, c.small)
		}
	}
}

// TestMTU: a port's MTU cannot be more than what the device carries.
func TestMTU(t *testing.T) {
	cfg := parse(t, "port A 198.18.0.205/24 mtu 9000\n")
	region := memport.NewRegion("test", 4096, memport.Stride)
	m, err := memport.New(region, memport.Config{Name: "A"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Spec(cfg, []*dataplane.Port{&m.Port}); err == nil || !strings.Contains(err.Error(), "routes.conf:1:1: port A: mtu 9000") {
		t.Errorf("got error %v", err)
	}
}

// TestPortOrder: a file that is loaded again may name the open ports in another
// order.
func TestPortOrder(t *testing.T) {
	const a, b, rest = "port A 198.18.0.205/24 2001:2::205/64\n", "port B 198.19.0.205/24 mtu 1400\n", `
route 198.18.0.0/16 via 198.18.0.203
route 198.19.0.0/16 via 198.19.0.203
route 2001:db8::/32 via fe80::203%A
route 192.0.2.0/24 on B
arp 198.19.0.203 00:1b:21:c4:95:7b
`
	region := memport.NewRegion("test", 4096, memport.Stride)
	var ports []*dataplane.Port
	for i, name := range []string{"A", "B"} {
		m, err := memport.New(region, memport.Config{Name: name, MAC: []byte{2, 0, 0, 0, 0, byte(i)}})
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, &m.Port)
	}
	spec := func(text string) *control.Spec {
		s, err := Spec(parse(t, text), ports)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if got, want := spec(b+a+rest), spec(a+b+rest); !reflect.DeepEqual(got, want) {
		t.Errorf("port B first: got %+v, want %+v", got, want)
	}
}

// TestLimits: what the language allows, the data plane takes.
func TestLimits(t *testing.T) {
	for _, burst := range []int{1, dataplane.MaxBurst, dataplane.MaxBurst + 1} {
		_, err := config.Parse("routes.conf", fmt.Appendf(nil, "option burst %d\n", burst))
		if (err == nil) != (burst <= dataplane.MaxBurst) {
			t.Errorf("option burst %d: got error %v, the data plane's limit is %d", burst, err, dataplane.MaxBurst)
		}
	}
}
