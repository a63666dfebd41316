//go:build integration && linux

package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nmfwd/test/lab/apu2"
	"nmfwd/test/netns"
)

// Paths are three ways between two routers: a link, by a kernel that forwards,
// and by two.
//
//	source         r1                                               r2         sink
//	s0 .2 --0-- .1 r1a  r1b .1 ---------------1--------------- .2 r2b  r2a .1 --2-- .2 k0
//	                    r1c .1 --3-- .2   m1   .1 --4--------- .2 r2c
//	                    r1d .1 --5-- .2 m2 .1 --6-- .2 m3 .1 --7-- .2 r2d
//
// Network N is 10.7.N.0/24 and 2001:db8:7:N::/64. Nobody has a static neighbor.
// Hop limits tell which way a packet went.
type paths struct {
	*testing.T
	ends    [2]*netns.Namespace // source, sink
	addrs   [2][2]netip.Addr    // of them, by family
	spaces  [2]*netns.Namespace // of the routers
	routers [2]*apu2.NMFWD
	all     []*netns.Namespace
}

// ways are the networks that the ways consist of.
var ways = [][]int{{1}, {3, 4}, {5, 6, 7}}

// direct is what the first way leaves of a hop limit of 64; each other one leaves
// one less.
const direct = 62

func newPaths(t *testing.T) *paths {
	t.Helper()
	p := &paths{T: t}
	space := func(name string) *netns.Namespace {
		ns := netns.ForTest(t, name)
		p.must(ns.Sysctl("net/ipv6/conf/default/keep_addr_on_down", "1"))
		p.all = append(p.all, ns)
		return ns
	}
	p.ends = [2]*netns.Namespace{space("source"), space("sink")}
	p.spaces = [2]*netns.Namespace{space("r1"), space("r2")}
	join := func(network int, a *netns.Namespace, an string, b *netns.Namespace, bn string) {
		t.Helper()
		addrs := func(n int) []netip.Prefix { return []netip.Prefix{net4(network, n), net6(network, n)} }
		p.must(netns.Join(netns.Port{NS: a, Name: an, Addrs: addrs(1)}, netns.Port{NS: b, Name: bn, Addrs: addrs(2)}))
	}
	route := func(ns *netns.Namespace, network, by, gw int) {
		t.Helper()
		p.must(ns.AddRoute(net4(network, 0).Masked(), net4(by, gw).Addr()))
		p.must(ns.AddRoute(net6(network, 0).Masked(), net6(by, gw).Addr()))
	}
	for i, port := range []string{"s0", "k0"} {
		join(2*i, p.spaces[i], fmt.Sprintf("r%da", i+1), p.ends[i], port)
		p.addrs[i] = [2]netip.Addr{net4(2*i, 2).Addr(), net6(2*i, 2).Addr()}
		route(p.ends[i], 2-2*i, 2*i, 1)
		p.must(p.ends[i].SetFeature(port, netns.TXChecksum, false))
		// Flows are told by their ports alone: the same ones take the same way in
		// each run.
		p.must(p.ends[i].Sysctl("net/ipv6/auto_flowlabels", "0"))
	}
	for way, networks := range ways {
		name := fmt.Sprintf("%c", 'b'+way)
		row := []*netns.Namespace{p.spaces[0]}
		for i := range networks[1:] {
			m := space(fmt.Sprintf("m%d", way+i))
			p.must((&apu2.Lab{Router: m}).Forward(true))
			row = append(row, m)
		}
		row = append(row, p.spaces[1])
		for i, network := range networks {
			left, right := "right", "left"
			if i == 0 {
				left = "r1" + name
			}
			if i == len(networks)-1 {
				right = "r2" + name
			}
			join(network, row[i], left, row[i+1], right)
		}
		for i, m := range row[1 : len(row)-1] {
			route(m, 0, networks[i], 1)
			route(m, 2, networks[i+1], 2)
		}
	}
	for i := range p.spaces {
		p.start(i)
	}
	return p
}

// start starts router i.
func (p *paths) start(i int) {
	p.Helper()
	var s strings.Builder
	fmt.Fprintf(&s, "listen metrics %s\n", apu2.MetricsAddr)
	fmt.Fprintf(&s, "port r%da %v %v\n", i+1, net4(2*i, 1), net6(2*i, 1))
	var via [2]string
	for way, networks := range ways {
		network := networks[i*(len(networks)-1)]
		fmt.Fprintf(&s, "port r%d%c %v %v\n", i+1, 'b'+way, net4(network, 1+i), net6(network, 1+i))
		via[0] += fmt.Sprintf(" via %v", net4(network, 2-i).Addr())
		via[1] += fmt.Sprintf(" via %v", net6(network, 2-i).Addr())
	}
	fmt.Fprintf(&s, "route %v%s\nroute %v%s\n", net4(2-2*i, 0).Masked(), via[0], net6(2-2*i, 0).Masked(), via[1])
	l := &apu2.Lab{Router: p.spaces[i]}
	p.must(l.Forward(false))
	file := filepath.Join(p.TempDir(), "routes.conf")
	p.must(os.WriteFile(file, []byte(s.String()), 0o644))
	ctx, cancel := context.WithTimeout(p.Context(), 20*time.Second)
	defer cancel()
	var err error
	p.routers[i], err = l.StartNMFWD(ctx, program, file, &logged{t: p.T})
	p.must(err)
	onFailure(p.T, p.spaces[i], p.routers[i])
}

func (p *paths) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// forwarded returns how many packets of a family router i has forwarded that came
// in by each way.
func (p *paths) forwarded(i, family int) (by [3]float64) {
	p.Helper()
	m, err := p.routers[i].Scrape(p.Context())
	p.must(err)
	for way := range by {
		by[way] = m.Sum("nmfwd_forwarded_packets_total", fmt.Sprintf(`device="r%d%c"`, i+1, 'b'+way), `family="`+families[family].ip+`"`)
	}
	return by
}

// full returns how many packets have found a ring, a queue or a socket full so far,
// as the routers and the kernels count them.
func (p *paths) full() (n float64) {
	p.Helper()
	for _, r := range p.routers {
		m, err := r.Scrape(p.Context())
		p.must(err)
		n += m.Sum("nmfwd_dropped_packets_total", `reason="tx_full"`) + m.Sum("nmfwd_ring_full_total")
	}
	for _, ns := range p.all {
		dropped, err := ns.Dropped()
		p.must(err)
		v4, err := snmp(ns, "Udp", "RcvbufErrors")
		p.must(err)
		v6, err := snmp6(ns, "Udp6RcvbufErrors")
		p.must(err)
		n += float64(dropped + v4 + v6)
	}
	return n
}

// stop ends the routers, whose packets must be accounted for, and which dropped
// packets for no other reasons.
func (p *paths) stop(reasons ...string) {
	p.Helper()
	for i, r := range p.routers {
		m, err := r.AtRest(p.Context())
		if err != nil {
			p.Error(err)
		}
		for reason, n := range m.By("reason", "nmfwd_dropped_packets_total") {
			if n > 0 && !slices.Contains(reasons, reason) {
				p.Errorf("router %d: %.0f packets dropped: %s", i+1, n, reason)
			}
		}
		if err := r.Stop(); err != nil {
			p.Error(err)
		}
	}
}

// A conversation is datagrams with the same addresses and ports, numbered.
type conversation struct {
	name      string
	direction int // 0 from source to sink, 1 the other one
	family    int
	conn      *net.UDPConn
	mu        sync.Mutex
	arrived   []arrival
}

// An arrival is a datagram that came to the end.
type arrival struct {
	n    uint32 // its number
	hops int    // what was left of its hop limit
}

// since returns what arrived behind the first n.
func (c *conversation) since(n int) []arrival {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.arrived[min(n, len(c.arrived)):])
}

func (c *conversation) count() int { return len(c.since(0)) }

// by returns the hop limit that the latest 20 arrivals behind the first n all
// have, or 0 if there are fewer or they differ.
func (c *conversation) by(n int) int {
	as := c.since(n)
	if len(as) < 20 {
		return 0
	}
	as = as[len(as)-20:]
	for _, a := range as {
		if a.hops != as[0].hops {
			return 0
		}
	}
	return as[0].hops
}

// conversations are in either direction and family. One sends tick after tick.
const (
	conversations = 12
	tick          = 10 * time.Millisecond
	firstPort     = 20000
	sinkPort      = 9000
)

// talk begins conversations, and returns them with what ends them.
func (p *paths) talk() (all []*conversation, end func()) {
	p.Helper()
	var running sync.WaitGroup
	var sockets []*net.UDPConn
	for d := range 2 {
		for f := range families {
			from, to := p.addrs[d][f], p.addrs[1-d][f]
			var in *net.UDPConn
			p.must(p.ends[1-d].Do(func() (err error) {
				if in, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, sinkPort))); err == nil {
					err = showHops(in, f)
				}
				return err
			}))
			sockets = append(sockets, in)
			var group []*conversation
			for i := range conversations {
				c := &conversation{name: fmt.Sprintf("%s of %v, port %d", families[f].name, from, firstPort+i), direction: d, family: f}
				p.must(p.ends[d].Do(func() (err error) {
					c.conn, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, uint16(firstPort+i))),
						net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, sinkPort)))
					return err
				}))
				sockets = append(sockets, c.conn)
				group = append(group, c)
			}
			all = append(all, group...)
			running.Go(func() { p.listen(in, group) })
		}
	}
	ctx, cancel := context.WithCancel(p.Context())
	running.Go(func() {
		t := time.NewTicker(tick)
		defer t.Stop()
		b := make([]byte, 100)
		for n := uint32(0); ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			binary.BigEndian.PutUint32(b, n)
			for _, c := range all {
				if _, err := c.conn.Write(b); err != nil {
					p.Errorf("%s: %v", c.name, err)
				}
			}
		}
	})
	ended := sync.OnceFunc(func() {
		cancel()
		for _, s := range sockets {
			s.Close()
		}
		running.Wait()
	})
	p.Cleanup(ended)
	return all, ended
}

// showHops has a socket tell the hop limits of what it receives, and keep some
// seconds of it.
func showHops(c *net.UDPConn, family int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		if family == 0 {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVTTL, 1)
		} else {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1)
		}
		set = errors.Join(set, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20))
	})
	return errors.Join(err, set)
}

// listen notes what arrives, until the socket is closed.
func (p *paths) listen(in *net.UDPConn, group []*conversation) {
	b, oob := make([]byte, 200), make([]byte, 100)
	for {
		n, oobn, _, from, err := in.ReadMsgUDPAddrPort(b, oob)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		i := int(from.Port()) - firstPort
		messages, err2 := unix.ParseSocketControlMessage(oob[:oobn])
		if err = errors.Join(err, err2); err != nil || n < 4 || i < 0 || i >= len(group) || len(messages) != 1 {
			p.Errorf("%d bytes from %v with %d control messages: %v", n, from, len(messages), err)
			return
		}
		c := group[i]
		c.mu.Lock()
		c.arrived = append(c.arrived, arrival{binary.BigEndian.Uint32(b), int(binary.NativeEndian.Uint32(messages[0].Data))})
		c.mu.Unlock()
	}
}

// TestPaths: flows of both families and directions are shared by three ways
// between two routers. One loses its link: its flows go by the others, and return
// with it. Those of the others stay where they are, in order and complete but for
// packets that are counted where a ring was full.
func TestPaths(t *testing.T) {
	const rounds = 4
	p := newPaths(t)
	all, end := p.talk()

	// wait waits until those flows that the direct way is for are all there, or none
	// is.
	wait := func(what string, list []*conversation, there bool, since []int) {
		t.Helper()
		start := time.Now()
		eventually(t, func() error {
			for i, c := range list {
				if got := c.by(since[i]); got == 0 || (got == direct) != there {
					return fmt.Errorf("%s: %s: %d datagrams arrived since then, with hop limit %d", what, c.name, c.count()-since[i], got)
				}
			}
			return nil
		})
		t.Logf("%s: seen in %d conversations after %v", what, len(list), time.Since(start).Round(time.Millisecond))
	}
	counts := func(list []*conversation) []int {
		var n []int
		for _, c := range list {
			n = append(n, c.count())
		}
		return n
	}

	// When all neighbors are known, all ways are in use by either family in either
	// direction.
	var moving, staying []*conversation
	eventually(t, func() error {
		moving, staying = nil, nil
		var users [2][2][3]int // by direction, family and way
		for _, c := range all {
			hops := c.by(0)
			if hops == 0 {
				return fmt.Errorf("%s: %d datagrams arrived", c.name, c.count())
			}
			users[c.direction][c.family][direct-hops]++
			if hops == direct {
				moving = append(moving, c)
			} else {
				staying = append(staying, c)
			}
		}
		for d := range users {
			for f, n := range users[d] {
				if slices.Min(n[:]) == 0 {
					return fmt.Errorf("%s from end %d: %v conversations by each way", families[f].name, d, n)
				}
			}
		}
		return nil
	})
	first, firstMoving, full := counts(staying), counts(moving), p.full()

	for round := range rounds {
		// By turns, a router's port is set down, and loses its carrier.
		ns, port := p.spaces[round%2], []string{"r1b", "r2b"}[round%2]
		from := counts(moving)
		p.must(ns.Down(port))
		wait(fmt.Sprintf("round %d, link down", round), moving, false, from)
		from = counts(moving)
		p.must(ns.Up(port))
		wait(fmt.Sprintf("round %d, link up", round), moving, true, from)
	}
	end()

	missing := 0
	for i, c := range staying {
		as := c.since(first[i])
		for j, a := range as {
			if a.hops != as[0].hops || j > 0 && a.n <= as[j-1].n {
				t.Errorf("%s: datagram %d arrived with hop limit %d, after %d with %d", c.name, a.n, a.hops, as[max(j, 1)-1].n, as[0].hops)
				break
			}
		}
		missing += int(as[len(as)-1].n-as[0].n) + 1 - len(as)
	}
	if missing > 0 {
		if n := p.full() - full; float64(missing) > n {
			t.Errorf("%d datagrams of conversations that stayed are missing, of which %.0f at most are accounted for", missing, n)
		}
		t.Logf("%d datagrams of conversations that stayed were lost where a ring was full", missing)
	}
	var most uint32
	for i, c := range moving {
		as := c.since(firstMoving[i])
		seen := make(map[uint32]bool)
		least, last := as[0].n, as[0].n
		for _, a := range as {
			if seen[a.n] {
				t.Errorf("%s: datagram %d arrived twice", c.name, a.n)
			}
			seen[a.n] = true
			least, last = min(least, a.n), max(last, a.n)
		}
		most = max(most, last-least+1-uint32(len(seen)))
	}
	t.Logf("%d conversations moved, of which one lost %d datagrams in %d failures, one every %v", len(moving), most, rounds, tick)
	if lost := time.Duration(most) * tick / rounds; lost > 5*time.Second {
		t.Errorf("a conversation has lost what was sent in %v of each failure", lost)
	}
	p.stop("link_down", "no_neighbor", "tx_full", "multicast", "link_local")
}

// TestPathsOfFragments: all fragments of a datagram take one way, and each way is
// that of some addresses.
func TestPathsOfFragments(t *testing.T) {
	p := newPaths(t)
	const size, fragments, addresses = 4000, 3, 12
	for f, fam := range families {
		var by [2][3]int // datagrams by router and way
		for i := range addresses {
			a := []netip.Prefix{net4(2, 10+i), net6(2, 10+i)}[f]
			p.must(p.ends[1].AddAddr("k0", a))
			eventually(t, func() error { return pingOnce(p.ends[0], a.Addr(), time.Second) })
			lucky(t, func() error {
				var before [2][3]float64
				for r := range before {
					before[r] = p.forwarded(r, f)
				}
				p.must(p.exchange(a.Addr(), size))
				// Router 1 sees the answer, router 2 the question.
				var ways [2]int
				for r := range p.routers {
					var n [3]float64
					eventually(t, func() error {
						n = p.forwarded(r, f)
						sum := 0.0
						for way := range n {
							n[way] -= before[r][way]
							sum += n[way]
						}
						if sum < fragments {
							return fmt.Errorf("%s, %v: router %d has forwarded %v of %d fragments", fam.name, a.Addr(), r+1, n, fragments)
						}
						return nil
					})
					ways[r] = slices.Index(n[:], fragments)
					switch sum := n[0] + n[1] + n[2]; {
					case sum > fragments:
						return fmt.Errorf("%s, %v: %v packets came to router %d, the reply to a ping that was late among them", fam.name, a.Addr(), n, r+1)
					case ways[r] < 0:
						t.Errorf("%s, %v: %v fragments came to router %d by each way, want all %d by one", fam.name, a.Addr(), n, r+1, fragments)
						return nil
					}
				}
				for r, way := range ways {
					by[r][way]++
				}
				return nil
			})
		}
		for r, n := range by {
			if slices.Min(n[:]) == 0 {
				t.Errorf("%s to router %d: %v datagrams by each way, want some by all", fam.name, r+1, n)
			}
		}
		t.Logf("%s: datagrams to the routers by each way: %v", fam.name, by)
	}
	p.stop("no_neighbor", "multicast", "link_local")
}

// exchange sends a datagram to an address of the sink, which sends it back.
func (p *paths) exchange(a netip.Addr, size int) error {
	var there, here *net.UDPConn
	err := p.ends[1].Do(func() (err error) {
		there, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, sinkPort)))
		return err
	})
	if err != nil {
		return err
	}
	defer there.Close()
	err = p.ends[0].Do(func() (err error) {
		here, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, sinkPort)))
		return err
	})
	if err != nil {
		return err
	}
	defer here.Close()
	deadline := time.Now().Add(10 * time.Second)
	if err := errors.Join(there.SetDeadline(deadline), here.SetDeadline(deadline)); err != nil {
		return err
	}
	if _, err := here.Write(make([]byte, size)); err != nil {
		return err
	}
	b := make([]byte, size+1)
	n, from, err := there.ReadFromUDPAddrPort(b)
	if err != nil {
		return fmt.Errorf("at the sink: %w", err)
	}
	if _, err := there.WriteToUDPAddrPort(b[:n], from); err != nil {
		return err
	}
	if n, err = here.Read(b); err == nil && n != size {
		err = fmt.Errorf("%d bytes came back, want %d", n, size)
	}
	return err
}
