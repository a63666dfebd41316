package conformance

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// An icmpError is type and code of an error, and how far it quotes.
type icmpError struct{ v4, v6 [2]byte }

// icmpErrors are the errors by the names of the metrics (RFC 792; RFC 1812, 4.3.3;
// RFC 4443, 3).
var icmpErrors = map[string]icmpError{
	"net_unreachable":      {[2]byte{3, 0}, [2]byte{1, 0}},
	"host_unreachable":     {[2]byte{3, 1}, [2]byte{1, 3}},
	"protocol_unreachable": {[2]byte{3, 2}, [2]byte{4, 1}},
	"port_unreachable":     {[2]byte{3, 3}, [2]byte{1, 4}},
	"too_big":              {[2]byte{3, 4}, [2]byte{2, 0}},
	"prohibited":           {[2]byte{3, 13}, [2]byte{1, 1}},
	"time_exceeded":        {[2]byte{11, 0}, [2]byte{3, 0}},
	"parameter_problem":    {[2]byte{12, 0}, [2]byte{4, 0}},
}

// own are the router's addresses by port in c0.conf.
var own = map[string][2]string{
	"A": {"198.18.0.205", "2001:2::205"},
	"B": {"198.19.0.205", "2001:2:0:8000::205"},
}

// received returns the Nth frame received, as its expression or its bytes say.
func (c *Case) received(n string) (*Frame, []byte, error) {
	frames := c.frames()
	i, err := strconv.Atoi(n)
	if err != nil || i < 1 || i > len(frames) {
		return nil, nil, fmt.Errorf("frame %q: there are %d", n, len(frames))
	}
	f := &frames[i-1]
	b, err := c.expected(f)
	if b == nil {
		b = f.Bytes
	}
	return f, b, err
}

// untagged returns a frame without its tag.
func untagged(frame []byte) []byte {
	if len(frame) >= 18 && frame[12] == 0x81 && frame[13] == 0 {
		return slices.Concat(frame[:12], frame[16:])
	}
	return frame
}

// errorAbout returns the ICMP error that the router sends by port about a frame:
//
//	error N KIND [code=N] [mtu=N] [pointer=N] [src=ADDRESS] [to=MAC] [from=MAC] [tag=TCI]
//
// It quotes the packet as received, up to 576 bytes in all (RFC 1812, 4.3.2.3), or
// 1,280 (RFC 4443, 2.4 c). Its source is the address of the port that the frame
// came in by.
func (c *Case) errorAbout(port string, b *builder, n, kind string) ([]byte, error) {
	in, frame, err := c.received(n)
	if err != nil {
		return nil, err
	}
	e, ok := icmpErrors[kind]
	if !ok {
		return nil, fmt.Errorf("%q is no ICMP error", kind)
	}
	p := untagged(frame)[14:]
	if p[0]>>4 == 4 {
		p = p[:min(len(p), int(binary.BigEndian.Uint16(p[2:])))]
		m := []byte{e.v4[0], e.v4[1], 0, 0, byte(b.int("pointer", 0)), 0, 0, 0}
		binary.BigEndian.PutUint16(m[6:], uint16(b.int("mtu", 0)))
		m = append(m, p[:min(len(p), 576-28)]...)
		src := b.addr("src", own[in.Port][0])
		// RFC 1812, 4.3.2.5: precedence 6, the TOS of the packet, and no ECN.
		packet := ipv4Of(0xc0|p[1]&0x1c, src, netip.AddrFrom4([4]byte(p[12:16])), m)
		return b.sent(port, 0x0800, packet)
	}
	p = p[:min(len(p), 40+int(binary.BigEndian.Uint16(p[4:])))]
	m := []byte{e.v6[0], byte(b.int("code", int(e.v6[1]))), 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(m[4:], uint32(b.int("mtu", 0)+b.int("pointer", 0)))
	m = append(m, p[:min(len(p), 1280-48)]...)
	src := b.addr("src", own[in.Port][1])
	packet := ipv6Of(0, src, netip.AddrFrom16([16]byte(p[8:24])), m)
	return b.sent(port, 0x86dd, packet)
}

// echoReply returns the answer to an echo request:
//
//	echo_reply N [src=ADDRESS] [opts=HEX] [to=MAC] [from=MAC] [tag=TCI]
func (c *Case) echoReply(port string, b *builder, n string) ([]byte, error) {
	_, frame, err := c.received(n)
	if err != nil {
		return nil, err
	}
	p := untagged(frame)[14:]
	if p[0]>>4 == 4 {
		m := slices.Clone(p[int(p[0]&15)*4 : binary.BigEndian.Uint16(p[2:])])
		m[0], m[2], m[3] = 0, 0, 0
		return b.sent(port, 0x0800, withOptions(ipv4Of(p[1]&^3, b.addr("src", netip.AddrFrom4([4]byte(p[16:20])).String()), netip.AddrFrom4([4]byte(p[12:16])), m), b.hex("opts")))
	}
	m := slices.Clone(p[40 : 40+binary.BigEndian.Uint16(p[4:])])
	m[0], m[2], m[3] = 129, 0, 0
	class := (p[0]<<4 | p[1]>>4) &^ 3
	return b.sent(port, 0x86dd, ipv6Of(class, b.addr("src", netip.AddrFrom16([16]byte(p[24:40])).String()), netip.AddrFrom16([16]byte(p[8:24])), m))
}

// fragment returns a fragment of what is sent on for a frame (RFC 791, 3.2):
//
//	fragment N FROM TO [to=MAC] [from=MAC] [tag=TCI]
//
// From and to count the bytes behind the header. Only the first fragment has the
// options without the copied bit.
func (c *Case) fragment(port string, b *builder, n string, from, to int) ([]byte, error) {
	_, frame, err := c.received(n)
	if err != nil {
		return nil, err
	}
	p := slices.Clone(untagged(frame)[14:])
	p = p[:binary.BigEndian.Uint16(p[2:])]
	h, data := p[:int(p[0]&15)*4], p[int(p[0]&15)*4:]
	if from > to || to > len(data) {
		return nil, fmt.Errorf("fragment %d to %d of %d bytes", from, to, len(data))
	}
	if from > 0 {
		h = append(slices.Clone(h[:20]), copied(h[20:])...)
	}
	flags := binary.BigEndian.Uint16(h[6:]) + uint16(from/8)
	if to < len(data) {
		flags |= 0x2000
	}
	h[0] = 0x40 | byte(len(h)/4)
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+to-from))
	binary.BigEndian.PutUint16(h[6:], flags)
	h[8]--
	h[10], h[11] = 0, 0
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return b.sent(port, 0x0800, slices.Concat(h, data[from:to]))
}

// copied returns the options with the copied bit, padded to words.
func copied(opts []byte) (out []byte) {
	for i := 0; i < len(opts) && opts[i] != 0; {
		n := 1
		if opts[i] != 1 {
			n = int(opts[i+1])
		}
		if opts[i]&0x80 != 0 {
			out = append(out, opts[i:i+n]...)
		}
		i += n
	}
	for len(out)%4 != 0 {
		out = append(out, 0)
	}
	return out
}

// ipv4Of returns a packet with TTL 64 that holds an ICMP message, whose checksum
// is filled in.
func ipv4Of(tos byte, src, dst netip.Addr, m []byte) []byte {
	binary.BigEndian.PutUint16(m[2:], checksum(m))
	h := []byte{0x45, tos, 0, 0, 0, 0, 0, 0, 64, 1, 0, 0}
	h = slices.Concat(h, src.AsSlice(), dst.AsSlice())
	binary.BigEndian.PutUint16(h[2:], uint16(20+len(m)))
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return append(h, m...)
}

// withOptions puts options into an IPv4 packet without any.
func withOptions(p, opts []byte) []byte {
	h := slices.Concat(p[:20], opts)
	h[0] = 0x40 | byte(len(h)/4)
	binary.BigEndian.PutUint16(h[2:], uint16(len(p)+len(opts)))
	h[10], h[11] = 0, 0
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return append(h, p[20:]...)
}

// ipv6Of is ipv4Of for ICMPv6.
func ipv6Of(class byte, src, dst netip.Addr, m []byte) []byte {
	pseudo := slices.Concat(src.AsSlice(), dst.AsSlice(), []byte{0, 0, byte(len(m) >> 8), byte(len(m)), 0, 0, 0, 58})
	binary.BigEndian.PutUint16(m[2:], checksum(append(pseudo, m...)))
	h := []byte{0x60 | class>>4, class << 4, 0, 0, byte(len(m) >> 8), byte(len(m)), 58, 64}
	return slices.Concat(h, src.AsSlice(), dst.AsSlice(), m)
}

// sent returns the frame with a packet that the router sends by port, to the
// neighbor there unless the words to and from say otherwise.
func (b *builder) sent(port string, etherType int, packet []byte) ([]byte, error) {
	b.header(neighbors[port], portMACs[port], etherType)
	return pad(append(b.frame, packet...), 60), b.done(port)
}

// done returns an error about words that nobody took.
func (b *builder) done(kind string) error {
	for _, w := range b.words {
		if !w.used() {
			b.fail("%s: unknown word %q", kind, w.key)
		}
	}
	return b.err
}

// message returns the bytes of a Frame whose expression derives it from a received
// one, and whether it does.
func (c *Case) message(f *Frame) (frame []byte, ok bool, err error) {
	w := strings.Fields(f.Expr)
	arity, ok := map[string]int{"error": 2, "echo_reply": 1, "fragment": 3}[w[0]]
	if !ok {
		return nil, false, nil
	}
	if len(w) <= arity {
		return nil, true, fmt.Errorf("%s: want %d words behind it", w[0], arity)
	}
	b := &builder{}
	b.parse(w[1+arity:])
	switch w[0] {
	case "error":
		frame, err = c.errorAbout(f.Port, b, w[1], w[2])
	case "echo_reply":
		frame, err = c.echoReply(f.Port, b, w[1])
	case "fragment":
		from, err1 := strconv.Atoi(w[2])
		to, err2 := strconv.Atoi(w[3])
		if err1 != nil || err2 != nil {
			return nil, true, fmt.Errorf("fragment: from %s to %s", w[2], w[3])
		}
		frame, err = c.fragment(f.Port, b, w[1], from, to)
	}
	return frame, true, err
}

// anyID makes the identification of the IPv4 packet in a frame 0 where the header
// checksum is right.
func anyID(f []byte) []byte {
	at := 14
	if len(f) >= 18 && f[12] == 0x81 && f[13] == 0 {
		at = 18
	}
	if len(f) < at+20 || f[at-2] != 0x08 || f[at-1] != 0 || f[at]>>4 != 4 {
		return f
	}
	end := at + int(f[at]&15)*4
	if end < at+20 || end > len(f) || checksum(f[at:end]) != 0 {
		return f
	}
	f = slices.Clone(f)
	h := f[at:end]
	h[4], h[5], h[10], h[11] = 0, 0, 0, 0
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return f
}
