// Package traffic sends the 2,000 IPv4 or IPv6 flows of the forwarding labs
// through a router and tells what became of each frame.
//
// Sender and receiver are XDP programs, assembled here. The sender runs its
// program on live frames (BPF_PROG_RUN with BPF_F_TEST_XDP_LIVE_FRAMES): each run
// writes the next frame and redirects it to a port, which is ten times as fast as
// a packet socket. The receiver's program compares every byte of every frame and
// the order within each flow, and hands a sample to user space, where it is
// compared once more with a frame made by plain code that shares nothing with
// the programs.
//
// Each flow is sent by one CPU. On a veth the receive queue follows the sending
// CPU, so as many queues of the router are filled as there are senders.
package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// Count is the number of flows of either family.
const Count = 2000

// Lengths of the frames in bytes without FCS: the smallest that hold Ethernet,
// IP and UDP headers and, for IPv4, are no shorter than Ethernet allows.
const (
	Len4 = 60
	Len6 = 62
)

// ttl is the TTL or hop limit of frames as sent.
const ttl = 64

// udpPort is the source and destination port of all flows.
const udpPort = 2000

// Flows are the flows of one family from a generator through a router to a
// receiver. All four MACs are those on the wire.
type Flows struct {
	Family                   int              // 4 or 6
	Generator, RouterIngress net.HardwareAddr // source and destination as sent
	RouterEgress, Receiver   net.HardwareAddr // source and destination as received
}

// Len returns the length of the frames in bytes.
func (f *Flows) Len() int {
	if f.Family == 4 {
		return Len4
	}
	return Len6
}

// sources returns the number of source addresses. Flow n goes from source
// n % sources to destination n / sources.
func (f *Flows) sources() int {
	if f.Family == 4 {
		return 100
	}
	return 20
}

// Addrs returns the addresses of a flow: 198.18.10.1 to 100 and 198.19.10.1 to
// 20, or 2001:2:0:1::1 to 14 and 2001:2:0:8001::1 to 64 (hexadecimal).
func (f *Flows) Addrs(flow int) (src, dst netip.Addr) {
	s, d := byte(flow%f.sources()+1), byte(flow/f.sources()+1)
	if f.Family == 4 {
		return netip.AddrFrom4([4]byte{198, 18, 10, s}), netip.AddrFrom4([4]byte{198, 19, 10, d})
	}
	a := [16]byte{0: 0x20, 1: 0x01, 3: 2, 7: 1, 15: s}
	b := [16]byte{0: 0x20, 1: 0x01, 3: 2, 6: 0x80, 7: 1, 15: d}
	return netip.AddrFrom16(a), netip.AddrFrom16(b)
}

// Where the fields are that differ from frame to frame.
//
//	IPv4  14 .. 18 identification .. 24 checksum 26 source 30 destination
//	      34 UDP, no checksum   42 sequence 46 flow 48 time 56 check
//	IPv6  14 traffic class, flow label .. 22 source 38 destination
//	      54 UDP .. 60 checksum
//
// The identification is the low half of the sequence number, so that all values
// of the header checksum occur. A 62-byte IPv6 frame has no room for data: the low
// byte of the sequence number is its traffic class, which no router without a
// policy changes. The flow label is one for each flow (RFC 6437), the flow's
// number and 1.
const (
	offID4, offSum4, offSrc4, offDst4       = 18, 24, 26, 30
	offSeq4, offFlow4, offTime4, offCheck4  = 42, 46, 48, 56
	offClass6, offSrc6, offDst6, offUDPSum6 = 14, 22, 38, 60
)

// magic makes the check word of a frame without data differ from zero.
const magic = 0x6e6d6677

// check returns the word that guards the data of an IPv4 frame.
func check(seq uint32, time uint64) uint32 { return magic ^ seq ^ uint32(time>>32) ^ uint32(time) }

// Sent returns a frame as the sender makes it. Time is written to IPv4 frames
// only, and of the sequence number the low byte to IPv6 frames.
func (f *Flows) Sent(flow int, seq uint32, time uint64) []byte {
	return f.frame(flow, seq, time, f.Generator, f.RouterIngress, ttl)
}

// Received returns the frame as a router must have made it from Sent's.
func (f *Flows) Received(flow int, seq uint32, time uint64) []byte {
	return f.frame(flow, seq, time, f.RouterEgress, f.Receiver, ttl-1)
}

func (f *Flows) frame(flow int, seq uint32, time uint64, from, to net.HardwareAddr, ttl byte) []byte {
	src, dst := f.Addrs(flow)
	be := binary.BigEndian
	p := append(append(make([]byte, 0, Len6), to...), from...)
	if f.Family == 4 {
		p = be.AppendUint16(p, 0x0800)
		p = append(p, 0x45, 0)
		p = be.AppendUint16(p, Len4-14)
		p = be.AppendUint16(p, uint16(seq))
		p = append(p, 0, 0, ttl, 17, 0, 0)
		p = append(append(p, src.AsSlice()...), dst.AsSlice()...)
		be.PutUint16(p[offSum4:], ^onesSum(p[14:34]))
		p = be.AppendUint16(p, udpPort)
		p = be.AppendUint16(p, udpPort)
		p = be.AppendUint16(p, Len4-34)
		p = append(p, 0, 0)
		p = be.AppendUint32(p, seq)
		p = be.AppendUint16(p, uint16(flow))
		p = be.AppendUint64(p, time)
		return be.AppendUint32(p, check(seq, time))
	}
	p = be.AppendUint16(p, 0x86dd)
	p = be.AppendUint32(p, 6<<28|seq&0xff<<20|uint32(flow+1))
	p = be.AppendUint16(p, Len6-54)
	p = append(p, 17, ttl)
	p = append(append(p, src.AsSlice()...), dst.AsSlice()...)
	p = be.AppendUint16(p, udpPort)
	p = be.AppendUint16(p, udpPort)
	p = be.AppendUint16(p, Len6-54)
	p = append(p, 0, 0)
	// RFC 8200, 8.1: the addresses, the length and the protocol count as well.
	pseudo := append(append([]byte(nil), p[offSrc6:]...), 0, 0, 0, Len6-54, 0, 0, 0, 17)
	sum := ^onesSum(pseudo)
	if sum == 0 {
		sum = 0xffff
	}
	be.PutUint16(p[offUDPSum6:], sum)
	return p
}

// onesSum returns the ones' complement sum of an even number of bytes (RFC 1071).
func onesSum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// Compare returns nil if p is a frame of f as a router must have made it, and
// else where it differs. Flow, sequence number and time are the frame's own.
func (f *Flows) Compare(p []byte) error {
	if len(p) != f.Len() {
		return fmt.Errorf("traffic: frame of %d bytes, want %d", len(p), f.Len())
	}
	be := binary.BigEndian
	var flow int
	var seq uint32
	var time uint64
	if f.Family == 4 {
		flow = int(be.Uint16(p[offFlow4:]))
		seq, time = be.Uint32(p[offSeq4:]), be.Uint64(p[offTime4:])
	} else {
		flow = int(p[offDst6+15]-1)*f.sources() + int(p[offSrc6+15]-1)
		seq = be.Uint32(p[offClass6:]) >> 20 & 0xff
	}
	if flow >= Count {
		return fmt.Errorf("traffic: flow %d of %d", flow, Count)
	}
	var errs []error
	for i, want := range f.Received(flow, seq, time) {
		if p[i] != want {
			errs = append(errs, fmt.Errorf("traffic: flow %d frame %d: byte %d is %#02x, want %#02x", flow, seq, i, p[i], want))
		}
	}
	return errors.Join(errs...)
}
