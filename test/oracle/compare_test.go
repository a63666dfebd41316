//go:build integration && linux

package oracle

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"nmfwd/wire"
)

// leftovers are the frames that only one of the routers sent.
type leftovers struct{ kernel, nmfwd []received }

func (l *leftovers) empty() bool { return len(l.kernel)+len(l.nmfwd) == 0 }

// String shows the frames.
func (l *leftovers) String() string {
	var b strings.Builder
	show := func(who string, all []received) {
		for i, r := range all {
			if i == 8 {
				fmt.Fprintf(&b, "  %s: and %d more\n", who, len(all)-i)
				break
			}
			fmt.Fprintf(&b, "  only %s, p%d: %s\n    %s\n", who, r.port, describe([]byte(r.data)), hex.EncodeToString([]byte(r.data[:min(len(r.data), 120)])))
		}
	}
	show("the kernel", l.kernel)
	show("nmfwd", l.nmfwd)
	return b.String()
}

// kind returns what leftovers with one cause have in common.
func (l *leftovers) kind() string {
	kinds := map[string]bool{}
	for who, all := range map[string][]received{"kernel": l.kernel, "nmfwd": l.nmfwd} {
		for _, r := range all {
			k := who
			if p := packetOf([]byte(r.data)); p != nil {
				if k += fmt.Sprint(" ", p[0]>>4); isError(p) {
					k += fmt.Sprint(" ", icmpOf(p)[:2])
				}
			}
			kinds[k] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(kinds)), ", ")
}

// causes returns the frames that the leftovers are about, as a script has them.
func (l *leftovers) causes(frames []*frame) map[string]bool {
	lines := map[string]bool{}
	for _, f := range frames {
		p := packetOf(f.build())
		from, to := 12, 28 // what forwarding does not change
		if p != nil && p[0]>>4 == 6 {
			from, to = 8, 56
		}
		if p == nil || len(p) < from {
			continue
		}
		part := string(p[from:min(to, len(p))])
		if slices.ContainsFunc(slices.Concat(l.kernel, l.nmfwd), func(r received) bool { return strings.Contains(r.data, part) }) {
			lines[f.String()] = true
		}
	}
	return lines
}

// describe says in words what a frame is.
func describe(b []byte) string {
	p := packetOf(b)
	if p == nil {
		return fmt.Sprintf("%d bytes", len(b))
	}
	src, dst := addresses(p)
	proto, at := int(p[9]), int(p[0]&15)*4
	ttl := p[8]
	if p[0]>>4 == 6 {
		proto, at, ttl = int(p[6]), 40, p[7]
	}
	s := fmt.Sprintf("%x to %x, %v to %v, ttl %d, protocol %d, %d bytes", b[6:12], b[:6], src, dst, ttl, proto, len(p))
	if (proto == 1 || proto == 58) && len(p) > at+8 {
		s += fmt.Sprintf(", ICMP %d/%d", p[at], p[at+1])
		if quoted := p[at+8:]; isError(p) && isPacket(quoted) {
			s += " about " + describe(append(make([]byte, 12), append([]byte{8, 0}, quoted...)...))
		}
	}
	return s
}

// packetOf returns the IP packet in a frame that has one.
func packetOf(b []byte) []byte {
	if len(b) < 14 || !isPacket(b[14:]) {
		return nil
	}
	return b[14:]
}

// isPacket reports whether p begins with the header of an IP packet.
func isPacket(p []byte) bool {
	return len(p) >= 20 && p[0]>>4 == 4 || len(p) >= 40 && p[0]>>4 == 6
}

func addresses(p []byte) (src, dst netip.Addr) {
	if p[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(p[12:])), netip.AddrFrom4([4]byte(p[16:]))
	}
	return netip.AddrFrom16([16]byte(p[8:])), netip.AddrFrom16([16]byte(p[24:]))
}

// icmpOf returns the ICMP message that a packet is, nil for none.
func icmpOf(p []byte) []byte {
	switch {
	case p == nil:
	case p[0]>>4 == 4 && p[9] == 1 && len(p) >= int(p[0]&15)*4+8:
		return p[int(p[0]&15)*4:]
	case p[0]>>4 == 6 && p[6] == 58 && len(p) >= 48:
		return p[40:]
	}
	return nil
}

func isError(p []byte) bool {
	m := icmpOf(p)
	if m == nil {
		return false
	}
	if p[0]>>4 == 6 {
		return m[0] < 128
	}
	return m[0] == 3 || m[0] == 11 || m[0] == 12
}

// ours reports whether an address is one of the router's.
func ours(a netip.Addr) bool {
	for i := 1; i <= ports; i++ {
		if a == address(i, 1, false) || a == address(i, 1, true) {
			return true
		}
	}
	return false
}

// normal returns a frame without what each router makes up for itself: the
// identification of IPv4 packets that it is the source of. Their checksum has to be
// right.
func normal(r received) received {
	b := []byte(r.data)
	p := packetOf(b)
	if p == nil || p[0]>>4 != 4 {
		return r
	}
	if src, _ := addresses(p); !ours(src) || wire.Checksum(p[:int(p[0]&15)*4]) != 0 {
		return r
	}
	p[4], p[5], p[10], p[11] = 0, 0, 0, 0
	return received{r.port, string(b)}
}

// noise reports whether a router's own stack sent a frame when it liked to:
// reports of multicast listeners.
func noise(r received) bool {
	p := packetOf([]byte(r.data))
	return p != nil && p[0]>>4 == 6 && p[24] == 0xff && p[25] == 2 && p[39] == 0x16
}

// subtract returns what is only in a and only in b.
func subtract(a, b []received) (l leftovers) {
	count := map[received]int{}
	for _, r := range b {
		if !noise(r) {
			count[normal(r)]++
		}
	}
	for _, r := range a {
		if noise(r) {
			continue
		}
		if n := normal(r); count[n] > 0 {
			count[n]--
		} else {
			l.kernel = append(l.kernel, n)
		}
	}
	for r, n := range count {
		for range n {
			l.nmfwd = append(l.nmfwd, r)
		}
	}
	order := func(a, b received) int { return strings.Compare(a.data, b.data) }
	slices.SortFunc(l.kernel, order)
	slices.SortFunc(l.nmfwd, order)
	return l
}

// pair takes out pairs of frames that are alike.
func (l *leftovers) pair(alike func(kernel, nmfwd received) bool) (n int) {
	l.kernel = slices.DeleteFunc(l.kernel, func(k received) bool {
		i := slices.IndexFunc(l.nmfwd, func(m received) bool { return alike(k, m) })
		if i < 0 {
			return false
		}
		l.nmfwd = slices.Delete(l.nmfwd, i, i+1)
		n++
		return true
	})
	return n
}

// only takes out frames of one router.
func only(all *[]received, is func(p []byte) bool) (n int) {
	*all = slices.DeleteFunc(*all, func(r received) bool {
		if p := packetOf([]byte(r.data)); p == nil || !is(p) {
			return false
		}
		n++
		return true
	})
	return n
}

// choices asks the kernel for the ports that packets to an address may leave by,
// none where there is one only: those of a route with several gateways, or of IPv6
// routes that differ in their metrics of which one cannot be used.
func (w *twin) choices(ctx context.Context, a netip.Addr) (several, metrics []string) {
	out, err := w.router.Output(ctx, "ip", "-o", "route", "get", "fibmatch", a.String())
	if err != nil {
		return nil, nil // no route
	}
	devices := func(out string) (all []string) {
		f := strings.Fields(out)
		for i := range f[:max(0, len(f)-1)] {
			if f[i] == "dev" {
				all = append(all, f[i+1])
			}
		}
		return all
	}
	if several = devices(out); len(several) < 2 {
		several = nil
	}
	if a.Is6() {
		prefix, _, _ := strings.Cut(out, " ")
		out, err = w.router.Output(ctx, "ip", "-6", "route", "show", prefix)
		if err == nil && strings.Contains(out, "linkdown") {
			metrics = devices(out)
		}
	}
	return several, metrics
}

// otherWays takes out frames that left by different ports, both among those that
// of returns of choices.
func (p *pairOfTwins) otherWays(ctx context.Context, l *leftovers, of func(several, metrics []string) []string) int {
	known := map[netip.Addr][]string{}
	return l.pair(func(k, m received) bool {
		if k.data[12:] != m.data[12:] {
			return false
		}
		_, dst := addresses(packetOf([]byte(k.data)))
		ways, ok := known[dst]
		if !ok {
			ways = of(p.kernel.choices(ctx, dst))
			known[dst] = ways
		}
		return slices.Contains(ways, fmt.Sprintf("p%d", k.port)) && slices.Contains(ways, fmt.Sprintf("p%d", m.port))
	})
}

// manyFlows is how many flows show all hops of a route with three of weights 1 and
// 2: each router leaves out one in 10^9 cases.
const manyFlows = 96

// sets compares where the flows of lines "flows" left: the same hops by both.
func (p *pairOfTwins) sets() string {
	ways := func(all []received) map[string]map[string]int {
		by := map[string]map[string]int{}
		for _, r := range all {
			k := packetOf([]byte(r.data))
			if k == nil || isError(k) {
				continue
			}
			_, dst := addresses(k)
			net, _ := dst.Prefix(dst.BitLen() - 8)
			if by[net.String()] == nil {
				by[net.String()] = map[string]int{}
			}
			by[net.String()][fmt.Sprintf("p%d %x", r.port, r.data[:6])]++
		}
		return by
	}
	nmfwd := ways(p.nmfwd.got)
	for net, k := range ways(p.kernel.got) {
		sum := 0
		for _, n := range k {
			sum += n
		}
		if sum < manyFlows {
			continue
		}
		for way := range k {
			if nmfwd[net][way] == 0 {
				return fmt.Sprintf("  %d flows to %s: the kernel uses %v, nmfwd %v\n", sum, net, k, nmfwd[net])
			}
		}
		if len(k) != len(nmfwd[net]) {
			return fmt.Sprintf("  %d flows to %s: the kernel uses %v, nmfwd %v\n", sum, net, k, nmfwd[net])
		}
	}
	return ""
}

// quotesTTL reports whether two errors differ in that the packet which one of them
// quotes has been decremented.
func quotesTTL(k, m received) bool {
	kp, mp := []byte(k.data), []byte(m.data)
	if k.port != m.port || len(kp) != len(mp) || packetOf(kp) == nil || !isError(packetOf(kp)) {
		return false
	}
	at := 14 + 20 + 8
	if kp[14]>>4 == 6 {
		at = 14 + 40 + 8
	}
	if len(kp) < at || !isPacket(kp[at:]) || !isPacket(mp[at:]) {
		return false
	}
	q := mp[at:]
	if q[0]>>4 == 6 {
		q[7]--
	} else {
		kp[15] &^= 3 // which differ besides
		q[8]--
		q[10], q[11] = 0, 0
		binary.BigEndian.PutUint16(q[10:], wire.Checksum(q[:int(q[0]&15)*4]))
	}
	// The message's checksum is over the quoted packet too.
	sum := at - 8 + 2
	kp[sum], kp[sum+1], mp[sum], mp[sum+1] = 0, 0, 0, 0
	return string(kp) == string(mp)
}
