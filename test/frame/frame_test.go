package frame

import (
	"bytes"
	"net/netip"
	"testing"

	"nmfwd/wire"
)

func TestUDP4(t *testing.T) {
	to, from := wire.MACOf([]byte{2, 0, 0, 0, 0, 1}), wire.MACOf([]byte{2, 0, 0, 0, 0, 2})
	got := UDP4(to, from, netip.MustParseAddr("198.18.10.1"), netip.MustParseAddr("198.19.10.1"), 64, 60)
	want := append(Hex(t, "020000000001 020000000002 0800", "4500002e00000000 40110000", "c6120a01 c6130a01"), make([]byte, 26)...)
	want[24], want[25] = got[24], got[25]
	if !bytes.Equal(got, want) || wire.Checksum(got[14:34]) != 0 {
		t.Errorf("got %x, want %x and a right checksum", got, want)
	}
}
