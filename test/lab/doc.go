// Command lab shows nmfwd at work: it wires the APU2 lab in network namespaces,
// runs nmfwd with the configuration of examples/apu2 between a generator and a
// receiver, sends 2,000 IPv4 and 2,000 IPv6 flows of the smallest frames through
// it and checks every frame that arrives.
//
//	generator  gen0 ==== igb1  router (nmfwd)  igb2 ==== rcv0  receiver
//
// Each veth pair (====) has two queues and each flow is sent by one CPU, so all
// queues of the router are filled.
//
// It ends with code 0 only if nothing was lost, reordered, duplicated or changed,
// nmfwd accounts for every packet, every queue had traffic and nmfwd ended well.
// With -overload it sends as fast as it can and loss is no fault. With -dut kernel
// the kernel forwards instead: the measure that nmfwd is compared with.
//
// It needs root. All it makes is gone when it ends, however it ends.
package main

// Exit codes of sysexits(3).
const (
	exUsage       = 64
	exUnavailable = 69
	exNoPerm      = 77
)
