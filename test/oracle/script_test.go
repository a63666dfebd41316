//go:build integration && linux

package oracle

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
)

// A script is lines, done in order by both routers:
//
//	ip ...              as the shell would
//	carrier p1 down     the other end goes down, or up
//	neighbors p1        all hosts there are known, for ever
//	host p1 5 silent    the host answers no questions, or, with back, does again
//	frame ...           see type frame; frames in a row are sent at once
//	flows p1 A B N      N frames from A, A+1, ... to B, B+1, ...
//
// generate makes one of so many steps, each of some commands and frames.
func generate(seed uint64, steps int) []string {
	g := &generator{errors: map[netip.Addr]int{}, Rand: rand.New(rand.NewPCG(seed, 0)), up: [ports + 1]bool{true, true, true, true}, carrier: [ports + 1]bool{true, true, true, true}}
	for p := 1; p <= ports; p++ {
		g.base(p)
	}
	for range 6 {
		g.route()
	}
	for range steps {
		g.step()
	}
	return g.lines
}

type generator struct {
	*rand.Rand
	lines   []string
	errors  map[netip.Addr]int // that hosts may have been sent
	routes  []string           // added, as they are deleted
	several []netip.Prefix
	silent  [2]int // port and number of the host that does not answer
	id      int
	up      [ports + 1]bool
	carrier [ports + 1]bool
}

func (g *generator) add(format string, args ...any) {
	g.lines = append(g.lines, fmt.Sprintf(format, args...))
}

func pick[T any](g *generator, all ...T) T { return all[g.IntN(len(all))] }

func (g *generator) port() int { return 1 + g.IntN(ports) }
func (g *generator) host() int { return firstHost + g.IntN(lastHost-firstHost+1) }

func (g *generator) step() {
	for range 1 + g.IntN(2) {
		switch n := g.IntN(20); {
		case n < 12:
			g.route()
		case n < 18:
			g.neighbor()
		default:
			g.flap()
		}
	}
	if len(g.several) > 0 && g.IntN(8) == 0 {
		g.flows()
	}
	for range 20 + g.IntN(20) {
		g.frame()
	}
}

// Prefixes that routes are made for, each within others.
var (
	prefixes4 = []string{
		"0.0.0.0/0", "10.64.0.0/10", "10.64.0.0/16", "10.64.1.0/24", "10.64.1.128/25", "10.64.1.130/32", "10.65.0.0/16", "172.16.0.0/12",
		"192.168.7.0/24", "10.2.0.4/30", "10.1.0.7/32", "198.51.100.0/31", "172.20.0.0/16",
	}
	prefixes6 = []string{
		"::/0", "2001:db8:40::/42", "2001:db8:64::/48", "2001:db8:64:1::/64", "2001:db8:64:1:8000::/65", "2001:db8:64:1::82/128", "fd00::/8",
		"2001:db8:2::4/126", "2001:db8:1::7/128", "64:ff9b::/96", "2001:db8:20::/50",
	}
	onLink4  = []string{"10.96.0.0/24", "10.96.1.0/24"} // of hosts that a route puts on the link
	onLink6  = []string{"2001:db8:96::/64", "2001:db8:97::/64"}
	several4 = []string{"10.80.0.0/16", "10.80.1.0/24"} // with several gateways
	several6 = []string{"2001:db8:80::/48", "2001:db8:80:1::/64"}
)

// gateway returns "via A dev P" with a host as A that always answers.
func (g *generator) gateway(v6 bool) string {
	p, h := g.port(), firstHost+g.IntN(lastGateway-firstHost+1)
	a := address(p, h, v6).String()
	if v6 && g.IntN(3) == 0 {
		a = fmt.Sprintf("fe80::%x", h)
	}
	return fmt.Sprintf("via %s dev p%d", a, p)
}

func (g *generator) route() {
	v6 := g.IntN(2) == 0
	family, ps, on, sev := 4, prefixes4, onLink4, several4
	if v6 {
		family, ps, on, sev = 6, prefixes6, onLink6, several6
	}
	if len(g.routes) > 3 && g.IntN(3) == 0 {
		i := g.IntN(len(g.routes))
		g.add("%s", g.routes[i])
		g.routes = append(g.routes[:i], g.routes[i+1:]...)
		return
	}
	verb := pick(g, "add", "add", "replace", "replace", "append")
	if v6 && verb == "append" && isKnown("append behind a reject route") {
		verb = "add"
	}
	metric := pick(g, "", "", " metric 10", " metric 20", " metric 100")
	if v6 && metric == "" {
		metric = " metric 1024" // its default, which a deletion without one does not ask for
	}
	keep := func(kind, p string) {
		g.routes = append(g.routes, fmt.Sprintf("ip -%d route del %s%s%s", family, kind, p, metric))
	}
	switch n := g.IntN(20); {
	case n < 9:
		p := pick(g, ps...)
		more := pick(g, "", "", "", " mtu lock 1280")
		g.add("ip -%d route %s %s %s%s%s", family, verb, p, g.gateway(v6), metric, more)
		keep("", p)
	case n < 12:
		p := pick(g, on...)
		if verb == "append" {
			verb = "replace"
		}
		g.add("ip -%d route %s %s dev p%d%s", family, verb, p, g.port(), metric)
		keep("", p)
	case n < 16:
		kind, p := pick(g, "blackhole", "prohibit", "unreachable", "throw"), pick(g, ps...)
		if verb == "append" {
			verb = "replace"
		}
		g.add("ip -%d route %s %s %s%s", family, verb, kind, p, metric)
		keep(kind+" ", p)
	default:
		p := pick(g, sev...)
		hops := ""
		for range 2 + g.IntN(2) {
			hops += fmt.Sprintf(" nexthop %s weight %d", g.gateway(v6), 1+g.IntN(2))
		}
		if verb == "append" {
			verb = "replace"
		}
		g.add("ip -%d route %s %s%s%s", family, verb, p, metric, hops)
		keep("", p)
		g.several = append(g.several, netip.MustParsePrefix(p))
	}
}

func (g *generator) neighbor() {
	p, h, v6 := g.port(), g.host(), g.IntN(2) == 0
	a := address(p, h, v6)
	switch g.IntN(10) {
	default:
		mac := hostMAC(p, pick(g, h, 0x80+g.IntN(4), 0x80+g.IntN(4)))
		g.add("ip neigh replace %v lladdr %x:%x:%x:%x:%x:%x dev p%d nud %s", a, mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], p, pick(g, "permanent", "reachable", "stale"))
	case 0, 1:
		g.add("ip neigh del %v dev p%d", a, p)
	case 2:
		g.add("ip neigh flush dev p%d", p)
	case 3:
		g.add("ip -%d neigh flush dev p%d", pick(g, 4, 6), p)
	case 4:
		h, was := lastGateway+1+g.IntN(lastHost-lastGateway), g.silent
		if g.silent = [2]int{p, h}; was != [2]int{} {
			p, h, g.silent = was[0], was[1], [2]int{}
			g.add("host p%d %d back", p, h)
		} else {
			g.add("host p%d %d silent", p, h)
		}
		g.add("ip neigh flush dev p%d", p)
	}
}

func (g *generator) flap() {
	p := g.port()
	name := map[bool]string{true: "up", false: "down"}
	for i := 1; i <= ports; i++ { // not all are down for long
		if !g.up[i] || !g.carrier[i] {
			p = i
		}
	}
	if !g.carrier[p] || g.up[p] && g.IntN(2) == 0 {
		g.carrier[p] = !g.carrier[p]
		g.add("carrier p%d %s", p, name[g.carrier[p]])
	} else {
		g.up[p] = !g.up[p]
		g.add("ip link set dev p%d %s", p, name[g.up[p]])
	}
	if g.up[p] && g.carrier[p] {
		g.base(p)
	}
}

// base adds what there is while a port is up: a way back to stations beyond.
func (g *generator) base(p int) {
	g.add("ip route replace 172.20.0.0/14 via %v metric %d", address(p, 2, false), 5000+p)
	g.add("ip route replace 2001:db8:20::/48 via %v metric %d", address(p, 2, true), 5000+p)
}

// beyond returns the address of station n beyond a router.
func beyond(n int, v6 bool) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, 0x20, 12: byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
	return netip.AddrFrom4([4]byte{172, 20 + byte(n>>16)&3, byte(n >> 8), byte(n)})
}

func (g *generator) flows() {
	p := pick(g, g.several...)
	g.add("flows p%d %v %v %d", g.port(), beyond(g.id+1, p.Addr().Is6()), p.Addr(), manyFlows)
	g.id += manyFlows
}

// errorsEach is how many errors of IPv4 about routes Linux sends to one station at
// once: net.ipv4.route.error_burst, which namespaces do not have.
const errorsEach = 5

// source returns an address of a host on port p, or of a station beyond.
func (g *generator) source(p, host int, v6 bool) netip.Addr {
	a := address(p, host, v6)
	if g.IntN(4) == 0 || !v6 && g.errors[a] == errorsEach {
		return beyond(g.id, v6)
	}
	g.errors[a]++
	return a
}

// within returns an address in a prefix: of a host, where it has one.
func (g *generator) within(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	if p.Bits() > len(b)*8-8 {
		return p.Addr()
	}
	for i := range b {
		if i*8 >= p.Bits() && g.IntN(4) == 0 {
			b[i] = byte(g.IntN(256))
		}
	}
	b[len(b)-1] = byte(g.host())
	a, _ := netip.AddrFromSlice(b)
	return a
}

// destination returns an address of any kind.
func (g *generator) destination(v6 bool) netip.Addr {
	ps, on := prefixes4, onLink4
	if v6 {
		ps, on = prefixes6, onLink6
	}
	switch n := g.IntN(20); {
	case n < 10:
		return g.within(netip.MustParsePrefix(pick(g, ps...)))
	case n < 12:
		return g.within(netip.MustParsePrefix(pick(g, on...)))
	case n < 16:
		if g.IntN(30) == 0 {
			return address(g.port(), silentHost, v6)
		}
		return address(g.port(), g.host(), v6)
	case n < 17:
		return address(g.port(), 1, v6)
	}
	a := netip.MustParseAddr(pick(g, odd(v6)...))
	if a == address(1, 0, false) && isKnown("first address of a network") {
		return address(1, 255, false)
	}
	return a
}

// odd returns addresses that are not those of stations, or in no route.
func odd(v6 bool) []string {
	if v6 {
		return []string{"::", "::1", "ff02::1", "ff05::2", "ff0e::1", "2001:db8:1::", "fe80::2", "::ffff:10.1.0.2", "2001:db8:ffff::1", "2002::1", "fec0::1"}
	}
	return []string{
		"0.0.0.0", "0.1.2.3", "127.0.0.1", "255.255.255.255", "224.0.0.1", "239.1.2.3", "240.0.0.1", "169.254.1.1", "203.0.113.9", "100.64.0.1",
		"10.1.0.0", "10.2.0.255", "10.3.0.255",
	}
}

func (g *generator) frame() {
	v6 := g.IntN(2) == 0
	f := &frame{port: g.port(), words: map[string]string{}}
	g.id++
	f.words["id"] = fmt.Sprint(g.id)
	h := g.host()
	f.words["from"] = fmt.Sprint(h)
	f.src, f.dst = g.source(f.port, h, v6), g.destination(v6)
	if g.IntN(20) == 0 {
		f.src = netip.MustParseAddr(pick(g, odd(v6)...))
	}
	for range pick(g, 0, 0, 0, 1, 1, 2) { // half of all are plain
		switch g.IntN(14) {
		case 0, 1:
			f.words["ttl"] = pick(g, "0", "1", "2", "255")
		case 2, 3:
			f.words["len"] = pick(g, "1200", "1250", "1272", "1273", "1300", "1400", "1452", "1472")
			if g.IntN(2) == 0 {
				f.words["df"] = "1"
			}
		case 4:
			f.words["proto"] = pick(g, "tcp", "echo", "error", "99", "253")
		case 5:
			f.words["proto"] = "echo"
		case 6:
			f.words["mf"] = "1"
			f.words["len"] = "40"
		case 7:
			f.words["off"] = pick(g, "8", "1480")
		case 8:
			f.words["tos"] = pick(g, "4", "184", "3", "255")
		case 9:
			f.words["to"] = pick(g, "all", "group", "other")
		case 10:
			if v6 {
				f.words["opt"] = pick(g, "0104000000", "c100", "0502", "8100", "4100", "3e00")
			} else {
				f.words["opt"] = pick(g, "010101", "00", "880400ff", "9e0400ff", "0703", "07070400000000", "440805000000", "ff04aaaa")
			}
		case 11:
			f.words["sum"] = "bad"
		case 12:
			f.words["cut"] = pick(g, "1", "5")
		case 13:
			f.words["trail"] = pick(g, "1", "18")
		}
	}
	if i := networkOf(f.dst); i > 0 && !(g.up[i] && g.carrier[i]) && isKnown("connected network of a port that is down") {
		return
	}
	if o := f.words["opt"]; strings.HasPrefix(o, "07") || strings.HasPrefix(o, "44") {
		delete(f.words, "len") // no fragments of what the kernel may not forward
	}
	g.add("%v", f)
}

// networkOf returns the port on whose network an address is, 0 for none.
func networkOf(a netip.Addr) int {
	for i := 1; i <= ports; i++ {
		for _, p := range []netip.Prefix{netip.PrefixFrom(address(i, 1, false), 24), netip.PrefixFrom(address(i, 1, true), 64)} {
			if p.Contains(a) {
				return i
			}
		}
	}
	return 0
}

// expand returns the frames of a line, none if it is a command.
func expand(line string) ([]*frame, error) {
	switch {
	case strings.HasPrefix(line, "frame "):
		f, err := parseFrame(line)
		return []*frame{f}, err
	case strings.HasPrefix(line, "flows "):
		var port, n int
		var src, dst string
		if !scan(line, "flows p%d %s %s %d", &port, &src, &dst, &n) {
			return nil, fmt.Errorf("%q: not as flows", line)
		}
		var all []*frame
		from, to := netip.MustParseAddr(src), netip.MustParseAddr(dst)
		for i := range n {
			f, err := parseFrame(fmt.Sprintf("frame p%d %v %v id=%d", port, from, to, i))
			if err != nil {
				return nil, err
			}
			all = append(all, f)
			from, to = from.Next(), to.Next()
		}
		return all, nil
	}
	return nil, nil
}
