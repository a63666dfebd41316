package neigh

import (
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"nmfwd/wire"
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
		Nets:    []netip.Prefix{netip.MustParsePrefix("198.18.0.0/24"), netip.MustParsePrefix("203.0.113.0/31"), netip.MustParsePrefix("2001:2::/64")},
	}
)

// newTable returns a table for two ports that is not random.
func newTable(max int) *Table {
	t := New(make([]Source, 2), max)
	t.random = func() float64 { return 0.5 }
	return t
}

// events returns what the table wants done.
func events(t *Table) []string {
	var s []string
	for _, e := range t.Take() {
		x := fmt.Sprint(e.Kind, " ", e.Addr)
		switch e.MAC {
		case mac1:
			x += " mac1"
		case mac2:
			x += " mac2"
		}
		if e.Stale {
			x += " stale"
		}
		s = append(s, x)
	}
	return s
}

func TestReplace(t *testing.T) {
	group := wire.MACOf([]byte{1, 0, 0x5e, 0, 0, 1})
	tests := []struct {
		name string
		key  Key
		mac  wire.MAC
		want string // in the error, "" for none
	}{
		{"IPv4", gateway, mac1, ""},
		{"other port", Key{1, gateway.Addr}, mac1, ""},
		{"IPv6", Key{0, addr("2001:2::203")}, mac1, ""},
		{"link-local", Key{0, addr("fe80::1")}, mac1, ""},
		{"no such port", Key{2, gateway.Addr}, mac1, "no port 2"},
		{"no address", Key{0, netip.Addr{}}, mac1, "not the address"},
		{"0.0.0.0", Key{0, addr("0.0.0.0")}, mac1, "not the address"},
		{"unspecified", Key{0, addr("::")}, mac1, "not the address"},
		{"loopback", Key{0, addr("127.0.0.1")}, mac1, "not the address"},
		{"multicast", Key{0, addr("224.0.0.1")}, mac1, "not the address"},
		{"multicast IPv6", Key{0, addr("ff02::1")}, mac1, "not the address"},
		{"broadcast", Key{0, addr("255.255.255.255")}, mac1, "not the address"},
		{"IPv4-mapped", Key{0, addr("::ffff:198.18.0.203")}, mac1, "not the address"},
		{"zone", Key{0, addr("fe80::1%igb1")}, mac1, "not the address"},
		{"zero mac", gateway, 0, "00:00:00:00:00:00 is not a unicast MAC"},
		{"multicast mac", gateway, group, "01:00:5e:00:00:01 is not a unicast MAC"},
		{"broadcast mac", gateway, wire.Broadcast, "ff:ff:ff:ff:ff:ff is not a unicast MAC"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tab := newTable(4)
			err := tab.Replace(map[Key]wire.MAC{tt.key: tt.mac}, 4)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("got error %v, want none", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got error %v, want one with %q", err, tt.want)
			case tt.want == "":
				if e, ok := tab.Lookup(tt.key.Port, tt.key.Addr); !ok || e != (Entry{tt.key, tt.mac, Static}) {
					t.Errorf("lookup: got %v, %t", e, ok)
				}
			case tab.Len() != 0:
				t.Errorf("got %d entries, want none", tab.Len())
			}
		})
	}
}

// TestReplaceKeeps: a reload changes static entries and no others, unless there
// is no room for those.
func TestReplaceKeeps(t *testing.T) {
	a, b, c := gateway, Key{0, addr("2001:2::203")}, Key{0, addr("198.18.0.1")}
	steps := []struct {
		name   string
		static map[Key]wire.MAC
		max    int
		events []string
		want   string // entries
		fails  bool
	}{
		{"first", map[Key]wire.MAC{a: mac1}, 3, []string{"known 198.18.0.203 mac1"}, "198.18.0.1 reachable, 198.18.0.203 static", false},
		{"same", map[Key]wire.MAC{a: mac1}, 3, nil, "198.18.0.1 reachable, 198.18.0.203 static", false},
		{"one bad", map[Key]wire.MAC{a: mac2, b: 0}, 3, nil, "198.18.0.1 reachable, 198.18.0.203 static", true},
		{"too many", map[Key]wire.MAC{a: mac2, b: mac1}, 1, nil, "198.18.0.1 reachable, 198.18.0.203 static", true},
		{"other mac", map[Key]wire.MAC{a: mac2}, 3, []string{"known 198.18.0.203 mac2"}, "198.18.0.1 reachable, 198.18.0.203 static", false},
		{"learned one made static", map[Key]wire.MAC{c: mac1}, 3, []string{"gone 198.18.0.203"}, "198.18.0.1 static", false},
		{"none", nil, 3, []string{"gone 198.18.0.1"}, "", false},
	}
	tab := newTable(3)
	tab.Use(0, c)
	tab.Advertised(0, port, c.Addr, Advert{mac1, true, true})
	tab.Take()
	for _, s := range steps {
		err := tab.Replace(s.static, s.max)
		if (err != nil) != s.fails {
			t.Fatalf("%s: got error %v, want one: %t", s.name, err, s.fails)
		}
		if s.fails && len(s.static) > s.max && !errors.Is(err, ErrFull) {
			t.Errorf("%s: got error %v, want ErrFull", s.name, err)
		}
		if got := events(tab); !slices.Equal(got, s.events) {
			t.Errorf("%s: got events %q, want %q", s.name, got, s.events)
		}
		var got []string
		for _, e := range tab.All() {
			got = append(got, fmt.Sprint(e.Addr, " ", e.State))
		}
		if g := strings.Join(got, ", "); g != s.want {
			t.Errorf("%s: got %q, want %q", s.name, g, s.want)
		}
	}

	for i := range byte(3) {
		k := Key{0, netip.AddrFrom4([4]byte{198, 18, 0, 10 + i})}
		tab.Use(0, k)
		tab.Advertised(0, port, k.Addr, Advert{mac1, true, true})
	}
	if err := tab.Replace(map[Key]wire.MAC{a: mac1, b: mac1}, 3); err != nil {
		t.Fatal(err)
	}
	if tab.Len() != 3 || tab.Count(4, Static)+tab.Count(6, Static) != 2 {
		t.Errorf("got %v, want three entries, two of them static", tab.All())
	}
}

// TestAppendixC is the table of RFC 4861, appendix C, with a MAC address that is
// known as mac1 and answers of mac1 or mac2.
func TestAppendixC(t *testing.T) {
	type event func(*Table, time.Duration)
	na := func(mac wire.MAC, solicited, override bool) event {
		return func(t *Table, now time.Duration) {
			t.Advertised(now, port, gateway.Addr, Advert{mac, solicited, override})
		}
	}
	ns := func(mac wire.MAC) event {
		return func(t *Table, now time.Duration) { t.Heard(now, port, gateway.Addr, mac) }
	}
	send := func(t *Table, now time.Duration) { t.Use(now, gateway) }
	// after lets the time pass until the state has ended n times by itself.
	after := func(n int) event {
		return func(t *Table, _ time.Duration) {
			for range n {
				next, _ := t.Next()
				t.Expire(next)
			}
		}
	}
	// What brings a table without the entry into a state.
	reach := map[State][]event{
		Incomplete: {send},
		Reachable:  {send, na(mac1, true, true)},
		Stale:      {ns(mac1)},
		Delay:      {ns(mac1), send},
		Probe:      {ns(mac1), send, after(1)},
		Failed:     {send, after(3)},
	}
	const none = State(NumStates)
	old := []State{Reachable, Stale, Delay, Probe}
	all := []State{Incomplete, Reachable, Stale, Delay, Probe}
	tests := []struct {
		name string
		in   []State
		do   event
		mac  wire.MAC // afterwards; 0: as it was
		want State    // none: discarded; NumStates+1: unchanged
	}{
		{"packet to send", []State{none}, send, 0, Incomplete},
		{"retransmit timeout, less than N", []State{Incomplete}, after(2), 0, Incomplete},
		{"retransmit timeout, N or more", []State{Incomplete}, after(3), 0, Failed},
		{"NA, solicited, any override", []State{Incomplete}, na(mac1, true, false), mac1, Reachable},
		{"NA, solicited, override", []State{Incomplete}, na(mac1, true, true), mac1, Reachable},
		{"NA, unsolicited", []State{Incomplete}, na(mac1, false, false), mac1, Stale},
		{"NA, unsolicited, override", []State{Incomplete}, na(mac1, false, true), mac1, Stale},
		{"NA, no link-layer address", []State{Incomplete, Failed}, na(0, true, true), 0, none + 1},
		{"NA, solicited, no override, same", old, na(mac1, true, false), mac1, Reachable},
		{"NA, solicited, no override, none", old, na(0, true, false), mac1, Reachable},
		{"NA, solicited, no override, different", []State{Reachable}, na(mac2, true, false), mac1, Stale},
		{"NA, solicited, no override, different", []State{Stale, Delay, Probe}, na(mac2, true, false), mac1, none + 1},
		{"NA, solicited, override", old, na(mac2, true, true), mac2, Reachable},
		{"NA, solicited, override, same", old, na(mac1, true, true), mac1, Reachable},
		{"NA, unsolicited, no override, same", old, na(mac1, false, false), mac1, none + 1},
		{"NA, unsolicited, no override, different", []State{Reachable}, na(mac2, false, false), mac1, Stale},
		{"NA, unsolicited, no override, different", []State{Stale, Delay, Probe}, na(mac2, false, false), mac1, none + 1},
		{"NA, unsolicited, override, same", old, na(mac1, false, true), mac1, none + 1},
		{"NA, unsolicited, override, different", old, na(mac2, false, true), mac2, Stale},
		{"NS, RS, RA, redirect", []State{none}, ns(mac1), mac1, Stale},
		{"NS, RS, RA, redirect", []State{Incomplete}, ns(mac1), mac1, Stale},
		{"NS, RS, RA, redirect, different", old, ns(mac2), mac2, Stale},
		{"NS, RS, RA, redirect, same", old, ns(mac1), mac1, none + 1},
		{"timeout, more than reachable time", []State{Reachable}, after(1), mac1, Stale},
		{"sending", []State{Stale}, send, mac1, Delay},
		{"sending", []State{Reachable, Delay, Probe}, send, mac1, none + 1},
		{"delay timeout", []State{Delay}, after(1), mac1, Probe},
		{"retransmit timeout, less than N", []State{Probe}, after(2), mac1, Probe},
		{"retransmit timeout, N or more", []State{Probe}, after(3), 0, none},
		// Beyond the RFC: it discards what never answered.
		{"late answer", []State{Failed}, na(mac1, true, true), mac1, Reachable},
		{"late announcement", []State{Failed}, na(mac1, false, true), mac1, Stale},
		{"NS", []State{Failed}, ns(mac1), mac1, Stale},
		{"sending", []State{Failed}, send, 0, none + 1},
		{"a while without an answer", []State{Failed}, after(1), 0, none},
		{"a long time without a packet", []State{Stale}, after(1), 0, none},
		// Nothing makes an entry but a packet to send and a question.
		{"NA", []State{none}, na(mac1, true, true), 0, none},
		{"own MAC address", all, na(portMAC, true, true), 0, none + 1},
		{"own MAC address", all, ns(virtual), 0, none + 1},
	}
	for _, tt := range tests {
		for _, from := range tt.in {
			t.Run(tt.name+" in "+from.String(), func(t *testing.T) {
				tab := newTable(10)
				for _, f := range reach[from] {
					f(tab, 0)
				}
				before, known := tab.Lookup(0, gateway.Addr)
				if known != (from != none) || known && before.State != from {
					t.Fatalf("got %v, %t before", before, known)
				}
				now := time.Duration(0)
				tt.do(tab, now)
				got, known := tab.Lookup(0, gateway.Addr)
				want := Entry{gateway, tt.mac, tt.want}
				if tt.want > none {
					want.State = from
				}
				if tt.mac == 0 {
					want.MAC = before.MAC
				}
				switch {
				case tt.want == none:
					if known {
						t.Errorf("got %v, want no entry", got)
					}
				case got != want:
					t.Errorf("got %v, want %v", got, want)
				}
			})
		}
	}
}

// TestLife follows neighbors through their life: what is to be done, and when.
func TestLife(t *testing.T) {
	type step struct {
		at   time.Duration
		do   string
		want []string
	}
	const s = time.Second
	tests := []struct {
		name  string
		steps []step
	}{
		{"no answer", []step{
			{0, "use wait", []string{"ask 198.18.0.203"}},
			{s - 1, "", nil},
			{s, "use wait", []string{"ask 198.18.0.203"}},
			{2 * s, "", []string{"ask 198.18.0.203"}},
			{3 * s, "", []string{"unreachable 198.18.0.203"}},
			{3*s + 1, "use wait", []string{"ask 198.18.0.203"}}, // a second after the last question, no more often
			{4 * s, "use wait", nil},
			{4*s + 1, "use wait", []string{"ask 198.18.0.203"}},
			{5*s + 1, "", []string{"ask 198.18.0.203"}},
			{6*s + 1, "", []string{"unreachable 198.18.0.203"}},
			{11*s + 1, "", nil},
			{12 * s, "use wait", []string{"ask 198.18.0.203"}},
		}},
		{"used, aged, used, verified", []step{
			{0, "use wait", []string{"ask 198.18.0.203"}},
			{1, "answer", []string{"known 198.18.0.203 mac1"}},
			{30*s + 1, "", []string{"known 198.18.0.203 mac1 stale"}},
			{100 * s, "use forward", []string{"known 198.18.0.203 mac1"}},
			{104 * s, "use forward", nil},
			{105 * s, "", []string{"verify 198.18.0.203 mac1"}},
			{106 * s, "", []string{"verify 198.18.0.203 mac1"}},
			{106*s + 1, "answer", nil},
			{136*s + 1, "", []string{"known 198.18.0.203 mac1 stale"}},
		}},
		{"gone while used, found elsewhere", []step{
			{0, "heard", []string{"known 198.18.0.203 mac1 stale"}},
			{1, "use forward", []string{"known 198.18.0.203 mac1"}},
			{5*s + 1, "", []string{"verify 198.18.0.203 mac1"}},
			{6*s + 1, "", []string{"verify 198.18.0.203 mac1"}},
			{7*s + 1, "", []string{"verify 198.18.0.203 mac1"}},
			{8*s + 1, "", []string{"gone 198.18.0.203"}},
			{9 * s, "use wait", []string{"ask 198.18.0.203"}},
			{9 * s, "moved", []string{"known 198.18.0.203 mac2 stale"}},
		}},
		{"unused", []step{
			{0, "heard", []string{"known 198.18.0.203 mac1 stale"}},
			{StaleTime - 1, "", nil},
			{StaleTime, "", []string{"gone 198.18.0.203"}},
		}},
		{"gateway", []step{
			{0, "keep", []string{"ask 198.18.0.203"}},
			{1, "answer", []string{"known 198.18.0.203 mac1"}},
			{30*s + 1, "", []string{"verify 198.18.0.203 mac1"}},
			{31*s + 1, "", []string{"verify 198.18.0.203 mac1"}},
			{32*s + 1, "", []string{"verify 198.18.0.203 mac1"}},
			{33*s + 1, "", []string{"gone 198.18.0.203", "ask 198.18.0.203"}},
			{34*s + 1, "", []string{"ask 198.18.0.203"}},
			{35*s + 1, "", []string{"ask 198.18.0.203"}},
			{36*s + 1, "", []string{"unreachable 198.18.0.203"}},
			{41*s + 1, "", []string{"ask 198.18.0.203"}},
			{42*s + 1, "", []string{"ask 198.18.0.203"}},
			{43*s + 1, "", []string{"ask 198.18.0.203"}},
			{44*s + 1, "use wait", []string{"unreachable 198.18.0.203", "ask 198.18.0.203"}},
			{44*s + 2, "let go", nil},
			{45*s + 1, "", []string{"ask 198.18.0.203"}},
			{46*s + 1, "", []string{"ask 198.18.0.203"}},
			{47*s + 1, "", []string{"unreachable 198.18.0.203"}},
			{52*s + 1, "", nil},
		}},
		{"gateway whose link comes up", []step{
			{0, "keep", []string{"ask 198.18.0.203"}},
			{1 * s, "", []string{"ask 198.18.0.203"}},
			{1*s + 1, "again", []string{"ask 198.18.0.203"}},
			{2*s + 1, "", []string{"ask 198.18.0.203"}},
			{3*s + 1, "", []string{"ask 198.18.0.203"}},
			{4*s + 1, "", []string{"unreachable 198.18.0.203"}},
			{4*s + 2, "again", []string{"ask 198.18.0.203"}},
		}},
		{"other one whose link comes up", []step{
			{0, "use wait", []string{"ask 198.18.0.203"}},
			{1, "again", nil},
			{1 * s, "", []string{"ask 198.18.0.203"}},
			{2 * s, "", []string{"ask 198.18.0.203"}},
			{3 * s, "", []string{"unreachable 198.18.0.203"}},
			{3*s + 2, "again", nil},
			{3*s + 3, "use wait", []string{"ask 198.18.0.203"}},
		}},
		{"gateway that was stale", []step{
			{0, "heard", []string{"known 198.18.0.203 mac1 stale"}},
			{1, "keep", []string{"known 198.18.0.203 mac1", "verify 198.18.0.203 mac1"}},
			{1*s + 1, "", []string{"verify 198.18.0.203 mac1"}},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tab := newTable(10)
			for _, st := range tt.steps {
				tab.Expire(st.at)
				switch verb, arg, _ := strings.Cut(st.do, " "); verb {
				case "use":
					if got := tab.Use(st.at, gateway); got.String() != arg {
						t.Errorf("%v: use: got %v, want %s", st.at, got, arg)
					}
				case "answer":
					tab.Advertised(st.at, port, gateway.Addr, Advert{mac1, true, true})
				case "moved":
					tab.Advertised(st.at, port, gateway.Addr, Advert{mac2, false, true})
				case "heard":
					tab.Heard(st.at, port, gateway.Addr, mac1)
				case "keep":
					tab.Keep(st.at, map[Key]bool{gateway: true})
				case "again":
					tab.Doubt(st.at, 0)
				case "let":
					tab.Keep(st.at, nil)
				}
				if got := events(tab); !slices.Equal(got, st.want) {
					t.Errorf("%v %s: got %q, want %q", st.at, st.do, got, st.want)
				}
			}
		})
	}
}

// TestSystem follows a system's table.
func TestSystem(t *testing.T) {
	tab := New([]Source{System}, 10)
	sys := *port
	sys.Source = System
	const s = time.Second
	steps := []struct {
		name string
		at   time.Duration
		do   func(now time.Duration)
		want []string
	}{
		{"unknown", 0, func(now time.Duration) { tab.Use(now, gateway) }, []string{"ask 198.18.0.203"}},
		{"frames say nothing", 1, func(now time.Duration) {
			tab.Heard(now, &sys, gateway.Addr, mac2)
			tab.Advertised(now, &sys, gateway.Addr, Advert{mac2, true, true})
		}, nil},
		{"the system asks", 2, func(now time.Duration) { tab.Follow(now, Update{Entry: Entry{gateway, 0, Incomplete}}) }, nil},
		{"the system knows", 3, func(now time.Duration) { tab.Follow(now, Update{Entry: Entry{gateway, mac1, Reachable}}) }, []string{"known 198.18.0.203 mac1"}},
		{"for long", 3600 * s, func(time.Duration) {}, nil},
		{"stale", 3601 * s, func(now time.Duration) { tab.Follow(now, Update{Entry: Entry{gateway, mac1, Stale}}) }, []string{"known 198.18.0.203 mac1 stale"}},
		{"used", 3602 * s, func(now time.Duration) { tab.Use(now, gateway) }, []string{"known 198.18.0.203 mac1", "ask 198.18.0.203"}},
		{"no word", 3612 * s, func(time.Duration) {}, []string{"known 198.18.0.203 mac1 stale"}},
		{"moved", 3613 * s, func(now time.Duration) { tab.Follow(now, Update{Entry: Entry{gateway, mac2, Probe}}) }, []string{"known 198.18.0.203 mac2"}},
		{"does not answer", 3614 * s, func(now time.Duration) { tab.Follow(now, Update{Entry: Entry{gateway, 0, Failed}}) }, []string{"gone 198.18.0.203"}},
		{"asked again", 3620 * s, func(now time.Duration) { tab.Use(now, gateway) }, []string{"ask 198.18.0.203"}},
		{"fails while packets wait", 3621 * s, func(now time.Duration) { tab.Follow(now, Update{Entry: Entry{gateway, 0, Failed}}) }, []string{"unreachable 198.18.0.203"}},
		{"known after all", 3622 * s, func(now time.Duration) { tab.Follow(now, Update{Entry: Entry{gateway, mac1, Reachable}}) }, []string{"known 198.18.0.203 mac1"}},
		{"forgotten", 3623 * s, func(now time.Duration) { tab.Follow(now, Update{Entry: Entry{Key: gateway}, Gone: true}) }, []string{"gone 198.18.0.203"}},
		{"no answer of the system", 3624 * s, func(now time.Duration) { tab.Use(now, gateway) }, []string{"ask 198.18.0.203"}},
		{"at all", 3634 * s, func(time.Duration) {}, []string{"unreachable 198.18.0.203"}},
		{"gateway", 3640 * s, func(now time.Duration) { tab.Keep(now, map[Key]bool{gateway: true}) }, []string{"ask 198.18.0.203"}},
		{"gateway stale", 3641 * s, func(now time.Duration) { tab.Follow(now, Update{Entry: Entry{gateway, mac1, Stale}}) }, []string{"known 198.18.0.203 mac1", "ask 198.18.0.203"}},
		{"gateway forgotten", 3642 * s, func(now time.Duration) { tab.Follow(now, Update{Entry: Entry{Key: gateway}, Gone: true}) }, []string{"gone 198.18.0.203", "ask 198.18.0.203"}},
		{"group MAC", 3648 * s, func(now time.Duration) { tab.Follow(now, Update{Entry: Entry{gateway, wire.Broadcast, Reachable}}) }, nil},
		{"the system's own questions", 3649 * s, func(now time.Duration) {
			tab.Follow(now, Update{Entry: Entry{Key{0, addr("198.18.0.9")}, 0, Incomplete}})
			tab.Follow(now, Update{Entry: Entry{Key{0, addr("198.18.0.9")}, 0, Failed}})
		}, nil},
		{"static wins", 3649 * s, func(now time.Duration) {
			if err := tab.Replace(map[Key]wire.MAC{gateway: mac1}, 10); err != nil {
				t.Fatal(err)
			}
			tab.Follow(now, Update{Entry: Entry{gateway, mac2, Reachable}})
			tab.Follow(now, Update{Entry: Entry{Key: gateway}, Gone: true})
		}, []string{"known 198.18.0.203 mac1"}},
	}
	for _, st := range steps {
		tab.Expire(st.at)
		st.do(st.at)
		if got := events(tab); !slices.Equal(got, st.want) {
			t.Errorf("%s: got %q, want %q", st.name, got, st.want)
		}
	}
}

// TestFlushed: what the system is made to forget is asked for again, at once when
// packets wait or it is a gateway, else with the next packet.
func TestFlushed(t *testing.T) {
	failed := Update{Entry: Entry{gateway, 0, Failed}}
	gone := Update{Entry: Entry{Key: gateway}, Gone: true}
	reachable := Update{Entry: Entry{gateway, mac1, Reachable}}
	const ask = "ask 198.18.0.203"
	for _, x := range []struct {
		name string
		keep bool
		at   time.Duration // after the question
		news []Update
		want []string // events, before a packet comes
		then []string // and after that
	}{
		{"known", false, 0, []Update{reachable, failed, gone}, []string{"known 198.18.0.203 mac1", "gone 198.18.0.203"}, []string{ask}},
		{"known, the end is yet to come", false, 0, []Update{reachable, failed}, []string{"known 198.18.0.203 mac1", "gone 198.18.0.203"}, []string{ask}},
		{"known, the beginning was missed", false, 0, []Update{reachable, gone}, []string{"known 198.18.0.203 mac1", "gone 198.18.0.203"}, []string{ask}},
		{"asked for", false, 0, []Update{failed, gone}, []string{ask, ask}, nil},
		{"asked for, the beginning was missed", false, 0, []Update{gone}, []string{ask}, nil},
		{"asked for, again and again", false, 0, []Update{failed, failed, failed}, []string{ask, ask, "unreachable 198.18.0.203"}, []string{ask}},
		{"did not answer", false, RetransTimer, []Update{failed, gone}, []string{"unreachable 198.18.0.203"}, []string{ask}},
		{"gateway", true, 0, []Update{reachable, failed}, []string{"known 198.18.0.203 mac1", "gone 198.18.0.203", ask}, nil},
		{"gateway that did not answer", true, RetransTimer, []Update{failed, gone}, []string{"unreachable 198.18.0.203"}, []string{ask}},
	} {
		t.Run(x.name, func(t *testing.T) {
			tab := New([]Source{System}, 10)
			if x.keep {
				tab.Keep(0, map[Key]bool{gateway: true})
			} else {
				tab.Use(0, gateway)
			}
			if got := events(tab); !slices.Equal(got, []string{ask}) {
				t.Fatalf("first: got %q", got)
			}
			for _, u := range x.news {
				tab.Follow(x.at, u)
			}
			if got := events(tab); !slices.Equal(got, x.want) {
				t.Errorf("got %q, want %q", got, x.want)
			}
			if got := tab.Use(x.at+1, gateway); got != Wait {
				t.Errorf("a packet: got %v, want wait", got)
			}
			if got := events(tab); !slices.Equal(got, x.then) {
				t.Errorf("a packet: got %q, want %q", got, x.then)
			}
		})
	}
	// A system that forgets at once is not asked in a loop.
	tab := New([]Source{System}, 10)
	tab.Use(0, gateway)
	asked := 0
	for range 10 * AskBurst {
		tab.Follow(0, gone)
		for _, e := range tab.Take() {
			if e.Kind == Ask {
				asked++
			}
		}
		tab.Use(0, gateway)
	}
	if asked > AskBurst {
		t.Errorf("asked %d times at once, want at most %d", asked, AskBurst)
	}
}

func TestOnLink(t *testing.T) {
	for _, tt := range []struct {
		addr string
		want bool
	}{
		{"198.18.0.203", true},
		{"198.18.0.205", false}, // ours
		{"198.18.0.0", false},
		{"198.18.0.255", false},
		{"198.18.1.1", false},
		{"203.0.113.0", true}, // RFC 3021
		{"203.0.113.1", true},
		{"224.0.0.1", false},
		{"0.0.0.0", false},
		{"2001:2::203", true},
		{"2001:2::205", false},
		{"2001:2::", false},
		{"2001:3::1", false},
		{"fe80::1", true},
		{"ff02::1", false},
	} {
		if got := port.OnLink(addr(tt.addr)); got != tt.want {
			t.Errorf("%s: got %t, want %t", tt.addr, got, tt.want)
		}
	}
}

// TestReachableTime: the time is random, and as far from the middle as the RFC
// wants it.
func TestReachableTime(t *testing.T) {
	tab := New(make([]Source, 1), 10)
	for _, r := range []struct {
		random float64
		want   time.Duration
	}{{0, 15 * time.Second}, {0.5, 30 * time.Second}, {1, 45 * time.Second}} {
		tab.random = func() float64 { return r.random }
		tab.Heard(0, port, gateway.Addr, mac1)
		tab.Advertised(0, port, gateway.Addr, Advert{mac1, true, true})
		if got, _ := tab.Next(); got != r.want {
			t.Errorf("random %v: got %v, want %v", r.random, got, r.want)
		}
	}
}

func nth(i int) Key {
	return Key{0, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}
}

// TestScan: a scan of addresses takes no place from neighbors that are known,
// and its questions are limited.
func TestScan(t *testing.T) {
	tab := newTable(65536)
	wide := *port
	wide.Nets = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	const good = 1500
	for i := range good {
		tab.Heard(0, &wide, nth(2<<16+i).Addr, mac1)
	}
	tab.Take()
	asked, now := 0, time.Duration(0)
	for i := range 100_000 { // in ten seconds
		now += 100 * time.Microsecond
		tab.Expire(now)
		tab.Use(now, nth(i))
		for _, e := range tab.Take() {
			switch e.Kind {
			case Ask:
				asked++
			case Gone:
				if e.Addr.As4()[1] == 2 {
					t.Fatalf("%v was forgotten for the scan", e.Addr)
				}
			case Known:
				t.Fatalf("%v is known", e.Addr)
			}
		}
		if n := tab.Count(4, Incomplete) + tab.Count(4, Failed); n > MaxUnanswered {
			t.Fatalf("%d neighbors without an answer", n)
		}
	}
	if most := AskBurst + 10*AskRate; asked > most || asked < most/2 {
		t.Errorf("%d questions in ten seconds, want at most %d and about as many", asked, most)
	}
	if got := tab.Count(4, Stale); got != good {
		t.Errorf("%d neighbors are known, want %d", got, good)
	}
	// While it goes on, a real neighbor is found and stays.
	now += 10 * time.Millisecond
	k := nth(3 << 16)
	if got := tab.Use(now, k); got != Wait {
		t.Fatalf("got %v, want wait", got)
	}
	tab.Advertised(now, &wide, k.Addr, Advert{mac1, true, true})
	if got := tab.Use(now, k); got != Forward {
		t.Errorf("got %v, want forward", got)
	}
}

// TestEviction: the port that holds most gives way first, in it what failed, what
// is stale, what is asked for, and for a port that holds less what is in use.
// Static ones and gateways stay.
func TestEviction(t *testing.T) {
	const now = 3 * time.Second
	far := *port
	far.Num = 1
	on := []*Port{port, &far}
	host := func(p uint16, n byte) Key { return Key{p, netip.AddrFrom4([4]byte{198, 18, 0, n})} }
	to := map[State]func(*Table, Key){
		Static:     func(*Table, Key) {},
		Incomplete: func(tab *Table, k Key) { tab.Use(now, k) },
		Failed: func(tab *Table, k Key) {
			tab.Use(0, k)
			for range MaxSolicit {
				at, _ := tab.Next()
				tab.Expire(at)
			}
		},
		Stale: func(tab *Table, k Key) { tab.Heard(now, on[k.Port], k.Addr, mac1) },
		Reachable: func(tab *Table, k Key) {
			tab.Use(now, k)
			tab.Advertised(now, on[k.Port], k.Addr, Advert{mac1, true, true})
		},
		Delay: func(tab *Table, k Key) { tab.Heard(now, on[k.Port], k.Addr, mac1); tab.Use(now, k) },
	}
	type held struct {
		key   Key
		state State
	}
	for _, x := range []struct {
		name string
		held []held // in this order
		kept Key
		asks uint16 // the port that wants one more each time
		want []Key  // give way
		full bool   // and then none does
	}{
		{"one port", []held{
			{host(0, 3), Failed}, {host(0, 1), Incomplete}, {host(0, 2), Stale}, {host(0, 4), Reachable}, {host(0, 5), Delay},
		}, Key{}, 0, []Key{host(0, 3), host(0, 2), host(0, 1)}, true},
		{"the oldest of a class", []held{
			{host(0, 2), Stale}, {host(0, 1), Stale}, {host(0, 3), Stale},
		}, Key{}, 0, []Key{host(0, 2), host(0, 1), host(0, 3)}, true},
		{"another port's stale ones before what this one asks for", []held{
			{host(0, 1), Failed}, {host(0, 2), Incomplete}, {host(1, 3), Stale}, {host(1, 4), Stale}, {host(1, 5), Stale}, {host(1, 6), Stale},
		}, Key{}, 0, []Key{host(1, 3), host(0, 1)}, false},
		{"what another port, which holds most, has in use", []held{
			{host(0, 2), Incomplete}, {host(1, 3), Reachable}, {host(1, 4), Delay}, {host(1, 5), Reachable}, {host(1, 6), Reachable},
		}, Key{}, 0, []Key{host(1, 3), host(0, 2)}, false},
		{"what others do not use, for one that uses all it has", []held{
			{host(0, 1), Reachable}, {host(0, 2), Reachable}, {host(0, 3), Delay}, {host(1, 4), Stale}, {host(1, 5), Reachable},
		}, Key{}, 0, []Key{host(1, 4)}, true},
		{"static ones do not count", []held{
			{host(0, 1), Static}, {host(0, 2), Static}, {host(0, 3), Static}, {host(0, 4), Stale}, {host(1, 5), Stale}, {host(1, 6), Stale}, {host(1, 7), Stale},
		}, Key{}, 0, []Key{host(1, 5), host(0, 4), host(1, 6), host(1, 7)}, true},
		{"a gateway stays", []held{
			{host(0, 1), Incomplete}, {host(0, 2), Stale},
		}, host(0, 1), 0, []Key{host(0, 2)}, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			tab := newTable(100)
			static := map[Key]wire.MAC{}
			for _, h := range x.held {
				to[h.state](tab, h.key)
				if h.state == Static {
					static[h.key] = mac1
				}
			}
			if x.kept.Addr.IsValid() {
				tab.Keep(now, map[Key]bool{x.kept: true})
			}
			if err := tab.Replace(static, len(x.held)); err != nil || tab.Len() != len(x.held) {
				t.Fatalf("%v, %v", err, tab.All())
			}
			for i, want := range x.want {
				k := host(x.asks, byte(100+i))
				if got := tab.Use(now, k); got != Wait {
					t.Fatalf("%d: got %v, want wait", i, got)
				}
				tab.Advertised(now, on[k.Port], k.Addr, Advert{mac2, true, true})
				if _, ok := tab.Lookup(want.Port, want.Addr); ok || tab.Len() != len(x.held) {
					t.Fatalf("%d: %v is still there: %v", i, want, tab.All())
				}
			}
			before := tab.All()
			if got := tab.Use(now, host(x.asks, 99)); x.full && (got != Refused || !slices.Equal(tab.All(), before)) {
				t.Errorf("full of neighbors in use: got %v, want refused: %v", got, tab.All())
			}
		})
	}
}

// TestTableFull: a port whose stations fill the table, by claims or by answers,
// keeps others from nothing: their neighbors are found, and found again, and a
// scan gets no more than its part.
func TestTableFull(t *testing.T) {
	const limit = 4 * MaxUnanswered
	for _, answers := range []bool{false, true} {
		t.Run(fmt.Sprintf("answers %t", answers), func(t *testing.T) {
			tab := newTable(limit)
			wide := *port
			wide.Nets = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
			other := wide
			other.Num = 1
			on := func(port uint16, i int) Key { return Key{port, nth(i).Addr} }
			now := time.Duration(0)
			flood := func(i int) {
				now += time.Millisecond
				tab.Expire(now)
				if k := on(0, i); !answers {
					tab.Heard(now, &wide, k.Addr, mac1)
				} else if tab.Use(now, k) == Wait {
					tab.Advertised(now, &wide, k.Addr, Advert{mac1, true, true})
				}
			}
			for i := range 2 * limit {
				flood(i)
			}
			if tab.Len() != limit {
				t.Fatalf("%d neighbors, want a full table", tab.Len())
			}
			good := 0
			for i := range 500 {
				flood(i)
				k := on(1, i)
				if got := tab.Use(now, k); got != Wait {
					t.Fatalf("%d: got %v, want wait", i, got)
				}
				for n := range 20 { // while it is asked for
					flood(1<<17 + 20*i + n)
				}
				tab.Advertised(now, &other, k.Addr, Advert{mac2, true, true})
				if tab.Use(now, k) == Forward {
					good++
				}
			}
			if good != 500 {
				t.Errorf("%d of 500 neighbors of another port were found", good)
			}
			for i := range 10 * limit { // a scan on the port of the flood
				now += time.Millisecond
				tab.Expire(now)
				tab.Use(now, on(0, 1<<18+i))
				if n := tab.Count(4, Incomplete) + tab.Count(4, Failed); n > MaxUnanswered {
					t.Fatalf("a scan has %d entries", n)
				}
			}
			for i := range 500 {
				if e, ok := tab.Lookup(1, on(1, i).Addr); !ok {
					t.Fatalf("%v gave way", e)
				}
			}
		})
	}
}

// TestRandom checks what holds after any calls.
func TestRandom(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	const limit = 12
	tab := New([]Source{Link, System}, limit)
	ports := [2]Port{*port, *port}
	ports[1].Num, ports[1].Source = 1, System
	know := map[Key]Event{} // what forwarding knows
	now := time.Duration(0)
	for i := range 100_000 {
		now += time.Duration(rnd.ExpFloat64() * float64(time.Second))
		a := netip.AddrFrom4([4]byte{198, 18, 0, byte(1 + rnd.IntN(12))})
		if rnd.IntN(2) == 0 {
			a = netip.AddrFrom16([16]byte{0x20, 1, 0, 2, 15: byte(1 + rnd.IntN(12))})
		}
		k := Key{uint16(rnd.IntN(2)), a}
		p, mac := &ports[k.Port], []wire.MAC{mac1, mac2, portMAC}[rnd.IntN(3)]
		switch rnd.IntN(8) {
		case 0, 1:
			tab.Use(now, k)
		case 2:
			tab.Advertised(now, p, a, Advert{mac, rnd.IntN(2) == 0, rnd.IntN(2) == 0})
		case 3:
			tab.Heard(now, p, a, mac)
		case 4:
			if k.Port == 1 {
				tab.Follow(now, Update{Entry: Entry{k, mac, State(rnd.IntN(int(Failed) + 1))}})
			}
		case 5:
			if k.Port == 1 {
				tab.Follow(now, Update{Entry: Entry{Key: k}, Gone: true})
			}
		case 6:
			if rnd.IntN(10) == 0 {
				tab.Keep(now, map[Key]bool{k: true, gateway: true})
			}
		case 7:
			if rnd.IntN(10) == 0 {
				if err := tab.Replace(map[Key]wire.MAC{k: mac1}, limit); err != nil {
					t.Fatal(err)
				}
			}
		}
		tab.Expire(now)
		for _, e := range tab.Take() {
			switch e.Kind {
			case Known:
				know[e.Key] = e
			case Gone:
				delete(know, e.Key)
			}
		}
		var counts [2][NumStates]int
		known := 0
		unanswered := [2]int{}
		for _, e := range tab.All() {
			counts[familyIndex(e.Addr.Is6())][e.State]++
			if e.State == Incomplete || e.State == Failed {
				if !tab.entries[e.Key].kept {
					unanswered[e.Port]++
				}
				if _, ok := know[e.Key]; ok {
					t.Fatalf("%d: forwarding still knows %v", i, e)
				}
				continue
			}
			known++
			if w := know[e.Key]; w.MAC != e.MAC || w.Stale != (e.State == Stale) {
				t.Fatalf("%d: forwarding knows %v, want %v", i, w, e)
			}
		}
		if len(know) != known || tab.Len() > limit {
			t.Fatalf("%d: forwarding knows %d neighbors, the table %d of %d", i, len(know), known, tab.Len())
		}
		for f, family := range []int{4, 6} {
			for s := range NumStates {
				if got := tab.Count(family, State(s)); got != counts[f][s] {
					t.Fatalf("%d: IPv%d %v: got %d, want %d", i, family, State(s), got, counts[f][s])
				}
			}
		}
		for p := range tab.ports {
			old := &tab.ports[p].old
			if n := old[classFailed].n + old[classIncomplete].n; n != unanswered[p] {
				t.Fatalf("%d: port %d: %d without an answer, want %d", i, p, n, unanswered[p])
			}
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
		{"learned, another mac", "198.18.0.7", mac2, NoConflict},
		{"unknown", "198.18.0.99", mac2, NoConflict},
		{"own, another mac", "198.18.0.205", mac2, OwnAddressConflict},
		{"own, our mac", "198.18.0.205", portMAC, NoConflict},
		{"own, virtual router", "198.18.0.205", virtual, NoConflict},
		{"own IPv6", "2001:2::205", mac1, OwnAddressConflict},
		{"anycast", "2001:2::", mac1, NoConflict},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tab := newTable(10)
			if err := tab.Replace(map[Key]wire.MAC{gateway: mac1, {1, addr("198.19.0.203")}: mac2}, 10); err != nil {
				t.Fatal(err)
			}
			tab.Heard(0, port, addr("198.18.0.7"), mac1)
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
			// Nothing said changes a static entry or one of ours.
			tab.Heard(0, port, addr(tt.addr), tt.mac)
			tab.Advertised(0, port, addr(tt.addr), Advert{tt.mac, true, true})
			if tt.want != NoConflict && !slices.Equal(tab.All(), before) {
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
	if got, want := fmt.Sprint(Ask, Verify, Known, Gone, Unreachable, EventKind(9)), "ask verify known gone unreachable event(9)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := fmt.Sprint(Refused, Wait, Forward, NoAnswer, Answer(9)), "refused wait forward no answer answer(9)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestEach reads a table in parts while it changes, as control does.
func TestEach(t *testing.T) {
	tab := New([]Source{Link}, 100)
	p := &Port{Nets: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/24")}}
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 0, byte(i)}) }
	for i := 1; i <= 50; i++ {
		tab.Heard(time.Duration(i)*time.Second, p, addr(i), mac1)
	}
	next, stop := iter.Pull2(tab.Each())
	defer stop()
	got := map[netip.Addr]time.Duration{}
	for {
		e, since, ok := next()
		if !ok {
			break
		}
		got[e.Addr] = since
		if len(got) == 25 {
			tab.Heard(time.Hour, p, addr(60), mac1)
		}
	}
	delete(got, addr(60)) // was added and may be there
	for i := 1; i <= 50; i++ {
		if got[addr(i)] != time.Duration(i)*time.Second {
			t.Errorf("%v: got %v", addr(i), got[addr(i)])
		}
	}
	if len(got) != 50 {
		t.Errorf("got %d entries, want 50", len(got))
	}
}
