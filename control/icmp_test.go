package control

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"nmfwd/arp"
	"nmfwd/dataplane"
	"nmfwd/fib"
	"nmfwd/neigh"
	"nmfwd/wire"
	"nmfwd/wire/icmp"
)

// framed puts a packet into a frame from g1 to A.
func framed(p []byte) []byte {
	b := make([]byte, wire.EthernetLen)
	t := uint16(wire.TypeIPv4)
	if p[0]>>4 == 6 {
		t = wire.TypeIPv6
	}
	wire.PutEthernet(b, macA, g1, t)
	return append(b, p...)
}

// udp4 returns a UDP packet from 198.18.10.1 to dst.
func udp4(dst string, ttl byte, payload int) []byte {
	p := packet4(0, nil, counting(8+payload))
	p[8] = ttl
	d := netip.MustParseAddr(dst).As4()
	copy(p[16:], d[:])
	p[10], p[11] = 0, 0
	binary.BigEndian.PutUint16(p[10:], wire.Checksum(p[:wire.IPv4Len]))
	return p
}

func packet6(src, dst string, next, hops byte, payload []byte) []byte {
	p := make([]byte, wire.IPv6Len)
	p[0], p[6], p[7] = 0x60, next, hops
	s, d := netip.MustParseAddr(src).As16(), netip.MustParseAddr(dst).As16()
	copy(p[8:], s[:])
	copy(p[24:], d[:])
	binary.BigEndian.PutUint16(p[4:], uint16(len(payload)))
	return append(p, payload...)
}

func icmpSpec() *Spec {
	s := labSpec()
	s.ICMP.Rate = 1000
	s.Routes = append(s.Routes, fib.Route{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Origin: fib.Static, Kind: fib.Reject},
		fib.Route{Prefix: netip.MustParsePrefix("203.0.112.0/24"), Origin: fib.Kernel, Kind: fib.Host})
	return s
}

// TestSource: whose address an error carries.
func TestSource(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Spec)
		packet []byte
		want   string
	}{
		{"ingress", func(*Spec) {}, udp4("198.19.10.1", 1, 8), "198.18.0.205"},
		{"ingress, v6", func(*Spec) {}, packet6("2001:2:0:1::1", "2001:2:0:8001::1", 17, 1, nil), "2001:2::205"},
		{"egress", func(s *Spec) {
			s.ICMP.Egress = true
			s.Routes[0].Gateway, s.Routes[0].Port = netip.MustParseAddr("198.19.0.203"), 1
		}, udp4("198.19.10.1", 1, 8), "198.19.0.205"},
		{"on the network of the source", func(s *Spec) {
			s.Ports[0].Addrs = prefixes("10.0.0.1/24", "198.18.0.205/16")
			s.Routes = s.Routes[2:]
			s.Neighbors = append(s.Neighbors, neigh.Entry{Key: neigh.Key{Port: 0, Addr: netip.MustParseAddr("198.18.10.1")}, MAC: g1})
		}, udp4("198.19.10.1", 1, 8), "198.18.0.205"},
		{"first of several", func(s *Spec) { s.Ports[0].Addrs = prefixes("198.18.0.205/24", "10.0.0.1/24") }, udp4("198.19.10.1", 1, 8), "198.18.0.205"},
		{"unnumbered", func(s *Spec) {
			s.Ports[0].Addrs = nil
			s.Ports[1].Addrs = append(s.Ports[1].Addrs, prefixes("10.0.0.1/24")...)
		}, udp4("198.19.10.1", 1, 8), "10.0.0.1"},
		{"link-local is no source", func(s *Spec) { s.Ports[0].Addrs = prefixes("fe80::1/64") }, packet6("2001:2:0:1::1", "2001:2:0:8001::1", 17, 1, nil), "2001:2:0:8000::205"},
		{"none", func(s *Spec) { s.Ports[0].Addrs, s.Ports[1].Addrs = prefixes("2001:2::205/64"), nil }, udp4("198.19.10.1", 1, 8), ""},
		{"own address", func(*Spec) {}, udp4("198.19.0.205", 64, 8), "198.19.0.205"},
	} {
		s := icmpSpec()
		c.change(s)
		ctl, ports := lab(t, s)
		got := append(pass(ctl, ports[0], framed(c.packet)), ports[1].Transmit(0)...)
		switch {
		case c.want == "" && len(got) > 0:
			t.Errorf("%s: got % x", c.name, got)
		case c.want == "":
		case len(got) != 1:
			t.Errorf("%s: got %d frames, %v", c.name, len(got), ctl.Messages(0))
		default:
			if src := source(packetOf(got[0])); src != netip.MustParseAddr(c.want) {
				t.Errorf("%s: got %v, want %s", c.name, src, c.want)
			}
		}
	}
}

// TestMessages: which errors are sent and counted, to whom and about what,
// and why others are not.
func TestMessages(t *testing.T) {
	big := udp4("198.19.10.1", 64, 1400)
	big[6] = 0x40
	big[10], big[11] = 0, 0
	binary.BigEndian.PutUint16(big[10:], wire.Checksum(big[:wire.IPv4Len]))
	broadcast := udp4("198.19.10.1", 1, 8)
	copy(broadcast[12:], []byte{198, 18, 77, 255})
	broadcast[10], broadcast[11] = 0, 0
	binary.BigEndian.PutUint16(broadcast[10:], wire.Checksum(broadcast[:wire.IPv4Len]))
	toBroadcast := packet4(0, []byte{7, 0, 0, 0}, counting(8))
	copy(toBroadcast[16:], []byte{198, 19, 0, 255})
	toBroadcast[10], toBroadcast[11] = 0, 0
	binary.BigEndian.PutUint16(toBroadcast[10:], wire.Checksum(toBroadcast[:24]))
	for _, c := range []struct {
		name   string
		packet []byte
		sent   icmp.Kind
		why    icmp.Reason
	}{
		{"TTL", udp4("198.19.10.1", 1, 8), icmp.TimeExceeded, icmp.OK},
		{"no route", udp4("8.8.8.8", 64, 8), icmp.NetUnreachable, icmp.OK},
		{"route of the host, and no host", udp4("203.0.112.1", 64, 8), icmp.NetUnreachable, icmp.OK},
		{"reject", udp4("203.0.113.1", 64, 8), icmp.Prohibited, icmp.OK},
		{"too big", big, icmp.TooBig, icmp.OK},
		{"port", udp4("198.18.0.205", 1, 8), icmp.PortUnreachable, icmp.OK},
		{"options", packet4(0, []byte{7, 0, 0, 0}, counting(8)), icmp.ParameterProblem, icmp.OK},
		{"to a broadcast address", toBroadcast, 0, icmp.Multicast},
		{"TTL, to a broadcast address of the system", udp4("198.18.77.255", 1, 8), 0, icmp.Multicast},
		{"no route, to a broadcast address of the system", udp4("8.8.8.255", 64, 8), 0, icmp.Multicast},
		{"reject, to a broadcast address of the system", udp4("203.0.113.255", 64, 8), 0, icmp.Multicast},
		{"route of the host, to a broadcast address of the system", udp4("203.0.112.255", 64, 8), 0, icmp.Multicast},
		{"from a broadcast address of the system", broadcast, 0, icmp.BadSource},
		{"no way back", packet6("2001:db8::1", "2001:2:0:8001::1", 17, 1, nil), 0, icmp.NoRoute},
		{"about an error", packet6("2001:2:0:1::1", "2001:2:0:8001::1", 58, 1, []byte{1, 0, 0, 0, 0, 0, 0, 0}), 0, icmp.AboutError},
		{"v6 too big", packet6("2001:2:0:1::1", "2001:2:0:8001::1", 17, 64, counting(1400)), icmp.TooBig, icmp.OK},
		{"from our link", packet6("fe80::5", "2001:2::205", 17, 64, counting(8)), icmp.PortUnreachable, icmp.OK},
		{"fragment to us", packet6("2001:2:0:1::1", "2001:2::205", 44, 64, []byte{17, 0, 0, 1, 0, 0, 0, 1}), 0, icmp.Fragment},
	} {
		s := icmpSpec()
		s.Ports[1].MTU = 1400
		s.Broadcast = func(a netip.Addr) bool { return a.As4()[3] == 255 }
		ctl, ports := lab(t, s)
		got := pass(ctl, ports[0], framed(c.packet))
		m, f := ctl.Messages(0), family(c.packet)
		if c.why != icmp.OK {
			if len(got) != 0 || m.Suppressed[f][c.why] != 1 {
				t.Errorf("%s: got %d frames, %v, want none for %v", c.name, len(got), m, c.why)
			}
			continue
		}
		if len(got) != 1 || m.Sent[f][c.sent] != 1 {
			t.Errorf("%s: got %d frames, %v, want one of %v", c.name, len(got), m, c.sent)
			continue
		}
		if e := wire.Ethernet(got[0]); e.Destination() != g1 || e.Source() != macA || len(got[0]) < 60 {
			t.Errorf("%s: got % x", c.name, got[0])
		}
		to, from, quote := got[0][14+16:14+20], c.packet[12:16], got[0][14+20+8:]
		if f == 1 {
			to, from, quote = got[0][14+24:14+40], c.packet[8:24], got[0][14+40+8:]
		}
		if !bytes.Equal(to, from) {
			t.Errorf("%s: sent to %x, want %x", c.name, to, from)
		}
		if !bytes.HasPrefix(quote, c.packet[:20]) {
			t.Errorf("%s: quotes %x, want %x", c.name, quote, c.packet)
		}
	}
}

// TestFragments: a packet that may be fragmented leaves as fragments, with one
// taken from its TTL once, and the rest of the ring is left to others.
func TestFragments(t *testing.T) {
	s := icmpSpec()
	s.Ports[1].MTU = 1400
	ctl, ports := lab(t, s)
	p := udp4("198.19.10.1", 64, 1472)
	pass(ctl, ports[0], framed(p))
	got := ports[1].Transmit(0)
	if len(got) != 2 {
		t.Fatalf("got %d frames, want 2: %+v", len(got), ctl.Fragmented(0))
	}
	for i, want := range []int{1396, 124} {
		f := wire.IPv4(packetOf(got[i]))
		if len(f) != want || f.TTL() != 63 || wire.CheckIPv4(f, len(f)) != wire.OK || wire.Ethernet(got[i]).Destination() != g2 {
			t.Errorf("fragment %d: got % x", i, got[i][:40])
		}
	}
	if got := ctl.Fragmented(0); got != (Fragmented{1, 2, 0}) {
		t.Errorf("got %+v", got)
	}

	s = icmpSpec()
	s.Ports[1].MTU = 400 // four fragments of each
	ctl, ports = lab(t, s)
	const many = 64
	for range many {
		ports[0].Deliver(0, framed(p))
	}
	w := ctl.router.Workers()[0]
	w.Step(0)
	ctl.HandlePunts()
	if room := ctl.router.Room(1); room < controlRoom || room >= controlRoom+4 {
		t.Errorf("fragments left room for %d frames, want %d", room, controlRoom)
	}
	w.Step(0)
	sent := len(ports[1].Transmit(0))
	if got := ctl.Fragmented(0); uint64(sent) != got.Fragments || got.Failed == 0 || got.Packets+got.Failed != many {
		t.Errorf("%d fragments left, %+v", sent, got)
	}
}

// TestPing: every address of the router answers by every port, also in fragments
// where the way back is narrow.
func TestPing(t *testing.T) {
	echo := func(dst string, size int) []byte {
		p := wire.IPv4(udp4(dst, 64, size))
		p[9] = wire.ProtoICMP
		m := p[wire.IPv4Len:]
		clear(m[:8])
		m[0] = 8
		binary.BigEndian.PutUint16(m[2:], wire.Checksum(m))
		p[10], p[11] = 0, 0
		binary.BigEndian.PutUint16(p[10:], wire.Checksum(p[:wire.IPv4Len]))
		return p
	}
	s := icmpSpec()
	ctl, ports := lab(t, s)
	for _, dst := range []string{"198.18.0.205", "198.19.0.205"} {
		for _, size := range []int{0, 56, 1472} {
			got := pass(ctl, ports[0], framed(echo(dst, size)))
			if len(got) != 1 {
				t.Fatalf("%s, %d bytes: got %d frames, %v", dst, size, len(got), ctl.Messages(0))
			}
			p := packetOf(got[0])
			if len(p) != 28+size || source(p).String() != dst || destination(p).String() != "198.18.10.1" ||
				p[20] != 0 || wire.Checksum(p[20:]) != 0 || !bytes.Equal(p[24:], echo(dst, size)[24:]) {
				t.Errorf("%s, %d bytes: got % x", dst, size, p)
			}
		}
	}
	s.Ports[0].MTU = 1500
	s.Routes[0].MTU = 1000
	ctl, ports = lab(t, s)
	if got := pass(ctl, ports[0], framed(echo("198.18.0.205", 1472))); len(got) != 2 {
		t.Errorf("narrow way back: got %d frames, %v", len(got), ctl.Messages(0))
	}
}

// TestRate: a port sends no more errors than its rate, whatever deserves one.
func TestRate(t *testing.T) {
	s := icmpSpec()
	s.ICMP.Rate = 100
	ctl, ports := lab(t, s)
	w := ctl.router.Workers()[0]
	sent := 0
	for ms := range 1000 {
		for range 10 {
			ports[0].Deliver(0, framed(udp4("198.19.10.1", 1, 8)))
		}
		w.Step(int64(ms) * int64(time.Millisecond))
		ctl.HandlePunts()
		w.Step(int64(ms) * int64(time.Millisecond))
		sent += len(ports[0].Transmit(0))
	}
	if sent < 100 || sent > 110 {
		t.Errorf("%d errors in a second, want 100 and a burst of 10", sent)
	}
	var snap dataplane.Snapshot
	ctl.router.Snapshot(&snap)
	if got := snap.Ports[0].RX[0].Limited4; got != uint64(10000-sent) {
		t.Errorf("%d counted as limited, want %d", got, 10000-sent)
	}
}

// TestRateOff: no error is sent, and none counts as suppressed.
func TestRateOff(t *testing.T) {
	s := icmpSpec()
	s.ICMP.Rate = 0
	ctl, ports := lab(t, s)
	if got := pass(ctl, ports[0], framed(udp4("198.19.10.1", 1, 8))); len(got) > 0 {
		t.Errorf("got % x", got)
	}
	var snap dataplane.Snapshot
	ctl.router.Snapshot(&snap)
	q := snap.Ports[0].RX[0]
	if q.Dropped[dataplane.DropTTL] != 1 || q.Limited4 != 0 || ctl.Messages(0) != (Messages{}) {
		t.Errorf("got %+v, %v", q, ctl.Messages(0))
	}
}

// TestFloodAndARP: a flood of what deserves an error, of pings and of packets to
// be fragmented leaves ARP and good flows as they are.
func TestFloodAndARP(t *testing.T) {
	s := icmpSpec()
	s.Ports[1].MTU = 1400
	ctl, ports := lab(t, s)
	w := ctl.router.Workers()[0]
	now := int64(0)
	answers, forwarded := 0, 0
	for range 100 {
		for range 30 {
			ports[0].Deliver(0, framed(udp4("198.19.10.1", 1, 8)))
			ports[0].Deliver(0, framed(udp4("198.18.0.205", 9, 8)))
			ports[0].Deliver(0, framed(udp4("198.19.10.1", 64, 1472)))
		}
		ports[0].Deliver(0, arpRequest("198.18.0.205"))
		ports[0].Deliver(0, framed(udp4("198.19.10.1", 64, 9)))
		for now += int64(time.Millisecond); w.Step(now) > 0; {
			continue
		}
		ctl.HandlePunts()
		for w.Step(now) > 0 {
			continue
		}
		for _, f := range ports[0].Transmit(0) {
			if wire.Ethernet(f).Type() == wire.TypeARP {
				answers++
			}
		}
		for _, f := range ports[1].Transmit(0) {
			if p := packetOf(f); len(p) == 20+8+9 {
				forwarded++
			}
		}
	}
	if answers != 100 || forwarded != 100 {
		t.Errorf("%d of 100 ARP requests answered, %d of 100 packets forwarded", answers, forwarded)
	}
}

func arpRequest(target string) []byte {
	b := make([]byte, 60)
	arp.Request(b, wire.Broadcast, g1, netip.MustParseAddr("198.18.0.203"), netip.MustParseAddr(target))
	return b
}

// TestWaits: an error for a station that is not known yet asks for it, and leaves
// when it answers, with the TTL that it was made with.
func TestWaits(t *testing.T) {
	s := icmpSpec()
	s.Ports[0].Addrs = prefixes("198.18.0.205/16")
	s.Routes = s.Routes[2:]
	ctl, ports := lab(t, s)
	got := pass(ctl, ports[0], framed(udp4("198.19.10.1", 1, 8)))
	if len(got) != 1 || wire.Ethernet(got[0]).Type() != wire.TypeARP {
		t.Fatalf("got % x, want an ARP request", got)
	}
	reply := make([]byte, 60)
	arp.Announcement(reply, g1, netip.MustParseAddr("198.18.10.1"))
	macA.Put(reply)
	reply[21] = 2 // a reply, to the one that asked
	macA.Put(reply[32:])
	copy(reply[38:], []byte{198, 18, 0, 205})
	got = pass(ctl, ports[0], reply)
	if len(got) != 1 {
		t.Fatalf("got %d frames, want the error", len(got))
	}
	p := wire.IPv4(packetOf(got[0]))
	if wire.CheckIPv4(p, len(p)) != wire.OK || p.TTL() != 64 || p[20] != 11 || wire.Checksum(p[20:]) != 0 || wire.Ethernet(got[0]).Destination() != g1 {
		t.Errorf("got % x", got[0])
	}
}

// BenchmarkFlood is what a packet with TTL 1 costs worker and control together
// when such packets come at 14.88 million a second, with the delivery to a port in
// memory.
func BenchmarkFlood(b *testing.B) {
	s := icmpSpec()
	ctl, ports := lab(b, s)
	w := ctl.router.Workers()[0]
	frame := framed(udp4("198.19.10.1", 1, 8))
	now, packets := int64(0), 0
	for b.Loop() {
		for range 64 {
			ports[0].Deliver(0, frame)
		}
		now += 64 * 67
		packets += w.Step(now)
		ctl.HandlePunts()
		ports[0].Transmit(0)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(packets), "ns/pkt")
}
