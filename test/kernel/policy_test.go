//go:build integration && linux

package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"nmfwd/test/lab/apu2"
)

// TestPolicyHoldsForRouterAlert: packets with the router alert option go by
// blackhole, reject and urpf like all others, although the kernel beside would
// forward them.
func TestPolicyHoldsForRouterAlert(t *testing.T) {
	l := newLab(t, 1, 1)
	if err := errors.Join(l.Forward(true), l.Router.Sysctl("net/ipv4/conf/all/rp_filter", "0"), l.Router.Sysctl("net/ipv4/conf/igb1/rp_filter", "0")); err != nil {
		t.Fatal(err)
	}
	const stranger4, stranger6 = "203.0.113.5", "2001:db8::5"
	for _, a := range []string{stranger4 + "/32", stranger6 + "/128"} {
		if err := l.Generator.AddAddr(apu2.Gen0, netip.MustParsePrefix(a)); err != nil {
			t.Fatal(err)
		}
	}
	b := startBed(t, l, strings.Replace(labConfig(t), "port igb1 ", "port igb1 urpf strict ", 1)+`
route 198.19.0.77 blackhole
route 2001:2:0:8000::77 blackhole
route 198.19.0.78 reject
route 2001:2:0:8000::78 reject
`)
	for _, c := range []struct{ name, from, to, counter string }{
		{"plain", apu2.GeneratorAddrs[0].Addr().String(), apu2.ReceiverAddrs[0].Addr().String(), "forwarded"},
		{"plain, v6", apu2.GeneratorAddrs[1].Addr().String(), apu2.ReceiverAddrs[1].Addr().String(), "forwarded"},
		{"blackhole", apu2.GeneratorAddrs[0].Addr().String(), "198.19.0.77", "blackhole"},
		{"blackhole, v6", apu2.GeneratorAddrs[1].Addr().String(), "2001:2:0:8000::77", "blackhole"},
		{"reject", apu2.GeneratorAddrs[0].Addr().String(), "198.19.0.78", "unreachable"},
		{"reject, v6", apu2.GeneratorAddrs[1].Addr().String(), "2001:2:0:8000::78", "unreachable"},
		{"urpf", stranger4, apu2.ReceiverAddrs[0].Addr().String(), "urpf"},
		{"urpf, v6", stranger6, apu2.ReceiverAddrs[1].Addr().String(), "urpf"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := b.forwardedByKernel()
			if err := b.Generator.Do(func() error { return sendAlert(c.from, c.to) }); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() error {
				grew := b.scrape().Sub(b.before)
				n := grew.Sum("nmfwd_dropped_packets_total", `reason="`+c.counter+`"`) + grew.Sum("nmfwd_punted_packets_total", `kind="`+c.counter+`"`)
				if c.counter == "forwarded" {
					n = grew.Sum("nmfwd_forwarded_packets_total", `device="igb1"`)
				}
				if n == 0 {
					return fmt.Errorf("no packet counted as %s", c.counter)
				}
				return nil
			})
			if n := b.forwardedByKernel() - before; n != 0 {
				t.Errorf("the kernel forwarded %d packets", n)
			}
			b.settle("blackhole", "reject", "urpf")
		})
	}
	b.stop()
}

// forwardedByKernel returns how many packets the kernel of the router forwarded.
func (b *bed) forwardedByKernel() uint64 {
	b.Helper()
	v4, err := snmp(b.Router, "Ip", "ForwDatagrams")
	if err != nil {
		b.Fatal(err)
	}
	v6, err := snmp6(b.Router, "Ip6OutForwDatagrams")
	if err != nil {
		b.Fatal(err)
	}
	return v4 + v6
}

// sendAlert sends a datagram with a router alert as the first option.
func sendAlert(from, to string) error {
	d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0)), Control: func(network, _ string, c syscall.RawConn) (err error) {
		e := c.Control(func(fd uintptr) {
			if network == "udp4" {
				err = unix.SetsockoptString(int(fd), unix.IPPROTO_IP, unix.IP_OPTIONS, "\x94\x04\x00\x00")
			} else {
				err = unix.SetsockoptString(int(fd), unix.IPPROTO_IPV6, unix.IPV6_HOPOPTS, "\x00\x00\x05\x02\x00\x01\x01\x00")
			}
		})
		return errors.Join(e, err)
	}}
	c, err := d.Dial("udp", netip.AddrPortFrom(netip.MustParseAddr(to), 9).String())
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte("alert"))
	return err
}
