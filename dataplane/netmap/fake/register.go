package fake

import (
	"cmp"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane/netmap/abi"
)

// Control implements netmap.Kernel.
func (k *Kernel) Control(fd int, h *abi.Header) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.files[fd]
	if f == nil {
		return unix.EBADF
	}
	err := k.request(f, h)
	if err != nil {
		h.Reserved = 1 // a header that failed cannot be used again
	}
	return err
}

func (k *Kernel) request(f *file, h *abi.Header) error {
	if h.Reserved != 0 || h.Version < k.MinVersion || h.Version > k.MaxVersion || h.Body == 0 || h.Options != 0 {
		return unix.EINVAL
	}
	name := unix.ByteSliceToString(h.Name[:])
	switch h.ReqType {
	case abi.ReqRegister:
		r := registerOf(h)
		err := k.register(f, name, r)
		k.note("register %d %s mode %d ring %d flags %#x extra %d: %v", f.fd, name, r.Mode, r.RingID, r.Flags, r.ExtraBufs, err)
		return err
	case abi.ReqPortInfo:
		_, existed := k.adapters[name]
		a, err := k.adapter(name, &abi.Register{})
		if err != nil {
			return err
		}
		*portInfoOf(h) = abi.PortInfo{
			MemSize: uint64(len(a.region.mem)), MemID: a.region.id,
			RXRings: uint16(len(a.rx)), TXRings: uint16(len(a.tx)), RXSlots: uint32(a.rxSlots), TXSlots: uint32(a.txSlots),
		}
		if !existed {
			k.drop(a)
		}
		return nil
	case abi.ReqPools:
		_, existed := k.adapters[name]
		a, err := k.adapter(name, &abi.Register{})
		if err != nil {
			return err
		}
		m := a.region
		*poolsInfoOf(h) = abi.PoolsInfo{
			MemSize: uint64(len(m.mem)), MemID: m.id,
			IfOffset: uint64(m.ifs.base), IfTotal: uint32(len(m.ifs.used)), IfSize: uint32(m.ifs.size),
			RingOffset: uint64(m.rings.base), RingTotal: uint32(len(m.rings.used)), RingSize: uint32(m.rings.size),
			BufOffset: uint64(m.bufs.base), BufTotal: uint32(len(m.bufs.used)), BufSize: uint32(m.bufs.size),
		}
		if !existed {
			k.drop(a)
		}
		return nil
	}
	return unix.EINVAL
}

// register binds f to rings of a port.
func (k *Kernel) register(f *file, name string, r *abi.Register) error {
	if f.a != nil {
		return unix.EBUSY
	}
	if r.Mode == abi.ModeNull {
		name = "null:" + name
	}
	_, existed := k.adapters[name]
	a, err := k.adapter(name, r)
	if err != nil {
		return err
	}
	if c := a.card; c != nil && cmp.Or(c.Part, c.MTU) > a.region.bufs.size && c.MTU > a.region.bufs.size {
		if !existed {
			k.drop(a)
		}
		return unix.EINVAL
	}
	if err := k.bind(f, a, r); err != nil {
		if !existed {
			k.drop(a)
		}
		return err
	}
	return nil
}

func (k *Kernel) bind(f *file, a *adapter, r *abi.Register) error {
	rx, tx := a.rx, a.tx
	host := a.host[:]
	if (r.Mode == abi.ModeSW || r.Mode == abi.ModeNICSW) && a.host[0] == nil {
		return unix.EINVAL
	}
	switch r.Mode {
	case abi.ModeAllNIC, abi.ModeNull:
	case abi.ModeSW:
		rx, tx = host[:1:1], host[1:]
	case abi.ModeNICSW:
		rx, tx = append(rx[:len(rx):len(rx)], host[0]), append(tx[:len(tx):len(tx)], host[1])
	case abi.ModeOneNIC:
		i := int(r.RingID)
		if i >= len(rx) && i >= len(tx) {
			return unix.EINVAL
		}
		rx, tx = one(rx, i), one(tx, i)
	default:
		return unix.EINVAL
	}
	if r.Flags&abi.RXRingsOnly != 0 {
		tx = nil
	}
	if r.Flags&abi.TXRingsOnly != 0 {
		rx = nil
	}
	if a.exclusive || r.Flags&abi.Exclusive != 0 && a.users > 0 {
		return unix.EBUSY
	}
	if a.users == 0 {
		if err := a.makeRings(); err != nil {
			return err
		}
		if c := a.card; c != nil {
			c.Wedged = false
		}
	}
	if r.Mode == abi.ModeSW || r.Mode == abi.ModeNICSW {
		if err := a.makeHostRings(); err != nil {
			if a.users == 0 {
				a.freeRings()
			}
			return err
		}
	}
	off, ok := a.region.ifs.take()
	if !ok {
		if a.users == 0 {
			a.freeRings()
		}
		return unix.ENOMEM
	}
	a.users++
	a.exclusive = r.Flags&abi.Exclusive != 0
	f.a, f.rx, f.tx, f.ifOff = a, rx, tx, off
	a.region.writeIf(f)
	r.ExtraBufs = a.region.extra(off, r.ExtraBufs)
	for _, q := range append(append([]*kring(nil), rx...), tx...) {
		if q.users++; q.users == 1 && a.card != nil {
			a.card.Changes++
			a.card.bouncing = a.card.Bounce
		}
	}
	r.Offset, r.MemSize, r.MemID = uint64(off), uint64(len(a.region.mem)), a.region.id
	r.RXRings, r.TXRings, r.RXSlots, r.TXSlots = uint16(len(a.rx)), uint16(len(a.tx)), uint32(a.rxSlots), uint32(a.txSlots)
	if a.host[0] != nil {
		r.HostRXRings, r.HostTXRings = 1, 1
	}
	return nil
}

// one returns ring i, or the first where there are fewer.
func one(rings []*kring, i int) []*kring {
	if i >= len(rings) {
		i = 0
	}
	return rings[i : i+1]
}

// Map implements netmap.Kernel.
func (k *Kernel) Map(fd, size int) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.files[fd]
	if f == nil || f.a == nil || size > len(f.a.region.mem) {
		return nil, unix.EINVAL
	}
	r := f.a.region
	r.mappers = append(r.mappers, f)
	k.maps[&r.mem[0]] = r
	k.note("map %d", fd)
	return r.mem[:size], nil
}

// unbind frees the rings of a descriptor.
func (k *Kernel) unbind(f *file) {
	a := f.a
	a.region.freeExtra(f.ifOff)
	a.region.ifs.give(f.ifOff)
	for _, q := range append(append([]*kring(nil), f.rx...), f.tx...) {
		if q.users--; q.users == 0 && a.card != nil {
			a.card.Changes++
		}
	}
	a.exclusive = false
	if a.users--; a.users == 0 && (a.peer == nil || a.peer.users == 0) {
		a.freeRings()
		if a.region.adapters == 1 {
			k.forget(a.region)
		}
		k.drop(a)
	}
}

// forget is called when nobody uses a region any more: the kernel then takes
// all that is in it for free. It notes what was not.
func (k *Kernel) forget(r *region) {
	if n := r.bufs.out(); n > 0 {
		k.fault("%d buffers of region %d leaked", n, r.id)
	}
	if n := r.rings.out() + r.ifs.out(); n > 0 {
		k.fault("%d rings or interfaces of region %d leaked", n, r.id)
	}
	r.makePools()
}

// drop forgets an adapter that nobody uses.
func (k *Kernel) drop(a *adapter) {
	delete(k.adapters, a.name)
	a.region.adapters--
	k.release(a.region)
}

// release forgets a region that nobody uses.
func (k *Kernel) release(r *region) {
	if r.adapters > 0 || len(r.mappers) > 0 {
		return
	}
	delete(k.regions, r.id)
	k.used[len(r.words)] = append(k.used[len(r.words)], r.words)
	for name, p := range k.parents {
		if p == r {
			delete(k.parents, name)
		}
	}
}

var pipeName = regexp.MustCompile(`^([^{}]+)([{}])([0-9]+)$`)

// adapter returns the port called name, which is made if it is not a card and
// does not exist. r has the wishes for a new one.
func (k *Kernel) adapter(name string, r *abi.Register) (*adapter, error) {
	if r.MemID != 0 && k.regions[r.MemID] == nil {
		return nil, unix.EINVAL
	}
	if a := k.adapters[name]; a != nil {
		return a, nil
	}
	a := &adapter{kernel: k, name: name}
	nrx, ntx := max(int(r.RXRings), 1), max(int(r.TXRings), 1)
	a.rxSlots, a.txSlots = orDefault(r.RXSlots, 64), orDefault(r.TXSlots, 64)
	m := pipeName.FindStringSubmatch(name)
	switch {
	case r.Mode == abi.ModeNull:
		if r.MemID == 0 {
			return nil, unix.EINVAL
		}
		a.region, nrx, ntx = k.regions[r.MemID], 0, 0
	case strings.HasPrefix(name, "vale") && strings.Contains(name, ":"):
		a.vale, _, _ = strings.Cut(name, ":")
		a.region = k.private(nrx*a.rxSlots+ntx*a.txSlots, int(r.ExtraBufs))
	case m != nil:
		if c := k.cards[m[1]]; c != nil {
			a.region = k.global()
		} else if a.region = k.parents[m[1]]; a.region == nil {
			a.region = k.private(8*64, int(r.ExtraBufs)+64)
			k.parents[m[1]] = a.region
		}
		other := map[string]string{"{": "}", "}": "{"}[m[2]]
		a.peerName = m[1] + other + m[3]
		nrx, ntx = max(nrx, ntx), max(nrx, ntx)
		a.txSlots = a.rxSlots
		if p := k.adapters[a.peerName]; p != nil {
			a.peer, p.peer = p, a
			nrx, ntx, a.rxSlots, a.txSlots = len(p.tx), len(p.rx), p.txSlots, p.rxSlots
		}
	default:
		c := k.cards[name]
		if c == nil || c.Gone {
			return nil, unix.ENXIO
		}
		a.card, a.region = c, k.global()
		nrx, ntx, a.rxSlots, a.txSlots = c.RXRings, c.TXRings, c.RXSlots, c.TXSlots
	}
	if r.MemID != 0 {
		a.region = k.regions[r.MemID]
	}
	if a.card != nil {
		a.host[abi.DirRX] = &kring{a: a, dir: abi.DirRX, id: nrx, host: true}
		a.host[abi.DirTX] = &kring{a: a, dir: abi.DirTX, id: ntx, host: true}
	}
	a.region.adapters++
	for i := range nrx {
		a.rx = append(a.rx, &kring{a: a, dir: abi.DirRX, id: i})
	}
	for i := range ntx {
		a.tx = append(a.tx, &kring{a: a, dir: abi.DirTX, id: i})
	}
	k.adapters[name] = a
	return a, nil
}

func orDefault(n uint32, d int) int {
	if n == 0 {
		return d
	}
	return int(n)
}

// global returns the region of the cards.
func (k *Kernel) global() *region {
	if r := k.regions[1]; r != nil {
		return r
	}
	r := newRegion(k, 1, k.params)
	k.regions[1] = r
	return r
}

// private returns a new region with room for some buffers in rings and some
// extra ones.
func (k *Kernel) private(bufs, extra int) *region {
	id := uint16(2)
	for k.regions[id] != nil {
		id++
	}
	r := newRegion(k, id, Params{Ifs: 12, Rings: 20, Bufs: abi.FirstBuffer + bufs + extra, BufSize: k.params.BufSize})
	k.regions[id] = r
	return r
}
