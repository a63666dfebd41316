//go:build netmap

package netmap

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane"
	"nmfwd/dataplane/netmap"
	"nmfwd/system/nic"
)

// TestSystem compares what FreeBSD says of a card by several ways, before it is
// opened, while it is open and afterwards.
func TestSystem(t *testing.T) {
	name, _ := cards(t)
	sys, err := nic.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close()
	in, err := sys.Info(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", in)
	driver := strings.TrimRight(name, "0123456789")
	if in.Driver != driver || in.Unit != name[len(driver):] || in.MTU != 1500 || len(in.MAC) != 6 || in.Speed == 0 {
		t.Errorf("driver %s unit %s mtu %d address %v speed %d", in.Driver, in.Unit, in.MTU, in.MAC, in.Speed)
	}
	if n, err := sys.Name(in.Index); n != name || err != nil {
		t.Errorf("index %d is %s, %v", in.Index, n, err)
	}
	k := netmap.System()
	used := func(want bool) {
		t.Helper()
		i, err := k.Interface(name)
		for start := time.Now(); err == nil && i.InUse != want && time.Since(start) < patience; time.Sleep(10 * time.Millisecond) {
			i, err = k.Interface(name)
		}
		if err != nil || i.InUse != want || i.MTU != in.MTU || i.MAC.String() != in.MAC.String() || !i.Up {
			t.Errorf("%+v, %v; want in use %v", i, err, want)
		}
	}
	used(false)
	old, err := k.Received(name)
	if err != nil {
		t.Error(err)
	}
	for _, v := range []string{"kern.hz", "dev.netmap.buf_num", "dev.netmap.buf_size", "dev.netmap.ring_num", "dev.netmap.if_num", "dev.netmap.admode"} {
		n, err := unix.SysctlUint32(v)
		t.Log(v, n, err)
	}
	p, err := netmap.Open([]dataplane.PortConfig{cardConfig(t, name, true)}, netmap.Options{LockDir: t.TempDir(), Note: func(s string) { t.Log(s) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v\n%v", p[0].Info, p[0].Device)
	used(true)
	if err := p[0].Device.Close(); err != nil {
		t.Error(err)
	}
	used(false)
	now, err := k.Received(name)
	t.Logf("%d frames received, %d before", now, old)
	if err != nil || now < old {
		t.Errorf("%d frames received, %d before, %v", now, old, err)
	}
	if _, err := sys.Info("nmfwdnone0"); err == nil || !strings.Contains(err.Error(), "there is no such interface") {
		t.Errorf("Info of no interface: %v", err)
	}
	if _, _, err := k.Link("nmfwdnone0"); !errors.Is(err, unix.ENXIO) {
		t.Errorf("Link of no interface: %v", err)
	}
}

// TestSettings switches every offload of a card off and on again that can be,
// and promiscuous mode on and off.
func TestSettings(t *testing.T) {
	_, name := cards(t)
	sys, err := nic.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close()
	before, err := sys.Info(name)
	if err != nil {
		t.Fatal(err)
	}
	taken, err := nic.Take(sys, t.TempDir(), []nic.Purpose{{Name: name, Netmap: true, Host: true, VLANs: true, MACs: []net.HardwareAddr{{2, 0, 0, 0, 0, 1}}}})
	if err != nil {
		t.Fatal(err)
	}
	during, err := sys.Info(name)
	if err != nil {
		t.Error(err)
	}
	for _, s := range during.Settings {
		if want := s.Kind == nic.Promiscuous || s.Kind == nic.RXChecksum && s.On; s.On != want {
			t.Errorf("%s is %s, want %s", s.Name, strconv.FormatBool(s.On), strconv.FormatBool(want))
		}
	}
	if err := taken.Close(); err != nil {
		t.Error(err)
	}
	after, err := sys.Info(name)
	if err != nil {
		t.Error(err)
	}
	for i, s := range after.Settings {
		if s != before.Settings[i] {
			t.Errorf("%+v, want %+v", s, before.Settings[i])
		}
	}
	t.Logf("before %+v\nduring %+v\nafter %+v", before.Settings, during.Settings, after.Settings)
}
