package conformance

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// The MAC addresses of configurations, by name: the router's ports A, B and C and
// the neighbors g1 on A, g2 on B and g3 on C.
var macs = map[string]string{
	"aa":    "02:00:00:00:00:aa",
	"bb":    "02:00:00:00:00:bb",
	"cc":    "02:00:00:00:00:cc",
	"g1":    "02:00:00:00:01:01",
	"g2":    "02:00:00:00:02:02",
	"g3":    "02:00:00:00:03:03",
	"bcast": "ff:ff:ff:ff:ff:ff",
	"zero":  "00:00:00:00:00:00",
}

// What a port sends is from its address to its neighbor, unless stated otherwise.
var (
	portMACs  = map[string]string{"A": "aa", "B": "bb", "C": "cc"}
	neighbors = map[string]string{"A": "g1", "B": "g2", "C": "g3"}
)

// Build returns the frame that an expression describes: a kind, then words
// KEY=VALUE that change what it has by default. The kinds are
//
//	F4   IPv4 and UDP, 60 bytes, from g1 to aa, 198.18.10.1 to 198.19.10.1
//	F6   IPv6 and UDP, 62 bytes, from g1 to aa, 2001:2:0:1::1 to 2001:2:0:8001::1
//	ARP  a request of g1 for 198.18.0.205, 60 bytes
//	NS   a Neighbor Solicitation of g1 for 2001:2::205
//	NA   a Neighbor Advertisement of aa for 2001:2::205 to g1
//	ETH  a frame of any type= with payload= bytes
//	ICMP4, ICMP6  an echo request of g1 to the address of A
//
// Keys of all kinds: to and from (MAC addresses or their names), type
// (EtherType, hex), tag (an 802.1Q tag's TCI, hex; several make several tags),
// trail (bytes behind the packet, hex), pad (zeros up to a length), cut (the
// frame's length).
//
// Of F4: src, dst, ttl, tos, id, frag (flags and offset, hex), proto, ver, ihl
// (words, without adding options), opts (hex), len (total length), sum (hex) or
// badsum, sport and dport, payload (bytes behind the UDP header; -8 for no UDP
// header), udpsum (hex). Of F6: src, dst, hl, tc, flow (hex), nh, ver, len (payload
// length), ext (headers before UDP, hex), sport, dport, payload, udpsum. Of ARP: op, htype and ptype
// (hex), hlen, plen, sha, spa, tha, tpa. Of NS and NA: src, dst, target, hl, code,
// lla (a MAC address or none), options (behind that, hex), flags (letters of RSO),
// badsum. Of ICMP4 and ICMP6: src, dst, ttl, tos, opts, frag
// and len as of F4 or F6, icmp (type and code, 8/0), payload (bytes behind the
// ICMP header), badsum.
func Build(expr string) ([]byte, error) {
	b := builder{}
	words := strings.Fields(expr)
	if len(words) == 0 {
		return nil, fmt.Errorf("empty expression")
	}
	b.parse(words[1:])
	var packet []byte
	switch words[0] {
	case "F4":
		b.header("aa", "g1", 0x0800)
		packet = b.ipv4()
	case "F6":
		b.header("aa", "g1", 0x86dd)
		packet = b.ipv6()
	case "ICMP4", "ICMP6":
		packet = b.icmp(words[0] == "ICMP4")
	case "ARP":
		b.header("bcast", "g1", 0x0806)
		packet = b.arp()
	case "NS":
		packet = b.solicitation()
	case "NA":
		packet = b.advertisement()
	case "ETH":
		b.header("aa", "g1", 0)
		packet = pattern(b.int("payload", 46))
	default:
		return nil, fmt.Errorf("%q is no kind of frame", words[0])
	}
	f := append(b.frame, packet...)
	f = append(f, b.hex("trail")...)
	if words[0] == "ARP" {
		f = pad(f, b.int("pad", 60))
	} else {
		f = pad(f, b.int("pad", 0))
	}
	f = f[:min(len(f), b.int("cut", len(f)))]
	return f, b.done(words[0])
}

func pad(f []byte, n int) []byte {
	for len(f) < n {
		f = append(f, 0)
	}
	return f
}

// pattern returns n bytes: 18 that count, then 0x55.
func pattern(n int) []byte {
	b := make([]byte, max(n, 0))
	for i := range b {
		b[i] = 0x55
		if i < 18 {
			b[i] = byte(i + 1)
		}
	}
	return b
}

type word struct{ key, value string }

// used reports whether a builder has taken the word: it empties the key.
func (w word) used() bool { return w.key == "" }

type builder struct {
	words []word
	frame []byte // the Ethernet header
	err   error
}

// parse splits KEY=VALUE words.
func (b *builder) parse(words []string) {
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		b.words = append(b.words, word{k, v})
	}
}

func (b *builder) fail(format string, args ...any) {
	if b.err == nil {
		b.err = fmt.Errorf(format, args...)
	}
}

// take returns the first unused word of a key.
func (b *builder) take(key string) (string, bool) {
	for i, w := range b.words {
		if w.key == key {
			b.words[i].key = ""
			return w.value, true
		}
	}
	return "", false
}

func (b *builder) number(key string, base, def int) int {
	s, ok := b.take(key)
	if !ok {
		return def
	}
	n, err := strconv.ParseInt(s, base, 64)
	if err != nil {
		b.fail("%s=%s: %v", key, s, err)
	}
	return int(n)
}

func (b *builder) int(key string, def int) int    { return b.number(key, 10, def) }
func (b *builder) hexInt(key string, def int) int { return b.number(key, 16, def) }

func (b *builder) hex(key string) []byte {
	s, _ := b.take(key)
	v, err := hex.DecodeString(s)
	if err != nil {
		b.fail("%s=%s: %v", key, s, err)
	}
	return v
}

func (b *builder) mac(key, def string) net.HardwareAddr {
	s, ok := b.take(key)
	if !ok {
		s = def
	}
	m, err := parseMAC(s)
	if err != nil {
		b.fail("%s: %v", key, err)
		m = make(net.HardwareAddr, 6)
	}
	return m
}

func parseMAC(s string) (net.HardwareAddr, error) {
	if m, ok := macs[s]; ok {
		s = m
	}
	return net.ParseMAC(s)
}

func (b *builder) addr(key, def string) netip.Addr {
	s, ok := b.take(key)
	if !ok {
		s = def
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		b.fail("%s: %v", key, err)
		a = netip.MustParseAddr(def)
	}
	if a.Is4() != netip.MustParseAddr(def).Is4() {
		b.fail("%s=%s: wrong family", key, s)
		a = netip.MustParseAddr(def)
	}
	return a
}

func (b *builder) header(to, from string, etherType int) {
	b.frame = slices.Concat(b.mac("to", to), b.mac("from", from))
	for {
		tci := b.hexInt("tag", -1)
		if tci < 0 {
			break
		}
		b.frame = append(b.frame, 0x81, 0x00, byte(tci>>8), byte(tci))
	}
	b.frame = binary.BigEndian.AppendUint16(b.frame, uint16(b.hexInt("type", etherType)))
}

// udp returns a UDP datagram, by default from port 2000 to port 2000, with its
// checksum over the pseudo header.
func (b *builder) udp(payload int, src, dst netip.Addr) []byte {
	if payload < 0 {
		return nil
	}
	n := 8 + payload
	u := binary.BigEndian.AppendUint16(nil, uint16(b.int("sport", 2000)))
	u = binary.BigEndian.AppendUint16(u, uint16(b.int("dport", 2000)))
	u = append(u, byte(n>>8), byte(n), 0, 0)
	u = append(u, pattern(payload)...)
	pseudo := slices.Concat(src.AsSlice(), dst.AsSlice(), []byte{0, 17, byte(n >> 8), byte(n)})
	s := checksum(append(pseudo, u...))
	if s == 0 {
		s = 0xffff
	}
	binary.BigEndian.PutUint16(u[6:], uint16(b.hexInt("udpsum", int(s))))
	return u
}

func (b *builder) ipv4() []byte {
	src, dst := b.addr("src", "198.18.10.1"), b.addr("dst", "198.19.10.1")
	opts := b.hex("opts")
	u := b.udp(b.int("payload", 18), src, dst)
	n := 20 + len(opts) + len(u)
	h := make([]byte, 20)
	h[0] = byte(b.int("ver", 4)<<4 | b.int("ihl", 5+len(opts)/4))
	h[1] = byte(b.int("tos", 0))
	binary.BigEndian.PutUint16(h[2:], uint16(b.int("len", n)))
	binary.BigEndian.PutUint16(h[4:], uint16(b.int("id", 0)))
	binary.BigEndian.PutUint16(h[6:], uint16(b.hexInt("frag", 0)))
	h[8] = byte(b.int("ttl", 64))
	h[9] = byte(b.int("proto", 17))
	copy(h[12:], src.AsSlice())
	copy(h[16:], dst.AsSlice())
	h = append(h, opts...)
	p := append(h, u...)
	end := int(p[0]&15) * 4 // of what the checksum covers
	if end < 20 || end > len(p) {
		end = len(h)
	}
	sum := int(checksum(p[:end]))
	if _, bad := b.take("badsum"); bad {
		sum ^= 1
	}
	binary.BigEndian.PutUint16(p[10:], uint16(b.hexInt("sum", sum)))
	return p
}

func (b *builder) ipv6() []byte {
	src, dst := b.addr("src", "2001:2:0:1::1"), b.addr("dst", "2001:2:0:8001::1")
	ext := b.hex("ext")
	u := b.udp(b.int("payload", 0), src, dst)
	nh := 17
	return append(b.fixed6(src, dst, nh, 64, len(ext)+len(u)), append(ext, u...)...)
}

// fixed6 returns an IPv6 header for n bytes.
func (b *builder) fixed6(src, dst netip.Addr, nh, hl, n int) []byte {
	h := make([]byte, 8)
	v := b.int("ver", 6)<<28 | b.int("tc", 0)<<20 | b.hexInt("flow", 0)
	binary.BigEndian.PutUint32(h, uint32(v))
	binary.BigEndian.PutUint16(h[4:], uint16(b.int("len", n)))
	h[6] = byte(b.int("nh", nh))
	h[7] = byte(b.int("hl", hl))
	return slices.Concat(h, src.AsSlice(), dst.AsSlice())
}

// icmp returns the packet of an ICMP message, for the word icmp an echo request.
func (b *builder) icmp(four bool) []byte {
	kind := "128/0"
	if four {
		kind = "8/0"
	}
	if s, ok := b.take("icmp"); ok {
		kind = s
	}
	t, code, _ := strings.Cut(kind, "/")
	tn, err1 := strconv.ParseUint(t, 10, 8)
	cn, err2 := strconv.ParseUint(code, 10, 8)
	if err1 != nil || err2 != nil {
		b.fail("icmp=%s: want TYPE/CODE", kind)
	}
	m := append([]byte{byte(tn), byte(cn), 0, 0, 0x12, 0x34, 0, 1}, pattern(b.int("payload", 18))...)
	_, bad := b.take("badsum")
	if four {
		b.header("aa", "g1", 0x0800)
		p := ipv4Of(byte(b.int("tos", 0)), b.addr("src", "198.18.10.1"), b.addr("dst", "198.18.0.205"), m)
		p[8] = byte(b.int("ttl", 64))
		binary.BigEndian.PutUint16(p[6:], uint16(b.hexInt("frag", 0)))
		h := append(p[:20:20], b.hex("opts")...)
		h[0] = 0x40 | byte(len(h)/4)
		binary.BigEndian.PutUint16(h[2:], uint16(b.int("len", len(h)+len(m))))
		h[10], h[11] = 0, 0
		binary.BigEndian.PutUint16(h[10:], checksum(h))
		p = append(h, m...)
		if bad {
			p[len(h)+2] ^= 1
		}
		return p
	}
	b.header("aa", "g1", 0x86dd)
	p := ipv6Of(byte(b.int("tc", 0)), b.addr("src", "2001:2:0:1::1"), b.addr("dst", "2001:2::205"), m)
	p[7] = byte(b.int("hl", 64))
	if bad {
		p[42] ^= 1
	}
	return p
}

func (b *builder) arp() []byte {
	p := binary.BigEndian.AppendUint16(nil, uint16(b.hexInt("htype", 1)))
	p = binary.BigEndian.AppendUint16(p, uint16(b.hexInt("ptype", 0x0800)))
	p = append(p, byte(b.int("hlen", 6)), byte(b.int("plen", 4)))
	p = binary.BigEndian.AppendUint16(p, uint16(b.int("op", 1)))
	p = append(p, b.mac("sha", "g1")...)
	p = append(p, b.addr("spa", "198.18.0.203").AsSlice()...)
	p = append(p, b.mac("tha", "zero")...)
	return append(p, b.addr("tpa", "198.18.0.205").AsSlice()...)
}

func (b *builder) solicitation() []byte {
	target := b.addr("target", "2001:2::205")
	t := target.As16()
	group := netip.MustParseAddr("ff02::1:ff00:0").As16()
	copy(group[13:], t[13:])
	mac := net.HardwareAddr{0x33, 0x33, 0xff, t[13], t[14], t[15]}
	b.header(mac.String(), "g1", 0x86dd)
	return b.discovery(135, 0, target, "2001:2::203", netip.AddrFrom16(group).String(), 1, "g1")
}

func (b *builder) advertisement() []byte {
	target := b.addr("target", "2001:2::205")
	flags := byte(0)
	letters, ok := b.take("flags")
	if !ok {
		letters = "RSO"
	}
	for _, l := range letters {
		at := strings.IndexRune("OSR", l)
		if at < 0 {
			b.fail("flags=%s: want letters of RSO", letters)
			at = 0
		}
		flags |= 0x20 << at
	}
	b.header("g1", "aa", 0x86dd)
	return b.discovery(136, flags, target, "2001:2::205", "2001:2::203", 2, "aa")
}

// discovery returns the IPv6 packet of a Neighbor Discovery message with one
// link-layer address option, unless lla=none.
func (b *builder) discovery(kind, flags byte, target netip.Addr, src, dst string, option byte, lla string) []byte {
	m := append([]byte{kind, byte(b.int("code", 0)), 0, 0, flags, 0, 0, 0}, target.AsSlice()...)
	if i := slices.Index(b.words, word{"lla", "none"}); i >= 0 {
		b.words[i].key = ""
	} else {
		m = append(append(m, option, 1), b.mac("lla", lla)...)
	}
	m = append(m, b.hex("options")...)
	s, d := b.addr("src", src), b.addr("dst", dst)
	pseudo := slices.Concat(s.AsSlice(), d.AsSlice(), []byte{0, 0, 0, byte(len(m)), 0, 0, 0, 58})
	sum := checksum(append(pseudo, m...))
	if _, bad := b.take("badsum"); bad {
		sum ^= 1
	}
	binary.BigEndian.PutUint16(m[2:], sum)
	return append(b.fixed6(s, d, 58, 255, len(m)), m...)
}

// checksum is the Internet checksum (RFC 1071) in its plainest form.
func checksum(b []byte) uint16 {
	sum := 0
	for i, v := range b {
		if i%2 == 0 {
			sum += int(v) << 8
		} else {
			sum += int(v)
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// Forwarded returns the frame that a router sends on for a received one: to and
// from are the addresses of the new Ethernet header, with the tag that tci says
// where it is not 0. The TTL or hop limit is one less, the IPv4 header checksum
// is computed anew, what lies behind the IP packet is cut, and zeros fill the
// frame to 60 bytes.
func Forwarded(frame []byte, to, from net.HardwareAddr, tci uint16) ([]byte, error) {
	frame = untagged(frame)
	if len(frame) < 34 {
		return nil, fmt.Errorf("a frame of %d bytes cannot be forwarded", len(frame))
	}
	p := slices.Clone(frame[14:])
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		n := int(binary.BigEndian.Uint16(p[2:]))
		if n > len(p) || n < 20 {
			return nil, fmt.Errorf("total length %d of a packet of %d bytes", n, len(p))
		}
		p = p[:n]
		h := p[:min(int(p[0]&15)*4, n)]
		h[8]--
		h[10], h[11] = 0, 0
		binary.BigEndian.PutUint16(h[10:], checksum(h))
	case 0x86dd:
		n := 40 + int(binary.BigEndian.Uint16(p[4:]))
		if n > len(p) {
			return nil, fmt.Errorf("payload length %d of a packet of %d bytes", n-40, len(p))
		}
		p = p[:n]
		p[7]--
	default:
		return nil, fmt.Errorf("type %x is not forwarded", frame[12:14])
	}
	var tag []byte
	if tci != 0 {
		tag = []byte{0x81, 0, byte(tci >> 8), byte(tci)}
	}
	return pad(slices.Concat(to, from, tag, frame[12:14], p), 60), nil
}

// expected returns the bytes that the expression of a frame says, nil for raw.
func (c *Case) expected(f *Frame) ([]byte, error) {
	if b, ok, err := c.message(f); ok {
		return b, err
	}
	kind, rest, _ := strings.Cut(f.Expr, " ")
	switch kind {
	case "raw":
		return nil, nil
	case "forward":
		w := strings.Fields(rest)
		if len(w) == 0 {
			return nil, fmt.Errorf("forward: which frame?")
		}
		received := c.frames()
		n, err := strconv.Atoi(w[0])
		if err != nil || n < 1 || n > len(received) {
			return nil, fmt.Errorf("forward %s: there are %d frames", w[0], len(received))
		}
		tci := uint64(0)
		to, from := neighbors[f.Port], portMACs[f.Port]
		for _, v := range w[1:] {
			if m, ok := strings.CutPrefix(v, "to="); ok {
				to = m
			} else if m, ok := strings.CutPrefix(v, "from="); ok {
				from = m
			} else if n, ok := strings.CutPrefix(v, "tag="); ok {
				if tci, err = strconv.ParseUint(n, 16, 16); err != nil {
					return nil, err
				}
			} else {
				return nil, fmt.Errorf("forward: unknown word %q", v)
			}
		}
		t, err := parseMAC(to)
		if err != nil {
			return nil, err
		}
		s, err := parseMAC(from)
		if err != nil {
			return nil, err
		}
		in, err := c.expected(&received[n-1])
		if err != nil {
			return nil, err
		}
		if in == nil {
			in = received[n-1].Bytes
		}
		return Forwarded(in, t, s, uint16(tci))
	}
	return Build(f.Expr)
}
