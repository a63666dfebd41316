//go:build integration && linux

package oracle

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
)

// A difference is one that is meant.
type difference struct {
	name   string
	reason string
	script string // shows it

	// take takes out of the leftovers what the difference makes, and returns how
	// much that was.
	take taker
}

var intended = []difference{
	{
		name:   "several ways",
		reason: "Each router chooses among the gateways of a route by a hash of its own. The gateways that flows leave by are the same set.",
		script: "ip route add 10.80.0.0/16 nexthop via 10.2.0.2 nexthop via 10.3.0.2\nflows p1 172.20.0.1 10.80.0.0 96",
		take: func(ctx context.Context, p *pairOfTwins, l *leftovers) int {
			return p.otherWays(ctx, l, func(several, _ []string) []string { return several })
		},
	},
	{
		name:   "one of several gateways does not answer",
		reason: "Of several gateways nmfwd uses those that answer. The kernel keeps packets for one that it asks for, and tells the sources when that does not answer.",
		script: "ip route add 10.80.0.0/16 nexthop via 10.2.0.2 nexthop via 10.3.0.2\nip route add 172.20.0.0/16 via 10.1.0.2\nhost p3 2 silent\nflows p1 172.20.0.1 10.80.0.0 96",
		take: func(ctx context.Context, p *pairOfTwins, l *leftovers) int {
			several := map[netip.Addr]bool{}
			return l.pair(func(k, m received) bool {
				e, q := packetOf([]byte(k.data)), packetOf([]byte(m.data))
				if e == nil || q == nil || !isError(e) || !isPacket(icmpOf(e)[8:]) {
					return false
				}
				told := icmpOf(e)
				if v6 := e[0]>>4 == 6; v6 && (told[0] != 1 || told[1] != 3) || !v6 && (told[0] != 3 || told[1] != 1) {
					return false
				}
				about := told[8:]
				if about[0]>>4 != q[0]>>4 || about[0]>>4 == 4 && string(about[12:20]) != string(q[12:20]) || about[0]>>4 == 6 && string(about[8:40]) != string(q[8:40]) {
					return false
				}
				_, dst := addresses(q)
				ok, seen := several[dst]
				if !seen {
					ways, _ := p.kernel.choices(ctx, dst)
					ok = ways != nil
					several[dst] = ok
				}
				return ok
			})
		},
	},
	{
		name:   "metrics behind a link that is down",
		reason: "Of the IPv6 routes to a prefix nmfwd uses the one with the lowest metric that has a link. Linux, once the first has none, prefers among all others one that leads back where the packet came from.",
		script: "ip route add 2001:db8:64::/48 via 2001:db8:1::2 metric 1\nip route add 2001:db8:64::/48 via 2001:db8:2::2 metric 2\nip route add 2001:db8:64::/48 via 2001:db8:3::2 metric 3\ncarrier p1 down\nframe p3 2001:db8:3::6 2001:db8:64::4 id=1",
		take: func(ctx context.Context, p *pairOfTwins, l *leftovers) int {
			return p.otherWays(ctx, l, func(_, metrics []string) []string { return metrics })
		},
	},
	{
		name:   "MTU of IPv6 routes",
		reason: "nmfwd keeps to the MTU of a route in both families. The kernel does in IPv4, and in IPv6 only if the MTU is locked.",
		script: "ip route add 2001:db8:64::/48 via 2001:db8:2::2 mtu 1280\nframe p1 2001:db8:1::6 2001:db8:64::4 id=1 len=1300",
		take: func(_ context.Context, _ *pairOfTwins, l *leftovers) int {
			return l.pair(func(k, m received) bool {
				p, q := packetOf([]byte(k.data)), packetOf([]byte(m.data))
				if e := icmpOf(q); p == nil || e == nil || q[0]>>4 != 6 || e[0] != 2 || !isPacket(e[8:]) {
					return false
				}
				q = icmpOf(q)[8:]
				if e := icmpOf(p); e != nil && e[0] == 2 && isPacket(e[8:]) {
					p = e[8:]
				}
				return p[0]>>4 == 6 && string(p[8:40]) == string(q[8:40])
			})
		},
	},
	{
		name:   "redirects",
		reason: "The kernel tells IPv6 hosts of a better router on their link. nmfwd does not (RFC 4861, 8.2, says should).",
		script: "ip route add 2001:db8:64::/48 via fe80::3 dev p1\nneighbors p1\nframe p1 2001:db8:1::2 2001:db8:64::1 id=1",
		take: func(_ context.Context, _ *pairOfTwins, l *leftovers) int {
			redirect := func(p []byte) bool { m := icmpOf(p); return p[0]>>4 == 6 && m != nil && m[0] == 137 }
			return only(&l.kernel, redirect) + only(&l.nmfwd, redirect)
		},
	},
	{
		name:   "quoted hop limit",
		reason: "An error about a host that does not answer quotes the packet as it came in (RFC 1812, 4.3.2.3). The kernel has decremented it before.",
		script: "frame p1 10.1.0.2 10.2.0.77 id=1\nframe p1 2001:db8:1::2 2001:db8:2::77 id=2",
		take: func(_ context.Context, _ *pairOfTwins, l *leftovers) int {
			return l.pair(quotesTTL)
		},
	},
	{
		name:   "reserved addresses",
		reason: "nmfwd drops packets to and from 0.0.0.0/8 and 240.0.0.0/4 silently (RFC 1812, 5.3.7; RFC 6890). The kernel takes them for those of stations.",
		script: "ip route add default via 10.2.0.2\nframe p1 10.1.0.2 240.0.0.1 id=1\nframe p1 240.0.0.1 10.2.0.3 id=2\nframe p1 10.1.0.2 0.1.2.3 id=3",
		take:   onlyKernel(about(netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("0.0.0.0/8"))),
	},
	{
		name:   "reserved addresses of IPv6",
		reason: "nmfwd drops packets to :: (RFC 4291, 2.5.2) and to and from ::ffff:0:0/96 (RFC 4291, 2.5.5.2) silently. The kernel looks for a route.",
		script: "frame p2 2001:db8:2::4 :: id=1\nframe p2 2001:db8:2::4 ::ffff:10.1.0.2 id=2",
		take:   onlyKernel(about(netip.MustParsePrefix("::/128"), mapped)),
	},
	{
		name:   "sources that are broadcast addresses",
		reason: "nmfwd drops packets from the broadcast address of a network of its own, which is its first address too (RFC 1812, 5.3.7, 4.2.2.11), and tells nothing to it (4.3.2.7). The kernel forwards them, and sends errors as broadcasts.",
		script: "frame p1 10.1.0.255 100.64.0.1 id=1\nframe p1 10.2.0.255 10.3.0.2 id=2\nframe p1 10.1.0.0 10.3.0.3 id=3",
		take: onlyKernel(about(
			netip.MustParsePrefix("10.1.0.255/32"), netip.MustParsePrefix("10.2.0.255/32"), netip.MustParsePrefix("10.3.0.255/32"),
			netip.MustParsePrefix("10.1.0.0/32"), netip.MustParsePrefix("10.2.0.0/32"), netip.MustParsePrefix("10.3.0.0/32"))),
	},
	{
		name:   "unknown hop-by-hop options",
		reason: "nmfwd forwards packets with hop-by-hop options that it does not know, as RFC 8200, 4, allows routers. The kernel does what the option's type asks of those who look at it.",
		script: "frame p1 2001:db8:1::2 2001:db8:2::3 id=1 opt=c100\nframe p1 2001:db8:1::2 2001:db8:2::3 id=2 opt=4100",
		take: func(_ context.Context, _ *pairOfTwins, l *leftovers) int {
			unknown := func(p []byte) bool { return len(p) > 43 && p[0]>>4 == 6 && p[6] == 0 && p[42]&0xc0 != 0 }
			told := func(p []byte) bool {
				m := icmpOf(p)
				return p[0]>>4 == 6 && m != nil && m[0] == 4 && m[1] == 2 && len(m) > 8+40 && unknown(m[8:])
			}
			return only(&l.kernel, told) + only(&l.nmfwd, func(p []byte) bool { return unknown(p) || isError(p) && unknown(icmpOf(p)[8:]) })
		},
	},
	{
		name:   "options that routers fill in",
		reason: "nmfwd forwards packets with record route and timestamp unchanged, whatever is in them, or drops them (RFC 7126). The kernel fills them in, and tells of wrong pointers.",
		script: "frame p1 10.1.0.2 10.2.0.3 id=1 opt=07070400000000\nframe p1 10.1.0.2 10.2.0.3 id=2 opt=0703",
		take: func(_ context.Context, _ *pairOfTwins, l *leftovers) int {
			filled := func(p []byte) bool {
				return len(p) > 20 && p[0]>>4 == 4 && p[0]&15 > 5 && (p[20] == 7 || p[20] == 68)
			}
			either := func(p []byte) bool { return filled(p) || isError(p) && filled(icmpOf(p)[8:]) }
			return only(&l.kernel, either) + only(&l.nmfwd, either)
		},
	},
	{
		name:   "options of fragments",
		reason: "Fragments behind the first are without options that are not to be copied (RFC 791, 3.1). The kernel has no-operation options in their place.",
		script: "neighbors p3\nframe p1 10.1.0.2 10.3.0.3 id=1 len=1400 opt=010101",
		take: func(_ context.Context, _ *pairOfTwins, l *leftovers) int {
			return l.pair(func(k, m received) bool {
				p, q := packetOf([]byte(k.data)), packetOf([]byte(m.data))
				if k.port != m.port || p == nil || q == nil || p[0]>>4 != 4 || q[0] != 0x45 || binary.BigEndian.Uint16(p[6:])&0x1fff == 0 || len(p) < int(p[0]&15)*4 {
					return false
				}
				options, rest := p[20:int(p[0]&15)*4], p[int(p[0]&15)*4:]
				return strings.Trim(string(options), "\x00\x01") == "" && string(p[4:10]) == string(q[4:10]) && string(p[12:20]) == string(q[12:20]) && string(rest) == string(q[20:])
			})
		},
	},
	{
		name:   "malformed hop-by-hop options",
		reason: "nmfwd tells the source where the fault is (RFC 4443, 3.4). The kernel discards the packet silently.",
		script: "frame p1 2001:db8:1::2 2001:db8:2::3 id=1 opt=3e7f",
		take: func(_ context.Context, _ *pairOfTwins, l *leftovers) int {
			return only(&l.nmfwd, func(p []byte) bool {
				m := icmpOf(p)
				return p[0]>>4 == 6 && m != nil && m[0] == 4 && m[1] == 0 && len(m) > 8+40 && m[8+6] == 0
			})
		},
	},
	{
		name:   "congestion bits of errors",
		reason: "An error of IPv4 has none of the ECN bits of the packet that it is about (RFC 3168, 5; RFC 1812, 4.3.2.5, is older). The kernel copies one of the two.",
		script: "frame p1 10.1.0.2 100.64.0.1 id=1 tos=3",
		take: func(_ context.Context, _ *pairOfTwins, l *leftovers) int {
			return l.pair(func(k, m received) bool {
				p, q := []byte(k.data), []byte(m.data)
				if len(p) < 14+20 || p[14]>>4 != 4 || !isError(packetOf(p)) || p[15]&3 == 0 {
					return false
				}
				p[15] &^= 3
				return k.port == m.port && string(p) == string(q)
			})
		},
	},
	{
		name:   "fragments that may be of errors",
		reason: "nmfwd tells nothing about a fragment of ICMPv6 that does not begin with the message, which may be of an error (RFC 4443, 2.4 (e.1)). The kernel does.",
		script: "frame p1 2001:db8:1::2 2001:db8:ffff::1 id=1 off=8 proto=echo",
		take: onlyKernel(func(p []byte) bool {
			if p[0]>>4 != 6 || !isError(p) {
				return false
			}
			q := icmpOf(p)[8:]
			return len(q) > 44 && q[6] == 44 && q[40] == 58 && (q[42] != 0 || q[43]&^7 != 0)
		}),
	},
	{
		name:   "link-local sources of IPv6",
		reason: "nmfwd drops a packet with a link-local source that is not for itself. The kernel forwards it where it leaves by the link that it came in by, which RFC 4291, 2.5.6, allows, and tells of errors.",
		script: "frame p3 fe80::2 2001:db8:3::7 id=1\nframe p3 fe80::2 fd00::1 id=2",
		take:   onlyKernel(about(netip.MustParsePrefix("fe80::/10"))),
	},
	{
		name:   "link-local addresses of IPv4",
		reason: "nmfwd does not forward packets to and from 169.254.0.0/16 (RFC 3927, 7). The kernel takes them for any others.",
		script: "frame p1 10.1.0.2 169.254.1.1 id=1\nframe p1 169.254.1.1 10.2.0.3 id=2",
		take:   onlyKernel(about(netip.MustParsePrefix("169.254.0.0/16"))),
	},
}

// mapped is ::ffff:0:0/96, which netip.ParsePrefix refuses.
var mapped = netip.PrefixFrom(netip.AddrFrom16([16]byte{10: 0xff, 11: 0xff}), 96)

// A taker takes out of the leftovers what a difference makes.
type taker = func(ctx context.Context, p *pairOfTwins, l *leftovers) int

func onlyKernel(is func(p []byte) bool) taker {
	return func(_ context.Context, _ *pairOfTwins, l *leftovers) int { return only(&l.kernel, is) }
}

// about reports whether a packet, or the one that an error is about, has an address
// in a prefix.
func about(in ...netip.Prefix) func(p []byte) bool {
	is := func(p []byte) bool {
		src, dst := addresses(p)
		return slices.ContainsFunc(in, func(q netip.Prefix) bool { return q.Contains(src) || q.Contains(dst) })
	}
	return func(p []byte) bool { return is(p) || isError(p) && isPacket(icmpOf(p)[8:]) && is(icmpOf(p)[8:]) }
}

// A knownDifference is a defect of nmfwd that is to be mended.
type knownDifference struct {
	name   string
	what   string
	script string // shows it
}

var known = []knownDifference{
	{
		name:   "append behind a reject route",
		what:   "Of an IPv6 route of type prohibit, blackhole or unreachable and one through a gateway with the same prefix and metric the kernel uses the gateway's.",
		script: "ip -6 route add prohibit 64:ff9b::/96 metric 20\nip -6 route append 64:ff9b::/96 via 2001:db8:2::5 dev p2 metric 20\nframe p2 2001:db8:2::6 64:ff9b::2 id=1",
	},
	{
		name:   "first address of a network",
		what:   "Packets to the first address of a connected IPv4 network, which nmfwd takes for a broadcast address, are left to the host over AF_XDP. Its kernel takes the address for that of a station, and forwards them if it is told to forward.",
		script: "frame p1 10.1.0.2 10.1.0.0 id=1",
	},
	{
		name:   "connected network of a port that is down",
		what:   "Packets to the network of a port without a link are dropped as link_down, silently. The kernel follows other routes to it, or tells the sender that there is none.",
		script: "ip link set dev p2 down\nframe p1 10.1.0.2 10.2.0.3 id=1\nframe p1 2001:db8:1::2 2001:db8:2::3 id=2",
	},
}

func isKnown(name string) bool {
	return slices.ContainsFunc(known, func(d knownDifference) bool { return d.name == name })
}
