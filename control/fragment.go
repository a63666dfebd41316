package control

import (
	"encoding/binary"

	"nmfwd/dataplane"
	"nmfwd/fib"
	"nmfwd/wire"
)

// controlRoom is how many frames of the ring to a worker fragments leave to ARP,
// Neighbor Discovery and ICMP.
const controlRoom = 16

// fragment sends a packet that exceeds the MTU of its egress as fragments, or
// none of it where there is no room for all. One whose neighbor is not known
// waits whole.
func (c *Control) fragment(p dataplane.Punt) {
	ip := wire.IPv4(packetOf(p.Frame))
	a := c.path(destination(ip), ip)
	switch {
	case len(ip) < ip.TotalLen() || a.MTU == 0:
		c.messages[p.Port].unfragmented.Add(1)
	case unknown(a):
		p.Neighbor, p.Out = hopOf(a, ip), int(a.Port)
		c.resolve(p)
	default:
		c.fragmentBy(a, p.Port, ip, true)
	}
}

// fragmentBy forwards ip, which came in by port, by a as fragments, or none of it,
// and reports which. One of the router's own is not counted.
func (c *Control) fragmentBy(a *fib.Adjacency, port int, ip wire.IPv4, counted bool) bool {
	ip.DecrementTTL()
	sent, ok := c.sendFragments(port, a, ip)
	if !counted {
		return ok
	}
	n := &c.messages[port]
	if !ok {
		n.unfragmented.Add(1)
		return true
	}
	n.fragmented.Add(1)
	n.fragments.Add(uint64(sent))
	return true
}

// split calls f for each fragment of p that fits into mtu bytes, in order, until
// f returns false (RFC 791, 2.3, 3.2; RFC 1812, 4.2.2.7). Each is made in b, which
// has to hold mtu bytes, or 68 if that is more: less is not an MTU.
func split(b []byte, p wire.IPv4, mtu int, f func([]byte) bool) {
	mtu = max(mtu, 68)
	payload := p[p.HeaderLen():p.TotalLen()]
	offset := p.FragmentOffset() / 8
	header := copy(b, p[:p.HeaderLen()])
	for first := true; ; first = false {
		n, more := len(payload), p.MoreFragments()
		if header+n > mtu {
			n, more = (mtu-header)&^7, true
		}
		b := b[:header+n]
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
		binary.BigEndian.PutUint16(b[6:], uint16(offset))
		b[6] |= p[6] & 0x80 // reserved
		if more {
			b[6] |= 0x20
		}
		b[10], b[11] = 0, 0
		binary.BigEndian.PutUint16(b[10:], wire.Checksum(b[:header]))
		copy(b[header:], payload[:n])
		if !f(b) || n == len(payload) {
			return
		}
		payload = payload[n:]
		offset += n / 8
		if first {
			header = wire.IPv4Len + copiedOptions(b[wire.IPv4Len:], p.Options())
			b[0] = 0x40 | byte(header/4)
		}
	}
}

// copiedOptions writes to b the options that every fragment carries, padded to
// words, and returns their length: at most that of all.
func copiedOptions(b, options []byte) (n int) {
	for i := 0; i < len(options) && options[i] != wire.OptEnd; {
		size := 1
		if options[i] != wire.OptNop {
			size = int(options[i+1])
		}
		if options[i]&wire.OptCopied != 0 {
			n += copy(b[n:], options[i:i+size])
		}
		i += size
	}
	for ; n%4 != 0; n++ {
		b[n] = wire.OptEnd
	}
	return n
}

// pieces returns how many fragments split makes of p.
func pieces(p wire.IPv4, mtu int) (n int) {
	var b [wire.IPv4Len + 40]byte
	mtu = max(mtu, 68)
	rest := p.TotalLen() - p.HeaderLen()
	header := p.HeaderLen()
	for n = 1; header+rest > mtu; n++ {
		rest -= (mtu - header) &^ 7
		header = wire.IPv4Len + copiedOptions(b[:], p.Options())
	}
	return n
}
