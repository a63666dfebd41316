package dataplane

import (
	"time"

	"nmfwd/fib"
	"nmfwd/wire"
)

// A State is all that workers read to forward: one immutable value, published
// by one store and read once per burst.
type State struct {
	FIB   *fib.FIB
	Ports []PortState // by port number
	Watch *Watch      // told of all destinations, nil for none

	// IPOptions has packets forwarded with options that RFC 7126 advises to drop.
	IPOptions bool

	// Seed makes the hash of flows another one in each router: in a row of routers
	// that hash alike, those behind the first would have one path each (RFC 2991, 4).
	Seed uint64
}

// A PortState is the part of the State for one port.
type PortState struct {
	Number    uint16     // its index in State.Ports; those of VLANs follow those of devices
	MAC       wire.MAC   // frames to it are ours
	MACs      []wire.MAC // and frames to these
	MTU       int        // largest IP packet, bytes
	Host      bool       // a host takes what is not for forwarding
	Up        bool       // the port can send
	URPF      URPF       // what is asked of the sources of packets received
	LinkLocal [2]uint64  // the router's own on this port, where no host has it

	// VLANs holds the numbers of the ports that are VLANs on this one, by VLAN
	// ID, 0 for none. It is nil without any.
	VLANs *[1 << 12]uint16

	// Of a VLAN.
	On      uint16 // number of the port that it is on
	TCI     uint16 // IEEE 802.1Q tag control information of frames that control sends; 0 of a device
	KeepPCP bool   // what is due to a frame with a tag has the priority of that

	// Every is the time that has to pass, in the long run, for each packet of one
	// family that one queue of the port gives to control; what comes faster is
	// dropped. 0 lets none pass.
	Every [NumLimits]time.Duration
}

// A URPF is a check of the source of a packet against the route back to it
// (RFC 3704; RFC 8704, 2).
type URPF uint8

// The checks.
const (
	URPFOff    URPF = iota
	URPFLoose       // there is a route other than a default one: RFC 3704, 2.5
	URPFStrict      // the best route, any gateway of it, leads out of the port: RFC 3704, 2.2
)

// A Limit names what control takes only so much of.
type Limit uint8

// The limits.
const (
	LimitErrors    Limit = iota // packets whose senders are due an ICMP error
	LimitLocal                  // packets for the router itself
	LimitFragments              // packets to be fragmented
	NumLimits      = iota
)

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
