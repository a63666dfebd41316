// Package config reads routes.conf, the language in which ports, routes and
// neighbors are written, into a validated and typed Config.
//
// Load and Parse report every error at once, each with its place, and return a
// Config only when there is none. What depends on addresses that only the
// running kernel knows ("addr kernel") is checked by Resolve. A Config is plain
// data, owned by whoever loaded it; the package keeps no state and, apart from
// the files that Load is told to read, touches nothing.
//
// Package rcconf beside it turns the rc.conf(5) of FreeBSD into routes.conf.
//
// # What is checked
//
// A gateway is a station of a connected network, or the line says which port it
// is on; one that only another route leads to is an error, for routes are not
// resolved recursively. Addresses of gateways and neighbors are those of one
// station: not our own, not a network's or its broadcast address, no multicast.
// Networks of two ports do not overlap, except link-local ones. An MTU is the
// length of an IP packet, from 68 bytes (RFC 791), or 1280 where there is IPv6
// (RFC 8200), to 65535. Names of devices have at most 15 bytes; those of ports of
// VALE switches and of pipes, which only netmap knows, have 63. Lines have at most
// 65535 bytes, routes 64 gateways. Words are ASCII or at least UTF-8; comments may
// be in any encoding but hold no control characters.
package config

import (
	"net"
	"net/netip"
	"unique"

	"nmfwd/config/syntax"
)

// What [syntax] says of places and errors is part of this package's own.
type (
	Pos    = syntax.Pos
	Error  = syntax.Error
	Errors = syntax.Errors
)

// A Config is what a routes.conf and the files that it includes say.
type Config struct {
	// Ports holds the devices in the order of their lines, then one port for
	// each of VLANs.
	Ports     []Port
	VLANs     []VLAN
	Routes    []Route
	Neighbors []Neighbor
	Metrics   string // address:port to serve metrics on, empty for none
	Control   string // path of the control socket, empty for DefaultControl
	Options   Options

	// Warnings are what is probably not meant but does no harm.
	Warnings []Error

	metricsPos, controlPos Pos
	files                  []unique.Handle[string] // in the order read
	fromText               []Error                 // Warnings but for those about addresses
}

// DefaultControl is the path of the control socket where no line sets one.
const DefaultControl = "/var/run/nmfwd.sock"

// ControlPath returns the path of the control socket, and the place of the line
// that sets it, no valid one if none does.
func (c *Config) ControlPath() (string, Pos) {
	if c.Control == "" {
		return DefaultControl, Pos{}
	}
	return c.Control, c.controlPos
}

// A Port is a device, or the port that a VLAN is on one.
type Port struct {
	Name        string // the device's, without "netmap:"; that of a VLAN is DEVICE.ID
	Addrs       []netip.Prefix
	AddrKernel  bool               // Resolve appends the interface's own addresses to Addrs
	MTU         int                // largest IP packet in bytes, 0 for the device's own
	MAC         net.HardwareAddr   // nil for the device's own
	VMACs       []net.HardwareAddr // further addresses that are ours (VRRP, CARP)
	Host        bool               // the host stack takes what is not for forwarding
	Queues      int                // 0 for as many as the device has
	Driver      string             // one of Drivers, empty to choose
	OffloadKeep bool               // leave the device's offloads as they are
	URPF        URPF
	Pos         Pos

	at    []Pos // places of Addrs[:len(at)], those that the file names
	mtuAt Pos
}

// Drivers are the values of a port's driver.
var Drivers = []string{"netmap", "afxdp"}

// A VLAN is an IEEE 802.1Q tag on a device.
type VLAN struct {
	ID     int // 1 to 4094
	PCP    int // priority of frames sent, 0 to 7; KeepPCP where the line sets none
	Parent int // index of the device in Ports
	Port   int // index in Ports of the port that the VLAN is
	Pos    Pos
}

// KeepPCP leaves a packet the priority of the tag that it came with: 0 if it had
// none.
const KeepPCP = -1

// A Route says what happens to packets for a prefix.
type Route struct {
	Prefix netip.Prefix
	Hops   []Hop // for Via: the gateways, one as often as it weighs; routes share them, so they are not to be changed
	Pos    Pos
	Port   int32  // index in Ports of the port that the line names, or -1
	MTU    uint16 // largest IP packet in bytes, 0 for the port's
	Kind   Kind
}

// A Hop is a gateway of a route.
type Hop struct {
	Gateway netip.Addr // with a zone, the name of Port, if it is link-local
	Port    int32      // index in Ports; -1 while the kernel's addresses are not known

	off uint16 // bytes from the route's place to the gateway's
}

// A Neighbor is a static ARP or NDP entry.
type Neighbor struct {
	Addr netip.Addr // with a zone, the name of Port, if it is link-local
	MAC  net.HardwareAddr
	Port int // index in Ports; -1 while the kernel's addresses are not known
	Pos  Pos

	off   uint16 // bytes from Pos to the address
	named bool   // the line names the port
}

// Kind is what a route does.
type Kind uint8

// The kinds of routes.
const (
	Via       Kind = iota // send to a gateway
	OnLink                // deliver on the port
	Blackhole             // discard silently
	Reject                // discard with an ICMP error
)

// URPF is the reverse path check of packets received (RFC 3704).
type URPF uint8

// The reverse path checks.
const (
	URPFOff    URPF = iota
	URPFLoose       // the source has a route
	URPFStrict      // the source has a route by the port
)

// Idle is what a worker without packets does.
type Idle uint8

// The ways to be idle.
const (
	Adaptive Idle = iota // spin, then sleep
	Poll                 // always sleep
	Busy                 // never sleep
)

// ICMPSource says whose address an ICMP error carries.
type ICMPSource uint8

// The sources of ICMP errors.
const (
	Ingress ICMPSource = iota // the port by which the packet came in
	Egress                    // the port by which the error leaves (RFC 1812, 4.3.2.4)
)

// IPOptions says what becomes of IPv4 packets with options that RFC 7126 advises
// routers to drop.
type IPOptions uint8

// The ways with such packets.
const (
	DropIPOptions    IPOptions = iota // but those for the router itself
	ForwardIPOptions                  // unchanged, as if they had none, but for source routes
)

// HugePages says whether tables and regions lie in huge pages.
type HugePages uint8

// The uses of huge pages.
const (
	HugeAuto HugePages = iota // where they can be had
	HugeOn                    // always
	HugeOff                   // never
)

// Require is the least that a port must be capable of.
type Require uint8

// The requirements.
const (
	RequireNothing  Require = iota
	RequireNative           // no emulation
	RequireZeroCopy         // no copies, and so no emulation
)

// RouteSource says where routes come from.
type RouteSource uint8

// The sources of routes.
const (
	FileRoutes   RouteSource = iota // the file only
	KernelRoutes                    // the system's tables too
)

// Options are the values of the option lines.
type Options struct {
	Workers    int   // threads that forward, 0 for auto
	CPUs       []int // where workers are pinned, in order; nil for auto
	Idle       Idle
	Burst      int // packets taken from a queue at once, 0 for auto
	ICMPRate   int // ICMP errors per second, port and family; 0 for none
	ICMPSource ICMPSource
	IPOptions  IPOptions
	BufferSize int // bytes of a netmap buffer or AF_XDP chunk, 0 for auto
	HugePages  HugePages
	Require    Require
	Neighbors  int // largest neighbor table
	Routes     RouteSource

	at [optionCount]Pos // places of the option lines
}

// defaults returns the options of an empty file.
func defaults() Options {
	return Options{ICMPRate: 1000, Neighbors: 65536}
}

// Set returns the place of the line that sets an option, and whether there is
// one. It panics if the language has no option of that name.
func (o *Options) Set(name string) (Pos, bool) {
	p := o.at[optionIndex(name)]
	return p, p.Valid()
}

// Devices returns the ports that are devices, without those of VLANs.
func (c *Config) Devices() []Port { return c.Ports[:len(c.Ports)-len(c.VLANs)] }

// Port returns the index in Ports of the port called name, with or without
// "netmap:", or -1.
func (c *Config) Port(name string) int {
	name = syntax.CanonicalName(name)
	for i := range c.Ports {
		if c.Ports[i].Name == name {
			return i
		}
	}
	return -1
}

var (
	kindNames      = []string{"via", "on", "blackhole", "reject"}
	urpfNames      = []string{"off", "loose", "strict"}
	idleNames      = []string{"adaptive", "poll", "busy"}
	sourceNames    = []string{"ingress", "egress"}
	ipOptionsNames = []string{"drop", "forward"}
	hugeNames      = []string{"auto", "on", "off"}
	requireNames   = []string{"nothing", "native", "zerocopy"}
	routesNames    = []string{"file", "kernel"}
)

// String returns the word of the language that makes a route of kind k.
func (k Kind) String() string { return kindNames[k] }

// String returns the word of the language for u.
func (u URPF) String() string { return urpfNames[u] }

// String returns the word of the language for i.
func (i Idle) String() string { return idleNames[i] }

// String returns the word of the language for s.
func (s ICMPSource) String() string { return sourceNames[s] }

// String returns the word of the language for o.
func (o IPOptions) String() string { return ipOptionsNames[o] }

// String returns the word of the language for h.
func (h HugePages) String() string { return hugeNames[h] }

// String returns the word of the language for r.
func (r Require) String() string { return requireNames[r] }

// String returns the word of the language for s.
func (s RouteSource) String() string { return routesNames[s] }
