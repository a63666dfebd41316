package apu2

import (
	"errors"
	"net"
	"net/netip"

	"nmfwd/test/lab/traffic"
	"nmfwd/test/netns"
)

// The ports.
const (
	Gen0 = "gen0" // the generator's
	IGB1 = "igb1" // the router's, to the generator
	IGB2 = "igb2" // the router's, to the receiver
	Rcv0 = "rcv0" // the receiver's
)

// The MACs.
var (
	GeneratorMAC = net.HardwareAddr{0x00, 0x1b, 0x21, 0xc4, 0x95, 0x7a}
	IGB1MAC      = net.HardwareAddr{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x3d}
	IGB2MAC      = net.HardwareAddr{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x3e}
	ReceiverMAC  = net.HardwareAddr{0x00, 0x1b, 0x21, 0xc4, 0x95, 0x7b}
)

// The addresses, IPv4 first.
var (
	GeneratorAddrs = prefixes("198.18.0.203/24", "2001:2::203/64")
	IGB1Addrs      = prefixes("198.18.0.205/24", "2001:2::205/64")
	IGB2Addrs      = prefixes("198.19.0.205/24", "2001:2:0:8000::205/64")
	ReceiverAddrs  = prefixes("198.19.0.203/24", "2001:2:0:8000::203/64")
)

// The networks behind the generator and behind the receiver.
var (
	generatorNets = prefixes("198.18.0.0/16", "2001:2::/49")
	receiverNets  = prefixes("198.19.0.0/16", "2001:2:0:8000::/49")
)

func prefixes(s ...string) []netip.Prefix {
	p := make([]netip.Prefix, len(s))
	for i := range s {
		p[i] = netip.MustParsePrefix(s[i])
	}
	return p
}

// A Lab is the three namespaces. Its end hosts have addresses and routes to each
// other; its router has addresses and does not forward.
type Lab struct {
	Generator, Router, Receiver *netns.Namespace
}

// New makes a lab. Igb1 and gen0 have as many queues of each direction as the
// first number says, igb2 and rcv0 as the second.
func New(queues1, queues2 int) (*Lab, error) {
	l := &Lab{}
	if err := l.build(queues1, queues2); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Lab) build(queues1, queues2 int) error {
	var err error
	for _, n := range []struct {
		to   **netns.Namespace
		name string
	}{{&l.Generator, "generator"}, {&l.Router, "router"}, {&l.Receiver, "receiver"}} {
		if *n.to, err = netns.New(n.name); err != nil {
			return err
		}
	}
	if err := l.joinGenerator(queues1); err != nil {
		return err
	}
	if err := l.joinReceiver(queues2); err != nil {
		return err
	}
	return l.Forward(false)
}

func (l *Lab) joinGenerator(queues int) error {
	err := netns.Join(
		netns.Port{NS: l.Router, Name: IGB1, MAC: IGB1MAC, Addrs: IGB1Addrs, Queues: queues},
		netns.Port{NS: l.Generator, Name: Gen0, MAC: GeneratorMAC, Addrs: GeneratorAddrs, Queues: queues})
	if err != nil {
		return err
	}
	return addRoutes(l.Generator, receiverNets, IGB1Addrs)
}

func (l *Lab) joinReceiver(queues int) error {
	err := netns.Join(
		netns.Port{NS: l.Router, Name: IGB2, MAC: IGB2MAC, Addrs: IGB2Addrs, Queues: queues},
		netns.Port{NS: l.Receiver, Name: Rcv0, MAC: ReceiverMAC, Addrs: ReceiverAddrs, Queues: queues})
	if err != nil {
		return err
	}
	return addRoutes(l.Receiver, generatorNets, IGB2Addrs)
}

// addRoutes adds a route to each network through the gateway of its family.
func addRoutes(n *netns.Namespace, nets, gateways []netip.Prefix) error {
	for i, p := range nets {
		if err := n.AddRoute(p, gateways[i].Addr()); err != nil {
			return err
		}
	}
	return nil
}

// Forward switches the forwarding of the router's kernel on or off.
func (l *Lab) Forward(on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	return errors.Join(
		l.Router.Sysctl("net/ipv4/ip_forward", value),
		l.Router.Sysctl("net/ipv6/conf/all/forwarding", value))
}

// KernelRouter makes the kernel the router: it has the routes and the static
// neighbors of routes.conf and takes redirected frames.
func (l *Lab) KernelRouter() error {
	for _, side := range []struct {
		port  string
		nets  []netip.Prefix
		hosts []netip.Prefix
		mac   net.HardwareAddr
	}{
		{IGB1, generatorNets, GeneratorAddrs, GeneratorMAC},
		{IGB2, receiverNets, ReceiverAddrs, ReceiverMAC},
	} {
		if err := l.Router.SetFeature(side.port, netns.GRO, true); err != nil {
			return err
		}
		for _, h := range side.hosts {
			if err := l.Router.AddNeighbor(side.port, h.Addr(), side.mac); err != nil {
				return err
			}
		}
		if err := addRoutes(l.Router, side.nets, side.hosts); err != nil {
			return err
		}
	}
	return l.Forward(true)
}

// Flows returns the flows of a family through the lab.
func Flows(family int) *traffic.Flows {
	return &traffic.Flows{
		Family:        family,
		Generator:     GeneratorMAC,
		RouterIngress: IGB1MAC,
		RouterEgress:  IGB2MAC,
		Receiver:      ReceiverMAC,
	}
}

// Close ends all processes of the lab and removes it.
func (l *Lab) Close() error {
	var errs []error
	for _, n := range []*netns.Namespace{l.Generator, l.Receiver, l.Router} {
		if n != nil {
			errs = append(errs, n.Close())
		}
	}
	return errors.Join(errs...)
}
