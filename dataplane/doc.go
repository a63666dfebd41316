// Package dataplane moves packets between the queues of ports.
//
// The life of a packet:
//
//  1. A backend (netmap, AF_XDP, memory) opens a Port. Its frames lie in buffers
//     of a Region; a buffer is named by its number, and each number is in exactly
//     one place: a ring, the hands of a worker, a hand-off ring, or the region's
//     spares.
//  2. A Worker reads the port's RX queue. RX.Recv gives it a burst of Slots; it
//     owns those buffers until RX.Release repays as many.
//  3. decide looks at the frame, which it does not change: is it for our MAC, an
//     EtherType that we forward, whole (package wire), between addresses that may
//     be forwarded? One lookup (package fib) in the State, loaded once per burst,
//     yields an Adjacency. Then TTL, MTU and neighbor.
//  4. The verdict is one of four. Forward: TTL and checksum are updated, the
//     Ethernet header is copied over, what lies behind the packet is cut, and the
//     slot joins the burst of its egress port. To the host: the same without a
//     change. Punt: control gets a copy by a bounded ring. Drop: a counter with a
//     Reason moves.
//  5. At the burst's end TX.Send takes each egress burst and gives back a free
//     buffer for each slot: exchanged within a region, copied across regions. What
//     does not fit is dropped as tx_full: waiting would become latency. Where
//     another worker writes the TX queue, a hand-off ring takes the slots by the
//     same exchange, and that worker counts their end.
//  6. Release repays the RX queue, the counters are published, and Worker.Poll
//     makes the system calls: frames never wait for others to come.
//
// Ownership: all that a Worker has is its own, on a locked OS thread, but for the
// State (immutable, one store publishes it), the rings to and from others (one
// producer, one consumer) and the published counters (one writer). A Forwarder is
// the workers between a set of ports. Package control is the one goroutine
// beside them.
//
// RFC 1812 says what an IPv4 router does, RFC 8200 what IPv6 asks for; reasons
// name their sections.
package dataplane
