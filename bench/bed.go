package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"nmfwd/bench/routes"
	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
	"nmfwd/fib"
	"nmfwd/wire"
)

// The lab in memory: ports A and B, the router between them. All neighbors
// have the MAC address of A, so that what leaves by B can come in by A again.
var (
	macA     = [6]byte{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x3d}
	macB     = [6]byte{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x3e}
	labPorts = []fib.PortAttr{{MAC: macA, MTU: 1500}, {MAC: macB, MTU: 1500}}
)

// A mix says what families the frames are of.
type mix string

const (
	v4    mix = "IPv4"
	v6    mix = "IPv6"
	mixed mix = "mixed"
)

// A table says what routes there are: 4 of each family; as many generated ones
// as n4 and n6 beside them; or those of a real table.
type table struct {
	n4, n6    int
	real      bool
	neighbors int  // on-link neighbors that the flows go to, instead of one gateway
	faults    bool // routes that lead to drops
}

func (t table) String() string {
	switch {
	case t.real:
		return "real table"
	case t.n4 == 0:
		return "4 routes"
	}
	return fmt.Sprintf("%dk/%dk routes", t.n4/1000, t.n6/1000)
}

// A fibOf is a compiled table with its routes.
type fibOf struct {
	fib    *fib.FIB
	v4, v6 []netip.Prefix // without those of the lab
	s4, s6 []span         // of fib, once somebody asked
}

var fibs = struct {
	sync.Mutex
	m map[table]*fibOf
}{m: make(map[table]*fibOf)}

// compile returns the table, made once.
func (t table) compile() (*fibOf, error) {
	fibs.Lock()
	defer fibs.Unlock()
	if f := fibs.m[t]; f != nil {
		return f, nil
	}
	f := new(fibOf)
	switch {
	case t.real:
		var err error
		if f.v4, err = routes.Real(true); err != nil {
			return nil, err
		}
		if f.v6, err = routes.Real(false); err != nil {
			return nil, err
		}
	case t.n4 > 0:
		f.v4, f.v6 = routes.Generate(t.n4, true, 1), routes.Generate(t.n6, false, 1)
	}
	r := fib.New(labPorts)
	err := errors.Join(r.Load(viaGateways(f.v4)), r.Load(viaGateways(f.v6)), addLab(r, t))
	for n := range 8 {
		err = errors.Join(err, r.SetNeighbor(1, gateway(true, n), macA), r.SetNeighbor(1, gateway(false, n), macA))
	}
	if err != nil {
		return nil, err
	}
	f.fib = r.Commit()
	fibs.m[t] = f
	return f, nil
}

// gateway returns one of eight gateways of large tables.
func gateway(is4 bool, n int) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{198, 19, 128, byte(1 + n)})
	}
	return netip.AddrFrom16([16]byte{0x20, 0x01, 3: 2, 6: 0xc0, 15: byte(1 + n)})
}

func viaGateways(ps []netip.Prefix) []fib.Route {
	rts := make([]fib.Route, len(ps))
	for i, p := range ps {
		rts[i] = fib.Route{Prefix: p, Origin: fib.Static, Kind: fib.Via, Gateway: gateway(p.Addr().Is4(), i%8), Port: 1}
	}
	return rts
}

// addLab adds the lab's routes: two to the gateways of each family, and the
// connected ones.
func addLab(r *fib.RIB, t table) error {
	var errs []error
	add := func(rt fib.Route) { errs = append(errs, r.Add(rt)) }
	for i, addrs := range [][2]string{{"198.18.0.205/24", "2001:2::205/64"}, {"198.19.0.205/24", "2001:2:0:8000::205/64"}} {
		for _, a := range addrs {
			for _, rt := range fib.ConnectedRoutes(uint16(i), netip.MustParsePrefix(a)) {
				add(rt)
			}
		}
	}
	for _, c := range []struct {
		prefix, gateway string
		port            uint16
	}{
		{"198.18.0.0/16", "198.18.0.203", 0}, {"2001:2::/49", "2001:2::203", 0},
		{"198.19.0.0/16", "198.19.0.203", 1}, {"2001:2:0:8000::/49", "2001:2:0:8000::203", 1},
	} {
		gw := netip.MustParseAddr(c.gateway)
		add(fib.Route{Prefix: netip.MustParsePrefix(c.prefix), Origin: fib.Static, Kind: fib.Via, Gateway: gw, Port: c.port})
		errs = append(errs, r.SetNeighbor(c.port, gw, macA))
	}
	if t.neighbors > 0 {
		for _, p := range []string{"198.19.16.0/20", "2001:2:0:8002::/64"} {
			add(fib.Route{Prefix: netip.MustParsePrefix(p), Origin: fib.Static, Kind: fib.OnLink, Port: 1})
		}
		for n := range t.neighbors {
			errs = append(errs, r.SetNeighbor(1, neighbor(true, n), macA), r.SetNeighbor(1, neighbor(false, n), macA))
		}
	}
	if t.faults {
		for _, rt := range []fib.Route{
			{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Kind: fib.Blackhole},
			{Prefix: netip.MustParsePrefix("198.51.100.0/24"), Kind: fib.Reject},
			{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Kind: fib.Via, Gateway: netip.MustParseAddr("198.19.0.9"), Port: 1},
			{Prefix: netip.MustParsePrefix("203.0.112.0/24"), Kind: fib.Via, Gateway: netip.MustParseAddr("198.19.0.203"), Port: 1, MTU: 40},
			{Prefix: netip.MustParsePrefix("2001:db8::/32"), Kind: fib.Via, Gateway: netip.MustParseAddr("2001:2:0:8000::203"), Port: 1, MTU: 40},
		} {
			rt.Origin = fib.Static
			add(rt)
		}
	}
	return errors.Join(errs...)
}

// neighbor returns the address of on-link neighbor n < 4096.
func neighbor(is4 bool, n int) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{198, 19, byte(16 + n>>8), byte(n)})
	}
	return netip.AddrFrom16([16]byte{0x20, 0x01, 3: 2, 6: 0x80, 7: 2, 14: byte(n >> 8), 15: byte(n)})
}

// flows returns n frames of a mix: the 2,000 flows of the lab over and over,
// to the table's on-link neighbors where it has some.
func (f *fibOf) flows(t table, m mix, n int) [][]byte {
	frames := make([][]byte, n)
	for i := range frames {
		is4, flow := m == v4 || m == mixed && i%2 == 0, i
		if m == mixed {
			flow = i / 2
		}
		if is4 {
			frames[i] = frame4(flow%2000, 255)
		} else {
			frames[i] = frame6(flow%2000, 255)
		}
		if t.neighbors > 0 {
			setDst(frames[i], neighbor(is4, flow%t.neighbors))
		}
	}
	return frames
}

// scatter gives frames of the lab n destinations, in turns: random hosts of
// random routes.
func (f *fibOf) scatter(frames [][]byte, n int) {
	rnd := rand.New(rand.NewPCG(7, 7))
	var to [2][]netip.Addr // by family
	var at [2]int
	for _, b := range frames {
		i, ps, via := 0, f.v4, "198.19.0.0/16"
		if b[12] != 0x08 {
			i, ps, via = 1, f.v6, "2001:2:0:8000::/49"
		}
		if len(ps) == 0 {
			ps = []netip.Prefix{netip.MustParsePrefix(via)}
		}
		if len(to[i]) < n {
			to[i] = append(to[i], destination(rnd, ps))
		}
		setDst(b, to[i][at[i]%n])
		at[i]++
	}
}

// elsewhere are networks that no frame of a loop may go to: those of port A, and
// the connected one of port B, where the hosts are unknown.
var elsewhere = []netip.Prefix{
	netip.MustParsePrefix("198.18.0.0/16"), netip.MustParsePrefix("198.19.0.0/24"),
	netip.MustParsePrefix("2001:2::/49"), netip.MustParsePrefix("2001:2:0:8000::/64"),
}

// destination returns a random host of a random route that may be forwarded
// to.
func destination(rnd *rand.Rand, ps []netip.Prefix) netip.Addr {
	for {
		a := routes.Host(rnd, ps[rnd.IntN(len(ps))])
		if a.IsGlobalUnicast() && (!a.Is4() || a.As4()[0] < 224) && !slices.ContainsFunc(elsewhere, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return a
		}
	}
}

// frame4 returns a UDP packet of the lab's flow n in a frame of 60 bytes.
func frame4(n int, ttl uint8) []byte {
	b := make([]byte, 60)
	wire.PutEthernet(b, wire.MACOf(macA[:]), 0x7a95c4211b00, wire.TypeIPv4)
	ip := b[wire.EthernetLen:]
	ip[0] = 0x45
	binary.BigEndian.PutUint16(ip[2:], 46)
	ip[8], ip[9] = ttl, wire.ProtoUDP
	copy(ip[12:], []byte{198, 18, 10, byte(1 + n%100), 198, 19, 10, byte(1 + n/100%20)})
	udp(ip[20:], 26)
	sum4(b)
	return b
}

// frame6 is frame4 for IPv6, in 62 bytes.
func frame6(n int, hops uint8) []byte {
	b := make([]byte, 62)
	wire.PutEthernet(b, wire.MACOf(macA[:]), 0x7a95c4211b00, wire.TypeIPv6)
	ip := b[wire.EthernetLen:]
	ip[0] = 0x60
	binary.BigEndian.PutUint16(ip[4:], 8)
	ip[6], ip[7] = wire.ProtoUDP, hops
	copy(ip[8:], netip.MustParseAddr("2001:2:0:1::").AsSlice())
	copy(ip[24:], netip.MustParseAddr("2001:2:0:8001::").AsSlice())
	ip[23], ip[39] = byte(1+n%20), byte(1+n/20%100)
	udp(ip[40:], 8)
	return b
}

func udp(b []byte, n uint16) {
	binary.BigEndian.PutUint16(b, 2000)
	binary.BigEndian.PutUint16(b[2:], 2000)
	binary.BigEndian.PutUint16(b[4:], n)
}

// sum4 makes the header checksum of an IPv4 frame right.
func sum4(b []byte) {
	ip := b[wire.EthernetLen:]
	n := min(len(ip), max(20, int(ip[0]&15)*4))
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], wire.Checksum(ip[:n]))
}

// setDst changes the destination of a frame of either family.
func setDst(b []byte, a netip.Addr) {
	if a.Is4() {
		copy(b[30:], a.AsSlice())
		sum4(b)
	} else {
		copy(b[38:], a.AsSlice())
	}
}

// A feed says where a bed's frames come from.
type feed uint64

const (
	loop   feed = iota // what was sent comes in again
	repeat             // what was received comes in again: for frames that are dropped
	once               // frames come in once
)

// A bed is a router in memory with its frames, which one worker steps.
type bed struct {
	feed     feed
	mix      mix
	burst    int
	stride   int
	huge     bool // buffers in huge pages
	minFrame int
	table    *fibOf // published by open; nil leaves that to others
	frames   [][]byte

	rxSlots int
	in, out *memport.Port
	router  *dataplane.Forwarder
	worker  *dataplane.Worker
	free    func()
}

// txSlots is the size of the rings that do not hold the frames.
const txSlots = 2048

// open puts the router together.
func (b *bed) open() error {
	b.rxSlots = len(b.frames)
	if b.feed != repeat {
		b.rxSlots += b.burst
	}
	mem, free, err := buffers(b.buffers()*b.stride, b.huge)
	if err != nil {
		return err
	}
	b.free = free
	spare := make([]uint32, b.buffers())
	for i := range spare {
		spare[i] = uint32(len(spare) - 1 - i)
	}
	region := dataplane.NewRegion("bench", mem, b.stride, spare)
	cfg := memport.Config{Name: "A", MAC: macA[:], RXSlots: b.rxSlots, TXSlots: txSlots, MinFrame: b.minFrame}
	if b.in, err = memport.New(region, cfg); err != nil {
		return err
	}
	cfg.Name, cfg.MAC, cfg.RXSlots = "B", macB[:], txSlots
	if b.out, err = memport.New(region, cfg); err != nil {
		return err
	}
	switch b.feed {
	case loop:
		err = memport.Loop(b.in, 0, b.out, 0, b.frames)
	case repeat:
		b.in.Queues[0].RX = newRepeater(region, b.frames)
	case once:
		if n := b.in.DeliverBurst(0, b.frames); n != len(b.frames) {
			err = fmt.Errorf("%d of %d frames delivered", n, len(b.frames))
		}
	}
	if err != nil {
		return err
	}
	b.router, err = dataplane.NewForwarder([]*dataplane.Port{&b.in.Port, &b.out.Port}, 1, dataplane.Options{Burst: b.burst})
	if err != nil {
		return err
	}
	b.worker = b.router.Workers()[0]
	if b.table != nil {
		b.router.Publish(labState(b.table))
	}
	return nil
}

func (b *bed) close() {
	b.router.Close()
	b.free()
}

// buffers returns how many buffers the rings hold.
func (b *bed) buffers() int { return b.rxSlots + 3*txSlots }

// batch is the number of packets that are timed together.
const batch = 4096

// run handles at least n packets in batches and returns the nanoseconds that a
// packet took in the median batch: what a batch lost to other programs is not
// ours.
func (b *bed) run(n int) float64 { return batches(n, func() int { return b.worker.Step(0) }) }

func batches(n int, step func() int) float64 {
	ns := make([]float64, n/batch+1)
	for i := range ns {
		start, packets := time.Now(), 0
		for packets < batch {
			packets += step()
		}
		ns[i] = float64(time.Since(start)) / float64(packets)
	}
	return median(ns)
}

// counts returns what became of the packets that came in by A.
func (b *bed) counts() dataplane.RXSnapshot {
	var s dataplane.Snapshot
	b.router.Snapshot(&s)
	return s.Ports[0].RX[0]
}

// A repeater receives the same frames over and over. It gets its buffers back
// as they were: the worker must forward none.
type repeater struct {
	region   *dataplane.Region
	slots    []dataplane.Slot
	at, back int
}

// newRepeater returns a repeater of frames, in the first buffers of region,
// which are those of the first ring that was made.
func newRepeater(region *dataplane.Region, frames [][]byte) *repeater {
	q := &repeater{region: region, slots: make([]dataplane.Slot, len(frames))}
	for i, f := range frames {
		q.slots[i] = dataplane.Slot{Buf: uint32(i), Len: uint16(copy(region.Buffer(uint32(i)), f))}
	}
	return q
}

func (q *repeater) Region() *dataplane.Region { return q.region }

func (q *repeater) Recv(s []dataplane.Slot) int {
	n := copy(s, q.slots[q.at:])
	if q.at += n; q.at == len(q.slots) {
		q.at = 0
	}
	return n
}

func (q *repeater) Release(free []uint32) {
	for _, b := range free {
		q.slots[q.back].Buf = b
		if q.back++; q.back == len(q.slots) {
			q.back = 0
		}
	}
}
