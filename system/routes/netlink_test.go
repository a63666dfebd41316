package routes

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// The interfaces of these tests; a and b are ports 0 and 1.
const (
	lo = iota + 1
	a
	b
	mgmt
)

var testPorts = map[string]uint16{"a": 0, "b": 1}

// A msg is a netlink message as it is made.
type msg []byte

func newMsg(kind, flags uint16, fixed ...byte) msg {
	m := make(msg, nlHeader)
	native.PutUint16(m[4:], kind)
	native.PutUint16(m[6:], flags)
	return append(m, fixed...)
}

func (m msg) attr(kind uint16, v []byte) msg {
	m = native.AppendUint16(m, uint16(attrHeader+len(v)))
	m = native.AppendUint16(m, kind)
	m = append(m, v...)
	return append(m, make([]byte, align4(len(m))-len(m))...)
}

func (m msg) u32(kind uint16, v uint32) msg { return m.attr(kind, native.AppendUint32(nil, v)) }

// done returns the message with its length.
func (m msg) done() []byte {
	native.PutUint32(m, uint32(len(m)))
	return m
}

func linkMsg(kind uint16, index uint32, name string, flags uint32) []byte {
	fixed := make([]byte, ifinfoLen)
	native.PutUint32(fixed[ifiIndex:], index)
	native.PutUint32(fixed[ifiFlags:], flags)
	return newMsg(kind, 0, fixed...).attr(iflaName, append([]byte(name), 0)).done()
}

const running = iffUp | iffLowerUp

func links() (parts [][]byte) {
	for i, name := range []string{"lo", "a", "b", "mgmt"} {
		parts = append(parts, linkMsg(rtmNewLink, uint32(i+1), name, running))
	}
	return parts
}

// A routeMsg is what a route message says.
type routeMsg struct {
	kind, flags uint16
	to          string
	table       uint32 // 0 for main
	typ         byte   // 0 for unicast
	tos, src    byte
	rtm         uint32
	metric      uint32
	mtu         uint32
	object      uint32
	encap       bool
	hops        []testHop
}

type testHop struct {
	link   uint32
	gw     string
	via    bool // by RTA_VIA
	weight byte // of several
}

func (h *testHop) attrs(m msg) msg {
	if h.gw == "" {
		return m
	}
	g := netip.MustParseAddr(h.gw)
	if !h.via {
		return m.attr(rtaGateway, g.AsSlice())
	}
	family := uint16(familyIPv4)
	if g.Is6() {
		family = familyIPv6
	}
	return m.attr(rtaVia, append(native.AppendUint16(nil, family), g.AsSlice()...))
}

func (r routeMsg) bytes() []byte {
	p := netip.MustParsePrefix(r.to)
	fixed := make([]byte, rtmsgLen)
	fixed[0] = familyIPv4
	if p.Addr().Is6() {
		fixed[0] = familyIPv6
	}
	fixed[rtmDstLen], fixed[rtmTOS], fixed[rtmSrcLen] = byte(p.Bits()), r.tos, r.src
	if r.table == 0 {
		r.table = tableMain
	}
	fixed[rtmTable] = byte(min(r.table, 252))
	if r.table <= 255 {
		fixed[rtmTable] = byte(r.table)
	}
	fixed[rtmType] = max(r.typ, rtnUnicast)
	native.PutUint32(fixed[rtmFlags:], r.rtm)
	if r.kind == 0 {
		r.kind = rtmNewRoute
	}
	m := newMsg(r.kind, r.flags, fixed...).u32(rtaTable, r.table)
	if p.Bits() > 0 {
		m = m.attr(rtaDst, p.Addr().AsSlice())
	}
	if r.metric != 0 {
		m = m.u32(rtaPriority, r.metric)
	}
	if r.mtu != 0 {
		m = m.attr(rtaMetrics, msg(nil).u32(5, 1).u32(rtaxMTU, r.mtu))
	}
	if r.object != 0 {
		m = m.u32(rtaNexthop, r.object)
	}
	if r.encap {
		m = m.attr(rtaEncap, []byte{1, 2, 3, 4})
	}
	switch len(r.hops) {
	case 0:
	case 1:
		m = r.hops[0].attrs(m.u32(rtaOIF, r.hops[0].link))
	default:
		var all msg
		for _, h := range r.hops {
			one := make(msg, rtnhLen)
			one[rtnhHops] = max(h.weight, 1) - 1
			native.PutUint32(one[rtnhIfIdex:], h.link)
			one = h.attrs(one)
			native.PutUint16(one, uint16(len(one)))
			all = append(all, one...)
		}
		m = m.attr(rtaMultiple, all)
	}
	return m.done()
}

func via(to string, link uint32, gw string) routeMsg {
	return routeMsg{to: to, hops: []testHop{{link: link, gw: gw}}}
}

func (r routeMsg) with(change func(*routeMsg)) routeMsg {
	change(&r)
	return r
}

func (r routeMsg) gone() routeMsg { r.kind = rtmDelRoute; return r }

func (r routeMsg) at(metric uint32) routeMsg { r.metric = metric; return r }

func objectMsg(kind uint16, id, link uint32, gw string) []byte {
	m := newMsg(kind, 0, make([]byte, nhmsgLen)...).u32(nhaID, id).u32(nhaOIF, link)
	if gw != "" {
		m = m.attr(nhaGateway, netip.MustParseAddr(gw).AsSlice())
	}
	return m.done()
}

func groupMsg(id uint32, members ...byte) []byte {
	var g []byte
	for _, m := range members {
		g = append(native.AppendUint32(g, uint32(m)), 0, 0, 0, 0)
	}
	return newMsg(rtmNewNexthop, 0, make([]byte, nhmsgLen)...).u32(nhaID, id).attr(nhaGroup, g).done()
}

// take takes messages to a table.
func take(t *testing.T, tab *table, parts ...[]byte) {
	t.Helper()
	r := netlinkReader{table: tab}
	for _, p := range parts {
		if err := eachMessage(p, r.message); err != nil {
			t.Fatal(err)
		}
	}
	tab.resolve()
}

// has returns what a table has, one route a line.
func has(tab *table) string {
	var b strings.Builder
	for _, r := range tab.all() {
		fmt.Fprintln(&b, strings.TrimSuffix(r.String(), " kernel"))
	}
	return b.String()
}

func lines(s ...string) string {
	if len(s) == 0 {
		return ""
	}
	return strings.Join(s, "\n") + "\n"
}

// TestNetlink: what ports follow after messages.
func TestNetlink(t *testing.T) {
	for _, c := range []struct {
		name string
		msgs []any // []byte or routeMsg
		want []string
	}{
		{"gateway", []any{via("203.0.113.0/24", a, "198.18.0.203")}, []string{"203.0.113.0/24 via 198.18.0.203 port 0"}},
		{"default", []any{via("0.0.0.0/0", b, "198.19.0.203"), via("::/0", b, "fe80::1")}, []string{"0.0.0.0/0 via 198.19.0.203 port 1", "::/0 via fe80::1 port 1"}},
		{"on the link", []any{via("203.0.113.0/24", b, ""), via("2001:db8::/32", a, "")}, []string{"203.0.113.0/24 on-link port 1", "2001:db8::/32 on-link port 0"}},
		{"MTU", []any{via("203.0.113.0/24", a, "198.18.0.203").with(func(r *routeMsg) { r.mtu = 1400 })}, []string{"203.0.113.0/24 via 198.18.0.203 port 0 mtu 1400"}},
		{"blackhole", []any{routeMsg{to: "203.0.113.0/24", typ: rtnBlackhole}, routeMsg{to: "2001:db8::/32", typ: rtnBlackhole, hops: []testHop{{link: lo}}}},
			[]string{"203.0.113.0/24 blackhole", "2001:db8::/32 blackhole"}},
		{"unreachable, prohibit, throw", []any{routeMsg{to: "10.1.0.0/16", typ: rtnUnreachable}, routeMsg{to: "10.2.0.0/16", typ: rtnProhibit}, routeMsg{to: "10.3.0.0/16", typ: rtnThrow}},
			[]string{"10.1.0.0/16 unreachable", "10.2.0.0/16 reject", "10.3.0.0/16 throw"}},
		{"unreachable, prohibit, throw, IPv6", []any{routeMsg{to: "2001:db8:1::/48", typ: rtnUnreachable, hops: []testHop{{link: lo}}}, routeMsg{to: "2001:db8:2::/48", typ: rtnProhibit}, routeMsg{to: "2001:db8:3::/48", typ: rtnThrow}},
			[]string{"2001:db8:1::/48 unreachable", "2001:db8:2::/48 reject", "2001:db8:3::/48 throw"}},
		{"unreachable only if there is nothing better", []any{routeMsg{to: "0.0.0.0/0", typ: rtnUnreachable}.at(4278198272), via("0.0.0.0/0", a, "198.18.0.203").at(100)}, []string{"0.0.0.0/0 via 198.18.0.203 port 0"}},
		{"no port", []any{via("203.0.113.0/24", mgmt, "10.0.0.1"), via("10.0.0.0/24", mgmt, "")}, []string{"10.0.0.0/24 host", "203.0.113.0/24 host"}},
		{"one path of two by no port", []any{routeMsg{to: "203.0.113.0/24", hops: []testHop{{link: a, gw: "198.18.0.203"}, {link: mgmt, gw: "10.0.0.1"}}}}, []string{"203.0.113.0/24 host"}},
		{"own addresses and broadcasts", []any{
			routeMsg{to: "10.255.0.1/32", table: tableLocal, typ: rtnLocal, hops: []testHop{{link: lo}}},
			routeMsg{to: "198.18.0.255/32", table: tableLocal, typ: rtnBroadcast, hops: []testHop{{link: a}}},
			routeMsg{to: "2001:2::/128", table: tableLocal, typ: rtnAnycast, hops: []testHop{{link: a}}},
			routeMsg{to: "127.0.0.0/8", table: tableLocal, typ: rtnLocal, hops: []testHop{{link: lo}}},
			routeMsg{to: "::1/128", table: tableLocal, typ: rtnLocal, hops: []testHop{{link: lo}}},
			routeMsg{to: "fe80::1/128", table: tableLocal, typ: rtnLocal, hops: []testHop{{link: a}}},
		}, []string{"10.255.0.1/32 host", "198.18.0.255/32 host", "2001:2::/128 host"}},
		{"own address before a route to it", []any{
			via("10.255.0.1/32", a, "198.18.0.203"),
			routeMsg{to: "10.255.0.1/32", table: tableLocal, typ: rtnLocal, hops: []testHop{{link: lo}}},
		}, []string{"10.255.0.1/32 host"}},
		{"never looked up", []any{via("224.0.0.0/4", a, ""), via("240.0.0.0/5", a, ""), via("0.0.0.0/8", a, ""), via("ff00::/8", a, ""), via("fe80::/64", a, "")}, nil},
		{"shorter than what is never looked up", []any{via("128.0.0.0/1", a, "198.18.0.203"), via("0.0.0.0/1", a, "198.18.0.203"), via("f000::/4", a, "fe80::1")},
			[]string{"0.0.0.0/1 via 198.18.0.203 port 0", "128.0.0.0/1 via 198.18.0.203 port 0", "f000::/4 via fe80::1 port 0"}},
		{"other tables", []any{via("203.0.113.0/24", a, "198.18.0.203").with(func(r *routeMsg) { r.table = 100 }), via("203.0.113.0/24", a, "198.18.0.203").with(func(r *routeMsg) { r.table = 5000 })}, nil},
		{"cloned, multicast, of other families", []any{
			via("203.0.113.0/24", a, "198.18.0.203").with(func(r *routeMsg) { r.rtm = rtmFCloned }),
			via("203.0.113.0/24", a, "198.18.0.203").with(func(r *routeMsg) { r.typ = 5 }),
			newMsg(rtmNewRoute, 0, 28, 20, 0, 0, tableMain, 0, 0, 1, 0, 0, 0, 0).done(), // MPLS
		}, nil},
		{"TOS, source", []any{
			via("203.0.113.0/24", a, "198.18.0.203").with(func(r *routeMsg) { r.tos = 0x10 }),
			via("2001:db8::/32", a, "fe80::1").with(func(r *routeMsg) { r.src = 64 }),
		}, nil},
		{"encapsulation", []any{via("203.0.113.0/24", a, "198.18.0.203").with(func(r *routeMsg) { r.encap = true })}, []string{"203.0.113.0/24 host"}},
		{"gateway of the other family", []any{routeMsg{to: "203.0.113.0/24", hops: []testHop{{link: a, gw: "fe80::1", via: true}}}}, []string{"203.0.113.0/24 host"}},
		{"RTA_VIA, same family", []any{routeMsg{to: "203.0.113.0/24", hops: []testHop{{link: a, gw: "198.18.0.203", via: true}}}}, []string{"203.0.113.0/24 via 198.18.0.203 port 0"}},
		{"no station", []any{via("203.0.113.0/24", a, "224.0.0.1")}, []string{"203.0.113.0/24 host"}},
		{"replaced", []any{via("203.0.113.0/24", a, "198.18.0.203"), via("203.0.113.0/24", b, "198.19.0.203")}, []string{"203.0.113.0/24 via 198.19.0.203 port 1"}},
		{"removed", []any{via("203.0.113.0/24", a, "198.18.0.203"), via("203.0.113.0/24", a, "198.18.0.203").gone()}, nil},
		{"removed, never there", []any{via("203.0.113.0/24", a, "198.18.0.203").gone()}, nil},
		{"lowest metric", []any{via("203.0.113.0/24", a, "198.18.0.3").at(30), via("203.0.113.0/24", a, "198.18.0.1").at(10), via("203.0.113.0/24", a, "198.18.0.2").at(20)},
			[]string{"203.0.113.0/24 via 198.18.0.1 port 0"}},
		{"next metric", []any{via("203.0.113.0/24", a, "198.18.0.3").at(30), via("203.0.113.0/24", a, "198.18.0.1").at(10), via("203.0.113.0/24", a, "198.18.0.2").at(20),
			via("203.0.113.0/24", a, "198.18.0.1").at(10).gone()}, []string{"203.0.113.0/24 via 198.18.0.2 port 0"}},
		{"greatest metric gone", []any{via("203.0.113.0/24", a, "198.18.0.3").at(30), via("203.0.113.0/24", a, "198.18.0.1"), via("203.0.113.0/24", a, "198.18.0.3").at(30).gone(), via("203.0.113.0/24", a, "198.18.0.1").gone()}, nil},
		{"link down", []any{via("203.0.113.0/24", a, "198.18.0.1"), via("203.0.113.0/24", b, "198.19.0.1").at(5), linkMsg(rtmNewLink, a, "a", iffUp)}, []string{"203.0.113.0/24 via 198.19.0.1 port 1"}},
		{"link down and up", []any{via("203.0.113.0/24", a, "198.18.0.1"), linkMsg(rtmNewLink, a, "a", 0), linkMsg(rtmNewLink, a, "a", running)}, []string{"203.0.113.0/24 via 198.18.0.1 port 0"}},
		{"link gone", []any{via("203.0.113.0/24", a, "198.18.0.1"), linkMsg(rtmDelLink, a, "a", 0)}, nil},
		{"link of a bridge", []any{via("203.0.113.0/24", a, "198.18.0.1"), newMsg(rtmDelLink, 0, 7, 0, 0, 0, a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0).done()}, []string{"203.0.113.0/24 via 198.18.0.1 port 0"}},
		{"link renamed", []any{via("203.0.113.0/24", mgmt, "198.18.0.1"), linkMsg(rtmNewLink, a, "old", running), linkMsg(rtmNewLink, mgmt, "a", running)}, []string{"203.0.113.0/24 via 198.18.0.1 port 0"}},
		{"several paths", []any{routeMsg{to: "203.0.113.0/24", mtu: 1400, hops: []testHop{{link: a, gw: "198.18.0.1", weight: 1}, {link: b, gw: "198.19.0.1", weight: 3}}}},
			[]string{"203.0.113.0/24 via 198.18.0.1 port 0 via 198.19.0.1 port 1 weight 3 mtu 1400"}},
		{"several paths, one without a gateway", []any{routeMsg{to: "203.0.113.0/24", hops: []testHop{{link: a, gw: "198.18.0.1"}, {link: b}}}}, []string{"203.0.113.0/24 host"}},
		{"nexthop group", []any{objectMsg(rtmNewNexthop, 7, a, "198.18.0.1"), objectMsg(rtmNewNexthop, 6, b, "198.19.0.1"), groupMsg(8, 7, 6), routeMsg{to: "203.0.113.0/24", object: 8}},
			[]string{"203.0.113.0/24 via 198.18.0.1 port 0 via 198.19.0.1 port 1"}},
		{"IPv6, a hop added", []any{via("2001:db8::/32", a, "fe80::1"),
			routeMsg{to: "2001:db8::/32", flags: nlmAppend, hops: []testHop{{link: a, gw: "fe80::1"}, {link: b, gw: "fe80::2"}}}}, []string{"2001:db8::/32 via fe80::1 port 0 via fe80::2 port 1"}},
		{"IPv4, one behind", []any{via("203.0.113.0/24", a, "198.18.0.1"), via("203.0.113.0/24", b, "198.19.0.1").with(func(r *routeMsg) { r.flags = nlmAppend })},
			[]string{"203.0.113.0/24 via 198.18.0.1 port 0"}},
		{"one path of two down", []any{routeMsg{to: "203.0.113.0/24", hops: []testHop{{link: a, gw: "198.18.0.1"}, {link: b, gw: "198.19.0.1"}}}, linkMsg(rtmNewLink, a, "a", iffUp)}, []string{"203.0.113.0/24 via 198.19.0.1 port 1"}},
		{"nexthop object", []any{objectMsg(rtmNewNexthop, 7, a, "198.18.0.1"), routeMsg{to: "203.0.113.0/24", object: 7}}, []string{"203.0.113.0/24 via 198.18.0.1 port 0"}},
		{"nexthop object, with its hops", []any{objectMsg(rtmNewNexthop, 7, a, "198.18.0.1"), routeMsg{to: "203.0.113.0/24", object: 7, hops: []testHop{{link: a, gw: "198.18.0.1"}}}}, []string{"203.0.113.0/24 via 198.18.0.1 port 0"}},
		{"nexthop object later", []any{routeMsg{to: "203.0.113.0/24", object: 7}, objectMsg(rtmNewNexthop, 7, a, "198.18.0.1")}, []string{"203.0.113.0/24 via 198.18.0.1 port 0"}},
		{"nexthop object changed", []any{objectMsg(rtmNewNexthop, 7, a, "198.18.0.1"), routeMsg{to: "203.0.113.0/24", object: 7}, objectMsg(rtmNewNexthop, 7, b, "198.19.0.1")}, []string{"203.0.113.0/24 via 198.19.0.1 port 1"}},
		{"nexthop object gone", []any{objectMsg(rtmNewNexthop, 7, a, "198.18.0.1"), routeMsg{to: "203.0.113.0/24", object: 7}, objectMsg(rtmDelNexthop, 7, 0, "")}, nil},
		{"nexthop object of the other family", []any{objectMsg(rtmNewNexthop, 7, a, "fe80::1"), routeMsg{to: "203.0.113.0/24", object: 7}, routeMsg{to: "2001:db8::/32", object: 7}}, []string{"203.0.113.0/24 host", "2001:db8::/32 via fe80::1 port 0"}},
		{"nexthop object blackhole", []any{newMsg(rtmNewNexthop, 0, make([]byte, nhmsgLen)...).u32(nhaID, 9).attr(nhaBlack, nil).done(), routeMsg{to: "203.0.113.0/24", object: 9}}, []string{"203.0.113.0/24 blackhole"}},
		{"nexthop group of one", []any{objectMsg(rtmNewNexthop, 7, a, "198.18.0.1"), groupMsg(8, 7), routeMsg{to: "203.0.113.0/24", object: 8}}, []string{"203.0.113.0/24 via 198.18.0.1 port 0"}},
		{"nexthop group whose member went", []any{objectMsg(rtmNewNexthop, 7, a, "198.18.0.1"), objectMsg(rtmNewNexthop, 6, b, "198.19.0.1"), groupMsg(8, 7, 6), routeMsg{to: "203.0.113.0/24", object: 8},
			groupMsg(8, 6), objectMsg(rtmDelNexthop, 7, 0, "")}, []string{"203.0.113.0/24 via 198.19.0.1 port 1"}},
		{"IPv6, one of several hops removed", []any{
			routeMsg{to: "2001:db8::/32", hops: []testHop{{link: a, gw: "fe80::1"}, {link: b, gw: "fe80::2"}}}, via("2001:db8::/32", a, "fe80::1").gone()}, []string{"2001:db8::/32 via fe80::2 port 1"}},
	} {
		tab := newTable(testPorts)
		tab.begin()
		take(t, tab, links()...)
		tab.end(true)
		f := &Feed{ready: make(chan struct{}, 1), at: map[prefix]int{}}
		tab.feeds = append(tab.feeds, f)
		told := mirror{}
		for _, m := range c.msgs {
			switch m := m.(type) {
			case []byte:
				take(t, tab, m)
			case routeMsg:
				take(t, tab, m.bytes())
			}
			told.take(f)
		}
		if got, want := has(tab), lines(c.want...); got != want {
			t.Errorf("%s: got\n%swant\n%s", c.name, got, want)
		}
		if got, want := told.String(), lines(c.want...); got != want {
			t.Errorf("%s: feed told\n%swant\n%s", c.name, got, want)
		}
		tab.check(t, c.name)
	}
}

// TestThrow: where the main table says throw and something comes after it, only the
// host knows what. It is a list that tells.
func TestThrow(t *testing.T) {
	rule := func(family, action byte, table uint32) []byte {
		fixed := make([]byte, ruleLen)
		fixed[0], fixed[ruleAction], fixed[ruleTable] = family, action, byte(min(table, 252))
		if table <= 255 {
			fixed[ruleTable] = byte(table)
		}
		return newMsg(rtmNewRule, 0, fixed...).u32(fraTable, table).done()
	}
	rule4 := func(table uint32) []byte { return rule(familyIPv4, ruleToTable, table) }
	inDefault := via("198.51.100.0/24", a, "198.18.0.203").with(func(r *routeMsg) { r.table = tableDefault })
	for _, c := range []struct {
		name string
		list [][]byte
		want string // of IPv4
	}{
		{"nothing", nil, "throw"},
		{"as the system starts", [][]byte{rule4(tableLocal), rule4(tableMain), rule4(tableDefault)}, "throw"},
		{"default table in use", [][]byte{rule4(tableLocal), rule4(tableMain), rule4(tableDefault), inDefault.bytes()}, "host"},
		{"default table in use, and no rule for it", [][]byte{rule4(tableLocal), rule4(tableMain), inDefault.bytes()}, "throw"},
		{"rule before", [][]byte{rule4(100), rule4(tableMain), rule4(tableDefault)}, "throw"},
		{"rule after", [][]byte{rule4(tableMain), rule4(5000)}, "host"},
		{"prohibited after", [][]byte{rule4(tableMain), rule(familyIPv4, 8, 0)}, "host"},
		{"rule of the other family", [][]byte{rule4(tableMain), rule(familyIPv6, ruleToTable, tableMain), rule(familyIPv6, ruleToTable, 100)}, "throw"},
		{"of bridges", [][]byte{rule4(tableMain), rule(7, ruleToTable, 100)}, "throw"},
	} {
		tab := newTable(testPorts)
		tab.begin()
		take(t, tab, append(links(), routeMsg{to: "10.0.0.0/8", typ: rtnThrow}.bytes())...)
		take(t, tab, c.list...)
		tab.end(true)
		if got, want := has(tab), lines("10.0.0.0/8 "+c.want); got != want {
			t.Errorf("%s: got %swant %s", c.name, got, want)
		}
		take(t, tab, rule4(100))
		if !tab.again {
			t.Errorf("%s: a new rule calls for no list", c.name)
		}
		tab.again = false
		take(t, tab, inDefault.bytes(), inDefault.gone().bytes())
		if !tab.again {
			t.Errorf("%s: changes of the default table call for no list", c.name)
		}
	}
}

// check compares the counts of paths with those of routes.
func (t *table) check(tt *testing.T, name string) {
	tt.Helper()
	refs := make([]int, len(t.paths))
	for _, e := range t.routes {
		refs[e.path]++
	}
	for p, es := range t.more {
		for _, e := range es {
			refs[e.path]++
		}
		first := t.routes[p]
		if !slices.IsSortedFunc(append([]entry{first}, es...), func(a, b entry) int {
			if a.before(&b) {
				return -1
			}
			return 1
		}) {
			tt.Errorf("%s: %v: routes not in order: %v %v", name, p.netip(), first, es)
		}
	}
	for id, n := range refs {
		if t.paths[id].refs != n {
			tt.Errorf("%s: path %d: counted %d routes, has %d", name, id, t.paths[id].refs, n)
		}
	}
}
