package report

import (
	"bytes"
	"errors"
	"flag"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nmfwd/dataplane"
	"nmfwd/system/nic"
	"nmfwd/system/nic/fake"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// mac returns an address that ends with n.
func mac(n byte) net.HardwareAddr { return net.HardwareAddr{0x00, 0x0d, 0xb9, 0x41, 0xca, n} }

// with returns settings of which the named ones are switched on, or off where
// the name begins with -.
func with(set []nic.Setting, names ...string) []nic.Setting {
	for _, n := range names {
		name, off := strings.CutPrefix(n, "-")
		for i := range set {
			if set[i].Name == name {
				set[i].On = !off
			}
		}
	}
	return set
}

// plan gives the ports workers and the settings that their purpose wants.
func plan(f *Facts, keep ...string) {
	var rings []dataplane.Rings
	for i := range f.Ports {
		rings = append(rings, f.Ports[i].Rings)
	}
	p := dataplane.MakePlan(rings, 0, len(f.CPUs))
	f.Workers = p.Workers
	f.Most, f.Least = p.Imbalance()
	for i := range f.Ports {
		q := &f.Ports[i]
		q.Owners = p.Ports[i]
		want := nic.Purpose{Name: q.Name, Netmap: q.Backend == "netmap", Host: q.Host, VLANs: q.VLANs, Keep: slices.Contains(keep, q.Name)}
		s := want.Plan(&q.Info)
		q.Set, q.Stay = s.Set, s.Stay
	}
}

// apu2 is a PC Engines APU2: four cores, three igb with flow control as they
// come, and host rings, once started.
func apu2() *Facts {
	f := &Facts{Tools: FreeBSD, Opened: true, CPUs: []int{0, 1, 2, 3}}
	for i, unit := range []string{"0", "1", "2"} {
		f.Ports = append(f.Ports, Port{
			Info: nic.Info{Name: "igb" + unit, Driver: "igb", Unit: unit, MAC: mac(byte(0x3c + i)), MTU: 1500, Up: true, Carrier: i > 0, Speed: 1000,
				RXPause: i < 2, TXPause: i < 2, Settings: with(fake.FreeBSD(), "-lro")},
			Backend: "netmap", Mode: "native", ZeroCopy: true, Region: "netmap:1", Rings: dataplane.Rings{RX: 4, TX: 4},
			RXSlots: 1024, TXSlots: 1024, BufSize: 2048, Host: true,
		})
	}
	plan(f)
	return f
}

// c2758 is an Atom C2758 with a Chelsio T540, whose first interfaces netmap only
// emulates, and an Intel X520.
func c2758() *Facts {
	f := &Facts{Tools: FreeBSD, CPUs: []int{1, 2, 3, 4, 5, 6, 7}, Rest: []int{0}, Memory: Memory{Buffers: 163840, BufSize: 2048, Rings: 200, Interfaces: 100, RAM: 8 << 30}}
	for i, name := range []string{"cxl0", "ix0"} {
		p := Port{
			Info:    nic.Info{Name: name, Driver: name[:len(name)-1], Unit: "0", MAC: mac(byte(0x50 + i)), MTU: 1500, Up: true, Carrier: true, Speed: 10_000, Settings: fake.FreeBSD()},
			Backend: "netmap", Mode: "native", Rings: dataplane.Rings{RX: 7, TX: 7}, RXSlots: 2048, TXSlots: 2048, BufSize: 2048, Spare: 1000,
		}
		if i == 0 {
			p.Mode, p.Rings, p.RXSlots, p.TXSlots, p.RXPause, p.TXPause = "emulated", dataplane.Rings{RX: 1, TX: 1}, 1024, 1024, true, true
		}
		f.Ports = append(f.Ports, p)
	}
	plan(f)
	return f
}

// apu1 is a PC Engines APU1: two cores, 2 GB, re(4) with one queue and short
// rings, of which one port keeps its offloads.
func apu1() *Facts {
	f := &Facts{Tools: FreeBSD, CPUs: []int{0, 1}, Memory: Memory{Buffers: 163840, BufSize: 2048, Rings: 200, Interfaces: 100, RAM: 2 << 30}}
	for i, unit := range []string{"1", "2"} {
		f.Ports = append(f.Ports, Port{
			Info: nic.Info{Name: "re" + unit, Driver: "re", Unit: unit, MAC: mac(byte(0x60 + i)), MTU: 1500, Up: true, Carrier: true, Speed: 1000,
				RXPause: i == 1, Settings: slices.DeleteFunc(fake.FreeBSD(), func(s nic.Setting) bool { return strings.HasSuffix(s.Name, "6") || s.Name == "lro" })},
			Backend: "netmap", Mode: "native", Rings: dataplane.Rings{RX: 1, TX: 1}, RXSlots: 256, TXSlots: 256, BufSize: 2048, Host: true, Spare: 512,
		})
	}
	plan(f, "re2")
	f.Ports[0].Left = []nic.Setting{{Name: "txcsum", Kind: nic.TXChecksum, On: true}}
	return f
}

// xdp is a Linux box with an igb and an i40e that both have zero copy, and a kernel
// that asks less than urpf and forwards.
func xdp() *Facts {
	f := &Facts{Tools: Linux, Opened: true, CPUs: []int{1, 2, 3, 4}, Rest: []int{0}}
	for i, c := range []struct {
		name, driver string
		speed, slots int
	}{{"enp1s0", "igb", 1000, 256}, {"enp2s0f0", "i40e", 40_000, 512}} {
		f.Ports = append(f.Ports, Port{
			Info: nic.Info{Name: c.name, Driver: c.driver, MAC: mac(byte(0x70 + i)), MTU: 1500, Up: true, Carrier: true, Speed: c.speed,
				Settings: fake.Linux(), RXSlots: c.slots, TXSlots: c.slots, MaxRXSlots: 4096, MaxTXSlots: 4096},
			Backend: "afxdp", Mode: "native", ZeroCopy: true, Region: "umem0", Rings: dataplane.Rings{RX: 4, TX: 4},
			RXSlots: 4096, TXSlots: 2048, BufSize: 1792, Host: true,
		})
	}
	plan(f)
	f.Ports[0].Sources = []Sources{{Name: "enp1s0", Strict: true, IPv6: true}}
	f.Ports[0].Forwards = true
	return f
}

// veth is a lab of veths with all that can be wrong: one is down, the other has
// pause frames, a short ring and an MTU beyond the buffers; both keep offloads.
func veth() *Facts {
	f := &Facts{Tools: Linux, CPUs: []int{0, 1}, Busy: true, Native: true}
	for i, name := range []string{"lan0", "lan1"} {
		f.Ports = append(f.Ports, Port{
			Info: nic.Info{Name: name, Driver: "veth", MAC: mac(byte(0x80 + i)), MTU: 9000, Up: i == 1, Carrier: i == 1, Speed: 10_000, RXPause: i == 1,
				Settings: fake.Linux(), RXSlots: 256, TXSlots: 256, MaxRXSlots: 256},
			Backend: "afxdp", Rings: dataplane.Rings{RX: 2, TX: 2}, BufSize: 3840, MTU: 1500 + 7500*i + 600*i, VLANs: i == 1,
		})
	}
	plan(f, "lan0", "lan1")
	f.Ports[0].Mode = "generic"
	f.Refused = []Refusal{{"lan1", errors.New("the host lacks 198.18.0.205/24: ip address add 198.18.0.205/24 dev lan1, or say host off")}}
	return f
}

func TestMachines(t *testing.T) {
	for _, c := range []struct {
		name  string
		facts *Facts
		err   string
	}{
		{"apu2-igb", apu2(), ""},
		{"c2758-cxl-ix", c2758(), ""},
		{"apu1-re", apu1(), ""},
		{"linux-zerocopy", xdp(), ""},
		{"linux-veth", veth(), "the host lacks"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got bytes.Buffer
			if err := c.facts.Write(&got); err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", c.name+".txt")
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got.String(), want)
			}
			err = c.facts.Err()
			if (err == nil) != (c.err == "") || err != nil && !strings.HasPrefix(err.Error(), c.err) {
				t.Errorf("error: got %v, want %q", err, c.err)
			}
			// The log says the same.
			var log bytes.Buffer
			c.facts.Log(slog.New(slog.NewTextHandler(&log, nil)))
			if n, lines := strings.Count(log.String(), "\n"), c.facts.Lines(); n != len(lines) {
				t.Errorf("%d lines in the log, want %d", n, len(lines))
			}
			if n, warnings := strings.Count(log.String(), "level=WARN"), strings.Count(got.String(), ": warning: "); n != warnings {
				t.Errorf("%d warnings in the log, want %d", n, warnings)
			}
		})
	}
}

// TestFindings has one finding each, on a port that has none otherwise.
func TestFindings(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*Facts, *Port)
		want string
	}{
		{"nothing", func(*Facts, *Port) {}, ""},
		{"offload keep", func(f *Facts, p *Port) { plan(f, p.Name) },
			"warning: transmit offloads stay on: netmap drops TCP, UDP and large packets of the host, ping gets through; as the port line says (offload keep)\n\tifconfig igb0 -txcsum -txcsum6 -tso4 -tso6 -vlanhwcsum -vlanhwtso"},
		{"refused by the system", func(f *Facts, p *Port) { plan(f, p.Name); p.SetErr = errors.New("operation not permitted") },
			"ping gets through; operation not permitted"},
		{"host on and an MTU beyond the buffers", func(f *Facts, p *Port) {
			f.Opened = false
			p.Info.MTU = 9000
			p.MTU = 1500
			p.Place = "routes.conf:3:1"
		},
			"error: routes.conf:3:1: the host receives and sends packets of the interface's MTU, 9000, each in one buffer of netmap's, and these have 2048 bytes: make them larger before netmap is first used, lower the interface's MTU, or say host off\n\tsysctl dev.netmap.buf_size=9024"},
		{"host on and an MTU beyond the buffers, on Linux", func(f *Facts, p *Port) { f.Opened = false; p.Info.MTU = 2031; p.MTU = 1500; f.Tools = Linux },
			"of the interface's MTU, 2031, each in one buffer of netmap's, and these have 2048 bytes: make them larger before netmap is first used, lower the interface's MTU, or say host off\n\techo 2112 > /sys/module/netmap/parameters/buf_size"},
		{"host on and the largest MTU of the buffers", func(f *Facts, p *Port) { f.Opened = false; p.Info.MTU = 2030; p.MTU = 1500 }, ""},
		{"MTU", func(f *Facts, p *Port) { f.Opened = false; p.Info.MTU = 9000; p.Host = false; plan(f) },
			"error: MTU 9000 needs buffers of 9018 bytes, they have 2048: make them larger before netmap is first used, or lower the MTU\n\tsysctl dev.netmap.buf_size=9024"},
		{"MTU beyond the interface's", func(f *Facts, p *Port) { f.Opened = false; p.MTU = 2000 }, "error: mtu 2000 is more than the interface's 1500\n\tifconfig igb0 mtu 2000"},
		{"vlan lines and tags taken out", func(f *Facts, p *Port) { p.VLANs = true; plan(f, p.Name) },
			"error: the card takes VLAN tags out of frames, so vlan lines have no effect; as the port line says (offload keep)\n\tifconfig igb0 -vlanhwtag"},
		{"vlan lines and emulation", func(f *Facts, p *Port) { p.VLANs = true; p.Mode = "emulated" },
			"error: netmap is emulated on it, which loses VLAN tags"},
		{"pause", func(f *Facts, p *Port) { p.TXPause = true }, "warning: pause frames are on: a full receiver stops its sender, and what is lost is lost where nobody counts it\n\tsysctl dev.igb.0.fc=0"},
		{"pause of re", func(f *Facts, p *Port) { p.RXPause = true; p.Driver = "re" }, "\n\tifconfig igb0 media autoselect -mediaopt flowcontrol"},
		{"pause on Linux", func(f *Facts, p *Port) { p.RXPause = true; f.Tools = Linux }, "\n\tethtool --pause igb0 autoneg off rx off tx off"},
		{"down", func(f *Facts, p *Port) { f.Opened = false; p.Up = false }, "error: the interface is down\n\tifconfig igb0 up"},
		{"emulated", func(f *Facts, p *Port) { p.Mode = "emulated" }, "warning: netmap is emulated on it: driver igb does not support netmap"},
		{"require native", func(f *Facts, p *Port) { p.Mode = "emulated"; f.Native = true }, "error: driver igb does not support netmap, and option require asks for that"},
		{"cxl", func(f *Facts, p *Port) { p.Mode = "emulated"; p.Driver = "cxl"; p.Name = "cxl0" },
			`hw.cxgbe.num_vis="2" in /boot/loader.conf, and "port vcxl0" for "port cxl0"`},
		{"RSS without receive checksums", func(f *Facts, p *Port) { p.Settings = with(p.Settings, "-rxcsum", "-rxcsum6") },
			"warning: receive checksums are off: igb spreads packets over its rings only with them, without all land in ring 0\n\tifconfig igb0 rxcsum rxcsum6"},
		{"short rings", func(f *Facts, p *Port) { p.RXSlots = 512 },
			"warning: its receive rings hold 1.4 ms of smallest frames at line rate, want 2 ms\n\tdev.igb.0.iflib.override_nrxds=\"1024\" in /boot/loader.conf"},
		{"short rings of Chelsio", func(f *Facts, p *Port) { p.RXSlots = 512; p.Driver = "vcxl" }, "\n\thw.cxgbe.qsize_rxq=\"1024\" in /boot/loader.conf"},
		{"the longest rings", func(f *Facts, p *Port) { p.Speed = 100_000; p.RXSlots = 4096 },
			"note: its receive rings hold 0.11 ms of smallest frames at line rate, not 2 ms, and are as long as they get"},
		{"workers that share CPUs", func(f *Facts, p *Port) { f.Busy = true; f.CPUs = f.CPUs[:2] }, "warning: 4 workers that never sleep share 2 CPUs"},
		{"workers with different numbers of rings", func(f *Facts, p *Port) { f.Most, f.Least = 3, 1 }, "warning: workers read different numbers of rings, from 1 to 3"},
		{"two regions", func(f *Facts, p *Port) {
			f.Ports = append(f.Ports, *p)
			f.Ports[1].Name, f.Ports[1].Region = "igb1", "netmap:2"
		},
			"note: frames between igb0 and igb1 are copied: their memory regions, netmap:1 and netmap:2, differ"},
		{"memory", func(f *Facts, p *Port) {
			f.Opened = false
			f.Memory = Memory{Buffers: 4096, BufSize: 2048, Rings: 200, Interfaces: 100}
		},
			"warning: netmap has buf_num=4096, the ports need about 10242\n\tsysctl dev.netmap.buf_num=10242"},
		{"busy", func(f *Facts, p *Port) { p.Busy = true }, "note: an nmfwd runs on it"},
		{"left by a killed one", func(f *Facts, p *Port) { f.Opened = false; p.Left = []nic.Setting{{Name: "lro", On: true}} },
			"warning: an nmfwd that was killed has left settings changed\n\tnmfwd restore igb0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := apu2()
			f.Ports = f.Ports[:1]
			f.Ports[0].RXPause, f.Ports[0].TXPause = false, false
			plan(f)
			c.edit(f, &f.Ports[0])
			var b strings.Builder
			for _, l := range f.Lines() {
				if l.Level > Tell {
					b.WriteString(prefixes[l.Level] + l.Text + "\n\t" + l.Fix + "\n")
				}
			}
			if got := b.String(); !strings.Contains(got, c.want) || c.want == "" && got != "" {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// TestKernelAsksLess: what the kernel lets pass that urpf would not is told, with
// the command that mends it.
func TestKernelAsksLess(t *testing.T) {
	for _, c := range []struct {
		name string
		s    Sources
		fix  string // empty where the kernel asks enough
	}{
		{"strict, nothing asked", Sources{Name: "igb1", Strict: true}, "sysctl net.ipv4.conf.igb1.rp_filter=1"},
		{"strict, loose asked", Sources{Name: "igb1", Strict: true, Own: 2}, "sysctl net.ipv4.conf.igb1.rp_filter=1"},
		{"strict, loose asked of all", Sources{Name: "igb1", Strict: true, Own: 1, All: 2}, "sysctl net.ipv4.conf.igb1.rp_filter=1 net.ipv4.conf.all.rp_filter=0"},
		{"strict, asked", Sources{Name: "igb1", Strict: true, Own: 1}, ""},
		{"strict, asked of all", Sources{Name: "igb1", Strict: true, All: 1}, ""},
		{"loose, nothing asked", Sources{Name: "igb1"}, "sysctl net.ipv4.conf.igb1.rp_filter=2"},
		{"loose, asked", Sources{Name: "igb1", Own: 2}, ""},
		{"loose, strict asked", Sources{Name: "igb1", All: 1}, ""},
		{"a VLAN", Sources{Name: "igb1.100", Strict: true}, "sysctl net.ipv4.conf.igb1/100.rp_filter=1"},
	} {
		f := xdp()
		f.Ports[0].Sources = nil
		before := len(f.Lines())
		f.Ports[0].Sources = []Sources{c.s}
		fix := ""
		for _, l := range f.Lines() {
			if strings.Contains(l.Text, "rp_filter") {
				fix = l.Fix
				if l.Level != Warn || l.Port != f.Ports[0].Name {
					t.Errorf("%s: got %+v, want a warning", c.name, l)
				}
			}
		}
		if fix != c.fix || len(f.Lines()) != before && fix == "" {
			t.Errorf("%s: got %q, want %q", c.name, fix, c.fix)
		}
	}
}
