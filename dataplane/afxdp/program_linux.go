package afxdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// programName is how tools list the program.
const programName = "nmfwd"

// xdpPass is XDP_PASS of linux/bpf.h.
const xdpPass = 2

// Offsets in struct xdp_md of linux/bpf.h.
const (
	mdData    = 0
	mdDataEnd = 4
	mdRXQueue = 16
)

// A capacity is how much maps hold of one family: the router's own addresses, and
// routes that tell the host's from others.
type capacity struct{ addrs, routes uint32 }

// most is enough for the addresses of two configurations, during a reload, and for
// all routes that tables hold: memory is taken only for those that there are.
var most = capacity{addrs: 1 << 17, routes: 1 << 22}

// left is what the program counts per queue and CPU.
type left struct{ Packets, Bytes uint64 }

// A program is the XDP program of one port and its maps.
type program struct {
	prog *ebpf.Program
	xsks *ebpf.Map // receive queue -> socket
	left *ebpf.Map // receive queue -> left to the host, per CPU
	own4 *ebpf.Map // own IPv4 addresses; nil without a host
	own6 *ebpf.Map // own IPv6 addresses; nil without a host

	routes4 *ebpf.Map             // IPv4 prefix -> whether the host follows its route; nil where it follows none
	routes6 *ebpf.Map             // the same for IPv6
	routes  map[netip.Prefix]bool // what both say
	rest    [2]bool               // by family: the host has what they do not say, for lack of place
}

// newProgram loads the program of a port with the given number of receive
// queues. With host it redirects what is for forwarding and arrives for one of
// macs, untagged or with a tag of one of vlans; without, everything. Routes says
// that the host follows some routes.
func newProgram(queues int, host, routes bool, macs []net.HardwareAddr, vlans []uint16, most capacity) (_ *program, err error) {
	p := &program{routes: make(map[netip.Prefix]bool)}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.xsks, err = ebpf.NewMap(&ebpf.MapSpec{Name: "nmfwd_xsks", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: uint32(queues)}); err != nil {
		return nil, fmt.Errorf("socket map: %w", err)
	}
	if p.left, err = ebpf.NewMap(&ebpf.MapSpec{Name: "nmfwd_left", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 16, MaxEntries: uint32(queues)}); err != nil {
		return nil, fmt.Errorf("counter map: %w", err)
	}
	var c code
	c.add(
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R7, asm.R6, mdData, asm.Word),
		asm.LoadMem(asm.R8, asm.R6, mdDataEnd, asm.Word),
	)
	if host {
		const noPrealloc = 1 // BPF_F_NO_PREALLOC
		if p.own4, err = ebpf.NewMap(&ebpf.MapSpec{Name: "nmfwd_own4", Type: ebpf.Hash, KeySize: 4, ValueSize: 1, MaxEntries: most.addrs, Flags: noPrealloc}); err != nil {
			return nil, fmt.Errorf("address map: %w", err)
		}
		if p.own6, err = ebpf.NewMap(&ebpf.MapSpec{Name: "nmfwd_own6", Type: ebpf.Hash, KeySize: 16, ValueSize: 1, MaxEntries: most.addrs, Flags: noPrealloc}); err != nil {
			return nil, fmt.Errorf("address map: %w", err)
		}
		lpm4, lpm6 := -1, -1
		if routes {
			if p.routes4, err = ebpf.NewMap(&ebpf.MapSpec{Name: "nmfwd_routes4", Type: ebpf.LPMTrie, KeySize: 8, ValueSize: 1, MaxEntries: most.routes, Flags: noPrealloc}); err != nil {
				return nil, fmt.Errorf("route map: %w", err)
			}
			if p.routes6, err = ebpf.NewMap(&ebpf.MapSpec{Name: "nmfwd_routes6", Type: ebpf.LPMTrie, KeySize: 20, ValueSize: 1, MaxEntries: most.routes, Flags: noPrealloc}); err != nil {
				return nil, fmt.Errorf("route map: %w", err)
			}
			lpm4, lpm6 = p.routes4.FD(), p.routes6.FD()
		}
		c.ours(macs)
		c.tagged(vlans)
		c.ipv4(p.own4.FD(), lpm4)
		c.ipv6(p.own6.FD(), lpm6)
	}
	c.verdict(p.xsks.FD(), p.left.FD())
	if p.prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: programName, Type: ebpf.XDP, Instructions: c.ins, License: "BSD"}); err != nil {
		return nil, fmt.Errorf("program: %w", err)
	}
	return p, nil
}

// close frees what newProgram made, as far as it came.
func (p *program) close() {
	for _, m := range []*ebpf.Map{p.xsks, p.left, p.own4, p.own6, p.routes4, p.routes6} {
		m.Close() // nil is fine; nothing is lost when closing a map fails
	}
	p.prog.Close()
}

// setAddrs makes addrs the router's own addresses. Addresses that stay are
// never missing meanwhile.
func (p *program) setAddrs(addrs []netip.Addr) error {
	if p.own4 == nil {
		return nil
	}
	want := make(map[netip.Addr]bool, len(addrs))
	var late []netip.Addr // that have no place before others have gone
	for _, a := range addrs {
		a = a.Unmap().WithZone("")
		want[a] = true
		if err := p.own(a).Put(a.AsSlice(), []byte{1}); isFull(err) {
			late = append(late, a)
		} else if err != nil {
			return fmt.Errorf("own address %v: %w", a, err)
		}
	}
	for _, m := range []*ebpf.Map{p.own4, p.own6} {
		var gone []netip.Addr
		var key, val []byte
		it := m.Iterate()
		for it.Next(&key, &val) {
			if a, ok := netip.AddrFromSlice(key); ok && !want[a] {
				gone = append(gone, a)
			}
		}
		if err := it.Err(); err != nil {
			return fmt.Errorf("own addresses: %w", err)
		}
		for _, a := range gone {
			if err := m.Delete(a.AsSlice()); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return fmt.Errorf("own address %v: %w", a, err)
			}
		}
	}
	for _, a := range late {
		if err := p.own(a).Put(a.AsSlice(), []byte{1}); err != nil {
			return fmt.Errorf("own address %v: %w", a, err)
		}
	}
	return nil
}

// isFull reports whether err says that a map has no place, or the kernel no memory
// for one.
func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOMEM)
}

// setRoutes makes routes the ones that say what is the host's. Those that stay are
// never missing meanwhile. It returns how many find no place. What these are for goes
// to the host, which forwards by the same routes: what is the host's is not lost.
func (p *program) setRoutes(routes map[netip.Prefix]bool) (missing int, err error) {
	if p.routes4 == nil {
		return 0, nil
	}
	var late []netip.Prefix // that have no place before others have gone; the host's first
	for _, host := range []bool{true, false} {
		for r, h := range routes {
			if old, ok := p.routes[r]; h != host || ok && old == host {
				continue
			}
			if err := p.putRoute(r, host); isFull(err) {
				late = append(late, r)
			} else if err != nil {
				return 0, err
			}
		}
	}
	for r := range p.routes {
		if _, ok := routes[r]; ok || p.rest[family(r)] && r.Bits() == 0 {
			continue
		}
		if err := p.deleteRoute(r); err != nil {
			return 0, err
		}
	}
	var lacking [2][]netip.Prefix // by family
	for _, r := range late {
		if err := p.putRoute(r, routes[r]); isFull(err) {
			lacking[family(r)] = append(lacking[family(r)], r)
		} else if err != nil {
			return 0, err
		}
	}
	for f := range lacking {
		if err := p.leaveRest(f, routes, &lacking[f]); err != nil {
			return 0, err
		}
	}
	return len(lacking[0]) + len(lacking[1]), nil
}

// rests are what cover all of a family.
var rests = [2]netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}

// leaveRest has the host get what lacking routes of a family are for, of which the
// map has no place: all of the family that the map does not say otherwise of.
func (p *program) leaveRest(f int, routes map[netip.Prefix]bool, lacking *[]netip.Prefix) error {
	_, wanted := routes[rests[f]]
	hosts := 0
	for _, r := range *lacking {
		if routes[r] {
			hosts++
		}
	}
	if p.rest[f] && !wanted && hosts < 2 { // one may have the place of the rest
		if err := p.deleteRoute(rests[f]); err != nil {
			return err
		}
		p.rest[f] = false
		still := (*lacking)[:0]
		for _, r := range *lacking { // the host's first
			if err := p.putRoute(r, routes[r]); isFull(err) {
				still = append(still, r)
			} else if err != nil {
				return err
			}
		}
		*lacking = still
	}
	for _, r := range *lacking {
		if !routes[r] {
			continue
		}
		if err := p.leave(r); err != nil {
			return err
		}
	}
	return nil
}

// leave has the host get what r, of which the map has no place, is for, with the
// rest of its family.
func (p *program) leave(r netip.Prefix) error {
	for n := r.Bits(); n >= 0; n-- {
		outer, _ := r.Addr().Prefix(n)
		if host, ok := p.routes[outer]; ok && !host {
			if err := p.deleteRoute(outer); err != nil {
				return err
			}
		}
	}
	f := family(r)
	err := p.putRoute(rests[f], true)
	if isFull(err) {
		if err := p.makePlace(f); err != nil {
			return err
		}
		err = p.putRoute(rests[f], true)
	}
	p.rest[f] = err == nil
	return err
}

// addRoute makes r one of the host's, beside those that there are.
func (p *program) addRoute(r netip.Prefix) error {
	if p.routes4 == nil || p.routes[r] {
		return nil
	}
	err := p.putRoute(r, true)
	if isFull(err) {
		err = p.leave(r)
	}
	return err
}

// makePlace deletes a route of a family that is not needed where the host has the
// rest: one that is not the host's, or any if all are the host's.
func (p *program) makePlace(f int) error {
	var any netip.Prefix
	for r, host := range p.routes {
		if family(r) != f {
			continue
		}
		if any = r; !host {
			break
		}
	}
	if !any.IsValid() {
		return nil
	}
	return p.deleteRoute(any)
}

func family(r netip.Prefix) int {
	if r.Addr().Is4() {
		return 0
	}
	return 1
}

// route returns the map of r and its key there.
func (p *program) route(r netip.Prefix) (*ebpf.Map, []byte) {
	m := p.routes6
	if r.Addr().Is4() {
		m = p.routes4
	}
	return m, append(binary.NativeEndian.AppendUint32(nil, uint32(r.Bits())), r.Addr().AsSlice()...)
}

func (p *program) putRoute(r netip.Prefix, host bool) error {
	value := []byte{0}
	if host {
		value[0] = 1
	}
	m, key := p.route(r)
	if err := m.Put(key, value); err != nil {
		return fmt.Errorf("host's route %v: %w", r, err)
	}
	p.routes[r] = host
	return nil
}

func (p *program) deleteRoute(r netip.Prefix) error {
	m, key := p.route(r)
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("host's route %v: %w", r, err)
	}
	delete(p.routes, r)
	return nil
}

func (p *program) own(a netip.Addr) *ebpf.Map {
	if a.Is4() {
		return p.own4
	}
	return p.own6
}

// counters returns what was left to the host from receive queue q.
func (p *program) counters(q int) (packets, bytes uint64, err error) {
	var perCPU []left
	if err := p.left.Lookup(uint32(q), &perCPU); err != nil {
		return 0, 0, err
	}
	for _, c := range perCPU {
		packets += c.Packets
		bytes += c.Bytes
	}
	return packets, bytes, nil
}

// code is an XDP program as it grows. R6 is the context, R7 and R8 are the
// bounds of the frame. A test that is passed falls through to what follows;
// all others jump to "redirect" or "pass".
type code struct {
	ins   asm.Instructions
	label string // of the next instruction
}

func (c *code) add(ins ...asm.Instruction) {
	if c.label != "" {
		ins[0] = ins[0].WithSymbol(c.label)
		c.label = ""
	}
	c.ins = append(c.ins, ins...)
}

// at labels the next instruction.
func (c *code) at(label string) { c.label = label }

// need jumps to label when the frame is shorter than n bytes.
func (c *code) need(n int32, label string) {
	c.add(
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Add.Imm(asm.R2, n),
		asm.JGT.Reg(asm.R2, asm.R8, label),
	)
}

// Offsets in a frame without a VLAN tag.
const (
	etherType = 12
	ip        = 14

	ip4Dst = ip + 16
	ip4End = ip + 20

	ip6Dst = ip + 24
	ip6End = ip + 40
)

// Places of the stack.
const (
	keyQueue = -4
	keyAddr  = -24 // 4 or 16 bytes
	keyBits  = -28 // before keyAddr: struct bpf_lpm_trie_key
)

// ours leaves to the host what does not have one of macs as its destination,
// and what is neither IPv4 nor IPv6.
func (c *code) ours(macs []net.HardwareAddr) {
	c.need(ip, "pass")
	c.add(
		asm.LoadMem(asm.R2, asm.R7, 0, asm.Word),
		asm.LoadMem(asm.R3, asm.R7, 4, asm.Half),
	)
	for i, mac := range macs {
		next := fmt.Sprintf("mac%d", i)
		c.add(
			asm.JNE.Imm32(asm.R2, int32(binary.NativeEndian.Uint32(mac)), next),
			asm.JEq.Imm32(asm.R3, int32(binary.NativeEndian.Uint16(mac[4:])), "ours"),
		)
		c.at(next)
	}
	c.add(asm.Ja.Label("pass"))
	c.at("ours")
	c.add(
		asm.LoadMem(asm.R2, asm.R7, etherType, asm.Half),
		asm.HostTo(asm.BE, asm.R2, asm.Half),
		asm.JEq.Imm(asm.R2, 0x0800, "ipv4"),
		asm.JEq.Imm(asm.R2, 0x86dd, "ipv6"),
		asm.JNE.Imm(asm.R2, 0x8100, "pass"),
	)
}

// tagged leaves to the host what has a tag of none of vlans, unless that says a
// priority only, and what is neither IPv4 nor IPv6. It moves R7 such that the
// packet is where it would be without the tag.
func (c *code) tagged(vlans []uint16) {
	c.need(ip+4, "pass")
	c.add(
		asm.LoadMem(asm.R2, asm.R7, etherType+4, asm.Half),
		asm.LoadMem(asm.R3, asm.R7, ip, asm.Half),
		asm.Add.Imm(asm.R7, 4),
		asm.HostTo(asm.BE, asm.R2, asm.Half),
		asm.HostTo(asm.BE, asm.R3, asm.Half),
		asm.And.Imm(asm.R3, 0xfff),
		asm.JEq.Imm(asm.R3, 0, "vlan"),
	)
	for _, id := range vlans {
		c.add(asm.JEq.Imm(asm.R3, int32(id), "vlan"))
	}
	c.add(asm.Ja.Label("pass"))
	c.at("vlan")
	c.add(
		asm.JEq.Imm(asm.R2, 0x0800, "ipv4"),
		asm.JEq.Imm(asm.R2, 0x86dd, "ipv6"),
		asm.Ja.Label("pass"),
	)
}

// ipv4 leaves to the host: packets to 224/4, 255.255.255.255, the addresses in map
// own and what map routes says. What else must not be forwarded is not left to a
// host that may forward it; nor are packets in transit with the router alert
// option, which would pass by nmfwd's routes and checks then.
func (c *code) ipv4(own, routes int) {
	c.at("ipv4")
	c.need(ip4End, "redirect")
	c.add(
		asm.LoadMem(asm.R5, asm.R7, ip, asm.Byte),
		asm.JLT.Imm(asm.R5, 0x45, "redirect"), // version and header length
		asm.JGT.Imm(asm.R5, 0x4f, "redirect"),
		asm.LoadMem(asm.R3, asm.R7, ip4Dst, asm.Word),
		asm.StoreMem(asm.R10, keyAddr, asm.R3, asm.Word),
		asm.HostTo(asm.BE, asm.R3, asm.Word),
		asm.JEq.Imm32(asm.R3, -1, "pass"),
		asm.RSh.Imm(asm.R3, 28),
		asm.JEq.Imm(asm.R3, 0xe, "pass"),
	)
	c.lookup(own, routes, 32)
}

// ipv6 leaves to the host: packets to ff00::/8, fe80::/10, the addresses in map
// own and what map routes says.
func (c *code) ipv6(own, routes int) {
	c.at("ipv6")
	c.need(ip6End, "redirect")
	c.add(
		asm.LoadMem(asm.R3, asm.R7, ip, asm.Byte),
		asm.RSh.Imm(asm.R3, 4),
		asm.JNE.Imm(asm.R3, 6, "redirect"),
		asm.LoadMem(asm.R3, asm.R7, ip6Dst, asm.Half),
		asm.HostTo(asm.BE, asm.R3, asm.Half),
		asm.Mov.Reg(asm.R4, asm.R3),
		asm.RSh.Imm(asm.R4, 8),
		asm.JEq.Imm(asm.R4, 0xff, "pass"),
		asm.And.Imm(asm.R3, 0xffc0),
		asm.JEq.Imm(asm.R3, 0xfe80, "pass"),
	)
	for i := int16(0); i < 16; i += 4 {
		c.add(
			asm.LoadMem(asm.R3, asm.R7, ip6Dst+i, asm.Word),
			asm.StoreMem(asm.R10, keyAddr+i, asm.R3, asm.Word),
		)
	}
	c.lookup(own, routes, 128)
}

// lookup jumps to "pass" when the address on the stack, of so many bits, is in map
// own, or the longest prefix in map routes that covers it is the host's, else to
// "redirect". A negative routes is no map.
func (c *code) lookup(own, routes int, bits int64) {
	c.add(
		asm.LoadMapPtr(asm.R1, own),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, keyAddr),
		asm.FnMapLookupElem.Call(),
		asm.JNE.Imm(asm.R0, 0, "pass"),
	)
	if routes >= 0 {
		c.add(
			asm.StoreImm(asm.R10, keyBits, bits, asm.Word),
			asm.LoadMapPtr(asm.R1, routes),
			asm.Mov.Reg(asm.R2, asm.R10),
			asm.Add.Imm(asm.R2, keyBits),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "redirect"),
			asm.LoadMem(asm.R1, asm.R0, 0, asm.Byte),
			asm.JNE.Imm(asm.R1, 0, "pass"),
		)
	}
	c.add(asm.Ja.Label("redirect"))
}

// verdict ends the program. At "redirect" the frame goes to the socket of its
// queue, or to the host where the queue has none; at "pass" it goes to the host.
// What goes to the host is counted.
func (c *code) verdict(xsks, left int) {
	c.at("redirect")
	c.add(
		asm.LoadMapPtr(asm.R1, xsks),
		asm.LoadMem(asm.R2, asm.R6, mdRXQueue, asm.Word),
		asm.Mov.Imm(asm.R3, xdpPass),
		asm.FnRedirectMap.Call(),
		asm.JNE.Imm(asm.R0, xdpPass, "exit"),
	)
	c.at("pass")
	c.add(
		asm.LoadMem(asm.R7, asm.R6, mdData, asm.Word),
		asm.LoadMem(asm.R2, asm.R6, mdRXQueue, asm.Word),
		asm.StoreMem(asm.R10, keyQueue, asm.R2, asm.Word),
		asm.LoadMapPtr(asm.R1, left),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, keyQueue),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "uncounted"),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord),
		asm.Sub.Reg(asm.R8, asm.R7),
		asm.LoadMem(asm.R1, asm.R0, 8, asm.DWord),
		asm.Add.Reg(asm.R1, asm.R8),
		asm.StoreMem(asm.R0, 8, asm.R1, asm.DWord),
	)
	c.at("uncounted")
	c.add(asm.Mov.Imm(asm.R0, xdpPass))
	c.at("exit")
	c.add(asm.Return())
}
