package main

import (
	"net/netip"

	"nmfwd/dataplane"
)

// faultyFrames make frames of the lab ones that are dropped, by reason.
var faultyFrames = []struct {
	name    string
	reason  dataplane.Reason
	mix     mix
	corrupt func([]byte) []byte
}{
	{"truncated", dataplane.DropTruncated, v4, func(b []byte) []byte { return b[:40] }},
	{"truncated, IPv6", dataplane.DropTruncated, v6, func(b []byte) []byte { return b[:60] }},
	{"bad_header", dataplane.DropBadHeader, v4, func(b []byte) []byte { b[14] = 0x44; return b }},
	{"bad_header, IPv6", dataplane.DropBadHeader, v6, func(b []byte) []byte { b[14] = 0x70; return b }},
	{"bad_checksum", dataplane.DropBadChecksum, v4, func(b []byte) []byte { b[24]++; return b }},
	{"bad_options", dataplane.DropBadOptions, v4, withOptions(7, 0, 0, 0)},
	{"source_route", dataplane.DropSourceRoute, v4, withOptions(131, 3, 4, 0)},
	{"ip_option", dataplane.DropIPOption, v4, withOptions(7, 3, 4, 0)},
	{"router_alert", dataplane.DropRouterAlert, v4, withOptions(148, 4, 0, 0)},
	{"bad_ext", dataplane.DropBadExt, v6, func(b []byte) []byte { b[20], b[54], b[55] = 0, 17, 1; return b }},
	{"not_our_mac", dataplane.DropNotOurMAC, v4, func(b []byte) []byte { b[5]++; return b }},
	{"l2_broadcast", dataplane.DropL2Broadcast, v4, func(b []byte) []byte { copy(b, "\xff\xff\xff\xff\xff\xff"); return b }},
	{"ethertype", dataplane.DropEtherType, v4, func(b []byte) []byte { b[12] = 0x99; return b }},
	{"vlan_unknown", dataplane.DropVLANUnknown, v4, func(b []byte) []byte { b[12] = 0x81; return b }},
	{"ttl", dataplane.DropTTL, v4, func(b []byte) []byte { b[22] = 1; sum4(b); return b }},
	{"ttl, IPv6", dataplane.DropTTL, v6, func(b []byte) []byte { b[21] = 1; return b }},
	{"martian", dataplane.DropMartian, v4, from("127.0.0.1")},
	{"martian, IPv6", dataplane.DropMartian, v6, from("::1")},
	{"link_local", dataplane.DropLinkLocal, v4, from("169.254.0.1")},
	{"link_local, IPv6", dataplane.DropLinkLocal, v6, from("fe80::1")},
	{"multicast", dataplane.DropMulticast, v4, to("224.0.1.1")},
	{"multicast, IPv6", dataplane.DropMulticast, v6, to("ff0e::1")},
	{"no_route", dataplane.DropNoRoute, v4, to("198.17.0.1")},
	{"no_route, IPv6", dataplane.DropNoRoute, v6, to("2001:3::1")},
	{"blackhole", dataplane.DropBlackhole, v4, to("192.0.2.1")},
	{"reject", dataplane.DropReject, v4, to("198.51.100.1")},
	{"no_neighbor", dataplane.DropNoNeighbor, v4, to("203.0.113.1")},
	{"no_neighbor, IPv6", dataplane.DropNoNeighbor, v6, to("2001:2::1")},
	{"too_big", dataplane.DropTooBig, v4, to("203.0.112.1")},
	{"too_big, IPv6", dataplane.DropTooBig, v6, to("2001:db8::1")},
	{"oversize", dataplane.DropOversize, v4, func(b []byte) []byte { return append(b, make([]byte, 1500)...) }},
}

// withOptions makes room for four bytes of options in an IPv4 header, in the place
// of data.
func withOptions(o ...byte) func([]byte) []byte {
	return func(b []byte) []byte {
		b[14] = 0x46
		copy(b[34:], o)
		sum4(b)
		return b
	}
}

func from(a string) func([]byte) []byte {
	s := netip.MustParseAddr(a)
	return func(b []byte) []byte {
		if s.Is4() {
			copy(b[26:], s.AsSlice())
			sum4(b)
		} else {
			copy(b[22:], s.AsSlice())
		}
		return b
	}
}

func to(a string) func([]byte) []byte {
	d := netip.MustParseAddr(a)
	return func(b []byte) []byte {
		setDst(b, d)
		return b
	}
}
