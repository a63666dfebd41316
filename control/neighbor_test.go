package control

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"nmfwd/test/frame"

	"nmfwd/arp"
	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
	"nmfwd/ndp"
	"nmfwd/neigh"
	"nmfwd/wire"
)

var (
	macH = wire.MACOf([]byte{2, 0, 0, 0, 0, 0x63})
	macI = wire.MACOf([]byte{2, 0, 0, 0, 0, 0x64})
)

// A clock is stepped by a test.
type clock struct{ at time.Duration }

func (k *clock) read() time.Duration { return k.at }

// A rig is a control over two ports in memory whose time is the test's.
type rig struct {
	*testing.T
	*Control
	clock
	ports [2]*memport.Port
	sent  [2][][]byte // since the last look
}

// newRig has the lab without static neighbors, but for those of port A.
func newRig(t *testing.T, change func(*Spec)) *rig {
	t.Helper()
	s := labSpec()
	s.Neighbors = s.Neighbors[:2]
	if change != nil {
		change(s)
	}
	r := &rig{T: t}
	r.Control, r.ports = lab(t, s)
	r.now = r.read
	clear(r.announced)
	return r
}

// step lets workers and control do what there is to do.
func (r *rig) step() {
	for range 4 {
		r.router.Workers()[0].Step(int64(r.at))
		r.HandlePunts()
	}
	r.router.Workers()[0].Step(int64(r.at))
	for i, p := range r.ports {
		r.sent[i] = append(r.sent[i], p.Transmit(0)...)
	}
}

// pass lets the time pass, in steps that are short for neighbors.
func (r *rig) pass(d time.Duration) {
	for end := r.at + d; r.at < end; {
		r.at = min(end, r.at+100*time.Millisecond)
		r.expire()
		r.step()
	}
}

// deliver gives frames to a port and handles them.
func (r *rig) deliver(port int, frames ...[]byte) {
	for _, f := range frames {
		r.ports[port].Deliver(0, f)
	}
	r.step()
}

// took returns what a port sent since the last look, described.
func (r *rig) took(port int) []string {
	var s []string
	for _, f := range r.sent[port] {
		s = append(s, describe(f))
	}
	r.sent[port] = nil
	return s
}

func (r *rig) want(what string, port int, want ...string) {
	r.Helper()
	if got := r.took(port); !slices.Equal(got, want) {
		r.Errorf("%s: port %d sent %q, want %q", what, port, got, want)
	}
}

// describe names a frame: what is asked whom, or the packet's number and where
// it goes.
func describe(f []byte) string {
	eth := wire.Ethernet(f)
	m := eth.Destination().Bytes()
	to := hex.EncodeToString(m[:])
	switch p := f[wire.EthernetLen:]; {
	case eth.Type() == wire.TypeARP && arp.Packet(p).Op() == arp.OpRequest:
		a := arp.Packet(p)
		return fmt.Sprintf("who has %v tell %v to %s", a.Target(), a.Sender(), to)
	case eth.Type() == wire.TypeARP:
		return fmt.Sprintf("reply %v to %s", arp.Packet(p).Sender(), to)
	case eth.Type() == wire.TypeIPv6 && ndp.Packet(p).Valid():
		n := ndp.Packet(p)
		return fmt.Sprintf("%v %v from %v to %s", n.Type(), n.Target(), n.Source(), to)
	case eth.Type() == wire.TypeIPv4:
		return fmt.Sprintf("packet %d ttl %d to %s", p[wire.IPv4Len], wire.IPv4(p).TTL(), to)
	}
	return fmt.Sprintf("packet %d ttl %d to %s", f[wire.EthernetLen+wire.IPv6Len], f[wire.EthernetLen+7], to)
}

// packetTo returns a frame for port A with the number n in its payload.
func packetTo(dst string, n byte) []byte { return packetFrom("198.18.10.1", dst, n) }

func packetFrom(src, dst string, n byte) []byte {
	d := netip.MustParseAddr(dst)
	if d.Is4() {
		b := frame.UDP4(macA, g1, netip.MustParseAddr(src), d, 64, 64)
		b[wire.EthernetLen+wire.IPv4Len] = n
		return b
	}
	b := make([]byte, 64)
	wire.PutEthernet(b, macA, g1, wire.TypeIPv6)
	ip := b[wire.EthernetLen:]
	copy(ip, []byte{0x60, 0, 0, 0, 0, 10, 59, 64})
	s, a := netip.MustParseAddr("2001:2::1:1").As16(), d.As16()
	copy(ip[8:], s[:])
	copy(ip[24:], a[:])
	ip[wire.IPv6Len] = n
	return b
}

func arpReply(mac wire.MAC, addr string) []byte {
	b := make([]byte, 60)
	arp.Reply(b, macB, mac, netip.MustParseAddr(addr), netip.MustParseAddr("198.19.0.205"))
	return b
}

func questionOf(mac wire.MAC, addr, target string) []byte {
	b := make([]byte, 60)
	arp.Request(b, wire.Broadcast, mac, netip.MustParseAddr(addr), netip.MustParseAddr(target))
	return b
}

func advert(mac wire.MAC, addr string) []byte {
	b := make([]byte, ndp.FrameLen)
	n := ndp.Answer(b, macB, mac, ndp.LinkLocal(macB), netip.MustParseAddr(addr), false)
	return b[:n]
}

func hexOf(m wire.MAC) string {
	b := m.Bytes()
	return hex.EncodeToString(b[:])
}

// accounted checks that every packet has exactly one end.
func (r *rig) accounted() {
	r.Helper()
	var s dataplane.Snapshot
	r.router.Snapshot(&s)
	for i := range s.Ports {
		q := &s.Ports[i].RX[0]
		ends := q.Forwarded4 + q.Forwarded6 + q.ToHost
		for _, n := range q.Punted {
			ends += n
		}
		for _, n := range q.Dropped {
			ends += n
		}
		if q.Packets != ends {
			r.Errorf("port %d: %d packets came in, %d ended", i, q.Packets, ends)
		}
	}
}

// TestResolves: the first packets for a neighbor wait and leave in order before
// later ones, whether it is the destination or a gateway.
func TestResolves(t *testing.T) {
	for _, x := range []struct {
		name, dst, neighbor, ask string
		answer                   []byte
	}{
		{"on the link", "198.19.0.99", "198.19.0.99", "who has 198.19.0.99 tell 198.19.0.205 to ffffffffffff", arpReply(macH, "198.19.0.99")},
		{"through a gateway", "198.19.10.1", "198.19.0.203", "who has 198.19.0.203 tell 198.19.0.205 to ffffffffffff", arpReply(macH, "198.19.0.203")},
		{"on the link, IPv6", "2001:2:0:8000::99", "2001:2:0:8000::99", "neighbor solicitation 2001:2:0:8000::99 from 2001:2:0:8000::205 to 3333ff000099", advert(macH, "2001:2:0:8000::99")},
		{"through a gateway, IPv6", "2001:2:0:8001::1", "2001:2:0:8000::203", "neighbor solicitation 2001:2:0:8000::203 from 2001:2:0:8000::205 to 3333ff000203", advert(macH, "2001:2:0:8000::203")},
	} {
		t.Run(x.name, func(t *testing.T) {
			r := newRig(t, nil)
			r.deliver(0, packetTo(x.dst, 1))
			r.want("first", 1, x.ask)
			if n, _ := r.Parked(0); n != 1 {
				t.Errorf("%d packets wait, want 1", n)
			}
			r.deliver(0, packetTo(x.dst, 2), packetTo(x.dst, 3))
			r.want("more", 1)
			r.ports[0].Deliver(0, packetTo(x.dst, 4)) // is seen after the answer was handled
			r.ports[1].Deliver(0, x.answer)
			w := r.router.Workers()[0]
			w.Step(int64(r.at)) // both: 4 by the old state
			r.ports[0].Deliver(0, packetTo(x.dst, 5))
			r.HandlePunts()
			r.ports[0].Deliver(0, packetTo(x.dst, 6))
			r.step()
			r.deliver(0, packetTo(x.dst, 7))
			var want []string
			for n := 1; n <= 7; n++ {
				want = append(want, fmt.Sprintf("packet %d ttl 63 to %s", n, hexOf(macH)))
			}
			r.want("resolved", 1, want...)
			for i, f := range [][]byte{packetTo(x.dst, 8)} {
				r.deliver(0, f)
				if len(r.sent[1]) != 1 || wire.Ethernet(r.sent[1][i]).Source() != macB {
					t.Errorf("got % x", r.sent[1])
				}
			}
			e, _ := r.Neighbors().Lookup(1, netip.MustParseAddr(x.neighbor))
			if e.State != neigh.Reachable {
				t.Errorf("got %v, want a reachable neighbor", e)
			}
			if now, gone := r.Parked(0); now != 0 || gone != 0 {
				t.Errorf("%d packets wait, %d given up, want none", now, gone)
			}
			r.accounted()
		})
	}
}

// TestLate: a packet that the worker gave to control by the old state leaves before
// later ones when control sees it before the new one is published, and is not lost
// when it sees it afterwards.
func TestLate(t *testing.T) {
	r := newRig(t, nil)
	const dst = "198.19.0.99"
	w := r.router.Workers()[0]
	r.deliver(0, packetTo(dst, 1))
	r.ports[1].Deliver(0, arpReply(macH, dst))
	w.Step(0)
	r.router.Punts(r.punt)
	r.ports[0].Deliver(0, packetTo(dst, 2))
	w.Step(0)
	r.settle(true)
	r.ports[0].Deliver(0, packetTo(dst, 3))
	r.step()
	r.want("all", 1, "who has 198.19.0.99 tell 198.19.0.205 to ffffffffffff", "packet 1 ttl 63 to "+hexOf(macH), "packet 2 ttl 63 to "+hexOf(macH), "packet 3 ttl 63 to "+hexOf(macH))
	r.punt(dataplane.Punt{Kind: dataplane.PuntNeighbor, Frame: packetTo(dst, 4), Neighbor: netip.MustParseAddr(dst), Out: 1})
	r.step()
	r.want("after all", 1, "packet 4 ttl 63 to "+hexOf(macH))
	if now, gone := r.Parked(0); now != 0 || gone != 0 {
		t.Errorf("%d packets wait, %d given up, want none", now, gone)
	}
	r.accounted()
}

// TestAnswersWhilePublishing: what is found out from frames that come while a state
// is made is published as well.
func TestAnswersWhilePublishing(t *testing.T) {
	r := newRig(t, nil)
	w := r.router.Workers()[0]
	r.deliver(0, packetTo("198.19.0.98", 1), packetTo("198.19.0.99", 2), packetTo("198.19.0.100", 3))
	r.took(1)
	r.ports[1].Deliver(0, arpReply(macH, "198.19.0.98"))
	w.Step(0)
	r.router.Punts(r.punt)
	for _, f := range [][]byte{arpReply(macH, "198.19.0.99"), arpReply(macI, "198.19.0.98"), arpReply(macH, "198.19.0.100")} {
		r.ports[1].Deliver(0, f)
	}
	w.Step(0)
	r.settle(true)
	r.step()
	got := r.took(1)
	slices.Sort(got) // they are for three neighbors
	if want := []string{"packet 1 ttl 63 to " + hexOf(macH), "packet 2 ttl 63 to " + hexOf(macH), "packet 3 ttl 63 to " + hexOf(macH)}; !slices.Equal(got, want) {
		t.Errorf("found: sent %q, want %q", got, want)
	}
	r.deliver(0, packetTo("198.19.0.98", 4), packetTo("198.19.0.99", 5), packetTo("198.19.0.100", 6))
	r.want("published", 1, "packet 4 ttl 63 to "+hexOf(macI), "packet 5 ttl 63 to "+hexOf(macH), "packet 6 ttl 63 to "+hexOf(macH))
	r.accounted()
}

// TestUnreachable: a neighbor that does not answer is asked three times, and what
// waits for it is given up. With the next packet it is asked again, once a second.
func TestUnreachable(t *testing.T) {
	r := newRig(t, nil)
	const ask = "who has 198.19.0.99 tell 198.19.0.205 to ffffffffffff"
	r.deliver(0, packetTo("198.19.0.99", 1))
	r.pass(2900 * time.Millisecond)
	r.want("asked", 1, ask, ask, ask)
	r.pass(200 * time.Millisecond)
	if now, gone := r.Parked(0); now != 0 || gone != 1 {
		t.Errorf("%d packets wait, %d given up, want 0 and 1", now, gone)
	}
	for range 100 {
		r.deliver(0, packetTo("198.19.0.99", 2))
		r.pass(100 * time.Millisecond)
	}
	if n := len(r.took(1)); n < 9 || n > 11 {
		t.Errorf("asked %d times in 10 s, want once a second", n)
	}
	r.pass(4 * time.Second)
	if now, gone := r.Parked(0); now != 0 || gone != 101 {
		t.Errorf("%d packets wait, %d given up, want 0 and 101", now, gone)
	}
	r.accounted()
}

// TestAges: a neighbor that is used is verified and stays, one that is gone is
// given up and found at its new place.
func TestAges(t *testing.T) {
	r := newRig(t, nil)
	const dst = "198.19.0.99"
	r.deliver(0, packetTo(dst, 1))
	r.deliver(1, arpReply(macH, dst))
	r.took(1)
	state := func() string {
		e, _ := r.Neighbors().Lookup(1, netip.MustParseAddr(dst))
		return e.State.String()
	}
	r.pass(46 * time.Second)
	if got := state(); got != "stale" {
		t.Fatalf("got %s, want stale", got)
	}
	r.want("unused", 1)
	r.deliver(0, packetTo(dst, 2), packetTo(dst, 3))
	r.want("used", 1, "packet 2 ttl 63 to "+hexOf(macH), "packet 3 ttl 63 to "+hexOf(macH))
	if got := state(); got != "delay" {
		t.Errorf("got %s, want delay", got)
	}
	r.pass(5100 * time.Millisecond)
	verify := "who has 198.19.0.99 tell 198.19.0.205 to " + hexOf(macH)
	r.want("verified", 1, verify)
	r.deliver(1, arpReply(macH, dst))
	if got := state(); got != "reachable" {
		t.Errorf("got %s, want reachable", got)
	}
	r.pass(46 * time.Second)
	r.deliver(0, packetTo(dst, 4))
	r.took(1)
	r.pass(7900 * time.Millisecond)
	r.want("no answer", 1, verify, verify, verify)
	r.deliver(0, packetTo(dst, 5))
	r.want("still used", 1, "packet 5 ttl 63 to "+hexOf(macH))
	r.pass(200 * time.Millisecond)
	r.deliver(0, packetTo(dst, 6))
	r.want("given up", 1, "who has 198.19.0.99 tell 198.19.0.205 to ffffffffffff")
	r.deliver(1, arpReply(macI, dst))
	r.want("found again", 1, "packet 6 ttl 63 to "+hexOf(macI))
	r.accounted()
}

// TestHears: who asks for our address is known without being asked, and moves
// when it says so. Nobody else gets into the table.
func TestHears(t *testing.T) {
	r := newRig(t, nil)
	to := func(n byte, m wire.MAC) string { return fmt.Sprintf("packet %d ttl 63 to %s", n, hexOf(m)) }
	r.deliver(1, questionOf(macH, "198.19.0.99", "198.19.0.205"))
	r.want("request", 1, "reply 198.19.0.205 to "+hexOf(macH))
	r.deliver(0, packetTo("198.19.0.99", 1))
	r.want("packet", 1, to(1, macH))
	r.deliver(1, questionOf(macI, "198.19.0.99", "198.19.0.99")) // it announces itself
	r.deliver(0, packetTo("198.19.0.99", 2))
	r.want("moved", 1, to(2, macI))
	r.deliver(1, questionOf(macI, "198.19.0.100", "198.19.0.100"), arpReply(macI, "198.19.0.101"), questionOf(macI, "203.0.113.5", "198.19.0.205"))
	if got := r.Neighbors().Len(); got != 3 { // and the two static ones
		t.Errorf("%d neighbors, want 3: %v", got, r.Neighbors().All())
	}
}

// TestGateways: gateways are asked for at once and kept, a reload keeps what was
// learned, and static entries take its place.
func TestGateways(t *testing.T) {
	r := newRig(t, nil)
	r.neighbors.Keep(r.now(), r.keep)
	r.step()
	got := r.took(1)
	slices.Sort(got)
	want := []string{"neighbor solicitation 2001:2:0:8000::203 from 2001:2:0:8000::205 to 3333ff000203", "who has 198.19.0.203 tell 198.19.0.205 to ffffffffffff"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	r.want("static ones", 0)
	r.deliver(1, arpReply(macH, "198.19.0.203"))
	mac := func() string {
		a := r.router.State().FIB.Lookup(netip.MustParseAddr("198.19.10.1"))
		return fmt.Sprint(a.Action, " ", hex.EncodeToString(a.Head[:6]))
	}
	if got, want := mac(), "forward "+hexOf(macH); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	reload := func(s *Spec) {
		tab, err := compile(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.use(tab); err != nil {
			t.Fatal(err)
		}
		r.neighbors.Keep(r.now(), r.keep)
		r.step()
	}
	s := labSpec()
	s.Neighbors = s.Neighbors[:2]
	reload(s)
	if got, want := mac(), "forward "+hexOf(macH); got != want {
		t.Errorf("after a reload: got %s, want %s", got, want)
	}
	reload(labSpec())
	if got, want := mac(), "forward "+hexOf(g2); got != want {
		t.Errorf("static: got %s, want %s", got, want)
	}
	r.deliver(1, arpReply(macH, "198.19.0.203"))
	if got, want := mac(), "forward "+hexOf(g2); got != want || r.Neighbors().Conflicts(1, neigh.StaticConflict) != 1 {
		t.Errorf("static, contradicted: got %s, want %s and a conflict", got, want)
	}
	reload(s)
	if got, want := mac(), "resolve 000000000000"; got != want {
		t.Errorf("static no more: got %s, want %s", got, want)
	}
}

// TestLinkDown: nobody is asked for on a link that is down, and what did not
// answer there is asked for again when it comes back.
func TestLinkDown(t *testing.T) {
	r := newRig(t, func(s *Spec) { s.Neighbors = nil })
	r.neighbors.Keep(r.now(), r.keep)
	r.pass(4 * time.Second) // the gateways do not answer
	r.took(1)
	link := func(up bool) {
		r.ports[1].SetLink(up)
		r.watchLinks()
		clear(r.announced)
		r.step()
	}
	link(false)
	r.deliver(0, packetTo("198.19.0.99", 1), packetTo("2001:2:0:8000::99", 2), packetTo("198.19.10.1", 3))
	r.want("down", 1)
	var s dataplane.Snapshot
	r.router.Snapshot(&s)
	if n := s.Ports[0].RX[0].Dropped[dataplane.DropLinkDown]; n != 3 {
		t.Errorf("%d packets dropped for a link that is down, want 3", n)
	}
	link(true)
	got := r.took(1)
	slices.Sort(got)
	want := []string{"neighbor solicitation 2001:2:0:8000::203 from 2001:2:0:8000::205 to 3333ff000203", "who has 198.19.0.203 tell 198.19.0.205 to ffffffffffff"}
	if !slices.Equal(got, want) {
		t.Errorf("up again: got %q, want %q", got, want)
	}
	r.deliver(0, packetTo("198.19.0.99", 4))
	r.want("another neighbor", 1, "who has 198.19.0.99 tell 198.19.0.205 to ffffffffffff")
	r.accounted()
}

// TestLinkGone: the system forgets the neighbors of a link that goes down, and
// the link is seen to be down before that.
func TestLinkGone(t *testing.T) {
	r := newRig(t, func(s *Spec) { s.Ports[1].Host, s.Ports[1].Source = true, neigh.System })
	var sys system
	r.FollowSystem(&sys)
	u := neigh.Update{Entry: neigh.Entry{Key: neigh.Key{Port: 1, Addr: netip.MustParseAddr("198.19.0.99")}, MAC: macH, State: neigh.Reachable}}
	sys.news = []neigh.Update{u}
	r.follow()
	r.step()
	r.ports[1].SetLink(false)
	u.Gone = true
	sys.news = []neigh.Update{u}
	r.follow()
	r.step()
	r.deliver(0, packetTo("198.19.0.99", 1))
	var s dataplane.Snapshot
	r.router.Snapshot(&s)
	if n := s.Ports[0].RX[0].Dropped[dataplane.DropLinkDown]; n != 1 || len(sys.asked) != 0 {
		t.Errorf("%d packets dropped for a link that is down, %d questions, want 1 and 0", n, len(sys.asked))
	}
}

// TestAnnounces: addresses are announced twice where the router owns them, and
// again when the link comes back.
func TestAnnounces(t *testing.T) {
	r := newRig(t, func(s *Spec) { s.Ports[1].Host = true })
	r.announceSoon(0, false)
	r.announceSoon(1, true)
	r.pass(time.Minute)
	once := []string{
		"neighbor advertisement " + ndp.LinkLocal(macA).String() + " from " + ndp.LinkLocal(macA).String() + " to 333300000001",
		"who has 198.18.0.205 tell 198.18.0.205 to ffffffffffff",
		"neighbor advertisement 2001:2::205 from 2001:2::205 to 333300000001",
	}
	twice := append(slices.Clone(once), once...)
	r.want("start", 0, twice...)
	r.want("host", 1)
	for _, up := range []bool{false, true} {
		r.ports[0].SetLink(up)
		r.watchLinks()
	}
	r.pass(time.Minute)
	r.want("link again", 0, twice...)
}

// A system says what a test makes it say.
type system struct {
	asked []neigh.Key
	news  []neigh.Update
}

func (s *system) Ready() <-chan struct{} { return nil }
func (s *system) Ask(k neigh.Key) error  { s.asked = append(s.asked, k); return nil }

func (s *system) Take(f func(neigh.Update)) {
	for _, u := range s.news {
		f(u)
	}
	s.news = nil
}

// TestSystem: on a port whose neighbors the system finds out, it is asked, and
// what it says is followed.
func TestSystem(t *testing.T) {
	r := newRig(t, func(s *Spec) { s.Ports[1].Host, s.Ports[1].Source = true, neigh.System })
	var sys system
	r.FollowSystem(&sys)
	k := neigh.Key{Port: 1, Addr: netip.MustParseAddr("198.19.0.99")}
	says := func(mac wire.MAC, s neigh.State) {
		sys.news = []neigh.Update{{Entry: neigh.Entry{Key: k, MAC: mac, State: s}}}
		r.follow()
		r.step()
	}
	r.deliver(0, packetTo("198.19.0.99", 1))
	if !slices.Equal(sys.asked, []neigh.Key{k}) {
		t.Errorf("asked for %v, want %v", sys.asked, k)
	}
	says(macH, neigh.Reachable)
	r.deliver(0, packetTo("198.19.0.99", 2))
	r.want("known", 1, "packet 1 ttl 63 to "+hexOf(macH), "packet 2 ttl 63 to "+hexOf(macH))
	says(macH, neigh.Stale)
	r.deliver(0, packetTo("198.19.0.99", 3))
	r.want("stale", 1, "packet 3 ttl 63 to "+hexOf(macH))
	if len(sys.asked) != 2 {
		t.Errorf("asked %d times, want twice", len(sys.asked))
	}
	says(0, neigh.Failed)
	r.deliver(0, packetTo("198.19.0.99", 4))
	r.want("failed", 1)
	if now, gone := r.Parked(0); now != 1 || gone != 0 || len(sys.asked) != 3 {
		t.Errorf("%d packets wait, %d given up, asked %d times, want 1, 0 and 3", now, gone, len(sys.asked))
	}
	r.pass(neigh.RetransTimer)
	says(0, neigh.Failed)
	if now, gone := r.Parked(0); now != 0 || gone != 1 {
		t.Errorf("no answer: %d packets wait, %d given up, want 0 and 1", now, gone)
	}
	r.accounted()
}

// TestScanFlood sweeps two networks faster than control answers for a second:
// known neighbors and ARP are served as before, and a neighbor that another
// station wants is found.
func TestScanFlood(t *testing.T) {
	r := newRig(t, func(s *Spec) {
		s.MaxNeighbors = 65536
		s.Ports[1].Addrs = prefixes("198.19.0.205/16", "2001:2:0:8000::205/64")
	})
	r.deliver(1, questionOf(macH, "198.19.0.99", "198.19.0.205"))
	r.took(1)
	asked, good, replies, found := 0, 0, 0, false
	const steps = 5000
	for i := range steps {
		r.at += 200 * time.Microsecond
		var frames [][]byte
		for n := range 20 {
			x := i*20 + n
			frames = append(frames, packetFrom("198.18.66.66", fmt.Sprintf("198.19.%d.%d", x>>8&255, x&255), 1), packetTo(fmt.Sprintf("2001:2:0:8000:1::%x:%x", x>>16, x&0xffff), 1))
		}
		if i%100 == 0 {
			frames = append(frames, packetTo("198.19.0.99", 7))
			r.ports[1].Deliver(0, questionOf(macI, "198.19.0.98", "198.19.0.205"))
		}
		if i == steps/2 {
			frames = append(frames, packetFrom("198.18.10.9", "198.19.255.7", 9))
		}
		for _, f := range frames {
			r.ports[0].Deliver(0, f)
		}
		r.expire()
		r.step()
		for _, s := range r.took(1) {
			switch {
			case strings.HasPrefix(s, "packet 7"):
				good++
			case strings.HasPrefix(s, "reply"):
				replies++
			case strings.HasPrefix(s, "who has 198.19.255.7 "):
				r.deliver(1, arpReply(macI, "198.19.255.7"))
			case strings.HasPrefix(s, "packet 9"):
				found = true
			case strings.HasPrefix(s, "who has"), strings.HasPrefix(s, "neighbor solicitation"):
				asked++
			}
		}
	}
	if good != steps/100 || replies != steps/100 || !found {
		t.Errorf("%d packets to a known neighbor and %d replies of %d, a new one found: %t", good, replies, steps/100, found)
	}
	t.Logf("%d questions for %d addresses in a second", asked, steps*40)
	if asked > 1000 {
		t.Errorf("%d questions in a second", asked)
	}
	r.accounted()
}

// TestSources: questions come from the port's address on the neighbor's network.
func TestSources(t *testing.T) {
	c, _ := lab(t, labSpec())
	c.spec.Ports[0].Addrs = prefixes("198.18.0.205/24", "10.0.0.1/24", "2001:2::205/64")
	c.spec.Ports[1].Addrs = nil
	c.spec.Ports[0].Host = true
	for _, x := range []struct {
		port uint16
		to   string
		want string
	}{
		{0, "198.18.0.9", "198.18.0.205"},
		{0, "10.0.0.9", "10.0.0.1"},
		{0, "192.0.2.1", "198.18.0.205"},
		{1, "192.0.2.1", "198.18.0.205"},
		{0, "2001:2::9", "2001:2::205"},
		{0, "fe80::9", "2001:2::205"},
		{1, "2001:2::9", ndp.LinkLocal(macB).String()},
	} {
		if got, ok := c.asker(neigh.Key{Port: x.port, Addr: netip.MustParseAddr(x.to)}); !ok || got.String() != x.want {
			t.Errorf("port %d, %s: got %v, %t, want %s", x.port, x.to, got, ok, x.want)
		}
	}
	c.spec.Ports[0].Addrs = nil
	if got, ok := c.asker(neigh.Key{Port: 0, Addr: netip.MustParseAddr("192.0.2.1")}); !ok || got != netip.IPv4Unspecified() {
		t.Errorf("no address: got %v, %t, want 0.0.0.0", got, ok)
	}
	if _, ok := c.asker(neigh.Key{Port: 0, Addr: netip.MustParseAddr("fe80::1")}); ok {
		t.Error("no IPv6 address of a port with a host: got one")
	}
}
