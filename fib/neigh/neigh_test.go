package neigh

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"nmfwd/dataplane/wire"
)

var (
	addr    = netip.MustParseAddr
	mac1    = wire.MACOf([]byte{0x00, 0x1b, 0x21, 0xc4, 0x95, 0x7a})
	mac2    = wire.MACOf([]byte{0x00, 0x1b, 0x21, 0xc4, 0x95, 0x7b})
	portMAC = wire.MACOf([]byte{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x3d})
	virtual = wire.MACOf([]byte{0x00, 0x00, 0x5e, 0x00, 0x01, 0x07})
	gateway = Key{0, addr("198.18.0.203")}
	port    = &Port{
		Num:     0,
		MAC:     portMAC,
		MACs:    []wire.MAC{virtual},
		Addrs:   []netip.Addr{addr("198.18.0.205"), addr("2001:2::205")},
		Anycast: []netip.Addr{addr("2001:2::")},
	}
)

func TestSet(t *testing.T) {
	group := wire.MACOf([]byte{1, 0, 0x5e, 0, 0, 1})
	tests := []struct {
		name    string
		key     Key
		mac     wire.MAC
		changed bool
		want    string // in the error, "" for none
	}{
		{"new", gateway, mac1, true, ""},
		{"same again", gateway, mac1, false, ""},
		{"other mac", gateway, mac2, true, ""},
		{"other port", Key{1, gateway.Addr}, mac1, true, ""},
		{"IPv6", Key{0, addr("2001:2::203")}, mac1, true, ""},
		{"link-local", Key{0, addr("fe80::1")}, mac1, true, ""},
		{"table full", Key{0, addr("2001:2::204")}, mac1, false, ErrFull.Error()},
		{"full, known entry", gateway, mac1, true, ""},
		{"no such port", Key{2, gateway.Addr}, mac1, false, "no port 2"},
		{"no address", Key{0, netip.Addr{}}, mac1, false, "not the address"},
		{"0.0.0.0", Key{0, addr("0.0.0.0")}, mac1, false, "not the address"},
		{"unspecified", Key{0, addr("::")}, mac1, false, "not the address"},
		{"loopback", Key{0, addr("127.0.0.1")}, mac1, false, "not the address"},
		{"multicast", Key{0, addr("224.0.0.1")}, mac1, false, "not the address"},
		{"multicast IPv6", Key{0, addr("ff02::1")}, mac1, false, "not the address"},
		{"broadcast", Key{0, addr("255.255.255.255")}, mac1, false, "not the address"},
		{"IPv4-mapped", Key{0, addr("::ffff:198.18.0.203")}, mac1, false, "not the address"},
		{"zone", Key{0, addr("fe80::1%igb1")}, mac1, false, "not the address"},
		{"zero mac", gateway, 0, false, "00:00:00:00:00:00 is not a unicast MAC"},
		{"multicast mac", gateway, group, false, "01:00:5e:00:00:01 is not a unicast MAC"},
		{"broadcast mac", gateway, wire.Broadcast, false, "ff:ff:ff:ff:ff:ff is not a unicast MAC"},
	}
	tab := New(2, 4)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			changed, err := tab.Set(tt.key, tt.mac)
			if changed != tt.changed {
				t.Errorf("changed: got %t, want %t", changed, tt.changed)
			}
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("got error %v, want none", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got error %v, want one with %q", err, tt.want)
			case tt.want == "":
				if e, ok := tab.Lookup(tt.key.Port, tt.key.Addr); !ok || e != (Entry{tt.key, tt.mac, Static}) {
					t.Errorf("lookup: got %v, %t", e, ok)
				}
			}
		})
	}
	if _, err := tab.Set(Key{1, addr("198.19.0.203")}, mac1); !errors.Is(err, ErrFull) {
		t.Errorf("got error %v, want ErrFull", err)
	}
	if got := tab.Count(4, Static); got != 2 {
		t.Errorf("static IPv4: got %d, want 2", got)
	}
	if got := tab.Count(6, Static); got != 2 {
		t.Errorf("static IPv6: got %d, want 2", got)
	}
}

func TestRemove(t *testing.T) {
	tab := New(1, 10)
	if _, err := tab.Set(gateway, mac1); err != nil {
		t.Fatal(err)
	}
	if tab.Remove(Key{0, addr("198.18.0.204")}) {
		t.Error("removed an entry that there is not")
	}
	if !tab.Remove(gateway) {
		t.Error("did not remove the entry")
	}
	if tab.Remove(gateway) {
		t.Error("removed the entry twice")
	}
	if _, ok := tab.Lookup(gateway.Port, gateway.Addr); ok {
		t.Error("found a removed entry")
	}
	if got := tab.Count(4, Static); got != 0 {
		t.Errorf("static IPv4: got %d, want 0", got)
	}
}

func TestReplace(t *testing.T) {
	tab := New(2, 3)
	a, b, c := gateway, Key{0, addr("2001:2::203")}, Key{1, addr("198.19.0.203")}
	steps := []struct {
		name   string
		static map[Key]wire.MAC
		want   []Change
		fails  bool
	}{
		{"first", map[Key]wire.MAC{c: mac2, a: mac1, b: mac1}, []Change{{a, mac1, false}, {b, mac1, false}, {c, mac2, false}}, false},
		{"same", map[Key]wire.MAC{c: mac2, a: mac1, b: mac1}, nil, false},
		{"one bad", map[Key]wire.MAC{a: mac2, b: 0}, nil, true},
		{"too many", map[Key]wire.MAC{a: mac2, b: mac1, c: mac1, {1, addr("198.19.0.204")}: mac1}, nil, true},
		{"one moved, one gone", map[Key]wire.MAC{a: mac2, c: mac2}, []Change{{a, mac2, false}, {b, 0, true}}, false},
		{"none", nil, []Change{{a, 0, true}, {c, 0, true}}, false},
	}
	for _, s := range steps {
		before := tab.All()
		got, err := tab.Replace(s.static, 3)
		if (err != nil) != s.fails {
			t.Fatalf("%s: got error %v, want one: %t", s.name, err, s.fails)
		}
		if !slices.Equal(got, s.want) {
			t.Errorf("%s: got %v, want %v", s.name, got, s.want)
		}
		if s.fails && !slices.Equal(tab.All(), before) {
			t.Errorf("%s: the table changed", s.name)
		}
	}
}

// TestRandom compares the table with a map under random calls.
func TestRandom(t *testing.T) {
	const limit = 12
	rnd := rand.New(rand.NewPCG(1, 2))
	tab, want := New(2, limit), map[Key]wire.MAC{}
	key := func() Key {
		a := netip.AddrFrom4([4]byte{198, 18, 0, byte(1 + rnd.IntN(8))})
		if rnd.IntN(2) == 0 {
			a = netip.AddrFrom16([16]byte{0x20, 1, 0, 2, 15: byte(1 + rnd.IntN(8))})
		}
		return Key{uint16(rnd.IntN(2)), a}
	}
	mac := func() wire.MAC { return []wire.MAC{mac1, mac2}[rnd.IntN(2)] }
	for i := range 20_000 {
		k, m := key(), mac()
		switch op := rnd.IntN(10); {
		case op < 6:
			old, known := want[k]
			full := !known && len(want) == limit
			changed, err := tab.Set(k, m)
			if (err != nil) != full {
				t.Fatalf("%d: set %v: got error %v, full %t", i, k, err, full)
			}
			if !full {
				want[k] = m
			}
			if changed != (!full && old != m) {
				t.Fatalf("%d: set %v: got changed %t", i, k, changed)
			}
		case op < 9:
			_, known := want[k]
			if got := tab.Remove(k); got != known {
				t.Fatalf("%d: remove %v: got %t, want %t", i, k, got, known)
			}
			delete(want, k)
		default:
			next, applied := map[Key]wire.MAC{}, maps.Clone(want)
			for range rnd.IntN(limit) {
				next[key()] = mac()
			}
			changes, err := tab.Replace(next, limit)
			if err != nil {
				t.Fatalf("%d: replace: %v", i, err)
			}
			for _, c := range changes {
				if c.Removed {
					delete(applied, c.Key)
				} else {
					applied[c.Key] = c.MAC
				}
			}
			if !maps.Equal(applied, next) {
				t.Fatalf("%d: replace: the changes lead to %v, want %v", i, applied, next)
			}
			want = next
		}
		var n4, n6 int
		all := tab.All()
		for _, e := range all {
			if e.State != Static || want[e.Key] != e.MAC {
				t.Fatalf("%d: got entry %v, want %v", i, e, want[e.Key])
			}
			if e.Addr.Is4() {
				n4++
			} else {
				n6++
			}
		}
		if len(all) != len(want) || tab.Len() != len(want) || tab.Count(4, Static) != n4 || tab.Count(6, Static) != n6 {
			t.Fatalf("%d: got %d entries, %d and %d static, want %d", i, len(all), tab.Count(4, Static), tab.Count(6, Static), len(want))
		}
		if !slices.IsSortedFunc(all, func(a, b Entry) int { return a.compare(b.Key) }) {
			t.Fatalf("%d: entries are not in order: %v", i, all)
		}
	}
}

func TestClaim(t *testing.T) {
	tests := []struct {
		name string
		addr string
		mac  wire.MAC
		want Conflict
	}{
		{"static, its mac", "198.18.0.203", mac1, NoConflict},
		{"static, another mac", "198.18.0.203", mac2, StaticConflict},
		{"static, our mac", "198.18.0.203", portMAC, StaticConflict},
		{"static of another port", "198.19.0.203", mac1, NoConflict},
		{"unknown", "198.18.0.99", mac2, NoConflict},
		{"own, another mac", "198.18.0.205", mac2, OwnAddressConflict},
		{"own, our mac", "198.18.0.205", portMAC, NoConflict},
		{"own, virtual router", "198.18.0.205", virtual, NoConflict},
		{"own IPv6", "2001:2::205", mac1, OwnAddressConflict},
		{"anycast", "2001:2::", mac1, NoConflict},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tab := New(2, 10)
			for _, k := range []Key{gateway, {1, addr("198.19.0.203")}} {
				if _, err := tab.Set(k, mac1+wire.MAC(k.Port)<<40); err != nil {
					t.Fatal(err)
				}
			}
			before := tab.All()
			if got := tab.Claim(port, addr(tt.addr), tt.mac); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			for _, c := range []Conflict{StaticConflict, OwnAddressConflict} {
				want := uint64(0)
				if c == tt.want {
					want = 1
				}
				if got := tab.Conflicts(0, c); got != want {
					t.Errorf("%s conflicts: got %d, want %d", c, got, want)
				}
			}
			if !slices.Equal(tab.All(), before) {
				t.Errorf("the claim changed the table to %v", tab.All())
			}
		})
	}
}

func TestNames(t *testing.T) {
	want := "incomplete reachable stale delay probe failed static state(7)"
	var got []string
	for s := range State(NumStates + 1) {
		got = append(got, s.String())
	}
	if g := strings.Join(got, " "); g != want {
		t.Errorf("got %q, want %q", g, want)
	}
	if got, want := fmt.Sprint(NoConflict, StaticConflict, OwnAddressConflict), "none static own_address"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
