package config

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unique"

	"nmfwd/config/syntax"
)

// lab is the configuration of the APU2 lab, as String prints it.
const lab = `port igb1 198.18.0.205/24 2001:2::205/64
port igb2 198.19.0.205/24 2001:2:0:8000::205/64
route 198.18.0.0/16 via 198.18.0.203
route 198.19.0.0/16 via 198.19.0.203
route 2001:2::/49 via 2001:2::203
route 2001:2:0:8000::/49 via 2001:2:0:8000::203
arp 198.18.0.203 00:1b:21:c4:95:7a
arp 198.19.0.203 00:1b:21:c4:95:7b
ndp 2001:2::203 00:1b:21:c4:95:7a
ndp 2001:2:0:8000::203 00:1b:21:c4:95:7b
`

// ports is what most rows need: two ports with both families.
const ports = `port igb1 198.18.0.205/24 2001:2::205/64
port igb2 198.19.0.205/24 2001:2:0:8000::205/64
`

// messages returns the errors of Parse and the warnings without the file's
// name, as LINE:COLUMN: MESSAGE, one a line.
func messages(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var errs Errors
	if !errors.As(err, &errs) || len(errs) == 0 {
		t.Fatalf("error %v (%T), want Errors", err, err)
	}
	return texts(errs)
}

func texts(errs []Error) []string {
	var s []string
	for _, e := range errs {
		s = append(s, strings.TrimPrefix(e.Error(), e.Pos.File()+":"))
	}
	return s
}

// A row is a line, after those of ports, and the message that it gets: the
// column and a part of the text, for the rest of it may be worded better one
// day.
type row struct {
	name, line string
	want       string // COLUMN: PART, empty for no error
}

func runRows(t *testing.T, before string, rows []row) {
	t.Helper()
	number := strings.Count(before, "\n") + 1
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			c, err := Parse("routes.conf", []byte(before+r.line+"\n"))
			got := messages(t, err)
			if r.want == "" {
				if got != nil {
					t.Fatalf("%s:\ngot %q, want no error", r.line, got)
				}
				roundTrip(t, c)
				return
			}
			col, part, _ := strings.Cut(r.want, ": ")
			place := fmt.Sprintf("%d:%s: ", number, col)
			if len(got) != 1 || !strings.HasPrefix(got[0], place) || !strings.Contains(got[0], part) {
				t.Errorf("%s:\ngot  %q\nwant %q", r.line, got, place+"..."+part+"...")
			}
			if c != nil {
				t.Error("got a Config with an error")
			}
		})
	}
}

// plainRoute is a route without places, for comparison.
type plainRoute struct {
	prefix netip.Prefix
	kind   Kind
	hops   []string
	port   int32
	mtu    uint16
}

// bare returns what c says without places and warnings.
func bare(c *Config) any {
	n := *c
	n.Warnings, n.files, n.fromText = nil, nil, nil
	n.metricsPos, n.controlPos = Pos{}, Pos{}
	for i := range n.Options.at {
		if n.Options.at[i].Valid() {
			n.Options.at[i] = syntax.At(unique.Make(""), 1, 1)
		}
	}
	n.Ports = slices.Clone(c.Ports)
	for i := range n.Ports {
		n.Ports[i].Pos, n.Ports[i].at, n.Ports[i].mtuAt = Pos{}, nil, Pos{}
	}
	n.VLANs = slices.Clone(c.VLANs)
	for i := range n.VLANs {
		n.VLANs[i].Pos = Pos{}
	}
	n.Neighbors = slices.Clone(c.Neighbors)
	for i := range n.Neighbors {
		n.Neighbors[i].Pos, n.Neighbors[i].off = Pos{}, 0
	}
	var routes []plainRoute
	for _, r := range c.Routes {
		p := plainRoute{r.Prefix, r.Kind, nil, r.Port, r.MTU}
		for _, h := range r.Hops {
			p.hops = append(p.hops, fmt.Sprintf("%s %d", h.Gateway, h.Port))
		}
		routes = append(routes, p)
	}
	n.Routes = nil
	return struct {
		Config
		routes []plainRoute
	}{n, routes}
}

// roundTrip checks that c prints as a text that reads the same.
func roundTrip(t *testing.T, c *Config) {
	t.Helper()
	text := c.String()
	again, err := Parse("printed", []byte(text))
	if err != nil {
		t.Fatalf("printed:\n%s%v", text, err)
	}
	if got, want := bare(again), bare(c); !reflect.DeepEqual(got, want) {
		t.Errorf("printed:\n%sgot  %+v\nwant %+v", text, got, want)
	}
	if got := again.String(); got != text {
		t.Errorf("printed twice:\n%s%s", text, got)
	}
}

func TestLab(t *testing.T) {
	c, err := Parse("lab", []byte(lab))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.String(); got != lab {
		t.Errorf("got:\n%swant:\n%s", got, lab)
	}
	if len(c.Warnings) > 0 {
		t.Errorf("got warnings %v, want none", c.Warnings)
	}
	roundTrip(t, c)
	if h := c.Routes[1].Hops[0]; h.Gateway != netip.MustParseAddr("198.19.0.203") || h.Port != 1 {
		t.Errorf("got gateway %+v, want 198.19.0.203 on port 1", h)
	}
	if n := c.Neighbors[3]; n.Port != 1 {
		t.Errorf("got neighbor on port %d, want 1", n.Port)
	}
	if p := c.Routes[2].Pos; p.File() != "lab" || p.Line() != 5 || p.Column() != 1 || p.String() != "lab:5:1" {
		t.Errorf("got place %s, want lab:5:1", p)
	}
}

// TestFull has every directive, keyword and option once.
func TestFull(t *testing.T) {
	text := `# comment
port igb1 198.18.0.205/24 2001:2::205/64
port netmap:igb2 198.19.0.205/24 2001:2:0:8000::205/64 mtu 9000 mac 2:0:0:0:0:1 host off queues 4 offload keep urpf strict vmac 00:00:5e:00:01:07 vmac 00-00-5E-00-02-07
port ix0 addr kernel host on queues 8 driver afxdp offload off urpf off
port vale0:p1 urpf loose
port x{1 # unnumbered
vlan 100 on netmap:igb2 10.1.0.1/24 mtu 1500 pcp 5
vlan 4094 on ix0 10.2.0.1/31
route default via 198.18.0.1
route ::/0 via fe80::1%netmap:igb1
route 203.0.113.0/24 via 198.18.0.203 via 198.19.0.203
route 192.0.2.0/24 blackhole
route 10.0.0.0/8 reject
route 172.16.0.0/12 on igb2 mtu 1400
route 172.31.0.1 198.19.0.203
route 100.64.0.0/10 via 100.64.0.1 on igb2.100
arp 198.18.0.203 000d.b941.ca3d
ndp fe80::2 0:d:b9:41:ca:3d on igb2
ndp fe80::2%igb1 0:d:b9:41:ca:3e
arp 192.0.2.77 0:d:b9:41:ca:3f on x{1
listen metrics 127.0.0.1:9469
listen control /var/run/nmfwd.sock
option workers 2
option cpus 1-3,5
option idle busy
option burst 64
option icmp-rate 100/s
option icmp-source egress
option ip-options forward
option buffer-size 4096
option hugepages off
option require zerocopy
option neighbors 1000
option routes kernel
`
	want := `port igb1 198.18.0.205/24 2001:2::205/64
port igb2 198.19.0.205/24 2001:2:0:8000::205/64 mtu 9000 mac 02:00:00:00:00:01 vmac 00:00:5e:00:01:07 vmac 00:00:5e:00:02:07 host off queues 4 driver netmap offload keep urpf strict
port ix0 addr kernel queues 8 driver afxdp
port vale0:p1 driver netmap urpf loose
port x{1 driver netmap
vlan 100 on igb2 10.1.0.1/24 mtu 1500 pcp 5
vlan 4094 on ix0 10.2.0.1/31
route 0.0.0.0/0 via 198.18.0.1
route ::/0 via fe80::1%igb1
route 203.0.113.0/24 via 198.18.0.203 via 198.19.0.203
route 192.0.2.0/24 blackhole
route 10.0.0.0/8 reject
route 172.16.0.0/12 on igb2 mtu 1400
route 172.31.0.1/32 via 198.19.0.203
route 100.64.0.0/10 via 100.64.0.1 on igb2.100
arp 198.18.0.203 00:0d:b9:41:ca:3d
ndp fe80::2 00:0d:b9:41:ca:3d on igb2
ndp fe80::2 00:0d:b9:41:ca:3e on igb1
arp 192.0.2.77 00:0d:b9:41:ca:3f on x{1
listen metrics 127.0.0.1:9469
listen control /var/run/nmfwd.sock
option workers 2
option cpus 1-3,5
option idle busy
option burst 64
option icmp-rate 100/s
option icmp-source egress
option ip-options forward
option buffer-size 4096
option hugepages off
option require zerocopy
option neighbors 1000
option routes kernel
`
	c, err := Parse("full", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.String(); got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
	roundTrip(t, c)
	tag := c.Ports[c.Port("igb2.100")]
	if tag.Host || tag.Driver != "netmap" || tag.MTU != 1500 {
		t.Errorf("got VLAN port %+v, want host off and driver netmap as its device", tag)
	}
	if v := c.VLANs[1]; v.Parent != c.Port("ix0") || v.Port != c.Port("ix0.4094") || len(c.Devices()) != 5 {
		t.Errorf("got VLAN %+v and %d devices", v, len(c.Devices()))
	}
	if got := c.Options.CPUs; !slices.Equal(got, []int{1, 2, 3, 5}) {
		t.Errorf("got CPUs %v, want 1 2 3 5", got)
	}
	if m := c.Warnings; len(m) > 0 {
		t.Errorf("got warnings %v, want none", m)
	}
}

// TestDefaults reads an empty file.
func TestDefaults(t *testing.T) {
	c, err := Parse("empty", []byte("port igb1\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Options, defaults(); !reflect.DeepEqual(got, want) || got.ICMPRate != 1000 || got.Neighbors != 65536 {
		t.Errorf("got options %+v, want %+v", got, want)
	}
	if p := c.Ports[0]; !p.Host || p.Driver != "" || p.MTU != 0 || p.Addrs != nil {
		t.Errorf("got port %+v, want host on and the rest unset", p)
	}
	if _, ok := c.Options.Set("icmp-rate"); ok {
		t.Error("got icmp-rate set, want not set")
	}
	c, err = Parse("set", []byte("option icmp-rate 1000/s\n"))
	if err != nil {
		t.Fatal(err)
	}
	if at, ok := c.Options.Set("icmp-rate"); !ok || at.String() != "set:1:1" {
		t.Errorf("got icmp-rate set at %s, %v, want set:1:1", at, ok)
	}
}

func TestRoute(t *testing.T) {
	runRows(t, ports, []row{
		{"bare gateway", "route 10.0.0.0/8 198.18.0.1", ""},
		{"bare gateway on port", "route 10.0.0.0/8 198.18.0.1 on igb1", ""},
		{"link-local on port", "route 2001:db8::/32 via fe80::1 on igb2", ""},
		{"host", "route 10.0.0.1 via 198.18.0.1", ""},
		{"host six", "route 2001:db8::1 via 2001:2::1", ""},
		{"gateway outside but on port", "route 10.0.0.0/8 via 192.0.2.1 on igb1", ""},
		{"zero length", "route 0.0.0.0/0 via 198.18.0.1", ""},
		{"default six", "route default via 2001:2::1", ""},
		{"default reject", "route default reject", ""},
		{"several gateways", "route 10.0.0.0/8 via 198.18.0.1 via 198.19.0.1 mtu 1400", ""},
		{"gateway that weighs two", "route 10.0.0.0/8 via 198.18.0.1 via 198.18.0.1 via 198.19.0.1", ""},
		{"same link-local gateway on two ports", "route ::/0 via fe80::1%igb1 via fe80::1%igb2", ""},
		{"mtu", "route 10.0.0.0/8 via 198.18.0.1 mtu 68", ""},

		{"nothing", "route", "6: route without a destination"},
		{"no gateway", "route 10.0.0.0/8", `17: a route needs a gateway`},
		{"via nothing", "route 10.0.0.0/8 via", "21: via without a gateway"},
		{"on nothing", "route 10.0.0.0/8 on", "20: on without a port"},
		{"mtu nothing", "route 10.0.0.0/8 via 198.18.0.1 mtu", "36: mtu without a value"},
		{"length too long", "route 10.0.0.0/33 via 198.18.0.1", `7: "33" is not a number from 0 to 32`},
		{"length too long six", "route 2001:db8::/129 via 2001:2::1", `7: "129" is not a number from 0 to 128`},
		{"length empty", "route 10.0.0.0/ via 198.18.0.1", `7: "" is not a number`},
		{"length zero padded", "route 10.0.0.0/08 via 198.18.0.1", `7: "08" is not a number`},
		{"length signed", "route 10.0.0.0/+8 via 198.18.0.1", `7: "+8" is not a number`},
		{"host bits with length zero", "route 10.0.0.1/0 via 198.18.0.1", "7: the network is 0.0.0.0/0, a host is 10.0.0.1/32"},
		{"host bits six", "route 2001:db8::1/32 via 2001:2::1", "7: the network is 2001:db8::/32"},
		{"octet too large", "route 10.0.0.256 via 198.18.0.1", "7: 256 is more than 255"},
		{"short host", "route 10.1 via 198.18.0.1", "7: it has 2 octets instead of 4"},
		{"unspecified host", "route 0.0.0.0 via 198.18.0.1", "7: write default or 0.0.0.0/0"},
		{"unspecified host six", "route :: via 2001:2::1", "7: write default or ::/0"},
		{"mapped host", "route ::ffff:10.0.0.1 via 198.18.0.1", "7: write 10.0.0.1"},
		{"zone in prefix", "route fe80::%igb1/64 via 2001:2::1", "7: has a zone"},
		{"name as destination", "route net1 via 198.18.0.1", `7: "net1" is not an address`},
		{"other family", "route 10.0.0.0/8 via 2001:2::1", "22: gateway 2001:2::1 is of another family than 10.0.0.0/8"},
		{"other family six", "route 2001:db8::/32 198.18.0.1", "21: gateway 198.18.0.1 is of another family"},
		{"two families", "route default via 198.18.0.1 via 2001:2::1", "34: of two families"},
		{"own gateway", "route 10.0.0.0/8 via 198.18.0.205", "22: is an address of igb1 itself"},
		{"own gateway on other port", "route 10.0.0.0/8 via 198.19.0.205 on igb1", "22: is an address of igb2 itself"},
		{"second gateway is own", "route 10.0.0.0/8 via 198.18.0.1 via 198.18.0.205", "37: is an address of igb1 itself"},
		{"network as gateway", "route 10.0.0.0/8 via 198.18.0.0", "22: is the address of the network 198.18.0.0/24"},
		{"broadcast as gateway", "route 10.0.0.0/8 via 198.18.0.255", "22: is the broadcast address of 198.18.0.0/24"},
		{"anycast as gateway", "route 2001:db8::/32 via 2001:2::", "25: is the subnet-router anycast address"},
		{"multicast as gateway", "route 10.0.0.0/8 via 224.0.0.1", "22: a multicast address"},
		{"loopback as gateway", "route 10.0.0.0/8 via 127.0.0.1", "22: a loopback address"},
		{"unspecified as gateway", "route 10.0.0.0/8 via 0.0.0.0", "22: the unspecified address"},
		{"limited broadcast as gateway", "route 10.0.0.0/8 via 255.255.255.255", "22: the broadcast address"},
		{"mapped gateway", "route 10.0.0.0/8 via ::ffff:198.18.0.1", "22: write 198.18.0.1"},
		{"not connected", "route 10.0.0.0/8 via 192.0.2.1", "22: in no connected network: write on PORT"},
		{"on other port than connected", "route 10.0.0.0/8 via 198.19.0.1 on igb1", "22: is not on igb1: its network 198.19.0.0/24 is on igb2"},
		{"link-local without port", "route ::/0 via fe80::1", "16: write fe80::1%PORT"},
		{"link-local without name", "route ::/0 via fe80::1%", "16: names no port"},
		{"link-local with two ports", "route ::/0 via fe80::1%igb1 on igb2", "16: fe80::1%igb1 is not on igb2"},
		{"unknown zone", "route ::/0 via fe80::1%igb3", `24: no port is called "igb3": did you mean igb1?`},
		{"unknown port", "route 10.0.0.0/8 on ibg1", `21: no port is called "ibg1": did you mean igb1?`},
		{"unknown port with gateway", "route 10.0.0.0/8 via 198.18.0.1 on em0", `36: no port is called "em0"`},
		{"unknown port with gateway elsewhere", "route 10.0.0.0/8 via 192.0.2.1 on em0", `35: no port is called "em0"`},
		{"port as gateway", "route 10.0.0.0/8 via igb1", `22: "igb1" is not an address`},
		{"port as bare gateway", "route 10.0.0.0/8 igb1", `18: unknown word "igb1"`},
		{"prefix as gateway", "route 10.0.0.0/8 via 198.18.0.1/24", "22: it has a prefix length"},
		{"far from any word", "route 10.0.0.0/8 drop", `18: unknown word "drop": known are via, on, blackhole, reject`},
		{"abbreviated", "route 10.0.0.0/8 black", `18: unknown word "black": did you mean blackhole?`},
		{"default on port", "route default on igb1", "7: write 0.0.0.0/0 or ::/0"},
		{"blackhole via", "route 10.0.0.0/8 blackhole via 198.18.0.1", `28: unexpected "via"`},
		{"two bare gateways", "route 10.0.0.0/8 198.18.0.1 198.18.0.2", `29: unexpected "198.18.0.2"`},
		{"mtu before via", "route 10.0.0.0/8 mtu 1400 via 198.18.0.1", `18: unknown word "mtu"`},
		{"mtu too small", "route 10.0.0.0/8 via 198.18.0.1 mtu 67", `37: "67" is not a number from 68 to 65535`},
		{"mtu too small for six", "route 2001:db8::/32 via 2001:2::1 mtu 1279", "39: less than the 1280 that IPv6 needs"},
		{"mtu too large", "route 10.0.0.0/8 via 198.18.0.1 mtu 65536", "37: not a number from 68 to 65535"},
		{"upper case", "Route 10.0.0.0/8 via 198.18.0.1", `1: unknown directive "Route": did you mean route?`},
		{"quotes", `route "10.0.0.0/8" via 198.18.0.1`, "7: is not an address"},
	})
}

// TestForeign has lines in the manner of other tools: the message shows how to
// write them here.
func TestForeign(t *testing.T) {
	runRows(t, ports, []row{
		{"net without a length", "route -net 10.0.0.0 198.18.0.203", `7: "-net" is not a word of this language, and the line cannot be converted: "10.0.0.0" has no prefix length`},
		{"other table", "route -net 10.0.0.0/8 198.18.0.203 -fib 1", "7: cannot be converted: routing table"},
		{"net", "route -net 198.18.0.0/16 198.18.0.203", `7: write route 198.18.0.0/16 via 198.18.0.203`},
		{"add net", "route add -net 198.18.0.0/16 198.18.0.203", `7: write route 198.18.0.0/16 via 198.18.0.203`},
		{"host", "route -host 10.0.0.5 198.18.0.203", `7: write route 10.0.0.5/32 via 198.18.0.203`},
		{"prefixlen", "route 2001:2:: -prefixlen 49 2001:2::203", `16: write route 2001:2::/49 via 2001:2::203`},
		{"inet6", "route -inet6 default 2001:2::203", `7: write route default via 2001:2::203`},
		{"netmask", "route -net 10.0.0.0 198.18.0.203 -netmask 255.255.0.0", `7: write route 10.0.0.0/16 via 198.18.0.203`},
		{"netmask hex", "route 10.0.0.0 198.18.0.203 -netmask 0xffff0000", `29: write route 10.0.0.0/16 via 198.18.0.203`},
		{"linux", "route add -net 10.0.0.0 netmask 255.0.0.0 gw 198.18.0.1 dev igb1", `7: write route 10.0.0.0/8 via 198.18.0.1 on igb1`},
		{"mask word", "route 10.0.0.0 255.0.0.0 198.18.0.1", `16: write route 10.0.0.0/8 via 198.18.0.1`},
		{"mask behind slash", "route 10.0.0.0/255.0.0.0 198.18.0.1", `7: write route 10.0.0.0/8 via 198.18.0.1`},
		{"interface", "route -net 10.0.0.0/8 -interface igb1", `7: write route 10.0.0.0/8 on igb1`},
		{"blackhole", "route -net 10.0.0.0/8 127.0.0.1 -blackhole", `7: write route 10.0.0.0/8 blackhole`},
		{"reject", "route 10.0.0.0/8 127.0.0.1 -reject", `28: write route 10.0.0.0/8 reject`},
		{"mtu", "route -net 10.0.0.0/8 198.18.0.1 -mtu 1400", `7: write route 10.0.0.0/8 via 198.18.0.1 mtu 1400`},
		{"dev", "route 10.0.0.0/8 via 198.18.0.1 dev igb1", `33: write route 10.0.0.0/8 via 198.18.0.1 on igb1`},
		{"inet", "port igb3 inet 198.18.9.205/24 -tso4 host off", `11: write port igb3 198.18.9.205/24 host off`},
		{"port netmask", "port igb3 198.18.9.205 netmask 255.255.255.0", `24: write port igb3 198.18.9.205/24`},
		{"port netmask hex", "port igb3 inet 198.18.9.205 netmask 0xffffff00 mtu 9000", `11: write port igb3 198.18.9.205/24 mtu 9000`},
		{"port mask word", "port igb3 198.18.9.205 255.255.255.0", `24: write port igb3 198.18.9.205/24`},
		{"port prefixlen", "port igb3 inet6 2001:db8::1 prefixlen 64 up", `11: write port igb3 2001:db8::1/64`},
		{"dhcp", "port igb3 DHCP", `11: write port igb3 addr kernel`},
		{"ether", "port igb3 ether 0:d:b9:41:ca:3d", `11: write port igb3 mac 00:0d:b9:41:ca:3d`},
		{"vlandev", "vlan 100 vlandev igb1 inet 10.1.0.1/24", `10: write vlan 100 on igb1 10.1.0.1/24`},
		{"arp", "arp -s 198.18.0.203 0:d:b9:41:ca:3d", `5: write arp 198.18.0.203 00:0d:b9:41:ca:3d`},
		{"flag unknown", "route -foo 10.0.0.0/8 198.18.0.1", `7: cannot be converted: unknown flag "-foo"`},
	})
}

func TestPort(t *testing.T) {
	runRows(t, "", []row{
		{"unnumbered", "port igb1", ""},
		{"six only", "port igb1 2001:2::205/64", ""},
		{"two addresses of a network", "port igb1 198.18.0.205/24 198.18.0.206/24 198.18.0.207/32", ""},
		{"point to point", "port igb1 10.0.0.0/31 2001:db8::/127 10.0.0.9/32 2001:db8::9/128", ""},
		{"link-local", "port igb1 fe80::1/64", ""},
		{"ipv4 link-local", "port igb1 169.254.1.1/16", ""},
		{"kernel and address", "port igb1 addr kernel 198.18.0.205/24", ""},
		{"netmap and prefix", "port netmap:igb1 driver netmap", ""},
		{"vale", "port vale12:some-long-name-of-a-virtual-machine", ""},
		{"pipe", "port netmap:igb1}1", ""},
		{"dash", "port br-lan", ""},
		{"ring to another driver", "port veth-1 driver afxdp", ""},
		{"longest name", "port abcdefghijklmno", ""},
		{"ipv4 mtu", "port igb1 10.0.0.1/24 mtu 68", ""},

		{"nothing", "port", "5: port without a name"},
		{"empty name", "port netmap:", "6: a port without a name"},
		{"name too long", "port abcdefghijklmnop", "6: longer than the 15 bytes"},
		{"vale name too long", "port vale0:" + strings.Repeat("x", 60), "6: longer than the 63 bytes"},
		{"slash", "port /dev/igb1", "6: has a slash"},
		{"dots", "port ..", "6: is not a device's name"},
		{"non-ASCII", "port igb\u00a01", `6: "igb\u00a01" has`},
		{"colon", "port igb1:0", "6: has a colon"},
		{"vale without port", "port vale0:", "6: is not a port of a VALE switch"},
		{"pipe without number", "port x{", "6: is not a pipe"},
		{"not ASCII", "port ré1", `6: has 'é', which no device's name has`},
		{"ring or name", "port veth-1", "6: or driver afxdp if the device is called so"},
		{"ring", "port igb1-2", "6: opens all rings of a port itself, write igb1"},
		{"ring with prefix", "port netmap:igb1-0", "6: write igb1"},
		{"host ring", "port igb1^", "6: write igb1"},
		{"all rings", "port igb1*", "6: write igb1"},
		{"memory region", "port igb1@3", "6: write igb1"},
		{"vlan device", "port igb0.100", "6: write vlan 100 on igb0"},
		{"driver unknown", "port igb1 driver dpdk", `18: "dpdk" is not netmap or afxdp`},
		{"driver against prefix", "port netmap:igb1 driver afxdp", "25: is a port of netmap"},
		{"driver against vale", "port vale0:p1 driver afxdp", "22: is a port of netmap"},
		{"keyword twice", "port igb1 mtu 1500 mtu 1500", "20: mtu twice"},
		{"host twice", "port igb1 host on host off", "19: host twice"},
		{"driver twice", "port igb1 driver afxdp driver netmap", "24: driver twice"},
		{"kernel twice", "port igb1 addr kernel addr kernel", "23: addr twice"},
		{"address twice", "port igb1 10.0.0.1/24 10.0.0.1/24", "23: address 10.0.0.1 twice"},
		{"address with two lengths", "port igb1 10.0.0.1/24 10.0.0.1/16", "23: address 10.0.0.1 twice"},
		{"vmac twice", "port igb1 vmac 0:0:5e:0:1:7 vmac 00:00:5e:00:01:07", "34: twice"},
		{"address without length", "port igb1 198.18.0.205", "11: has no prefix length, such as 198.18.0.205/24"},
		{"address without length six", "port igb1 2001:2::205", "11: has no prefix length, such as 2001:2::205/64"},
		{"number", "port igb1 24", `11: "24" is not an address`},
		{"network", "port igb1 198.18.0.0/24", "11: is the address of the network 198.18.0.0/24: write the port's own address"},
		{"broadcast", "port igb1 198.18.0.255/24", "11: is the broadcast address"},
		{"network six", "port igb1 2001:2::/64", "11: is the subnet-router anycast address"},
		{"length zero", "port igb1 198.18.0.1/0", "11: makes everything directly connected"},
		{"length too long", "port igb1 198.18.0.1/33", "11: not a number from 0 to 32"},
		{"loopback", "port igb1 127.0.0.1/8", "11: a loopback address"},
		{"multicast", "port igb1 224.0.0.1/24", "11: a multicast address"},
		{"multicast six", "port igb1 ff02::1/64", "11: a multicast address"},
		{"unspecified", "port igb1 0.0.0.0/24", "11: the unspecified address"},
		{"reserved", "port igb1 240.0.0.1/24", "11: a reserved address"},
		{"this network", "port igb1 0.0.0.1/24", "11: an address of 0.0.0.0/8"},
		{"mapped", "port igb1 ::ffff:10.0.0.1/120", "11: IPv4-mapped"},
		{"zone", "port igb1 fe80::1%igb1/64", "11: has a zone"},
		{"short form", "port igb1 10.1/16", "11: is a short form: write 10.1.0.0/16"},
		{"addr address", "port igb1 addr 10.0.0.1/24", "16: an address stands alone"},
		{"addr nothing", "port igb1 addr", "15: addr without a value"},
		{"mtu zero", "port igb1 mtu 0", "15: not a number from 68 to 65535"},
		{"mtu word", "port igb1 mtu jumbo", "15: not a number"},
		{"mtu huge", "port igb1 mtu 99999999999999999999", "15: not a number"},
		{"mtu too small for six", "port igb1 2001:2::205/64 mtu 1279", "30: less than the 1280 that IPv6 needs"},
		{"queues zero", "port igb1 queues 0", "18: not a number from 1 to 1024"},
		{"host word", "port igb1 host yes", `16: "yes" is not on or off`},
		{"offload word", "port igb1 offload on", `19: "on" is not off or keep`},
		{"urpf word", "port igb1 urpf on", `16: "on" is not off, loose or strict`},
		{"mac zero", "port igb1 mac 0:0:0:0:0:0", "15: the zero MAC address"},
		{"mac multicast", "port igb1 mac 1:0:5e:0:0:1", "15: a multicast MAC address"},
		{"vmac broadcast", "port igb1 vmac ff:ff:ff:ff:ff:ff", "16: the broadcast MAC address"},
		{"mac short", "port igb1 mac 0:d:b9:41:ca", "15: is not a MAC address"},
		{"mac with long group", "port igb1 mac 000:d:b9:41:ca:3d", "15: is not a MAC address"},
		{"unknown word", "port igb1 mut 1500", `11: unknown word "mut": did you mean mtu?`},
	})
	runRows(t, ports, []row{
		{"same address on two ports", "port igb3 198.18.0.205/32", "11: address 198.18.0.205 is also that of igb1"},
		{"declared twice", "port igb1 10.0.0.1/24", "1: port igb1 has another value at routes.conf:1:1"},
		{"declared twice with prefix", "port netmap:igb1", "1: port igb1 has another value at routes.conf:1:1"},
		{"overlap inside", "port igb3 198.18.0.129/25", "11: network 198.18.0.128/25 of igb3 overlaps 198.18.0.0/24 of igb1"},
		{"overlap outside", "port igb3 198.18.9.1/16", "11: network 198.18.0.0/16 of igb3 overlaps 198.18.0.0/24 of igb1"},
		{"same link-local network", "port igb3 fe80::1/64", ""},
	})
}

func TestVLAN(t *testing.T) {
	runRows(t, "port igb1 10.0.0.1/24 mtu 1500\nvlan 5 on igb1 10.5.0.1/24\n", []row{
		{"lowest", "vlan 1 on igb1", ""},
		{"highest", "vlan 4094 on igb1 pcp 7", ""},
		{"routes use it", "route 192.0.2.0/24 on igb1.5", ""},
		{"zero", "vlan 0 on igb1", "6: the VLAN ID \"0\" is not a number from 1 to 4094"},
		{"reserved", "vlan 4095 on igb1", "6: not a number from 1 to 4094"},
		{"no id", "vlan", "5: vlan without an ID"},
		{"no port", "vlan 7 on", "10: on without a port"},
		{"no on", "vlan 7 igb1", "8: vlan ID on PORT"},
		{"unknown port", "vlan 7 on igb2", `11: no port is called "igb2": did you mean igb1?`},
		{"twice", "vlan 5 on igb1 10.6.0.1/24", "1: vlan igb1.5 has another value at routes.conf:2:1"},
		{"stacked", "vlan 7 on igb1.5", "1: igb1.5 is a VLAN itself"},
		{"pcp", "vlan 7 on igb1 pcp 8", "20: not a number from 0 to 7"},
		{"mtu above the device's", "vlan 7 on igb1 mtu 1501", "20: more than the 1500 of igb1"},
		{"port keyword", "vlan 7 on igb1 host off", `16: unknown word "host"`},
		{"overlap", "vlan 7 on igb1 10.5.0.2/24", "16: network 10.5.0.0/24 of igb1.7 overlaps 10.5.0.0/24 of igb1.5"},
	})
}

func TestNeighbor(t *testing.T) {
	runRows(t, ports, []row{
		{"arp", "arp 198.18.0.203 0:d:b9:41:ca:3d", ""},
		{"on port", "arp 192.0.2.1 0:d:b9:41:ca:3d on igb1", ""},
		{"link-local", "ndp fe80::1 0:d:b9:41:ca:3d on igb1", ""},
		{"zone", "ndp fe80::1%igb1 0:d:b9:41:ca:3d", ""},
		{"nothing", "arp", "4: arp without an address"},
		{"no mac", "arp 198.18.0.203", "17: 198.18.0.203 without a MAC address"},
		{"six as arp", "arp 2001:2::203 0:d:b9:41:ca:3d", "5: write ndp"},
		{"four as ndp", "ndp 198.18.0.203 0:d:b9:41:ca:3d", "5: write arp"},
		{"own address", "arp 198.18.0.205 0:d:b9:41:ca:3d", "5: is an address of igb1 itself"},
		{"not connected", "arp 192.0.2.1 0:d:b9:41:ca:3d", "5: in no connected network"},
		{"other port", "arp 198.18.0.203 0:d:b9:41:ca:3d on igb2", "5: is not on igb2"},
		{"unknown port", "arp 198.18.0.203 0:d:b9:41:ca:3d on igb9", `37: no port is called "igb9"`},
		{"network", "arp 198.18.0.0 0:d:b9:41:ca:3d", "5: is the address of the network"},
		{"broadcast", "arp 198.18.0.255 0:d:b9:41:ca:3d", "5: is the broadcast address"},
		{"multicast", "arp 224.0.0.1 0:d:b9:41:ca:3d", "5: a multicast address"},
		{"multicast six", "ndp ff02::1 0:d:b9:41:ca:3d", "5: a multicast address"},
		{"link-local without port", "ndp fe80::1 0:d:b9:41:ca:3d", "5: needs its port"},
		{"two ports", "ndp fe80::1%igb1 0:d:b9:41:ca:3d on igb2", "37: fe80::1%igb1 is not on igb2"},
		{"rest", "arp 198.18.0.203 0:d:b9:41:ca:3d pub", `34: unexpected "pub"`},
		{"prefix", "arp 198.18.0.203/24 0:d:b9:41:ca:3d", "5: it has a prefix length"},
	})
	runRows(t, "port igb1 198.18.0.205/24 mac 0:d:b9:41:ca:3d\noption neighbors 1\narp 198.18.0.1 2:0:0:0:0:1\n", []row{
		{"too many", "arp 198.18.0.2 2:0:0:0:0:2", "1: 2 neighbors, but option neighbors is 1"},
	})
	runRows(t, "port igb1 198.18.0.205/24 mac 0:d:b9:41:ca:3d vmac 0:0:5e:0:1:7\n", []row{
		{"further mac of the port", "arp 198.18.0.2 0:0:5e:0:1:7", "5: has the MAC address of igb1 itself"},
		{"mac of the port, link-local", "ndp fe80::2%igb1 0:d:b9:41:ca:3d", "5: has the MAC address of igb1 itself"},
		{"mac of the port", "arp 198.18.0.2 0:d:b9:41:ca:3d", "5: has the MAC address of igb1 itself"},
	})
}

func TestListenOption(t *testing.T) {
	runRows(t, "", []row{
		{"all addresses", "listen metrics :9469", ""},
		{"six", "listen metrics [::1]:9469", ""},
		{"localhost", "listen metrics localhost:9469", ""},
		{"system's choice", "listen metrics 127.0.0.1:0", ""},
		{"off", "option icmp-rate off", ""},
		{"autos", "option workers auto\noption cpus auto\noption burst auto\noption buffer-size auto\noption hugepages auto", ""},
		{"cpu order", "option cpus 5,1-3,0", ""},

		{"listen nothing", "listen", "7: listen without metrics or control"},
		{"listen what", "listen metric 127.0.0.1:1", `8: unknown word "metric": did you mean metrics?`},
		{"no address", "listen metrics", "15: metrics without an address"},
		{"no port", "listen metrics 127.0.0.1", "16: is not an address and port"},
		{"port too large", "listen metrics 127.0.0.1:65536", "16: not a number from 0 to 65535"},
		{"port name", "listen metrics 127.0.0.1:http", "16: not a number"},
		{"host name", "listen metrics router:9469", "16: is not an address"},
		{"star", "listen metrics *:9469", "16: all addresses are written :9469"},
		{"six without brackets", "listen metrics ::1", "16: write [::1]:9469"},
		{"six and port without brackets", "listen metrics ::1:9470", "16: write [::1]:9470"},
		{"four in brackets", "listen metrics [127.0.0.1]:9469", "16: write 127.0.0.1:9469"},
		{"relative path", "listen control run/nmfwd.sock", "16: is not an absolute path"},
		{"path too long", "listen control /" + strings.Repeat("x", 103), "16: longer than the 103 bytes"},
		{"path of a directory", "listen control /var/run/", "16: is a directory"},
		{"listen rest", "listen metrics :1 :2", `19: unexpected ":2"`},

		{"option nothing", "option", "7: option without a name"},
		{"option without value", "option workers", "15: workers without a value"},
		{"option rest", "option workers 1 2", `18: unexpected "2"`},
		{"option unknown", "option worker 1", `8: unknown option "worker": did you mean workers?`},
		{"option far from all", "option zzzzzzzzzz 1", "8: known are workers, cpus"},
		{"workers zero", "option workers 0", "16: not a number from 1 to 1024, nor auto"},
		{"workers negative", "option workers -1", "16: not a number from 1 to 1024, nor auto"},
		{"cpus empty part", "option cpus 1,,2", "13: is not a set of CPUs"},
		{"cpus falling", "option cpus 3-1", "13: write 1-3"},
		{"cpus twice", "option cpus 1-3,2", "13: has CPU 2 twice"},
		{"cpus too large", "option cpus 1024", "13: is not a set of CPUs from 0 to 1023"},
		{"idle", "option idle lazy", `13: "lazy" is not adaptive, poll or busy`},
		{"burst", "option burst 0", "14: not a number from 1 to 1024"},
		{"burst too large", "option burst 1025", "14: not a number from 1 to 1024"},
		{"rate without unit", "option icmp-rate 1000", "18: write 1000/s"},
		{"rate zero", "option icmp-rate 0/s", "18: is not a rate from 1/s"},
		{"rate per minute", "option icmp-rate 10/m", "18: is not a rate"},
		{"source", "option icmp-source loopback", "20: is not ingress or egress"},
		{"buffer odd", "option buffer-size 2049", "20: is not a multiple of 64"},
		{"buffer small", "option buffer-size 64", "20: not a number from 512 to 65536"},
		{"hugepages", "option hugepages yes", "18: is not auto, on or off"},
		{"require", "option require emulated", "16: is not nothing, native or zerocopy"},
		{"neighbors", "option neighbors 0", "18: not a number from 1"},
		{"routes", "option routes both", "15: is not file or kernel"},
		{"include in Parse", "include x.conf", "9: include is possible only in a file"},
		{"include nothing", "include", "8: include without a path"},
		{"directive", "rout 10.0.0.0/8 via 1.2.3.4", `1: unknown directive "rout": did you mean route?`},
		{"directive far from all", "interface igb1", "1: known are port, vlan"},
		{"rc.conf, what does not matter here", "gateway_enable=\"YES\"", "1: a line of rc.conf(5)"},
		{"rc.conf", "static_routes=\"a\"", "1: nmfwd import rc.conf FILE translates it"},
	})
	runRows(t, "option cpus 7\nlisten metrics :1\n", []row{
		{"more workers than cpus", "option workers 2", "1: 2 workers, but option cpus has only 1"},
		{"other value", "option cpus 2", "1: option cpus has another value at routes.conf:1:1"},
		{"other address", "listen metrics :2", "1: listen metrics has another value at routes.conf:2:1"},
	})
}
