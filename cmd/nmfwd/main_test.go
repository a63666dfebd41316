package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"nmfwd/pcap"
	"nmfwd/test/frame"
	"nmfwd/wire"
)

// TestMain lets the test binary be the command: tests run it as a user would.
func TestMain(m *testing.M) {
	if os.Getenv("NMFWD_BE_THE_COMMAND") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// nmfwd runs the command and returns what it printed and its exit code.
func nmfwd(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "NMFWD_BE_THE_COMMAND=1")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// write puts text into a file of the test's folder and returns its name.
func write(t *testing.T, name, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

const lab = `
port igb1 mac 00:0d:b9:41:ca:3d 198.18.0.205/24 2001:2::205/64 host off
port igb2 mac 00:0d:b9:41:ca:3e 198.19.0.205/24 2001:2:0:8000::205/64 host off
route 198.19.0.0/16 via 198.19.0.203
arp 198.19.0.203 00:1b:21:c4:95:7b
`

func TestExitCodes(t *testing.T) {
	good := write(t, "routes.conf", lab)
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"no arguments", nil, 64, "--config"},
		{"unknown flag", []string{"--nonsense"}, 64, "nonsense"},
		{"the file given twice", []string{"-c", good, "-t", "-c", good}, 64, "--config is given twice"},
		{"unknown command", []string{"nonsense"}, 64, "nonsense"},
		{"version", []string{"--version"}, 0, ""},
		{"help", []string{"--help"}, 0, ""},
		{"check of a good file", []string{"-t", "-c", good}, 0, ""},
		{"no such file", []string{"-c", good + ".not"}, 66, "no such file"},
		{"a folder", []string{"-c", t.TempDir()}, 66, "directory"},
		{"errors in the file", []string{"-t", "-c", write(t, "bad.conf", "port igb1 10.0.0.1/33\nroute 10.0.0.5;\n")}, 65, "bad.conf:2:7: "},
		{"nothing to forward", []string{"-t", "-c", write(t, "empty.conf", "# nothing\n")}, 65, "empty.conf: no port line"},
		{"no such port", []string{"-c", write(t, "port.conf", "port nosuchport0 10.0.0.1/24 driver afxdp\n")}, 69, "port.conf:1:1: "},
		{"addresses of no host", []string{"-c", write(t, "kernel.conf", "port m0 addr kernel\nport m1 addr kernel\n"), "--pcap", "m0=" + good + ":"}, 65, "kernel.conf:2:1: port m1: addr kernel"},
		{"routes of no system", []string{"-c", write(t, "pcap.conf", lab+"option routes kernel\n"), "--pcap", "netmap:igb1=" + good + ":"}, 65, "pcap.conf:6:1: option routes kernel means nothing with --pcap"},
		{"addresses of no such port", []string{"-c", write(t, "kernel.conf", "port nosuchport0 addr kernel\n")}, 69, "kernel.conf:1:1: addresses of port nosuchport0: route ip+net: no such network interface"},
		{"capture that ends early", []string{"-c", good, "--pcap", "netmap:igb1=" + write(t, "cut.pcap", capture(udp(19, 64))[:60]) + ":"}, 65, "cut.pcap: unexpected EOF"},
		{"capture for a port that is not there", []string{"-c", good, "--pcap", "igb9=:"}, 64, "igb9"},
		{"capture that is not there", []string{"-c", good, "--pcap", "igb1=" + good + ".pcap:"}, 66, ".pcap"},
		{"capture that is none", []string{"-c", good, "--pcap", "igb1=" + good + ":"}, 65, "routes.conf: no capture file"},
		{"import of nothing", []string{"import", "rc.conf", good + ".not"}, 66, "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, code := nmfwd(t, c.args...)
			if code != c.code || !strings.Contains(stderr, c.says) {
				t.Errorf("got exit code %d, want %d; standard error %q, want it to contain %q; standard output %q", code, c.code, stderr, c.says, stdout)
			}
		})
	}
}

// TestMessages: errors and warnings about a file begin with their place, all of
// them, and help says which flag names the file.
func TestMessages(t *testing.T) {
	bad := write(t, "bad.conf", "port\nroute 10.0.0.0/8\n")
	_, stderr, _ := nmfwd(t, "-t", "-c", bad)
	for i, l := range strings.Split(strings.TrimSpace(stderr), "\n") {
		if !strings.HasPrefix(l, fmt.Sprintf("%s:%d:", bad, i+1)) {
			t.Errorf("got line %q", l)
		}
	}
	twice := write(t, "twice.conf", "port igb1\nport igb1\n")
	if _, stderr, _ = nmfwd(t, "-t", "-c", twice); !strings.HasPrefix(stderr, twice+":2:1: warning: port igb1 again") {
		t.Errorf("got %q", stderr)
	}
	if stdout, _, _ := nmfwd(t, "--help"); !strings.Contains(stdout, "run --config=FILE") || !strings.Contains(stdout, "import rc.conf") {
		t.Errorf("got help\n%s", stdout)
	}
}

// capture returns a pcap file of the frames.
func capture(frames ...[]byte) string {
	var b bytes.Buffer
	w := pcap.NewWriter(&b)
	for _, f := range frames {
		w.Write(time.Unix(1, 0), f)
	}
	w.Flush()
	return b.String()
}

// udp is 198.18.10.1 -> dst, UDP, to igb1.
func udp(dst byte, ttl byte) []byte {
	to, from := wire.MACOf([]byte{0, 0x0d, 0xb9, 0x41, 0xca, 0x3d}), wire.MACOf([]byte{0, 0x1b, 0x21, 0xc4, 0x95, 0x7a})
	return frame.UDP4(to, from, netip.AddrFrom4([4]byte{198, 18, 10, 1}), netip.AddrFrom4([4]byte{198, dst, 10, 1}), ttl, 60)
}

func TestReplay(t *testing.T) {
	in := write(t, "in.pcap", capture(udp(19, 64), udp(19, 1), udp(20, 64)))
	out := filepath.Join(t.TempDir(), "out.pcap")
	stdout, stderr, code := nmfwd(t, "-c", write(t, "routes.conf", lab), "--pcap", "igb1="+in+":", "--pcap", "igb2=:"+out)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	want := [][]string{
		{"igb1", "received", "3"},
		{"igb1", "forwarded", "ipv4", "1"},
		{"igb1", "punted", "ttl", "1"},
		{"igb1", "punted", "unreachable", "1"},
		{"igb2", "transmitted", "1"},
	}
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	for i, l := range lines {
		if i >= len(want) || strings.Join(strings.Fields(l), " ") != strings.Join(want[i], " ") {
			t.Errorf("line %d: got %q", i, l)
		}
	}
	if len(lines) != len(want) {
		t.Errorf("got %d lines, want %d:\n%s", len(lines), len(want), stdout)
	}
	sent, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	f := udp(19, 63)
	copy(f, []byte{0, 0x1b, 0x21, 0xc4, 0x95, 0x7b, 0, 0x0d, 0xb9, 0x41, 0xca, 0x3e})
	if len(sent) != 24+16+60 || !bytes.Equal(sent[40:], f) {
		t.Errorf("got a capture of %d bytes, % x; want one frame, % x", len(sent), sent, f)
	}
}

// TestReplayOverwritesNothing: an output that is a file which the replay needs is
// refused before any file is touched.
func TestReplayOverwritesNothing(t *testing.T) {
	text := capture(udp(19, 64))
	for _, c := range []struct {
		name   string
		p1, p2 string // %s is the folder
	}{
		{"a later input", "%[1]s/a.pcap:%[1]s/b.pcap", "%[1]s/b.pcap:%[1]s/o.pcap"},
		{"an earlier input", "%[1]s/a.pcap:", "%[1]s/b.pcap:%[1]s/../%[2]s/a.pcap"},
		{"the own input", "%[1]s/a.pcap:%[1]s/soft.pcap", ":%[1]s/o.pcap"},
		{"another output", "%[1]s/a.pcap:%[1]s/b.pcap", ":%[1]s/hard.pcap"},
		{"another output that is not there", "%[1]s/a.pcap:%[1]s/o.pcap", ":%[1]s/./o.pcap"},
		{"the configuration", "%[1]s/a.pcap:%[1]s/b.pcap", ":%[1]s/routes.conf"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			files := map[string]string{"a.pcap": text, "b.pcap": text, "routes.conf": lab}
			for name, text := range files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(os.Symlink("a.pcap", filepath.Join(dir, "soft.pcap")), os.Link(filepath.Join(dir, "b.pcap"), filepath.Join(dir, "hard.pcap"))); err != nil {
				t.Fatal(err)
			}
			at := func(s string) string {
				return strings.NewReplacer("%[1]s", dir, "%[2]s", filepath.Base(dir)).Replace(s)
			}
			_, stderr, code := nmfwd(t, "-c", filepath.Join(dir, "routes.conf"), "--pcap", "igb1="+at(c.p1), "--pcap", "igb2="+at(c.p2))
			if code != exUsage || !strings.Contains(stderr, "--pcap") {
				t.Errorf("exit code %d: %s", code, stderr)
			}
			for name, want := range files {
				if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
					t.Errorf("%s has %d bytes, want %d: %v", name, len(got), len(want), err)
				}
			}
			if _, err := os.Stat(filepath.Join(dir, "o.pcap")); err == nil {
				t.Error("an output was made")
			}
		})
	}
}

func TestImport(t *testing.T) {
	rc := write(t, "rc.conf", `ifconfig_igb1="inet 198.18.0.205/24"`+"\n"+`defaultrouter="198.18.0.1"`+"\n")
	stdout, stderr, code := nmfwd(t, "import", "rc.conf", rc)
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if _, stderr, code := nmfwd(t, "-t", "-c", write(t, "routes.conf", stdout)); code != 0 {
		t.Errorf("what import printed does not pass the check: %s\n%s", stderr, stdout)
	}
	if !strings.Contains(stdout, "198.18.0.1") {
		t.Errorf("the default route is missing:\n%s", stdout)
	}
}

func TestNorm(t *testing.T) {
	for _, c := range []struct {
		v    float64
		want string
	}{{0, "0.000 pps"}, {999, "999.000 pps"}, {1488095, "1.488 Mpps"}, {14.88e6, "14.880 Mpps"}, {1e9, "1.000 Gpps"}, {2e12, "2000.000 Gpps"}} {
		if got := norm(c.v, "pps"); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}
