package dataplane_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
	"nmfwd/fib"
	"nmfwd/wire"
)

// The lab of these tests: two ports in memory, A and B, with a generator on A
// and a receiver on B.
//
//	g1 -- A [router] B -- g2
//	198.18.0.203   198.18.0.205  198.19.0.205   198.19.0.203
var (
	macA = [6]byte{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x3d}
	macB = [6]byte{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x3e}
	g1   = [6]byte{0x00, 0x1b, 0x21, 0xc4, 0x95, 0x7a}
	g2   = [6]byte{0x00, 0x1b, 0x21, 0xc4, 0x95, 0x7b}
)

// labRIB returns the routes of the lab: port 0 is A, port 1 is B.
func labRIB(t testing.TB) *fib.RIB {
	t.Helper()
	r := fib.New([]fib.PortAttr{{MAC: macA, MTU: 1500}, {MAC: macB, MTU: 1500}})
	for port, s := range [][]string{
		{"198.18.0.205/24", "2001:2::205/64", "198.18.0.0/16", "198.18.0.203", "2001:2::/49", "2001:2::203"},
		{"198.19.0.205/24", "2001:2:0:8000::205/64", "198.19.0.0/16", "198.19.0.203", "2001:2:0:8000::/49", "2001:2:0:8000::203"},
	} {
		p := uint16(port)
		for _, a := range s[:2] {
			a := netip.MustParsePrefix(a)
			add(t, r, fib.Route{Prefix: netip.PrefixFrom(a.Addr(), a.Addr().BitLen()), Kind: fib.Local, Origin: fib.Connected, Port: p})
			add(t, r, fib.Route{Prefix: a.Masked(), Kind: fib.OnLink, Origin: fib.Connected, Port: p})
		}
		for i := 2; i < 6; i += 2 {
			gw := netip.MustParseAddr(s[i+1])
			add(t, r, fib.Route{Prefix: netip.MustParsePrefix(s[i]), Kind: fib.Via, Gateway: gw, Origin: fib.Static, Port: p})
			if err := r.SetNeighbor(p, gw, [2][6]byte{g1, g2}[port]); err != nil {
				t.Fatal(err)
			}
		}
	}
	return r
}

// addr parses an address.
func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func add(t testing.TB, r *fib.RIB, rt fib.Route) {
	t.Helper()
	if err := r.Add(rt); err != nil {
		t.Fatal(err)
	}
}

// labState returns the state of the lab's two ports.
func labState(f *fib.FIB) *dataplane.State {
	return &dataplane.State{FIB: f, Ports: []dataplane.PortState{
		{Number: 0, MAC: wire.MACOf(macA[:]), MTU: 1500, Up: true},
		{Number: 1, MAC: wire.MACOf(macB[:]), MTU: 1500, Up: true},
	}}
}

// frame4 returns a UDP packet of the lab's flow n in a frame of 60 bytes.
func frame4(n int, ttl uint8) []byte {
	b := make([]byte, 60)
	wire.PutEthernet(b, wire.MACOf(macA[:]), wire.MACOf(g1[:]), wire.TypeIPv4)
	ip := b[wire.EthernetLen:]
	ip[0] = 0x45
	binary.BigEndian.PutUint16(ip[2:], 46)
	ip[8], ip[9] = ttl, wire.ProtoUDP
	copy(ip[12:], []byte{198, 18, 10, byte(1 + n%100), 198, 19, 10, byte(1 + n/100%20)})
	binary.BigEndian.PutUint16(ip[10:], wire.Checksum(ip[:20]))
	binary.BigEndian.PutUint16(ip[20:], 2000)
	binary.BigEndian.PutUint16(ip[22:], 2000)
	binary.BigEndian.PutUint16(ip[24:], 26)
	binary.BigEndian.PutUint32(ip[28:], uint32(n))
	return b
}

// frame6 is frame4 for IPv6, in 62 bytes.
func frame6(n int, hops uint8) []byte {
	b := make([]byte, 62)
	wire.PutEthernet(b, wire.MACOf(macA[:]), wire.MACOf(g1[:]), wire.TypeIPv6)
	ip := b[wire.EthernetLen:]
	ip[0] = 0x60
	binary.BigEndian.PutUint16(ip[4:], 8)
	ip[6], ip[7] = wire.ProtoUDP, hops
	copy(ip[8:], netip.MustParseAddr("2001:2:0:1::").AsSlice())
	copy(ip[24:], netip.MustParseAddr("2001:2:0:8001::").AsSlice())
	ip[23], ip[39] = byte(1+n%20), byte(1+n/20%100)
	binary.BigEndian.PutUint16(ip[40:], 2000)
	binary.BigEndian.PutUint16(ip[42:], 2000)
	binary.BigEndian.PutUint16(ip[44:], 8)
	return b
}

// newRouter returns a router of ports in the lab's state, which one worker
// steps.
func newRouter(t testing.TB, st *dataplane.State, workers int, opt dataplane.Options, ports ...*dataplane.Port) *dataplane.Forwarder {
	t.Helper()
	r, err := dataplane.NewForwarder(ports, workers, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	r.Publish(st)
	return r
}

// newPort returns a port in memory.
func newPort(t testing.TB, region *dataplane.Region, cfg memport.Config) *memport.Port {
	t.Helper()
	p, err := memport.New(region, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
