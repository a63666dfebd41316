// Package memport provides ports that live in memory: for tests, for replaying
// captures and for benchmarks. It also wraps ports of any backend, to record
// what they carry (Tap) and to break them (Fault).
//
// A Port behaves like a netmap or AF_XDP port. Its rings hold buffers of a
// Region; Recv and Release, Send and what Send gives back exchange them, and
// each buffer number is in exactly one place: in a ring, in a worker's hands,
// or spare in the region. Census names the places, CheckCensus compares them.
//
// The far end of a port is driven by calls instead of a wire: Deliver receives
// a frame, Transmit takes what was sent and so completes transmit slots. A
// transmit slot stays occupied until then.
//
// Ownership: each ring has one producer and one consumer, like the rings of
// linux/if_xdp.h. The worker is the consumer of receive rings and the producer
// of transmit rings. The other side of one ring is one goroutine at a time, the
// worker's or another. The two meet in one atomic index per side, read and
// written once per burst.
package memport
