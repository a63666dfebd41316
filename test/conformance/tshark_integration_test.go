//go:build integration && linux

package conformance

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// made are the kinds of expressions of frames that the router makes, and does not
// just forward.
var made = []string{"error", "echo_reply", "fragment", "ARP", "NS", "NA"}

// known are the remarks about packets that errors quote, and about what the cases
// are: the last hop of a packet in fragments, an address that two stations claim.
var known = strings.NewReplacer(
	`"Time To Live" only 1`, "",
	`"Time To Live" only 0`, "",
	"4 NOP in a row - a router may have removed some options", "",
	"Record Route (with too-short option length = 1 byte)", "",
	"Record Route (with too-short option length = 0 bytes)", "",
	"Record Route (option length = 9 bytes says option goes past end of options)", "",
	"When IPv6 payload length does not equal 0 a Jumbo Payload option must not be present", "",
	"Routing header type is deprecated", "",
	"IPv6 Hop-by-Hop extension header must appear immediately after IPv6 header", "",
	"Duplicate IP address configured (198.19.0.205)", "",
)

// TestTshark: Wireshark's dissectors find nothing wrong with any frame of the
// table that the router makes, tagged or not: length, checksum or field. What
// they find in the packet that an error quotes is what the error is about.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Fatalf("tshark is needed: apt-get install tshark: %v", err)
	}
	var frames []Frame
	kinds := make(map[string]int)
	for _, c := range all(t) {
		for _, s := range c.Steps {
			for _, f := range s.Off.Out {
				kind, _, _ := strings.Cut(f.Expr, " ")
				if slices.Contains(made, kind) {
					f.Expr = c.Name + ": " + f.Expr
					frames = append(frames, f)
					kinds[kind]++
				}
			}
		}
	}
	for _, k := range made {
		if kinds[k] == 0 {
			t.Errorf("no case has a frame of kind %s", k)
		}
	}
	var b bytes.Buffer
	w := pcapgo.NewWriter(&b)
	if err := w.WriteFileHeader(65535, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for i, f := range frames {
		// Far apart, so that none is taken for a repetition of another.
		info := gopacket.CaptureInfo{Timestamp: time.Unix(int64(i)*3600, 0), CaptureLength: len(f.Bytes), Length: len(f.Bytes)}
		if err := w.WritePacket(info, f.Bytes); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "x.pcap")
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), tshark, "-r", file, "-o", "ip.check_checksum:TRUE", "-o", "ip.defragment:FALSE",
		"-T", "fields", "-e", "_ws.expert.message", "-e", "ip.checksum.status", "-e", "icmp.checksum.status", "-e", "icmpv6.checksum.status").Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(frames) {
		t.Fatalf("%d frames decoded, want %d", len(lines), len(frames))
	}
	for i, line := range lines {
		f := strings.Split(line, "\t")
		// The first status is that of the frame itself, others are of what it quotes.
		bad := slices.ContainsFunc(f[1:], func(s string) bool { return s != "" && s[0] != '1' })
		if got := strings.Trim(known.Replace(f[0]), ","); got != "" || bad {
			t.Errorf("%s: %q, want right checksums and no remarks", frames[i].Expr, f)
		}
	}
	t.Logf("%d frames: %v", len(frames), kinds)
}
