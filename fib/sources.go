package fib

import "math/bits"

// Sources say which IPv4 addresses no other station sends from: the router's own,
// and the broadcasts of its networks (RFC 1812, 5.3.7). Every packet is looked at,
// so that costs a multiplication and a byte; the source of one that hits is looked
// up as well. Of other sources one in 4,096 hits for each such address, but none
// that differs in the last byte only, as most of a connected network do.
type Sources [1 << sourcesBits]uint8

const sourcesBits = 12

// May reports whether a may be such an address.
func (s *Sources) May(a uint32) bool { return s[SourceHash(bits.ReverseBytes32(a))] != 0 }

// SourceHash returns the place in Sources of an address that was read from a
// packet as a little-endian number. An odd factor keeps numbers apart that differ
// in the highest byte only, which is the last one of the address.
func SourceHash(le uint32) uint32 { return le * 0x9e3779b1 >> (32 - sourcesBits) }

// sources counts the routes that Sources are made of: those to one address.
type sources struct {
	counts [1 << sourcesBits]int32
	now    Sources
}

// add adds a route with prefix k of IPv4 that asks for kind, or with n -1 takes it
// out.
func (s *sources) add(k key, kind Kind, n int32) {
	if k.len != 32 || kind != Local && kind != Broadcast {
		return
	}
	at := SourceHash(bits.ReverseBytes32(uint32(k.hi >> 32)))
	s.counts[at] += n
	s.now[at] = uint8(min(s.counts[at], 1))
}
