package nic

import (
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var sample = record{
	name: "igb1", pid: 4711, mac: net.HardwareAddr{0, 0x0d, 0xb9, 0x41, 0xca, 0x3d}, index: 2,
	settings: []Setting{{Name: "txcsum", On: true}, {Name: "promisc"}},
}

const sampleText = `nmfwd settings 1
# What igb1 had before nmfwd changed it; "nmfwd restore igb1" gives it back.
port igb1
pid 4711
device 2 00:0d:b9:41:ca:3d
set txcsum on
set promisc off
`

func TestRecord(t *testing.T) {
	if got := string(sample.text()); got != sampleText {
		t.Errorf("got\n%s\nwant\n%s", got, sampleText)
	}
	r, err := parseRecord([]byte(sampleText))
	if err != nil || !reflect.DeepEqual(r, &sample) {
		t.Errorf("got %+v, %v", r, err)
	}
	for _, c := range []struct{ name, old, new, wrong string }{
		{"another version", "settings 1", "settings 2", "line 1: "},
		{"cut", sampleText[len("nmfwd settings 1\n"):], "", `no line "port"`},
		{"no such line", "pid", "pd", "line 4: "},
		{"value", "txcsum on", "txcsum maybe", "line 6: "},
		{"name", "txcsum on", "tx;csum on", "line 6: "},
		{"too many words", "txcsum on", "txcsum on on", "line 6: "},
		{"twice", "promisc off", "txcsum off", "line 7: "},
		{"two pids", "set promisc off", "pid 1", "line 7: "},
		{"number", "4711", "4711x", "line 4: "},
		{"address", "ca:3d", "ca", "line 5: "},
		{"no name", "port igb1", "port ", "line 3: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(sampleText, c.old, c.new, 1)
			if text == sampleText {
				t.Fatal("the case changes nothing")
			}
			if _, err := parseRecord([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), c.wrong) {
				t.Errorf("got %v, want %q", err, c.wrong)
			}
		})
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(sampleText))
	f.Add([]byte("nmfwd settings 1\nport a\npid 1\ndevice 1 \n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseRecord(data)
		if err != nil {
			return
		}
		again, err := parseRecord(r.text())
		if err != nil || !reflect.DeepEqual(r, again) {
			t.Errorf("%q reads as %+v, then as %+v, %v", data, r, again, err)
		}
	})
}

func TestTrusted(t *testing.T) {
	p := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(p, []byte(sampleText), 0o600); err != nil {
		t.Fatal(err)
	}
	if f, _, err := openFile(p, false); err != nil {
		t.Error(err)
	} else {
		f.close()
	}
	if os.Chown(p, 12345, -1) != nil {
		t.Skip("not root")
	}
	if _, _, err := openFile(p, false); err == nil || !strings.Contains(err.Error(), "user 12345") {
		t.Errorf("file of another user: %v", err)
	}
	link := p + ".link"
	if err := os.Symlink(p, link); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openFile(link, true); err == nil {
		t.Error("a symbolic link was followed")
	}
}

func TestCapabilities(t *testing.T) {
	// What igb has on FreeBSD 12: RXCSUM, TXCSUM, VLAN_MTU, VLAN_HWTAGGING,
	// JUMBO_MTU, VLAN_HWCSUM, TSO4, TSO6, LRO, WOL_*, VLAN_HWFILTER, VLAN_HWTSO,
	// NETMAP, RXCSUM_IPV6, TXCSUM_IPV6; VLAN_HWFILTER is off.
	const have, enabled = 0x753fbb, 0x6403bb
	s := capSettings(have, enabled, false)
	var names []string
	for _, x := range s {
		names = append(names, x.Name+" "+onOff(x.On))
	}
	want := "rxcsum on, txcsum on, rxcsum6 on, txcsum6 on, tso4 on, tso6 on, lro off, vlanhwtag on, vlanhwcsum on, vlanhwtso on, vlanhwfilter off, promisc off"
	if got := strings.Join(names, ", "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	p := Purpose{Netmap: true, Host: true, VLANs: true, MACs: []net.HardwareAddr{{0, 0, 0x5e, 0, 1, 7}}}
	bits, rest := capBits(enabled, p.Plan(&Info{Settings: s}).Set)
	// RXCSUM, RXCSUM_IPV6, VLAN_MTU and JUMBO_MTU stay.
	if bits != 0x200029 || len(rest) != 1 || rest[0].Name != promisc || !rest[0].On {
		t.Errorf("got %#x, %+v", bits, rest)
	}
	if s := capSettings(0, 0x10, true); len(s) != 2 || !s[0].Fixed || !s[1].On {
		t.Errorf("a capability that cannot be changed: %+v", s)
	}
}

func TestMediaSpeed(t *testing.T) {
	for _, c := range []struct {
		name   string
		active uint32
		want   int
	}{
		{"none", 0x20, 0},
		{"1000baseT full duplex", 0x100030, 1000},
		{"100baseTX with pause", 0x100626, 100},
		{"10Gbase-SR", 0x100033, 10_000},
		{"2500Base-T, an extended type", 0x100825, 2500},
		{"10GBase-KR, an extended type", 0x100821, 10_000},
		{"not Ethernet", 0x90, 0},
	} {
		if got := mediaSpeed(c.active); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}
