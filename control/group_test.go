package control

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"nmfwd/arp"
	"nmfwd/dataplane/memport"
	"nmfwd/fib"
	"nmfwd/wire"
)

var (
	gatewayA = netip.MustParseAddr("198.18.0.210")
	gatewayB = netip.MustParseAddr("198.19.0.210")
)

// groupLab is the lab with a route through a gateway on either port, of which
// nothing is known yet.
func groupLab(t *testing.T) *groupBed {
	t.Helper()
	s := labSpec()
	s.Ports[0].Name, s.Ports[1].Name = "A", "B"
	s.ICMP.Rate = 1000
	s.Routes = append(s.Routes, fib.Route{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Origin: fib.Static, Kind: fib.Via,
		Hops: []fib.Hop{{Gateway: gatewayA, Port: 0}, {Gateway: gatewayB, Port: 1}}})
	c, ports := lab(t, s)
	return &groupBed{Control: c, ports: ports}
}

type groupBed struct {
	*Control
	ports [2]*memport.Port
	now   time.Duration
}

// step does all that there is to do, some time later, and returns what each port
// sent.
func (b *groupBed) step(later time.Duration) (out [2][][]byte) {
	b.now += later
	w := b.router.Workers()[0]
	for range 3 {
		w.Step(int64(b.now))
		b.Step(b.now)
	}
	w.Step(int64(b.now))
	for i, p := range b.ports {
		out[i] = p.Transmit(0)
	}
	return out
}

// answer has a gateway say where it is.
func (b *groupBed) answer(port int, gw netip.Addr, mac wire.MAC) {
	f := make([]byte, 60)
	arp.Announcement(f, mac, gw)
	f[21] = 2 // a reply
	b.ports[port].Deliver(0, f)
}

// flow returns a packet of a flow to what lies behind the gateways.
func flow(n int) []byte {
	f := make([]byte, 60)
	wire.PutEthernet(f, macA, g1, wire.TypeIPv4)
	ip := f[wire.EthernetLen:]
	ip[0], ip[8], ip[9] = 0x45, 64, wire.ProtoUDP
	binary.BigEndian.PutUint16(ip[2:], 46)
	copy(ip[12:], []byte{198, 18, 0, 203, 203, 0, 113, 9})
	binary.BigEndian.PutUint16(ip[10:], wire.Checksum(ip[:20]))
	binary.BigEndian.PutUint16(ip[20:], uint16(n))
	return f
}

// flows sends packets of many flows and returns the port that each left by, -1 for
// none.
func (b *groupBed) flows(t *testing.T) (by [40]int) {
	t.Helper()
	for n := range by {
		b.ports[0].Deliver(0, flow(n))
		by[n] = -1
		for port, fs := range b.step(0) {
			for _, f := range fs {
				if ip := f[wire.EthernetLen:]; wire.Ethernet(f).Type() == wire.TypeIPv4 && ip[9] == wire.ProtoUDP && ip[19] == 9 {
					by[n] = port
				}
			}
		}
	}
	return by
}

func all(by [40]int, port int) bool {
	for _, p := range by {
		if p != port {
			return false
		}
	}
	return true
}

// TestGroupMembers: all gateways are asked for, in use or not; flows go by what
// answers and has a link, those of others do not move, and return.
func TestGroupMembers(t *testing.T) {
	b := groupLab(t)
	asked := b.step(0)
	for i, fs := range asked {
		n := 0
		for _, f := range fs {
			if wire.Ethernet(f).Type() == wire.TypeARP && f[21] == 1 && [4]byte(f[38:]) == [2]netip.Addr{gatewayA, gatewayB}[i].As4() {
				n++
			}
		}
		if n != 1 {
			t.Errorf("port %d: the gateway was asked for %d times, want once", i, n)
		}
	}
	b.answer(0, gatewayA, g1)
	b.step(time.Millisecond)
	if by := b.flows(t); !all(by, 0) {
		t.Fatalf("one gateway answered: flows by %v", by)
	}
	b.answer(1, gatewayB, g2)
	b.step(20 * time.Millisecond)
	both := b.flows(t)
	if all(both, 0) || all(both, 1) {
		t.Fatalf("both gateways answered: flows by %v", both)
	}
	if again := b.flows(t); again != both {
		t.Fatalf("flows moved: by %v, then %v", both, again)
	}

	b.ports[1].SetLink(false)
	b.step(linkEvery)
	if by := b.flows(t); !all(by, 0) {
		t.Fatalf("the other port has no link: flows by %v", by)
	}
	b.ports[1].SetLink(true)
	b.step(linkEvery)
	if by := b.flows(t); by != both {
		t.Fatalf("the link is back: flows by %v, were by %v", by, both)
	}

	// The gateway on B falls silent: it is found out, and its flows move. When it
	// answers one of the questions that go on, they return.
	for b.now < 3*time.Minute {
		b.answer(0, gatewayA, g1)
		b.step(500 * time.Millisecond)
	}
	if by := b.flows(t); !all(by, 0) {
		t.Fatalf("a gateway is silent: flows by %v", by)
	}
	asks := 0
	for range 60 {
		b.answer(0, gatewayA, g1)
		for _, f := range b.step(500 * time.Millisecond)[1] {
			if wire.Ethernet(f).Type() == wire.TypeARP && f[21] == 1 {
				asks++
			}
		}
	}
	if asks < 5 || asks > 30 {
		t.Errorf("the silent gateway was asked for %d times in 30 s", asks)
	}
	b.answer(1, gatewayB, g2)
	b.step(500 * time.Millisecond)
	if by := b.flows(t); by != both {
		t.Fatalf("the gateway answers again: flows by %v, were by %v", by, both)
	}
}

// TestGroupParked: what waits for a gateway leaves by another one that answers
// first, once; when none does, the sender is told.
func TestGroupParked(t *testing.T) {
	b := groupLab(t)
	b.step(0)
	waits := func() int { n, _ := b.Parked(0); return n }
	for n := range 40 {
		b.ports[0].Deliver(0, flow(n))
	}
	b.step(0)
	if n := waits(); n != 40 {
		t.Fatalf("%d packets wait, want 40", n)
	}
	b.answer(1, gatewayB, g2)
	out := b.step(time.Millisecond)
	left := 0
	for _, f := range out[1] {
		if wire.Ethernet(f).Type() == wire.TypeIPv4 && wire.MACOf(f) == g2 && f[wire.EthernetLen+8] == 63 {
			left++
		}
	}
	if left != 40 || waits() != 0 {
		t.Errorf("%d packets left, %d wait; want 40 and none", left, waits())
	}
	for range 20 {
		for _, f := range b.step(500 * time.Millisecond)[1] {
			if wire.Ethernet(f).Type() == wire.TypeIPv4 {
				t.Fatalf("a packet left twice: % x", f)
			}
		}
	}

	b = groupLab(t)
	b.step(0)
	b.ports[0].Deliver(0, flow(1))
	told := 0
	for range 10 {
		for _, f := range b.step(500 * time.Millisecond)[0] {
			if ip := f[wire.EthernetLen:]; wire.Ethernet(f).Type() == wire.TypeIPv4 && ip[9] == wire.ProtoICMP && ip[20] == 3 && ip[21] == 1 {
				told++
			}
		}
	}
	if told != 1 {
		t.Errorf("no gateway answers: %d host unreachable, want 1", told)
	}
}

// TestSeed: the hash of flows is that of the router, whatever the order of its
// ports, and changes only with its lowest address.
func TestSeed(t *testing.T) {
	a, b := Port{MAC: macA, Addrs: prefixes("198.18.0.205/24", "2001:2::205/64")}, Port{MAC: macB, Addrs: prefixes("169.254.0.1/16", "198.19.0.205/24")}
	want := seed([]Port{a, b})
	more := b
	more.Addrs = prefixes("198.19.0.205/24", "203.0.113.1/24")
	lower := b
	lower.Addrs = prefixes("10.0.0.1/24")
	for _, c := range []struct {
		name  string
		ports []Port
		same  bool
	}{
		{"another order", []Port{b, a}, true},
		{"a further address", []Port{a, more}, true},
		{"a lower address", []Port{a, lower}, false},
		{"no address", []Port{{MAC: macA}, {MAC: macB}}, false},
	} {
		if got := seed(c.ports) == want; got != c.same {
			t.Errorf("%s: same seed %v, want %v", c.name, got, c.same)
		}
	}
	if seed([]Port{{MAC: macA}, {MAC: macB}}) == seed([]Port{{MAC: macB}}) {
		t.Error("two routers without addresses have the same seed")
	}
}
