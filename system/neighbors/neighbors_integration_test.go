//go:build integration && linux

package neighbors

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nmfwd/neigh"
	"nmfwd/test/netns"
	"nmfwd/wire"
)

// The router's kernel finds out its neighbors on p; q is nobody's business:
//
//	router p 198.18.0.1/24   ---- p peer  198.18.0.2/24
//	         2001:2::1/64                 2001:2::2/64
//	       q 198.19.0.1/24   ---- q peer  198.19.0.2/24
const patience = 10 * time.Second

var (
	routerMAC = net.HardwareAddr{2, 0, 0, 0, 1, 1}
	peerMAC   = net.HardwareAddr{2, 0, 0, 0, 1, 2}
)

type bed struct {
	*testing.T
	router, peer *netns.Namespace
	table        *Table
	have         map[neigh.Key]neigh.Update
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{T: t, have: map[neigh.Key]neigh.Update{}}
	for _, n := range []**netns.Namespace{&b.router, &b.peer} {
		*n = netns.ForTest(t, "neighbors")
	}
	for i, name := range []string{"p", "q"} {
		prefix := func(n byte) []netip.Prefix {
			ps := []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{198, byte(18 + i), 0, n}), 24)}
			if i == 0 {
				ps = append(ps, netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0, 2, 15: n}), 64))
			}
			return ps
		}
		mac := func(m net.HardwareAddr) net.HardwareAddr {
			if i > 0 {
				return nil
			}
			return m
		}
		if err := netns.Join(netns.Port{NS: b.router, Name: name, MAC: mac(routerMAC), Addrs: prefix(1)}, netns.Port{NS: b.peer, Name: name, MAC: mac(peerMAC), Addrs: prefix(2)}); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (b *bed) open() {
	b.Helper()
	err := b.router.Do(func() (err error) {
		b.table, err = Open(map[string]uint16{"p": 7}, func(s string) { b.Log(s) })
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
}

// until waits until the table has said what ok wants.
func (b *bed) until(what string, ok func() bool) {
	b.Helper()
	end := time.After(patience)
	for {
		b.table.Take(func(u neigh.Update) {
			b.Logf("%v", u)
			if b.have[u.Key] = u; u.Gone {
				delete(b.have, u.Key)
			}
		})
		if ok() {
			return
		}
		select {
		case <-b.table.Ready():
		case <-end:
			b.Fatalf("%s: the table says %v", what, b.have)
		}
	}
}

func key(a string) neigh.Key { return neigh.Key{Port: 7, Addr: netip.MustParseAddr(a)} }

func (b *bed) is(a string, s neigh.State) func() bool {
	return func() bool {
		return b.have[key(a)].Entry == neigh.Entry{Key: key(a), MAC: wire.MACOf(peerMAC), State: s}
	}
}

func (b *bed) ip(args ...string) {
	b.Helper()
	if _, err := b.router.Output(b.Context(), "ip", args...); err != nil {
		b.Fatal(err)
	}
}

func TestFollow(t *testing.T) {
	b := newBed(t)
	b.ip("neigh", "add", "198.18.0.9", "lladdr", peerMAC.String(), "dev", "p", "nud", "stale")
	b.ip("neigh", "add", "198.19.0.9", "lladdr", peerMAC.String(), "dev", "q", "nud", "permanent")
	b.open()
	b.until("what there was before", b.is("198.18.0.9", neigh.Stale))
	for _, a := range []string{"198.18.0.2", "2001:2::2"} {
		if err := b.table.Ask(key(a)); err != nil {
			t.Fatal(err)
		}
		b.until("an answer", b.is(a, neigh.Reachable))
	}
	if err := b.table.Ask(key("198.18.0.77")); err != nil {
		t.Fatal(err)
	}
	b.until("no answer", func() bool { return b.have[key("198.18.0.77")].State == neigh.Failed })
	b.ip("neigh", "replace", "198.18.0.8", "lladdr", peerMAC.String(), "dev", "p", "nud", "permanent")
	b.until("a permanent one", b.is("198.18.0.8", neigh.Reachable))
	b.ip("neigh", "replace", "198.18.0.2", "lladdr", peerMAC.String(), "dev", "p", "nud", "stale")
	b.until("one made stale", b.is("198.18.0.2", neigh.Stale))
	if err := b.table.Ask(key("198.18.0.2")); err != nil { // verified after some seconds
		t.Fatal(err)
	}
	b.until("one verified", b.is("198.18.0.2", neigh.Reachable))
	b.ip("neigh", "flush", "dev", "p", "nud", "all")
	b.until("flushed", func() bool {
		_, v4 := b.have[key("198.18.0.8")]
		return !v4 && !b.is("198.18.0.2", neigh.Reachable)()
	})
	for k := range b.have {
		if k.Port != 7 || !netip.MustParsePrefix("198.18.0.0/24").Contains(k.Addr) && !k.Addr.Is6() {
			t.Errorf("told of %v, which is on another interface", k)
		}
	}
}

// TestAskKeepsPermanent: a question about a neighbor that an operator has made
// permanent, which may come before the news of that, does not change it.
func TestAskKeepsPermanent(t *testing.T) {
	b := newBed(t)
	b.open()
	for _, nud := range []string{"permanent", "noarp"} {
		for _, a := range []string{"198.18.0.9", "2001:2::9"} {
			b.ip("neigh", "replace", a, "lladdr", peerMAC.String(), "dev", "p", "nud", nud)
			if err := b.table.Ask(key(a)); err != nil {
				t.Fatal(err)
			}
			out, err := b.router.Output(t.Context(), "ip", "neigh", "show", "to", a, "nud", nud)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(out, peerMAC.String()) {
				out, _ = b.router.Output(t.Context(), "ip", "neigh", "show", "to", a, "nud", "all")
				t.Errorf("%s: the system has %q", nud, out)
			}
		}
	}
}

// TestLost: a stream that is broken is opened again, and what happened meanwhile
// is found in the table.
func TestLost(t *testing.T) {
	b := newBed(t)
	b.open()
	// The reader of the stream stands still while it waits for the lock of what it
	// adds to: then more changes come than the socket holds.
	b.table.mu.Lock()
	var err error
	func() {
		defer b.table.mu.Unlock()
		err = b.flood()
	}()
	if err != nil {
		t.Fatal(err)
	}
	b.ip("neigh", "add", "198.18.0.9", "lladdr", peerMAC.String(), "dev", "p", "nud", "permanent")
	b.until("the end", func() bool { return b.is("198.18.0.9", neigh.Reachable)() && len(b.have) == 1 })
}

// flood makes and removes more neighbors than fit the stream's buffer.
func (b *bed) flood() error {
	return b.router.Do(func() error {
		i, err := net.InterfaceByName("p")
		if err != nil {
			return err
		}
		for n := range 3000 {
			x := &netlink.Neigh{LinkIndex: i.Index, Family: unix.AF_INET, IP: net.IP{198, 18, 0, byte(100 + n%100)}, HardwareAddr: peerMAC, State: netlink.NUD_PERMANENT}
			if err := netlink.NeighSet(x); err != nil {
				return fmt.Errorf("set: %w", err)
			}
			if err := netlink.NeighDel(x); err != nil {
				return fmt.Errorf("delete: %w", err)
			}
		}
		return nil
	})
}

// TestSync: after Sync Take has all that the system had said before.
func TestSync(t *testing.T) {
	b := newBed(t)
	b.open()
	for i := range 60 {
		if i%2 == 0 {
			b.ip("neigh", "add", "198.18.0.9", "lladdr", peerMAC.String(), "dev", "p", "nud", "permanent")
		} else {
			b.ip("neigh", "del", "198.18.0.9", "dev", "p")
		}
		if err := b.table.Sync(); err != nil {
			t.Fatal(err)
		}
		var got []neigh.Update
		b.table.Take(func(u neigh.Update) {
			if u.Key == key("198.18.0.9") {
				got = append(got, u)
			}
		})
		if len(got) != 1 || got[0].Gone != (i%2 == 1) {
			t.Fatalf("change %d: the table says %v", i, got)
		}
	}
}
