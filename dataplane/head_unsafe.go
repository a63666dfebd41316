package dataplane

import (
	"encoding/binary"
	"math/bits"
	"unsafe"

	"nmfwd/fib"
	"nmfwd/wire"
)

// A head is the start of a frame in its buffer, read and written without
// bounds checks. An access at offset n is right when the frame has the bytes:
// its user compares with the frame's length first. Numbers are little-endian,
// as on every processor that nmfwd is built for, whatever the wire says.
type head struct{ p unsafe.Pointer }

// head returns the start of the frame that s names, which must lie in the
// region, as Bytes demands.
func (r *Region) head(s *Slot) head {
	return head{unsafe.Add(unsafe.Pointer(unsafe.SliceData(r.mem)), uintptr(s.Buf)*uintptr(r.stride)+uintptr(s.Off))}
}

// ShortCopy is how many bytes CopyShort copies.
const ShortCopy = 64

// CopyShort copies the first ShortCopy bytes of buffer n of region from to buffer
// b of r, without a call or a bounds check: both buffers must lie in their regions
// and have as many bytes.
func (r *Region) CopyShort(b uint32, from *Region, n uint32) {
	type short struct{ _, _, _, _ [ShortCopy / 4]byte }
	*(*short)(r.head(&Slot{Buf: b}).p) = *(*short)(from.head(&Slot{Buf: n}).p)
}

func (h head) u8(n uintptr) uint8   { return *(*uint8)(unsafe.Add(h.p, n)) }
func (h head) u16(n uintptr) uint16 { return *(*uint16)(unsafe.Add(h.p, n)) }
func (h head) u32(n uintptr) uint32 { return *(*uint32)(unsafe.Add(h.p, n)) }
func (h head) u64(n uintptr) uint64 { return *(*uint64)(unsafe.Add(h.p, n)) }

// be16, be32 and be64 read numbers of the wire.
func (h head) be16(n uintptr) uint16 {
	return binary.BigEndian.Uint16((*[2]byte)(unsafe.Add(h.p, n))[:])
}
func (h head) be32(n uintptr) uint32 {
	return binary.BigEndian.Uint32((*[4]byte)(unsafe.Add(h.p, n))[:])
}
func (h head) be64(n uintptr) uint64 {
	return binary.BigEndian.Uint64((*[8]byte)(unsafe.Add(h.p, n))[:])
}

// Offsets of headers in a frame without a VLAN tag.
const (
	offType = 12
	offIP   = wire.EthernetLen

	off4Length   = offIP + 2
	off4Fragment = offIP + 6
	off4TTL      = offIP + 8
	off4Proto    = offIP + 9
	off4Checksum = offIP + 10
	off4Src      = offIP + 12
	off4Dst      = offIP + 16
	off4End      = offIP + wire.IPv4Len

	off6Length = offIP + 4
	off6Next   = offIP + 6
	off6Hops   = offIP + 7
	off6Src    = offIP + 8
	off6Dst    = offIP + 24
	off6End    = offIP + wire.IPv6Len
)

// destination returns the destination address of a frame of at least 8 bytes.
func (h head) destination() wire.MAC { return wire.MAC(h.u64(0) & (1<<48 - 1)) }

// EtherType, version and header length together, as u32(offType) has them in
// its low three bytes: 08 00 45 and, but for the traffic class, 86 dd 60.
const (
	plain4Type, plain4Mask = 0x450008, 0xffffff
	plain6Type, plain6Mask = 0x60dd86, 0xf0ffff
)

// valid4 reports whether the checksum of an IPv4 header of 20 bytes is right:
// whether the sum of its words is a multiple of 65535, as it is never zero
// (RFC 1071; 2^64 is one more than such a multiple, so that carries come back
// in).
func (h head) valid4() bool {
	s, c := bits.Add64(h.u64(offIP), h.u64(offIP+8), 0)
	s, c = bits.Add64(s, uint64(h.u32(offIP+16)), c)
	s, _ = bits.Add64(s, 0, c)
	return s%0xffff == 0
}

// setHeader copies the Ethernet header of an adjacency over the frame's.
func (h head) setHeader(a *fib.Adjacency) {
	*(*[wire.EthernetLen]byte)(h.p) = *(*[wire.EthernetLen]byte)(unsafe.Pointer(&a.Head))
}

// decrement4 takes one from the TTL of an IPv4 packet and mends the checksum:
// RFC 1624, equation 3, for a word whose low byte fell by one. Ones' complement
// sums do not depend on the byte order.
func (h head) decrement4() {
	*(*uint8)(unsafe.Add(h.p, off4TTL))--
	c := (*uint16)(unsafe.Add(h.p, off4Checksum))
	s := uint32(*c) + 1
	*c = uint16(s + (s+1)>>16)
}

// decrement6 takes one from the hop limit of an IPv6 packet.
func (h head) decrement6() { *(*uint8)(unsafe.Add(h.p, off6Hops))-- }

// flow4 is State.Flow for an IPv4 packet of so many bytes without options.
func (h head) flow4(seed uint64, length int) uint64 {
	rest := uint64(0)
	if h.u16(off4Fragment)&fragment4 == 0 {
		p := h.u8(off4Proto)
		rest = uint64(p)
		if ported[p] && length >= wire.IPv4Len+4 {
			rest |= uint64(h.u32(off4End)) << 32
		}
	}
	return hash4(seed, h.u64(off4Src), rest)
}

// flow6 is State.Flow for an IPv6 packet of so many bytes.
func (h head) flow6(seed uint64, length int) uint64 {
	ports := uint64(0)
	if ported[h.u8(off6Next)] && length >= wire.IPv6Len+4 {
		ports = uint64(h.u32(off6End))
	}
	return hash6(seed, h.u64(off6Src), h.u64(off6Src+8), h.u64(off6Dst), h.u64(off6Dst+8), h.u64(offIP)&label6, ports)
}
