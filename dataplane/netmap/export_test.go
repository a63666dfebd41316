package netmap

import (
	"nmfwd/dataplane"
	"nmfwd/dataplane/netmap/abi"
)

// What tests of the package reach besides its exported names.
var (
	ProbeOn   = probe
	ParseName = parseName
	NameMAC   = nameMAC
)

// The kinds of ports.
const (
	NIC  = nic
	VALE = vale
	Pipe = pipe
)

// Still makes ports whose links nobody looks after but the test, by Look and
// Check.
func Still(o Options) Options {
	o.still = true
	return o
}

// Look makes an open port read its link state now, and mend what is broken.
func Look(p *dataplane.Port) { p.Device.(*port).tend(false) }

// Check makes an open port look whether its rings move, as it does now and then.
func Check(p *dataplane.Port) {
	d := p.Device.(*port)
	d.look()
	if d.state.Load()&closed != 0 {
		d.mend()
		return
	}
	d.check()
}

// FD returns the descriptor of a queue, pollable or not.
func FD(d dataplane.Descriptor) int { return d.(*descriptor).fd }

// Ring returns head, cur and tail of a queue's RX ring.
func Ring(q dataplane.RX) (head, cur, tail uint32) {
	r := q.(*rx).ring
	return r.Head, r.Cur, r.Tail
}

// Free returns the number of free slots of a queue's TX ring.
func Free(q dataplane.TX) int { return q.(*tx).free() }

// TXSlot returns slot i of a queue's TX ring.
func TXSlot(q dataplane.TX, i int) *abi.Slot { return &q.(*tx).slots[i] }
