package arp

import (
	"bytes"
	"encoding/hex"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"nmfwd/test/frame"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"nmfwd/neigh"
	"nmfwd/wire"
)

const (
	portMAC    = "000db941ca3d"
	gatewayMAC = "001b21c4957a"
	otherMAC   = "020000000099"
	virtualMAC = "00005e000107"
	broadcast  = "ffffffffffff"
	zeroMAC    = "000000000000"

	own     = "c61200cd" // 198.18.0.205
	gateway = "c61200cb" // 198.18.0.203, static
	host    = "c6120063" // 198.18.0.99, unknown
	farOwn  = "c61300cd" // 198.19.0.205, the router's on another port
	none    = "00000000"

	request = "0001 0800 06 04 0001"
	reply   = "0001 0800 06 04 0002"
)

func mac(t testing.TB, s string) wire.MAC { return wire.MACOf(frame.Hex(t, s)) }

func TestValid(t *testing.T) {
	ok := request + gatewayMAC + gateway + zeroMAC + own
	tests := []struct {
		name   string
		packet string
		want   bool
	}{
		{"request", ok, true},
		{"reply", reply + gatewayMAC + gateway + portMAC + own, true},
		{"padding", ok + strings.Repeat("00", 18), true},
		{"trailing bytes", ok + strings.Repeat("ff", 100), true},
		{"probe", request + gatewayMAC + none + zeroMAC + own, true},
		{"announcement", request + gatewayMAC + gateway + zeroMAC + gateway, true},
		{"gratuitous reply", reply + gatewayMAC + gateway + broadcast + gateway, true},
		{"link-local sender", request + gatewayMAC + "a9fe0101" + zeroMAC + own, true},
		{"private sender", request + gatewayMAC + "0a000001" + zeroMAC + own, true},
		{"sender 1.0.0.0", request + gatewayMAC + "01000000" + zeroMAC + own, true},
		{"sender 126.255.255.255", request + gatewayMAC + "7effffff" + zeroMAC + own, true},
		{"sender 128.0.0.0", request + gatewayMAC + "80000000" + zeroMAC + own, true},
		{"sender 223.255.255.255", request + gatewayMAC + "dfffffff" + zeroMAC + own, true},
		{"empty", "", false},
		{"one byte short", ok[:len(ok)-2], false},
		{"hardware type 6", "0006 0800 06 04 0001" + gatewayMAC + gateway + zeroMAC + own, false},
		{"protocol IPv6", "0001 86dd 06 04 0001" + gatewayMAC + gateway + zeroMAC + own, false},
		{"hardware length 8", "0001 0800 08 04 0001" + gatewayMAC + gateway + zeroMAC + own, false},
		{"protocol length 16", "0001 0800 06 10 0001" + gatewayMAC + gateway + zeroMAC + own, false},
		{"operation 0", "0001 0800 06 04 0000" + gatewayMAC + gateway + zeroMAC + own, false},
		{"operation 3, RARP", "0001 0800 06 04 0003" + gatewayMAC + gateway + zeroMAC + own, false},
		{"operation 0x101", "0001 0800 06 04 0101" + gatewayMAC + gateway + zeroMAC + own, false},
		{"zero mac", request + zeroMAC + gateway + zeroMAC + own, false},
		{"multicast mac", request + "01005e000001" + gateway + zeroMAC + own, false},
		{"broadcast mac", request + broadcast + gateway + zeroMAC + own, false},
		{"reply from 0.0.0.0", reply + gatewayMAC + none + portMAC + own, false},
		{"sender 0.0.0.1", request + gatewayMAC + "00000001" + zeroMAC + own, false},
		{"sender 127.0.0.1", request + gatewayMAC + "7f000001" + zeroMAC + own, false},
		{"sender 224.0.0.1", request + gatewayMAC + "e0000001" + zeroMAC + own, false},
		{"sender 240.0.0.1", request + gatewayMAC + "f0000001" + zeroMAC + own, false},
		{"sender 255.255.255.255", request + gatewayMAC + "ffffffff" + zeroMAC + own, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Packet(frame.Hex(t, tt.packet)).Valid(); got != tt.want {
				t.Errorf("got %t, want %t", got, tt.want)
			}
		})
	}
}

func TestAccessors(t *testing.T) {
	p := Packet(frame.Hex(t, reply, gatewayMAC, gateway, portMAC, own))
	if got := p.Op(); got != OpReply {
		t.Errorf("op: got %d, want %d", got, OpReply)
	}
	if got, want := p.SenderMAC(), mac(t, gatewayMAC); got != want {
		t.Errorf("sender mac: got %x, want %x", got.Bytes(), want.Bytes())
	}
	if got, want := p.Sender(), netip.MustParseAddr("198.18.0.203"); got != want {
		t.Errorf("sender: got %s, want %s", got, want)
	}
	if got, want := p.TargetMAC(), mac(t, portMAC); got != want {
		t.Errorf("target mac: got %x, want %x", got.Bytes(), want.Bytes())
	}
	if got, want := p.Target(), netip.MustParseAddr("198.18.0.205"); got != want {
		t.Errorf("target: got %s, want %s", got, want)
	}
}

func TestEncode(t *testing.T) {
	var (
		pm, gm     = mac(t, portMAC), mac(t, gatewayMAC)
		ownA, gwA  = netip.MustParseAddr("198.18.0.205"), netip.MustParseAddr("198.18.0.203")
		unspec     = netip.IPv4Unspecified()
		dirty      = bytes.Repeat([]byte{0xee}, FrameLen+10)
		etherBcast = broadcast + portMAC + "0806"
	)
	tests := []struct {
		name string
		put  func(b []byte) int
		want string
	}{
		{"request", func(b []byte) int { return Request(b, wire.Broadcast, pm, ownA, gwA) },
			etherBcast + request + portMAC + own + zeroMAC + gateway},
		{"unicast request", func(b []byte) int { return Request(b, gm, pm, ownA, gwA) },
			gatewayMAC + portMAC + "0806" + request + portMAC + own + zeroMAC + gateway},
		{"probe", func(b []byte) int { return Request(b, wire.Broadcast, pm, unspec, ownA) },
			etherBcast + request + portMAC + none + zeroMAC + own},
		{"announcement", func(b []byte) int { return Announcement(b, pm, ownA) },
			etherBcast + request + portMAC + own + zeroMAC + own},
		{"reply", func(b []byte) int { return Reply(b, gm, pm, ownA, gwA) },
			gatewayMAC + portMAC + "0806" + reply + portMAC + own + gatewayMAC + gateway},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := slices.Clone(dirty)
			n := tt.put(b)
			if want := frame.Hex(t, tt.want); !bytes.Equal(b[:n], want) {
				t.Errorf("got  %x\nwant %x", b[:n], want)
			}
			if n != FrameLen || !bytes.Equal(b[n:], dirty[n:]) {
				t.Errorf("got length %d, want %d and nothing written behind it", n, FrameLen)
			}
			if !Packet(b[wire.EthernetLen:n]).Valid() {
				t.Error("what was written is not valid")
			}
		})
	}
}

func newTable(t testing.TB) (*neigh.Table, *neigh.Port) {
	t.Helper()
	tab := neigh.New(make([]neigh.Source, 2), 10)
	if err := tab.Replace(map[neigh.Key]wire.MAC{{Port: 1, Addr: netip.MustParseAddr("198.18.0.203")}: mac(t, gatewayMAC)}, 10); err != nil {
		t.Fatal(err)
	}
	return tab, &neigh.Port{
		Num:   1,
		MAC:   mac(t, portMAC),
		MACs:  []wire.MAC{mac(t, virtualMAC)},
		Addrs: []netip.Addr{netip.MustParseAddr("2001:2::205"), netip.MustParseAddr("198.18.0.205")},
	}
}

func TestHandle(t *testing.T) {
	const (
		toAll = broadcast + gatewayMAC + "0806"
		toUs  = portMAC + gatewayMAC + "0806"
	)
	// answer is the frame that answers sender.
	answer := func(senderMAC, sender string) string {
		return senderMAC + portMAC + "0806" + reply + portMAC + own + senderMAC + sender
	}
	tests := []struct {
		name     string
		frame    string
		want     string
		conflict neigh.Conflict
		host     bool
	}{
		{name: "request", frame: toAll + request + gatewayMAC + gateway + zeroMAC + own, want: answer(gatewayMAC, gateway)},
		{name: "request, padded", frame: toAll + request + gatewayMAC + gateway + zeroMAC + own + strings.Repeat("00", 18), want: answer(gatewayMAC, gateway)},
		{name: "request, unicast", frame: toUs + request + gatewayMAC + gateway + portMAC + own, want: answer(gatewayMAC, gateway)},
		{name: "request to a virtual mac", frame: virtualMAC + gatewayMAC + "0806" + request + gatewayMAC + gateway + zeroMAC + own, want: answer(gatewayMAC, gateway)},
		{name: "request to a multicast mac", frame: "01005e000001" + gatewayMAC + "0806" + request + gatewayMAC + gateway + zeroMAC + own, want: answer(gatewayMAC, gateway)},
		{name: "request of an unknown host", frame: broadcast + otherMAC + "0806" + request + otherMAC + host + zeroMAC + own, want: answer(otherMAC, host)},
		{name: "request, ethernet source differs", frame: toAll + request + otherMAC + host + zeroMAC + own, want: answer(otherMAC, host)},
		{name: "probe", frame: toAll + request + otherMAC + none + zeroMAC + own, want: answer(otherMAC, none)},
		{name: "probe for another address", frame: toAll + request + otherMAC + none + zeroMAC + host},
		{name: "probe for a static neighbor", frame: toAll + request + otherMAC + none + zeroMAC + gateway},
		{name: "request for another host", frame: toAll + request + gatewayMAC + gateway + zeroMAC + host},
		{name: "request for an address of another port", frame: toAll + request + gatewayMAC + gateway + zeroMAC + farOwn},
		{name: "request for 127.0.0.1", frame: toAll + request + gatewayMAC + gateway + zeroMAC + "7f000001"},
		{name: "request to another router", frame: otherMAC + gatewayMAC + "0806" + request + gatewayMAC + gateway + zeroMAC + own},
		{name: "host answers", host: true, frame: toAll + request + gatewayMAC + gateway + zeroMAC + own},
		{name: "host, conflict", host: true, frame: toAll + request + otherMAC + gateway + zeroMAC + own, conflict: neigh.StaticConflict},
		{name: "reply", frame: toUs + reply + gatewayMAC + gateway + portMAC + own},
		{name: "reply of an unknown host", frame: toUs + reply + otherMAC + host + portMAC + own},
		{name: "our own request", frame: broadcast + portMAC + "0806" + request + portMAC + own + zeroMAC + own},
		{name: "our own announcement, virtual mac", frame: broadcast + virtualMAC + "0806" + request + virtualMAC + own + zeroMAC + own},
		{name: "static, gratuitous request", frame: toAll + request + otherMAC + gateway + zeroMAC + gateway, conflict: neigh.StaticConflict},
		{name: "static, gratuitous reply", frame: toAll + reply + otherMAC + gateway + broadcast + gateway, conflict: neigh.StaticConflict},
		{name: "static, gratuitous request, same mac", frame: toAll + request + gatewayMAC + gateway + zeroMAC + gateway},
		{name: "static, reply to us", frame: toUs + reply + otherMAC + gateway + portMAC + own, conflict: neigh.StaticConflict},
		{name: "static, request for us", frame: toAll + request + otherMAC + gateway + zeroMAC + own, want: answer(otherMAC, gateway), conflict: neigh.StaticConflict},
		{name: "static, reply to another router", frame: otherMAC + gatewayMAC + "0806" + reply + otherMAC + gateway + gatewayMAC + host},
		{name: "own address, announcement", frame: toAll + request + otherMAC + own + zeroMAC + own, want: answer(otherMAC, own), conflict: neigh.OwnAddressConflict},
		{name: "own address, gratuitous reply", frame: toAll + reply + otherMAC + own + broadcast + own, conflict: neigh.OwnAddressConflict},
		{name: "own address, reply", frame: toUs + reply + otherMAC + own + portMAC + own, conflict: neigh.OwnAddressConflict},
		{name: "own address, request for another host", frame: toAll + request + otherMAC + own + zeroMAC + host, conflict: neigh.OwnAddressConflict},
		{name: "own address of another port", frame: toAll + request + otherMAC + farOwn + zeroMAC + host},
		{name: "invalid sender claims nothing", frame: toAll + reply + broadcast + gateway + portMAC + own},
		{name: "not ARP", frame: broadcast + gatewayMAC + "8035" + request + gatewayMAC + gateway + zeroMAC + own},
		{name: "tagged", frame: broadcast + gatewayMAC + "8100 0064 0806" + request + gatewayMAC + gateway + zeroMAC + own},
		{name: "header only", frame: toAll},
		{name: "one byte short", frame: toAll + request + gatewayMAC + gateway + zeroMAC + own[:6]},
		{name: "empty"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tab, port := newTable(t)
			port.Host = tt.host
			before := tab.All()
			in := frame.Hex(t, tt.frame)
			kept := slices.Clone(in)
			var out [FrameLen]byte
			n, c := Handle(0, tab, port, in, out[:])
			if want := frame.Hex(t, tt.want); !bytes.Equal(out[:n], want) {
				t.Errorf("answer:\ngot  %x\nwant %x", out[:n], want)
			}
			if c != tt.conflict {
				t.Errorf("conflict: got %s, want %s", c, tt.conflict)
			}
			for _, k := range []neigh.Conflict{neigh.StaticConflict, neigh.OwnAddressConflict} {
				want := uint64(0)
				if k == tt.conflict {
					want = 1
				}
				if got := tab.Conflicts(1, k); got != want {
					t.Errorf("%s conflicts of the port: got %d, want %d", k, got, want)
				}
				if got := tab.Conflicts(0, k); got != 0 {
					t.Errorf("%s conflicts of the other port: got %d, want 0", k, got)
				}
			}
			if got := tab.All(); !slices.Equal(got, before) {
				t.Errorf("the frame changed the table to %v", got)
			}
			if !bytes.Equal(in, kept) {
				t.Error("the frame was modified")
			}
		})
	}
}

// TestLearns: what a frame says of its sender, where that is a neighbor that is
// not known, asked for, or known.
func TestLearns(t *testing.T) {
	const (
		toAll = broadcast + otherMAC + "0806"
		toUs  = portMAC + otherMAC + "0806"
		old   = "020000000077"
	)
	asks := request + otherMAC + host + zeroMAC + own
	announces := request + otherMAC + host + zeroMAC + host
	answers := reply + otherMAC + host + portMAC + own
	states := []string{"unknown", "asked for", "known"}
	tests := []struct {
		name  string
		frame string
		want  [3]string // by states: MAC address and state, "" for no entry
	}{
		{"request for us", toAll + asks, [3]string{otherMAC + " stale", otherMAC + " stale", otherMAC + " stale"}},
		{"request for another", toAll + request + otherMAC + host + zeroMAC + gateway, [3]string{"", otherMAC + " stale", otherMAC + " stale"}},
		{"gratuitous request", toAll + announces, [3]string{"", otherMAC + " stale", otherMAC + " stale"}},
		{"gratuitous reply", toAll + reply + otherMAC + host + broadcast + host, [3]string{"", otherMAC + " stale", otherMAC + " stale"}},
		{"reply to us", toUs + answers, [3]string{"", otherMAC + " reachable", otherMAC + " reachable"}},
		{"reply to all", toAll + answers, [3]string{"", otherMAC + " stale", otherMAC + " stale"}},
		{"reply to another", "020000000055" + otherMAC + "0806" + answers, [3]string{"", zeroMAC + " incomplete", old + " reachable"}},
		{"probe", toAll + request + otherMAC + none + zeroMAC + host, [3]string{"", zeroMAC + " incomplete", old + " reachable"}},
		{"reply from our own MAC", portMAC + portMAC + "0806" + reply + portMAC + host + portMAC + own, [3]string{"", zeroMAC + " incomplete", old + " reachable"}},
		{"request from another network", toAll + request + otherMAC + "cb007107" + zeroMAC + own, [3]string{"", zeroMAC + " incomplete", old + " reachable"}},
		{"request from the broadcast address", toAll + request + otherMAC + "c61200ff" + zeroMAC + own, [3]string{"", zeroMAC + " incomplete", old + " reachable"}},
	}
	for _, tt := range tests {
		for i, state := range states {
			t.Run(tt.name+", "+state, func(t *testing.T) {
				tab, port := newTable(t)
				port.Nets = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/24")}
				k := neigh.Key{Port: 1, Addr: netip.AddrFrom4([4]byte(frame.Hex(t, host)))}
				if i > 0 {
					tab.Use(0, k)
				}
				var out [FrameLen]byte
				if i > 1 {
					Handle(0, tab, port, frame.Hex(t, portMAC, old, "0806", reply, old, host, portMAC, own), out[:])
				}
				Handle(0, tab, port, frame.Hex(t, tt.frame), out[:])
				got := ""
				for _, e := range tab.All() {
					if e.State != neigh.Static {
						b := e.MAC.Bytes()
						got += hex.EncodeToString(b[:]) + " " + e.State.String()
					}
				}
				if got != tt.want[i] {
					t.Errorf("got %q, want %q", got, tt.want[i])
				}
			})
		}
	}
}

func TestHandleAllocatesNothing(t *testing.T) {
	tab, port := newTable(t)
	in := frame.Hex(t, broadcast, otherMAC, "0806", request, otherMAC, gateway, zeroMAC, own)
	var out [FrameLen]byte
	if n := testing.AllocsPerRun(100, func() { Handle(0, tab, port, in, out[:]) }); n != 0 {
		t.Errorf("got %v allocations per frame, want 0", n)
	}
}

// FuzzHandle checks the gate against gopacket's decoder and that the answer to
// any frame is a valid one to its sender.
func FuzzHandle(f *testing.F) {
	f.Add(frame.Hex(f, broadcast, gatewayMAC, "0806", request, gatewayMAC, gateway, zeroMAC, own))
	f.Add(frame.Hex(f, broadcast, otherMAC, "0806", request, otherMAC, none, zeroMAC, own))
	f.Add(frame.Hex(f, portMAC, otherMAC, "0806", reply, otherMAC, gateway, portMAC, own))
	f.Add(frame.Hex(f, broadcast, otherMAC, "0806", request, otherMAC, own, zeroMAC, own, "0000"))
	f.Add([]byte{})
	tab, port := newTable(f)
	before := tab.All()
	f.Fuzz(func(t *testing.T, sent []byte) {
		var out [FrameLen]byte
		n, c := Handle(0, tab, port, sent, out[:])
		if !slices.Equal(tab.All(), before) {
			t.Fatalf("the frame changed the table to %v", tab.All())
		}
		if n == 0 && c == neigh.NoConflict {
			return
		}
		var eth layers.Ethernet
		var in, re layers.ARP
		if err := eth.DecodeFromBytes(sent, gopacket.NilDecodeFeedback); err != nil {
			t.Fatal(err)
		}
		if err := in.DecodeFromBytes(eth.Payload, gopacket.NilDecodeFeedback); err != nil {
			t.Fatalf("gopacket does not take what Handle did: %v", err)
		}
		if eth.EthernetType != layers.EthernetTypeARP || in.AddrType != layers.LinkTypeEthernet ||
			in.Protocol != layers.EthernetTypeIPv4 || in.Operation != layers.ARPRequest && in.Operation != layers.ARPReply {
			t.Fatalf("took a packet that is not ARP for IPv4 over Ethernet: %v", in)
		}
		if n == 0 {
			return
		}
		if n != FrameLen || !Packet(out[wire.EthernetLen:n]).Valid() {
			t.Fatalf("the answer is not valid: %x", out[:n])
		}
		if err := re.DecodeFromBytes(out[wire.EthernetLen:n], gopacket.NilDecodeFeedback); err != nil {
			t.Fatal(err)
		}
		ownIP := net.IP{198, 18, 0, 205}
		if in.Operation != layers.ARPRequest || !ownIP.Equal(in.DstProtAddress) || re.Operation != layers.ARPReply ||
			!ownIP.Equal(re.SourceProtAddress) || !bytes.Equal(re.SourceHwAddress, frame.Hex(t, portMAC)) ||
			!bytes.Equal(re.DstProtAddress, in.SourceProtAddress) || !bytes.Equal(re.DstHwAddress, in.SourceHwAddress) ||
			!bytes.Equal(out[:6], in.SourceHwAddress) {
			t.Fatalf("%x was answered with %x", sent, out[:n])
		}
	})
}
