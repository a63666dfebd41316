package dataplane

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"nmfwd/fib"
	"nmfwd/wire"
)

// A flow is what packets share that must stay in order: a group gives all of it
// to one member (RFC 2991). It is told by the addresses and, as far as the packet
// shows them without looking for them, by protocol and ports; fragments of IPv4
// have their addresses only, for but the first one has ports and where one goes
// there go all. In IPv6 the flow label is part of it (RFC 6437, 3; RFC 6438, 3),
// and the first next header: behind extension headers, of which that of
// fragments is one, nothing is looked at. So a sender that changes the label of a
// connection in trouble tries another path.
//
// The numbers that are hashed are loaded as they lie in the packet, whatever
// their byte order on the wire is.

// ported holds the protocols whose header starts with two ports: TCP, UDP, DCCP,
// SCTP and UDP-Lite.
var ported = [256]bool{wire.ProtoTCP: true, wire.ProtoUDP: true, 33: true, 132: true, 136: true}

// Constants of the hash: odd, with half of their bits set.
const (
	hash0 = 0xa0761d6478bd642f
	hash1 = 0xe7037ed1a0b428db
	hash2 = 0x8ebc6af09c88c6e3
	hash3 = 0x589965cc75374cc3
)

// fold multiplies and folds the product: each bit of the result depends on all of
// both.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// hash4 hashes a flow of IPv4: both addresses, and protocol and ports or 0.
func hash4(seed, addrs, rest uint64) uint64 { return fold(fold(addrs^seed, rest^hash0), hash1) }

// hash6 hashes a flow of IPv6: the addresses in halves; flow label and next
// header; ports or 0.
func hash6(seed, sh, sl, dh, dl, label, ports uint64) uint64 {
	return fold(fold(sh^seed, sl^hash0)^label, fold(dh^hash1, dl^hash2)^ports^hash3)
}

// Flow returns the hash of the flow of a packet that passed its gate.
func (st *State) Flow(ip []byte) uint64 {
	if ip[0]>>4 == 6 {
		return st.flow6(ip)
	}
	return st.flow4(ip)
}

// flow4 is Flow for IPv4.
func (st *State) flow4(ip wire.IPv4) uint64 {
	rest := uint64(0)
	if binary.LittleEndian.Uint16(ip[6:])&fragment4 == 0 {
		rest = uint64(ip[9])
		if h := ip.HeaderLen(); ported[ip[9]] && len(ip) >= h+4 && ip.TotalLen() >= h+4 {
			rest |= uint64(binary.LittleEndian.Uint32(ip[h:])) << 32
		}
	}
	return hash4(st.Seed, binary.LittleEndian.Uint64(ip[12:]), rest)
}

// fragment4 are the bits that fragments have in the word of flags and offset: more
// fragments, and the offset.
const fragment4 = 0xff3f

// flow6 is Flow for IPv6.
func (st *State) flow6(ip wire.IPv6) uint64 {
	first := binary.LittleEndian.Uint64(ip) & label6
	ports := uint64(0)
	if ported[ip.NextHeader()] && len(ip) >= wire.IPv6Len+4 && ip.TotalLen() >= wire.IPv6Len+4 {
		ports = uint64(binary.LittleEndian.Uint32(ip[wire.IPv6Len:]))
	}
	word := func(at int) uint64 { return binary.LittleEndian.Uint64(ip[at:]) }
	return hash6(st.Seed, word(8), word(16), word(24), word(32), first, ports)
}

// label6 are the bits of flow label and next header in the first 8 bytes.
const label6 = 0x00ff0000_ffff0f00

// Path returns the adjacency that packets to dst follow which belong to the flow
// of ip, a packet that passed its gate: of a group, that of the flow's member.
func (st *State) Path(dst netip.Addr, ip []byte) *fib.Adjacency {
	a := st.FIB.Lookup(dst)
	if a.Action == fib.Group {
		a = st.FIB.Path(a, st.Flow(ip))
	}
	return a
}
