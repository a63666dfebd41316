//go:build integration && linux

package icmp

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"nmfwd/test/frame"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// TestTshark: Wireshark's dissectors find nothing wrong with any message.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Fatalf("tshark is needed: apt-get install tshark: %v", err)
	}
	messages := map[string][]byte{}
	for _, c := range golden() {
		messages[c.name] = frame.Hex(t, c.want)
	}
	for name, p := range map[string][]byte{
		"quote of 1500 bytes": packet4(nil, nil, datagram(1480)), "quote of 1500 bytes, v6": packet6(17, nil, datagram(1460)),
	} {
		messages[name] = build(Error{Kind: TimeExceeded}, p)
	}
	for name, p := range map[string][]byte{"echo reply": echo4(0, 0, nil, []byte("odd")), "echo reply, v6": echo6(nil, []byte("odd"))} {
		b := make([]byte, len(p))
		n, _ := Reply(b, p, destination(p), 1, 0)
		messages[name] = b[:n]
	}
	var b bytes.Buffer
	w := pcapgo.NewWriter(&b)
	if err := w.WriteFileHeader(65535, layers.LinkTypeRaw); err != nil {
		t.Fatal(err)
	}
	names := slices.Sorted(maps.Keys(messages))
	for _, name := range names {
		m := messages[name]
		if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(0, 0), CaptureLength: len(m), Length: len(m)}, m); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "x.pcap")
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), tshark, "-r", file, "-o", "ip.check_checksum:TRUE",
		"-T", "fields", "-e", "_ws.expert.message", "-e", "icmp.checksum.status", "-e", "icmpv6.checksum.status").Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(names) {
		t.Fatalf("%d packets decoded, want %d", len(lines), len(names))
	}
	// Of the packet that is quoted, and of a reply whose request is not there.
	known := strings.NewReplacer(`"Time To Live" only 1`, "", "Dont have echo request", "", ",", "")
	for i, line := range lines {
		f := strings.Split(line, "\t")
		if got := known.Replace(f[0]); got != "" || strings.Trim(f[1]+f[2], "1,") != "" || f[1]+f[2] == "" {
			t.Errorf("%s: %q, want a right checksum and no remarks", names[i], f)
		}
	}
}
