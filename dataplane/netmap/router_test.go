package netmap_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strconv"
	"testing"
	"time"

	"nmfwd/test/race"

	"nmfwd/dataplane"
	"nmfwd/dataplane/netmap"
	"nmfwd/dataplane/netmap/fake"
	"nmfwd/fib"
	"nmfwd/wire"
)

// The generator's and the receiver's addresses in the lab.
var (
	g1 = [6]byte{0x00, 0x1b, 0x21, 0xc4, 0x95, 0x7a}
	g2 = [6]byte{0x00, 0x1b, 0x21, 0xc4, 0x95, 0x7b}
)

// A lab is a router between two cards of a fake kernel, c0 (A) and c1 (B):
//
//	198.18.0.203 -- c0 198.18.0.205 [router] 198.19.0.205 c1 -- 198.19.0.203
//	2001:2::203     2001:2::205              2001:2:0:8000::205 ... ::203
type lab struct {
	*rig
	card   []*fake.Card
	ports  []*dataplane.Port
	router *dataplane.Forwarder
	up     []bool // by port, as published
	host   bool
	mtu    int
	now    int64
}

// newLab opens the lab with host rings if host is set. Without watch nobody
// looks after the links but the test.
func newLab(t *testing.T, workers int, host, watch bool, cards ...fake.Card) *lab {
	t.Helper()
	return newLabOf(t, fake.Params{Ifs: 64, Rings: 64, Bufs: 8192, BufSize: 2048}, 1500, workers, host, watch, cards...)
}

// newLabOf is newLab with pools of other sizes and packets of up to mtu bytes.
func newLabOf(t *testing.T, p fake.Params, mtu, workers int, host, watch bool, cards ...fake.Card) *lab {
	t.Helper()
	r, c := newRigOf(t, p, t.TempDir(), cards...)
	r.Polls = false
	l := &lab{rig: r, card: c, host: host, mtu: mtu}
	opt := r.options()
	if watch {
		opt = netmap.Options{Kernel: r.Kernel, LockDir: r.locks}
	}
	opt.Note = func(s string) { t.Log(s) }
	l.assemble(workers, opt)
	t.Cleanup(l.disassemble)
	return l
}

// assemble opens the cards and puts a router between them.
func (l *lab) assemble(workers int, opt netmap.Options) {
	l.t.Helper()
	var rings []dataplane.Rings
	hosts := make([]bool, len(l.card))
	l.up = nil
	for i, k := range l.card {
		rings = append(rings, dataplane.Rings{RX: k.RXRings, TX: k.TXRings})
		hosts[i] = l.host
		l.up = append(l.up, true)
	}
	plan := dataplane.MakePlan(rings, workers, workers)
	var cfgs []dataplane.PortConfig
	for i, k := range l.card {
		cfgs = append(cfgs, dataplane.PortConfig{Name: k.Name, Host: l.host, Owners: plan.Ports[i], Spare: plan.Spare(hosts)})
	}
	ports, err := netmap.Open(cfgs, opt)
	if err != nil {
		l.t.Fatal(err)
	}
	l.ports, l.rig.ports = ports, ports
	l.router, err = dataplane.NewForwarder(ports, plan.Workers, dataplane.Options{Fault: func(err error) { l.t.Error(err) }})
	if err != nil {
		l.t.Fatal(err)
	}
	l.publish()
}

// disassemble ends the router. The ports are the rig's to close.
func (l *lab) disassemble() {
	l.router.Stop()
	l.router.Close()
}

// publish hands a new state to the workers, as a reload does.
func (l *lab) publish() {
	l.t.Helper()
	var attrs []fib.PortAttr
	st := &dataplane.State{}
	for i, p := range l.ports {
		attrs = append(attrs, fib.PortAttr{MAC: [6]byte(p.MAC), MTU: uint16(l.mtu)})
		st.Ports = append(st.Ports, dataplane.PortState{Number: uint16(i), MAC: wire.MACOf(p.MAC), MTU: l.mtu, Host: l.host, Up: l.up[i]})
	}
	r := fib.New(attrs)
	for i, net := range [][3]string{
		{"198.18.0.205/24", "198.18.0.203", "198.18.0.0/16"}, {"2001:2::205/64", "2001:2::203", "2001:2::/49"},
		{"198.19.0.205/24", "198.19.0.203", "198.19.0.0/16"}, {"2001:2:0:8000::205/64", "2001:2:0:8000::203", "2001:2:0:8000::/49"},
	} {
		port, gw := uint16(i/2), netip.MustParseAddr(net[1])
		if int(port) >= len(l.ports) {
			break
		}
		errs := []error{
			r.Add(fib.Route{Prefix: netip.MustParsePrefix(net[2]), Kind: fib.Via, Gateway: gw, Origin: fib.Static, Port: port}),
			r.SetNeighbor(port, gw, [][6]byte{g1, g2}[port]),
		}
		for _, c := range fib.ConnectedRoutes(port, netip.MustParsePrefix(net[0])) {
			errs = append(errs, r.Add(c))
		}
		if err := errors.Join(errs...); err != nil {
			l.t.Fatal(err)
		}
	}
	st.FIB = r.Commit()
	l.router.Publish(st)
}

// step lets every worker go round once.
func (l *lab) step() {
	l.now += int64(time.Millisecond)
	for _, w := range l.router.Workers() {
		w.Step(l.now)
		w.Poll(0)
	}
}

// packet returns packet n of a flow to the receiver's network, as the generator
// sends it: IPv4 and IPv6 in turn, of size bytes at least.
func (l *lab) packet(n, flow, size int) []byte {
	dst := [6]byte(l.ports[0].MAC)
	b := append(append([]byte(nil), dst[:]...), g1[:]...)
	if n%2 == 0 {
		b = append(b, 0x08, 0x00, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 198, 18, 10, byte(1+flow), 198, 19, 10, 1)
	} else {
		b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 17, 64)
		b = append(b, netip.MustParseAddr(fmt.Sprintf("2001:2:0:1::%x", 1+flow)).AsSlice()...)
		b = append(b, netip.MustParseAddr("2001:2:0:8001::1").AsSlice()...)
	}
	b = append(b, make([]byte, max(size, 66)-len(b))...)
	binary.BigEndian.PutUint32(b[len(b)-4:], uint32(n))
	if n%2 == 0 {
		binary.BigEndian.PutUint16(b[16:], uint16(len(b)-14))
		binary.BigEndian.PutUint16(b[24:], wire.Checksum(b[14:34]))
	} else {
		binary.BigEndian.PutUint16(b[18:], uint16(len(b)-54))
	}
	return b
}

// forwarded returns what has to leave by c1 for what packet returned.
func (l *lab) forwarded(b []byte) []byte {
	b = append([]byte(nil), b...)
	copy(b, g2[:])
	copy(b[6:], l.ports[1].MAC)
	if b[12] == 0x08 {
		b[22]--
		b[24], b[25] = 0, 0
		binary.BigEndian.PutUint16(b[24:], wire.Checksum(b[14:34]))
	} else {
		b[21]--
	}
	return b
}

// counts sums the counters of a port, and fails unless all packets are
// accounted for, but for those in flight.
func (l *lab) counts(port int) (s dataplane.RXSnapshot) {
	l.t.Helper()
	var all dataplane.Snapshot
	l.router.Snapshot(&all)
	for _, q := range all.Ports[port].RX {
		s.Packets += q.Packets
		s.Forwarded4 += q.Forwarded4
		s.Forwarded6 += q.Forwarded6
		s.ToHost += q.ToHost
		s.FromHost += q.FromHost
		for i := range s.Dropped {
			s.Dropped[i] += q.Dropped[i]
		}
		for i := range s.Punted {
			s.Punted[i] += q.Punted[i]
		}
	}
	return s
}

// conserved fails unless every packet that port received has come to an end.
func (l *lab) conserved(port int) {
	l.t.Helper()
	s := l.counts(port)
	sum := s.Forwarded4 + s.Forwarded6 + s.ToHost
	for _, n := range s.Dropped {
		sum += n
	}
	for _, n := range s.Punted {
		sum += n
	}
	if s.Packets != sum {
		l.t.Errorf("port %d: %d packets received, %d ended: %+v", port, s.Packets, sum, s)
	}
}

// census counts the buffers of the cards.
func (l *lab) census() {
	l.t.Helper()
	held := [][]uint32{l.ports[0].Queues[0].Region().Spare()}
	for _, b := range l.router.Held() {
		held = append(held, b)
	}
	if err := l.Census(1, held...); err != nil {
		l.t.Fatal(err)
	}
}

// TestHostRings: what is not for
// forwarding reaches the host, and what the host sends leaves by the card, byte
// for byte and by exchange. The kernel notes flags such as NS_FORWARD.
func TestHostRings(t *testing.T) {
	ours := "\x02\x00\x00\x00\x01\x00"
	from := string(g1[:])
	pad := func(s string, n int) string { return s + string(bytes.Repeat([]byte{0xa5}, n-len(s))) }
	for _, tt := range []struct {
		name  string
		frame string
		drop  dataplane.Reason // 0: to the host
	}{
		{"arp request", pad("\xff\xff\xff\xff\xff\xff"+from+"\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01", 60), 0},
		{"arp request without padding", pad("\xff\xff\xff\xff\xff\xff"+from+"\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01", 42), 0},
		{"arp request not for us", pad("\xff\xff\xff\xff\xff\xff"+from+"\x08\x06\x00\x01", 60), 0},
		{"lldp", pad("\x01\x80\xc2\x00\x00\x0e"+from+"\x88\xcc", 60), 0},
		{"802.1X", pad(ours+from+"\x88\x8e", 60), 0},
		{"lacp", pad("\x01\x80\xc2\x00\x00\x02"+from+"\x88\x09", 60), 0},
		{"spanning tree", pad("\x01\x80\xc2\x00\x00\x00"+from+"\x00\x26\x42\x42\x03", 60), 0},
		{"tag with priority and drop eligible", pad(ours+from+"\x81\x00\xa0\x64\x08\x00\x45\x00", 64), 0},
		{"priority tag", pad(ours+from+"\x81\x00\x60\x00\x88\xcc", 64), 0},
		{"QinQ", pad(ours+from+"\x88\xa8\x00\x05\x81\x00\x00\x64\x86\xdd", 68), 0},
		{"tagged, of full size", pad(ours+from+"\x81\x00\x00\x64\x08\x00", 1518), 0},
		{"tagged, one byte more", pad(ours+from+"\x81\x00\x00\x64\x08\x00", 1519), dataplane.DropOversize},
		{"multicast of ospf", pad("\x01\x00\x5e\x00\x00\x05"+from+"\x08\x00\x45\xc0", 82), 0},
		{"another's", pad("\x02\x00\x00\x00\x09\x09"+from+"\x88\xcc", 60), dataplane.DropNotOurMAC},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, 1, true, false, fake.Card{}, fake.Card{})
			c := l.card[0]
			c.Deliver(0, []byte(tt.frame))
			l.step()
			l.step()
			got := c.ToHost()
			if want := tt.drop == 0; (len(got) == 1) != want || want && string(got[0]) != tt.frame {
				t.Errorf("to host: got %x, want %x: %v", got, tt.frame, want)
			}
			if n := l.counts(0).Dropped[tt.drop]; tt.drop != 0 && n != 1 {
				t.Errorf("%d dropped for %v, want 1", n, tt.drop)
			}
			if !c.FromHost([]byte(tt.frame)) {
				t.Error("the host's frame was not taken")
			}
			l.step()
			l.step()
			want := []byte(tt.frame)
			if len(want) < 60 {
				want = append(want, make([]byte, 60-len(want))...)
			}
			if got := c.Sent(0); len(got) != 1 || !bytes.Equal(got[0], want) {
				t.Errorf("from host: got %x, want %x", got, want)
			}
			if len(l.card[1].Sent(0))+len(l.card[1].ToHost()) > 0 {
				t.Error("the other card has part in it")
			}
			var s dataplane.Snapshot
			l.router.Snapshot(&s)
			if n := s.Ports[0].TX[0].Copied; n != 0 {
				t.Errorf("%d frames copied", n)
			}
			l.conserved(0)
			l.census()
		})
	}
}

// hiding returns a frame of size bytes to dst of which what lies behind each multiple
// of part bytes looks like a frame of its own: an ARP request.
func hiding(dst string, etherType string, size, part int) []byte {
	b := bytes.Repeat([]byte{0xa5}, size)
	for at := 0; at < size; at += part {
		copy(b[at:], "\xff\xff\xff\xff\xff\xff\x00\x1b\x21\xc4\x95\x7a\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01")
	}
	copy(b, dst+string(g1[:])+etherType)
	return b
}

// jumbo are pools whose buffers hold packets of 9,000 bytes.
var jumbo = fake.Params{Ifs: 64, Rings: 64, Bufs: 2800, BufSize: 9216}

// TestHostTakesChainsWhole: the host has one packet of each slot, so a frame that
// the card put into several is copied into one, and what does not fit is dropped and
// counted. No slot behind the first becomes a frame of its own.
func TestHostTakesChainsWhole(t *testing.T) {
	ours := "\x02\x00\x00\x00\x01\x00"
	small := fake.Params{Ifs: 64, Rings: 64, Bufs: 2800, BufSize: 2048}
	for _, tt := range []struct {
		name   string
		params fake.Params
		mtu    int
		part   int
		frame  []byte
		drop   dataplane.Reason // 0: to the host, whole
	}{
		{"4,200 bytes", jumbo, 9000, 4096, hiding(ours, "\x88\xcc", 4200, 4096), 0},
		{"as long as one part", jumbo, 9000, 4096, hiding(ours, "\x88\xcc", 4096, 4096), 0},
		{"one byte in the second part", jumbo, 9000, 4096, hiding(ours, "\x88\xcc", 4097, 4096), 0},
		{"three parts", jumbo, 9000, 4096, hiding(ours, "\x88\xcc", 9014, 4096), 0},
		{"ARP", jumbo, 9000, 4096, hiding("\xff\xff\xff\xff\xff\xff", "\x08\x06", 9014, 4096), 0},
		{"tagged, of full size", jumbo, 9000, 4096, hiding(ours, "\x81\x00\x00\x64", 9018, 4096), 0},
		{"multicast as long as a buffer", jumbo, 9000, 4096, hiding("\x01\x00\x5e\x00\x00\x05", "\x08\x00", 9216, 4096), 0},
		{"multicast longer than a buffer", jumbo, 9000, 4096, hiding("\x01\x00\x5e\x00\x00\x05", "\x08\x00", 9217, 4096), dataplane.DropHostTooBig},
		{"broadcast longer than a buffer", small, 1500, 2048, hiding("\xff\xff\xff\xff\xff\xff", "\x08\x06", 4200, 2048), dataplane.DropHostTooBig},
		{"longer than the port carries", small, 1500, 2048, hiding(ours, "\x08\x00", 4200, 2048), dataplane.DropOversize},
		{"many small parts", small, 1500, 100, hiding(ours, "\x88\xcc", 1514, 100), 0},
	} {
		for _, workers := range []int{1, 2} { // with two the second ring's frames are handed over
			t.Run(fmt.Sprintf("%s, %d workers", tt.name, workers), func(t *testing.T) {
				l := newLabOf(t, tt.params, tt.mtu, workers, true, false, fake.Card{RXRings: 2, Interface: netmap.Interface{MTU: tt.mtu}, Part: tt.part}, fake.Card{})
				c := l.card[0]
				end := hiding(ours, "\x88\xcc", 60, 100)
				sent := 0
				for ring := range 2 {
					for range 3 {
						c.Deliver(ring, tt.frame)
						c.Deliver(ring, end)
						sent++
						for range 4 {
							l.step()
						}
					}
				}
				whole, ends := 0, 0
				for _, f := range c.ToHost() {
					switch {
					case bytes.Equal(f, tt.frame):
						whole++
					case bytes.Equal(f, end):
						ends++
					default:
						t.Errorf("the host got %d bytes that nobody sent as a frame: %x", len(f), f[:min(len(f), 24)])
					}
				}
				want := sent
				if tt.drop != 0 {
					want = 0
					if n := l.counts(0).Dropped[tt.drop]; n != uint64(sent) {
						t.Errorf("%d dropped as %v, want %d", n, tt.drop, sent)
					}
				}
				if whole != want || ends != sent {
					t.Errorf("the host got %d of %d whole and %d of %d after them", whole, want, ends, sent)
				}
				l.conserved(0)
				l.census()
			})
		}
	}
}

// TestHostRingTakesNoChain: not even by mistake.
func TestHostRingTakesNoChain(t *testing.T) {
	l := newLab(t, 1, true, false, fake.Card{}, fake.Card{})
	region := dataplane.NewRegion("test", make([]byte, 3*2048), 2048, nil)
	s := []dataplane.Slot{{Buf: 0, Len: 100}, {Buf: 1, Len: 100, Flags: dataplane.More}, {Buf: 2, Len: 100}}
	if n := l.ports[0].Host[0].TX.Send(region, s); n != 1 {
		t.Errorf("%d slots taken, want the one before the chain", n)
	}
}

// TestHostOff leaves the host rings alone. Without them an interface may carry more
// than a buffer does.
func TestHostOff(t *testing.T) {
	r, _ := newRig(t, fake.Card{Part: 2048, Interface: netmap.Interface{MTU: 9000}})
	cfg := config("c0", 1)
	cfg.MTU = 1500
	r.open(cfg)
	l := newLab(t, 1, false, false, fake.Card{}, fake.Card{})
	if l.ports[0].Host != nil || l.ports[0].Info.Host {
		t.Error("the port has a host")
	}
	if l.card[0].FromHost(frame(1, 60)) {
		t.Error("the host's frame was taken")
	}
}

// goroutine returns the number of the calling goroutine.
func goroutine() int {
	var b [32]byte
	s := bytes.Fields(b[:runtime.Stack(b[:], false)])
	n, _ := strconv.Atoi(string(s[1]))
	return n
}

// await runs until done, or fails after a time that is long for any machine.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TestOwners: four workers on threads of their own forward,
// give to the host and take from it. The kernel notes a ring that two of them
// touch, and flows stay in order, also where there is a single TX ring.
func TestOwners(t *testing.T) {
	for _, rings := range []int{4, 1} {
		t.Run(fmt.Sprintf("%d TX rings", rings), func(t *testing.T) {
			card := fake.Card{RXRings: 4, TXRings: rings, RXSlots: 32, TXSlots: 32}
			l := newLab(t, 4, true, false, card, card)
			l.Caller = goroutine
			if err := l.router.Start(); err != nil {
				t.Fatal(err)
			}
			n := 400
			if testing.Short() {
				n = 100
			}
			next := make([]int, 4)           // by flow, of the receiver
			hostNext, sentNext := 0, 0       // of the host, and from it
			arp := func(k, src int) []byte { // frame k of the card to the host, or back
				return append(append(bytes.Repeat([]byte{0xff}, 6), g1[:]...), 0x08, 0x06, byte(src), byte(k>>8), byte(k), 0, 0, 0)
			}
			sort := func(frames [][]byte) {
				for _, f := range frames {
					flow := int(f[len(f)-5])
					if k := int(binary.BigEndian.Uint32(f[len(f)-4:])); k != next[flow] {
						t.Fatalf("flow %d: packet %d, want %d", flow, k, next[flow])
					}
					next[flow]++
				}
			}
			for k := range n {
				for flow := range 4 {
					p := l.packet(k, flow, 100)
					p[len(p)-5] = byte(flow)
					l.card[0].Deliver(flow, p)
				}
				l.card[0].Deliver(3, arp(k, 1))
				await(t, "the host's ring", func() bool { return l.card[0].FromHost(arp(k, 2)) })
				await(t, "the packets", func() bool {
					for i := range rings {
						sort(l.card[1].Sent(i))
						for _, f := range l.card[0].Sent(i) {
							if got := int(f[15])<<8 | int(f[16]); f[14] != 2 || got != sentNext {
								t.Fatalf("from host: frame %d of %d, want %d of 2", got, f[14], sentNext)
							}
							sentNext++
						}
					}
					for _, f := range l.card[0].ToHost() {
						if got := int(f[15])<<8 | int(f[16]); f[14] != 1 || got != hostNext {
							t.Fatalf("to host: frame %d of %d, want %d of 1", got, f[14], hostNext)
						}
						hostNext++
					}
					return k%8 != 0 && k < n-1 || next[0]+next[1]+next[2]+next[3] == 4*(k+1) && hostNext == k+1 && sentNext == k+1
				})
			}
			l.router.Stop()
			l.conserved(0)
			l.Caller = nil
			l.census()
			if n := l.counts(0).FromHost; n != uint64(sentNext) {
				t.Errorf("%d from host counted, want %d", n, sentNext)
			}
		})
	}
}

// TestNoRegistration: reloads, statistics and workers that start
// anew register nothing and lose nothing.
func TestNoRegistration(t *testing.T) {
	l := newLab(t, 2, true, false, fake.Card{RXRings: 2, TXRings: 2}, fake.Card{RXRings: 2, TXRings: 2})
	l.Trace()
	changes := l.card[0].Changes
	n, got := 0, 0
	for range 100 {
		for ring := range 2 {
			l.card[0].Deliver(ring, l.packet(n, ring, 80))
			n++
		}
		l.publish()
		l.step()
		l.ports[0].Device.Counters(0)
		l.ports[0].Device.LinkUp()
		netmap.Check(l.ports[0])
		l.counts(0)
	}
	l.step()
	l.step()
	for ring := range 2 {
		got += len(l.card[1].Sent(ring))
	}
	if got != n {
		t.Errorf("%d of %d packets", got, n)
	}
	if tr := l.Trace(); len(tr) > 0 || l.card[0].Changes != changes {
		t.Errorf("%d ring changes, calls %q", l.card[0].Changes-changes, tr)
	}
	l.conserved(0)
	l.census()
}

// TestHairpin: packets leave by the card that they came in
// by, half a ring in each round, and none is lost.
func TestHairpin(t *testing.T) {
	l := newLab(t, 1, true, false, fake.Card{RXSlots: 256, TXSlots: 256}, fake.Card{})
	n := 1_000_000
	if testing.Short() || race.Enabled {
		n = 50_000
	}
	b := l.packet(0, 0, 66)
	copy(b[30:], []byte{198, 18, 77, 1})
	b[24], b[25] = 0, 0
	binary.BigEndian.PutUint16(b[24:], wire.Checksum(b[14:34]))
	sent, got := 0, 0
	for got < n {
		for range min(128, n-sent) {
			l.card[0].Deliver(0, b)
			sent++
		}
		before := got
		for i := 0; got < sent; i++ {
			l.step()
			got += len(l.card[0].Sent(0))
			if i == 10 {
				t.Fatalf("%d of %d packets came back", got-before, sent-before)
			}
		}
	}
	if s := l.counts(0); s.Forwarded4 != uint64(n) || s.Packets != uint64(n) {
		t.Errorf("%d received, %d forwarded, want %d", s.Packets, s.Forwarded4, n)
	}
	l.census()
}

// TestTrailer: bytes behind the IP packet are cut, and what pads it
// is zero.
func TestTrailer(t *testing.T) {
	l := newLab(t, 1, true, false, fake.Card{}, fake.Card{})
	b := l.packet(0, 0, 66)[:60]
	binary.BigEndian.PutUint16(b[16:], 40)
	b[24], b[25] = 0, 0
	binary.BigEndian.PutUint16(b[24:], wire.Checksum(b[14:34]))
	want := append(l.forwarded(b)[:54], make([]byte, 6)...)
	copy(b[54:], "leak!!")
	l.card[0].Deliver(0, append(b, 0xfc, 0xfc, 0xfc, 0xfc))
	l.step()
	l.step()
	if got := l.card[1].Sent(0); len(got) != 1 || !bytes.Equal(got[0], want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

// TestMix: packets that are forwarded, dropped for
// many reasons and given to the host, at random, never lose a buffer.
func TestMix(t *testing.T) {
	l := newLab(t, 2, true, false, fake.Card{RXRings: 2, RXSlots: 64, TXSlots: 32}, fake.Card{TXSlots: 16})
	spoil := []func([]byte) []byte{
		func(b []byte) []byte { b[0] = 0x06; return b },     // another's
		func(b []byte) []byte { b[14] = 0x44; return b },    // header
		func(b []byte) []byte { b[12] = 0x99; return b },    // EtherType
		func(b []byte) []byte { return b[:20] },             // truncated
		func(b []byte) []byte { b[22]++; return b },         // checksum, or an address
		func(b []byte) []byte { b[30] = 224; return b },     // multicast or checksum
		func(b []byte) []byte { copy(b, "\xff"); return b }, // group
		func(b []byte) []byte { return append(b, make([]byte, 4000)...) },
	}
	n := 1_000_000
	switch {
	case soak:
		n = 1_000_000_000
	case testing.Short() || race.Enabled:
		n = 20_000
	}
	for k := range n {
		b := l.packet(k, k%7, 66+k%900)
		if k%100 < len(spoil) {
			b = spoil[k%100](b)
		}
		l.card[0].Deliver(k%2, b)
		if k%50 == 0 {
			l.card[0].FromHost(b)
		}
		if k%37 == 0 {
			l.step()
			l.card[1].Sent(0)
			l.card[0].Sent(0)
			l.card[0].ToHost()
		}
		if k%1000 == 0 {
			l.census()
		}
	}
	for l.card[0].Waiting(0)+l.card[0].Waiting(1) > 0 {
		l.step()
	}
	for range 10 {
		l.step()
	}
	l.conserved(0)
	l.census()
	s := l.counts(0)
	for _, r := range []dataplane.Reason{dataplane.DropNotOurMAC, dataplane.DropBadHeader, dataplane.DropTruncated, dataplane.DropBadChecksum, dataplane.DropOversize} {
		if s.Dropped[r] == 0 {
			t.Errorf("none dropped for %v", r)
		}
	}
	if s.ToHost == 0 || s.Forwarded4 == 0 || s.Forwarded6 == 0 {
		t.Errorf("got %+v", s)
	}
}

// TestMatrix: whole routers with two cards of all numbers of rings,
// unlike each other, and all numbers of workers. Each ring is touched by one
// worker (the kernel notes another), all packets are forwarded, those that go
// back out of the card that they came by too, and flows stay in order.
func TestMatrix(t *testing.T) {
	numbers := []int{1, 2, 4, 8}
	if testing.Short() {
		numbers = []int{1, 4}
	}
	for _, rx := range numbers {
		for _, tx := range numbers {
			for _, workers := range []int{1, 2, 3, 4, 8} {
				t.Run(fmt.Sprintf("rx %d tx %d workers %d", rx, tx, workers), func(t *testing.T) {
					matrix(t, rx, tx, workers)
				})
			}
		}
	}
}

func matrix(t *testing.T, rx, tx, workers int) {
	const slots, each = 32, 67
	cards := []fake.Card{{RXRings: rx, TXRings: tx, RXSlots: slots, TXSlots: slots}, {RXRings: tx, TXRings: rx, RXSlots: slots, TXSlots: slots}}
	plan := dataplane.MakePlan([]dataplane.Rings{{RX: rx, TX: tx}, {RX: tx, TX: rx}}, workers, workers)
	r, c := newRigOf(t, fake.Params{Ifs: 64, Rings: 64, Bufs: plan.Spare([]bool{true, true}) + 2*slots*(rx+tx+2) + 2, BufSize: 2048}, t.TempDir(), cards...)
	r.Polls = false
	l := &lab{rig: r, card: c, host: true, mtu: 1500}
	l.assemble(workers, r.options())
	t.Cleanup(l.disassemble)
	worker := 0
	r.Caller = func() int { return worker }
	step := func() {
		l.now += int64(time.Millisecond)
		for i, w := range l.router.Workers() {
			worker = i + 1
			w.Step(l.now)
			w.Poll(0)
		}
	}
	flows := 2 * rx // the second half goes back
	next := make([]int, flows)
	take := func() {
		for card, rings := range []int{tx, rx} {
			for i := range rings {
				for _, f := range c[card].Sent(i) {
					flow := int(f[len(f)-5])
					if back := flow >= rx; back != (card == 0) {
						t.Fatalf("flow %d left by card %d", flow, card)
					}
					if n := int(binary.BigEndian.Uint32(f[len(f)-4:])); n != next[flow] {
						t.Fatalf("flow %d: packet %d, want %d", flow, n, next[flow])
					}
					next[flow]++
				}
			}
		}
	}
	for n := range each {
		for flow := range flows {
			b := l.packet(2*n, flow, 80)
			b[len(b)-5] = byte(flow)
			binary.BigEndian.PutUint32(b[len(b)-4:], uint32(n))
			if flow >= rx {
				b[31] = 18
				b[24], b[25] = 0, 0
				binary.BigEndian.PutUint16(b[24:], wire.Checksum(b[14:34]))
			}
			c[0].Deliver(flow%rx, b)
		}
		if n%3 == 0 {
			step()
			take()
		}
	}
	for range 10 {
		step()
		take()
	}
	for flow, n := range next {
		if n != each {
			t.Errorf("flow %d: %d packets, want %d", flow, n, each)
		}
	}
	r.Caller = nil
	l.conserved(0)
	l.census()
}
