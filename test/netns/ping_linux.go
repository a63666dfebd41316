package netns

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"
)

// A Pinger sends ICMP echo requests to one address, one after the other.
type Pinger struct {
	conn net.PacketConn
	dst  netip.Addr
	seq  uint16
	buf  []byte
}

// NewPinger returns a Pinger that sends from the namespace.
func (n *Namespace) NewPinger(dst netip.Addr) (*Pinger, error) {
	p := &Pinger{dst: dst, buf: make([]byte, 1<<16)}
	network := "ip4:icmp"
	if dst.Is6() {
		network = "ip6:ipv6-icmp"
	}
	err := n.Do(func() (err error) {
		p.conn, err = net.ListenPacket(network, "")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("netns: %s: ping %v: %w", n.name, dst, err)
	}
	return p, nil
}

// Ping sends a request with size bytes of data and waits for a reply with the
// same data.
func (p *Pinger) Ping(size int, timeout time.Duration) error {
	request, reply := byte(8), byte(0)
	if p.dst.Is6() {
		request, reply = 128, 129
	}
	p.seq++
	// type, code, checksum; identifier and sequence number; data (RFC 792, RFC 4443)
	msg := make([]byte, 8+size)
	msg[0] = request
	binary.BigEndian.PutUint16(msg[4:], uint16(os.Getpid()))
	binary.BigEndian.PutUint16(msg[6:], p.seq)
	for i := range size {
		msg[8+i] = byte(i + size + int(p.seq))
	}
	if p.dst.Is4() { // the kernel writes that of ICMPv6
		binary.BigEndian.PutUint16(msg[2:], checksum(msg))
	}
	if _, err := p.conn.WriteTo(msg, &net.IPAddr{IP: p.dst.AsSlice()}); err != nil {
		return fmt.Errorf("netns: ping %v with %d bytes: %w", p.dst, size, err)
	}
	if err := p.conn.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	for {
		n, from, err := p.conn.ReadFrom(p.buf)
		if err != nil {
			return fmt.Errorf("netns: ping %v with %d bytes: %w", p.dst, size, err)
		}
		got := p.buf[:n]
		if n < 8 || got[0] != reply || !bytes.Equal(got[4:8], msg[4:8]) {
			continue
		}
		if a, ok := netip.AddrFromSlice(from.(*net.IPAddr).IP); !ok || a.Unmap() != p.dst {
			continue
		}
		if !bytes.Equal(got[8:], msg[8:]) {
			return fmt.Errorf("netns: ping %v with %d bytes: %w", p.dst, size, errData)
		}
		return nil
	}
}

var errData = errors.New("the reply has other data")

// checksum returns the Internet checksum of b (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for len(b) > 1 {
		sum += uint32(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) > 0 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// Close closes the socket.
func (p *Pinger) Close() error { return p.conn.Close() }
