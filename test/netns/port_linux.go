package netns

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Port is one end of a veth pair.
type Port struct {
	NS     *Namespace
	Name   string
	MAC    net.HardwareAddr // nil for one of the kernel's choice
	Addrs  []netip.Prefix   //
	Queues int              // of each direction, 0 for 1
	MTU    int              // 0 for 1500
	Down   bool             // leave it down
}

// Join makes a veth pair with the ends a and b. What one end
// sends from CPU c arrives in the other's queue c modulo its number of queues.
func Join(a, b Port) error {
	qa, qb := max(a.Queues, 1), max(b.Queues, 1)
	veth := netlink.NewVeth(netlink.NewLinkAttrs())
	veth.Name, veth.HardwareAddr = a.Name, a.MAC
	veth.MTU = a.MTU
	veth.NumTxQueues, veth.NumRxQueues = qa, qa
	veth.PeerName, veth.PeerHardwareAddr = b.Name, b.MAC
	veth.PeerNamespace = netlink.NsFd(int(b.NS.file.Fd()))
	veth.PeerMTU = uint32(b.MTU)
	veth.PeerNumTxQueues, veth.PeerNumRxQueues = uint32(qb), uint32(qb)
	if err := a.NS.nl.LinkAdd(veth); err != nil {
		return fmt.Errorf("netns: %s: make %s: %w", a.NS.name, a.Name, err)
	}
	for _, p := range []Port{a, b} {
		if !p.Down {
			if err := p.NS.Up(p.Name); err != nil {
				return err
			}
		}
		for _, addr := range p.Addrs {
			if err := p.NS.AddAddr(p.Name, addr); err != nil {
				return err
			}
		}
	}
	return nil
}

// link calls f with the port called name and says in its error what was done.
func (n *Namespace) link(name, what string, f func(netlink.Link) error) error {
	l, err := n.nl.LinkByName(name)
	if err == nil {
		err = f(l)
	}
	if err != nil {
		return fmt.Errorf("netns: %s: %s: %s: %w", n.name, name, what, err)
	}
	return nil
}

// Up sets a port up.
func (n *Namespace) Up(port string) error { return n.link(port, "set up", n.nl.LinkSetUp) }

// Down sets a port down.
func (n *Namespace) Down(port string) error { return n.link(port, "set down", n.nl.LinkSetDown) }

// Remove removes a port, and with it the other end of the pair.
func (n *Namespace) Remove(port string) error { return n.link(port, "remove", n.nl.LinkDel) }

// AddVLAN makes name an 802.1Q VLAN on a port and sets it up. The error is
// unix.EOPNOTSUPP where the kernel has no VLANs.
func (n *Namespace) AddVLAN(port, name string, id int) error {
	return n.addOn(port, &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: name}, VlanId: id})
}

// AddMACVLAN makes name an interface on a port with a MAC address of its own and
// sets it up.
func (n *Namespace) AddMACVLAN(port, name string) error {
	return n.addOn(port, &netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.MACVLAN_MODE_BRIDGE})
}

func (n *Namespace) addOn(port string, l netlink.Link) error {
	return n.link(port, "add "+l.Type()+" "+l.Attrs().Name, func(on netlink.Link) error {
		l.Attrs().ParentIndex = on.Attrs().Index
		if err := n.nl.LinkAdd(l); err != nil {
			return err
		}
		return n.nl.LinkSetUp(l)
	})
}

// SetMTU sets the largest IP packet of a port.
func (n *Namespace) SetMTU(port string, mtu int) error {
	return n.link(port, "set MTU", func(l netlink.Link) error { return n.nl.LinkSetMTU(l, mtu) })
}

// AddAddr gives a port an address that can be used at once.
func (n *Namespace) AddAddr(port string, a netip.Prefix) error {
	return n.link(port, "add address "+a.String(), func(l netlink.Link) error {
		addr := &netlink.Addr{IPNet: ipNet(a)}
		if a.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		return n.nl.AddrAdd(l, addr)
	})
}

// RemoveAddr takes an address from a port.
func (n *Namespace) RemoveAddr(port string, a netip.Prefix) error {
	return n.link(port, "remove address "+a.String(), func(l netlink.Link) error {
		return n.nl.AddrDel(l, &netlink.Addr{IPNet: ipNet(a)})
	})
}

// AddRoute adds a route through a gateway.
func (n *Namespace) AddRoute(dst netip.Prefix, via netip.Addr) error {
	if err := n.nl.RouteAdd(&netlink.Route{Dst: ipNet(dst), Gw: via.AsSlice()}); err != nil {
		return fmt.Errorf("netns: %s: add route %v via %v: %w", n.name, dst, via, err)
	}
	return nil
}

// AddNeighbor adds a permanent neighbor.
func (n *Namespace) AddNeighbor(port string, addr netip.Addr, mac net.HardwareAddr) error {
	return n.link(port, "add neighbor "+addr.String(), func(l netlink.Link) error {
		return n.nl.NeighSet(&netlink.Neigh{
			LinkIndex:    l.Attrs().Index,
			State:        netlink.NUD_PERMANENT,
			IP:           addr.AsSlice(),
			HardwareAddr: mac,
		})
	})
}

// Port returns the kernel's state of a port: its index, flags, the XDP program
// attached and statistics.
func (n *Namespace) Port(port string) (attrs *netlink.LinkAttrs, err error) {
	err = n.link(port, "read", func(l netlink.Link) error {
		attrs = l.Attrs()
		return nil
	})
	return attrs, err
}

// Dropped returns how many frames the kernel has dropped at all ports, in either
// direction.
func (n *Namespace) Dropped() (sum uint64, err error) {
	links, err := n.nl.LinkList()
	if err != nil {
		return 0, fmt.Errorf("netns: %s: ports: %w", n.name, err)
	}
	for _, l := range links {
		if s := l.Attrs().Statistics; s != nil {
			sum += s.RxDropped + s.TxDropped
		}
	}
	return sum, nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
