package main

import (
	"bytes"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"nmfwd/dataplane"
	"nmfwd/dataplane/netmap"
	netmapfake "nmfwd/dataplane/netmap/fake"
	"nmfwd/system/nic"
	nicfake "nmfwd/system/nic/fake"
)

// TestCardThatComesBackIsSetAgain takes a card out under a netmap port with a host,
// and puts it back as a fresh system has it: its offloads are off and it is
// promiscuous again, show says what is so at any time, and at the end the card has
// what it had at first.
func TestCardThatComesBackIsSetAgain(t *testing.T) {
	const port = "igb1"
	mac := net.HardwareAddr{2, 0, 0, 0, 1, 0}
	sys := &nicfake.System{Interfaces: []nic.Info{{Name: port, Index: 2, MAC: mac, Settings: nicfake.FreeBSD()}}}
	dir := t.TempDir()
	settings, err := nic.Take(sys, dir, []nic.Purpose{{Name: port, Netmap: true, Host: true, VLANs: true, MACs: []net.HardwareAddr{{0, 0, 0x5e, 0, 1, 7}}}})
	if err != nil {
		t.Fatal(err)
	}
	set, lost := settingsNow(settings, port)
	if words := strings.Fields(set); len(words) < 10 || lost != "" {
		t.Fatalf("set %q, lost %q", set, lost)
	}
	file := func() string {
		b, err := os.ReadFile(filepath.Join(dir, "nmfwd-"+port+".settings"))
		if err != nil {
			t.Fatal(err)
		}
		_, saved, _ := strings.Cut(string(b), "set ")
		return saved
	}
	first := file()

	k := netmapfake.New(netmapfake.DefaultParams)
	k.Polls = false
	card := k.AddCard(netmapfake.Card{Name: port, Interface: netmap.Interface{MAC: mac}})
	var log bytes.Buffer
	o := opening(slog.New(slog.NewTextHandler(&log, nil)))
	ports, err := netmap.Open([]dataplane.PortConfig{{Name: port, Host: true, Owners: dataplane.Owners{RX: []int{0}, TX: []int{0}}}}, netmap.Options{
		Kernel: k, LockDir: dir,
		Prepare: func(port string) { o.TakeAgain(settings, port) },
	})
	if err != nil {
		t.Fatal(err)
	}
	p := ports[0]
	// until does what a worker does with the port.
	until := func(what string, done func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !done(); time.Sleep(time.Millisecond) {
			for _, q := range append(p.Queues[:1:1], p.Host...) {
				if _, err := q.Descriptor.Before(false); err != nil {
					t.Fatal(err)
				}
			}
			if time.Now().After(end) {
				t.Fatalf("waited in vain for %s", what)
			}
		}
	}
	for round := range uint64(3) {
		card.SetGone(true)
		sys.Interfaces[0].Settings = nicfake.FreeBSD()
		if now, lost := settingsNow(settings, port); now != "" || lost != set {
			t.Errorf("as it comes back: set %q, lost %q", now, lost)
		}
		until("the port to be closed", func() bool { return p.Device.(dataplane.Watcher).Changed() != nil })
		card.SetGone(false)
		until("the port to be opened again", func() bool { return p.Device.(dataplane.Staller).Reopened() == round+1 })
		if now, lost := settingsNow(settings, port); now != set || lost != "" {
			t.Errorf("round %d: set %q, want %q; lost %q", round, now, set, lost)
		}
		if got := file(); got != first {
			t.Errorf("round %d: to be given back: %q, want %q", round, got, first)
		}
	}
	if err := p.Device.Close(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), `msg="settings changed while nmfwd runs, again" port=igb1 settings="`); n != 3 || strings.Contains(log.String(), "level=WARN") {
		t.Errorf("log:\n%s", log.String())
	}
	if err := settings.Close(); err != nil {
		t.Error(err)
	}
	want := nicfake.FreeBSD()
	for i, s := range sys.Interfaces[0].Settings {
		if s != want[i] {
			t.Errorf("at the end: %+v, want %+v", s, want[i])
		}
	}
}
