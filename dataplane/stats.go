package dataplane

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// The counters of one ingress queue in one worker, by number.
const (
	cPackets   = iota // received
	cBytes            // received
	cForwarded        // IPv4, then IPv6
	_
	cToHost   // given to the host
	cFromHost // taken from the host and sent
	cPunted   // by Kind
	cDropped  = cPunted + NumKinds
	cLimited  = cDropped + NumReasons // errors not sent for LimitErrors: IPv4, then IPv6
	numCounts = cLimited + 2
)

const _ = -uint(numCounts >> 6 << 1) // a tally has 64 bits to mark them

// A tally counts what became of the packets of one ingress queue in one
// worker, and publishes that. Only the worker writes it; v and dirty are its
// own, pub is read by anyone.
type tally struct {
	v     [numCounts]uint64
	dirty uint64 // bit n: v[n] is ahead of pub[n]
	_     [64]byte
	pub   [numCounts]atomic.Uint64
	_     [64]byte
}

func (t *tally) add(c int, n uint64) {
	t.v[c] += n
	t.dirty |= 1 << c
}

func (t *tally) publish() {
	for m := t.dirty; m != 0; m &= m - 1 {
		c := bits.TrailingZeros64(m)
		t.pub[c].Store(t.v[c])
	}
	t.dirty = 0
}

// A txTally counts what one worker sent by one TX queue. Only the worker
// writes it.
type txTally struct {
	packets, bytes atomic.Uint64
	full           atomic.Uint64 // bursts that found the ring full
	copied         atomic.Uint64 // packets whose buffers are of another region
	_              [64]byte
}

// BatchBuckets are the upper bounds of the histogram of burst sizes, in
// packets.
var BatchBuckets = [...]int{1, 2, 4, 8, 16, 32, 64, 128, 256}

// workerTally counts what one worker does. Only the worker writes it.
type workerTally struct {
	_          [64]byte
	busy, idle atomic.Int64 // ns
	handoff    atomic.Uint64
	batch      [len(BatchBuckets) + 1]atomic.Uint64
	batchSum   atomic.Uint64
	_          [64]byte
}

func (t *workerTally) batchOf(n int) {
	i := bits.Len(uint(n - 1)) // 1 -> 0, 2 -> 1, 3..4 -> 2
	i = min(i, len(BatchBuckets))
	t.batch[i].Store(t.batch[i].Load() + 1)
	t.batchSum.Store(t.batchSum.Load() + uint64(n))
}

// A Snapshot is a reading of all counters. They only grow; each is right by
// itself, and at rest they agree with each other: per port
//
//	received = forwarded + to host + punted + dropped
type Snapshot struct {
	Ports   []PortSnapshot
	Workers []WorkerSnapshot
}

// A PortSnapshot is the part of a Snapshot for one port.
type PortSnapshot struct {
	Info        Info
	MTU         int // as configured now
	Up          bool
	LinkChanges uint64
	Stalled     [2]bool      // RX, TX: see Staller
	Reopened    uint64       // times: see Staller
	RX          []RXSnapshot // by queue
	TX          []TXSnapshot // by queue
}

// An RXSnapshot counts the packets that came in by one queue, by what became
// of them. Packets and Bytes hold what was left to the host by the backend,
// and so does ToHost.
type RXSnapshot struct {
	Packets, Bytes uint64
	Forwarded4     uint64
	Forwarded6     uint64
	ToHost         uint64
	FromHost       uint64
	Punted         [NumKinds]uint64
	Dropped        [NumReasons]uint64
	Limited4       uint64 // packets whose senders get no ICMP error for LimitErrors
	Limited6       uint64
	RingFull       uint64 // frames lost because the ring was full; not in Packets
}

// A TXSnapshot counts what was sent by one queue.
type TXSnapshot struct {
	Packets, Bytes uint64
	RingFull       uint64 // times a burst did not fit the ring
	Copied         uint64 // packets that came from another region and were copied
}

// A WorkerSnapshot is the part of a Snapshot for one worker.
type WorkerSnapshot struct {
	CPU         int // -1 where it is not pinned
	Busy, Idle  time.Duration
	Handoff     uint64                        // packets handed to the writer of another queue
	HandoffLost uint64                        // packets for this worker's queues that it left no room for in its hand-off rings
	Batch       [len(BatchBuckets) + 1]uint64 // bursts by size, the last: larger than all buckets
	BatchSum    uint64                        // packets in all bursts
}
