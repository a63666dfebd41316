package control

import (
	"container/list"
	"slices"
	"sync/atomic"

	"nmfwd/dataplane"
	"nmfwd/neigh"
	"nmfwd/wire"
)

// What packets that wait for neighbors take, in bytes.
const (
	// parkEach is for one neighbor: what Linux keeps where nothing else is asked
	// for (net.ipv4.neigh.default.unres_qlen_bytes).
	parkEach = 212992

	// parkAll is for all of them.
	parkAll = 16 << 20

	// parkCost is what a packet takes beside its frame.
	parkCost = 256
)

// A parkedPacket waits for its neighbor, as it came in.
type parkedPacket struct {
	kind         dataplane.Kind
	worker, port int // that it came in by
	priority     uint16
	frame        []byte

	neighbor neigh.Key
	age      *list.Element // in the order of its port
}

func (p *parkedPacket) size() int { return len(p.frame) + parkCost }

// tooLarge reports whether p is to be fragmented before it leaves by a port of an
// MTU, or cannot leave by it.
func (p *parkedPacket) tooLarge(mtu uint16) bool { return len(packetOf(p.frame)) > int(mtu) }

// A lot holds the packets that wait for neighbors. When more wait for one than may,
// the oldest of these gives way (RFC 4861, 7.2.2); when more wait in all, the oldest
// of the port of whose packets most wait.
type lot struct {
	queues map[neigh.Key]*queue
	ports  []lotPort // by ingress port
	size   int
}

// A queue holds what waits for one neighbor, oldest first.
type queue struct {
	packets []*parkedPacket
	size    int
}

type lotPort struct {
	order list.List // of *parkedPacket, oldest first
	size  int

	// For others to read.
	waiting   atomic.Int64
	discarded atomic.Uint64
}

func newLot(ports int) lot {
	return lot{queues: map[neigh.Key]*queue{}, ports: make([]lotPort, ports)}
}

// discard counts a packet of a port that is given up.
func (l *lot) discard(port int) { l.ports[port].discarded.Add(1) }

// add has a copy of a packet wait for k.
func (l *lot) add(k neigh.Key, punt dataplane.Punt) {
	p := &parkedPacket{kind: punt.Kind, worker: punt.Worker, port: punt.Port, priority: punt.Priority, frame: slices.Clone(punt.Frame), neighbor: k}
	for q := l.queues[k]; q != nil && len(q.packets) > 0 && q.size+p.size() > parkEach; {
		l.giveUp(q.packets[0])
	}
	port := &l.ports[p.port]
	p.age = port.order.PushBack(p)
	port.size += p.size()
	port.waiting.Add(1)
	l.size += p.size()
	q := l.queues[k] // which may have become empty
	if q == nil {
		q = new(queue)
		l.queues[k] = q
	}
	q.packets = append(q.packets, p)
	q.size += p.size()
	for l.size > parkAll {
		most := &l.ports[0]
		for i := range l.ports {
			if l.ports[i].size > most.size {
				most = &l.ports[i]
			}
		}
		l.giveUp(most.order.Front().Value.(*parkedPacket))
	}
}

func (l *lot) giveUp(p *parkedPacket) {
	l.remove(p)
	l.discard(p.port)
}

// remove takes p out.
func (l *lot) remove(p *parkedPacket) {
	port := &l.ports[p.port]
	port.order.Remove(p.age)
	port.size -= p.size()
	port.waiting.Add(-1)
	l.size -= p.size()
	q := l.queues[p.neighbor]
	i := slices.Index(q.packets, p)
	if i == 0 {
		q.packets[0] = nil
		q.packets = q.packets[1:]
	} else {
		q.packets = slices.Delete(q.packets, i, i+1)
	}
	if q.size -= p.size(); len(q.packets) == 0 {
		delete(l.queues, p.neighbor)
	}
}

// first returns the packet that waits longest for k, nil for none.
func (l *lot) first(k neigh.Key) *parkedPacket {
	if q := l.queues[k]; q != nil {
		return q.packets[0]
	}
	return nil
}

// fragments returns how many frames p becomes on a link of an MTU.
func (p *parkedPacket) fragments(mtu int) int {
	if ip := packetOf(p.frame); ip[0]>>4 == 4 {
		return pieces(wire.IPv4(ip), mtu)
	}
	return 1
}
