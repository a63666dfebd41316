package dataplane_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
	"nmfwd/fib"
	"nmfwd/wire"
)

// gatewayMAC is where gateway i of groupRIB is.
func gatewayMAC(i int) [6]byte { return [6]byte{2, 0, 0, 0, 1, byte(i)} }

// groupRIB is the lab's with n gateways behind B for what lies there.
func groupRIB(t testing.TB, n int) *fib.RIB {
	t.Helper()
	rib := labRIB(t)
	for _, rt := range []fib.Route{
		{Prefix: netip.MustParsePrefix("198.19.0.0/16"), Gateway: addr("198.19.0.203")},
		{Prefix: netip.MustParsePrefix("2001:2:0:8000::/49"), Gateway: addr("2001:2:0:8000::203")},
	} {
		for i := range n {
			rt.Hops = append(rt.Hops, fib.Hop{Gateway: rt.Gateway, Port: 1})
			if err := rib.SetNeighbor(1, rt.Gateway, gatewayMAC(i)); err != nil {
				t.Fatal(err)
			}
			rt.Gateway = rt.Gateway.Next()
		}
		rt.Kind, rt.Origin = fib.Via, fib.Static
		add(t, rib, rt)
	}
	return rib
}

// randomPacket changes what flows are told by in a frame of frame4 or frame6.
func randomPacket(rnd *rand.Rand, frame []byte) {
	ip := frame[wire.EthernetLen:]
	proto := []byte{wire.ProtoTCP, wire.ProtoUDP, 33, 132, 136, wire.ProtoICMP, 47, 50}[rnd.IntN(8)]
	if ip[0]>>4 == 6 {
		ip[1], ip[2], ip[3], ip[6] = byte(rnd.Uint32()), byte(rnd.Uint32()), byte(rnd.Uint32()), proto
		if rnd.IntN(4) == 0 {
			ip[6] = wire.ProtoFragment
		}
		binary.BigEndian.PutUint16(ip[4:], uint16(rnd.IntN(9)))
		binary.BigEndian.PutUint32(ip[40:], rnd.Uint32())
		return
	}
	ip[9] = proto
	binary.BigEndian.PutUint16(ip[2:], uint16(20+rnd.IntN(27)))
	binary.BigEndian.PutUint16(ip[6:], []uint16{0, 0x4000, 0x2000, 0x0001, 0x20ff, 0x1000}[rnd.IntN(6)])
	binary.BigEndian.PutUint32(ip[20:], rnd.Uint32())
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], wire.Checksum(ip[:20]))
}

// TestGroup: Step sends each packet by the member that its flow's hash says, as
// decide does without shortcuts, whatever the packet is; a member that leaves takes
// no others' flows with it.
func TestGroup(t *testing.T) {
	const gateways = 4
	rnd := rand.New(rand.NewPCG(1, 3))
	region := memport.NewRegion("test", 2400, memport.Stride)
	a := newPort(t, region, memport.Config{Name: "A"})
	b := newPort(t, region, memport.Config{Name: "B"})
	rib := groupRIB(t, gateways)
	st := labState(rib.Commit())
	st.Seed = 77
	r := newRouter(t, st, 1, dataplane.Options{}, &a.Port, &b.Port)
	via := func(frame []byte) int { // the gateway that it leaves by
		a.Deliver(0, frame)
		r.Workers()[0].Step(0)
		out := b.Transmit(0)
		if len(out) != 1 || !bytes.Equal(out[0], st.Slow(0, frame)) {
			t.Fatalf("% x: got % x, want % x", frame, out, st.Slow(0, frame))
		}
		return int(out[0][5])
	}
	var frames [][]byte
	var first []int
	used := make(map[int]int)
	for i := range 2000 {
		f := frame4(i, 64)
		if i%2 == 1 {
			f = frame6(i, 64)
		}
		randomPacket(rnd, f)
		frames, first = append(frames, f), append(first, via(f))
		used[first[i]]++
		ip := f[wire.EthernetLen:]
		if got := st.Path(destinationOf(ip), ip).Head[5]; int(got) != first[i] {
			t.Fatalf("% x: Path says gateway %d, Step %d", f, got, first[i])
		}
	}
	if len(used) != gateways {
		t.Fatalf("gateways used: %v", used)
	}
	for _, gw := range []string{"198.19.0.204", "2001:2:0:8000::204"} { // gateway 1
		if err := rib.RemoveNeighbor(1, addr(gw)); err != nil {
			t.Fatal(err)
		}
	}
	st = &dataplane.State{FIB: rib.Commit(), Ports: st.Ports, Seed: st.Seed}
	r.Publish(st)
	for i, f := range frames {
		if got := via(f); got == 1 || first[i] != 1 && got != first[i] {
			t.Fatalf("frame %d: by gateway %d, was by %d", i, got, first[i])
		}
	}
	checkSums(t, r)
}

func destinationOf(ip []byte) netip.Addr {
	if ip[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(ip[16:20]))
	}
	return netip.AddrFrom16([16]byte(ip[24:40]))
}

// TestFlow: what belongs to a flow and what does not.
func TestFlow(t *testing.T) {
	st := &dataplane.State{Seed: 5}
	base4, base6 := frame4(0, 64)[wire.EthernetLen:], frame6(0, 64)[wire.EthernetLen:]
	fragment := bytes.Clone(base4)
	fragment[6] = 0x20
	options := append(bytes.Clone(base4[:20]), append([]byte{1, 1, 1, 0}, base4[20:]...)...)
	options[0] = 0x46
	binary.BigEndian.PutUint16(options[2:], 50)
	icmp := bytes.Clone(base4)
	icmp[9] = wire.ProtoICMP
	fragment6 := bytes.Clone(base6)
	fragment6[6] = wire.ProtoFragment
	set := func(at int, v byte) func([]byte) { return func(p []byte) { p[at] ^= v } }
	for _, c := range []struct {
		name   string
		packet []byte
		change func([]byte)
		same   bool
	}{
		{"IPv4 source", base4, set(15, 1), false},
		{"IPv4 destination", base4, set(19, 1), false},
		{"IPv4 protocol", base4, set(9, 17^6), false},
		{"source port", base4, set(21, 1), false},
		{"destination port", base4, set(23, 1), false},
		{"ports behind options", options, set(25, 1), false},
		{"DSCP", base4, set(1, 0xb8), true},
		{"TTL", base4, set(8, 3), true},
		{"identification", base4, set(5, 3), true},
		{"don't fragment", base4, set(6, 0x40), true},
		{"payload", base4, set(30, 3), true},
		{"ICMP type", icmp, set(20, 3), true},
		{"fragment", base4, set(6, 0x20), false},
		{"ports of a first fragment", fragment, set(21, 3), true},
		{"protocol of a fragment", fragment, set(9, 17^6), true},
		{"offset of a fragment", fragment, set(7, 9), true},
		{"last fragment", fragment, func(p []byte) { p[6], p[7] = 0, 9 }, true},
		{"source of a fragment", fragment, set(15, 1), false},
		{"IPv6 source, upper half", base6, set(9, 1), false},
		{"IPv6 source, lower half", base6, set(23, 1), false},
		{"IPv6 destination, upper half", base6, set(25, 1), false},
		{"IPv6 destination, lower half", base6, set(39, 1), false},
		{"flow label", base6, set(1, 0x08), false},
		{"flow label, end", base6, set(3, 1), false},
		{"next header", base6, set(6, 17^6), false},
		{"IPv6 port", base6, set(41, 1), false},
		{"traffic class", base6, set(1, 0xf0), true},
		{"traffic class, start", base6, set(0, 0x0f), true},
		{"hop limit", base6, set(7, 1), true},
		{"IPv6 length", base6, set(5, 3), true},
		{"behind a fragment header", fragment6, set(43, 8), true},
	} {
		p := bytes.Clone(c.packet)
		c.change(p)
		if got := st.Flow(p) == st.Flow(c.packet); got != c.same {
			t.Errorf("%s: same flow %v, want %v", c.name, got, c.same)
		}
		if other := (&dataplane.State{Seed: 6}); other.Flow(c.packet) == st.Flow(c.packet) {
			t.Errorf("%s: another router has the same hash", c.name)
		}
	}
}

// TestFlowSpread: flows with numbers in order are spread as chance would: over the
// buckets, over the parts of a bucket that another router with its own seed makes
// of them, and over the members of small groups.
func TestFlowSpread(t *testing.T) {
	const flows = 100_000
	counting := map[string]func(i uint32) []byte{
		"IPv4 sources": func(i uint32) []byte {
			p := frame4(0, 64)[wire.EthernetLen:]
			binary.BigEndian.PutUint32(p[12:], 10<<24+i)
			return p
		},
		"IPv4 destinations": func(i uint32) []byte {
			p := frame4(0, 64)[wire.EthernetLen:]
			binary.BigEndian.PutUint32(p[16:], 10<<24+i<<8)
			return p
		},
		"ports": func(i uint32) []byte {
			p := frame4(0, 64)[wire.EthernetLen:]
			binary.BigEndian.PutUint32(p[20:], i)
			return p
		},
		"even ports": func(i uint32) []byte {
			p := frame4(0, 64)[wire.EthernetLen:]
			binary.BigEndian.PutUint16(p[20:], uint16(2*i))
			p[19] = byte(i >> 15)
			return p
		},
		"fragments": func(i uint32) []byte {
			p := frame4(0, 64)[wire.EthernetLen:]
			p[6] = 0x20
			binary.BigEndian.PutUint16(p[14:], uint16(i))
			p[19] = byte(i >> 16)
			return p
		},
		"IPv6 interfaces": func(i uint32) []byte {
			p := frame6(0, 64)[wire.EthernetLen:]
			binary.BigEndian.PutUint32(p[20:], i)
			return p
		},
		"IPv6 networks": func(i uint32) []byte {
			p := frame6(0, 64)[wire.EthernetLen:]
			binary.BigEndian.PutUint32(p[28:], i)
			return p
		},
		"flow labels": func(i uint32) []byte {
			p := frame6(0, 64)[wire.EthernetLen:]
			binary.BigEndian.PutUint32(p, 6<<28+i)
			return p
		},
		"IPv6 ports": func(i uint32) []byte {
			p := frame6(0, 64)[wire.EthernetLen:]
			binary.BigEndian.PutUint32(p[40:], i)
			return p
		},
	}
	// even reports whether counts are as even as chance makes them: chi square is
	// within eight standard deviations of its mean.
	even := func(t *testing.T, what string, counts []int) {
		t.Helper()
		sum := 0
		for _, n := range counts {
			sum += n
		}
		mean := float64(sum) / float64(len(counts))
		chi := 0.0
		for _, n := range counts {
			chi += (float64(n) - mean) * (float64(n) - mean) / mean
		}
		free := float64(len(counts) - 1)
		if d := (chi - free) * (chi - free); d > 64*2*free && chi > free {
			t.Errorf("%s: chi square %.0f for %.0f", what, chi, free)
		}
	}
	for name, packet := range counting {
		t.Run(name, func(t *testing.T) {
			one, other := &dataplane.State{Seed: 1}, &dataplane.State{Seed: 2}
			buckets, behind, both := make([]int, fib.Buckets), make([]int, fib.Buckets), make([]int, 16)
			for i := range uint32(flows) {
				p := packet(i)
				h, g := one.Flow(p), other.Flow(p)
				buckets[h%fib.Buckets]++
				both[h%4*4+g%4]++
				if h%2 == 0 { // what the first router sends to the second
					behind[g%fib.Buckets]++
				}
			}
			even(t, "buckets", buckets)
			even(t, "buckets of a router behind", behind)
			even(t, "two routers", both)
		})
	}
}

// TestGroupTagged: members on a VLAN and on a port share a group.
func TestGroupTagged(t *testing.T) {
	rib := fib.New([]fib.PortAttr{{MAC: macA, MTU: 1500}, {MAC: macB, MTU: 1500}, {MAC: macB, MTU: 1400, TCI: 200, On: 1}})
	hops := []fib.Hop{{Gateway: addr("198.19.0.203"), Port: 1}, {Gateway: addr("10.0.0.1"), Port: 2}}
	for _, h := range hops {
		if err := rib.SetNeighbor(h.Port, h.Gateway, g2); err != nil {
			t.Fatal(err)
		}
	}
	add(t, rib, fib.Route{Prefix: netip.MustParsePrefix("198.19.0.0/16"), Origin: fib.Static, Kind: fib.Via, Hops: hops})
	region := memport.NewRegion("test", 2400, memport.Stride)
	a := newPort(t, region, memport.Config{Name: "A"})
	b := newPort(t, region, memport.Config{Name: "B"})
	st := labState(rib.Commit())
	st.Ports = append(st.Ports, dataplane.PortState{Number: 2, MAC: wire.MACOf(macB[:]), MTU: 1400, Up: true, On: 1, TCI: 200})
	r := newRouter(t, st, 1, dataplane.Options{}, &a.Port, &b.Port)
	tagged := 0
	for i := range 200 {
		a.Deliver(0, frame4(i, 64))
		r.Workers()[0].Step(0)
		out := b.Transmit(0)
		if len(out) != 1 || !bytes.Equal(out[0][:12], append(g2[:], macB[:]...)) {
			t.Fatalf("got % x", out)
		}
		if wire.Ethernet(out[0]).Type() == wire.TypeVLAN {
			tagged++
		}
	}
	if tagged < 60 || tagged > 140 {
		t.Errorf("%d of 200 packets left with a tag", tagged)
	}
}
