package control

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"nmfwd/arp"
	"nmfwd/dataplane"
	"nmfwd/neigh"
	"nmfwd/wire"
)

// TestLotBounds: what waits takes no more than it may, for one neighbor and in all,
// and the oldest gives way: for one neighbor its own, in all that of the port of
// whose packets most wait.
func TestLotBounds(t *testing.T) {
	l := newLot(2)
	key := func(n int) neigh.Key { return neigh.Key{Addr: netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})} }
	add := func(port, neighbor, size int) {
		l.add(key(neighbor), dataplane.Punt{Port: port, Frame: make([]byte, size)})
	}
	counts := func(port int) (waiting int64, discarded uint64) {
		return l.ports[port].waiting.Load(), l.ports[port].discarded.Load()
	}
	for _, size := range []int{60, 1514, 9014} {
		l = newLot(2)
		add(1, 0, size)
		for range 1000 {
			add(0, 0, size)
		}
		want := parkEach / (size + parkCost)
		if n, gone := counts(0); int(n) != want || int(gone) != 1000-want || l.size > parkEach {
			t.Errorf("%d bytes: %d packets wait, %d given up, want %d in %d bytes", size, n, gone, want, parkEach)
		}
		if n, gone := counts(1); n != 0 || gone != 1 {
			t.Errorf("%d bytes: the oldest: %d wait, %d given up", size, n, gone)
		}
	}
	// Linux counts 768 bytes at least for each of the smallest, and 2,304 for 1,500.
	if parkEach/(60+parkCost) < parkEach/768 || parkEach/(1514+parkCost) < parkEach/2304 {
		t.Error("fewer packets may wait than in Linux")
	}

	l = newLot(2)
	const flood = 2 * parkAll / (1514 + parkCost)
	for i := range flood {
		add(0, i/100, 1514)
	}
	full, gone := counts(0)
	if l.size > parkAll || l.size < parkAll-2000 || full+int64(gone) != flood {
		t.Errorf("%d bytes wait, want about %d; %d packets, %d given up of %d", l.size, parkAll, full, gone, flood)
	}
	if l.first(key(0)) != nil || l.first(key(flood/100)) == nil {
		t.Error("it is not the oldest that gave way")
	}
	for i := range 500 {
		add(1, 10000+i, 1514)
	}
	if n, gone := counts(1); n != 500 || gone != 0 {
		t.Errorf("another port: %d packets wait, %d given up", n, gone)
	}
	for _, k := range []int{10000, flood / 100} {
		for p := l.first(key(k)); p != nil; p = l.first(key(k)) {
			l.remove(p)
		}
	}
	for len(l.queues) > 0 {
		for _, q := range l.queues {
			l.giveUp(q.packets[len(q.packets)-1])
		}
	}
	if n, _ := counts(0); n != 0 || l.size != 0 || l.ports[0].size != 0 || l.ports[0].order.Len() != 0 {
		t.Errorf("empty: %d packets, %d bytes", n, l.size)
	}
}

// TestManyWait: more packets wait for a neighbor than the rings between control and
// worker hold. All leave, each once and in order.
func TestManyWait(t *testing.T) {
	for _, sources := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d sources", sources), func(t *testing.T) {
			r := newRig(t, nil)
			const dst, each = "198.19.0.99", 220
			total := 0
			for n := range each {
				for s := range sources {
					r.deliver(0, packetFrom(fmt.Sprintf("198.18.10.%d", s+1), dst, byte(n)))
					total++
				}
				if n%20 == 0 { // a burst, then a little time
					r.at += time.Millisecond
				}
			}
			if now, gone := r.Parked(0); now != total || gone != 0 {
				t.Fatalf("%d packets wait, %d given up, want %d", now, gone, total)
			}
			r.took(1)
			r.ports[1].Deliver(0, arpReply(macH, dst))
			for n := range 200 { // while it goes on
				if n%20 == 0 {
					r.ports[0].Deliver(0, packetFrom("198.18.10.1", dst, 230))
				}
				r.at += time.Millisecond
				r.router.Workers()[0].Step(int64(r.at))
				r.router.Punts(r.punt)
				r.settle(false)
				r.sent[1] = append(r.sent[1], r.ports[1].Transmit(0)...)
			}
			next := make([]int, sources)
			late := 0
			for _, f := range r.sent[1] {
				ip := wire.IPv4(packetOf(f))
				s, n := int(ip[15])-1, int(ip[wire.IPv4Len])
				switch {
				case wire.Ethernet(f).Destination() != macH:
					t.Fatalf("sent %s", describe(f))
				case n == 230:
					late++
				case n != next[s] || late > 0 && s == 0:
					t.Fatalf("source %d: packet %d left, want %d; %d later ones before", s, n, next[s], late)
				default:
					next[s]++
				}
			}
			if want := slices.Repeat([]int{each}, sources); !slices.Equal(next, want) || late != 10 {
				t.Errorf("left: %v and %d later ones, want %v and 10", next, late, want)
			}
			if now, gone := r.Parked(0); now != 0 || gone != 0 {
				t.Errorf("%d packets wait, %d given up", now, gone)
			}
			r.accounted()
		})
	}
}

// TestFragmentsWait: a packet that is too large waits whole for its neighbor, and
// leaves as fragments then; when there is no answer, its source is told of the
// packet as it came.
func TestFragmentsWait(t *testing.T) {
	for _, x := range []struct {
		name, dst, neighbor string
	}{
		{"on the link", "198.19.0.99", "198.19.0.99"},
		{"through a gateway", "198.19.10.1", "198.19.0.203"},
	} {
		t.Run(x.name, func(t *testing.T) {
			r := newRig(t, func(s *Spec) { s.Ports[1].MTU, s.ICMP.Rate = 400, 1000 })
			p := udp4(x.dst, 64, 1472)
			for range 5 {
				r.deliver(0, framed(p))
			}
			if now, gone := r.Parked(0); now != 5 || gone != 0 {
				t.Fatalf("%d packets wait, %d given up, want 5", now, gone)
			}
			r.took(1)
			r.deliver(1, arpReply(macH, x.neighbor))
			var sizes []int
			for _, f := range r.sent[1] {
				ip := wire.IPv4(packetOf(f))
				if wire.CheckIPv4(ip, len(ip)) != wire.OK || ip.TTL() != 63 || wire.Ethernet(f).Destination() != macH {
					t.Errorf("sent % x", f[:40])
				}
				sizes = append(sizes, len(ip))
			}
			if want := slices.Repeat([]int{396, 396, 396, 372}, 5); !slices.Equal(sizes, want) {
				t.Errorf("fragments of %v bytes left, want %v", sizes, want)
			}
			if got := r.Fragmented(0); got != (Fragmented{5, 20, 0}) {
				t.Errorf("got %+v", got)
			}
			if now, gone := r.Parked(0); now != 0 || gone != 0 {
				t.Errorf("%d packets wait, %d given up", now, gone)
			}
			r.accounted()
		})
	}
	r := newRig(t, func(s *Spec) { s.Ports[1].MTU, s.ICMP.Rate = 400, 1000 })
	p := udp4("198.19.0.99", 64, 1472)
	r.deliver(0, framed(p))
	r.pass(3100 * time.Millisecond)
	if now, gone := r.Parked(0); now != 0 || gone != 1 || r.Fragmented(0) != (Fragmented{}) {
		t.Errorf("no answer: %d packets wait, %d given up, %+v", now, gone, r.Fragmented(0))
	}
	if len(r.sent[0]) != 1 {
		t.Fatalf("no answer: the source was sent %d frames", len(r.sent[0]))
	}
	e := packetOf(r.sent[0][0])
	if e[20] != 3 || e[21] != 1 || string(e[28:48]) != string(p[:20]) {
		t.Errorf("no answer: got % x, want host unreachable about % x", e, p[:20])
	}

	// What the router itself says is held whole, too.
	r = newRig(t, func(s *Spec) { s.Neighbors, s.Ports[0].MTU = nil, 400 })
	echo := wire.IPv4(udp4("198.19.0.205", 64, 1000))
	echo[9], echo[10], echo[11] = wire.ProtoICMP, 0, 0
	binary.BigEndian.PutUint16(echo[10:], wire.Checksum(echo[:wire.IPv4Len]))
	m := echo[wire.IPv4Len:]
	clear(m[:8])
	m[0] = 8
	binary.BigEndian.PutUint16(m[2:], wire.Checksum(m))
	b := framed(echo)
	wire.PutEthernet(b, macB, g2, wire.TypeIPv4)
	r.deliver(1, b) // the way back is by A, whose gateway is not known
	r.took(0)
	reply := make([]byte, 60)
	arp.Reply(reply, macA, macH, netip.MustParseAddr("198.18.0.203"), netip.MustParseAddr("198.18.0.205"))
	r.deliver(0, reply)
	if got := r.took(0); len(got) != 3 {
		t.Errorf("an echo reply left as %q, want 3 fragments", got)
	}
	if got := r.Fragmented(1); got != (Fragmented{}) {
		t.Errorf("an echo reply was counted: %+v", got)
	}
}

// TestDeadNeighbors: stations on the link, some of which do not answer for their own
// addresses, send to addresses that nobody has. Errors to them wait for neighbors
// themselves. A neighbor that answers gets its packets all the time, and in the end
// nothing waits.
func TestDeadNeighbors(t *testing.T) {
	r := newRig(t, func(s *Spec) {
		s.ICMP.Rate, s.MaxNeighbors, s.Routes = 1000, 65536, nil
		s.Ports[0].Addrs, s.Ports[1].Addrs = prefixes("198.18.0.205/16"), prefixes("198.19.0.205/16")
	})
	rnd := rand.New(rand.NewPCG(1, 2))
	const known = "198.19.0.99"
	alive := func(a netip.Addr) bool { return a.As4()[3]%2 == 1 } // of both networks
	// Control publishes when it is time for it, so that events come between.
	step := func() {
		r.router.Workers()[0].Step(int64(r.at))
		r.expire()
		r.router.Punts(r.punt)
		r.settle(false)
		r.router.Workers()[0].Step(int64(r.at))
		for i, p := range r.ports {
			r.sent[i] = append(r.sent[i], p.Transmit(0)...)
		}
	}
	pass := func(d time.Duration) {
		for range d / time.Millisecond {
			r.at += time.Millisecond
			step()
		}
	}
	answer := func() {
		for more := true; more; {
			more = false
			for port := range r.sent {
				frames := r.sent[port]
				r.sent[port] = nil
				for _, f := range frames {
					q := arp.Packet(f[wire.EthernetLen:])
					if wire.Ethernet(f).Type() != wire.TypeARP {
						r.sent[port] = append(r.sent[port], f)
						continue
					}
					if q.Op() == arp.OpRequest && alive(q.Target()) {
						b := make([]byte, 60)
						arp.Reply(b, []wire.MAC{macA, macB}[port], macH, q.Target(), q.Sender())
						r.ports[port].Deliver(0, b)
						more = true
					}
				}
			}
			step()
		}
	}
	at := func(net int) string { return fmt.Sprintf("198.%d.%d.", 18+net, 1+rnd.IntN(200)) }
	errors := 0
	for range 40 { // two minutes
		// Several stations send to the same dead ones at a time, and ask for the router
		// shortly before it is known that these are.
		var stations []string
		for range 24 {
			stations = append(stations, at(0)+strconv.Itoa(1+rnd.IntN(250)))
		}
		for range 12 {
			dead := at(1) + strconv.Itoa(2+2*rnd.IntN(120))
			for range 3 {
				s := stations[min(rnd.IntN(30), 23)] // one more often
				r.ports[0].Deliver(0, packetFrom(s, dead, 9))
			}
		}
		step()
		answer()
		pass(neigh.MaxSolicit*neigh.RetransTimer - 4*time.Millisecond)
		r.ports[0].Deliver(0, questionOf(macH, at(0)+"3", "198.18.0.205"))
		pass(2 * time.Millisecond)
		r.ports[0].Deliver(0, questionOf(macH, stations[23], "198.18.0.205"))
		for range 50 {
			pass(time.Millisecond)
			answer()
		}
		r.took(1)
		r.ports[0].Deliver(0, packetTo(known, 7))
		pass(2 * time.Millisecond)
		answer()
		pass(20 * time.Millisecond)
		got := r.took(1)
		if n := len(slices.DeleteFunc(slices.Clone(got), func(s string) bool { return !strings.HasPrefix(s, "packet 7 ") })); n != 1 {
			t.Fatalf("%v: a neighbor that answers got %d packets of 1: %q", r.at, n, got)
		}
		for _, s := range r.took(0) {
			if strings.HasPrefix(s, "packet 3 ") {
				errors++
			}
		}
	}
	if errors == 0 {
		t.Error("nobody was told anything")
	}
	pass(10 * time.Second)
	for port := range r.ports {
		if now, _ := r.Parked(port); now != 0 {
			t.Errorf("port %d: %d packets wait at rest", port, now)
		}
	}
	if len(r.lot.queues) > 0 || r.lot.size > 0 {
		t.Errorf("%d queues and %d bytes at rest", len(r.lot.queues), r.lot.size)
	}
	r.accounted()
}

// TestFlushedLosesNone: the system forgets a neighbor again and again while packets
// come, and tells so in any parts.
func TestFlushedLosesNone(t *testing.T) {
	r := newRig(t, func(s *Spec) { s.Ports[1].Host, s.Ports[1].Source = true, neigh.System })
	var sys system
	r.FollowSystem(&sys)
	rnd := rand.New(rand.NewPCG(3, 4))
	k := neigh.Key{Port: 1, Addr: netip.MustParseAddr("198.19.0.99")}
	failed := neigh.Update{Entry: neigh.Entry{Key: k, State: neigh.Failed}}
	gone := neigh.Update{Entry: neigh.Entry{Key: k}, Gone: true}
	reachable := neigh.Update{Entry: neigh.Entry{Key: k, MAC: macH, State: neigh.Reachable}}
	known, sent := false, 0
	tell := func(all ...neigh.Update) {
		for _, u := range all {
			sys.news = []neigh.Update{u}
			r.follow()
			r.settle(false)
			if rnd.IntN(2) == 0 {
				r.deliver(0, packetTo("198.19.0.99", byte(sent)))
				sent++
			}
		}
	}
	var got []byte
	for range 3000 {
		r.at += time.Duration(rnd.IntN(2000)) * time.Microsecond
		if rnd.IntN(10) == 0 {
			tell([][]neigh.Update{{failed, gone}, {gone}, {failed, gone, gone}}[rnd.IntN(3)]...)
			known = false
		}
		r.deliver(0, packetTo("198.19.0.99", byte(sent)))
		sent++
		if len(sys.asked) > 0 && !known && rnd.IntN(2) == 0 {
			sys.asked, known = nil, true
			tell(reachable)
		}
		for _, f := range r.sent[1] {
			got = append(got, f[wire.EthernetLen+wire.IPv4Len])
		}
		r.sent[1] = nil
	}
	tell(reachable)
	r.pass(time.Second)
	for _, f := range r.sent[1] {
		got = append(got, f[wire.EthernetLen+wire.IPv4Len])
	}
	if len(got) != sent {
		now, discarded := r.Parked(0)
		t.Fatalf("%d of %d packets left, %d wait, %d given up", len(got), sent, now, discarded)
	}
	for i, n := range got {
		if n != byte(i) {
			t.Fatalf("packet %d left as number %d", n, i)
		}
	}
	r.accounted()
}
