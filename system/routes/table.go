package routes

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"nmfwd/fib"
)

// A prefix is the destination of a route, without pointers: there may be a
// million.
type prefix struct {
	addr         [16]byte // an IPv4 address in the first 4 bytes
	bits, family uint8    // 4 or 6
}

func prefixOf(p netip.Prefix) (q prefix) {
	q.bits, q.family = uint8(p.Bits()), 6
	if p.Addr().Is4() {
		q.family = 4
	}
	copy(q.addr[:], p.Addr().AsSlice())
	return q
}

func (p prefix) netip() netip.Prefix {
	a := netip.AddrFrom16(p.addr)
	if p.family == 4 {
		a = netip.AddrFrom4([4]byte(p.addr[:4]))
	}
	return netip.PrefixFrom(a, int(p.bits))
}

// compare is the order of fib.RIB.All.
func (p prefix) compare(q prefix) int {
	return cmp.Or(cmp.Compare(p.family, q.family), slices.Compare(p.addr[:], q.addr[:]), cmp.Compare(p.bits, q.bits))
}

// A verb is what the system does with packets that follow a route.
type verb uint8

const (
	unicast     verb = iota // sends them by one of the hops
	local                   // takes them itself
	blackhole               // discards them silently
	prohibit                // discards them and tells the sender that they are prohibited
	unreachable             // discards them and tells the sender that the destination cannot be reached
	throw                   // looks on in what comes after the main table
)

// A path is where a route leads.
type path struct {
	family uint8  // of the packets
	verb   verb   //
	mtu    uint16 // 0 for that of the interface
	object uint32 // nexthop object that the hops are of, 0 for none
	hops   []hop  // of unicast, if there is no object
}

// A hop is one of the ways of a path.
type hop struct {
	link    uint32     // index of the interface
	weight  uint16     // share of the flows
	odd     Odd        // why a port cannot send by it
	gateway netip.Addr // invalid: the destination is on the link
}

// sort puts the hops in order: the system has them in any.
func (p *path) sort() {
	if len(p.hops) > 1 {
		slices.SortFunc(p.hops, func(a, b hop) int {
			return cmp.Or(cmp.Compare(a.link, b.link), a.gateway.Compare(b.gateway), cmp.Compare(a.weight, b.weight))
		})
	}
}

// encode appends a form of p to b that is the same for equal paths only.
func (p *path) encode(b []byte) []byte {
	b = append(b, p.family, byte(p.verb))
	b = binary.BigEndian.AppendUint16(b, p.mtu)
	b = binary.BigEndian.AppendUint32(b, p.object)
	for _, h := range p.hops {
		b = binary.BigEndian.AppendUint32(b, h.link)
		b = binary.BigEndian.AppendUint16(b, h.weight)
		b = append(b, byte(h.odd), byte(h.gateway.BitLen()))
		b = append(b, h.gateway.AsSlice()...)
	}
	return b
}

// An Odd says why a route of the system is not followed by a port.
type Odd uint8

// What ports cannot do is left to the host; what only some of the packets to a
// prefix would follow is left out.
const (
	_           Odd = iota
	Encapsulate     // sent in another packet, or with labels
	OtherFamily     // the gateway's address is of another family (RFC 8950)
	OnLinkPath      // one of several paths has no gateway
	TooMany         // more paths than [fib.MaxHops]
	BadGateway      // the gateway's address is that of no station
	ByTOS           // for some values of the TOS field only
	BySource        // for some sources only
	NumOdd      = iota
)

var oddNames = [NumOdd]string{"", "encapsulation", "gateway of the other family", "path without a gateway", "too many paths", "bad gateway", "route by TOS", "route by source"}

// String returns what is odd.
func (o Odd) String() string { return oddNames[o] }

// Then returns what becomes of routes that are o.
func (o Odd) Then() string {
	if o == ByTOS || o == BySource {
		return "left out"
	}
	return "left to the host"
}

// A link is an interface of the system.
type link struct {
	name string
	up   bool // set up, and with a carrier
}

// A later says what the system has where the main table has no answer: rules that
// come after that for the main table.
type later struct {
	main   bool // there is a rule for the main table: the next ones come after it
	rules  bool // there is one for another table than the default one
	lookup bool // there is one for the default table
	routes bool // which has routes
}

// more reports whether there may be an answer.
func (l later) more() bool { return l.rules || l.lookup && l.routes }

// An object is a nexthop object of Linux: hops that routes share by its number.
type object struct {
	verb  verb
	hops  []hop
	group []member // in place of hops
}

type member struct {
	id     uint32
	weight uint16
}

// An entry is one of the system's routes to a prefix. They differ in the metric
// and whether they are of the table of the system's own addresses, which comes
// before all others.
type entry struct {
	metric uint32
	path   uint32
	list   uint16 // the last one that had it
	local  bool
	double bool // the system has several with all this the same; this is the first
}

func (e *entry) before(f *entry) bool {
	if e.local != f.local {
		return e.local
	}
	return e.metric < f.metric
}

func (e *entry) same(f *entry) bool { return e.local == f.local && e.metric == f.metric }

// known is a path in use, with how ports follow it.
type known struct {
	path
	code string
	to   *fib.Route // nil while no hop can be used; without a prefix. It is not changed
	refs int
}

// A table holds the system's routes, and tells feeds what changes for ports.
type table struct {
	ports   map[string]uint16 // port number by name of interface
	links   map[uint32]link
	objects map[uint32]object
	routes  map[prefix]entry   // the preferred one
	more    map[prefix][]entry // the others, preferred first
	left    [NumOdd]int        // routes left out, as found by the last list
	later   map[uint8]later    // by family: what comes after the main table

	ids   map[string]uint32 // of paths, by code
	paths []known
	free  []uint32
	code  []byte

	feeds   []*Feed
	list    uint16 // number of the last list
	listing bool
	changed bool // links or objects are not those that the paths were resolved with
	again   bool // only a new list can tell what the system has
}

func newTable(ports map[string]uint16) *table {
	return &table{
		ports: ports, links: map[uint32]link{}, objects: map[uint32]object{}, later: map[uint8]later{},
		routes: map[prefix]entry{}, more: map[prefix][]entry{}, ids: map[string]uint32{},
	}
}

// begin starts a list of all that the system has.
func (t *table) begin() {
	t.list++
	t.listing, t.again = true, false
	clear(t.links)
	clear(t.objects)
	clear(t.later)
	clear(t.left[:])
}

// end ends the list: what it did not have is gone. Quiet says that nothing changed
// meanwhile: else Linux may leave out routes of IPv6 that are there, so that these
// are gone only when the list before did not have them either.
func (t *table) end(quiet bool) {
	t.listing, t.changed = false, true
	t.resolve()
	gone := func(p prefix, e entry) bool {
		missed := t.list - e.list
		if missed == 1 && p.family == 6 && !quiet {
			t.again = true
			return false
		}
		return missed > 0
	}
	for p, es := range t.more {
		for _, e := range slices.Clone(es) {
			if gone(p, e) {
				t.drop(p, e)
			}
		}
	}
	for p, e := range t.routes {
		if gone(p, e) {
			t.drop(p, e)
		}
	}
}

// setLink tells that an interface is there; it is up or not.
func (t *table) setLink(index uint32, l link) {
	if old, ok := t.links[index]; ok && old.up && !l.up {
		t.again = true // routes go with it, of which Linux tells nothing in IPv4
	}
	if t.links[index] != l {
		t.links[index] = l
		t.changed = true
	}
}

// dropLink tells that an interface has gone.
func (t *table) dropLink(index uint32) {
	delete(t.links, index)
	t.changed, t.again = true, true
}

func (t *table) setObject(id uint32, o object) {
	t.objects[id] = o
	t.changed = true
}

// dropObject tells that a nexthop object has gone, and with it the routes by it.
func (t *table) dropObject(id uint32) {
	delete(t.objects, id)
	t.changed, t.again = true, true
}

// set tells of a route: a new one, or a new path of an old one. Behind says that
// it comes after one with the same prefix and metric, if there is one.
func (t *table) set(p prefix, e entry, to *path, behind bool) {
	e.list = t.list
	old := t.find(p, &e)
	if old == nil {
		e.path = t.intern(to)
		t.insert(p, e)
		return
	}
	twice := t.listing && old.list == t.list
	e.double = old.double && (!t.listing || twice)
	to.sort()
	same := t.paths[old.path].code == string(to.encode(t.code[:0]))
	switch {
	case twice:
		e.path, e.double = old.path, true
	case same:
		e.path = old.path
	case behind:
		e.path, e.double = old.path, true
	default:
		e.path = t.intern(to)
		e.double = e.double || !t.listing
	}
	if e != *old {
		before := *old
		t.replace(p, before, e)
	}
}

// unset tells that a route is gone, or some of its hops.
func (t *table) unset(p prefix, e entry, to *path) {
	old := t.find(p, &e)
	if old == nil {
		return
	}
	if old.double {
		t.again = true
		return
	}
	e = *old
	k := &t.paths[e.path]
	if p.family == 6 && to.object == 0 && k.object == 0 && len(to.hops) > 0 && len(to.hops) < len(k.hops) {
		rest := k.path
		rest.hops = slices.DeleteFunc(slices.Clone(k.hops), func(h hop) bool {
			return slices.ContainsFunc(to.hops, func(g hop) bool { return g.link == h.link && g.gateway == h.gateway })
		})
		n := e
		if n.path = t.intern(&rest); n.path == e.path {
			t.release(n.path) // it has others than is known
			t.again = true
			return
		}
		t.replace(p, e, n)
		return
	}
	t.drop(p, e)
}

// find returns the entry of p that is the same as e, or nil.
func (t *table) find(p prefix, e *entry) *entry {
	first, ok := t.routes[p]
	if !ok {
		return nil
	}
	if first.same(e) {
		return &first
	}
	es := t.more[p]
	if i := slices.IndexFunc(es, func(f entry) bool { return f.same(e) }); i >= 0 {
		return &es[i]
	}
	return nil
}

// insert adds an entry, whose path has been counted.
func (t *table) insert(p prefix, e entry) {
	first, ok := t.routes[p]
	switch {
	case !ok:
		t.routes[p] = e
	case e.before(&first):
		t.routes[p] = e
		t.more[p] = slices.Insert(t.more[p], 0, first)
	default:
		es := t.more[p]
		i, _ := slices.BinarySearchFunc(es, e, func(a, b entry) int {
			if a.before(&b) {
				return -1
			}
			return 1
		})
		t.more[p] = slices.Insert(es, i, e)
	}
	t.tell(p)
}

// replace puts an entry, whose path has been counted if it is another, in the
// place of the same one.
func (t *table) replace(p prefix, old, e entry) {
	if first := t.routes[p]; first.same(&old) {
		t.routes[p] = e
	} else {
		es := t.more[p]
		es[slices.IndexFunc(es, func(f entry) bool { return f.same(&old) })] = e
	}
	if e.path != old.path {
		t.tell(p)
		t.release(old.path)
	}
}

// drop takes out an entry.
func (t *table) drop(p prefix, e entry) {
	first := t.routes[p]
	es := t.more[p]
	switch {
	case !first.same(&e):
		es = slices.DeleteFunc(es, func(f entry) bool { return f.same(&e) })
	case len(es) == 0:
		delete(t.routes, p)
	default:
		t.routes[p] = es[0]
		es = slices.Delete(es, 0, 1)
	}
	if len(es) > 0 {
		t.more[p] = es
	} else {
		delete(t.more, p)
	}
	t.tell(p)
	t.release(e.path)
}

// intern returns the number of a path, with one more user. The order of hops does
// not matter.
func (t *table) intern(p *path) uint32 {
	p.sort()
	t.code = p.encode(t.code[:0])
	id, ok := t.ids[string(t.code)]
	if !ok {
		k := known{path: *p, code: string(t.code)}
		k.hops = slices.Clone(p.hops)
		k.to = t.follow(&k.path)
		if n := len(t.free); n > 0 {
			id, t.free = t.free[n-1], t.free[:n-1]
			t.paths[id] = k
		} else {
			id = uint32(len(t.paths))
			t.paths = append(t.paths, k)
		}
		t.ids[k.code] = id
	}
	t.paths[id].refs++
	return id
}

func (t *table) release(id uint32) {
	k := &t.paths[id]
	if k.refs--; k.refs == 0 {
		delete(t.ids, k.code)
		*k = known{}
		t.free = append(t.free, id)
	}
}

// best returns how ports follow the routes to p: as the first one that has a hop
// that can be used. It is nil if there is none.
func (t *table) best(p prefix) *fib.Route {
	e, ok := t.routes[p]
	if !ok {
		return nil
	}
	if to := t.paths[e.path].to; to != nil {
		return to
	}
	for _, e := range t.more[p] {
		if to := t.paths[e.path].to; to != nil {
			return to
		}
	}
	return nil
}

// tell tells the feeds how p is followed now.
func (t *table) tell(p prefix) {
	if len(t.feeds) == 0 {
		return
	}
	to := t.best(p)
	for _, f := range t.feeds {
		f.add(p, to)
	}
}

// resolve follows links and nexthop objects that changed.
func (t *table) resolve() {
	if !t.changed || t.listing {
		return
	}
	t.changed = false
	moved := make([]bool, len(t.paths))
	any := false
	for id := range t.paths {
		k := &t.paths[id]
		if k.refs == 0 {
			continue
		}
		if to := t.follow(&k.path); !sameRoute(to, k.to) {
			k.to = to
			moved[id], any = true, true
		}
	}
	if !any {
		return
	}
	for p, e := range t.routes {
		if moved[e.path] || slices.ContainsFunc(t.more[p], func(e entry) bool { return moved[e.path] }) {
			t.tell(p)
		}
	}
}

func sameRoute(a, b *fib.Route) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Kind == b.Kind && a.Gateway == b.Gateway && a.Port == b.Port && a.MTU == b.MTU && slices.Equal(a.Hops, b.Hops)
}

// follow returns how ports follow a path: by their gateways where all its hops
// are of ports, and else as the host does.
func (t *table) follow(p *path) *fib.Route {
	to := &fib.Route{Origin: fib.Kernel, Kind: fib.Host}
	hops := p.hops
	verb := p.verb
	if p.object != 0 {
		verb, hops = t.object(p.object)
	}
	switch verb {
	case local:
		return to
	case blackhole:
		to.Kind = fib.Blackhole
		return to
	case prohibit:
		to.Kind = fib.Reject
		return to
	case unreachable:
		to.Kind = fib.Unreachable
		return to
	case throw:
		if !t.later[p.family].more() { // else only the host knows
			to.Kind = fib.Throw
		}
		return to
	}
	if hops = t.usable(hops); len(hops) == 0 {
		return nil
	}
	if odd, ours := t.judge(p.family, hops); odd != 0 || !ours {
		return to
	}
	to.Kind, to.MTU = fib.Via, p.mtu
	port := func(h hop) uint16 { return t.ports[t.links[h.link].name] }
	switch h := hops[0]; {
	case !h.gateway.IsValid():
		to.Kind, to.Port = fib.OnLink, port(h)
	case len(hops) == 1:
		to.Gateway, to.Port = h.gateway, port(h)
	default:
		sum := 0
		for _, h := range hops {
			sum += int(h.weight)
		}
		divisor := max(1, (sum+fib.MaxWeight-len(hops)-1)/(fib.MaxWeight-len(hops))) // they fit when divided by it, though each is 1 at least
		for _, h := range hops {
			to.Hops = append(to.Hops, fib.Hop{Gateway: h.gateway, Port: port(h), Weight: uint16(max(1, int(h.weight)/divisor))})
		}
	}
	return to
}

// usable returns the hops whose interface is there and up.
func (t *table) usable(hops []hop) []hop {
	down := func(h hop) bool { return !t.links[h.link].up }
	if !slices.ContainsFunc(hops, down) {
		return hops
	}
	return slices.DeleteFunc(slices.Clone(hops), down)
}

// judge says what of hops for packets of a family is odd, if anything, and whether
// all are of ports.
func (t *table) judge(family uint8, hops []hop) (odd Odd, ours bool) {
	ours = true
	if len(hops) > fib.MaxHops {
		odd = TooMany
	}
	for _, h := range hops {
		if _, port := t.ports[t.links[h.link].name]; !port {
			ours = false
			continue
		}
		g := h.gateway
		switch {
		case h.odd != 0:
			odd = h.odd
		case !g.IsValid() && len(hops) > 1:
			odd = OnLinkPath
		case g.IsValid() && g.Is4() != (family == 4):
			odd = OtherFamily
		case g.IsValid() && (g.IsUnspecified() || g.IsMulticast() || g.Is4In6()):
			odd = BadGateway
		}
	}
	return odd, ours
}

// object returns what a nexthop object does, and its hops.
func (t *table) object(id uint32) (verb, []hop) {
	o, ok := t.objects[id]
	if !ok || o.group == nil {
		return o.verb, o.hops
	}
	var hops []hop
	for _, m := range o.group {
		member := t.objects[m.id]
		if member.verb != unicast {
			return member.verb, nil // Linux allows such groups of one only
		}
		for _, h := range member.hops {
			h.weight = m.weight
			hops = append(hops, h)
		}
	}
	return unicast, hops
}

// report counts what there is.
func (t *table) report() Report {
	r := Report{Odd: t.left}
	odd := make([]Odd, len(t.paths))
	for id := range t.paths {
		k := &t.paths[id]
		hops := k.hops
		if k.object != 0 {
			_, hops = t.object(k.object)
		}
		odd[id], _ = t.judge(k.family, t.usable(hops))
	}
	for p, e := range t.routes {
		to := t.best(p)
		if to == nil {
			continue
		}
		r.Routes[p.family/6]++
		if to.Kind == fib.Host {
			r.Host++
		}
		if o := odd[e.path]; o != 0 {
			r.Odd[o]++
		}
	}
	return r
}

// all returns the routes as ports follow them, in the order of fib.RIB.All.
func (t *table) all() []fib.Route {
	ps := make([]prefix, 0, len(t.routes))
	for p := range t.routes {
		ps = append(ps, p)
	}
	slices.SortFunc(ps, prefix.compare)
	rs := make([]fib.Route, 0, len(ps))
	for _, p := range ps {
		if to := t.best(p); to != nil {
			r := *to
			r.Prefix = p.netip()
			rs = append(rs, r)
		}
	}
	return rs
}
