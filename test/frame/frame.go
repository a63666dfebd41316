// Package frame makes the frames that tests of several packages send.
package frame

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"nmfwd/wire"
)

// Hex returns the bytes that parts say in hexadecimal, one after the other. Blanks
// do not matter.
func Hex(t testing.TB, parts ...string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(strings.Join(parts, ""), " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// UDP4 returns a frame of size bytes, at least 60, with an IPv4 packet from src to
// dst whose payload is zero: a UDP header of port 0 and data.
func UDP4(to, from wire.MAC, src, dst netip.Addr, ttl byte, size int) []byte {
	b := make([]byte, size)
	wire.PutEthernet(b, to, from, wire.TypeIPv4)
	ip := b[wire.EthernetLen:]
	ip[0], ip[8], ip[9] = 0x45, ttl, wire.ProtoUDP
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	copy(ip[12:], src.AsSlice())
	copy(ip[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], wire.Checksum(ip[:wire.IPv4Len]))
	return b
}
