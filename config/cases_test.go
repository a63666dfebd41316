package config

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"nmfwd/config/syntax"
)

// The numbers of the tests below are those of the table of known faults of
// forwarders (B) and of derived inputs (X) that the project keeps.

// mustParse returns the configuration, which must have no error.
func mustParse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse("routes.conf", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestRoutesInAnyOrder reads routes in every order: the result says the same.
func TestRoutesInAnyOrder(t *testing.T) {
	routes := []string{
		"route 0.0.0.0/0 via 198.18.0.1", "route 10.0.0.0/8 via 198.18.0.2", "route 10.40.0.0/16 via 198.18.0.3",
		"route 10.40.2.0/24 via 198.18.0.4", "route 10.40.2.7/32 via 198.18.0.5",
	}
	n := 0
	var permute func(k int)
	permute = func(k int) {
		if k == len(routes) {
			n++
			c := mustParse(t, strings.Join(routes, "\n")+"\nport igb1 198.18.0.205/24\n")
			lines := strings.Split(strings.TrimSpace(c.String()), "\n")[1:]
			slices.Sort(lines)
			want := "route 0.0.0.0/0 via 198.18.0.1,route 10.0.0.0/8 via 198.18.0.2,route 10.40.0.0/16 via 198.18.0.3,route 10.40.2.0/24 via 198.18.0.4,route 10.40.2.7/32 via 198.18.0.5"
			if got := strings.Join(lines, ","); got != want {
				t.Fatalf("got %s, want %s", got, want)
			}
			return
		}
		for i := k; i < len(routes); i++ {
			routes[k], routes[i] = routes[i], routes[k]
			permute(k + 1)
			routes[k], routes[i] = routes[i], routes[k]
		}
	}
	permute(0)
	if n != 120 {
		t.Errorf("%d orders, want 120", n)
	}
}

// TestEveryPrefixLength reads and prints a prefix of every length.
func TestEveryPrefixLength(t *testing.T) {
	for _, a := range []string{"172.29.213.87", "255.255.255.255", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"} {
		addr := netip.MustParseAddr(a)
		for bits := 0; bits <= addr.BitLen(); bits++ {
			p, _ := addr.Prefix(bits)
			c := mustParse(t, "port igb1\nroute "+p.String()+" blackhole\n")
			if got := c.Routes[0].Prefix; got != p {
				t.Errorf("got %s, want %s", got, p)
			}
			roundTrip(t, c)
		}
	}
}

func TestKindsOfRoutes(t *testing.T) {
	c := mustParse(t, ports+"route 10.1.0.0/16 via 198.18.0.1\nroute 10.2.0.0/16 blackhole\nroute 10.3.0.0/16 via 198.18.0.1\nroute 10.4.0.0/16 reject\nroute 10.5.0.0/16 on igb2\n")
	want := []Kind{Via, Blackhole, Via, Reject, OnLink}
	for i, k := range want {
		if r := c.Routes[i]; r.Kind != k || (len(r.Hops) > 0) != (k == Via) {
			t.Errorf("got %s of kind %s, want %s", r.Prefix, r.Kind, k)
		}
	}
}

func TestSlipsInRoutes(t *testing.T) {
	runRows(t, ports, []row{
		{"bla", "route 10.0.0.0/8 bla", `18: unknown word "bla": did you mean blackhole?`},
		{"via bla", "route 10.0.0.0/8 via bla", `22: "bla" is not an address`},
		{"semicolon", "route 10.0.0.0/8 via 198.18.0.5;", `22: a line ends without ";", write 198.18.0.5`},
		{"word behind", "route 10.0.0.0/8 via 198.18.0.5regenbogen", `22: "198.18.0.5regenbogen" is not an address`},
		{"bare semicolon", "route 10.0.0.0/8 198.18.0.5;", `18: a line ends without ";"`},
		{"leading zero last", "route 10.0.0.0/8 via 10.0.0.05", `22: an octet has a leading zero, write 10.0.0.5`},
		{"leading zero first", "route 10.0.0.0/8 via 010.0.0.5", `22: an octet has a leading zero, write 10.0.0.5`},
		{"leading zero in prefix", "route 010.0.0.0/8 via 198.18.0.1", `7: an octet has a leading zero`},
	})
}

func TestGatewayMustBeConnected(t *testing.T) {
	runRows(t, ports, []row{
		{"own address", "route 10.0.0.0/8 via 198.18.0.205", "22: is an address of igb1 itself"},
		{"own address six", "route 2001:db8::/32 via 2001:2::205", "25: is an address of igb1 itself"},
		{"no connected network", "route 10.0.0.0/8 via 192.0.2.1", "22: is in no connected network"},
		{"no connected network but on", "route 10.0.0.0/8 via 192.0.2.1 on igb1", ""},
	})
}

// TestLinesInAnyOrder reads the lines of a file in many orders: the ports, gateways and
// neighbors are the same.
func TestLinesInAnyOrder(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(lab), "\n")
	sorted := func(c *Config) string {
		var s []string
		for _, r := range c.Routes {
			s = append(s, fmt.Sprintf("%s %s %s", r.Prefix, r.Hops[0].Gateway, c.Ports[r.Hops[0].Port].Name))
		}
		for _, n := range c.Neighbors {
			s = append(s, fmt.Sprintf("%s %s %s", n.Addr, n.MAC, c.Ports[n.Port].Name))
		}
		slices.Sort(s)
		return strings.Join(s, "\n")
	}
	want := sorted(mustParse(t, lab))
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		r.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
		if got := sorted(mustParse(t, strings.Join(lines, "\n"))); got != want {
			t.Fatalf("%s\ngot:\n%s\nwant:\n%s", strings.Join(lines, "\n"), got, want)
		}
	}
}

// TestPlausibleSlipIsAccepted has a slip that no program can tell from a wish: it is accepted.
func TestPlausibleSlipIsAccepted(t *testing.T) {
	c := mustParse(t, "port cxl0 198.18.0.8/24\nroute 192.18.0.0/16 via 198.18.0.110\n")
	if len(c.Warnings) > 0 {
		t.Errorf("got %v, want no warning", c.Warnings)
	}
}

func TestUnusualText(t *testing.T) {
	const port = "port igb1 198.18.0.205/24 2001:2::205/64\n"
	const route = "route 10.0.0.0/8 via 198.18.0.1\n"
	for _, test := range []struct {
		name, text string
		errs       string // LINE:COLUMN: PART, separated by |
		warns      string
		routes     int
	}{
		{"CRLF", strings.ReplaceAll(port+route, "\n", "\r\n"), "", "", 1},
		{"CR at the end", strings.TrimSuffix(port+route, "\n") + "\r", "", "", 1},
		{"CR inside", "port igb1\rport igb2\n", `1:10: control character '\r'`, "", 0},
		{"BOM", "\ufeff" + port + route, "", "", 1},
		{"BOM later", port + "\ufeff" + route, `2:1: unknown directive "\ufeffroute": did you mean route?`, "", 0},
		{"UTF-16", "\xff\xfep\x00o\x00", "1:1: the file is UTF-16", "", 0},
		{"UTF-16 big-endian", "\xfe\xff\x00p", "1:1: the file is UTF-16", "", 0},
		{"no newline", port + strings.TrimSuffix(route, "\n"), "", "", 1},
		{"tabs", "\tport\tigb1  198.18.0.205/24\t\n \t\nroute \t10.0.0.0/8\t via\t198.18.0.1 \t \n", "", "", 1},
		{"NUL", port + "route 10.0.0.0/8\x00via 198.18.0.1\n", "2:17: a NUL byte", "", 0},
		{"NUL in a comment", port + "# a\x00\n", "2:4: a NUL byte", "", 0},
		{"control", port + "route\v10.0.0.0/8 via 198.18.0.1\n", `2:6: control character '\v'`, "", 0},
		{"delete", port + "# \x7f\n", `2:3: control character '\x7f'`, "", 0},
		{"not UTF-8", port + "route 10.0.0.\xff/8 via 198.18.0.1\n", `2:7: "10.0.0.\xff/8" is not UTF-8`, "", 0},
		{"Latin-1 in a comment", "# gr\xfc\xdfe\n" + port + route, "", "", 1},
		{"UTF-8 in a comment", "# grüße\n" + port + route, "", "", 1},
		{"comment in a line", port + "route 10.0.0.0/8 via 198.18.0.1 # comment\n#\n", "", "", 1},
		{"comment in a word", port + "route 10.0.0.0/8 via 198.18.0.1#comment\n", "", "", 1},
		{"semicolon", port + "route 10.0.0.0/8 via 198.18.0.1;\n", `2:22: a line ends without ";"`, "", 0},
		{"semicolon alone", port + "route 10.0.0.0/8 via 198.18.0.1 ;\n", `2:33: unexpected ";"`, "", 0},
		{"host bits", port + "route 10.1.2.3/8 via 198.18.0.1\n", "2:7: has host bits set: the network is 10.0.0.0/8", "", 0},
		{"short form", port + "route 10.1/16 via 198.18.0.1\n", "2:7: is a short form: write 10.1.0.0/16", "", 0},
		{"shorter form", port + "route 10/8 via 198.18.0.1\n", "2:7: is a short form: write 10.0.0.0/8", "", 0},
		{"mapped prefix", port + "route ::ffff:198.18.0.0/112 via 2001:2::1\n", "2:7: is an IPv4-mapped IPv6 prefix", "", 0},
		{"mapped gateway", port + "route 10.0.0.0/8 via ::ffff:198.18.0.1\n", "2:22: write 198.18.0.1", "", 0},
		{"zone", port + "route ::/0 via 2001:2::1%igb1\n", "2:16: only a link-local address needs: write 2001:2::1", "", 0},
		{"short MAC", port + "arp 198.18.0.1 0:d:b9:41:ca:3d\n", "", "", 0},
		{"dotted MAC", port + "arp 198.18.0.1 000d.b941.ca3d\n", "", "", 0},
		{"dashed MAC", port + "arp 198.18.0.1 00-0D-B9-41-CA-3D\n", "", "", 0},
		{"mixed MAC", port + "arp 198.18.0.1 00-0d:b9-41:ca-3d\n", "2:16: is not a MAC address", "", 0},
		{"bare MAC", port + "arp 198.18.0.1 000db941ca3d\n", "2:16: is not a MAC address", "", 0},
		{"multicast MAC", port + "arp 198.18.0.1 01:00:5e:00:00:01\n", "2:16: a multicast MAC address", "", 0},
		{"multicast MAC six", port + "ndp 2001:2::1 33:33:00:00:00:01\n", "2:15: a multicast MAC address", "", 0},
		{"zero MAC", port + "arp 198.18.0.1 00:00:00:00:00:00\n", "2:16: the zero MAC address", "", 0},
		{"broadcast MAC", port + "arp 198.18.0.1 ff:ff:ff:ff:ff:ff\n", "2:16: the broadcast MAC address", "", 0},
		{"same route", port + route + route, "", "3:1: route 10.0.0.0/8 again, as at routes.conf:2:1", 1},
		{"same gateways in another order", port + "route 10.0.0.0/8 via 198.18.0.1 via 198.18.0.2\nroute 10.0.0.0/8 via 198.18.0.2 via 198.18.0.1\n", "", "3:1: again", 1},
		{"bare gateway", port + route + "route 10.0.0.0/8 198.18.0.1\n", "", "3:1: again", 1},
		{"zone and port", port + "route ::/0 via fe80::1%igb1\nroute ::/0 via fe80::1 on igb1\n", "", "3:1: again", 1},
		{"default", port + "route default via 198.18.0.1\nroute 0.0.0.0/0 via 198.18.0.1\n", "", "3:1: again", 1},
		{"same port", port + port, "", "2:1: port igb1 again, as at routes.conf:1:1", 0},
		{"same vlan", port + "vlan 5 on igb1\nvlan 5 on netmap:igb1\n", "", "3:1: vlan igb1.5 again", 0},
		{"same option", "option idle poll\noption idle poll\n", "", "2:1: option idle again", 0},
		{"same listen", "listen metrics :1\nlisten metrics :1\n", "", "2:1: listen metrics again", 0},
		{"other gateway", port + route + "route 10.0.0.0/8 via 198.18.0.2\n", "3:1: route 10.0.0.0/8 has another value at routes.conf:2:1", "", 0},
		{"other weights", port + "route 10.0.0.0/8 via 198.18.0.1 via 198.18.0.1 via 198.18.0.2\nroute 10.0.0.0/8 via 198.18.0.1 via 198.18.0.2 via 198.18.0.2\n", "3:1: another value", "", 0},
		{"more gateways", port + route + "route 10.0.0.0/8 via 198.18.0.1 via 198.18.0.2\n", "3:1: another value", "", 0},
		{"other kind", port + route + "route 10.0.0.0/8 reject\n", "3:1: another value", "", 0},
		{"other MTU", port + route + "route 10.0.0.0/8 via 198.18.0.1 mtu 1400\n", "3:1: another value", "", 0},
		{"both defaults", port + "route default reject\nroute ::/0 via 2001:2::1\n", "3:1: route ::/0 has another value", "", 0},
		{"other MAC", port + "arp 198.18.0.1 2:0:0:0:0:1\narp 198.18.0.1 2:0:0:0:0:2\n", "3:1: arp 198.18.0.1 has another value at routes.conf:2:1", "", 0},
		{"same MAC", port + "arp 198.18.0.1 2:0:0:0:0:1\narp 198.18.0.1 02-00-00-00-00-01\n", "", "3:1: arp 198.18.0.1 again", 0},
		{"link-local on two ports", port + "port igb2\nndp fe80::1%igb1 2:0:0:0:0:1\nndp fe80::1%igb2 2:0:0:0:0:2\n", "", "", 0},
		{"link-local twice", port + "ndp fe80::1%igb1 2:0:0:0:0:1\nndp fe80::1 2:0:0:0:0:2 on igb1\n", "3:1: ndp fe80::1 has another value", "", 0},
		{"overlap", port + "port igb2 198.18.9.1/16\n", "2:11: network 198.18.0.0/16 of igb2 overlaps 198.18.0.0/24 of igb1", "", 0},
		{"same network", port + "port igb2 2001:2::9/64\n", "2:11: network 2001:2::/64 of igb2 overlaps 2001:2::/64 of igb1", "", 0},
		{"nested networks of one port", "port igb1 10.0.0.1/8 10.1.0.1/24\nroute 172.16.0.0/16 via 10.1.0.255\n", "2:25: is the broadcast address of 10.1.0.0/24", "", 0},
		{"connected", port + "route 198.18.0.0/24 via 198.18.0.1\n", "", "2:1: route 198.18.0.0/24 is to the network connected to igb1, which comes first", 1},
		{"own address", port + "route 198.18.0.205 via 198.18.0.1\n", "", "2:1: to an address of igb1", 1},
		{"broadcast", port + "route 198.18.0.255 via 198.18.0.1\n", "", "2:1: has no effect: it is to the broadcast address of 198.18.0.0/24", 1},
		{"never forwarded", "route 127.0.0.0/8 blackhole\nroute fe80::/10 reject\nroute 224.0.1.0/24 reject\n", "", "1:7: has no effect|2:7: has no effect|3:7: has no effect", 3},
		{"MTU of a port", "port igb1 10.0.0.1/24 mtu 1500\nroute 10.9.0.0/16 on igb1 mtu 1501\n", "", "2:1: MTU 1501 of route 10.9.0.0/16 is more than the 1500 of igb1", 1},
		{"MTU of nothing", "route 10.9.0.0/16 blackhole mtu 1501\n", "", "1:29: the MTU has no effect", 1},
		{"recursive", port + route + "route 192.0.2.0/24 via 10.0.0.1\n", "3:24: gateway 10.0.0.1 is in no connected network", "", 0},
		{"long line", port + "#" + strings.Repeat("x", syntax.MaxLine-1) + "\n" + route, "", "", 1},
		{"longer line", port + "#" + strings.Repeat("x", syntax.MaxLine) + "\n", "2:1: longer than 65535 bytes", "", 0},
		{"long word", port + "route " + strings.Repeat("x", 60000) + "\n", `2:7: xxxx"... is not an address`, "", 0},
		{"too many gateways", port + "route 10.0.0.0/8" + func() (s string) {
			for i := range maxHops + 1 {
				s += fmt.Sprintf(" via 198.18.0.%d", i+1)
			}
			return s
		}() + "\n", "2:1037: more than 64 gateways", "", 0},
		{"all errors at once", "port igb1 198.18.0.205/33 mtu 0\nrouter\nroute 10.0.0.1/8 via 198.18.0.1\nroute 10.0.0.0/8 via 192.0.2.1\nroute 10.0.0.0/8 via 224.0.0.1\noption idle x\nroute 10.1.0.0/16 on igb9\n",
			"1:11: prefix length|1:31: not a number|2:1: did you mean route?|3:7: host bits|5:22: a multicast address|6:13: is not adaptive|7:22: no port is called", "", 0},
		{"syntax and addresses at once", port + "route 10.0.0.0/8 via 192.0.2.1\nbla\nport igb2 198.18.0.9/25\n",
			"2:22: in no connected network|3:1: unknown directive|4:11: overlaps", "", 0},
		{"no errors that follow from others", "port igb1 198.18.0.205/24\nport igb1 198.18.1.205/24\nroute 10.0.0.0/8 via 198.18.1.1\n", "2:1: another value", "", 0},
		{"nothing", "", "", "", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := Parse("routes.conf", []byte(test.text))
			compare(t, "errors", messages(t, err), test.errs)
			if err == nil {
				compare(t, "warnings", texts(c.Warnings), test.warns)
				if len(c.Routes) != test.routes {
					t.Errorf("got %d routes, want %d", len(c.Routes), test.routes)
				}
				roundTrip(t, c)
			}
		})
	}
}

// compare compares messages with LINE:COLUMN: PART|...
func compare(t *testing.T, what string, got []string, want string) {
	t.Helper()
	var parts []string
	if want != "" {
		parts = strings.Split(want, "|")
	}
	ok := len(got) == len(parts)
	for i := 0; ok && i < len(parts); i++ {
		place, part, _ := strings.Cut(parts[i], ": ")
		ok = strings.HasPrefix(got[i], place+": ") && strings.Contains(got[i], part)
	}
	if !ok {
		t.Errorf("%s: got\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(parts, "\n"))
	}
}

// TestFullTable reads a full table.
func TestFullTable(t *testing.T) {
	const n = 200000
	c := mustParse(t, string(manyRoutes(n)))
	if len(c.Routes) != n {
		t.Fatalf("got %d routes, want %d", len(c.Routes), n)
	}
	if got := testing.AllocsPerRun(1, func() { mustParse(t, string(manyRoutes(10))) }); got > 200 {
		t.Errorf("%v allocations for 10 routes", got)
	}
	hops := make(map[*Hop]bool)
	for i := range c.Routes {
		hops[&c.Routes[i].Hops[0]] = true
	}
	if len(hops) > 1000 {
		t.Errorf("%d hops for 4 gateways: routes do not share them", len(hops))
	}
}

// TestManyGateways gives each route a gateway of its own, more than are found
// again.
func TestManyGateways(t *testing.T) {
	var b strings.Builder
	b.WriteString("port igb1 10.0.0.1/8\n")
	const n = 20000
	for i := range n {
		fmt.Fprintf(&b, "route 172.16.%d.%d via 10.1.%d.%d via 10.2.%d.%d\n", i>>8, i&255, i>>8, i&255, i>>8, i&255)
		fmt.Fprintf(&b, "route 192.168.%d.%d via 10.3.%d.%d\n", i>>8, i&255, i>>8, i&255)
	}
	c := mustParse(t, b.String())
	for i := range n {
		for j, want := range []string{"10.1", "10.2"} {
			if got := c.Routes[2*i].Hops[j]; got.Gateway.String() != fmt.Sprintf("%s.%d.%d", want, i>>8, i&255) || got.Port != 0 {
				t.Fatalf("route %d: got gateway %s on port %d", 2*i, got.Gateway, got.Port)
			}
		}
		if got := c.Routes[2*i+1].Hops[0].Gateway.String(); got != fmt.Sprintf("10.3.%d.%d", i>>8, i&255) {
			t.Fatalf("route %d: got gateway %s", 2*i+1, got)
		}
	}
}

// TestSharedGateways has one gateway in several ways: routes that share hops
// keep their own ports and places.
func TestSharedGateways(t *testing.T) {
	c := mustParse(t, "port a\nport b\n"+
		"route 2001:db8:1::/48 via fe80::1%a\nroute 2001:db8:2::/48 via fe80::1%b\nroute 2001:db8:3::/48 via fe80::1%a\n"+
		"route 10.1.0.0/16 via 192.0.2.1 on a\nroute 10.2.0.0/16 via 192.0.2.1 on b\nroute 10.3.0.0/16 via 192.0.2.1 on a\n")
	for i, want := range []int32{0, 1, 0, 0, 1, 0} {
		if r := c.Routes[i]; r.Hops[0].Port != want {
			t.Errorf("%s: got port %d, want %d", r.Prefix, r.Hops[0].Port, want)
		}
	}
	_, err := Parse("f", []byte("port a\nroute 10.0.0.0/8 via 192.0.2.1\nroute 172.16.0.0/12 via 192.0.2.1\nroute 10.64.0.0/10 via 192.0.2.1\n"))
	compare(t, "errors", messages(t, err), "2:22: connected|3:25: connected|4:24: connected")
}

// TestErrorsText prints the first 20 errors and a count.
func TestErrorsText(t *testing.T) {
	for _, test := range []struct {
		name string
		n    int
		last string
	}{
		{"one", 1, `f:1:1: unknown directive "x"`},
		{"twenty", 20, `f:20:1: unknown directive "x"`},
		{"twenty-one", 21, "and 1 more error"},
		{"many", 1020, "and 1000 more errors"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse("f", []byte(strings.Repeat("x\n", test.n)))
			lines := strings.Split(err.Error(), "\n")
			if got := lines[len(lines)-1]; !strings.HasPrefix(got, test.last) {
				t.Errorf("got last line %q, want %q", got, test.last)
			}
			if want := min(test.n, 20) + min(max(test.n-20, 0), 1); len(lines) != want {
				t.Errorf("got %d lines, want %d", len(lines), want)
			}
		})
	}
}
