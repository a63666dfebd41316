//go:build integration && linux

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestShow asks an nmfwd that forwards for everything, has it reload good and bad
// files, kills it, and starts the next at the socket that it left.
func TestShow(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "control")
	b := newBox(t, "route 10.0.0.0/8 via 198.19.0.7\nroute 192.0.2.0/24 blackhole\narp 198.19.0.7 00:00:5e:00:53:01\nlisten control "+socket+"\n")
	edit := func(line string) {
		t.Helper()
		text, err := os.ReadFile(b.conf)
		if err == nil {
			err = os.WriteFile(b.conf, append(text, line+"\n"...), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	says := func(code int, want string, args ...string) {
		t.Helper()
		out, got := b.run(args...)
		if got != code || !strings.Contains(out, want) {
			t.Errorf("%q: exit code %d, want %d; no %q in\n%s", args, got, code, want, out)
		}
	}
	show := func(what string) []string {
		return append([]string{"show", "-s", socket}, strings.Fields(what)...)
	}

	says(exUnavailable, "no such socket", show("status")...)
	cmd, _ := b.forward()
	for what, want := range map[string]string{
		"":                           fmt.Sprintf("process         %d, ", cmd.Process.Pid),
		"ports":                      "lan1  up    afxdp/veth",
		"ports lan0":                 "settings     changed while nmfwd runs: ethtool --features lan0 rx-vlan-hw-parse off",
		"routes":                     "192.0.2.0/24     static     blackhole  yes",
		"routes 10.0.0.0/8 --longer": "10.0.0.0/8  static  via   yes   198.19.0.7  lan1  static",
		"route 10.1.2.3":             "10.1.2.3: forward by lan1 to 198.19.0.7 at 00:00:5e:00:53:01 mtu 1500\n",
		"neighbors":                  "198.19.0.7  00:00:5e:00:53:01  lan1  static  static    -\n",
		"counters --all":             "lan1  dropped urpf",
		"drops --all":                "lan0  internal",
		"workers":                    "lan0:0",
		"unused --for 1s":            "2 of 2 routes had no packet in 1 s\n",
	} {
		says(0, want, show(what)...)
		out, code := b.run(append(show(what), "--json")...)
		for _, l := range strings.Split(strings.TrimSpace(out), "\n") {
			if code != 0 || !json.Valid([]byte(l)) {
				t.Errorf("%s --json: exit code %d: %q", what, code, l)
			}
		}
	}
	// What somebody else sets meanwhile is not told as set.
	if out, err := b.Output(b.Context(), "ethtool", "--features", "lan0", "rx-vlan-hw-parse", "on"); err != nil {
		t.Fatal(err, out)
	}
	says(0, "settings lost  ethtool --features lan0 rx-vlan-hw-parse off sets them again\n", show("ports lan0")...)
	if out, _ := b.run(show("ports lan0")...); strings.Contains(out, "changed while nmfwd runs: ethtool --features lan0 rx-vlan-hw-parse") {
		t.Errorf("a lost setting is told as set:\n%s", out)
	}
	says(0, "reloads         0, and 0 refused", "show", "-c", b.conf)
	says(0, "", "sync", "-s", socket)
	says(exUsage, "there are lan0, lan1", show("ports lan2")...)
	says(exUsage, "--longer", show("status --longer")...)
	says(exUsage, "can't be used together", "show", "-s", socket, "-c", b.conf)
	says(exUnavailable, "in use by another nmfwd", "-c", b.conf)

	edit("route 172.16.0.0/12 blackhole")
	says(0, ": 3 routes, 1 neighbors\n", "reload", "-s", socket)
	says(0, "172.16.5.5: blackhole\n", show("route 172.16.5.5")...)
	edit("listen metrics 127.0.0.1:0")
	says(exDataErr, b.conf+":8:1: a change of listen metrics needs a restart\n", "reload", "-s", socket)
	edit("route 172.17.0.0/16 blackhole\nroute nonsense")
	out, code := b.run("reload", "-s", socket)
	if code != exDataErr || !strings.HasPrefix(out, b.conf+":10:7: ") {
		t.Errorf("reload of a file that is wrong: exit code %d: %s", code, out)
	}
	says(0, "172.16.0.0/12", show("route 172.17.0.1")...)
	says(0, "reloads         1, and 2 refused", show("status")...)

	// It gives the socket up at the end, even with a client that waits.
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := b.end(cmd, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}

	edit("# good again")
	text, err := os.ReadFile(b.conf)
	if err == nil {
		err = os.WriteFile(b.conf, []byte(strings.Replace(string(text), "route nonsense\n", "", 1)), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	killed, _ := b.forward()
	b.end(killed, syscall.SIGKILL)
	says(exUnavailable, "nobody answers", show("status")...)
	next, _ := b.forward()
	says(0, fmt.Sprintf("process         %d, ", next.Process.Pid), show("status")...)
	if err := b.end(next, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}
