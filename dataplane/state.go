package dataplane

import (
	"nmfwd/dataplane/wire"
	"nmfwd/fib"
)

// A State is all that workers read to forward: one immutable value, published
// by one store and read once per burst.
type State struct {
	FIB   *fib.FIB
	Ports []PortState // by port number

	// ErrorRate is how many packets per second, ingress queue and family go to
	// control because their senders are due an ICMP error; the others are
	// dropped. 0 when control sends no errors.
	ErrorRate int
}

// A PortState is the part of the State for one port.
type PortState struct {
	Number    uint16     // its index in State.Ports
	MAC       wire.MAC   // frames to it are ours
	MACs      []wire.MAC // and frames to these
	MTU       int        // largest IP packet, bytes
	Host      bool       // a host takes what is not for forwarding
	Up        bool       // the port can send
	LinkLocal [2]uint64  // the router's own on this port, where no host has it
}

func (p *PortState) ours(m wire.MAC) bool {
	if m == p.MAC {
		return true
	}
	for _, o := range p.MACs {
		if m == o {
			return true
		}
	}
	return false
}
