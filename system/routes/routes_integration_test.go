//go:build integration && linux

package routes

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nmfwd/test/netns"
)

// The router's routes are followed; a and b are ports 0 and 1, mgmt is none:
//
//	router a    198.18.0.1/24  2001:2::1/64           ---- peer a
//	       b    198.19.0.1/24  2001:2:0:8000::1/64    ---- peer b
//	       mgmt 10.0.0.1/24                           ---- peer mgmt
const patience = 20 * time.Second

type bed struct {
	*testing.T
	router, peer *netns.Namespace
	table        *Table
	feed         *Feed
	have         mirror
	listed       chan Report
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{T: t, have: mirror{}, listed: make(chan Report, 1000)}
	for _, n := range []**netns.Namespace{&b.router, &b.peer} {
		*n = netns.ForTest(t, "routes")
	}
	// In this order: hops are in that of their interfaces.
	for _, port := range []struct {
		name  string
		addrs []string
	}{{"a", []string{"198.18.0.1/24", "2001:2::1/64"}}, {"b", []string{"198.19.0.1/24", "2001:2:0:8000::1/64"}}, {"mgmt", []string{"10.0.0.1/24"}}} {
		p := netns.Port{NS: b.router, Name: port.name}
		for _, a := range port.addrs {
			p.Addrs = append(p.Addrs, netip.MustParsePrefix(a))
		}
		if err := netns.Join(p, netns.Port{NS: b.peer, Name: port.name}); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// open follows the routes.
func (b *bed) open() {
	b.Helper()
	err := b.router.Do(func() (err error) {
		b.table, err = Open(testPorts, Watcher{
			Listed: func(r Report) { b.listed <- r },
			Failed: func(err error) { b.Error(err) },
		})
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := b.table.Close(); err != nil {
			b.Error(err)
		}
	})
	feed, rs := b.table.Feed()
	b.feed = feed
	for _, r := range rs {
		b.have[r.Prefix] = r
	}
}

func (b *bed) ip(line string) {
	b.Helper()
	if _, err := b.router.Output(b.Context(), "ip", strings.Fields(line)...); err != nil {
		b.Fatal(err)
	}
}

// batch has ip do many lines at once.
func (b *bed) batch(lines []string) {
	b.Helper()
	name := filepath.Join(b.TempDir(), "batch")
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	b.ip("-batch " + name)
}

// until waits until ok is right of what the feed has told.
func (b *bed) until(what string, ok func(mirror) bool) {
	b.Helper()
	end := time.After(patience)
	for {
		b.have.take(b.feed)
		if ok(b.have) {
			return
		}
		select {
		case <-b.feed.Ready():
		case <-end:
			b.Fatalf("%s: the feed told\n%s", what, cut(b.have.String()))
		}
	}
}

func cut(s string) string { return s[:min(len(s), 4000)] }

// now returns what a list of this moment has.
func (b *bed) now() string {
	b.Helper()
	m := mirror{}
	err := b.router.Do(func() error {
		rs, _, err := Read(testPorts)
		for _, r := range rs {
			m[r.Prefix] = r
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return m.String()
}

// is waits until prefix is followed as want says, and compares all with a list.
func (b *bed) is(what, prefix, want string) {
	b.Helper()
	p := netip.MustParsePrefix(prefix)
	b.until(what, func(m mirror) bool {
		got := "gone"
		if r, ok := m[p]; ok {
			got = strings.TrimSuffix(strings.TrimPrefix(r.String(), prefix+" "), " kernel")
		}
		return got == want
	})
	if got, want := b.have.String(), b.now(); got != want {
		b.until(what+": as a list has it", func(m mirror) bool { return m.String() == want })
	}
}

// TestKernel: what the kernel does is followed.
func TestKernel(t *testing.T) {
	b := newBed(t)
	b.ip("route add 203.0.113.0/24 via 198.18.0.2")
	b.ip("-6 route add 2001:db8::/32 via 2001:2::2")
	b.ip("addr add 10.255.0.1/32 dev lo")
	b.open()
	b.is("before the start", "203.0.113.0/24", "via 198.18.0.2 port 0")
	b.is("before the start", "2001:db8::/32", "via 2001:2::2 port 0")
	b.is("an address of the loopback interface", "10.255.0.1/32", "host")
	b.is("connected", "198.18.0.0/24", "on-link port 0")
	b.is("not a port's", "10.0.0.0/24", "host")
	for _, s := range []struct{ do, prefix, want string }{
		{"route replace 203.0.113.0/24 via 198.19.0.2", "203.0.113.0/24", "via 198.19.0.2 port 1"},
		{"route add 203.0.113.0/24 via 198.18.0.3 metric 5", "203.0.113.0/24", "via 198.19.0.2 port 1"},
		{"route del 203.0.113.0/24 via 198.19.0.2", "203.0.113.0/24", "via 198.18.0.3 port 0"},
		{"route del 203.0.113.0/24", "203.0.113.0/24", "gone"},
		{"route add default via 10.0.0.2", "0.0.0.0/0", "host"},
		{"route del default", "0.0.0.0/0", "gone"},
		{"route add blackhole 192.0.2.0/24", "192.0.2.0/24", "blackhole"},
		{"route replace unreachable 192.0.2.0/24", "192.0.2.0/24", "unreachable"},
		{"route replace throw 192.0.2.0/24", "192.0.2.0/24", "throw"},
		{"route add 192.0.2.0/26 via 198.18.0.2 table 253", "192.0.2.0/24", "host"},
		{"route del 192.0.2.0/26 table 253", "192.0.2.0/24", "throw"},
		{"rule add pref 40000 from 198.18.0.0/24 lookup 100", "192.0.2.0/24", "host"},
		{"rule del pref 40000", "192.0.2.0/24", "throw"},
		{"route replace prohibit 192.0.2.0/24", "192.0.2.0/24", "reject"},
		{"-6 route add blackhole 2001:db8:1::/48", "2001:db8:1::/48", "blackhole"},
		{"-6 route add unreachable 2001:db8:2::/48", "2001:db8:2::/48", "unreachable"},
		{"-6 route add prohibit 2001:db8:5::/48", "2001:db8:5::/48", "reject"},
		{"-6 route add throw 2001:db8:6::/48", "2001:db8:6::/48", "throw"},
		{"-6 rule add pref 40000 lookup 100", "2001:db8:6::/48", "host"},
		{"-6 rule del pref 40000", "2001:db8:6::/48", "throw"},
		{"route add unreachable default metric 4278198272", "0.0.0.0/0", "unreachable"},
		{"route del unreachable default metric 4278198272", "0.0.0.0/0", "gone"},
		{"route add 203.0.113.0/24 mtu 1400 nexthop via 198.18.0.2 weight 1 nexthop via 198.19.0.2 weight 3", "203.0.113.0/24", "via 198.18.0.2 port 0 via 198.19.0.2 port 1 weight 3 mtu 1400"},
		{"route add 203.0.114.0/24 via 192.168.7.7 dev a onlink", "203.0.114.0/24", "via 192.168.7.7 port 0"},
		{"route add 203.0.115.0/24 via inet6 2001:2::2 dev a", "203.0.115.0/24", "host"},
		{"-6 route add 2001:db8:3::/48 via 2001:2::2", "2001:db8:3::/48", "via 2001:2::2 port 0"},
		{"-6 route append 2001:db8:3::/48 via 2001:2:0:8000::2", "2001:db8:3::/48", "via 2001:2::2 port 0 via 2001:2:0:8000::2 port 1"},
		{"-6 route del 2001:db8:3::/48 via 2001:2::2", "2001:db8:3::/48", "via 2001:2:0:8000::2 port 1"},
		{"-6 route add 2001:db8:4::/48 via fe80::2 dev b", "2001:db8:4::/48", "via fe80::2 port 1"},
		{"route append 203.0.114.0/24 via 198.19.0.9", "203.0.114.0/24", "via 192.168.7.7 port 0"},
		{"route del 203.0.114.0/24 via 192.168.7.7 dev a", "203.0.114.0/24", "via 198.19.0.9 port 1"},
		{"nexthop add id 7 via 198.18.0.2 dev a", "203.0.114.0/24", "via 198.19.0.9 port 1"},
		{"route add 203.0.116.0/24 nhid 7", "203.0.116.0/24", "via 198.18.0.2 port 0"},
		{"nexthop replace id 7 via 198.19.0.2 dev b", "203.0.116.0/24", "via 198.19.0.2 port 1"},
		{"nexthop add id 8 via 198.18.0.8 dev a", "203.0.116.0/24", "via 198.19.0.2 port 1"},
		{"nexthop add id 9 group 7,3/8,2", "203.0.116.0/24", "via 198.19.0.2 port 1"},
		{"route replace 203.0.117.0/24 nhid 9", "203.0.117.0/24", "via 198.19.0.2 port 1 weight 3 via 198.18.0.8 port 0 weight 2"},
		{"nexthop del id 8", "203.0.117.0/24", "via 198.19.0.2 port 1"},
		{"nexthop del id 7", "203.0.116.0/24", "gone"},
		{"addr add 198.18.7.1/24 dev a", "198.18.7.1/32", "host"},
		{"route add 203.0.118.0/24 via 198.18.7.2 src 198.18.7.1", "203.0.118.0/24", "via 198.18.7.2 port 0"},
		{"addr del 198.18.7.1/24 dev a", "203.0.118.0/24", "gone"}, // of which Linux says nothing
		{"route add 203.0.119.0/24 via 198.18.0.2 metric 1", "203.0.119.0/24", "via 198.18.0.2 port 0"},
		{"route add 203.0.119.0/24 via 198.19.0.2 metric 2", "203.0.119.0/24", "via 198.18.0.2 port 0"},
		{"link set dev a down", "203.0.119.0/24", "via 198.19.0.2 port 1"},
		{"link set dev a up", "198.18.0.0/24", "on-link port 0"},
		{"link del dev b", "203.0.119.0/24", "gone"},
	} {
		b.ip(s.do)
		b.is(s.do, s.prefix, s.want)
	}
	// A carrier that goes leaves the routes with the kernel, and comes back.
	b.ip("route add 203.0.120.0/24 via 198.18.0.2")
	b.is("before the carrier went", "203.0.120.0/24", "via 198.18.0.2 port 0")
	if err := b.peer.Down("a"); err != nil {
		t.Fatal(err)
	}
	b.is("no carrier", "203.0.120.0/24", "gone")
	if err := b.peer.Up("a"); err != nil {
		t.Fatal(err)
	}
	b.is("carrier again", "203.0.120.0/24", "via 198.18.0.2 port 0")
}

// TestMany: many routes at once, and gone again, are all told; a port has a
// reader at work before and after.
func TestMany(t *testing.T) {
	const n = 50000
	b := newBed(t)
	b.open()
	lines := make([]string, n)
	for _, verb := range []string{"add", "replace", "del"} {
		for i := range lines {
			lines[i] = fmt.Sprintf("route %s 20.%d.%d.0/24 via 198.18.0.%d", verb, i>>8, i&255, 2+i%8)
			if verb == "replace" {
				lines[i] = fmt.Sprintf("route %s 20.%d.%d.0/24 via 198.19.0.%d", verb, i>>8, i&255, 2+i%8)
			} else if verb == "del" {
				lines[i] = fmt.Sprintf("route %s 20.%d.%d.0/24", verb, i>>8, i&255)
			}
		}
		began := time.Now()
		b.batch(lines)
		done := time.Now()
		last := netip.MustParsePrefix(fmt.Sprintf("20.%d.%d.0/24", (n-1)>>8, (n-1)&255))
		b.until(verb, func(m mirror) bool {
			if r, ok := m[last]; ok == (verb == "del") || ok && r.Port != map[string]uint16{"add": 0, "replace": 1}[verb] {
				return false
			}
			have := 0
			for p := range m {
				if p.Bits() == 24 && p.Addr().Is4() && p.Addr().As4()[0] == 20 {
					have++
				}
			}
			return have == map[string]int{"add": n, "replace": n}[verb]
		})
		t.Logf("%s: ip took %v, the feed had it %v later", verb, done.Sub(began).Round(time.Millisecond), time.Since(done).Round(time.Millisecond))
	}
	if got, want := b.have.String(), b.now(); got != want {
		t.Errorf("got\n%swant\n%s", cut(got), cut(want))
	}
}

// stopped has f run while nothing is read, as of a process that is stopped.
func (b *bed) stopped(f func()) {
	b.table.reading.Lock()
	defer b.table.reading.Unlock()
	f()
}

// setBuffer makes the socket's buffer for changes as small as n bytes.
func (b *bed) setBuffer(n int) {
	b.Helper()
	var err error
	if e := b.table.sys.(*netlink).conn.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, n) }); e != nil || err != nil {
		b.Fatal(e, err)
	}
}

// TestLost: what is lost while nobody reads is found by a list, which tells only
// what differs.
func TestLost(t *testing.T) {
	b := newBed(t)
	b.ip("route add 203.0.113.0/24 via 198.18.0.2")
	b.open()
	if r := <-b.listed; !r.First {
		t.Errorf("the first list: %+v", r)
	}
	b.setBuffer(4096)
	var lines []string
	for i := range 1000 {
		lines = append(lines, fmt.Sprintf("route add 20.0.%d.%d/32 via 198.18.0.2", i>>8, i&255), fmt.Sprintf("route del 20.0.%d.%d/32", i>>8, i&255))
	}
	lines = append(lines, "route add 203.0.114.0/24 via 198.19.0.2", "route del 203.0.113.0/24")
	b.stopped(func() { b.batch(lines) })
	b.is("the end", "203.0.114.0/24", "via 198.19.0.2 port 1")
	b.is("the end", "203.0.113.0/24", "gone")
	if r := <-b.listed; !r.Lost {
		t.Errorf("the list after the loss: %+v", r)
	}
}

// TestStoppedForLong: when the process goes on, its socket is full of what was
// true long ago. The table becomes the kernel's all the same, and stays it.
func TestStoppedForLong(t *testing.T) {
	const n = 20000
	prefix := func(family, i int) string {
		if family == 4 {
			return fmt.Sprintf("20.%d.%d.0/24", i>>8, i&255)
		}
		return fmt.Sprintf("2001:db8:%x::/48", i)
	}
	// Of the changes of 40,000 routes the buffer holds some: the first thousands.
	type change func(family, i int) string
	one := func(family int, gateway int) string {
		return map[int][]string{4: {"198.18.0.2", "198.19.0.2"}, 6: {"2001:2::2", "2001:2:0:8000::2"}}[family][gateway]
	}
	add := func(gateway int) change {
		return func(family, i int) string {
			return fmt.Sprintf("route add %s via %s", prefix(family, i), one(family, gateway))
		}
	}
	replace := func(family, i int) string {
		return fmt.Sprintf("route replace %s via %s", prefix(family, i), one(family, 1))
	}
	del := func(family, i int) string { return fmt.Sprintf("route del %s", prefix(family, i)) }
	object := func(family, i int) string {
		return fmt.Sprintf("route replace %s nhid %d", prefix(family, i), family)
	}
	for _, c := range []struct {
		name            string
		before, changes []change
		last            string // line that is done at the end
	}{
		{"added and deleted", nil, []change{add(0), del}, ""},
		{"replaced", []change{add(0)}, []change{replace}, ""},
		{"deleted and added by another", []change{add(0)}, []change{del, add(1)}, ""},
		{"by nexthop objects that change", []change{add(0)}, []change{object}, "nexthop replace id 4 via 198.19.0.2 dev b"},
		{"default route", []change{add(0)}, []change{del}, "route add default via 198.19.0.2"},
		{"interface down", []change{add(0)}, []change{replace}, "link set dev a down"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t)
			b.ip("nexthop add id 4 via 198.18.0.2 dev a")
			b.ip("-6 nexthop add id 6 via 2001:2::2 dev a")
			do := func(changes []change, last string) {
				t.Helper()
				for _, ch := range changes {
					for _, family := range []int{4, 6} {
						var lines []string
						for i := range n {
							lines = append(lines, ch(family, i))
						}
						name := filepath.Join(t.TempDir(), "batch")
						if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
							t.Fatal(err)
						}
						b.ip(fmt.Sprintf("-%d -batch %s", family, name))
					}
				}
				if last != "" {
					b.ip(last)
				}
			}
			do(c.before, "")
			b.open()
			b.setBuffer(16 << 20)
			b.stopped(func() { do(c.changes, c.last) })
			began := time.Now()
			want := b.now()
			b.until("as a list has it", func(m mirror) bool { return len(m) == strings.Count(want, "\n") && m.String() == want })
			t.Logf("equal after %v", time.Since(began).Round(time.Millisecond))
			late := time.After(patience)
			for lost := false; !lost; { // or the test shows nothing
				select {
				case r := <-b.listed:
					lost = r.Lost
				case <-late:
					t.Fatal("nothing was lost")
				}
			}
			for end := time.Now().Add(time.Second); time.Now().Before(end); {
				select {
				case <-b.feed.Ready():
				case <-time.After(time.Until(end)):
				}
			}
			b.have.take(b.feed)
			if got := b.have.String(); got != want {
				t.Errorf("later the feed told\n%s", cut(got))
			}
		})
	}
}

// TestSync: after Sync a feed has all that the system had said before, also what
// only a list can tell, and nobody waited.
func TestSync(t *testing.T) {
	b := newBed(t)
	b.open()
	sync := func() {
		t.Helper()
		if err := b.table.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.have.take(b.feed)
	}
	const prefix = "203.0.113.0/24"
	for i := range 60 {
		verb, want := "add", true
		if i%2 == 1 {
			verb, want = "del", false
		}
		b.ip("route " + verb + " " + prefix + " via 198.18.0.2")
		sync()
		if _, ok := b.have[netip.MustParsePrefix(prefix)]; ok != want {
			t.Fatalf("after %s number %d: the feed has told of it: %t, want %t", verb, i, ok, want)
		}
	}
	b.ip("route add " + prefix + " via 198.18.0.2")
	b.ip("link set dev a down") // routes go with it, of which Linux tells nothing in IPv4
	sync()
	if got, want := b.have.String(), b.now(); got != want {
		t.Errorf("without an interface: got\n%swant\n%s", cut(got), cut(want))
	}
}
