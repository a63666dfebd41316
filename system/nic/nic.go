// Package nic reads and changes the settings of network interfaces that are
// neither netmap's nor AF_XDP's own: offloads, what the interface filters out,
// and what is told of it: link, rings, pause frames.
//
// Take changes what stands in the way of a port's purpose and writes down before
// what was there, so that Taken.Close, or Restore after a process that was
// killed, gives it back. A port's file of settings is locked as long as the
// process that changed them lives, and gone when they are restored.
//
// Settings have the names that the system's own tools give them: those of
// ifconfig(8) on FreeBSD, of ethtool(8) --features on Linux.
package nic

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net"
)

// ErrBusy says that another process has the settings of the interface.
var ErrBusy = errors.New("another nmfwd has it")

// noInterface is the error about an interface, by name or index, that is not
// there.
type noInterface string

func (e noInterface) Error() string { return "nic: " + string(e) + ": there is no such interface" }
func (e noInterface) Unwrap() error { return fs.ErrNotExist }

// A System is what the package asks of the operating system. Open returns the
// real one. Errors about an interface that is not there wrap fs.ErrNotExist.
type System interface {
	// Info says what the interface called name is.
	Info(name string) (Info, error)

	// Set gives settings of the interface called name the values in s, all at
	// once: some drivers reset the card for each request.
	Set(name string, s []Setting) error

	// Listen makes the interface called name hand over what f says, until the
	// result is closed, by whatever end of the process. Where the system has no
	// such thing, but a setting of kind Promiscuous, the result is nil.
	Listen(name string, f Filter) (io.Closer, error)

	// Name returns the name that the interface with the given index has now.
	Name(index int) (string, error)

	// Space tells interfaces from others of the same names on the machine: the
	// network namespace on Linux.
	Space() string

	Close() error
}

// Info is what the system says of an interface. Numbers are 0 where it does not
// tell.
type Info struct {
	Name    string
	Index   int
	Driver  string // of the kernel
	Unit    string // number of the card among those of its driver, on FreeBSD
	MAC     net.HardwareAddr
	MTU     int
	Up      bool // set up
	Carrier bool
	Speed   int // Mbit/s

	RXRings, TXRings       int // in use
	RXSlots, TXSlots       int // of each of the card's own rings
	MaxRXSlots, MaxTXSlots int // that they can have

	RXPause, TXPause bool // IEEE 802.3 pause frames are obeyed, sent

	Settings []Setting
}

// A Setting is one switch of an interface.
type Setting struct {
	Name  string // in the words of the system's tools
	Kind  Kind
	On    bool
	Fixed bool // cannot be changed
}

// Kind is what a setting does to frames.
type Kind uint8

// The kinds of settings.
const (
	TXChecksum   Kind = iota + 1 // checksums of frames sent are filled in by the card
	Segmentation                 // what is sent is cut into packets by the card, or late
	Merge                        // received packets of a flow are merged
	VLANStrip                    // tags are taken out of received frames, and put in on FreeBSD
	VLANInsert                   // tags of frames sent are put in by the card
	VLANFilter                   // frames of VLANs that the host does not know are filtered out
	RXChecksum                   // checksums of received frames are checked by the card
	Promiscuous                  // frames for others are received
)

// A Filter says what an interface has to hand over besides frames for its own
// address, broadcasts and the groups that the host has joined.
type Filter struct {
	AllMulticast bool
	Promiscuous  bool
	MACs         []net.HardwareAddr // further addresses
}

func (f *Filter) empty() bool { return !f.AllMulticast && !f.Promiscuous && len(f.MACs) == 0 }

// A Purpose says what a port is to carry.
type Purpose struct {
	Name   string
	Netmap bool // else AF_XDP
	Host   bool // a host stack has what is not for forwarding
	VLANs  bool // tagged frames are ours
	MACs   []net.HardwareAddr
	Keep   bool // leave offloads as they are
}

// inTheWay reports whether a setting of kind k keeps frames from the port, or
// makes others of them than were on the wire.
//
// netmap passes frames as they lie in the ring: what the host sends has to be
// whole, and nothing of a received frame may be elsewhere (netmap(4), CAVEATS;
// the kernel drops what the host sends otherwise). AF_XDP has the same on
// reception; its driver hooks come before packets are merged.
func (p *Purpose) inTheWay(k Kind) bool {
	switch k {
	case VLANStrip:
		return true
	case VLANFilter:
		return p.VLANs
	case Merge:
		return p.Netmap
	case TXChecksum, Segmentation, VLANInsert:
		return p.Netmap && p.Host
	}
	return false
}

// A Plan is what a purpose wants of an interface.
type Plan struct {
	Set    []Setting // to change, with the values wanted
	Stay   []Setting // in the way, but fixed or kept
	Filter Filter
}

// Plan returns what has to change for the purpose on the interface in.
func (p *Purpose) Plan(in *Info) Plan {
	var plan Plan
	f := &plan.Filter
	f.AllMulticast = !p.Host
	for _, m := range p.MACs {
		if !bytes.Equal(m, in.MAC) {
			f.MACs = append(f.MACs, m)
		}
	}
	for _, s := range in.Settings {
		switch {
		case !s.On || !p.inTheWay(s.Kind):
		case s.Fixed || p.Keep:
			plan.Stay = append(plan.Stay, s)
			f.Promiscuous = f.Promiscuous || s.Kind == VLANFilter
		default:
			s.On = false
			plan.Set = append(plan.Set, s)
		}
	}
	for _, s := range in.Settings {
		if s.Kind != Promiscuous {
			continue
		}
		if !s.On && !f.empty() {
			s.On = true
			plan.Set = append(plan.Set, s)
		}
		*f = Filter{}
	}
	return plan
}
