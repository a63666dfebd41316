package dataplane

// A Reason says why a packet was dropped.
type Reason uint8

// The drop reasons, by the names that metrics use. Each received packet that
// is neither forwarded nor given to the host nor punted has exactly one.
const (
	_               Reason = iota
	DropTruncated          // shorter than its headers or length field say: RFC 1812, 5.2.2
	DropBadHeader          // version, header or total length: RFC 1812, 5.2.2; RFC 8200, 3
	DropBadChecksum        // IPv4 header checksum: RFC 1812, 5.2.2
	DropBadOptions         // malformed IPv4 option: RFC 791, 3.1; RFC 1812, 4.2.2.6
	DropSourceRoute        // loose or strict source route: RFC 7126, 4.3, 4.4
	DropIPOption           // option that routers better drop: RFC 7126, 4.5 to 4.20
	DropNotOurMAC          // unicast to another station: IEEE 802.3
	DropL2Broadcast        // unicast IP in a link-layer broadcast: RFC 1812, 5.3.4
	DropEtherType          // neither IP nor ARP, and no host to take it: RFC 894, RFC 2464
	DropVLANUnknown        // tagged, and no such VLAN: IEEE 802.1Q
	DropTTL                // TTL or hop limit exceeded: RFC 1812, 5.3.1; RFC 8200, 3
	DropMartian            // address that must not be forwarded: RFC 1812, 5.3.7; RFC 6890; RFC 2644
	DropLinkLocal          // 169.254/16, fe80::/10: RFC 3927, 7; RFC 4291, 2.5.6
	DropMulticast          // 224/4, ff00::/8, and no host to take it: RFC 1812, 5.2.1
	DropNoRoute            // no route to the destination: RFC 1812, 4.3.3.1
	DropBlackhole          // route says to discard silently
	DropReject             // route says unreachable or prohibited: RFC 1812, 5.2.7.1
	DropNoNeighbor         // link-layer address of the next hop is unknown: RFC 1812, 3.3.2
	DropTooBig             // packet exceeds the egress MTU: RFC 1191, RFC 8201
	DropOversize           // frame exceeds what the ingress port may carry: IEEE 802.3, 3.2.7
	DropLinkDown           // egress port has no link
	DropTXFull             // transmit or hand-off ring is full
	DropRouterAlert        // router alert, and no host to take it: RFC 2113, RFC 2711
	DropBadExt             // malformed hop-by-hop options: RFC 8200, 4.3
	DropPuntFull           // control takes no more: its ring is full, or its rate for the router's own addresses exceeded
	DropHostFull           // the host cannot take it: its ring is full or absent
	DropHostRoute          // the route is the host's to follow, and there is no host to take it: RFC 1812, 4.3.3.1
	DropHostTooBig         // in several buffers, and does not fit the one in which the host takes it
	DropURPF               // source not reachable through the ingress port: RFC 3704
	DropInternal           // a queue broke its contract: a defect, or a broken device
	NumReasons      = iota
)

var reasonNames = [NumReasons]string{
	"", "truncated", "bad_header", "bad_checksum", "bad_options", "source_route", "ip_option",
	"not_our_mac", "l2_broadcast", "ethertype", "vlan_unknown", "ttl", "martian",
	"link_local", "multicast", "no_route", "blackhole", "reject", "no_neighbor",
	"too_big", "oversize", "link_down", "tx_full", "router_alert", "bad_ext",
	"punt_full", "host_full", "host_route", "host_too_big", "urpf", "internal",
}

// String returns the reason's name in metrics.
func (r Reason) String() string { return reasonNames[r] }

// A Kind says what a punted packet is to control.
type Kind uint8

// The kinds of punted packets.
const (
	PuntARP         Kind = iota // ARP, where no host answers it
	PuntND                      // Neighbor Discovery, where no host answers it
	PuntLocal                   // for an address of the router, where no host takes it
	PuntTTL                     // TTL or hop limit exceeded: an error is due
	PuntTooBig                  // exceeds the egress MTU: an error is due
	PuntUnreachable             // no route, reject: an error is due
	PuntFragment                // exceeds the egress MTU, and may be fragmented
	PuntBadOption               // options of IPv4 or of IPv6's extension headers: an error is due
	PuntNeighbor                // the neighbor that it is to be sent to is not known
	NumKinds             = iota

	// NoteUsed is no packet and not counted: a packet was sent to a neighbor that
	// is to be verified.
	NoteUsed Kind = NumKinds
)

var kindNames = [NumKinds]string{"arp", "nd", "local", "ttl", "too_big", "unreachable", "fragment", "bad_option", "neighbor"}

// String returns the kind's name in metrics.
func (k Kind) String() string { return kindNames[k] }
