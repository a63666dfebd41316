package explain

import "nmfwd/dataplane"

// anyCheck stands for the check that finds out that a frame is for the router.
const anyCheck check = -1

// An ending says which check a drop or a punt comes from, and why it is so.
type ending struct {
	at   check
	text string
}

// reasons tell the drops, with the RFCs that ask for them.
var reasons = [dataplane.NumReasons]ending{
	dataplane.DropTruncated:   {header, "shorter than its header or its length field say (RFC 1812, 5.2.2; RFC 8200, 3)"},
	dataplane.DropBadHeader:   {header, "version, header length and total length do not fit together (RFC 1812, 5.2.2; RFC 8200, 3)"},
	dataplane.DropBadChecksum: {header, "the header checksum is wrong (RFC 1812, 5.2.2)"},
	dataplane.DropBadOptions:  {options, "an option's length is wrong (RFC 791, 3.1; RFC 1812, 4.2.2.6)"},
	dataplane.DropSourceRoute: {options, "source routes are not followed (RFC 7126, 4.3 and 4.4)"},
	dataplane.DropIPOption:    {options, "an option that routers better drop (RFC 7126, 4.5 to 4.20), see option ip-options"},
	dataplane.DropNotOurMAC:   {mac, "the frame is for another station (IEEE 802.3)"},
	dataplane.DropL2Broadcast: {mac, "a packet to one station in a frame to several (RFC 1812, 5.3.4)"},
	dataplane.DropEtherType:   {etherType, "neither IPv4, IPv6 nor ARP, and the port has no host (RFC 894, RFC 2464)"},
	dataplane.DropVLANUnknown: {etherType, "no VLAN of this number on the port, and no host (IEEE 802.1Q)"},
	dataplane.DropTTL:         {ttl, "the TTL or hop limit would be zero (RFC 1812, 5.3.1; RFC 8200, 3)"},
	dataplane.DropMartian:     {addresses, "an address that is not to be forwarded (RFC 1812, 5.3.7; RFC 4291, 2.5; RFC 2644)"},
	dataplane.DropLinkLocal:   {addresses, "a link-local address does not leave its link (RFC 3927, 7; RFC 4291, 2.5.6)"},
	dataplane.DropMulticast:   {addresses, "multicast is not forwarded, and the port has no host (RFC 1812, 5.2.1)"},
	dataplane.DropNoRoute:     {route, "there is no route, or one that says throw (RFC 1812, 5.2.4.3; RFC 4443, 3.1)"},
	dataplane.DropBlackhole:   {route, "the route says so, silently"},
	dataplane.DropReject:      {route, "the route says unreachable or prohibited (RFC 1812, 5.2.7.1)"},
	dataplane.DropNoNeighbor:  {neighbor, "the link-layer address of the next hop is not known (RFC 1812, 3.3.2; RFC 4861, 7.2)"},
	dataplane.DropTooBig:      {mtu, "the packet does not fit (RFC 1191, 4; RFC 8201, 4)"},
	dataplane.DropOversize:    {size, "longer than the port may carry (IEEE 802.3, 3.2.7)"},
	dataplane.DropLinkDown:    {egress, "the egress port has no link"},
	dataplane.DropTXFull:      {egress, "the egress port's ring is full"},
	dataplane.DropRouterAlert: {options, "router alert, and the port has no host (RFC 2113, RFC 2711)"},
	dataplane.DropBadExt:      {options, "the hop-by-hop options do not fit together (RFC 8200, 4.3)"},
	dataplane.DropPuntFull:    {anyCheck, "nmfwd takes no more packets for itself at this moment"},
	dataplane.DropHostFull:    {anyCheck, "the host stack takes no more at this moment"},
	dataplane.DropHostRoute:   {route, "the route is the host's to follow, and the port has no host (RFC 1812, 4.3.3.1)"},
	dataplane.DropHostTooBig:  {anyCheck, "longer than the one buffer in which the host stack takes a frame"},
	dataplane.DropURPF:        {reverse, "the route to the source does not lead there, or is none (RFC 3704, 2.2 and 2.5)"},
	dataplane.DropInternal:    {length, "a defect of nmfwd or of the port"},
}

// kinds tell what nmfwd does with frames that it takes itself.
var kinds = [dataplane.NumKinds]ending{
	dataplane.PuntARP:         {etherType, "address resolution (RFC 826)"},
	dataplane.PuntND:          {anyCheck, "Neighbor Discovery (RFC 4861)"},
	dataplane.PuntLocal:       {anyCheck, "an address of the router, and the port has no host (RFC 1812, 5.2.3)"},
	dataplane.PuntTTL:         {ttl, "it would be zero, the sender is told (RFC 1812, 5.3.1; RFC 4443, 3.3)"},
	dataplane.PuntTooBig:      {mtu, "the packet does not fit, the sender is told (RFC 1191, 4; RFC 8201, 4)"},
	dataplane.PuntUnreachable: {route, "the destination cannot be reached, the sender is told (RFC 1812, 4.3.3.1; RFC 4443, 3.1)"},
	dataplane.PuntFragment:    {mtu, "the packet does not fit and is fragmented (RFC 791, 3.2)"},
	dataplane.PuntNeighbor:    {neighbor, "the packet waits while the neighbor is asked for (RFC 1812, 3.3.2; RFC 4861, 7.2.2)"},
	dataplane.PuntBadOption:   {options, "options that do not fit together, the sender is told (RFC 1812, 4.3.3.5; RFC 4443, 3.4)"},
}

// Meaning says in one line why packets are dropped for r, with the RFCs that ask
// for it.
func Meaning(r dataplane.Reason) string { return reasons[r].text }
