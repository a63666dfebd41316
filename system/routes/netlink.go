package routes

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// Messages of rtnetlink(7): linux/netlink.h, rtnetlink.h, if_link.h, nexthop.h.
// Numbers are in the order of the machine. A message is
//
//	0       4     6     8   12  16
//	length  type  flags seq pid payload, attributes
//
// and an attribute
//
//	0      2    4
//	length type payload
//
// each padded to four bytes.
const (
	nlHeader   = 16
	attrHeader = 4

	nlmsgError     = 2
	nlmsgDone      = 3
	rtmNewLink     = 16
	rtmDelLink     = 17
	rtmDelAddr     = 21
	rtmNewRoute    = 24
	rtmDelRoute    = 25
	rtmNewRule     = 32
	rtmDelRule     = 33
	rtmNewNexthop  = 104
	rtmDelNexthop  = 105
	nlmAppend      = 0x800 // NLM_F_APPEND
	nlmInterrupted = 0x10  // NLM_F_DUMP_INTR
	attrTypeMask   = 0x3fff

	familyIPv4 = 2
	familyIPv6 = 10

	// struct rtmsg
	rtmsgLen     = 12
	rtmDstLen    = 1
	rtmSrcLen    = 2
	rtmTOS       = 3
	rtmTable     = 4
	rtmType      = 7
	rtmFlags     = 8
	rtmFCloned   = 0x200
	tableDefault = 253
	tableMain    = 254
	tableLocal   = 255
	rtaDst       = 1
	rtaOIF       = 4
	rtaGateway   = 5
	rtaPriority  = 6
	rtaMetrics   = 8
	rtaMultiple  = 9 // RTA_MULTIPATH
	rtaTable     = 15
	rtaVia       = 18
	rtaEncap     = 22
	rtaNexthop   = 30 // RTA_NH_ID
	rtaxMTU      = 2

	// struct rtnexthop
	rtnhLen    = 8
	rtnhHops   = 3
	rtnhIfIdex = 4

	// struct ifinfomsg
	ifinfoLen   = 16
	ifiIndex    = 4
	ifiFlags    = 8
	iffUp       = 1
	iffLowerUp  = 0x10000
	iflaName    = 3
	nhmsgLen    = 8
	nhaID       = 1
	nhaGroup    = 2
	nhaBlack    = 4
	nhaOIF      = 5
	nhaGateway  = 6
	nhaEncap    = 8
	nhaFDB      = 11
	groupMember = 8 // struct nexthop_grp

	// struct fib_rule_hdr, fib_rules.h
	ruleLen     = 12
	ruleTable   = 4
	ruleAction  = 7
	ruleToTable = 1 // FR_ACT_TO_TBL
	fraTable    = 15
)

// Types of routes, RTN_ of rtnetlink.h.
const (
	rtnUnicast     = 1
	rtnLocal       = 2
	rtnBroadcast   = 3
	rtnAnycast     = 4
	rtnBlackhole   = 6
	rtnUnreachable = 7
	rtnProhibit    = 8
	rtnThrow       = 9
)

var native = binary.NativeEndian

var errMessage = errors.New("malformed message")

// A message is one of rtnetlink.
type message struct {
	kind, flags uint16
	payload     []byte
}

// eachMessage calls do for the messages in b.
func eachMessage(b []byte, do func(message) error) error {
	for len(b) > 0 {
		if len(b) < nlHeader {
			return errMessage
		}
		n := native.Uint32(b)
		if n < nlHeader || uint64(n) > uint64(len(b)) {
			return errMessage
		}
		m := message{native.Uint16(b[4:]), native.Uint16(b[6:]), b[nlHeader:n]}
		if err := do(m); err != nil {
			return err
		}
		b = b[min(align4(int(n)), len(b)):]
	}
	return nil
}

func align4(n int) int { return (n + 3) &^ 3 }

// eachAttr calls do for the attributes in b.
func eachAttr(b []byte, do func(kind uint16, v []byte) error) error {
	for len(b) >= attrHeader {
		n := int(native.Uint16(b))
		if n < attrHeader || n > len(b) {
			return errMessage
		}
		if err := do(native.Uint16(b[2:])&attrTypeMask, b[attrHeader:n]); err != nil {
			return err
		}
		b = b[min(align4(n), len(b)):]
	}
	return nil
}

// A netlinkReader takes messages to a table.
type netlinkReader struct {
	*table
	path path // of the message being read
}

// message takes one message. What is not about routes is nothing.
func (r *netlinkReader) message(m message) error {
	switch m.kind {
	case rtmNewLink, rtmDelLink:
		return r.link(m)
	case rtmNewNexthop, rtmDelNexthop:
		return r.nexthop(m)
	case rtmNewRoute, rtmDelRoute:
		return r.route(m)
	case rtmNewRule, rtmDelRule:
		return r.rule(m)
	case rtmDelAddr:
		r.again = true // routes go with it, of which Linux tells nothing in IPv4
	}
	return nil
}

func (r *netlinkReader) link(m message) error {
	p := m.payload
	if len(p) < ifinfoLen {
		return errMessage
	}
	if p[0] != 0 {
		return nil // of a bridge
	}
	index := native.Uint32(p[ifiIndex:])
	if m.kind == rtmDelLink {
		r.dropLink(index)
		return nil
	}
	const both = iffUp | iffLowerUp
	l := link{up: native.Uint32(p[ifiFlags:])&both == both}
	err := eachAttr(p[ifinfoLen:], func(kind uint16, v []byte) error {
		if kind == iflaName {
			l.name = cString(v)
		}
		return nil
	})
	if err == nil {
		r.setLink(index, l)
	}
	return err
}

func cString(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

func (r *netlinkReader) nexthop(m message) error {
	if len(m.payload) < nhmsgLen {
		return errMessage
	}
	var id uint32
	var o object
	h := hop{weight: 1}
	forBridge := false
	err := eachAttr(m.payload[nhmsgLen:], func(kind uint16, v []byte) (err error) {
		switch kind {
		case nhaID:
			id, err = number(v)
		case nhaOIF:
			h.link, err = number(v)
		case nhaGateway:
			h.gateway, err = address(v)
		case nhaBlack:
			o.verb = blackhole
		case nhaEncap:
			h.odd = Encapsulate
		case nhaFDB:
			forBridge = true
		case nhaGroup:
			o.group = []member{}
			for ; len(v) >= groupMember; v = v[groupMember:] {
				// The weight is one less than meant; its upper half is behind it, since
				// Linux 6.12.
				w := int(v[5])<<8 | int(v[4])
				o.group = append(o.group, member{native.Uint32(v), uint16(min(w+1, 1<<16-1))})
			}
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case m.kind == rtmDelNexthop:
		r.dropObject(id)
	case !forBridge:
		if o.group == nil && o.verb == unicast {
			o.hops = []hop{h}
		}
		r.setObject(id, o)
	}
	return nil
}

// rule takes a rule. A list has them in order.
func (r *netlinkReader) rule(m message) error {
	b := m.payload
	if len(b) < ruleLen {
		return errMessage
	}
	family := uint8(4)
	switch b[0] {
	case familyIPv4:
	case familyIPv6:
		family = 6
	default:
		return nil
	}
	if !r.listing {
		r.again = true // others may come after it
		return nil
	}
	table := uint32(b[ruleTable])
	err := eachAttr(b[ruleLen:], func(kind uint16, v []byte) (err error) {
		if kind == fraTable {
			table, err = number(v)
		}
		return err
	})
	l := r.later[family]
	switch toTable := b[ruleAction] == ruleToTable; {
	case toTable && table == tableMain:
		l.main = true
	case !l.main || toTable && table == tableLocal:
	case toTable && table == tableDefault:
		l.lookup = true
	default:
		l.rules = true
	}
	r.later[family] = l
	return err
}

func (r *netlinkReader) route(m message) error {
	b := m.payload
	if len(b) < rtmsgLen {
		return errMessage
	}
	family := b[0]
	if family != familyIPv4 && family != familyIPv6 || native.Uint32(b[rtmFlags:])&rtmFCloned != 0 {
		return nil
	}
	p := prefix{bits: b[rtmDstLen], family: 4}
	if family == familyIPv6 {
		p.family = 6
	}
	var e entry
	to := &r.path
	*to = path{family: p.family, hops: to.hops[:0]}
	table := uint32(b[rtmTable])
	h := hop{weight: 1}
	single, several := false, false
	err := eachAttr(b[rtmsgLen:], func(kind uint16, v []byte) (err error) {
		switch kind {
		case rtaDst:
			if len(v) != 4 && len(v) != 16 {
				return errMessage
			}
			copy(p.addr[:], v)
		case rtaTable:
			table, err = number(v)
		case rtaPriority:
			e.metric, err = number(v)
		case rtaNexthop:
			to.object, err = number(v)
		case rtaMetrics:
			return eachAttr(v, func(kind uint16, v []byte) error {
				if kind != rtaxMTU {
					return nil
				}
				n, err := number(v)
				to.mtu = uint16(n)
				if n > 1<<16-1 {
					to.mtu = 0
				}
				return err
			})
		case rtaMultiple:
			several = true
			return r.hops(v)
		case rtaOIF:
			single = true
			h.link, err = number(v)
		default:
			return h.attr(kind, v)
		}
		return err
	})
	if err != nil {
		return err
	}
	if p.family == 4 && p.bits > 32 || p.bits > 128 {
		return errMessage
	}
	switch {
	case table == tableLocal:
		e.local, e.metric = true, 0
	case table == tableDefault:
		l := r.later[p.family]
		if came := m.kind == rtmNewRoute; !r.listing {
			r.again = r.again || came != l.routes // there may be others
		} else if came {
			l.routes = true
			r.later[p.family] = l
		}
		return nil
	case table != tableMain:
		return nil
	}
	if p.special() {
		return nil
	}
	var odd Odd
	switch {
	case b[rtmTOS] != 0 && p.family == 4:
		odd = ByTOS
	case b[rtmSrcLen] != 0:
		odd = BySource
	}
	if odd != 0 {
		if r.listing {
			r.left[odd]++
		}
		return nil
	}
	switch b[rtmType] {
	case rtnUnicast:
	case rtnLocal, rtnBroadcast, rtnAnycast:
		*to = path{family: p.family, verb: local, hops: to.hops[:0]}
	case rtnBlackhole:
		to.verb = blackhole
	case rtnUnreachable:
		to.verb = unreachable
	case rtnProhibit:
		to.verb = prohibit
	case rtnThrow:
		to.verb = throw
	default:
		return nil
	}
	switch {
	case to.verb != unicast || to.object != 0:
		to.hops = to.hops[:0]
	case single && !several:
		to.hops = append(to.hops, h)
	}
	if m.kind == rtmDelRoute {
		r.unset(p, e, to)
	} else {
		r.set(p, e, to, m.flags&nlmAppend != 0 && !several)
	}
	return nil
}

// attr takes an attribute that routes with one hop have, and hops of others.
func (h *hop) attr(kind uint16, v []byte) (err error) {
	switch kind {
	case rtaGateway:
		h.gateway, err = address(v)
	case rtaVia:
		if len(v) < 2 {
			return errMessage
		}
		h.gateway, err = address(v[2:])
	case rtaEncap:
		h.odd = Encapsulate
	}
	return err
}

// hops reads the hops of RTA_MULTIPATH: structs rtnexthop, with attributes.
func (r *netlinkReader) hops(b []byte) error {
	for len(b) > 0 {
		if len(b) < rtnhLen {
			return errMessage
		}
		n := int(native.Uint16(b))
		if n < rtnhLen || n > len(b) {
			return errMessage
		}
		h := hop{link: native.Uint32(b[rtnhIfIdex:]), weight: uint16(b[rtnhHops]) + 1}
		err := eachAttr(b[rtnhLen:n], func(kind uint16, v []byte) error { return h.attr(kind, v) })
		if err != nil {
			return err
		}
		r.path.hops = append(r.path.hops, h)
		b = b[min(align4(n), len(b)):]
	}
	return nil
}

func number(v []byte) (uint32, error) {
	if len(v) < 4 {
		return 0, errMessage
	}
	return native.Uint32(v), nil
}

func address(v []byte) (netip.Addr, error) {
	a, ok := netip.AddrFromSlice(v)
	if !ok {
		return a, errMessage
	}
	return a, nil
}

// special reports whether packets to p are never looked up.
func (p *prefix) special() bool {
	a := p.netip().Addr()
	if p.family == 4 {
		return p.bits >= 4 && (p.addr[0] == 127 || p.addr[0] >= 224) || p.bits >= 8 && p.addr[0] == 0
	}
	return p.bits >= 8 && a.IsMulticast() || p.bits >= 10 && a.IsLinkLocalUnicast() || a.IsLoopback()
}
