package fib

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/kentik/patricia/uint32_tree"
)

// The most routes of each family, with the host routes of neighbors: the tables
// of so many take less than half of what their entries can address, whatever
// the routes are. A host route of IPv4 takes up to 320 words; a route of IPv6
// two ranges, each up to 170.
const (
	MaxRoutes4 = 3 << 20
	MaxRoutes6 = 1 << 20
)

// Errors that callers tell apart.
var (
	ErrNoRoute    = errors.New("no such route")
	ErrNoNeighbor = errors.New("no such neighbor")
	ErrFull       = errors.New("table full")
)

// A RIB holds the routes of both families, the neighbors, and what is needed of
// the ports, and compiles FIBs from them. It belongs to one goroutine.
type RIB struct {
	v4, v6    family
	adj       adjacencies
	neighbors [2]neighbors // of IPv4 and IPv6
	b4        builder4
	b6        builder6
	sweep     sweep
	sources   sources
	memory    memory
	gen       uint64
	reclaimed uint64
}

// New returns an empty RIB for ports, which are numbered as in the slice. Its
// tables lie in huge pages where the system has them.
func New(ports []PortAttr) *RIB {
	r := &RIB{
		v4: family{family: 4, alias: aliases4, tree: tree4{uint32_tree.NewTreeV4()}, max: MaxRoutes4, all: true},
		v6: family{family: 6, alias: aliases6, tree: tree6{uint32_tree.NewTreeV6()}, max: MaxRoutes6, behind: maxBehind, all: true},
	}
	r.v4.entries = make([]entry, 1)
	r.v6.entries = make([]entry, 1)
	root := copies[uint32]{make: r.memory.words}
	r.b4 = builder4{family: &r.v4, root: root, pool: pool{mem: &r.memory, max: 1 << 31}}
	r.b6 = builder6{family: &r.v6, root: root, pool: pool{mem: &r.memory, max: 1 << (strideAt6 + lineClass)}}
	r.adj.init(ports)
	return r
}

// UseSmallPages says, before the first Commit, that the system is not to be
// asked for huge pages.
func (r *RIB) UseSmallPages() { r.memory.small = true }

// family returns the family of a.
func (r *RIB) family(a netip.Addr) *family {
	if a.Is4() {
		return &r.v4
	}
	return &r.v6
}

// check returns why rt cannot be in a RIB, or nil.
func (r *RIB) check(rt *Route) error {
	p := rt.Prefix
	switch {
	case !p.IsValid():
		return errors.New("fib: invalid prefix")
	case p.Addr().Is4In6():
		return fmt.Errorf("fib: %v: IPv4-mapped prefix", p)
	case p != p.Masked():
		return fmt.Errorf("fib: %v: host bits set, %v meant?", p, p.Masked())
	case rt.Origin == Neighbor || int(rt.Origin) >= NumOrigins:
		return fmt.Errorf("fib: %v: origin %v", p, rt.Origin)
	}
	switch rt.Kind {
	case Blackhole, Reject, Unreachable, Throw, Host:
		return nil
	case Via:
		if rt.Hops != nil {
			return r.checkHops(rt)
		}
		if err := r.checkHop(p, &Hop{Gateway: rt.Gateway, Port: rt.Port}); err != nil {
			return err
		}
	case OnLink, Local:
	case Broadcast:
		if !p.Addr().Is4() || p.Bits() != 32 {
			return fmt.Errorf("fib: %v: broadcast: not an IPv4 address", p)
		}
	default:
		return fmt.Errorf("fib: %v: kind %v", p, rt.Kind)
	}
	if int(rt.Port) >= len(r.adj.ports) {
		return fmt.Errorf("fib: %v: no port %d", p, rt.Port)
	}
	return nil
}

// checkHops returns why a route cannot have its hops, or nil.
func (r *RIB) checkHops(rt *Route) error {
	sum := 0
	for i := range rt.Hops {
		h := &rt.Hops[i]
		if err := r.checkHop(rt.Prefix, h); err != nil {
			return err
		}
		sum += int(max(h.Weight, 1))
	}
	switch n := len(rt.Hops); {
	case n == 0 || n > MaxHops:
		return fmt.Errorf("fib: %v: %d gateways, not 1 to %d", rt.Prefix, n, MaxHops)
	case sum > MaxWeight:
		return fmt.Errorf("fib: %v: weights of %d together, more than %d", rt.Prefix, sum, MaxWeight)
	}
	return nil
}

// checkHop returns why h cannot be a gateway of a route to p, or nil.
func (r *RIB) checkHop(p netip.Prefix, h *Hop) error {
	if err := checkNeighbor(h.Gateway); err != nil {
		return fmt.Errorf("fib: %v: gateway %v: %w", p, h.Gateway, err)
	}
	if h.Gateway.Is4() != p.Addr().Is4() {
		return fmt.Errorf("fib: %v: gateway %v: of another family", p, h.Gateway)
	}
	if int(h.Port) >= len(r.adj.ports) {
		return fmt.Errorf("fib: %v: no port %d", p, h.Port)
	}
	return nil
}

// checkNeighbor returns why a cannot be a neighbor's address, or nil.
func checkNeighbor(a netip.Addr) error {
	switch {
	case !a.IsValid() || a.IsUnspecified():
		return errors.New("not an address")
	case a.Is4In6():
		return errors.New("IPv4-mapped")
	case a.Zone() != "":
		return errors.New("address with a zone")
	case a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return errors.New("not a unicast address")
	}
	return nil
}

// want returns what rt asks of an adjacency. The next call may be one of get with
// it, or another for a route that asks the same.
func (a *adjacencies) want(rt *Route) want {
	w := want{kind: rt.Kind, family: 6}
	if rt.Prefix.Addr().Is4() {
		w.family = 4
	}
	switch rt.Kind {
	case Via:
		if rt.Hops != nil {
			return a.wantHops(w.family, rt.Hops, rt.MTU)
		}
		w.setAddr(rt.Gateway)
		w.port, w.mtu = rt.Port, rt.MTU
	case OnLink:
		w.port, w.mtu = rt.Port, rt.MTU
	case Local, Broadcast:
		w.port = rt.Port
	}
	return w
}

func (w *want) setAddr(a netip.Addr) {
	if a.Is4() {
		b := a.As4()
		copy(w.addr[:], b[:])
		return
	}
	w.addr = a.As16()
}

// Add adds a route, or replaces the one with the same prefix and origin. The
// error wraps ErrFull if there is no room; one that names a neighbor says that the
// route is in, but not the neighbor's host route.
func (r *RIB) Add(rt Route) error {
	if err := r.check(&rt); err != nil {
		return err
	}
	f := r.family(rt.Prefix.Addr())
	k := keyOf(rt.Prefix)
	n := f.route(k, rt.Origin)
	if n == 0 && f.len() >= f.max {
		return fmt.Errorf("fib: %v: %w: %d routes", rt.Prefix, ErrFull, f.max)
	}
	before := r.onLink(f, k)
	adj := r.adj.get(r.adj.want(&rt))
	if n != 0 {
		old := f.entries[n].adj
		r.count(f, k, old, -1)
		f.readj(n, adj)
		r.adj.put(old)
	} else {
		f.link(f.alloc(entry{key: k, origin: rt.Origin, adj: adj}))
	}
	r.count(f, k, adj, 1)
	return r.review(f, k, before)
}

// Remove removes the route with the prefix and origin of rt; its other fields
// are not looked at. The error wraps ErrNoRoute if there is none.
func (r *RIB) Remove(rt Route) error {
	var n uint32
	f := r.family(rt.Prefix.Addr())
	k := keyOf(rt.Prefix)
	if rt.Prefix.IsValid() && rt.Prefix == rt.Prefix.Masked() && rt.Origin != Neighbor {
		n = f.route(k, rt.Origin)
	}
	if n == 0 {
		return fmt.Errorf("fib: %v: %w of origin %v", rt.Prefix, ErrNoRoute, rt.Origin)
	}
	before := r.onLink(f, k)
	adj := f.entries[n].adj
	f.unlink(n)
	r.count(f, k, adj, -1)
	r.adj.put(adj)
	return r.review(f, k, before)
}

// count counts n routes of f with prefix k and adjacency adj as sources.
func (r *RIB) count(f *family, k key, adj uint32, n int32) {
	if f == &r.v4 {
		r.sources.add(k, r.adj.wants[adj].kind, n)
	}
}

// SetPort changes what adjacencies take from a port.
func (r *RIB) SetPort(port uint16, attr PortAttr) error {
	if int(port) >= len(r.adj.ports) {
		return fmt.Errorf("fib: no port %d", port)
	}
	attr.Name = r.adj.ports[port].Name
	if r.adj.ports[port] == attr {
		return nil
	}
	r.adj.ports[port] = attr
	for n, w := range r.adj.wants {
		if w.port == port && r.adj.refs[n] > 0 {
			r.adj.dirty = append(r.adj.dirty, uint32(n))
		}
	}
	return nil
}

// Commit publishes all changes made so far as a new FIB.
func (r *RIB) Commit() *FIB {
	r.gen++
	r.commit4()
	r.commit6()
	var from [aliases]alias
	r.v4.aliased(from[aliases4:aliases6])
	r.v6.aliased(from[aliases6:])
	f := &FIB{Gen: r.gen, Sources: r.sources.now, Adj: r.adj.commit(r.gen, r.reclaimed, &from)}
	f.Buckets, f.Groups = r.adj.commitGroups(r.gen, r.reclaimed)
	f.V4.set(r.b4.root.publish(r.gen), r.b4.pool.words)
	f.V6.set(r.b6.root.publish(r.gen), r.b6.pool.words, r.b6.origin)
	return f
}

// Reclaim says that no reader uses a FIB older than generation gen any more:
// memory that only these use may be used again. Without it memory grows with
// each change.
func (r *RIB) Reclaim(gen uint64) {
	r.reclaimed = max(r.reclaimed, min(gen, r.gen))
	r.b4.pool.reclaim(r.reclaimed)
	r.b6.pool.reclaim(r.reclaimed)
}

// maxBehind routes may lie behind an origin: the tables of so few are made again
// in a part of a millisecond when it changes.
const maxBehind = 512

// origin returns the longest prefix that covers all routes of more than aliasBits
// bits, cut to a length that is a multiple of unit and at most most. It is empty
// if it is no longer than aliasBits, or the table large.
func (f *family) origin(unit, most uint8) key {
	if f.index.len > f.behind {
		return key{}
	}
	// All lie between the first and the last one. One that is shorter than what
	// these share would be the first.
	n, m := uint32(0), uint32(0)
	for at := (place{}); at.block < len(f.index.blocks); at = f.index.next(at) {
		if n = f.index.at(at); f.entries[n].len > aliasBits {
			break
		}
	}
	for at := (place{len(f.index.blocks), 0}); ; at = f.index.prev(at) {
		if m = f.index.before(at); m == 0 || f.entries[m].len > aliasBits {
			break
		}
	}
	if m == 0 {
		return key{}
	}
	shared := min(f.entries[n].common(f.entries[m].key), most) / unit * unit
	if shared <= aliasBits {
		return key{}
	}
	return f.entries[n].cut(shared)
}

// regions returns the parts of the table that have to be made again: disjoint,
// in order, each of at least aliasBits bits, and behind the origin.
func (f *family) regions(origin key) []key {
	switch {
	case f.all && origin.len > 0:
		f.dirty = append(f.dirty[:0], origin)
	case f.all:
		f.dirty = f.dirty[:0]
		for i := range uint64(1 << aliasBits) {
			f.dirty = append(f.dirty, key{i << (64 - aliasBits), 0, aliasBits})
		}
	}
	f.all = false
	slices.SortFunc(f.dirty, func(a, b key) int {
		return cmp.Or(cmp.Compare(a.hi, b.hi), cmp.Compare(a.lo, b.lo), cmp.Compare(a.len, b.len))
	})
	n := 0
	for _, k := range f.dirty {
		if !origin.covers(k) { // came and went since the last commit
			continue
		}
		if n == 0 || !f.dirty[n-1].covers(k) {
			f.dirty[n] = k
			n++
		}
	}
	return f.dirty[:n]
}

func (r *RIB) commit4() {
	b := &r.b4
	b.gen = r.gen
	if b.pool.words == nil || b.pool.wasteful() {
		n := b.words()
		b.pool.reset(n + n/8) // and room for changes
		b.root, b.family.all = copies[uint32]{make: b.root.make}, true
	}
	b.root.edit(1<<rootBits4, r.reclaimed)
	r.slots(b.family, b.family.regions(key{}), 0, rootBits4, b.slot)
	b.family.dirty = b.family.dirty[:0]
}

func (r *RIB) commit6() {
	b := &r.b6
	b.gen = r.gen
	if origin := b.family.origin(1, maxOrigin6); origin != b.origin {
		b.origin, b.family.all = origin, true
	}
	if b.pool.wasteful() {
		b.pool.reset(0)
		b.root, b.family.all = copies[uint32]{make: b.root.make}, true
	}
	b.root.edit(1<<rootBits6+1, r.reclaimed)
	b.root.next[1<<rootBits6] = More
	used := b.origin.len + rootBits6
	for ks := b.family.regions(b.origin); len(ks) > 0; {
		// Few changes in a slot are made one by one.
		n := 1
		slot := ks[0].cut(used)
		if ks[0].len > used {
			for n < len(ks) && slot.covers(ks[n]) {
				n++
			}
		}
		if ks[0].len > used && n <= maxUpdates {
			i := uint32(slot.hi << b.origin.len >> (64 - rootBits6))
			for _, k := range ks[:n] {
				b.root.set(i, b.update(&r.sweep, b.root.next[i], slot, k, false))
			}
		} else {
			r.slots(b.family, ks[:n], b.origin.len, rootBits6, b.slot)
		}
		ks = ks[n:]
	}
	b.family.dirty = b.family.dirty[:0]
}

// maxUpdates changes in one slot of the IPv6 root are made one by one; if there
// are more, the slot is made again as a whole.
const maxUpdates = 8

// slots has the slots of a root made again that the regions lie in: one for the
// rootBits bits behind an origin of so many.
func (r *RIB) slots(f *family, regions []key, origin, rootBits uint8, slot func(i uint32, spans []span)) {
	used := origin + rootBits
	done := key{len: 255}
	for _, k := range regions {
		if k.len > used {
			k = k.cut(used)
		}
		if k == done {
			continue
		}
		done = k
		r.sweep.start(f, k)
		first := uint32(k.hi << origin >> (64 - rootBits))
		n := uint64(1) << (used - k.len)
		for i := uint64(0); i < n; {
			slot(first+uint32(i), r.sweep.cell(key{k.hi | i<<(64-used), 0, used}))
			// Those after it often have one range, the same for all.
			i++
			if i < n {
				s, until := r.sweep.still(k.hi | i<<(64-used))
				for end := (until - k.hi + 1) >> (64 - used); i < end; i++ {
					slot(first+uint32(i), s)
				}
			}
		}
	}
}

// describe returns entry e as a Route.
func (r *RIB) describe(f *family, e *entry) Route {
	w := &r.adj.wants[e.adj]
	rt := Route{Prefix: prefixOf(f.family, e.key), Origin: e.origin, Kind: w.kind, Port: w.port, MTU: w.mtu}
	switch w.kind {
	case Via:
		rt.Gateway = w.hopKey().addr
	case Group:
		rt.Kind, rt.Hops = Via, r.adj.groups.all[w.group].hops
	}
	return rt
}

// Lookup returns the route that packets to a follow: the preferred one of the
// longest prefix, or the host route of a neighbor.
func (r *RIB) Lookup(a netip.Addr) (Route, bool) {
	f := r.family(a)
	n, ok := f.wait().deepest(keyOfAddr(a))
	if !ok {
		return Route{}, false
	}
	return r.describe(f, &f.entries[n]), true
}

// Covering yields the preferred routes of all prefixes that cover p, and p's
// own, shortest prefix first. It does not wait for what Load leaves to be done.
func (r *RIB) Covering(p netip.Prefix) iter.Seq[Route] {
	return func(yield func(Route) bool) {
		f := r.family(p.Addr())
		for _, n := range f.covering(keyOf(p.Masked())) {
			if !yield(r.describe(f, &f.entries[n])) {
				return
			}
		}
	}
}

// Exact yields the routes of prefix p itself, the preferred one first.
func (r *RIB) Exact(p netip.Prefix) iter.Seq[Route] {
	return func(yield func(Route) bool) {
		f := r.family(p.Addr())
		for n := f.index.find(f.entries, keyOf(p)); n != 0; n = f.entries[n].next {
			if !yield(r.describe(f, &f.entries[n])) {
				return
			}
		}
	}
}

// Covered yields all routes of the prefixes within p, and p's own, in the order
// of All.
func (r *RIB) Covered(p netip.Prefix) iter.Seq[Route] {
	f, k := r.family(p.Addr()), keyOf(p.Masked())
	return r.from(f, k, k)
}

// CoveredAfter yields the routes of Covered(p) behind those of prefix last, which
// need not be there any more: so a long list can be read in parts while routes
// change.
func (r *RIB) CoveredAfter(p, last netip.Prefix) iter.Seq[Route] {
	next := keyOf(last.Masked())
	next.len++
	return r.from(r.family(p.Addr()), keyOf(p.Masked()), next)
}

// from yields the routes of the prefixes within k whose keys are not less than
// first.
func (r *RIB) from(f *family, k, first key) iter.Seq[Route] {
	return func(yield func(Route) bool) {
		for at := f.index.seek(f.entries, first); ; at = f.index.next(at) {
			n := f.index.at(at)
			if n == 0 || !k.covers(f.entries[n].key) {
				return
			}
			for ; n != 0; n = f.entries[n].next {
				if !yield(r.describe(f, &f.entries[n])) {
					return
				}
			}
		}
	}
}

// All yields all routes: IPv4 first, by address, shorter prefixes before those
// they cover, the preferred route of a prefix first.
func (r *RIB) All() iter.Seq[Route] {
	return func(yield func(Route) bool) {
		for _, p := range []string{"0.0.0.0/0", "::/0"} {
			for rt := range r.Covered(netip.MustParsePrefix(p)) {
				if !yield(rt) {
					return
				}
			}
		}
	}
}

// Len returns the number of routes of a family, 4 or 6, and an origin.
func (r *RIB) Len(family int, o Origin) int {
	if int(o) >= NumOrigins {
		return 0
	}
	if family == 4 {
		return r.v4.count[o]
	}
	return r.v6.count[o]
}

// Bytes returns the size of the compiled tables of a family, 4 or 6, with all
// versions that are kept. Adjacencies are not counted.
func (r *RIB) Bytes(family int) int {
	if family == 4 {
		return r.b4.size()
	}
	return r.b6.size()
}
