package nic_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nmfwd/system/nic"
	"nmfwd/system/nic/fake"
)

var (
	own  = net.HardwareAddr{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x3d}
	vrrp = net.HardwareAddr{0x00, 0x00, 0x5e, 0x00, 0x01, 0x07}
)

// words writes settings as ifconfig has them.
func words(set []nic.Setting) string {
	var w []string
	for _, s := range set {
		if s.On {
			w = append(w, s.Name)
		} else {
			w = append(w, "-"+s.Name)
		}
	}
	return strings.Join(w, " ")
}

// TestPlan: both families' transmit offloads for host rings only, tags,
// promiscuous only where it is needed. Receive checksums are never touched: RSS
// of igb and em depends on them.
func TestPlan(t *testing.T) {
	fixed := fake.Linux()
	fixed[4].Fixed = true // rx-vlan-filter
	for _, c := range []struct {
		name     string
		settings []nic.Setting
		p        nic.Purpose
		set      string
		stay     string
		filter   string
	}{
		{"netmap with a host", fake.FreeBSD(), nic.Purpose{Netmap: true, Host: true},
			"-txcsum -txcsum6 -tso4 -tso6 -lro -vlanhwtag -vlanhwcsum -vlanhwtso", "", ""},
		{"netmap without a host", fake.FreeBSD(), nic.Purpose{Netmap: true}, "-lro -vlanhwtag promisc", "", ""},
		{"netmap with VLANs", fake.FreeBSD(), nic.Purpose{Netmap: true, Host: true, VLANs: true},
			"-txcsum -txcsum6 -tso4 -tso6 -lro -vlanhwtag -vlanhwcsum -vlanhwtso -vlanhwfilter", "", ""},
		{"netmap with an address of VRRP", fake.FreeBSD(), nic.Purpose{Netmap: true, Host: true, MACs: []net.HardwareAddr{vrrp}},
			"-txcsum -txcsum6 -tso4 -tso6 -lro -vlanhwtag -vlanhwcsum -vlanhwtso promisc", "", ""},
		{"netmap with its own address", fake.FreeBSD()[11:], nic.Purpose{Netmap: true, Host: true, MACs: []net.HardwareAddr{own}}, "", "", ""},
		{"netmap, promiscuous already", []nic.Setting{{Name: "promisc", Kind: nic.Promiscuous, On: true}}, nic.Purpose{Netmap: true}, "", "", ""},
		{"netmap, keep", fake.FreeBSD(), nic.Purpose{Netmap: true, Host: true, Keep: true},
			"", "txcsum txcsum6 tso4 tso6 lro vlanhwtag vlanhwcsum vlanhwtso", ""},
		{"netmap on Linux with a host", fake.Linux(), nic.Purpose{Netmap: true, Host: true},
			"-tx-checksum-ip-generic -tx-vlan-hw-insert -rx-vlan-hw-parse -tx-generic-segmentation -rx-gro -tx-tcp-segmentation -tx-tcp6-segmentation", "", ""},
		{"AF_XDP with a host", fake.Linux(), nic.Purpose{Host: true}, "-rx-vlan-hw-parse", "", ""},
		{"AF_XDP without a host", fake.Linux(), nic.Purpose{}, "-rx-vlan-hw-parse", "", "allmulti"},
		{"AF_XDP with VLANs", fake.Linux(), nic.Purpose{Host: true, VLANs: true}, "-rx-vlan-hw-parse -rx-vlan-filter", "", ""},
		{"AF_XDP with VLANs and a filter that stays", fixed, nic.Purpose{Host: true, VLANs: true}, "-rx-vlan-hw-parse", "rx-vlan-filter", "promisc"},
		{"AF_XDP with addresses", nil, nic.Purpose{Host: true, MACs: []net.HardwareAddr{own, vrrp}}, "", "", vrrp.String()},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan := c.p.Plan(&nic.Info{Name: "p0", MAC: own, Settings: c.settings})
			var filter []string
			if plan.Filter.AllMulticast {
				filter = append(filter, "allmulti")
			}
			if plan.Filter.Promiscuous {
				filter = append(filter, "promisc")
			}
			for _, m := range plan.Filter.MACs {
				filter = append(filter, m.String())
			}
			if got := words(plan.Set); got != c.set {
				t.Errorf("set: got %q, want %q", got, c.set)
			}
			if got := words(plan.Stay); got != c.stay {
				t.Errorf("stay: got %q, want %q", got, c.stay)
			}
			if got := strings.Join(filter, " "); got != c.filter {
				t.Errorf("filter: got %q, want %q", got, c.filter)
			}
		})
	}
}

func system() *fake.System {
	return &fake.System{Interfaces: []nic.Info{
		{Name: "igb1", Index: 2, MAC: own, Settings: fake.FreeBSD()},
		{Name: "igb2", Index: 3, MAC: vrrp, Settings: fake.FreeBSD()},
	}}
}

// on returns the settings of an interface that are on.
func on(s *fake.System, name string) string {
	in, err := s.Info(name)
	if err != nil {
		return err.Error()
	}
	return words(slices.DeleteFunc(in.Settings, func(x nic.Setting) bool { return !x.On }))
}

var (
	host   = nic.Purpose{Name: "igb1", Netmap: true, Host: true}
	noHost = nic.Purpose{Name: "igb2", Netmap: true}
)

const all = "rxcsum txcsum rxcsum6 txcsum6 tso4 tso6 lro vlanhwtag vlanhwcsum vlanhwtso vlanhwfilter"

func take(t *testing.T, s nic.System, dir string, p ...nic.Purpose) *nic.Taken {
	t.Helper()
	taken, err := nic.Take(s, dir, p)
	if err != nil {
		t.Fatal(err)
	}
	return taken
}

// left returns the names of the files in dir.
func left(t *testing.T, dir string) string {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	return strings.Join(names, " ")
}

func TestTake(t *testing.T) {
	s, dir := system(), t.TempDir()
	taken := take(t, s, dir, host, noHost)
	if got, want := on(s, "igb1"), "rxcsum rxcsum6 vlanhwfilter"; got != want {
		t.Errorf("igb1: got %q, want %q", got, want)
	}
	if got, want := on(s, "igb2"), "rxcsum txcsum rxcsum6 txcsum6 tso4 tso6 vlanhwcsum vlanhwtso vlanhwfilter promisc"; got != want {
		t.Errorf("igb2: got %q, want %q", got, want)
	}
	if got, want := words(taken.Changes()[1].Set), "-lro -vlanhwtag promisc"; got != want {
		t.Errorf("changes of igb2: got %q, want %q", got, want)
	}
	if got, want := left(t, dir), "nmfwd-igb1.settings nmfwd-igb2.settings"; got != want {
		t.Errorf("files: got %q, want %q", got, want)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"igb1", "igb2"} {
		if got := on(s, name); got != all {
			t.Errorf("%s restored: got %q, want %q", name, got, all)
		}
	}
	want := []string{
		"igb1: -txcsum -txcsum6 -tso4 -tso6 -lro -vlanhwtag -vlanhwcsum -vlanhwtso",
		"igb2: -lro -vlanhwtag promisc",
		"igb2: -promisc vlanhwtag lro",
		"igb1: vlanhwtso vlanhwcsum vlanhwtag lro tso6 tso4 txcsum6 txcsum",
	}
	if !slices.Equal(s.Calls, want) {
		t.Errorf("calls: got\n%s\nwant\n%s", strings.Join(s.Calls, "\n"), strings.Join(want, "\n"))
	}
	if got := left(t, dir); got != "" {
		t.Errorf("files after Close: %q", got)
	}
	if err := taken.Close(); err != nil || len(s.Calls) != len(want) {
		t.Errorf("second Close: %v, calls %q", err, s.Calls[len(want):])
	}
}

// TestBusy: while one has the settings of a port another gets none of them.
func TestBusy(t *testing.T) {
	s, dir := system(), t.TempDir()
	taken := take(t, s, dir, host)
	n := len(s.Calls)
	if _, err := nic.Take(s, dir, []nic.Purpose{noHost, host}); !errors.Is(err, nic.ErrBusy) || !strings.Contains(err.Error(), "pid ") {
		t.Errorf("second Take: %v", err)
	}
	if _, err := nic.Restore(s, dir, "igb1"); !errors.Is(err, nic.ErrBusy) {
		t.Errorf("Restore: %v", err)
	}
	in, _ := s.Info("igb1")
	if _, err := nic.Left(s, dir, &in); !errors.Is(err, nic.ErrBusy) {
		t.Errorf("Left: %v", err)
	}
	if got, want := s.Calls[n:], []string{"igb2: -lro -vlanhwtag promisc", "igb2: -promisc vlanhwtag lro"}; !slices.Equal(got, want) {
		t.Errorf("calls: got %q, want %q", got, want)
	}
	if err := taken.Close(); err != nil || on(s, "igb1") != all {
		t.Errorf("Close: %v, %q", err, on(s, "igb1"))
	}
}

// killed leaves what a process leaves that was killed while it had the port: its
// file without its lock, and the settings as it changed them.
func killed(t *testing.T, s *fake.System, dir string, p nic.Purpose) {
	t.Helper()
	aside := t.TempDir()
	taken := take(t, s, aside, p)
	name := "nmfwd-" + p.Name + ".settings"
	data, err := os.ReadFile(filepath.Join(aside, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
	in, _ := s.Info(p.Name)
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range s.Interfaces {
		if s.Interfaces[i].Name == p.Name {
			s.Interfaces[i].Settings = in.Settings
		}
	}
	s.Calls = nil
}

// TestKilled: a later start keeps what was there before the first,
// and nmfwd restore gives it back.
func TestKilled(t *testing.T) {
	t.Run("restore", func(t *testing.T) {
		s, dir := system(), t.TempDir()
		killed(t, s, dir, host)
		in, _ := s.Info("igb1")
		back, err := nic.Left(s, dir, &in)
		if want := "txcsum txcsum6 tso4 tso6 lro vlanhwtag vlanhwcsum vlanhwtso"; err != nil || words(back) != want {
			t.Errorf("Left: %q, %v, want %q", words(back), err, want)
		}
		s.Interfaces[0].Settings[1].On = true // txcsum: the administrator was faster
		set, err := nic.Restore(s, dir, "igb1")
		if want := "vlanhwtso vlanhwcsum vlanhwtag lro tso6 tso4 txcsum6"; err != nil || words(set) != want {
			t.Errorf("Restore: %q, %v, want %q", words(set), err, want)
		}
		if on(s, "igb1") != all || left(t, dir) != "" {
			t.Errorf("restored: %q, files %q", on(s, "igb1"), left(t, dir))
		}
		if _, err := nic.Restore(s, dir, "igb1"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("second Restore: %v", err)
		}
	})
	t.Run("start", func(t *testing.T) {
		s, dir := system(), t.TempDir()
		killed(t, s, dir, nic.Purpose{Name: "igb1", Netmap: true}) // no host: the transmit offloads stay on
		taken := take(t, s, dir, host)
		if got, want := words(taken.Changes()[0].Left), "lro vlanhwtag -promisc"; got != want {
			t.Errorf("left: got %q, want %q", got, want)
		}
		if err := taken.Close(); err != nil {
			t.Fatal(err)
		}
		if on(s, "igb1") != all || left(t, dir) != "" {
			t.Errorf("restored: %q, files %q", on(s, "igb1"), left(t, dir))
		}
	})
	t.Run("another card of the name", func(t *testing.T) {
		s, dir := system(), t.TempDir()
		killed(t, s, dir, host)
		s.Interfaces[0].Index = 9
		before := on(s, "igb1")
		taken := take(t, s, dir, host)
		if c := taken.Changes()[0]; len(c.Left) > 0 {
			t.Errorf("left: %q", words(c.Left))
		}
		if err := taken.Close(); err != nil || on(s, "igb1") != before {
			t.Errorf("Close: %v, %q, want %q", err, on(s, "igb1"), before)
		}
	})
	t.Run("renamed", func(t *testing.T) {
		s, dir := system(), t.TempDir()
		taken := take(t, s, dir, host)
		s.Interfaces[0].Name = "lan0"
		if err := taken.Close(); err != nil || on(s, "lan0") != all {
			t.Errorf("Close: %v, %q", err, on(s, "lan0"))
		}
	})
	t.Run("gone", func(t *testing.T) {
		s, dir := system(), t.TempDir()
		taken := take(t, s, dir, host)
		s.Interfaces = s.Interfaces[1:]
		if err := taken.Close(); err != nil || left(t, dir) != "" {
			t.Errorf("Close: %v, files %q", err, left(t, dir))
		}
	})
}

// TestRefused: settings that cannot be changed are told, those changed already
// are given back, and what cannot be given back stays written down.
func TestRefused(t *testing.T) {
	t.Run("by an error", func(t *testing.T) {
		s, dir := system(), t.TempDir()
		s.Refuse = func(string, nic.Setting) error { return fake.ErrRefused }
		c := take(t, s, dir, host).Changes()[0]
		if !errors.Is(c.Err, fake.ErrRefused) || len(c.Set) > 0 || len(c.Stay) != 8 {
			t.Errorf("got error %v, set %q, stay %q", c.Err, words(c.Set), words(c.Stay))
		}
	})
	t.Run("silently", func(t *testing.T) {
		s, dir := system(), t.TempDir()
		s.Stuck = []string{"vlanhwtag"}
		c := take(t, s, dir, noHost).Changes()[0]
		if c.Err != nil || words(c.Set) != "-lro promisc" || words(c.Stay) != "vlanhwtag" {
			t.Errorf("got error %v, set %q, stay %q", c.Err, words(c.Set), words(c.Stay))
		}
	})
	t.Run("to be given back", func(t *testing.T) {
		s, dir := system(), t.TempDir()
		taken := take(t, s, dir, host, noHost)
		s.Refuse = func(name string, _ nic.Setting) error {
			if name == "igb1" {
				return fake.ErrRefused
			}
			return nil
		}
		err := taken.Close()
		if !errors.Is(err, fake.ErrRefused) || !strings.Contains(err.Error(), "port igb1: ") || left(t, dir) != "nmfwd-igb1.settings" || on(s, "igb2") != all {
			t.Errorf("Close: %v, files %q, igb2 %q", err, left(t, dir), on(s, "igb2"))
		}
		s.Refuse = nil
		if _, err := nic.Restore(s, dir, "igb1"); err != nil || on(s, "igb1") != all {
			t.Errorf("Restore: %v, %q", err, on(s, "igb1"))
		}
	})
	t.Run("no such interface", func(t *testing.T) {
		s, dir := system(), t.TempDir()
		if _, err := nic.Take(s, dir, []nic.Purpose{host, {Name: "igb9"}}); !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), "port igb9: ") {
			t.Errorf("Take: %v", err)
		}
		if on(s, "igb1") != all || left(t, dir) != "" {
			t.Errorf("igb1 %q, files %q", on(s, "igb1"), left(t, dir))
		}
	})
	t.Run("no folder for the file", func(t *testing.T) {
		s := system()
		if _, err := nic.Take(s, filepath.Join(t.TempDir(), "none"), []nic.Purpose{host}); !errors.Is(err, fs.ErrNotExist) || len(s.Calls) > 0 {
			t.Errorf("Take: %v, calls %q", err, s.Calls)
		}
	})
	t.Run("a file of nonsense", func(t *testing.T) {
		s, dir := system(), t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "nmfwd-igb1.settings"), []byte("rm -rf /\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := nic.Take(s, dir, []nic.Purpose{host})
		if err == nil || !strings.Contains(err.Error(), "nmfwd-igb1.settings: line 1: ") || len(s.Calls) > 0 {
			t.Errorf("Take: %v, calls %q", err, s.Calls)
		}
	})
}

// reset gives an interface the settings of a fresh system, as a driver does that
// resets its card.
func reset(s *fake.System, i int) { s.Interfaces[i].Settings = fake.FreeBSD() }

// TestAgain: a card that lost what was set has it again, and at the end it gets back
// what it had at first.
func TestAgain(t *testing.T) {
	const hostSet, noHostSet = "-txcsum -txcsum6 -tso4 -tso6 -lro -vlanhwtag -vlanhwcsum -vlanhwtso", "-lro -vlanhwtag promisc"
	file := func(t *testing.T, dir string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, "nmfwd-igb2.settings"))
		if err != nil {
			t.Fatal(err)
		}
		var set []string
		for _, l := range strings.Split(string(b), "\n") {
			if strings.HasPrefix(l, "set ") {
				set = append(set, l)
			}
		}
		return strings.Join(set, ", ")
	}
	other := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	for _, c := range []struct {
		name   string
		change func(*nic.Info)
		set    string // after it
		back   string // settings at the end
		file   string // lines, but for those at first
	}{
		{"a card that was reset", func(*nic.Info) {}, noHostSet, all, ""},
		{"one that came back", func(in *nic.Info) { in.Index = 17 }, noHostSet, all, ""},
		{"one that came back without an offload that it had", func(in *nic.Info) { in.Index = 17; in.Settings[6].On = false }, "-lro -vlanhwtag promisc", all, ""},
		{"another card in its place", func(in *nic.Info) { in.Index, in.MAC, in.Settings = 17, other, fake.FreeBSD()[7:] }, "-vlanhwtag promisc", "vlanhwtag vlanhwcsum vlanhwtso vlanhwfilter", "set vlanhwtag on, set promisc off"},
		{"nothing lost", func(in *nic.Info) { in.Settings[6].On, in.Settings[7].On, in.Settings[11].On = false, false, true }, noHostSet, all, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, dir := system(), t.TempDir()
			taken := take(t, s, dir, host, noHost)
			first := file(t, dir)
			told := taken.Changes()
			for range 3 {
				reset(s, 1)
				c.change(&s.Interfaces[1])
				got, err := taken.Again("igb2")
				if err != nil || got.Err != nil {
					t.Fatal(err, got.Err)
				}
				now := taken.Now("igb2")
				for _, x := range []nic.Change{got, now} {
					if words(x.Set) != c.set || len(x.Stay) > 0 || len(x.Lost) > 0 {
						t.Errorf("set %q, want %q; stay %q, lost %q", words(x.Set), c.set, words(x.Stay), words(x.Lost))
					}
				}
				want := c.file
				if want == "" {
					want = first
				}
				if got := file(t, dir); got != want {
					t.Errorf("file: got %q, want %q", got, want)
				}
			}
			if got := words(told[1].Set); got != noHostSet {
				t.Errorf("what was told before: got %q, want %q", got, noHostSet)
			}
			if got := taken.Now("igb1"); words(got.Set) != hostSet || len(got.Lost) > 0 {
				t.Errorf("igb1: set %q, lost %q", words(got.Set), words(got.Lost))
			}
			if err := taken.Close(); err != nil || on(s, "igb1") != all || on(s, "igb2") != c.back || left(t, dir) != "" {
				t.Errorf("Close: %v; igb1 has %q, igb2 %q, want %q; files %q", err, on(s, "igb1"), on(s, "igb2"), c.back, left(t, dir))
			}
		})
	}
	t.Run("lost, and told", func(t *testing.T) {
		s := system()
		taken := take(t, s, t.TempDir(), host, noHost)
		s.Interfaces[0].Settings[1].On, s.Interfaces[0].Settings[7].On = true, true
		if got := taken.Now("igb1"); words(got.Set) != "-txcsum6 -tso4 -tso6 -lro -vlanhwcsum -vlanhwtso" || words(got.Lost) != "-txcsum -vlanhwtag" {
			t.Errorf("set %q, lost %q", words(got.Set), words(got.Lost))
		}
		s.Interfaces = s.Interfaces[1:]
		if got := taken.Now("igb1"); len(got.Set)+len(got.Lost) > 0 || !errors.Is(got.Err, fs.ErrNotExist) {
			t.Errorf("gone: set %q, lost %q, %v", words(got.Set), words(got.Lost), got.Err)
		}
		if _, err := taken.Again("igb1"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("gone: %v", err)
		}
		if got, err := taken.Again("igb9"); err != nil || len(got.Set)+len(got.Lost) > 0 {
			t.Errorf("a port without settings: %+v, %v", got, err)
		}
		if err := taken.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("refused", func(t *testing.T) {
		s := system()
		taken := take(t, s, t.TempDir(), host)
		reset(s, 0)
		s.Refuse = func(string, nic.Setting) error { return fake.ErrRefused }
		c, err := taken.Again("igb1")
		if err != nil || !errors.Is(c.Err, fake.ErrRefused) || len(c.Set) > 0 || len(c.Stay) != 8 {
			t.Errorf("%v, %v, set %q, stay %q", err, c.Err, words(c.Set), words(c.Stay))
		}
		s.Refuse = nil
		if c, err = taken.Again("igb1"); err != nil || c.Err != nil || words(c.Set) != hostSet || len(c.Stay) > 0 {
			t.Errorf("%v, %v, set %q, stay %q", err, c.Err, words(c.Set), words(c.Stay))
		}
		if err := taken.Close(); err != nil || on(s, "igb1") != all {
			t.Errorf("Close: %v, %q", err, on(s, "igb1"))
		}
	})
	t.Run("and killed", func(t *testing.T) {
		s, dir := system(), t.TempDir()
		taken := take(t, s, dir, noHost)
		reset(s, 1)
		s.Interfaces[1].Index = 17
		if _, err := taken.Again("igb2"); err != nil {
			t.Fatal(err)
		}
		if _, err := nic.Restore(s, dir, "igb2"); !errors.Is(err, nic.ErrBusy) {
			t.Errorf("Restore while it has the port: %v", err)
		}
		// What a killed process leaves: the file without its lock.
		data, err := os.ReadFile(filepath.Join(dir, "nmfwd-igb2.settings"))
		if err != nil {
			t.Fatal(err)
		}
		aside := t.TempDir()
		if err := os.WriteFile(filepath.Join(aside, "nmfwd-igb2.settings"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if set, err := nic.Restore(s, aside, "igb2"); err != nil || words(set) != "-promisc vlanhwtag lro" || on(s, "igb2") != all {
			t.Errorf("Restore: %q, %v, %q", words(set), err, on(s, "igb2"))
		}
		if err := taken.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("what it listens to", func(t *testing.T) {
		s := &fake.System{Interfaces: []nic.Info{{Name: "igb1", Index: 2, MAC: own}}}
		taken := take(t, s, t.TempDir(), nic.Purpose{Name: "igb1", MACs: []net.HardwareAddr{vrrp}})
		if _, err := taken.Again("igb1"); err != nil {
			t.Fatal(err)
		}
		if err := taken.Close(); err != nil {
			t.Fatal(err)
		}
		listen := "igb1: listen allmulti " + vrrp.String()
		if want := []string{listen, listen, "igb1: silent", "igb1: silent"}; !slices.Equal(s.Calls, want) {
			t.Errorf("calls: got %q, want %q", s.Calls, want)
		}
	})
}
