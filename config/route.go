package config

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"nmfwd/config/syntax"
)

// This file reads route lines.

// gateway parses word i. A link-local address may name its port behind a
// percent sign; on is noName otherwise.
func (p *parser) gateway(i int) (a netip.Addr, on int32, ok bool) {
	on = noName
	s := p.words[i].s
	host := s
	percent := strings.IndexByte(s, '%')
	if percent >= 0 {
		host = s[:percent]
	}
	a, err := netip.ParseAddr(host)
	switch {
	case err != nil || a.Is4In6():
		p.fail(i, syntax.WrongAddress(s))
		return a, on, false
	case percent >= 0 && !linkLocal(a):
		p.fail(i, fmt.Sprintf("%s names a port, which only a link-local address needs: write %s", syntax.Quote(s), a))
		return a, on, false
	case percent >= 0 && percent == len(s)-1:
		p.fail(i, fmt.Sprintf("%s names no port behind the percent sign", syntax.Quote(s)))
		return a, on, false
	case percent >= 0:
		on = p.ref(s[percent+1:], p.words[i].col+percent+1)
	}
	if wrong := syntax.Unusable(a); wrong != "" {
		p.fail(i, fmt.Sprintf("%s is %s, which no neighbor has", syntax.Quote(s), wrong))
		return a, on, false
	}
	return a, on, true
}

// linkLocal reports whether a means nothing without a port. IPv4's own
// link-local addresses are looked up in the connected networks like others.
func linkLocal(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

// route reads: route DESTINATION ( GW | { via GW } [ on NAME ] | on NAME |
// blackhole | reject ) [ mtu N ].
func (p *parser) route() {
	dst, ok := p.argument(1, "a destination")
	if !ok {
		return
	}
	r := Route{Pos: p.at(p.words[0].col), Port: noName}
	isDefault := dst == "default"
	if !isDefault {
		if r.Prefix, ok = p.destination(dst); !ok {
			return
		}
	}
	p.hops = p.hops[:0]
	i := 2
	switch p.word(i) {
	case "":
		p.fail(i, "a route needs a gateway (via ADDRESS), a port (on PORT), blackhole or reject")
		return
	case "blackhole":
		r.Kind = Blackhole
		i++
	case "reject":
		r.Kind = Reject
		i++
	case "via":
		for p.word(i) == "via" {
			i++
			if _, ok := p.argument(i, "a gateway"); !ok || !p.hop(i) {
				return
			}
			i++
		}
	case "on":
		r.Kind = OnLink
	default:
		if !p.gatewayLike(i) {
			p.unknown(i, "word", []string{"via", "on", "blackhole", "reject"})
			return
		}
		if !p.hop(i) {
			return
		}
		i++
	}
	if p.word(i) == "on" && (r.Kind == Via || r.Kind == OnLink) {
		name, ok := p.argument(i+1, "a port")
		if !ok {
			return
		}
		r.Port = p.ref(name, p.words[i+1].col)
		i += 2
	}
	mtuAt := i
	if p.word(i) == "mtu" {
		s, ok := p.argument(i+1, "a value")
		if !ok {
			return
		}
		mtu, wrong := syntax.Number(s, minMTU4, maxMTU)
		if wrong != "" {
			p.fail(i+1, "the MTU "+wrong)
			return
		}
		r.MTU = uint16(mtu)
		i += 2
	}
	if !p.rest(i) {
		return
	}
	if isDefault {
		switch {
		case r.Kind == OnLink:
			p.fail(1, fmt.Sprintf("default on %s has no family: write 0.0.0.0/0 or ::/0", p.list[r.Port]))
			return
		case r.Kind == Via && p.hops[0].Gateway.Is6():
			r.Prefix = syntax.DefaultV6
		default:
			r.Prefix = syntax.DefaultV4
		}
	}
	if r.MTU > 0 {
		switch {
		case r.Kind == Blackhole || r.Kind == Reject:
			p.warn(p.words[mtuAt].col, fmt.Sprintf("the MTU has no effect on a %s route", r.Kind))
		case r.Prefix.Addr().Is6() && r.MTU < minMTU6:
			p.fail(mtuAt+1, fmt.Sprintf("MTU %d is less than the %d that IPv6 needs", r.MTU, minMTU6))
			return
		}
	}
	if r.Kind == Via && !p.settleHops(&r) {
		return
	}
	r.Hops = p.share(p.hops)
	p.addRoute(r)
	if isDefault && r.Kind != Via {
		r.Prefix = syntax.DefaultV6
		p.addRoute(r)
	}
}

// gatewayLike reports whether word i is meant as an address, whether or not it
// is one.
func (p *parser) gatewayLike(i int) bool {
	s := p.words[i].s
	return strings.ContainsAny(s, ".:%") || s[0] >= '0' && s[0] <= '9'
}

// destination parses the second word of a route line.
func (p *parser) destination(s string) (netip.Prefix, bool) {
	if strings.IndexByte(s, '/') >= 0 {
		pfx, wrong := syntax.Prefix(s)
		if wrong != "" {
			p.fail(1, wrong)
			return pfx, false
		}
		return pfx, true
	}
	a, wrong := syntax.Address(s)
	switch {
	case wrong != "":
		p.fail(1, wrong)
		return netip.Prefix{}, false
	case a.IsUnspecified():
		p.fail(1, fmt.Sprintf("%s is no host: write default or %s/0", a, a))
		return netip.Prefix{}, false
	}
	return syntax.HostPrefix(a), true
}

// hop adds the gateway in word i to those of the line.
func (p *parser) hop(i int) bool {
	if len(p.hops) == maxHops {
		p.fail(i, fmt.Sprintf("more than %d gateways", maxHops))
		return false
	}
	a, on, ok := p.gateway(i)
	if !ok {
		return false
	}
	if len(p.hops) > 0 && p.hops[0].Gateway.Is4() != a.Is4() {
		p.fail(i, fmt.Sprintf("gateways %s and %s are of two families", p.hops[0].Gateway, a))
		return false
	}
	p.hops = append(p.hops, Hop{a, on, uint16(p.words[i].col - p.words[0].col)})
	return true
}

// settleHops checks the gateways of the line against the rest of it, and gives
// them the port that the line names.
func (p *parser) settleHops(r *Route) bool {
	wrong := func(h *Hop, format string, args ...any) bool {
		col := p.words[0].col + int(h.off)
		p.fail(slices.IndexFunc(p.words, func(w word) bool { return w.col == col }), fmt.Sprintf(format, args...))
		return false
	}
	zoned := true
	for i := range p.hops {
		h := &p.hops[i]
		local := linkLocal(h.Gateway)
		zoned = zoned && local
		switch {
		case h.Gateway.Is4() != r.Prefix.Addr().Is4():
			return wrong(h, "gateway %s is of another family than %s", h.Gateway, r.Prefix)
		case local && h.Port == noName && r.Port == noName:
			return wrong(h, "link-local gateway %s needs its port: write %s%%PORT", h.Gateway, h.Gateway)
		case h.Port != noName && r.Port != noName && h.Port != r.Port:
			return wrong(h, "gateway %s%%%s is not on %s", h.Gateway, p.list[h.Port], p.list[r.Port])
		case h.Port == noName:
			h.Port = r.Port
		}
	}
	if zoned {
		r.Port = noName // each gateway has it
	}
	return true
}

// share returns hops in memory that routes share. A single gateway is found
// again in a small cache: most tables have few.
func (p *parser) share(hops []Hop) []Hop {
	if len(hops) == 0 {
		return nil
	}
	var set *[2][]Hop
	if len(hops) == 1 {
		h := &hops[0]
		b := h.Gateway.As16()
		k := (binary.LittleEndian.Uint64(b[8:]) ^ binary.LittleEndian.Uint64(b[:8]) ^ uint64(h.off)) * 0x9e3779b97f4a7c15
		set = &p.cache[k>>32%uint64(len(p.cache))]
		for _, s := range set {
			if len(s) == 1 && s[0] == *h {
				return s
			}
		}
	}
	n := len(hops)
	if len(p.slab) < n {
		p.slab = make([]Hop, maxHops<<min(7, len(p.slabs)))
		p.slabs = append(p.slabs, p.slab)
	}
	s := p.slab[:n:n]
	p.slab = p.slab[n:]
	copy(s, hops)
	if set != nil {
		set[0], set[1] = s, set[0]
	}
	return s
}

// addRoute adds a route unless its prefix has one.
func (p *parser) addRoute(r Route) {
	if i, ok := p.prefixes.add(r.Prefix, p.cfg.Routes); ok {
		o := &p.cfg.Routes[i]
		same := r.Kind == o.Kind && r.Port == o.Port && r.MTU == o.MTU && sameHops(r.Hops, o.Hops)
		p.again(same, "route "+r.Prefix.String(), o.Pos)
		return
	}
	if syntax.NeverForwarded(r.Prefix) {
		p.warn(p.words[1].col, fmt.Sprintf("route %s has no effect: packets for it are never forwarded", r.Prefix))
	}
	p.cfg.Routes = append(p.cfg.Routes, r)
}

// sameHops reports whether a and b are the same gateways as often in any order.
func sameHops(a, b []Hop) bool {
	if len(a) != len(b) {
		return false
	}
	times := func(hops []Hop, h Hop) (n int) {
		for _, o := range hops {
			if h.Gateway == o.Gateway && h.Port == o.Port {
				n++
			}
		}
		return n
	}
	for _, h := range a {
		if times(a, h) != times(b, h) {
			return false
		}
	}
	return true
}

// A prefixIndex finds the index of a route by its prefix: an open hash table
// that costs a million routes 16 MB.
type prefixIndex struct {
	slots []uint64 // hash, of which the upper half is kept, and index+1; 0 for empty
	n     int      // slots in use
}

// grow makes place for n routes; the routes so far have to be added again.
func (x *prefixIndex) grow(n int) {
	if size := 1 << bits.Len(uint(2*max(n, 32)-1)); size > len(x.slots) {
		x.slots = make([]uint64, size)
		x.n = 0
	}
}

// add returns the index of the route for pfx among routes and true, or adds
// len(routes) and returns false.
func (x *prefixIndex) add(pfx netip.Prefix, routes []Route) (int, bool) {
	if 2*len(routes) >= len(x.slots) {
		x.grow(2 * (len(routes) + 1))
	}
	for x.n < len(routes) {
		s, h := x.find(routes[x.n].Prefix, routes)
		x.n++
		*s = h | uint64(x.n)
	}
	s, h := x.find(pfx, routes)
	if *s != 0 {
		return int(uint32(*s)) - 1, true
	}
	x.n++
	*s = h | uint64(x.n)
	return 0, false
}

// find returns the slot of pfx, empty or not, and the part of the hash that
// belongs in it.
func (x *prefixIndex) find(pfx netip.Prefix, routes []Route) (slot *uint64, hash uint64) {
	b := pfx.Addr().As16()
	h := binary.LittleEndian.Uint64(b[:8])*0x9e3779b97f4a7c15 + uint64(pfx.Bits())
	h = (bits.RotateLeft64(h, 32) ^ binary.LittleEndian.Uint64(b[8:])) * 0xd6e8feb86659fd93
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	hash = h &^ (1<<32 - 1)
	mask := uint64(len(x.slots) - 1)
	for i := h >> 32; ; i++ {
		s := &x.slots[i&mask]
		if *s == 0 || *s&^(1<<32-1) == hash && routes[uint32(*s)-1].Prefix == pfx {
			return s, hash
		}
	}
}
