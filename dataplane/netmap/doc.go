// Package netmap opens ports through the netmap kernel module of FreeBSD and
// Linux: network cards, VALE switch ports (vale0:p1) and pipes (x{1 and x}1).
//
// A port has a control descriptor bound to all its rings, opened first and kept
// until Close, so that the descriptors of the queues, which come and go behind
// it, never change the mode of a ring and with it reset the card. Each queue
// has a descriptor bound to its rings alone, which belongs to one worker, as do
// the rings: the kernel looks at them only within a system call on that
// descriptor, so no access needs to be atomic.
//
//	slots of a ring         RX                       TX
//	head up to tail         received frames          free
//	tail up to head         free, the device's       frames on their way
//
// Ports whose registration returns the same memory id share one mapping and one
// dataplane.Region: a frame goes from the RX slot of one to the TX slot of
// another by exchange of the buffer numbers. Between regions Send copies.
//
// The host stack behind a card has rings of its own, in the same region: what it
// sends is received there, and what is sent there it receives. One more
// descriptor has them. Byte for byte is what passes, tags included; frames are
// handed over by name, so NS_FORWARD is never set.
//
// System calls on a descriptor can block for as long as the port is down on
// Linux. A port known to be down is therefore left out of poll(2) and not
// synced. The kernel tells that a port goes down only when its calls block
// already, so a thread that makes one meanwhile is lost until the port is up
// again. Its worker is not: another thread goes on with all else that it has (see
// dataplane.Call), unless the call was made to find room in a full ring amid a
// burst.
//
// A port that fails, stalls or vanishes is closed, once every worker has let go
// of its rings, and opened again if it can be. Its frames are dropped meanwhile,
// as its link is down.
//
// Source: netmap(4) and net/netmap.h; package abi has the layouts.
package netmap
