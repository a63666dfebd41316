//go:build netmap

package netmap

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"nmfwd/dataplane"
	"nmfwd/dataplane/netmap"
	"nmfwd/fib"
	"nmfwd/system/nic"
	"nmfwd/wire"
)

// The tests in this file need two cards joined by a cable or hub: the router has the
// first one, the tests are the station at the other end.
//
//	station (second card) -- 198.18.0.205 (first card) [router, host]
//	198.18.0.203
var (
	hostNet = netip.MustParsePrefix("198.18.0.205/24")
	station = netip.MustParseAddr("198.18.0.203")
)

func mask(p netip.Prefix) []byte { return net.CIDRMask(p.Bits(), 32) }

// pairs returns the names of the cards that the tests may have, two that are
// joined at a time.
func pairs() (p [][2]string) {
	names := strings.FieldsFunc(os.Getenv("NMFWD_TEST_PORTS"), func(r rune) bool { return r == ' ' || r == ',' })
	for len(names) > 1 {
		p = append(p, [2]string(names))
		names = names[2:]
	}
	return p
}

// listenToAll has a card that is up receive frames for whatever address, for the
// time of the test, and leave tags in them.
func listenToAll(t *testing.T, name string) {
	t.Helper()
	sys, err := nic.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sys.Close() })
	in, err := sys.Info(name)
	if err != nil {
		t.Fatal(err)
	}
	if !in.Up {
		if err := setUp(name, true); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	taken, err := nic.Take(sys, t.TempDir(), []nic.Purpose{{Name: name, Netmap: true, VLANs: true, MACs: []net.HardwareAddr{{2, 0, 0, 0, 0, 0xff}}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := taken.Close(); err != nil {
			t.Error(err)
		}
	})
	l, err := sys.Listen(name, nic.Filter{Promiscuous: true})
	if err != nil {
		t.Fatal(err)
	}
	if l != nil { // else a further address made the card promiscuous
		t.Cleanup(func() { l.Close() })
	}
}

// cards returns the names of the cards, which are up and have a carrier, or skips
// the test. A guest may have nothing that takes them up.
func cards(t *testing.T) (router, other string) {
	t.Helper()
	pairs := pairs()
	if len(pairs) == 0 {
		t.Skip("NMFWD_TEST_PORTS names no pair of ports")
	}
	names := pairs[0][:]
	sys, err := nic.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sys.Close() })
	for _, n := range names {
		in, err := sys.Info(n)
		if err == nil && !in.Up {
			err = setUp(n, true)
		}
		for start := time.Now(); err == nil && !(in.Up && in.Carrier); time.Sleep(10 * time.Millisecond) {
			if time.Since(start) > patience {
				t.Fatalf("%s has no carrier: %+v", n, in)
			}
			in, err = sys.Info(n)
		}
		if err != nil {
			t.Fatalf("%s: %v", n, err)
		}
		t.Cleanup(func() {
			if now, err := sys.Info(n); t.Failed() {
				t.Logf("%s was %+v\nand is %+v, %v", n, in, now, err)
			}
		})
	}
	return names[0], names[1]
}

// joinedPatience bounds the wait for a frame from one card to the other.
const joinedPatience = 20 * time.Second

var joining struct {
	once sync.Once
	ok   bool
}

// joined returns the names of the cards, or skips the test where nothing gets
// from one to the other.
func joined(t *testing.T) (router, other string) {
	t.Helper()
	router, other = cards(t)
	joining.once.Do(func() {
		t.Run("cable", func(t *testing.T) {
			p := open(t, []dataplane.PortConfig{cardConfig(t, router, false), cardConfig(t, other, false)})
			a := newEnd(t, p[1])
			for start := time.Now(); !joining.ok && time.Since(start) < joinedPatience; {
				a.send(a.sent + 1)
				poll(t, 0, a.q.Descriptor)
				for range 10 {
					receiveAll(t, p[0], 10*time.Millisecond, func(_ int, f []byte) {
						joining.ok = joining.ok || len(f) >= 12 && bytes.Equal(f[6:12], []byte(sender))
					})
				}
			}
			if !joining.ok {
				t.Logf("%v\n%v", p[0].Device, p[1].Device)
			}
		})
	})
	if !joining.ok {
		t.Skipf("no frame gets from %s to %s: they are not joined", other, router)
	}
	return router, other
}

// cardConfig makes a port of a card all of whose rings are worker 0's.
func cardConfig(t *testing.T, name string, host bool) dataplane.PortConfig {
	t.Helper()
	r, err := netmap.Probe(name)
	if err != nil {
		t.Fatal(err)
	}
	return dataplane.PortConfig{Name: name, Host: host, Owners: dataplane.Owners{RX: make([]int, r.RX), TX: make([]int, r.TX)}, Spare: 128}
}

// hostAddr gives the first card its address for the time of the test.
func hostAddr(t *testing.T, name string) {
	t.Helper()
	if err := addAddr(name, hostNet); err != nil {
		t.Fatalf("address of %s: %v", name, err)
	}
	t.Cleanup(func() {
		if err := delAddr(name, hostNet); err != nil {
			t.Errorf("address of %s: %v", name, err)
		}
	})
}

// A wireEnd is the station at the other end of the cable: it sends by queue 0
// of a card, and receives by all.
type wireEnd struct {
	t    *testing.T
	port *dataplane.Port
	mac  net.HardwareAddr // of the router's card
	bufs []uint32
	sent int // frames, since it was opened
	got  int // slots that held any frame, since it was opened
}

// newWireEnd opens the station's card.
func newWireEnd(t *testing.T, name, router string) *wireEnd {
	t.Helper()
	return newWireEndOf(t, cardConfig(t, name, false), router)
}

func newWireEndOf(t *testing.T, cfg dataplane.PortConfig, router string) *wireEnd {
	t.Helper()
	i, err := net.InterfaceByName(router)
	if err != nil {
		t.Fatal(err)
	}
	e := &wireEnd{t: t, port: open(t, []dataplane.PortConfig{cfg})[0], mac: i.HardwareAddr}
	if e.bufs, err = e.port.Queues[0].TX.Region().Take(64); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.port.Queues[0].TX.Region().Give(e.bufs) })
	waitUp(t, e.port)
	return e
}

// waitUp waits for the link of a port.
func waitUp(t *testing.T, p *dataplane.Port) {
	t.Helper()
	for start := time.Now(); !p.Device.LinkUp(); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatalf("the link of %s does not come up: %v", p.Name, p.Device)
		}
	}
}

// send sends frames, at most 64.
func (e *wireEnd) send(frames ...[]byte) {
	e.t.Helper()
	q := e.port.Queues[0]
	r := q.TX.Region()
	s := make([]dataplane.Slot, len(frames))
	for i, f := range frames {
		s[i] = dataplane.Slot{Buf: e.bufs[i]}
		s[i].Len = uint16(copy(r.Buffer(e.bufs[i]), f))
	}
	n := q.TX.Send(r, s)
	e.sent += n
	for i := range s {
		e.bufs[i] = s[i].Buf
	}
	poll(e.t, 0, q.Descriptor)
	if n != len(s) {
		e.t.Logf("%d of %d frames fit the ring", n, len(s))
	}
}

// receive waits for a time and calls f with each frame from the router's card.
func (e *wireEnd) receive(wait time.Duration, f func([]byte)) {
	e.t.Helper()
	receiveAll(e.t, e.port, wait, func(_ int, b []byte) {
		e.got++
		if len(b) >= 14 && bytes.Equal(b[6:12], e.mac) {
			f(b)
		}
	})
}

// exchange sends a frame until want accepts an answer.
func (e *wireEnd) exchange(what string, frame []byte, want func([]byte) bool) {
	e.t.Helper()
	got := false
	for start := time.Now(); !got; {
		e.send(frame)
		for next := time.Now().Add(time.Second); !got && time.Now().Before(next); {
			e.receive(50*time.Millisecond, func(b []byte) { got = got || want(b) })
		}
		if !got && time.Since(start) > patience {
			e.t.Fatalf("no answer to %s: %x\n%v", what, frame, e.port.Device)
		}
	}
}

// arpRequest asks for the host's address.
func (e *wireEnd) arpRequest() []byte {
	b := append([]byte(anyone), e.port.MAC...)
	b = append(b, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1)
	b = append(append(b, e.port.MAC...), station.AsSlice()...)
	b = append(append(b, make([]byte, 6)...), hostNet.Addr().AsSlice()...)
	return append(b, make([]byte, 60-len(b))...)
}

// isARPReply reports whether b answers arpRequest.
func (e *wireEnd) isARPReply(b []byte) bool {
	return len(b) >= 42 && b[12] == 8 && b[13] == 6 && b[21] == 2 && bytes.Equal(b[22:28], e.mac) && bytes.Equal(b[28:32], hostNet.Addr().AsSlice())
}

// ip returns a frame for the router's card with an IPv4 packet.
func (e *wireEnd) ip(dst netip.Addr, proto byte, payload []byte) []byte {
	b := append(append([]byte(nil), e.mac...), e.port.MAC...)
	b = append(b, 0x08, 0x00, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, proto, 0, 0)
	b = append(append(b, station.AsSlice()...), dst.AsSlice()...)
	binary.BigEndian.PutUint16(b[16:], uint16(20+len(payload)))
	binary.BigEndian.PutUint16(b[24:], wire.Checksum(b[14:34]))
	return append(b, payload...)
}

// echo returns an ICMP echo request to the host with n bytes of data.
func (e *wireEnd) echo(n int) []byte {
	p := make([]byte, 8+n)
	p[0], p[4], p[5], p[7] = 8, 0x4e, 0x4d, byte(n)
	for i := range n {
		p[8+i] = byte(i*13 + n)
	}
	binary.BigEndian.PutUint16(p[2:], wire.Checksum(p))
	return e.ip(hostNet.Addr(), 1, p)
}

// isEchoReply reports whether b is the answer to an echo request, with the same
// data.
func isEchoReply(b, request []byte) bool {
	n := len(request)
	return len(b) >= n && b[23] == 1 && b[34] == 0 && bytes.Equal(b[38:n], request[38:]) && wire.Checksum(b[34:n]) == 0
}

// ping asks the host for its link-layer address and for echoes of all lengths.
func (e *wireEnd) ping() {
	e.t.Helper()
	e.exchange("ARP", e.arpRequest(), e.isARPReply)
	for _, n := range []int{0, 18, 19, 500, 1471, 1472} {
		r := e.echo(n)
		e.exchange(fmt.Sprintf("echo of %d bytes", n), r, func(b []byte) bool {
			if len(b) > 14 && e.isARPRequest(b) {
				e.send(e.arpReply())
			}
			return isEchoReply(b, r)
		})
	}
}

// isARPRequest reports whether the host asks for the station.
func (e *wireEnd) isARPRequest(b []byte) bool {
	return len(b) >= 42 && b[12] == 8 && b[13] == 6 && b[21] == 1 && bytes.Equal(b[38:42], station.AsSlice())
}

func (e *wireEnd) arpReply() []byte {
	b := append(append([]byte(nil), e.mac...), e.port.MAC...)
	b = append(b, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2)
	b = append(append(b, e.port.MAC...), station.AsSlice()...)
	b = append(append(b, e.mac...), hostNet.Addr().AsSlice()...)
	return append(b, make([]byte, 60-len(b))...)
}

// takeSettings switches off what a card would do to frames of its host, for the
// time of the test.
func takeSettings(t *testing.T, name string) {
	t.Helper()
	sys, err := nic.Open()
	if err != nil {
		t.Fatal(err)
	}
	taken, err := nic.Take(sys, t.TempDir(), []nic.Purpose{{Name: name, Netmap: true, Host: true}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range taken.Changes() {
		t.Logf("settings of %s: set %+v, stay %+v, %v", c.Name, c.Set, c.Stay, c.Err)
	}
	t.Cleanup(func() {
		if err := errors.Join(taken.Close(), sys.Close()); err != nil {
			t.Error(err)
		}
	})
}

// routerOn starts a router on a card, with its host rings. What is for
// 198.19.0.0/16 goes back out to the station.
func routerOn(t *testing.T, name string, e *wireEnd) (*dataplane.Forwarder, *dataplane.Port) {
	t.Helper()
	return routerOf(t, cardConfig(t, name, true), 1500, e)
}

// routerOf is routerOn for a card opened by cfg, and packets of up to mtu bytes.
func routerOf(t *testing.T, cfg dataplane.PortConfig, mtu int, e *wireEnd) (*dataplane.Forwarder, *dataplane.Port) {
	t.Helper()
	takeSettings(t, cfg.Name)
	ports := open(t, []dataplane.PortConfig{cfg})
	p := ports[0]
	waitUp(t, p)
	waitUp(t, e.port)
	if err := p.Device.(dataplane.Watcher).Changed(); err != nil {
		t.Error(err)
	}
	r, err := dataplane.NewForwarder(ports, 1, dataplane.Options{Fault: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	rib := fib.New([]fib.PortAttr{{MAC: [6]byte(p.MAC), MTU: uint16(mtu)}})
	errs := []error{
		rib.Add(fib.Route{Prefix: netip.MustParsePrefix("198.19.0.0/16"), Kind: fib.Via, Gateway: station, Origin: fib.Static}),
		rib.SetNeighbor(0, station, [6]byte(e.port.MAC)),
	}
	for _, c := range fib.ConnectedRoutes(0, hostNet) {
		errs = append(errs, rib.Add(c))
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	r.Publish(&dataplane.State{FIB: rib.Commit(), Ports: []dataplane.PortState{{MAC: wire.MACOf(p.MAC), MTU: mtu, Host: true, Up: true}}})
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r, p
}

// ownE1000 reports whether a port has netmap's own driver of e1000 cards on Linux.
// That one gives the card no buffer for the last slot of an RX ring (its
// e1000_netmap_init_buffers): what comes in there in the first lap is lost.
func ownE1000(p *dataplane.Port) bool { return p.Driver == "e1000" && p.Mode == "native" }

// TestHostRings on a card: the host answers ARP and ping through the
// router, which forwards at the same time.
func TestHostRings(t *testing.T) {
	router, other := joined(t)
	hostAddr(t, router)
	e := newWireEnd(t, other, router)
	r, p := routerOn(t, router, e)
	opened := e.sent
	t.Logf("%+v", p.Info)
	before, err := netmap.System().Received(router)
	if err != nil {
		t.Fatal(err)
	}
	e.ping()
	// Without this a ring that gets nothing could not be told from a silent link.
	// vtnet(4) counts nothing in netmap mode before FreeBSD 13.
	if after, err := netmap.System().Received(router); err != nil || after == before && p.Driver != "vtnet" {
		t.Errorf("the card counts %d frames received before a ping, %d after, error %v", before, after, err)
	}
	for _, n := range []int{67, 2048} {
		t.Run(fmt.Sprintf("and %d packets", n), func(t *testing.T) {
			start := time.Now()
			sent, got, echoes := 0, 0, 0
			at := make(map[int]int) // the slot that each packet had in the router's ring, from its first lap on
			for start := time.Now(); got < n; {
				if sent-got < 64 && sent < n {
					var burst [][]byte
					for range min(16, n-sent) {
						p := make([]byte, 26+sent*31%1400)
						binary.BigEndian.PutUint32(p[8:], uint32(sent))
						at[sent] = e.sent - opened + len(burst)
						burst = append(burst, e.ip(netip.MustParseAddr("198.19.10.1"), 17, p))
						sent++
					}
					e.send(append(burst, e.echo(56))...)
				}
				e.receive(time.Millisecond, func(b []byte) {
					switch {
					case isEchoReply(b, e.echo(56)):
						echoes++
					case b[23] == 17:
						k := int(binary.BigEndian.Uint32(b[42:]))
						if k == got+1 && (ownE1000(p) && at[got] == p.RXSlots-1 || ownE1000(e.port) && e.got-2 == e.port.RXSlots-1) {
							t.Logf("packet %d is lost in the last slot of a ring in its first lap, for which netmap's own driver e1000 gives the card no buffer", got)
							got++
						}
						if size := 60 + k*31%1400; k != got || len(b) != size || b[22] != 63 || wire.Checksum(b[14:34]) != 0 {
							t.Fatalf("packet %d of %d bytes, want %d: %x", k, len(b), got, b)
						}
						got++
					}
				})
				if time.Since(start) > patience {
					t.Fatalf("%d sent, %d forwarded, %d echoes", sent, got, echoes)
				}
			}
			t.Logf("%d packets: %.0f packets/s, %d echoes meanwhile", n, float64(n)/time.Since(start).Seconds(), echoes)
		})
	}
	r.Stop()
	var s dataplane.Snapshot
	r.Snapshot(&s)
	for i, q := range s.Ports[0].RX {
		t.Logf("RX ring %d: %+v", i, q)
	}
}

// Packets of jumboMTU bytes, and the buffers that hold them.
const (
	jumboMTU     = 9000
	jumboBufSize = 9216
)

// jumboCards gives both cards an MTU of jumboMTU for the time of the test, and returns
// what opens them with buffers for that, or skips the test and says what does not
// allow it.
func jumboCards(t *testing.T) (router, other dataplane.PortConfig) {
	t.Helper()
	a, b := joined(t)
	ram, buffers := memory()
	if need := uint64(buffers) * jumboBufSize; buffers == 0 || need > ram/2 {
		t.Skipf("netmap's %d buffers would take %d MB with %d bytes each, the machine has %d: set buf_num before", buffers, need>>20, jumboBufSize, ram>>20)
	}
	for _, name := range []string{a, b} {
		i, err := net.InterfaceByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := setMTU(name, jumboMTU); err != nil {
			t.Skipf("%s does not take an MTU of %d: %v", name, jumboMTU, err)
		}
		t.Cleanup(func() {
			if err := setMTU(name, i.MTU); err != nil {
				t.Errorf("MTU of %s: %v", name, err)
			}
		})
	}
	router, other = cardConfig(t, a, true), cardConfig(t, b, false)
	router.BufSize, other.BufSize = jumboBufSize, jumboBufSize
	p, err := netmap.Open([]dataplane.PortConfig{router, other}, netmap.Options{LockDir: t.TempDir()})
	if err != nil {
		t.Skipf("netmap does not open the cards with an MTU of %d and buffers of %d bytes: %v", jumboMTU, jumboBufSize, err)
	}
	for i := range p {
		if err := p[len(p)-1-i].Device.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return router, other
}

// TestJumboToHost: the host gets frames whole that the card puts into several slots,
// and nothing of them as a frame of its own: packets to the host have an ARP request
// of another station wherever a slot may begin, which is never answered.
func TestJumboToHost(t *testing.T) {
	router, other := jumboCards(t)
	hostAddr(t, router.Name)
	e := newWireEndOf(t, other, router.Name)
	r, p := routerOf(t, router, jumboMTU, e)
	e.exchange("ARP", e.arpRequest(), e.isARPReply)
	forger := netip.MustParseAddr("198.18.0.77").AsSlice()
	forged := e.arpRequest()[:42]
	copy(forged[28:], forger)
	answered := 0
	whole := func(request []byte) func([]byte) bool {
		return func(b []byte) bool {
			if e.isARPRequest(b) {
				e.send(e.arpReply())
			}
			if len(b) >= 42 && b[12] == 8 && b[13] == 6 && bytes.Equal(b[38:42], forger) {
				answered++
			}
			return isEchoReply(b, request)
		}
	}
	longest := jumboMTU - 28
	for _, n := range []int{56, 1472, 2006, 2007, 4054, 4055, 4172, 8150, 8151, longest} {
		request := e.echo(n)
		e.exchange(fmt.Sprintf("echo of %d bytes", n), request, whole(request))
	}
	for range 20 {
		payload := make([]byte, jumboMTU-20)
		binary.BigEndian.PutUint16(payload[2:], 9) // discard
		binary.BigEndian.PutUint16(payload[4:], uint16(len(payload)))
		frame := e.ip(hostNet.Addr(), 17, payload)
		for at := 1024; at+len(forged) <= len(frame); at += 1024 {
			copy(frame[at:], forged)
		}
		e.send(frame)
		request := e.echo(56)
		e.exchange("echo after a packet", request, whole(request))
	}
	if answered > 0 {
		t.Errorf("the host answered %d frames that nobody sent", answered)
	}
	r.Stop()
	var s dataplane.Snapshot
	r.Snapshot(&s)
	for i, q := range s.Ports[0].RX {
		t.Logf("RX ring %d: %+v", i, q)
		if q.Dropped[dataplane.DropHostTooBig] > 0 {
			t.Errorf("RX ring %d: %d frames too big for the host, whose MTU is %d", i, q.Dropped[dataplane.DropHostTooBig], p.MTU)
		}
	}
}

// TestHostOnRefusesLargeMTU: with a host, buffers have to hold what the interface may
// carry, whatever the port line says; the error has the parameter that mends it.
func TestHostOnRefusesLargeMTU(t *testing.T) {
	router, _ := jumboCards(t)
	router.BufSize, router.MTU = 4096, 1500
	p, err := netmap.Open([]dataplane.PortConfig{router}, netmap.Options{LockDir: t.TempDir()})
	if err == nil {
		p[0].Device.Close()
		t.Fatalf("opened: %+v", p[0].Info)
	}
	if !strings.Contains(err.Error(), "buf_size") {
		t.Errorf("got %v", err)
	}
}

// tcpChecksum returns what the bytes of the TCP segment in a frame sum up to with
// its pseudo-header: 0 if the checksum in it is right.
func tcpChecksum(b []byte) uint16 {
	segment := b[34 : 14+int(binary.BigEndian.Uint16(b[16:]))]
	pseudo := append(append([]byte(nil), b[26:34]...), 0, 6, byte(len(segment)>>8), byte(len(segment)))
	return wire.Checksum(append(pseudo, segment...))
}

// TestHostTCP on a card: what the host sends by TCP has its checksums
// when it leaves, though the card could have filled them in.
func TestHostTCP(t *testing.T) {
	router, other := joined(t)
	hostAddr(t, router)
	e := newWireEnd(t, other, router)
	routerOn(t, router, e)
	e.exchange("ARP", e.arpRequest(), e.isARPReply)
	l, err := net.Listen("tcp4", net.JoinHostPort(hostNet.Addr().String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, tt := range []struct {
		name  string
		port  int
		flags byte
	}{{"listening", l.Addr().(*net.TCPAddr).Port, 0x12}, {"closed", 9, 0x14}} { // SYN ACK, RST ACK
		t.Run(tt.name, func(t *testing.T) {
			e.t = t
			p := make([]byte, 20)
			binary.BigEndian.PutUint16(p, 40000)
			binary.BigEndian.PutUint16(p[2:], uint16(tt.port))
			p[12], p[13], p[14] = 5<<4, 0x02, 0x20 // SYN
			syn := e.ip(hostNet.Addr(), 6, p)
			binary.BigEndian.PutUint16(syn[50:], tcpChecksum(syn))
			e.exchange("SYN", append(syn, make([]byte, 60-len(syn))...), func(b []byte) bool {
				if e.isARPRequest(b) {
					e.send(e.arpReply())
				}
				if len(b) < 54 || b[12] != 8 || b[13] != 0 || b[23] != 6 || int(binary.BigEndian.Uint16(b[34:])) != tt.port {
					return false
				}
				if sum, tcp := wire.Checksum(b[14:34]), tcpChecksum(b); sum != 0 || tcp != 0 || b[47] != tt.flags {
					t.Errorf("flags %#x, want %#x, remainders %#x and %#x: %x", b[47], tt.flags, sum, tcp, b)
				}
				return true
			})
		})
	}
	e.t = t
}

// TestDownAndUp: the interface goes down and comes up
// again under a router, which goes on by itself.
func TestDownAndUp(t *testing.T) {
	router, other := joined(t)
	hostAddr(t, router)
	e := newWireEnd(t, other, router)
	_, p := routerOn(t, router, e)
	e.ping()
	for range 3 {
		if err := setUp(router, false); err != nil {
			t.Fatal(err)
		}
		for start := time.Now(); p.Device.LinkUp(); time.Sleep(time.Millisecond) {
			if time.Since(start) > patience {
				t.Fatal("the link of an interface that is down is up")
			}
		}
		e.send(e.arpRequest())
		if err := setUp(router, true); err != nil {
			t.Fatal(err)
		}
		waitUp(t, p)
		e.ping()
	}
}

// TestCardRestart opens and closes a card with its host rings again and again,
// while the station sends. In the end the kernel answers by itself.
func TestCardRestart(t *testing.T) {
	router, other := joined(t)
	hostAddr(t, router)
	e := newWireEnd(t, other, router)
	cycles := 3
	if soak {
		cycles = 1000
	}
	for i := range cycles {
		if !t.Run(fmt.Sprint(i), func(t *testing.T) {
			e.t = t
			p := open(t, []dataplane.PortConfig{cardConfig(t, router, true)})[0]
			for range 4 {
				e.send(e.arpRequest(), e.echo(100), e.echo(1000))
				poll(t, 0, p.Queues[0].Descriptor)
			}
		}) {
			break
		}
	}
	e.t = t
	e.ping()
}

// nmfwd returns the program beside the test binary, or skips the test.
func nmfwd(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := filepath.Join(filepath.Dir(exe), "nmfwd")
	if _, err := os.Stat(p); err != nil {
		t.Skip("no nmfwd beside the test binary")
	}
	return p
}

// TestCardKill on a card: while nmfwd has it a second one
// is refused; when nmfwd is killed the kernel has its card again, and then a new
// nmfwd.
func TestCardKill(t *testing.T) {
	router, other := joined(t)
	exe := nmfwd(t)
	hostAddr(t, router)
	conf := filepath.Join(t.TempDir(), "routes.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, "port %s %v\n", router, hostNet), 0o600); err != nil {
		t.Fatal(err)
	}
	e := newWireEnd(t, other, router)
	e.ping()
	for range 2 {
		cmd := exec.Command(exe, "-c", conf)
		out, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ready := make(chan bool, 1)
		go func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				t.Log(lines.Text())
				if strings.Contains(lines.Text(), "msg=forwarding") {
					ready <- true
				}
			}
			close(ready)
		}()
		select {
		case ok := <-ready:
			if !ok {
				t.Errorf("nmfwd does not start: %v", cmd.Wait())
				return
			}
		case <-time.After(patience):
			t.Error("nmfwd does not start")
		}
		e.ping()
		second := exec.Command(exe, "-c", conf)
		text, err := second.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 69 || !strings.Contains(string(text), fmt.Sprintf("another nmfwd has it (pid %d", cmd.Process.Pid)) {
			t.Errorf("second nmfwd: %v: %s", err, text)
		}
		cmd.Process.Signal(syscall.SIGKILL)
		for range ready {
		}
		cmd.Wait()
		e.ping()
		if t.Failed() {
			return
		}
	}
	text, err := exec.Command(exe, "restore", router).CombinedOutput()
	t.Logf("%s", text)
	if err != nil {
		t.Error(err)
	}
}
