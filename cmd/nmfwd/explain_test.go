package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"nmfwd/pcap"
)

// frame60 is a frame that the lab forwards.
const frame60 = "000db941ca3d 020000000101 0800 4500002e000000004011da97c6120a01c6130a01 07d007d0001afe97 0102030405060708090a0b0c0d0e0f101112"

// nmfwdInput is nmfwd with something on standard input.
func nmfwdInput(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "NMFWD_BE_THE_COMMAND=1")
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestExplain(t *testing.T) {
	conf := write(t, "routes.conf", lab)
	raw, err := parseFrame(frame60)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	c := pcap.NewWriter(&b)
	for range 2 {
		if err := c.Write(time.Unix(1, 0), raw); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	two := write(t, "two.pcap", b.String())
	zipped := write(t, "two.pcap.gz", gzipped(t, b.Bytes()))
	var ng bytes.Buffer
	w, err := pcapgo.NewNgWriter(&ng, layers.LinkTypeEthernet)
	if err == nil {
		err = errors.Join(w.WritePacket(gopacket.CaptureInfo{CaptureLength: len(raw), Length: len(raw)}, raw), w.Flush())
	}
	if err != nil {
		t.Fatal(err)
	}
	broken := write(t, "broken.pcap", b.String()[:b.Len()-1])
	for _, tt := range []struct {
		name  string
		conf  string
		args  []string
		stdin string
		want  string
		times int
		code  int
	}{
		{"one word", conf, []string{"igb1", strings.ReplaceAll(frame60, " ", "")}, "", "forwarded by igb2", 1, 0},
		{"several words", conf, append([]string{"igb1"}, strings.Fields(frame60)...), "", "forwarded by igb2", 1, 0},
		{"netmap name", conf, []string{"netmap:igb1", frame60}, "", "forwarded by igb2", 1, 0},
		{"standard input", conf, []string{"igb1", "-"}, "# a frame\n" + frame60[:40] + "\n" + frame60[40:] + "\n", "forwarded by igb2", 1, 0},
		{"capture", conf, []string{"igb1", two}, "", "forwarded by igb2", 2, 0},
		{"capture on standard input", conf, []string{"igb1", "-"}, b.String(), "forwarded by igb2", 2, 0},
		{"gzipped capture", conf, []string{"igb1", zipped}, "", "forwarded by igb2", 2, 0},
		{"gzipped capture on standard input", conf, []string{"igb1", "-"}, gzipped(t, b.Bytes()), "forwarded by igb2", 2, 0},
		{"pcapng", conf, []string{"igb1", write(t, "one.pcapng", ng.String())}, "", "forwarded by igb2", 1, 0},
		{"gzipped pcapng", conf, []string{"igb1", write(t, "one.pcapng.gz", gzipped(t, ng.Bytes()))}, "", "forwarded by igb2", 1, 0},
		{"the line of the route", conf, []string{"igb1", frame60}, "", "static, " + conf + ":4:1", 1, 0},
		{"dropped", conf, []string{"igb2", frame60}, "", "dropped (not_our_mac)", 1, 0},
		{"short", conf, []string{"igb1", "00"}, "", "dropped (truncated)", 1, 0},
		{"MAC address unknown", write(t, "nomac.conf", "port e1 198.18.0.205/24 host off\n"), []string{"e1", frame60}, "", "taken to be the frame's destination", 1, 0},

		{"no frame", conf, []string{"igb1"}, "", "<frame>", 1, exUsage},
		{"no configuration", "", []string{"igb1", frame60}, "", "--config", 1, exUsage},
		{"no such port", conf, []string{"igb9", frame60}, "", "has no port igb9", 1, exUsage},
		{"not hexadecimal", conf, []string{"igb1", "00zz"}, "", `"00zz" is neither`, 1, exUsage},
		{"odd digits", conf, []string{"igb1", "000"}, "", `"000" is neither`, 1, exUsage},
		{"no such file", conf, []string{"igb1", "none.pcap"}, "", "none.pcap", 1, exNoInput},
		{"no such configuration", filepath.Join(t.TempDir(), "none.conf"), []string{"igb1", frame60}, "", "none.conf", 1, exNoInput},
		{"bad configuration", write(t, "bad.conf", "prot igb1\n"), []string{"igb1", frame60}, "", "bad.conf:1:1", 1, exDataErr},
		{"empty configuration", write(t, "empty.conf", "# nothing\n"), []string{"igb1", frame60}, "", "no port line", 1, exDataErr},
		{"broken capture", conf, []string{"igb1", broken}, "", "frame 2", 1, exDataErr},
		{"gzipped capture that was cut", conf, []string{"igb1", write(t, "cut.gz", gzipped(t, b.Bytes())[:40])}, "", "cut.gz: unexpected EOF", 1, exDataErr},
		{"capture of no Ethernet", conf, []string{"igb1", write(t, "raw.pcap", b.String()[:20]+"\x65"+b.String()[21:])}, "", "raw.pcap: link type is 101", 1, exDataErr},
		{"no capture", conf, []string{"igb1", conf}, "", "neither a capture nor", 1, exDataErr},
		{"empty standard input", conf, []string{"igb1", "-"}, "", "neither a capture nor", 1, exDataErr},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := []string{"explain"}
			if tt.conf != "" {
				args = append(args, "-c", tt.conf)
			}
			stdout, stderr, code := nmfwdInput(t, tt.stdin, append(args, tt.args...)...)
			if code != tt.code {
				t.Errorf("got exit code %d, want %d", code, tt.code)
			}
			if got := stdout + stderr; strings.Count(got, tt.want) != tt.times {
				t.Errorf("want %d times %q in\n%s", tt.times, tt.want, got)
			}
		})
	}
}

// gzipped returns b compressed.
func gzipped(t *testing.T, b []byte) string {
	t.Helper()
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	_, err := w.Write(b)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return z.String()
}

// FuzzReadFrames reads arbitrary bytes as frames.
func FuzzReadFrames(f *testing.F) {
	f.Add([]byte(frame60))
	f.Add([]byte{0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0})
	f.Add([]byte{0x0a, 0x0d, 0x0d, 0x0a})
	f.Fuzz(func(t *testing.T, b []byte) {
		frames, err := readFrames("x", b)
		if err == nil && (len(frames) == 0 || len(frames[0]) == 0) {
			t.Error("neither a frame nor an error")
		}
	})
}
