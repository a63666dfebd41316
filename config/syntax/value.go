package syntax

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// PortWords are the keywords of port lines.
var PortWords = []string{"addr", "mtu", "mac", "host", "queues", "driver", "offload", "urpf", "vmac"}

// The default routes.
var (
	DefaultV4 = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	DefaultV6 = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
)

// Quote returns s as it may be shown in a message: ASCII and not too long.
func Quote(s string) string {
	const most = 60
	if len(s) > most {
		return strconv.QuoteToASCII(s[:most]) + "..."
	}
	return strconv.QuoteToASCII(s)
}

// Number parses a decimal number without sign and leading zeros.
func Number(s string, low, high int) (int, string) {
	wrong := fmt.Sprintf("%s is not a number from %d to %d", Quote(s), low, high)
	if s == "" || len(s) > 9 || s[0] == '0' && len(s) > 1 {
		return 0, wrong
	}
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, wrong
		}
		n = n*10 + int(s[i]-'0')
	}
	if n < low || n > high {
		return 0, wrong
	}
	return n, ""
}

// OneOf returns the index of s in names.
func OneOf(s string, names []string) (int, string) {
	i := slices.Index(names, s)
	if i < 0 {
		return 0, fmt.Sprintf("%s is not %s", Quote(s), alternatives(names))
	}
	return i, ""
}

// alternatives returns names as "a, b or c".
func alternatives(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// Nearest returns the name that s abbreviates, or with the smallest edit
// distance to it, if there is one near enough to be meant.
func Nearest(s string, names []string) (string, bool) {
	if len(s) > 40 {
		return "", false
	}
	s = strings.ToLower(s)
	best, at := len(s)/2+1, ""
	for _, n := range names {
		d := distance(s, n)
		if len(s) > 1 && strings.HasPrefix(n, s) {
			d = 1 // an abbreviation
		}
		if d < best {
			best, at = d, n
		}
	}
	return at, at != ""
}

// distance counts the insertions, deletions, substitutions and transpositions
// of neighbors that turn a into b (optimal string alignment).
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			d := min(last[j]+cost, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d = min(d, before[j-1]+1)
			}
			row[j+1] = d
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

// Address parses an address without zone.
func Address(s string) (netip.Addr, string) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Is4In6() || a.Zone() != "" {
		return netip.Addr{}, WrongAddress(s)
	}
	return a, ""
}

// WrongAddress says why s is not an address.
func WrongAddress(s string) string {
	a, err := netip.ParseAddr(s)
	switch {
	case err == nil && a.Is4In6():
		return fmt.Sprintf("%s is an IPv4-mapped IPv6 address: write %s", Quote(s), a.Unmap().WithZone(""))
	case err == nil && a.Zone() != "":
		return fmt.Sprintf("%s has a zone, which only a link-local address needs: write %s", Quote(s), a.WithZone(""))
	case strings.Contains(s, "/"):
		return Quote(s) + " is not an address: it has a prefix length"
	}
	if t := strings.TrimRight(s, ";,"); t != s {
		if _, wrong := Address(t); wrong == "" {
			return fmt.Sprintf("%s is not an address: a line ends without %q, write %s", Quote(s), s[len(t):], t)
		}
	}
	if o, ok := Octets(s); ok {
		switch {
		case len(o) != 4:
			return fmt.Sprintf("%s is not an address: it has %d octets instead of 4", Quote(s), len(o))
		case slices.Max(o) > 255:
			return fmt.Sprintf("%s is not an address: %d is more than 255", Quote(s), slices.Max(o))
		}
		return fmt.Sprintf("%s is not an address: an octet has a leading zero, write %d.%d.%d.%d", Quote(s), o[0], o[1], o[2], o[3])
	}
	return Quote(s) + " is not an address"
}

// Octets returns the decimal numbers of dotted s, however many there are, and
// whether s is dotted numbers at all.
func Octets(s string) ([]int, bool) {
	f := strings.Split(s, ".")
	if len(f) < 2 || len(f) > 8 {
		return nil, false
	}
	o := make([]int, len(f))
	for i, t := range f {
		n, err := strconv.ParseUint(t, 10, 16)
		if err != nil {
			return nil, false
		}
		o[i] = int(n)
	}
	return o, true
}

// Prefix parses a network: an address whose host bits are zero, and a length.
func Prefix(s string) (netip.Prefix, string) {
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, wrongPrefix(s)
	}
	if m := p.Masked(); m != p {
		if p.Bits() == 0 {
			return netip.Prefix{}, fmt.Sprintf("%s has host bits set: the network is %s, a host is %s", Quote(s), m, HostPrefix(p.Addr()))
		}
		return netip.Prefix{}, fmt.Sprintf("%s has host bits set: the network is %s", Quote(s), m)
	}
	return p, ""
}

// HostPrefix returns the prefix of a alone.
func HostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// wrongPrefix says why s is not an address with a prefix length.
func wrongPrefix(s string) string {
	addr, length, slash := strings.Cut(s, "/")
	if !slash {
		a, wrong := Address(s)
		if wrong != "" {
			return wrong
		}
		usual := 24
		if a.Is6() {
			usual = 64
		}
		return fmt.Sprintf("%s has no prefix length, such as %s/%d", Quote(s), a, usual)
	}
	host, zone, zoned := strings.Cut(addr, "%")
	a, err := netip.ParseAddr(host)
	switch {
	case err == nil && a.Is4In6():
		return fmt.Sprintf("%s is an IPv4-mapped IPv6 prefix: write it as IPv4", Quote(s))
	case err == nil && zoned:
		return fmt.Sprintf("%s has a zone: write it without %q", Quote(s), "%"+zone)
	case err == nil:
		if bits, ok := MaskLength(length); ok && a.Is4() {
			return fmt.Sprintf("%s has a mask: write %s/%d", Quote(s), a, bits)
		}
		_, wrong := Number(length, 0, a.BitLen())
		return fmt.Sprintf("%s: the prefix length %s", Quote(s), wrong)
	}
	if o, ok := Octets(host); (ok || AllDigits(host)) && len(o) < 4 && !zoned {
		full := host + strings.Repeat(".0", 4-max(len(o), 1))
		if p, err := netip.ParsePrefix(full + "/" + length); err == nil {
			return fmt.Sprintf("%s is a short form: write %s", Quote(s), p.Masked())
		}
	}
	return WrongAddress(host)
}

// AllDigits reports whether s is a decimal number.
func AllDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// MaskLength returns the prefix length of an IPv4 mask written as 255.255.0.0
// or 0xffff0000.
func MaskLength(s string) (int, bool) {
	var m uint32
	if h, ok := strings.CutPrefix(strings.ToLower(s), "0x"); ok {
		n, err := strconv.ParseUint(h, 16, 32)
		if err != nil || len(h) != 8 {
			return 0, false
		}
		m = uint32(n)
	} else {
		a, err := netip.ParseAddr(s)
		if err != nil || !a.Is4() {
			return 0, false
		}
		b := a.As4()
		m = uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	}
	bits := 0
	for m&(1<<31) != 0 {
		m <<= 1
		bits++
	}
	return bits, m == 0
}

// PortAddress parses an address of a port and its prefix length.
func PortAddress(s string) (netip.Prefix, string) {
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, wrongPrefix(s)
	}
	a := p.Addr()
	if wrong := Unusable(a); wrong != "" {
		return netip.Prefix{}, fmt.Sprintf("%s is %s, not an address for a port", Quote(s), wrong)
	}
	if p.Bits() == 0 {
		return netip.Prefix{}, fmt.Sprintf("%s makes everything directly connected: a port needs the length of its network", Quote(s))
	}
	if wrong := NotHost(p, a); wrong != "" {
		return netip.Prefix{}, fmt.Sprintf("%s is %s: write the port's own address in it", Quote(s), wrong)
	}
	return p, ""
}

// Unusable says what a is if no single station can have it as its address on
// an Ethernet (RFC 1122, 3.2.1.3; RFC 4291, 2.5 and 2.7).
func Unusable(a netip.Addr) string {
	switch {
	case a.IsUnspecified():
		return "the unspecified address"
	case a.IsLoopback():
		return "a loopback address"
	case a.IsMulticast():
		return "a multicast address"
	case a.Is4():
		switch b := a.As4(); {
		case b == [4]byte{255, 255, 255, 255}:
			return "the broadcast address"
		case b[0] == 0:
			return "an address of 0.0.0.0/8"
		case b[0] >= 240:
			return "a reserved address"
		}
	}
	return ""
}

// NotHost says what a is if it is an address of p that no host has: the
// network's own (RFC 1122, 3.2.1.3; the subnet-router anycast address of
// RFC 4291, 2.6.1) or the broadcast address. Networks of two addresses have
// neither (RFC 3021, RFC 6164).
func NotHost(p netip.Prefix, a netip.Addr) string {
	if p.Bits() >= a.BitLen()-1 {
		return ""
	}
	switch {
	case a == p.Masked().Addr() && a.Is4():
		return "the address of the network " + p.Masked().String()
	case a == p.Masked().Addr():
		return "the subnet-router anycast address of " + p.Masked().String()
	case a.Is4() && a == broadcast(p):
		return "the broadcast address of " + p.Masked().String()
	}
	return ""
}

// broadcast returns the last address of an IPv4 network.
func broadcast(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for i := range b {
		b[i] |= byte(uint16(0xff) >> min(8, max(0, p.Bits()-8*i)))
	}
	return netip.AddrFrom4(b)
}

// NeverForwarded reports whether no packet for an address of p is ever
// forwarded.
func NeverForwarded(p netip.Prefix) bool {
	a, n := p.Addr(), p.Bits()
	if a.Is4() {
		b := a.As4()
		switch b[0] {
		case 0, 127:
			return n >= 8
		case 169:
			return b[1] == 254 && n >= 16
		}
		return b[0] >= 224 && n >= 3
	}
	b := a.As16()
	switch b[0] {
	case 0xff:
		return n >= 8
	case 0xfe:
		return b[1]&0xc0 == 0x80 && n >= 10
	}
	return n == 128 && (a.IsUnspecified() || a.IsLoopback())
}

// MAC parses an Ethernet address in the forms 0:d:b9:41:ca:3d,
// 00-0d-b9-41-ca-3d and 000d.b941.ca3d.
func MAC(s string) (net.HardwareAddr, string) {
	wrong := Quote(s) + " is not a MAC address, such as 00:0d:b9:41:ca:3d"
	sep, groups, digits := ":", 6, 2
	switch {
	case strings.Contains(s, "-"):
		sep = "-"
	case strings.Contains(s, "."):
		sep, groups, digits = ".", 3, 4
	}
	f := strings.Split(s, sep)
	if len(f) != groups {
		return nil, wrong
	}
	m := make(net.HardwareAddr, 0, 6)
	for _, g := range f {
		if len(g) == 0 || len(g) > digits || sep != ":" && len(g) < digits {
			return nil, wrong
		}
		n, err := strconv.ParseUint(g, 16, 16)
		if err != nil {
			return nil, wrong
		}
		if digits == 4 {
			m = append(m, byte(n>>8))
		}
		m = append(m, byte(n))
	}
	switch {
	case slices.Equal(m, net.HardwareAddr{0, 0, 0, 0, 0, 0}):
		return nil, Quote(s) + " is the zero MAC address, which no station has"
	case slices.Equal(m, net.HardwareAddr{255, 255, 255, 255, 255, 255}):
		return nil, Quote(s) + " is the broadcast MAC address, which no station has"
	case m[0]&1 != 0:
		return nil, Quote(s) + " is a multicast MAC address, which no station has"
	}
	return m, ""
}

// Longest names of devices: IFNAMSIZ of net/if.h and NETMAP_REQ_IFNAMSIZ of
// netmap.h, less the terminating zero.
const (
	MaxName       = 15
	maxNetmapName = 63
)

// CanonicalName returns the name by which a port is known.
func CanonicalName(s string) string { return strings.TrimPrefix(s, "netmap:") }

// NetmapOnly reports whether only netmap knows ports of this canonical name:
// those of VALE switches, and pipes.
func NetmapOnly(name string) bool {
	return strings.HasPrefix(name, "vale") && strings.Contains(name, ":") || strings.ContainsAny(name, "{}")
}

// PortName checks the canonical name of a device; driver is that of the line,
// empty if it names none.
func PortName(name, driver string) string {
	switch {
	case name == "":
		return "a port without a name"
	case strings.Contains(name, "/"):
		return fmt.Sprintf("%s has a slash, which no device's name has", Quote(name))
	case name == "." || name == "..":
		return Quote(name) + " is not a device's name"
	}
	for _, c := range name {
		if c <= ' ' || c >= 0x7f || strings.ContainsRune("\"'`\\;,$&|<>()[]!?=%", c) {
			return fmt.Sprintf("%s has %q, which no device's name has", Quote(name), c)
		}
	}
	base, most := name, MaxName
	if NetmapOnly(name) {
		most = maxNetmapName
		if i := strings.IndexAny(name, "{}"); i >= 0 {
			base = name[:i]
			if id := name[i+1:]; base == "" || id == "" || strings.ContainsAny(id, "{}.:") {
				return Quote(name) + " is not a pipe: its two ends are such as x{1 and x}1"
			}
		}
		if sw, port, ok := strings.Cut(base, ":"); ok && strings.HasPrefix(base, "vale") && (port == "" || strings.Contains(port, ":")) {
			return fmt.Sprintf("%s is not a port of a VALE switch, such as %s:p1", Quote(name), sw)
		}
	} else if strings.Contains(name, ":") {
		return Quote(name) + " has a colon, which only a port of a VALE switch has, such as vale0:p1"
	}
	if len(name) > most {
		return fmt.Sprintf("%s is longer than the %d bytes of a device's name", Quote(name), most)
	}
	if driver == "" || driver == "netmap" {
		if i := ringSuffix(base); i >= 0 {
			return fmt.Sprintf("%s picks rings of a device: nmfwd opens all rings of a port itself, write %s, or driver afxdp if the device is called so", Quote(name), base[:i]+name[len(base):])
		}
	}
	if i := strings.LastIndexByte(base, '.'); i > 0 {
		if id, wrong := Number(base[i+1:], 1, MaxVLAN); wrong == "" {
			return fmt.Sprintf("%s is a VLAN of a device, which cannot be opened itself: write vlan %d on %s", Quote(name), id, base[:i])
		}
	}
	return ""
}

// ringSuffix returns where in name the part begins that picks rings for
// nm_open(3), or -1.
func ringSuffix(name string) int {
	if i := strings.IndexAny(name, "^*@"); i > 0 {
		return i
	}
	if i := strings.LastIndexByte(name, '-'); i > 0 && AllDigits(name[i+1:]) {
		return i
	}
	return -1
}
