package dataplane_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
	"nmfwd/fib"
	"nmfwd/wire"
)

// tag returns a frame with an IEEE 802.1Q tag put in.
func tag(b []byte, tci uint16) []byte {
	t := append(bytes.Clone(b[:12]), 0x81, 0x00, byte(tci>>8), byte(tci))
	return append(t, b[12:]...)
}

// TestVLAN sends packets from A, untagged and on its VLANs 100 and 200, to B and
// its VLANs, at every place of a frame in its buffer.
func TestVLAN(t *testing.T) {
	const on100, keeps, plain, sets5 = 2, 3, 1, 4 // ports
	ports := []fib.PortAttr{
		{MAC: macA, MTU: 1500}, {MAC: macB, MTU: 1500},
		{MAC: macA, MTU: 1500, TCI: 100, On: 0},
		{MAC: macB, MTU: 1500, TCI: 200, On: 1, KeepPCP: true},
		{MAC: macB, MTU: 1400, TCI: 5<<13 | 300, On: 1},
	}
	for _, c := range []struct {
		name   string
		in     uint16 // tag, 0 for none
		to     int    // port
		out    uint16
		ttl    uint8
		reason dataplane.Reason // where it is dropped
	}{
		{"untagged to untagged", 0, plain, 0, 64, 0},
		{"tagged to untagged", 100, plain, 0, 64, 0},
		{"priority to untagged", 7 << 13, plain, 0, 64, 0},
		{"untagged to tagged", 0, keeps, 200, 64, 0},
		{"tagged to tagged, priority kept", 6<<13 | 1<<12 | 100, keeps, 6<<13 | 1<<12 | 200, 64, 0},
		{"priority tag to tagged, priority kept", 3 << 13, keeps, 3<<13 | 200, 64, 0},
		{"untagged to tagged, priority set", 0, sets5, 5<<13 | 300, 64, 0},
		{"tagged to tagged, priority set", 2<<13 | 100, sets5, 5<<13 | 300, 64, 0},
		{"unknown tag", 101, plain, 0, 64, dataplane.DropVLANUnknown},
		{"unknown tag of another port", 200, plain, 0, 64, dataplane.DropVLANUnknown},
		{"tagged, TTL one", 100, plain, 0, 1, dataplane.DropTTL},
	} {
		for _, headroom := range []int{0, 2, 4, 256} {
			for _, v6 := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/headroom %d/ipv6 %t", c.name, headroom, v6), func(t *testing.T) {
					region := memport.NewRegion("test", 1024, 2048)
					a := newPort(t, region, memport.Config{Name: "A", Headroom: headroom})
					b := newPort(t, region, memport.Config{Name: "B", MinFrame: 60})
					rib := fib.New(ports)
					for _, p := range []string{"198.19.0.0/16", "2001:2:0:8000::/49"} {
						p := netip.MustParsePrefix(p)
						add(t, rib, fib.Route{Prefix: p, Kind: fib.Via, Gateway: p.Addr().Next(), Origin: fib.Static, Port: uint16(c.to)})
						if err := rib.SetNeighbor(uint16(c.to), p.Addr().Next(), g2); err != nil {
							t.Fatal(err)
						}
					}
					st := labState(rib.Commit())
					st.Ports[0].VLANs = &[1 << 12]uint16{100: on100}
					st.Ports[1].VLANs = &[1 << 12]uint16{200: keeps, 300: sets5}
					for n := on100; n < len(ports); n++ {
						on := st.Ports[ports[n].On]
						st.Ports = append(st.Ports, dataplane.PortState{Number: uint16(n), MAC: on.MAC, MTU: int(ports[n].MTU), Up: true, On: ports[n].On, TCI: ports[n].TCI})
					}
					r := newRouter(t, st, 1, dataplane.Options{}, &a.Port, &b.Port)
					frame := frame4(7, c.ttl)
					if v6 {
						frame = frame6(7, c.ttl)
					}
					want := forwarded(frame)
					if c.out != 0 {
						want = tag(want, c.out)
					}
					if c.in != 0 {
						frame = tag(frame, c.in)
					}
					frame = append(frame, "trailer"...)
					if !a.Deliver(0, frame) {
						t.Fatal("not delivered")
					}
					r.Workers()[0].Step(0)
					got := b.Transmit(0)
					checkSums(t, r)
					if c.reason != 0 {
						var s dataplane.Snapshot
						r.Snapshot(&s)
						if n := s.Ports[0].RX[0].Dropped[c.reason]; n != 1 || len(got) > 0 {
							t.Errorf("%d dropped for %v, %d sent; want 1 and 0", n, c.reason, len(got))
						}
						return
					}
					if len(got) != 1 || !bytes.Equal(got[0], want) {
						t.Errorf("sent %x\nwant   %x", got, want)
					}
				})
			}
		}
	}
}

// TestVLANPunt: control gets frames without the tag and with the VLAN's number,
// and what it injects there has the tag.
func TestVLANPunt(t *testing.T) {
	region := memport.NewRegion("test", 1024, memport.Stride)
	a := newPort(t, region, memport.Config{Name: "A", MinFrame: 60})
	st := labState(labRIB(t).Commit())
	st.Ports = st.Ports[:1]
	st.Ports[0].VLANs = &[1 << 12]uint16{100: 1}
	st.Ports = append(st.Ports, dataplane.PortState{Number: 1, MAC: st.Ports[0].MAC, MTU: 1500, Up: true, TCI: 100})
	r := newRouter(t, st, 1, dataplane.Options{}, &a.Port)
	request := make([]byte, 42)
	wire.PutEthernet(request, wire.Broadcast, wire.MACOf(g1[:]), wire.TypeARP)
	for i := range request[14:] {
		request[14+i] = byte(i)
	}
	a.Deliver(0, tag(request, 3<<13|100))
	r.Workers()[0].Step(0)
	n := 0
	r.Punts(func(p dataplane.Punt) {
		n++
		if p.Port != 1 || p.Kind != dataplane.PuntARP || !bytes.Equal(p.Frame, request) {
			t.Errorf("punted %v from port %d: %x\nwant %x", p.Kind, p.Port, p.Frame, request)
		}
	})
	if n != 1 {
		t.Errorf("%d frames punted, want 1", n)
	}
	if !r.Inject(1, request, 0) {
		t.Fatal("not injected")
	}
	r.Workers()[0].Step(0)
	want := append(tag(request, 100), make([]byte, 60-46)...)
	if got := a.Transmit(0); len(got) != 1 || !bytes.Equal(got[0], want) {
		t.Errorf("sent %x\nwant   %x", got, want)
	}
}

// TestVLANChain: a frame of several slots gets a tag, moved within its first
// buffer where there is no room before it; where there is none at all it is
// dropped.
func TestVLANChain(t *testing.T) {
	for _, c := range []struct {
		name           string
		headroom, size int
		reason         dataplane.Reason
	}{
		{"room before", 64, 500, 0},
		{"room behind", 0, 500, 0},
		{"no room", 0, 512, dataplane.DropOversize},
	} {
		t.Run(c.name, func(t *testing.T) {
			region := memport.NewRegion("test", 4096, 512+c.headroom)
			a := newPort(t, region, memport.Config{Name: "A", Headroom: c.headroom, MTU: 1500})
			b := newPort(t, region, memport.Config{Name: "B"})
			rib := fib.New([]fib.PortAttr{{MAC: macA, MTU: 1500}, {MAC: macB, MTU: 1500}, {MAC: macB, MTU: 1500, TCI: 200, On: 1}})
			gw := netip.MustParseAddr("198.19.0.1")
			add(t, rib, fib.Route{Prefix: netip.MustParsePrefix("198.19.0.0/16"), Kind: fib.Via, Gateway: gw, Origin: fib.Static, Port: 2})
			if err := rib.SetNeighbor(2, gw, g2); err != nil {
				t.Fatal(err)
			}
			r := newRouter(t, labState(rib.Commit()), 1, dataplane.Options{}, &a.Port, &b.Port)
			frame := append(frame4(1, 64), make([]byte, 1400)...)
			for i := range frame[60:] {
				frame[60+i] = byte(i)
			}
			ip := frame[wire.EthernetLen:]
			binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
			ip[10], ip[11] = 0, 0
			binary.BigEndian.PutUint16(ip[10:], wire.Checksum(ip[:20]))
			if !a.DeliverChain(0, frame, c.size) {
				t.Fatal("not delivered")
			}
			r.Workers()[0].Step(0)
			checkSums(t, r)
			got := b.Transmit(0)
			if c.reason != 0 {
				var s dataplane.Snapshot
				r.Snapshot(&s)
				if n := s.Ports[0].RX[0].Dropped[c.reason]; n != 1 || len(got) > 0 {
					t.Errorf("%d dropped for %v, %d sent; want 1 and 0", n, c.reason, len(got))
				}
				return
			}
			if want := tag(forwarded(frame), 200); len(got) != 1 || !bytes.Equal(got[0], want) {
				t.Errorf("sent %x\nwant   %x", got, want)
			}
		})
	}
}
