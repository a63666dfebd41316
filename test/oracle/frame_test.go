//go:build integration && linux

package oracle

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"nmfwd/wire"
)

// A frame is what a script says of one frame: the port that it comes in by,
// addresses, and what is not as usual, by words such as ttl=1. Each has a number of
// its own, which is in its payload.
//
//	frame p1 10.1.0.2 10.64.0.1 id=7 len=100 proto=udp ttl=1
type frame struct {
	port     int
	src, dst netip.Addr
	words    map[string]string
}

// frameWords are all words, with what they are of a frame that says nothing.
var frameWords = map[string]string{
	"id":    "0",
	"ttl":   "64",  // or hop limit
	"len":   "20",  // bytes of payload
	"proto": "udp", // tcp, echo, error (an ICMP error), or a number
	"tos":   "0",   // or traffic class
	"flow":  "0",   // flow label
	"df":    "0",   // flag
	"mf":    "0",   // flag, in IPv6 of a fragment header
	"off":   "0",   // fragment offset in bytes
	"opt":   "",    // IPv4 options, or an IPv6 hop-by-hop header, in hexadecimal
	"to":    "us",  // MAC address: us, all (broadcast), group (of dst), other
	"from":  "2",   // number of the host whose MAC address it comes from
	"sum":   "ok",  // bad: the IPv4 header's checksum is wrong
	"cut":   "0",   // bytes missing at the end
	"trail": "0",   // bytes behind the packet
}

func (f *frame) word(name string) string {
	if v, ok := f.words[name]; ok {
		return v
	}
	return frameWords[name]
}

func (f *frame) number(name string) int {
	n, _ := strconv.Atoi(f.word(name)) // checked by parseFrame
	return n
}

// String returns the line of a script.
func (f *frame) String() string {
	s := fmt.Sprintf("frame p%d %v %v", f.port, f.src, f.dst)
	for _, k := range slices.Sorted(maps.Keys(f.words)) {
		s += " " + k + "=" + f.words[k]
	}
	return s
}

func parseFrame(line string) (*frame, error) {
	w := strings.Fields(line)
	if len(w) < 4 {
		return nil, fmt.Errorf("%q: too short", line)
	}
	f := &frame{words: map[string]string{}}
	var err, err2 error
	if _, e := fmt.Sscanf(w[1], "p%d", &f.port); e != nil || f.port < 1 || f.port > ports {
		return nil, fmt.Errorf("%q: no port %s", line, w[1])
	}
	f.src, err = netip.ParseAddr(w[2])
	f.dst, err2 = netip.ParseAddr(w[3])
	if err != nil || err2 != nil || f.src.Is4() != f.dst.Is4() {
		return nil, fmt.Errorf("%q: bad addresses", line)
	}
	for _, kv := range w[4:] {
		k, v, _ := strings.Cut(kv, "=")
		usual, ok := frameWords[k]
		if !ok {
			return nil, fmt.Errorf("%q: no word %q", line, k)
		}
		if _, err := strconv.Atoi(usual); err == nil {
			if _, err := strconv.Atoi(v); err != nil {
				return nil, fmt.Errorf("%q: %s: no number", line, kv)
			}
		}
		if _, err := hex.DecodeString(v); k == "opt" && err != nil {
			return nil, fmt.Errorf("%q: %s: %w", line, kv, err)
		}
		f.words[k] = v
	}
	return f, nil
}

// protocols are the numbers of word proto.
var protocols = map[string]int{"udp": 17, "tcp": 6, "echo": 1, "error": 1}

// payload returns what the packet carries, with its protocol number.
func (f *frame) payload() (proto byte, b []byte) {
	n, ok := protocols[f.word("proto")]
	if !ok {
		n, _ = strconv.Atoi(f.word("proto"))
	}
	data := make([]byte, max(4, f.number("len")))
	binary.BigEndian.PutUint32(data, uint32(f.number("id")))
	for i := range data[4:] {
		data[4+i] = byte(i)
	}
	v6 := f.src.Is6()
	if v6 && n == 1 {
		n = 58
	}
	at := -1 // of the checksum
	switch f.word("proto") {
	case "udp": // to a port at which nobody listens
		h := make([]byte, 8)
		binary.BigEndian.PutUint16(h, uint16(20000+f.number("id")%1000))
		binary.BigEndian.PutUint16(h[2:], 33434)
		binary.BigEndian.PutUint16(h[4:], uint16(8+len(data)))
		b, at = append(h, data...), 6
	case "tcp": // a SYN
		h := make([]byte, 20)
		binary.BigEndian.PutUint16(h, uint16(20000+f.number("id")%1000))
		binary.BigEndian.PutUint16(h[2:], 33434)
		binary.BigEndian.PutUint32(h[4:], uint32(f.number("id")))
		h[12], h[13], h[14] = 0x50, 2, 0x20
		b, at = append(h, data...), 16
	case "echo":
		b, at = append([]byte{8, 0, 0, 0, 0, 1, 0, 1}, data...), 2
		if v6 {
			b[0] = 128
		}
	case "error": // destination unreachable, about a packet of dst
		b, at = append([]byte{3, 1, 0, 0, 0, 0, 0, 0}, data...), 2
		if v6 {
			b[0] = 1
		}
	default:
		return byte(n), data
	}
	var pseudo []byte
	if v6 || n != 1 {
		pseudo = append(f.src.AsSlice(), f.dst.AsSlice()...)
		if v6 {
			pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(b)))
			pseudo = append(pseudo, 0, 0, 0, byte(n))
		} else {
			pseudo = append(pseudo, 0, byte(n), byte(len(b)>>8), byte(len(b)))
		}
	}
	sum := wire.Checksum(append(slices.Clone(pseudo), b...))
	if sum == 0 && n == 17 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(b[at:], sum)
	return byte(n), b
}

// build returns the frame.
func (f *frame) build() []byte {
	proto, body := f.payload()
	if off := f.number("off"); off > 0 {
		body = body[min(off%64, len(body)-8):] // the rest of something
	}
	opt, _ := hex.DecodeString(f.word("opt")) // checked by parseFrame
	var p []byte
	if f.src.Is4() {
		p = f.ipv4(proto, body, opt)
	} else {
		p = f.ipv6(proto, body, opt)
	}
	dst := routerMAC(f.port)
	switch f.word("to") {
	case "all":
		dst = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	case "group":
		a := f.dst.AsSlice()
		if dst = [6]byte{0x33, 0x33, a[len(a)-4], a[len(a)-3], a[len(a)-2], a[len(a)-1]}; f.dst.Is4() {
			dst[0], dst[1], dst[2], dst[3] = 1, 0, 0x5e, a[1]&0x7f
		}
	case "other":
		dst[5] ^= 0x40
	}
	src := hostMAC(f.port, f.number("from"))
	b := append(append([]byte(nil), dst[:]...), src[:]...)
	if f.src.Is4() {
		b = append(b, 8, 0)
	} else {
		b = append(b, 0x86, 0xdd)
	}
	b = append(b, p...)
	b = append(b, make([]byte, f.number("trail"))...)
	return b[:max(14, len(b)-f.number("cut"))]
}

func (f *frame) ipv4(proto byte, body, opt []byte) []byte {
	for len(opt)%4 != 0 {
		opt = append(opt, 0)
	}
	h := make([]byte, 20, 20+len(opt)+len(body))
	h = append(h, opt...)
	h[0] = 0x40 | byte(len(h)/4)
	h[1] = byte(f.number("tos"))
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+len(body)))
	binary.BigEndian.PutUint16(h[4:], uint16(f.number("id")))
	binary.BigEndian.PutUint16(h[6:], uint16(f.number("df")<<14|f.number("mf")<<13|f.number("off")/8))
	h[8], h[9] = byte(f.number("ttl")), proto
	copy(h[12:], f.src.AsSlice())
	copy(h[16:], f.dst.AsSlice())
	binary.BigEndian.PutUint16(h[10:], wire.Checksum(h))
	if f.word("sum") == "bad" {
		h[10] ^= 0x55
	}
	return append(h, body...)
}

func (f *frame) ipv6(proto byte, body, opt []byte) []byte {
	h := make([]byte, 40, 40+len(opt)+8+len(body))
	next := 6 // where the number of what follows is written
	if len(opt) > 0 {
		for len(opt) < 6 || (len(opt)+2)%8 != 0 {
			opt = append(opt, 0)
		}
		h[next] = 0
		next = len(h)
		h = append(h, 0, byte((len(opt)+2)/8-1))
		h = append(h, opt...)
	}
	if f.number("mf") > 0 || f.number("off") > 0 {
		h[next] = 44
		next = len(h)
		h = append(h, 0, 0, 0, 0, 0, 0, 0, 0)
		binary.BigEndian.PutUint16(h[next+2:], uint16(f.number("off")&^7|f.number("mf")))
		binary.BigEndian.PutUint32(h[next+4:], uint32(f.number("id")))
	}
	h[next] = proto
	tc, flow := f.number("tos"), f.number("flow")
	binary.BigEndian.PutUint32(h, uint32(6<<28|tc<<20|flow))
	h = append(h, body...)
	binary.BigEndian.PutUint16(h[4:], uint16(len(h)-40))
	h[7] = byte(f.number("ttl"))
	copy(h[8:], f.src.AsSlice())
	copy(h[24:], f.dst.AsSlice())
	return h
}
