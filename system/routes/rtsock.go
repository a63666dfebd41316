package routes

import (
	"net/netip"
	"slices"
)

// Messages of the route socket, route(4), and of the lists of sysctl(3):
// net/route.h, net/if.h, net/if_dl.h of FreeBSD 12.1 to 15. Numbers are in the
// order of the machine, and a long is a word of it. Every message begins with
//
//	0       2        3     4
//	length  version  type  more
const (
	rtVersion = 5 // RTM_VERSION

	rtAdd         = 1
	rtDelete      = 2
	rtChange      = 3
	rtGet         = 4 // what lists are made of
	rtDelAddr     = 0x0d
	rtInterface   = 0x0e // RTM_IFINFO
	rtIfAnnounce  = 0x11
	rtfUp         = 0x1
	rtfGateway    = 0x2
	rtfHost       = 0x4
	rtfReject     = 0x8
	rtfLLData     = 0x400
	rtfBlackhole  = 0x1000
	rtfLocal      = 0x200000
	rtfBroadcast  = 0x400000
	rtfMulticast  = 0x800000
	rtaxMax       = 8
	rtaxDst       = 0
	rtaxGateway   = 1
	rtaxNetmask   = 2
	rtaxInterface = 4 // RTAX_IFP

	// struct rt_msghdr; what comes behind inits is of longs.
	rtIndex  = 4
	rtFlags  = 8
	rtAddrs  = 12
	rtErrno  = 24
	rtInits  = 32
	rtLongs  = 1 + 14 // rtm_inits, struct rt_metrics
	rtMTU    = 1 + 1
	rtWeight = 1 + 10

	// struct if_msghdr, with the start of struct if_data
	ifAddrs    = 4
	ifFlags    = 8
	ifIndex    = 12
	ifData     = 16
	ifLinkUp   = ifData + 4 // ifi_link_state
	ifDataLen  = ifData + 6 // ifi_datalen
	ifRunning  = 0x40       // IFF_DRV_RUNNING
	linkIsDown = 1          // LINK_STATE_DOWN

	// struct if_announcemsghdr
	announceIndex = 4
	announceLen   = 24

	afInet  = 2
	afLink  = 18
	afInet6 = 28
)

// An rtsockReader takes messages to a table, of a machine whose words have so many
// bytes.
type rtsockReader struct {
	*table
	word int
	path path
}

func (r *rtsockReader) long(b []byte) uint64 {
	if r.word == 4 {
		return uint64(native.Uint32(b))
	}
	return native.Uint64(b)
}

// messages takes the messages in b. What is not about routes is nothing.
func (r *rtsockReader) messages(b []byte) error {
	for len(b) > 0 {
		if len(b) < 4 {
			return errMessage
		}
		n := int(native.Uint16(b))
		if n < 4 || n > len(b) {
			return errMessage
		}
		if b[2] == rtVersion {
			if err := r.message(b[:n]); err != nil {
				return err
			}
		}
		b = b[n:]
	}
	return nil
}

func (r *rtsockReader) message(m []byte) error {
	switch m[3] {
	case rtInterface:
		return r.link(m)
	case rtIfAnnounce:
		if len(m) < announceLen {
			return errMessage
		}
		r.again = true // it came or went: a list tells which
	case rtDelAddr:
		r.again = true
	case rtAdd, rtDelete, rtChange, rtGet:
		return r.route(m)
	}
	return nil
}

// link takes a struct if_msghdr. Only those of lists have the name.
func (r *rtsockReader) link(m []byte) error {
	if len(m) < ifDataLen+2 {
		return errMessage
	}
	index := uint32(native.Uint16(m[ifIndex:]))
	old := r.links[index]
	flags := native.Uint32(m[ifFlags:])
	l := link{name: old.name, up: flags&iffUp != 0 && flags&ifRunning != 0 && m[ifLinkUp] != linkIsDown}
	at := ifData + int(native.Uint16(m[ifDataLen:]))
	if at > len(m) {
		return errMessage
	}
	addrs, err := r.addresses(m[at:], native.Uint32(m[ifAddrs:]))
	if err != nil {
		return err
	}
	// struct sockaddr_dl: length, family, index, type, length of the name, two
	// more lengths, the name
	if a := addrs[rtaxInterface]; len(a) >= 8 && a[1] == afLink && 8+int(a[5]) <= len(a) && a[5] > 0 {
		l.name = string(a[8 : 8+a[5]])
	}
	if l.name == "" {
		r.again = true
		return nil
	}
	r.setLink(index, l)
	return nil
}

// addresses returns the socket addresses in b, of which mask says which are there.
func (r *rtsockReader) addresses(b []byte, mask uint32) (addrs [rtaxMax][]byte, err error) {
	for i := range addrs {
		if mask&(1<<i) == 0 {
			continue
		}
		if len(b) == 0 {
			return addrs, errMessage
		}
		n := int(b[0])
		padded := max(r.word, (n+r.word-1)&^(r.word-1))
		if n > len(b) {
			return addrs, errMessage
		}
		addrs[i] = b[:n]
		b = b[min(padded, len(b)):]
	}
	return addrs, nil
}

func (r *rtsockReader) route(m []byte) error {
	head := rtInits + rtLongs*r.word
	if len(m) < head {
		return errMessage
	}
	flags := native.Uint32(m[rtFlags:])
	if native.Uint32(m[rtErrno:]) != 0 || flags&(rtfLLData|rtfMulticast|rtfBroadcast) != 0 {
		return nil // what failed, and what is no route
	}
	addrs, err := r.addresses(m[head:], native.Uint32(m[rtAddrs:]))
	if err != nil {
		return err
	}
	dst, ok := inetAddr(addrs[rtaxDst])
	if !ok {
		return nil
	}
	bits := dst.BitLen()
	if flags&rtfHost == 0 {
		if bits, ok = maskBits(addrs[rtaxNetmask], dst); !ok {
			r.left[BadGateway]++
			return nil
		}
	}
	p := prefixOf(netip.PrefixFrom(dst, bits).Masked())
	if p.special() {
		return nil
	}
	to := &r.path
	*to = path{family: p.family, hops: to.hops[:0]}
	if n := r.long(m[rtInits+rtMTU*r.word:]); n < 1<<16 {
		to.mtu = uint16(n)
	}
	var e entry
	switch {
	case flags&rtfLocal != 0:
		*to = path{family: p.family, verb: local, hops: to.hops[:0]}
		e.local = true
	case flags&rtfBlackhole != 0:
		to.verb = blackhole
	case flags&rtfReject != 0:
		to.verb = unreachable // as the kernel tells senders
	default:
		h := hop{link: uint32(native.Uint16(m[rtIndex:])), weight: uint16(min(max(r.long(m[rtInits+rtWeight*r.word:]), 1), 1<<16-1))}
		if flags&rtfGateway != 0 {
			if h.gateway, ok = inetAddr(addrs[rtaxGateway]); !ok {
				h.odd = BadGateway
			}
		}
		to.hops = append(to.hops, h)
	}
	if m[3] == rtDelete || flags&rtfUp == 0 {
		r.removeHop(p, e, to)
	} else {
		r.addHop(p, e, to, m[3] == rtChange)
	}
	return nil
}

// addHop takes a route, which is one more path where there is one of the same
// prefix: the route socket has a message for each.
func (r *rtsockReader) addHop(p prefix, e entry, to *path, changed bool) {
	old := r.find(p, &e)
	fresh := old == nil || r.listing && old.list != r.list
	switch k := r.pathOf(old); {
	case fresh || to.verb != unicast || k.verb != unicast:
	case changed && len(k.hops) > 1:
		r.again = true // which of them, the message does not say
		return
	case !changed:
		for _, h := range k.hops {
			if h.link != to.hops[0].link || h.gateway != to.hops[0].gateway {
				to.hops = append(to.hops, h)
			}
		}
	}
	if fresh {
		r.set(p, e, to, false)
		return
	}
	r.put(p, *old, to)
}

func (r *rtsockReader) pathOf(e *entry) path {
	if e == nil {
		return path{}
	}
	return r.paths[e.path].path
}

// put gives an entry another path.
func (r *rtsockReader) put(p prefix, old entry, to *path) {
	e := old
	e.list = r.list
	if e.path = r.intern(to); e.path == old.path {
		r.release(e.path)
	}
	r.replace(p, old, e)
}

// removeHop takes out a path, and the route with the last one.
func (r *rtsockReader) removeHop(p prefix, e entry, to *path) {
	old := r.find(p, &e)
	if old == nil {
		return
	}
	rest := r.pathOf(old)
	if to.verb == unicast && len(rest.hops) > 1 {
		rest.hops = slices.DeleteFunc(slices.Clone(rest.hops), func(h hop) bool {
			return h.link == to.hops[0].link && h.gateway == to.hops[0].gateway
		})
		r.put(p, *old, &rest)
		return
	}
	r.drop(p, *old)
}

// inetAddr returns the address in a struct sockaddr_in or sockaddr_in6. The scope
// that FreeBSD keeps within link-local addresses is taken out.
func inetAddr(b []byte) (netip.Addr, bool) {
	switch {
	case len(b) >= 8 && b[1] == afInet:
		return netip.AddrFrom4([4]byte(b[4:8])), true
	case len(b) >= 24 && b[1] == afInet6:
		a := [16]byte(b[8:24])
		if a[0] == 0xfe && a[1]&0xc0 == 0x80 {
			a[2], a[3] = 0, 0
		}
		return netip.AddrFrom16(a), true
	}
	return netip.Addr{}, false
}

// maskBits returns the length of a netmask for addresses like a. Zeros at its end
// may be missing, and so may its family.
func maskBits(b []byte, a netip.Addr) (int, bool) {
	at := 4
	if a.Is6() {
		at = 8
	}
	b = b[min(at, len(b)):]
	b = b[:min(a.BitLen()/8, len(b))]
	n := 0
	for n < len(b)*8 && b[n/8]&(0x80>>(n%8)) != 0 {
		n++
	}
	for i := n; i < len(b)*8; i++ {
		if b[i/8]&(0x80>>(i%8)) != 0 {
			return 0, false // with a hole
		}
	}
	return n, true
}
