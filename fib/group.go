package fib

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math"
	"math/bits"
	"net/netip"
	"slices"
)

// A group is what routes with several gateways share that have the same ones
// and the same MTU. It gives its buckets to its members, and the hash of a
// packet's flow chooses the bucket, so that routes need not change when members
// leave or return (RFC 2992 has the problem).
//
// Who has which bucket depends on nothing but the set of members and which of
// them can be used: it is the same after a restart, whatever the order in the
// file. While all can be used, each has as many buckets as its weight says.
// A member that cannot be used gives up its own buckets and no others, and
// takes these back in the end. One that is new takes about as many as it is due,
// and few others move.

// Limits of groups.
const (
	MaxHops   = 256     // different gateways of a route
	MaxWeight = 65535   // of all its hops together
	Buckets   = 1 << 10 // of a group. As scores are of buckets, this is one number for all
)

// A Hop is one of the gateways of a route.
type Hop struct {
	Gateway netip.Addr // of the prefix's family, without zone
	Port    uint16     // egress port number
	Weight  uint16     // share of the flows, in proportion to that of other hops; 0 is 1
}

// A Member is one of the neighbors that share the packets of a group.
type Member struct {
	Adj    uint32 // index of its adjacency
	Port   uint16 // that it is on
	Weight uint16 // in lowest terms
}

// A group is the RIB's side of one.
type group struct {
	key     string // what tells it from others
	family  uint8
	mtu     uint16
	hops    []Hop // different ones, in order, with weights in lowest terms
	ids     []uint64
	members []Member
	owner   *[Buckets]uint16 // member that has a bucket when all can be used
	dirty   bool
}

// groups are the groups in use.
type groups struct {
	all   []group
	free  []uint32
	byKey map[string]uint32
	of    map[uint32][]uint32 // groups by the adjacency of a member
	dirty []uint32            // to be given buckets at the next commit
	out   copies[uint32]
	shown [][]Member // as published; made anew when nil

	// The last group that was asked for: routes come in runs.
	hops []Hop
	last want
}

func (gs *groups) init() {
	gs.byKey = make(map[string]uint32)
	gs.of = make(map[uint32][]uint32)
	gs.out.make = func(n, c int) []uint32 { return make([]uint32, n, c) }
}

// mergeHops returns the different ones of hops in order, each with the sum of its
// weights, in lowest terms.
func mergeHops(hops []Hop) []Hop {
	all := slices.Clone(hops)
	slices.SortFunc(all, func(a, b Hop) int {
		return cmp.Or(a.Gateway.Compare(b.Gateway), cmp.Compare(a.Port, b.Port))
	})
	n := 0
	for _, h := range all {
		h.Weight = max(h.Weight, 1)
		if n > 0 && all[n-1].Gateway == h.Gateway && all[n-1].Port == h.Port {
			all[n-1].Weight += h.Weight
			continue
		}
		all[n] = h
		n++
	}
	all = all[:n]
	divisor := uint16(0)
	for _, h := range all {
		for w := h.Weight; w != 0; {
			divisor, w = w, divisor%w
		}
	}
	for i := range all {
		all[i].Weight /= divisor
	}
	return all
}

// wantHops is want for a route of a family through hops.
func (a *adjacencies) wantHops(family uint8, hops []Hop, mtu uint16) want {
	gs := &a.groups
	if gs.last.family == family && gs.last.mtu == mtu && slices.Equal(gs.hops, hops) {
		return gs.last
	}
	gs.hops = slices.Clone(hops)
	hops = mergeHops(hops)
	if len(hops) == 1 {
		gs.last = want{kind: Via, family: family, port: hops[0].Port, mtu: mtu}
		gs.last.setAddr(hops[0].Gateway)
		return gs.last
	}
	key := make([]byte, 0, 3+20*len(hops))
	key = binary.BigEndian.AppendUint16(append(key, family), mtu)
	for _, h := range hops {
		b := h.Gateway.As16()
		key = append(key, b[:]...)
		key = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(key, h.Port), h.Weight)
	}
	n, ok := gs.byKey[string(key)]
	if !ok {
		if l := len(gs.free); l > 0 {
			n, gs.free = gs.free[l-1], gs.free[:l-1]
		} else {
			n = uint32(len(gs.all))
			gs.all = append(gs.all, group{})
		}
		gs.all[n] = group{key: string(key), family: family, mtu: mtu, hops: hops}
		gs.byKey[string(key)] = n
	}
	gs.last = want{kind: Group, family: family, mtu: mtu, group: n}
	return gs.last
}

// open makes a group that has its first user.
func (a *adjacencies) open(n uint32) {
	g := &a.groups.all[n]
	g.ids = make([]uint64, len(g.hops))
	g.members = make([]Member, len(g.hops))
	for i, h := range g.hops {
		w := want{kind: Via, family: g.family, port: h.Port, mtu: g.mtu}
		w.setAddr(h.Gateway)
		adj := a.get(w)
		a.groups.of[adj] = append(a.groups.of[adj], n)
		g.members[i] = Member{Adj: adj, Port: h.Port, Weight: h.Weight}
		g.ids[i] = identity(h, a.ports[h.Port].Name)
	}
	g.deal()
	a.groups.touch(n)
	a.groups.shown = nil
}

// close forgets a group that has no users any more.
func (a *adjacencies) close(n uint32) {
	gs := &a.groups
	g := &gs.all[n]
	for _, m := range g.members {
		if of := gs.of[m.Adj]; len(of) == 1 {
			delete(gs.of, m.Adj)
		} else {
			i := slices.Index(of, n)
			gs.of[m.Adj] = slices.Delete(of, i, i+1)
		}
		a.put(m.Adj)
	}
	delete(gs.byKey, g.key)
	*g = group{}
	gs.free = append(gs.free, n)
	gs.last, gs.shown = want{}, nil
}

// touch notes that members of group n can be used that could not, or the other
// way round.
func (gs *groups) touch(n uint32) {
	if g := &gs.all[n]; !g.dirty {
		g.dirty = true
		gs.dirty = append(gs.dirty, n)
	}
}

// touchMembers notes it of all groups that adjacencies are members of.
func (gs *groups) touchMembers(adjs []uint32) {
	for _, adj := range adjs {
		for _, n := range gs.of[adj] {
			gs.touch(n)
		}
	}
}

// SetLink says whether a port has a link; New takes it that all have one. Groups
// use what else they have while it has none. It reports whether that makes a
// difference from the next Commit on.
func (r *RIB) SetLink(port uint16, up bool) bool {
	if r.adj.down[port] != up {
		return false
	}
	r.adj.down[port] = !up
	found := false
	for n := range r.adj.groups.all {
		if slices.ContainsFunc(r.adj.groups.all[n].members, func(m Member) bool { return m.Port == port }) {
			r.adj.groups.touch(uint32(n))
			found = true
		}
	}
	return found
}

// identity returns a number for a hop that stays the same over restarts: it
// depends on the name of the port, and on its number only where it has none.
func identity(h Hop, port string) uint64 {
	f := fnv.New64a()
	b := h.Gateway.As16()
	f.Write(b[:])
	if port == "" {
		f.Write([]byte{byte(h.Port >> 8), byte(h.Port)})
	}
	f.Write([]byte(port))
	return f.Sum64()
}

// score says how much member i is the one for a bucket: the less the more. The
// scores of members are independent and exponentially distributed, so that each
// has the least one as often as its weight says (weighted rendezvous hashing).
func (g *group) score(i int, bucket uint16) float64 {
	const odd1, odd2 = 0x9e3779b97f4a7c15, 0xd6e8feb86659fd93
	hi, lo := bits.Mul64(g.ids[i]^odd1, (uint64(bucket)+1)*odd2)
	x := hi ^ lo
	x = (x ^ x>>32) * odd2
	x = (x ^ x>>32) * odd2
	x ^= x >> 32
	return -math.Log(float64(x>>11+1)/(1<<53)) / float64(g.members[i].Weight)
}

// best returns the member with the least score for a bucket among those that may
// have it.
func (g *group) best(bucket uint16, may func(i int) bool) int {
	best, least := -1, 0.0
	for i := range g.members {
		if !may(i) {
			continue
		}
		if s := g.score(i, bucket); best < 0 || s < least {
			best, least = i, s
		}
	}
	return best
}

// shares returns how many buckets each member is due, at least one: as its weight
// says, and of those left over one more for the largest remainders.
func (g *group) shares() []int {
	total := 0
	for _, m := range g.members {
		total += int(m.Weight)
	}
	n := make([]int, len(g.members))
	left := Buckets
	order := make([]int, len(g.members))
	for i, m := range g.members {
		n[i] = max(1, Buckets*int(m.Weight)/total)
		left -= n[i]
		order[i] = i
	}
	remainder := func(i int) int { return Buckets*int(g.members[i].Weight) - n[i]*total }
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(remainder(b), remainder(a)), cmp.Compare(g.ids[a], g.ids[b]))
	})
	for i := 0; left > 0; i, left = i+1, left-1 {
		n[order[i]]++
	}
	for ; left < 0; left++ { // of those with most
		n[slices.Index(n, slices.Max(n))]--
	}
	return n
}

// deal finds the owners of the buckets. Each goes to the member with the least
// score, and those that have too many then give up their worst ones, so that not
// more move than chance has made uneven.
func (g *group) deal() {
	g.owner = new([Buckets]uint16)
	room := g.shares()
	has := make([][]uint16, len(g.members))
	for b := range uint16(Buckets) {
		i := g.best(b, func(int) bool { return true })
		g.owner[b] = uint16(i)
		has[i] = append(has[i], b)
	}
	var over []uint16
	for i, bs := range has {
		if extra := len(bs) - room[i]; extra > 0 {
			slices.SortFunc(bs, func(a, b uint16) int {
				return cmp.Or(cmp.Compare(g.score(i, a), g.score(i, b)), cmp.Compare(a, b))
			})
			over = append(over, bs[len(bs)-extra:]...)
		}
		room[i] = max(0, room[i]-len(bs))
	}
	slices.Sort(over)
	for _, b := range over {
		i := g.best(b, func(i int) bool { return room[i] > 0 })
		g.owner[b] = uint16(i)
		room[i]--
	}
}

// usable says which members of g can be used best: those with a known neighbor
// and a link, or, if there are none, those with a link, or else those with a known
// neighbor, or all.
func (a *adjacencies) usable(g *group) []bool {
	rank := make([]int, len(g.members))
	for i, m := range g.members {
		if !a.down[m.Port] {
			rank[i] = 2
		}
		if a.hops[a.wants[m.Adj].hopKey()].known {
			rank[i]++
		}
	}
	most := slices.Max(rank)
	ok := make([]bool, len(rank))
	for i, r := range rank {
		ok[i] = r == most
	}
	return ok
}

// commitGroups returns the buckets and the members of all groups of generation
// gen.
func (a *adjacencies) commitGroups(gen, reclaimed uint64) ([]uint32, [][]Member) {
	gs := &a.groups
	gs.out.edit(len(gs.all)*Buckets, reclaimed)
	for _, n := range gs.dirty {
		g := &gs.all[n]
		if g.dirty = false; g.members == nil { // closed since
			continue
		}
		ok := a.usable(g)
		for b, i := range g.owner {
			if !ok[i] {
				i = uint16(g.best(uint16(b), func(i int) bool { return ok[i] }))
			}
			at := n*Buckets + uint32(b)
			if adj := g.members[i].Adj; gs.out.next[at] != adj {
				gs.out.set(at, adj)
			}
		}
	}
	gs.dirty = gs.dirty[:0]
	if gs.shown == nil {
		gs.shown = make([][]Member, len(gs.all))
		for n := range gs.all {
			gs.shown[n] = gs.all[n].members
		}
	}
	return gs.out.publish(gen), gs.shown
}

// Path returns the adjacency that a packet follows whose lookup found a and whose
// flow has a hash: a itself, unless it is that of a group.
func (f *FIB) Path(a *Adjacency, hash uint64) *Adjacency {
	if a.Action != Group {
		return a
	}
	return &f.Adj[f.Buckets[uint32(hash)%Buckets+a.Group*Buckets]]
}

// BucketsOf returns the adjacencies that the buckets of the group of a lead to.
func (f *FIB) BucketsOf(a *Adjacency) []uint32 { return f.Buckets[a.Group*Buckets:][:Buckets] }

// Leaves reports whether a may lead packets out of a port, through any member if
// it is that of a group, in use or not.
func (f *FIB) Leaves(a *Adjacency, port uint16) bool {
	switch a.Action {
	case Forward, Verify, Tagged, Glean, Resolve:
		return a.Port == port
	case Group:
		for _, m := range f.Groups[a.Group] {
			if m.Port == port {
				return true
			}
		}
	}
	return false
}

// describe returns a on one line, and if it is that of a group, which members
// have how many buckets, and a digest of which ones.
func (f *FIB) describe(a *Adjacency) string {
	if a.Action != Group {
		return a.String()
	}
	counts, digest := make(map[string]int), fnv.New32a()
	for _, adj := range f.BucketsOf(a) {
		s := f.Adj[adj].String()
		counts[s]++
		io.WriteString(digest, s)
	}
	s := a.String()
	for _, m := range slices.Sorted(maps.Keys(counts)) {
		s += fmt.Sprintf(", %d %s", counts[m], m)
	}
	return fmt.Sprintf("%s, digest %08x", s, digest.Sum32())
}
