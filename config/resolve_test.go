package config

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// kernel returns a function for Resolve that knows addresses such as
// "igb1 10.0.0.1/24 10.0.0.2/24", one port a line.
func kernel(lines ...string) func(string) ([]netip.Prefix, error) {
	return func(port string) ([]netip.Prefix, error) {
		for _, l := range lines {
			f := strings.Fields(l)
			if f[0] != port {
				continue
			}
			var a []netip.Prefix
			for _, s := range f[1:] {
				a = append(a, netip.MustParsePrefix(s))
			}
			return a, nil
		}
		return nil, errors.ErrUnsupported
	}
}

func TestResolve(t *testing.T) {
	const text = "port igb1 addr kernel\nport igb2 198.19.0.205/24\n"
	for _, test := range []struct {
		name, lines string
		addrs       string
		errs, warns string
		hops        string // ports of the gateways
	}{
		{"gateway", "route 10.0.0.0/8 via 198.18.0.1\nroute 10.0.0.0/9 via 198.19.0.1\n", "igb1 198.18.0.205/24 fe80::1/64", "", "", "0 1"},
		{"on port", "route 10.0.0.0/8 via 192.0.2.1 on igb1\n", "igb1", "", "", "0"},
		{"no addresses", "route 10.0.0.0/8 via 198.18.0.1\n", "igb1", "3:22: in no connected network", "", ""},
		{"own", "route 10.0.0.0/8 via 198.18.0.205\n", "igb1 198.18.0.205/24", "3:22: is an address of igb1 itself", "", ""},
		{"own link-local", "route ::/0 via fe80::1%igb1\n", "igb1 fe80::1/64", "3:16: is an address of igb1 itself", "", ""},
		{"broadcast", "route 10.0.0.0/8 via 198.18.0.255\n", "igb1 198.18.0.205/24", "3:22: is the broadcast address", "", ""},
		{"overlap", "", "igb1 198.19.0.1/16", "2:11: network 198.19.0.0/24 of igb2 overlaps 198.19.0.0/16 of igb1", "", ""},
		{"same address", "", "igb1 198.19.0.205/24", "2:11: address 198.19.0.205 is also that of igb1", "", ""},
		{"connected", "route 198.18.0.0/24 on igb2\n", "igb1 198.18.0.205/24", "", "3:1: connected to igb1", ""},
		{"connected before", "route 198.19.0.0/24 on igb1\nroute 198.18.0.0/24 on igb2\nport igb2 198.19.0.205/24\n", "igb1 198.18.0.205/24", "", "3:1: connected to igb2|4:1: connected to igb1|5:1: again", ""},
		{"neighbor", "arp 198.18.0.1 2:0:0:0:0:1\narp 192.0.2.1 2:0:0:0:0:1\n", "igb1 198.18.0.205/24", "4:5: in no connected network", "", ""},
		{"address and kernel", "port igb3 10.0.0.1/24 addr kernel\nroute 10.9.0.0/16 via 10.0.1.2\n", "igb1\nigb3 10.0.0.1/24 10.0.1.1/24", "", "", "2"},
		{"mtu for six", "port igb3 addr kernel mtu 1000\n", "igb1\nigb3 fe80::1/64", "3:27: less than the 1280", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := mustParse(t, text+test.lines)
			if err := c.Resolve(nil); err != nil {
				t.Fatalf("without the kernel's addresses: %v", err)
			}
			before := c.String()
			for i := range 2 { // the second time changes nothing
				err := c.Resolve(kernel(strings.Split(test.addrs, "\n")...))
				compare(t, fmt.Sprint("errors ", i), messages(t, err), test.errs)
				compare(t, fmt.Sprint("warnings ", i), texts(c.Warnings), test.warns)
			}
			var hops []string
			for _, r := range c.Routes {
				for _, h := range r.Hops {
					hops = append(hops, fmt.Sprint(h.Port))
				}
			}
			if got := strings.Join(hops, " "); test.errs == "" && got != test.hops {
				t.Errorf("got gateways on ports %q, want %q", got, test.hops)
			}
			if after := c.String(); after != before {
				t.Errorf("got\n%swant\n%s", after, before)
			}
		})
	}
}

func TestResolveFails(t *testing.T) {
	c := mustParse(t, "port igb1 addr kernel\nport igb2 addr kernel\n")
	err := c.Resolve(kernel("igb2"))
	var errs Errors
	if !errors.Is(err, errors.ErrUnsupported) || errors.As(err, &errs) {
		t.Errorf("got %v, want what the function returned", err)
	}
	if want := "routes.conf:1:1: addresses of port igb1: unsupported operation"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestNeedsRestart(t *testing.T) {
	const old = "port igb1 10.0.0.1/24 mtu 1500\nport igb2 addr kernel\nlisten metrics :9469\noption burst 32\n"
	for _, test := range []struct{ name, text, want string }{
		{"nothing", old, ""},
		{"order", "option burst 32\nport igb2 addr kernel\nport igb1 10.0.0.1/24 mtu 1500\nlisten metrics :9469\n", ""},
		{"what may change", strings.Replace(old, "10.0.0.1/24 mtu 1500", "10.0.1.1/24 mtu 9000 urpf loose", 1) +
			"route 10.9.0.0/16 on igb1\narp 10.0.1.2 2:0:0:0:0:1\noption icmp-rate off\noption icmp-source egress\noption neighbors 10\n", ""},
		{"default written out", old + "option idle adaptive\noption workers auto\n", ""},
		{"new port", old + "port igb3\n", "5:1: new port igb3 needs a restart"},
		{"new vlan", old + "vlan 5 on igb1\n", "5:1: new port igb1.5 needs a restart"},
		{"port gone", strings.Replace(old, "port igb2 addr kernel\n", "", 1), "2:1: taking away port igb2 needs a restart"},
		{"port settings", strings.Replace(old, "igb1 ", "igb1 driver afxdp queues 2 host off mac 2:0:0:0:0:1 vmac 2:0:0:0:0:2 offload keep ", 1),
			"1:1: a change of driver on port igb1|1:1: a change of queues|1:1: a change of host|1:1: a change of mac|1:1: a change of vmac|1:1: a change of offload"},
		{"options", old + "option workers 2\noption cpus 1,2\noption idle busy\noption buffer-size 4096\noption hugepages off\noption require native\noption routes kernel\n",
			"5:1: a change of option workers needs|6:1: a change of option cpus|7:1: a change of option idle|8:1: a change of option buffer-size|9:1: a change of option hugepages|10:1: a change of option require|11:1: a change of option routes"},
		{"option gone", strings.Replace(old, "option burst 32\n", "", 1), "4:1: a change of option burst"},
		{"option changed", strings.Replace(old, "burst 32", "burst 64", 1), "4:1: a change of option burst"},
		{"listen", strings.Replace(old, ":9469", ":9470", 1) + "listen control /x\n", "3:1: a change of listen metrics|5:1: a change of listen control"},
	} {
		t.Run(test.name, func(t *testing.T) {
			compare(t, "changes", texts(NeedsRestart(mustParse(t, old), mustParse(t, test.text))), test.want)
		})
	}
}
