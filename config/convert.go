package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// The functions of this file turn arguments of route(8), ifconfig(8), arp(8)
// and ndp(8) into lines of routes.conf, for ImportRC and for messages about
// lines that were written in their manner.

// convert returns how a line in the manner of another tool is written in
// routes.conf, and the first word that is none of the language, -1 if there is
// none or nothing can be said of the line. The error is why it cannot be
// converted.
func convert(words []word) (at int, line string, err error) {
	args := make([]string, len(words))
	for i := range words {
		args[i] = words[i].s
	}
	at = slices.IndexFunc(args, func(s string) bool { return foreign[s] || dashed(s) })
	mask := at < 0 // an address and a mask, or what looks like one
	if mask {
		at = slices.IndexFunc(args, func(s string) bool {
			_, m, _ := strings.Cut(s, "/")
			_, slash := maskLength(m)
			bits, bare := maskLength(s)
			return slash || bare && bits > 0
		})
		if at < 0 {
			return -1, "", nil
		}
	}
	ok := true
	switch args[0] {
	case "route":
		line, err = routeLine(args[1:], false)
	case "arp", "ndp":
		line, err = stationLine(args[0], slices.DeleteFunc(args[1:], dashed))
	case "port":
		line, ok = portLine(args[1:])
	case "vlan":
		line, ok = vlanLine(args)
	default:
		ok = false
	}
	if !ok || mask && err != nil {
		return -1, "", nil
	}
	return at, line, err
}

// foreign are words of the other tools without a dash that this language has
// not.
var foreign = map[string]bool{
	"add": true, "change": true, "gw": true, "dev": true, "gateway": true, "netmask": true, "mask": true,
	"prefixlen": true, "inet": true, "inet6": true, "up": true, "ether": true, "lladdr": true, "link": true,
	"alias": true, "broadcast": true, "vlandev": true, "vlanpcp": true, "permanent": true,
	"DHCP": true, "SYNCDHCP": true, "NOSYNCDHCP": true,
}

// dashed reports whether s is a flag such as -net.
func dashed(s string) bool {
	return len(s) > 1 && s[0] == '-' && (s[1] < '0' || s[1] > '9')
}

// portLine converts the words behind "port", in which those of ifconfig(8) and
// of this language may be mixed.
func portLine(args []string) (line string, ok bool) {
	if len(args) == 0 {
		return "", false
	}
	var f ifconfig
	line = "port " + args[0]
	var own, rest []string
	for i := 1; i < len(args); i++ {
		if slices.Contains(portWords, args[i]) && args[i] != "mtu" && i+1 < len(args) {
			own = append(own, args[i], args[i+1])
			i++
		} else {
			rest = append(rest, args[i])
		}
	}
	f.parse(rest)
	if f.wrong != nil || f.tag != "" {
		return "", false
	}
	line += f.settings()
	if own != nil {
		line += " " + strings.Join(own, " ")
	}
	return line, true
}

// vlanLine converts "vlan ID vlandev NAME" and what follows.
func vlanLine(args []string) (line string, ok bool) {
	var f ifconfig
	f.parse(args)
	if f.wrong != nil || f.tag == "" || f.dev == "" || f.mac != "" {
		return "", false
	}
	return f.vlan(f.dev), true
}

// stationLine converts the address and MAC of a static neighbor.
func stationLine(kind string, args []string) (string, error) {
	if n := len(args); n == 3 && args[2] == "permanent" {
		args = args[:2]
	}
	if len(args) != 2 {
		return "", fmt.Errorf("%d words instead of an address and a MAC address", len(args))
	}
	host, zone, zoned := strings.Cut(args[0], "%")
	a, wrong := address(host)
	if wrong != "" {
		return "", errors.New(wrong)
	}
	m, wrong := macAddress(args[1])
	if wrong != "" {
		return "", errors.New(wrong)
	}
	line := fmt.Sprintf("%s %s %s", kind, a, m)
	if zoned {
		line += " on " + zone
	}
	return line, nil
}

// Flags of route(8) without effect here, alone and with a value.
var (
	routeFlags  = []string{"-static", "-nostatic", "-sticky", "-nostick", "-cloning", "-xresolve", "-llinfo", "-proto1", "-proto2", "-n", "-q", "-v", "-t", "add", "change"}
	routeValues = []string{"-expire", "-hopcount", "-recvpipe", "-sendpipe", "-ssthresh", "-rtt", "-rttvar", "-weight", "-lockmtu", "-ifa", "metric"}
)

// routeLine converts the arguments of "route add" of FreeBSD, or of Linux.
// IPv6 says that the destination is one of that family if its form does not
// tell. Destinations without a length are taken as route(8) takes them, except
// where it would guess the class of a network: that is an error.
func routeLine(args []string, ipv6 bool) (string, error) {
	var place, gw, port, mask, length, mtu string
	var net, host, iface bool
	kind := ""
	var positional []string
	for i := 0; i < len(args); i++ {
		var value *string
		switch a := args[i]; a {
		case "-net":
			net = true
		case "-host":
			host = true
		case "-inet", "-4":
			ipv6 = false
		case "-inet6", "-6":
			ipv6 = true
		case "-interface", "-iface":
			iface = true
		case "-blackhole", "blackhole":
			kind = "blackhole"
		case "-reject", "reject":
			kind = "reject"
		case "-netmask", "netmask", "mask":
			value = &mask
		case "-prefixlen", "prefixlen":
			value = &length
		case "-gateway", "gateway", "gw", "via":
			value = &gw
		case "-ifp", "dev", "on":
			value = &port
		case "-mtu", "mtu":
			value = &mtu
		case "-fib":
			var fib string
			value = &fib
			if i+1 < len(args) && args[i+1] != "0" {
				return "", fmt.Errorf("routing table %s: there is only table 0", quote(args[i+1]))
			}
		default:
			switch {
			case slices.Contains(routeFlags, a):
			case slices.Contains(routeValues, a):
				value = new(string)
			case dashed(a):
				return "", fmt.Errorf("unknown flag %s", quote(a))
			default:
				positional = append(positional, a)
			}
		}
		if value != nil {
			if i+1 == len(args) {
				return "", fmt.Errorf("%s without a value", args[i])
			}
			i++
			*value = args[i]
		}
	}
	// DEST [GATEWAY [MASK]], or DEST MASK GATEWAY as routers have it.
	if len(positional) == 3 {
		if bits, ok := maskLength(positional[1]); ok && bits > 0 {
			positional[1], positional[2] = positional[2], positional[1]
		}
	}
	for _, s := range positional {
		switch {
		case place == "":
			place = s
		case gw == "":
			gw = s
		case mask == "" && length == "":
			mask = s
		default:
			return "", fmt.Errorf("%s is one word too many", quote(s))
		}
	}
	if place == "" {
		return "", errors.New("no destination")
	}
	dst, err := destination(place, mask, length, net, host, ipv6)
	if err != nil {
		return "", err
	}
	line := "route " + dst.String()
	if dst.Bits() == 0 {
		line = "route default"
	}
	switch {
	case kind != "":
		if dst.Bits() == 0 {
			line = "route " + dst.String()
		}
		line += " " + kind
	case gw == "" && port == "":
		return "", errors.New("no gateway")
	case gw == "" || iface:
		if iface && gw != "" {
			port = gw
		}
		if _, err := netip.ParseAddr(port); err == nil {
			return "", fmt.Errorf("%s is an address where a port is needed", quote(port))
		}
		line = "route " + dst.String() + " on " + port
	default:
		host, zone, zoned := strings.Cut(gw, "%")
		a, wrong := address(host)
		if wrong != "" {
			return "", errors.New(wrong)
		}
		line += " via " + a.String()
		if zoned {
			line += "%" + zone
		}
		if port != "" {
			line += " on " + port
		}
	}
	if mtu != "" && kind == "" {
		line += " mtu " + mtu
	}
	return line, nil
}

// destination returns the network that route(8) understands.
func destination(s, mask, length string, net, host, ipv6 bool) (netip.Prefix, error) {
	if s == "default" {
		if ipv6 {
			return defaultV6, nil
		}
		return defaultV4, nil
	}
	if a, l, ok := strings.Cut(s, "/"); ok {
		s, length = a, l
	}
	full := s
	if o, ok := octets(s); (ok || allDigits(s)) && len(o) < 4 && (mask != "" || length != "") {
		full += strings.Repeat(".0", 4-max(len(o), 1))
	}
	a, wrong := address(full)
	if wrong != "" {
		return netip.Prefix{}, errors.New(wrong)
	}
	bits := -1
	switch {
	case mask != "":
		n, ok := maskLength(mask)
		if !ok || a.Is6() {
			return netip.Prefix{}, fmt.Errorf("%s is not a mask", quote(mask))
		}
		bits = n
	case length != "":
		if n, ok := maskLength(length); ok && a.Is4() {
			bits = n
			break
		}
		n, wrong := number(length, 0, a.BitLen())
		if wrong != "" {
			return netip.Prefix{}, errors.New("the prefix length " + wrong)
		}
		bits = n
	case host:
		bits = a.BitLen()
	case a.IsUnspecified():
		bits = 0
	case a.Is6():
		bits = 128
		if b := a.As16(); [8]byte(b[8:]) == [8]byte{} {
			bits = 64
		}
	case net || a.As4()[3] == 0:
		return netip.Prefix{}, fmt.Errorf("%s has no prefix length", quote(s))
	default:
		bits = 32
	}
	return a.Prefix(bits)
}

// An ifconfig is what arguments of ifconfig(8) set.
type ifconfig struct {
	addrs  []netip.Prefix
	kernel bool // addresses come from the network
	mtu    string
	mac    string
	tag    string // VLAN ID
	dev    string // device of the VLAN
	pcp    string
	wrong  []string // what has no equivalent

	last netip.Addr // address whose length may follow
}

// Words of ifconfig(8) and of ifconfig_ variables without effect here: a word
// with a dash has none either.
var (
	ifconfigFlags = []string{"up", "alias", "add", "polling", "promisc", "debug", "link0", "link1", "link2",
		"inet", "inet6", "auto_linklocal", "no_dad", "no_radr", "no_prefer_iface", "ifdisabled", "nud", "performnud", "deprecated", "autoconf",
		"rxcsum", "rxcsum6", "txcsum", "txcsum6", "tso", "tso4", "tso6", "lro", "toe", "netmap",
		"vlanmtu", "vlanhwtag", "vlanhwfilter", "vlanhwcsum", "vlanhwtso", "wol", "wol_ucast", "wol_mcast", "wol_magic", "NOAUTO"}
	ifconfigValues = []string{"broadcast", "media", "mediaopt", "mode", "instance", "inst", "metric", "description", "descr", "group", "pltime", "vltime", "vlanproto"}
)

// parse adds what args say.
func (f *ifconfig) parse(args []string) {
	if slices.Contains(args, "vhid") {
		f.wrong = append(f.wrong, "an address of CARP: where this router has to answer for it, write it on the port line with vmac 00:00:5e:00:01:XX, XX being the vhid")
		return
	}
	for i := 0; i < len(args); i++ {
		var value *string
		var drop string
		switch a := args[i]; a {
		case "netmask", "prefixlen":
			value = &drop
		case "mtu":
			value = &f.mtu
		case "ether", "link", "lladdr", "hwether":
			value = &f.mac
		case "vlan":
			value = &f.tag
		case "vlandev":
			value = &f.dev
		case "vlanpcp":
			value = &f.pcp
		case "DHCP", "SYNCDHCP", "NOSYNCDHCP", "dhcp", "syncdhcp", "accept_rtadv":
			f.kernel = true
		case "fib":
			if i++; i < len(args) && args[i] != "0" {
				f.wrong = append(f.wrong, fmt.Sprintf("routing table %s: there is only table 0", quote(args[i])))
			}
		default:
			switch {
			case dashed(a) || slices.Contains(ifconfigFlags, a):
			case slices.Contains(ifconfigValues, a):
				value = &drop
			default:
				if bits, ok := maskLength(a); ok && bits > 0 && f.last.Is4() { // ADDRESS MASK
					f.length("netmask", a)
				} else {
					f.address(a)
				}
			}
		}
		if value == nil {
			continue
		}
		key := args[i]
		if i++; i == len(args) {
			f.wrong = append(f.wrong, key+" without a value")
			break
		}
		*value = args[i]
		switch key {
		case "netmask", "prefixlen":
			f.length(key, drop)
		case "ether", "link", "lladdr", "hwether":
			m, wrong := macAddress(f.mac)
			if f.mac = m.String(); wrong != "" {
				f.wrong = append(f.wrong, wrong)
			}
		case "vlanproto":
			if drop != "802.1q" && drop != "802.1Q" {
				f.wrong = append(f.wrong, "VLANs of "+quote(drop))
			}
		}
	}
	f.end()
}

// address adds an address, possibly with its length; the last number may be a
// range, as in 192.0.2.5-23/24.
func (f *ifconfig) address(s string) {
	f.end()
	host, length, sized := strings.Cut(s, "/")
	first, to, ranged := strings.Cut(host, "-")
	if at := strings.LastIndexByte(first, '%'); at >= 0 {
		first = first[:at]
	}
	a, wrong := address(first)
	if wrong != "" {
		f.wrong = append(f.wrong, "unknown word "+quote(s))
		return
	}
	f.last = a
	if sized {
		f.length("prefixlen", length)
	}
	if !ranged {
		return
	}
	n, wrong := number(to, 0, 255)
	if wrong != "" || a.Is6() || !sized {
		f.wrong = append(f.wrong, "the range "+quote(s))
		return
	}
	// The others of a range have no network of their own.
	for b := a.As4(); int(b[3]) < n; {
		b[3]++
		f.addrs = append(f.addrs, hostPrefix(netip.AddrFrom4(b)))
	}
}

// length gives the last address its length.
func (f *ifconfig) length(key, s string) {
	a := f.last
	f.last = netip.Addr{}
	if !a.IsValid() {
		f.wrong = append(f.wrong, fmt.Sprintf("%s %s without an address", key, quote(s)))
		return
	}
	bits, ok := maskLength(s)
	if !ok || a.Is6() {
		var wrong string
		if bits, wrong = number(s, 0, a.BitLen()); wrong != "" || key == "netmask" {
			f.wrong = append(f.wrong, fmt.Sprintf("%s %s of %s", key, quote(s), a))
			return
		}
	}
	f.addrs = append(f.addrs, netip.PrefixFrom(a, bits))
}

// end settles an address that had no length.
func (f *ifconfig) end() {
	switch a := f.last; {
	case !a.IsValid():
	case a.Is6():
		f.length("prefixlen", "64")
	default:
		f.last = netip.Addr{}
		f.wrong = append(f.wrong, fmt.Sprintf("%s has no netmask", a))
	}
}

// settings returns what follows the name on a port line, with a blank before
// each word.
func (f *ifconfig) settings() string {
	var b strings.Builder
	for i, a := range f.addrs {
		if !slices.Contains(f.addrs[:i], a) {
			b.WriteString(" " + a.String())
		}
	}
	if f.kernel {
		b.WriteString(" addr kernel")
	}
	if f.mtu != "" {
		b.WriteString(" mtu " + f.mtu)
	}
	if f.mac != "" {
		b.WriteString(" mac " + f.mac)
	}
	return b.String()
}

// vlan returns the vlan line on a device.
func (f *ifconfig) vlan(dev string) string {
	g := *f
	g.mac = ""
	line := fmt.Sprintf("vlan %s on %s%s", f.tag, dev, g.settings())
	if n, err := strconv.Atoi(f.pcp); err == nil && n > 0 {
		line += " pcp " + f.pcp
	}
	return line
}
