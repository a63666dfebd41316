package routes

import (
	"net/netip"
	"testing"
)

// sockaddr makes a struct sockaddr_in or sockaddr_in6, or for an interface a
// sockaddr_dl, padded to words.
func sockaddr(word int, s string) []byte {
	if s == "" {
		return make([]byte, word) // length 0, as the mask of a default route
	}
	a, err := netip.ParseAddr(s)
	var b []byte
	switch {
	case err != nil:
		b = append([]byte{0, afLink, 0, 0, 6, byte(len(s)), 6, 0}, s...)
		b = append(b, 2, 0, 0, 0, 0, 1)
	case a.Is4():
		b = append([]byte{0, afInet, 0, 0}, a.AsSlice()...)
		b = append(b, make([]byte, 8)...)
	default:
		b = append(make([]byte, 8), a.AsSlice()...)
		b[1] = afInet6
		b = append(b, make([]byte, 4)...)
	}
	b[0] = byte(len(b))
	for len(b)%word != 0 {
		b = append(b, 0)
	}
	return b
}

// An rtMsg is a message of the route socket about a route.
type rtMsg struct {
	kind              byte
	flags             uint32
	index             uint16
	dst, gw, mask     string // mask "none" is one that is not there
	mtu, weight, fail uint32
}

func (m rtMsg) bytes(word int) []byte {
	head := rtInits + rtLongs*word
	b := make([]byte, head)
	b[2], b[3] = rtVersion, m.kind
	native.PutUint16(b[rtIndex:], m.index)
	native.PutUint32(b[rtFlags:], m.flags|rtfUp)
	native.PutUint32(b[rtErrno:], m.fail)
	put := func(at int, v uint32) {
		if word == 4 {
			native.PutUint32(b[rtInits+at*word:], v)
		} else {
			native.PutUint64(b[rtInits+at*word:], uint64(v))
		}
	}
	put(rtMTU, m.mtu)
	put(rtWeight, m.weight)
	mask := uint32(1<<rtaxDst | 1<<rtaxGateway)
	b = append(b, sockaddr(word, m.dst)...)
	b = append(b, sockaddr(word, m.gw)...)
	if m.mask != "none" {
		mask |= 1 << rtaxNetmask
		b = append(b, sockaddr(word, m.mask)...)
	}
	native.PutUint32(b[rtAddrs:], mask)
	native.PutUint16(b, uint16(len(b)))
	return b
}

// ifMsg makes a struct if_msghdr, with the name as lists have it.
func ifMsg(word int, index uint16, name string, flags uint32, state byte) []byte {
	const dataLen = 152
	b := make([]byte, ifData+dataLen)
	b[2], b[3] = rtVersion, rtInterface
	native.PutUint32(b[ifFlags:], flags)
	native.PutUint16(b[ifIndex:], index)
	b[ifLinkUp] = state
	native.PutUint16(b[ifDataLen:], dataLen)
	if name != "" {
		native.PutUint32(b[ifAddrs:], 1<<rtaxInterface)
		b = append(b, sockaddr(word, name)...)
	}
	native.PutUint16(b, uint16(len(b)))
	return b
}

// TestRtsock: what ports follow after messages of the route socket.
func TestRtsock(t *testing.T) {
	const ready = iffUp | ifRunning
	gw := func(kind byte, dst, mask string, index uint16, gateway string) rtMsg {
		return rtMsg{kind: kind, flags: rtfGateway, index: index, dst: dst, gw: gateway, mask: mask}
	}
	for _, c := range []struct {
		name  string
		msgs  []any // rtMsg or func(word int) []byte
		want  []string
		again bool
	}{
		{"gateway", []any{gw(rtAdd, "203.0.113.0", "255.255.255.0", a, "198.18.0.203")}, []string{"203.0.113.0/24 via 198.18.0.203 port 0"}, false},
		{"default", []any{gw(rtAdd, "0.0.0.0", "", b, "198.19.0.203"), gw(rtAdd, "::", "", b, "fe80:2::1")}, []string{"0.0.0.0/0 via 198.19.0.203 port 1", "::/0 via fe80::1 port 1"}, false},
		{"IPv6", []any{gw(rtAdd, "2001:db8::", "ffff:ffff::", a, "2001:2::203")}, []string{"2001:db8::/32 via 2001:2::203 port 0"}, false},
		{"to one host", []any{rtMsg{kind: rtAdd, flags: rtfGateway | rtfHost, index: a, dst: "203.0.113.7", gw: "198.18.0.203", mask: "none"}}, []string{"203.0.113.7/32 via 198.18.0.203 port 0"}, false},
		{"on the link", []any{rtMsg{kind: rtAdd, index: a, dst: "198.18.0.0", gw: "a", mask: "255.255.255.0"}}, []string{"198.18.0.0/24 on-link port 0"}, false},
		{"own address", []any{rtMsg{kind: rtAdd, flags: rtfHost, index: lo, dst: "198.18.0.205", gw: "a", mask: "none"}}, []string{"198.18.0.205/32 host"}, false},
		{"no port", []any{gw(rtAdd, "203.0.113.0", "255.255.255.0", mgmt, "10.0.0.1")}, []string{"203.0.113.0/24 host"}, false},
		{"MTU", []any{rtMsg{kind: rtAdd, flags: rtfGateway, index: a, dst: "203.0.113.0", gw: "198.18.0.203", mask: "255.255.255.0", mtu: 1400}}, []string{"203.0.113.0/24 via 198.18.0.203 port 0 mtu 1400"}, false},
		{"blackhole, reject", []any{
			rtMsg{kind: rtAdd, flags: rtfGateway | rtfBlackhole, index: lo, dst: "192.0.2.0", gw: "127.0.0.1", mask: "255.255.255.0"},
			rtMsg{kind: rtAdd, flags: rtfGateway | rtfReject, index: lo, dst: "192.0.3.0", gw: "127.0.0.1", mask: "255.255.255.0"}}, []string{"192.0.2.0/24 blackhole", "192.0.3.0/24 unreachable"}, false},
		{"removed", []any{gw(rtAdd, "203.0.113.0", "255.255.255.0", a, "198.18.0.203"), gw(rtDelete, "203.0.113.0", "255.255.255.0", a, "198.18.0.203")}, nil, false},
		{"changed", []any{gw(rtAdd, "203.0.113.0", "255.255.255.0", a, "198.18.0.203"), gw(rtChange, "203.0.113.0", "255.255.255.0", b, "198.19.0.203")}, []string{"203.0.113.0/24 via 198.19.0.203 port 1"}, false},
		{"several paths", []any{gw(rtAdd, "203.0.113.0", "255.255.255.0", a, "198.18.0.1"), rtMsg{kind: rtAdd, flags: rtfGateway, index: b, dst: "203.0.113.0", gw: "198.19.0.1", mask: "255.255.255.0", weight: 3}},
			[]string{"203.0.113.0/24 via 198.18.0.1 port 0 via 198.19.0.1 port 1 weight 3"}, false},
		{"one of several gone", []any{gw(rtAdd, "203.0.113.0", "255.255.255.0", a, "198.18.0.1"), gw(rtAdd, "203.0.113.0", "255.255.255.0", b, "198.19.0.1"), gw(rtDelete, "203.0.113.0", "255.255.255.0", a, "198.18.0.1")},
			[]string{"203.0.113.0/24 via 198.19.0.1 port 1"}, false},
		{"one of several changed", []any{gw(rtAdd, "203.0.113.0", "255.255.255.0", a, "198.18.0.1"), gw(rtAdd, "203.0.113.0", "255.255.255.0", b, "198.19.0.1"), gw(rtChange, "203.0.113.0", "255.255.255.0", a, "198.18.0.9")},
			[]string{"203.0.113.0/24 via 198.18.0.1 port 0 via 198.19.0.1 port 1"}, true},
		{"failed", []any{rtMsg{kind: rtAdd, flags: rtfGateway, index: a, dst: "203.0.113.0", gw: "198.18.0.203", mask: "255.255.255.0", fail: 17}}, nil, false},
		{"a neighbor", []any{rtMsg{kind: rtAdd, flags: rtfHost | rtfLLData, index: a, dst: "198.18.0.203", gw: "a", mask: "none"}}, nil, false},
		{"mask with a hole", []any{gw(rtAdd, "203.0.0.0", "255.0.255.0", a, "198.18.0.203")}, nil, false},
		{"multicast", []any{gw(rtAdd, "224.0.0.0", "240.0.0.0", a, "198.18.0.203"), gw(rtAdd, "ff00::", "ff00::", a, "fe80::1")}, nil, false},
		{"no carrier", []any{gw(rtAdd, "203.0.113.0", "255.255.255.0", a, "198.18.0.203"), func(word int) []byte { return ifMsg(word, a, "", ready, linkIsDown) }}, nil, true},
		{"carrier again", []any{gw(rtAdd, "203.0.113.0", "255.255.255.0", a, "198.18.0.203"),
			func(word int) []byte { return ifMsg(word, a, "", ready, linkIsDown) }, func(word int) []byte { return ifMsg(word, a, "", ready, 2) }}, []string{"203.0.113.0/24 via 198.18.0.203 port 0"}, true},
		{"an address gone", []any{func(int) []byte { return []byte{4, 0, rtVersion, rtDelAddr} }}, nil, true},
		{"another version", []any{func(int) []byte { return []byte{4, 0, 4, rtDelAddr} }}, nil, false},
	} {
		for _, word := range []int{4, 8} {
			tab := newTable(testPorts)
			r := rtsockReader{table: tab, word: word}
			take := func(b []byte) {
				t.Helper()
				if err := r.messages(b); err != nil {
					t.Fatalf("%s: %v", c.name, err)
				}
				tab.resolve()
			}
			tab.begin()
			for i, name := range []string{"lo0", "a", "b", "mgmt"} {
				take(ifMsg(word, uint16(i+1), name, ready, 2))
			}
			tab.end(true)
			for _, m := range c.msgs {
				switch m := m.(type) {
				case rtMsg:
					take(m.bytes(word))
				case func(int) []byte:
					take(m(word))
				}
			}
			if got, want := has(tab), lines(c.want...); got != want || tab.again != c.again {
				t.Errorf("%s, %d bytes: got\n%s%t, want\n%s%t", c.name, word, got, tab.again, want, c.again)
			}
			tab.check(t, c.name)
			// A list has the same.
			if !c.again {
				tab.begin()
				for i, name := range []string{"lo0", "a", "b", "mgmt"} {
					take(ifMsg(word, uint16(i+1), name, ready, 2))
				}
				tab.end(true)
				if got := has(tab); got != "" {
					t.Errorf("%s: after an empty list: got\n%s", c.name, got)
				}
			}
		}
	}
}

// FuzzRtsock: no bytes are too much for the reader.
func FuzzRtsock(f *testing.F) {
	f.Add(rtMsg{kind: rtAdd, flags: rtfGateway, index: a, dst: "203.0.113.0", gw: "198.18.0.203", mask: "255.255.255.0"}.bytes(8))
	f.Add(ifMsg(8, 1, "a", iffUp|ifRunning, 2))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, word := range []int{4, 8} {
			tab := newTable(testPorts)
			r := rtsockReader{table: tab, word: word}
			_ = r.messages(b)
			tab.resolve()
			tab.check(t, "fuzz")
		}
	})
}

// FuzzNetlink: the same of netlink's.
func FuzzNetlink(f *testing.F) {
	f.Add(via("203.0.113.0/24", a, "198.18.0.203").bytes())
	f.Add(routeMsg{to: "2001:db8::/32", hops: []testHop{{link: a, gw: "fe80::1"}, {link: b, gw: "fe80::2"}}}.bytes())
	f.Add(groupMsg(8, 7, 6))
	f.Add(linkMsg(rtmNewLink, a, "a", running))
	f.Fuzz(func(t *testing.T, b []byte) {
		tab := newTable(testPorts)
		r := netlinkReader{table: tab}
		for range 2 {
			_ = eachMessage(b, r.message)
		}
		tab.resolve()
		tab.check(t, "fuzz")
	})
}
