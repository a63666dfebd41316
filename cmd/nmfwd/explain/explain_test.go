package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"nmfwd/config"
	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
	"nmfwd/fib"
	"nmfwd/test/conformance"
	"nmfwd/wire"
)

func newExplainer(t *testing.T, text string, kernel ...fib.Route) *Explainer {
	t.Helper()
	cfg, err := config.Parse("routes.conf", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(cfg, nil, kernel)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// TestConformance has the first steps of all conformance cases explained:
// the verdicts are those of the table, the frames that leave are the same, and
// the route told is of the kind that the router found.
func TestConformance(t *testing.T) {
	cases, err := conformance.All()
	if err != nil {
		t.Fatal(err)
	}
	explainers := make(map[string]*Explainer)
	n := 0
	for _, c := range cases {
		s := &c.Steps[0]
		many := slices.ContainsFunc(s.In, func(f conformance.Frame) bool { return f.Times > 1 })
		if len(s.Events) > 0 || many { // or limits count
			continue
		}
		for _, h := range []conformance.Host{conformance.HostOff, conformance.HostRings} {
			if h != conformance.HostOff && c.OnlyOff {
				continue
			}
			conf := c.ConfigFor(h)
			e := explainers[conf]
			switch {
			case len(c.Steps) > 1: // what is learned stays with it
				e = newExplainer(t, conf)
			case e == nil:
				e = newExplainer(t, conf)
				explainers[conf] = e
			}
			t.Run(fmt.Sprintf("%v/%s", h, c.Name), func(t *testing.T) {
				n++
				checkCase(t, e, s.In, s.Outcome(h))
			})
		}
	}
	if n < 800 {
		t.Errorf("%d cases explained, want at least 800", n)
	}
}

func checkCase(t *testing.T, e *Explainer, in []conformance.Frame, o *conformance.Outcome) {
	got := make(map[string]uint64)
	var sent []Sent
	for _, f := range in {
		for range f.Times {
			r, err := e.Explain(f.Port, f.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			got[f.Port+" "+r.Verdict]++
			sent = append(sent, r.Sent...)
			checkReport(t, e, &f, r)
		}
	}
	want := make(map[string]uint64)
	for k, v := range o.Counters {
		switch _, name, _ := strings.Cut(k, " "); {
		case strings.HasPrefix(name, "forwarded"), strings.HasPrefix(name, "punted"), strings.HasPrefix(name, "dropped"), name == "to_host":
			want[k] = v
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got verdicts %v, want %v", got, want)
	}
	missing := slices.Clone(o.Out)
	for _, f := range sent {
		i := slices.IndexFunc(missing, func(w conformance.Frame) bool { return w.Port == f.Port && w.Matches(f.Frame) })
		if i < 0 && isQuestion(f.Frame) { // for a gateway, which a router asked for before
			continue
		}
		if i < 0 {
			t.Errorf("port %s: frame was not expected: %x", f.Port, f.Frame)
			continue
		}
		missing = slices.Delete(missing, i, i+1)
	}
	for _, f := range missing {
		t.Errorf("port %s: frame did not leave: %s", f.Port, f.Expr)
	}
}

// isQuestion reports whether a frame asks for an address: by ARP, or Neighbor
// Discovery.
func isQuestion(f []byte) bool {
	return f[12] == 0x08 && f[13] == 0x06 && f[21] == 1 || len(f) > 54 && f[12] == 0x86 && f[20] == 58 && f[54] == 135
}

// checkReport checks that what is told does not contradict itself.
func checkReport(t *testing.T, e *Explainer, f *conformance.Frame, r *Report) {
	t.Helper()
	var b strings.Builder
	if _, err := r.WriteTo(&b); err != nil {
		t.Error(err)
	}
	if len(r.Checks) == 0 || r.End == "" {
		t.Fatalf("nothing told:\n%s", b.String())
	}
	at := slices.IndexFunc(r.Checks, func(c Check) bool { return c.Name == checkNames[route] })
	if at < 0 {
		return
	}
	in := slices.IndexFunc(e.ports, func(p *memport.Port) bool { return p.Name == f.Port })
	l := look{e: e, port: in, frame: f.Bytes, state: &e.router.State().Ports[in]}
	l.parse()
	want := l.adj.Action
	switch {
	case l.adj.HeadLen > 0:
		if found := l.lookup().kind; found != fib.Via && found != fib.OnLink {
			t.Errorf("route told %s, the router forwards\n%s", r.Checks[at].Found, b.String())
		}
		return
	case want == fib.Resolve:
		want = fib.Via
	}
	if found := l.lookup().kind; found != want {
		t.Errorf("route told %s, the router found %v\n%s", r.Checks[at].Found, want, b.String())
	}
}

// TestEndings checks that each reason and each kind is told.
func TestEndings(t *testing.T) {
	for r := 1; r < dataplane.NumReasons; r++ {
		if reasons[r].text == "" {
			t.Errorf("nothing told of dropped %v", dataplane.Reason(r))
		}
	}
	for k, e := range kinds {
		if e.text == "" {
			t.Errorf("nothing told of punted %v", dataplane.Kind(k))
		}
	}
}

const lab = `port A 198.18.0.205/24 2001:2::205/64 mac 02:00:00:00:00:aa host off
port B 198.19.0.205/24 2001:2:0:8000::205/64 mac 02:00:00:00:00:bb mtu 1400 host on
route 198.19.0.0/16 via 198.19.0.203
route 198.19.66.0/24 blackhole
arp 198.19.0.203 02:00:00:00:02:02
`

// TestText pins what is printed.
func TestText(t *testing.T) {
	for _, tt := range []struct{ name, port, frame, want string }{
		{"forwarded", "A", "F4", `frame       60 bytes received by A
ethernet    from 02:00:00:00:01:01 to 02:00:00:00:00:aa, the port's address
size        60 bytes, at most 1518
type        0800, IPv4
header      version 4, header of 20 bytes, total length 46 where 46 are, checksum da97 is right, protocol 17
options     none
addresses   198.18.10.1 > 198.19.10.1
route       198.19.0.0/16 via 198.19.0.203 on B, static, routes.conf:3:1
ttl         TTL 64
mtu         packet of 46 bytes, at most 1400 by B
neighbor    198.19.0.203 on B is at 02:00:00:00:02:02, static, routes.conf:5:1
verdict     forwarded by B
sent        by B, 60 bytes
            0200000002020200000000bb08004500002e000000003f11db97c6120a01c613
            0a0107d007d0001afe970102030405060708090a0b0c0d0e0f101112
`},
		{"blackhole", "A", "F4 dst=198.19.66.1", `frame       60 bytes received by A
ethernet    from 02:00:00:00:01:01 to 02:00:00:00:00:aa, the port's address
size        60 bytes, at most 1518
type        0800, IPv4
header      version 4, header of 20 bytes, total length 46 where 46 are, checksum a297 is right, protocol 17
options     none
addresses   198.18.10.1 > 198.19.66.1
route       198.19.66.0/24 blackhole, static, routes.conf:4:1
verdict     dropped (blackhole): the route says so, silently
`},
		{"bad checksum", "A", "F4 badsum", `frame       60 bytes received by A
ethernet    from 02:00:00:00:01:01 to 02:00:00:00:00:aa, the port's address
size        60 bytes, at most 1518
type        0800, IPv4
header      version 4, header of 20 bytes, total length 46 where 46 are, checksum da96 where da97 is right
verdict     dropped (bad_checksum): the header checksum is wrong (RFC 1812, 5.2.2)
`},
		{"short", "A", "F4 cut=13", `frame       13 bytes received by A
verdict     dropped (truncated): shorter than its header or its length field say (RFC 1812, 5.2.2; RFC 8200, 3)
`},
		{"another station", "A", "F4 to=bb", `frame       60 bytes received by A
ethernet    from 02:00:00:00:01:01 to 02:00:00:00:00:bb, another station: the port has 02:00:00:00:00:aa
verdict     dropped (not_our_mac): the frame is for another station (IEEE 802.3)
`},
		{"ARP", "A", "ARP", `frame       60 bytes received by A
ethernet    from 02:00:00:00:01:01 to ff:ff:ff:ff:ff:ff, all stations
size        60 bytes, at most 1518
type        0806, ARP
verdict     handled by nmfwd itself (arp): address resolution (RFC 826)
sent        by A, 60 bytes
            0200000001010200000000aa080600010800060400020200000000aac61200cd
            020000000101c61200cb000000000000000000000000000000000000
`},
		{"host", "B", "F6 to=bb dst=2001:2::205", `frame       62 bytes received by B
ethernet    from 02:00:00:00:01:01 to 02:00:00:00:00:bb, the port's address
size        62 bytes, at most 1418
type        86dd, IPv6
header      version 6, payload of 8 bytes where 8 are, next header 17
options     no hop-by-hop options
addresses   2001:2:0:1::1 > 2001:2::205
route       2001:2::205/128, an address of A, routes.conf:1:1
verdict     given to the host stack of B: an address of the router
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newExplainer(t, lab)
			f, err := conformance.Build(tt.frame)
			if err != nil {
				t.Fatal(err)
			}
			r, err := e.Explain(tt.port, f)
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			if _, err := r.WriteTo(&b); err != nil {
				t.Fatal(err)
			}
			if got := b.String(); got != tt.want {
				t.Errorf("got\n%swant\n%s", got, tt.want)
			}
		})
	}
}

const shared = `port A 198.18.0.205/24 2001:2::205/64 mac 02:00:00:00:00:aa host off urpf strict
port B 198.19.0.205/24 2001:2:0:8000::205/64 mac 02:00:00:00:00:bb host off urpf loose
vlan 100 on B 10.1.0.1/24
route 198.18.0.0/16 via 198.18.0.203
route 198.19.0.0/16 via 198.19.0.203 via 10.1.0.203 via 198.19.0.204
route 198.19.66.0/24 via 198.19.0.203 via 198.19.0.203 via 198.19.0.203 via 10.1.0.203
route 203.0.113.0/24 via 198.19.0.204 via 198.19.0.206
route 192.0.2.0/24 blackhole
route 2001:2::/49 via 2001:2::203
route 2001:2:0:8000::/49 via 2001:2:0:8000::203 via fe80::203%B
route default via 198.18.0.203
arp 198.18.0.203 02:00:00:00:01:01
arp 198.19.0.203 02:00:00:00:02:02
arp 10.1.0.203 02:00:00:00:03:03
ndp 2001:2::203 02:00:00:00:01:01
ndp 2001:2:0:8000::203 02:00:00:00:02:02
ndp fe80::203%B 02:00:00:00:02:03
`

// TestPaths pins what is told of routes with several gateways and of routes back
// to the source.
func TestPaths(t *testing.T) {
	for _, tt := range []struct{ name, port, frame, urpf, path, verdict string }{
		{"a gateway that is not known", "A", "F4",
			"strict: packets to 198.18.10.1 leave by A",
			"flow hash 1e4533e898b8ab7d, bucket 893 of 1024: 10.1.0.203 on B.100; 10.1.0.203 on B.100 has 505; 198.19.0.203 on B has 519; 198.19.0.204 on B is out, not known",
			`forwarded{family="ipv4"}`},
		{"another flow", "A", "F4 sport=2001",
			"strict: packets to 198.18.10.1 leave by A",
			"flow hash 36cb29b1f46640b2, bucket 178 of 1024: 198.19.0.203 on B; 10.1.0.203 on B.100 has 505; 198.19.0.203 on B has 519; 198.19.0.204 on B is out, not known",
			`forwarded{family="ipv4"}`},
		{"a later fragment", "A", "F4 sport=2001 frag=0003",
			"strict: packets to 198.18.10.1 leave by A",
			"flow hash 4fec85e4b8f62b3d, bucket 829 of 1024: 198.19.0.203 on B; 10.1.0.203 on B.100 has 505; 198.19.0.203 on B has 519; 198.19.0.204 on B is out, not known",
			`forwarded{family="ipv4"}`},
		{"weights", "A", "F4 dst=198.19.66.1",
			"strict: packets to 198.18.10.1 leave by A",
			"flow hash f0e800fdbf55d104, bucket 260 of 1024: 198.19.0.203 on B; 10.1.0.203 on B.100 has 256; 198.19.0.203 on B has 768",
			`forwarded{family="ipv4"}`},
		{"no gateway known", "A", "F4 dst=203.0.113.1",
			"strict: packets to 198.18.10.1 leave by A",
			"flow hash a132f7c8780aef4f, bucket 847 of 1024: 198.19.0.206 on B; 198.19.0.204 on B has 512, not known; 198.19.0.206 on B has 512, not known",
			`punted{kind="neighbor"}`},
		{"v6", "A", "F6",
			"strict: packets to 2001:2:0:1::1 leave by A",
			"flow hash e132d96bbe5210ff, bucket 255 of 1024: fe80::203 on B; 2001:2:0:8000::203 on B has 512; fe80::203 on B has 512",
			`forwarded{family="ipv6"}`},
		{"v6, another label", "A", "F6 flow=1",
			"strict: packets to 2001:2:0:1::1 leave by A",
			"flow hash cb668e070415759c, bucket 412 of 1024: fe80::203 on B; 2001:2:0:8000::203 on B has 512; fe80::203 on B has 512",
			`forwarded{family="ipv6"}`},
		{"one gateway", "B", "F4 to=bb dst=198.18.10.1 src=198.19.10.1",
			"loose: packets to 198.19.10.1 leave by B, B.100",
			"",
			`forwarded{family="ipv4"}`},
		{"strict, source behind another port", "A", "F4 src=198.19.10.9",
			"strict: packets to 198.19.10.9 leave by B, B.100",
			"",
			`dropped{reason="urpf"}`},
		{"strict, source behind no port", "A", "F4 src=192.0.2.1",
			"strict: packets to 192.0.2.1 leave by no port (blackhole)",
			"",
			`dropped{reason="urpf"}`},
		{"strict, default route", "A", "F4 src=8.8.8.8",
			"strict: packets to 8.8.8.8 leave by A, as the default route says",
			"flow hash 30d8d2e95404a788, bucket 904 of 1024: 198.19.0.203 on B; 10.1.0.203 on B.100 has 505; 198.19.0.203 on B has 519; 198.19.0.204 on B is out, not known",
			`forwarded{family="ipv4"}`},
		{"loose, default route", "B", "F4 to=bb src=8.8.8.8",
			"loose: packets to 8.8.8.8 leave by A, as the default route says",
			"",
			`dropped{reason="urpf"}`},
		{"loose, no route", "B", "F6 to=bb src=2001:db8::1 dst=2001:2:0:1::1",
			"loose: packets to 2001:db8::1 leave by no port (no route)",
			"",
			`dropped{reason="urpf"}`},
		{"link-local source", "A", "F6 src=fe80::1",
			"",
			"",
			`dropped{reason="link_local"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, err := conformance.Build(tt.frame)
			if err != nil {
				t.Fatal(err)
			}
			r, err := newExplainer(t, shared).Explain(tt.port, f)
			if err != nil {
				t.Fatal(err)
			}
			found := func(name string) string {
				for _, c := range r.Checks {
					if c.Name == name {
						return c.Found
					}
				}
				return ""
			}
			for _, c := range []struct{ name, got, want string }{
				{"urpf", found("urpf"), tt.urpf},
				{"path", found("path"), tt.path},
				{"verdict", r.Verdict, tt.verdict},
			} {
				if c.got != c.want {
					t.Errorf("%s: got\n%s\nwant\n%s", c.name, c.got, c.want)
				}
			}
		})
	}
}

// TestKernelRoutes: routes of the system are told as such.
func TestKernelRoutes(t *testing.T) {
	via := func(p string, hops ...fib.Hop) fib.Route {
		r := fib.Route{Prefix: netip.MustParsePrefix(p), Origin: fib.Kernel, Kind: fib.Via, Gateway: hops[0].Gateway, Port: hops[0].Port}
		if len(hops) > 1 {
			r.Gateway, r.Hops = netip.Addr{}, hops
		}
		return r
	}
	b, a := fib.Hop{Gateway: netip.MustParseAddr("198.19.0.203"), Port: 1}, fib.Hop{Gateway: netip.MustParseAddr("198.18.0.203")}
	e := newExplainer(t, lab+"option routes kernel\n", via("198.19.0.0/16", a), via("203.0.113.0/24", b), via("203.0.114.0/24", b, a),
		fib.Route{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Origin: fib.Kernel, Kind: fib.Host},
		fib.Route{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Origin: fib.Kernel, Kind: fib.Blackhole},
		fib.Route{Prefix: netip.MustParsePrefix("192.0.3.0/24"), Origin: fib.Kernel, Kind: fib.Unreachable},
		fib.Route{Prefix: netip.MustParsePrefix("192.0.4.0/24"), Origin: fib.Kernel, Kind: fib.Throw})
	for _, c := range []struct{ dst, route, verdict string }{
		{"198.19.10.1", "198.19.0.0/16 via 198.19.0.203 on B, static, routes.conf:3:1", `forwarded{family="ipv4"}`},
		{"203.0.113.1", "203.0.113.0/24 via 198.19.0.203 on B, of the system", `forwarded{family="ipv4"}`},
		{"203.0.114.1", "203.0.114.0/24 via 198.19.0.203 on B via 198.18.0.203 on A, of the system", ""},
		{"10.1.2.3", "10.0.0.0/8 by no port: the host's to follow, of the system", `punted{kind="unreachable"}`},
		{"192.0.2.1", "192.0.2.0/24 blackhole, of the system", `dropped{reason="blackhole"}`},
		{"192.0.3.1", "192.0.3.0/24 unreachable, of the system", `punted{kind="unreachable"}`},
		{"192.0.4.1", "192.0.4.0/24 throw, of the system", `punted{kind="unreachable"}`},
	} {
		f := make([]byte, 60)
		wire.PutEthernet(f, wire.MACOf([]byte{2, 0, 0, 0, 0, 0xaa}), wire.MACOf([]byte{2, 0, 0, 0, 1, 1}), wire.TypeIPv4)
		ip := f[wire.EthernetLen:]
		copy(ip, []byte{0x45, 0, 0, 46, 0, 0, 0, 0, 64, wire.ProtoUDP, 0, 0, 198, 18, 10, 1})
		copy(ip[16:], netip.MustParseAddr(c.dst).AsSlice())
		sum := wire.Checksum(ip[:wire.IPv4Len])
		ip[10], ip[11] = byte(sum>>8), byte(sum)
		r, err := e.Explain("A", f)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(r.Checks, func(k Check) bool { return k.Name == checkNames[route] })
		if i < 0 || r.Checks[i].Found != c.route || c.verdict != "" && r.Verdict != c.verdict {
			t.Errorf("to %s: got %+v, want route %q and verdict %s", c.dst, r, c.route, c.verdict)
		}
	}
}

// TestVLANOrder: VLANs are numbered by ID, whatever their order in the file.
func TestVLANOrder(t *testing.T) {
	e := newExplainer(t, "port A 198.18.0.205/24 mac 02:00:00:00:00:aa\nport B mac 02:00:00:00:00:bb\n"+
		"vlan 20 on B 198.19.0.205/24\nvlan 10 on B 10.0.10.1/24\narp 198.19.10.1 02:00:00:00:00:02 on B.20\nroute 198.19.10.1 on B.20\n")
	f, err := conformance.Build("F4")
	if err != nil {
		t.Fatal(err)
	}
	r, err := e.Explain("A", f)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if _, err := r.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if s := b.String(); !strings.Contains(s, "B.20") || strings.Contains(s, "B.10") {
		t.Errorf("got\n%s\nwant B.20 and no B.10", s)
	}
}

func TestErrors(t *testing.T) {
	e := newExplainer(t, lab)
	if _, err := e.Explain("C", make([]byte, 60)); err == nil || !strings.Contains(err.Error(), "no port C") {
		t.Errorf("got error %v", err)
	}
	if _, err := e.Explain("A", make([]byte, 1<<20)); err == nil || !strings.Contains(err.Error(), "does not fit") {
		t.Errorf("got error %v", err)
	}
}

// FuzzExplain has arbitrary frames explained: whatever they are, something is
// told.
func FuzzExplain(f *testing.F) {
	cases, err := conformance.All()
	if err != nil {
		f.Fatal(err)
	}
	for _, c := range cases {
		for _, s := range c.Steps {
			for _, in := range s.In {
				f.Add(in.Bytes, in.Port == "B")
			}
		}
	}
	cfg, err := config.Parse("routes.conf", []byte(lab))
	if err != nil {
		f.Fatal(err)
	}
	e, err := New(cfg, nil, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(e.Close)
	f.Fuzz(func(t *testing.T, frame []byte, b bool) {
		if len(frame) > 4096 {
			return
		}
		port := "A"
		if b {
			port = "B"
		}
		r, err := e.Explain(port, frame)
		if err != nil {
			t.Fatal(err)
		}
		checkReport(t, e, &conformance.Frame{Port: port, Bytes: frame}, r)
	})
}
