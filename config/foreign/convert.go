package foreign

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"nmfwd/config/syntax"
)

// Convert returns how a line in the manner of another tool is written in
// routes.conf, and the first word that is none of the language, -1 if there is
// none or nothing can be said of the line. The error is why it cannot be
// converted.
func Convert(args []string) (at int, line string, err error) {
	at = slices.IndexFunc(args, func(s string) bool { return foreign[s] || dashed(s) })
	mask := at < 0 // an address and a mask, or what looks like one
	if mask {
		at = slices.IndexFunc(args, func(s string) bool {
			_, m, _ := strings.Cut(s, "/")
			_, slash := syntax.MaskLength(m)
			bits, bare := syntax.MaskLength(s)
			return slash || bare && bits > 0
		})
		if at < 0 {
			return -1, "", nil
		}
	}
	ok := true
	switch args[0] {
	case "route":
		line, err = RouteLine(args[1:], false)
	case "arp", "ndp":
		line, err = StationLine(args[0], slices.DeleteFunc(args[1:], dashed))
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
	var f Ifconfig
	line = "port " + args[0]
	var own, rest []string
	for i := 1; i < len(args); i++ {
		if slices.Contains(syntax.PortWords, args[i]) && args[i] != "mtu" && i+1 < len(args) {
			own = append(own, args[i], args[i+1])
			i++
		} else {
			rest = append(rest, args[i])
		}
	}
	f.Parse(rest)
	if f.Wrong != nil || f.Tag != "" {
		return "", false
	}
	line += f.Settings()
	if own != nil {
		line += " " + strings.Join(own, " ")
	}
	return line, true
}

// vlanLine converts "vlan ID vlandev NAME" and what follows.
func vlanLine(args []string) (line string, ok bool) {
	var f Ifconfig
	f.Parse(args)
	if f.Wrong != nil || f.Tag == "" || f.Dev == "" || f.MAC != "" {
		return "", false
	}
	return f.VLAN(f.Dev), true
}

// StationLine converts the address and MAC of a static neighbor.
func StationLine(kind string, args []string) (string, error) {
	if n := len(args); n == 3 && args[2] == "permanent" {
		args = args[:2]
	}
	if len(args) != 2 {
		return "", fmt.Errorf("%d words instead of an address and a MAC address", len(args))
	}
	host, zone, zoned := strings.Cut(args[0], "%")
	a, wrong := syntax.Address(host)
	if wrong != "" {
		return "", errors.New(wrong)
	}
	m, wrong := syntax.MAC(args[1])
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

// RouteLine converts the arguments of "route add" of FreeBSD, or of Linux.
// IPv6 says that the destination is one of that family if its form does not
// tell. Destinations without a length are taken as route(8) takes them, except
// where it would guess the class of a network: that is an error.
func RouteLine(args []string, ipv6 bool) (string, error) {
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
				return "", fmt.Errorf("routing table %s: there is only table 0", syntax.Quote(args[i+1]))
			}
		default:
			switch {
			case slices.Contains(routeFlags, a):
			case slices.Contains(routeValues, a):
				value = new(string)
			case dashed(a):
				return "", fmt.Errorf("unknown flag %s", syntax.Quote(a))
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
		if bits, ok := syntax.MaskLength(positional[1]); ok && bits > 0 {
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
			return "", fmt.Errorf("%s is one word too many", syntax.Quote(s))
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
			return "", fmt.Errorf("%s is an address where a port is needed", syntax.Quote(port))
		}
		line = "route " + dst.String() + " on " + port
	default:
		host, zone, zoned := strings.Cut(gw, "%")
		a, wrong := syntax.Address(host)
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
			return syntax.DefaultV6, nil
		}
		return syntax.DefaultV4, nil
	}
	if a, l, ok := strings.Cut(s, "/"); ok {
		s, length = a, l
	}
	full := s
	if o, ok := syntax.Octets(s); (ok || syntax.AllDigits(s)) && len(o) < 4 && (mask != "" || length != "") {
		full += strings.Repeat(".0", 4-max(len(o), 1))
	}
	a, wrong := syntax.Address(full)
	if wrong != "" {
		return netip.Prefix{}, errors.New(wrong)
	}
	bits := -1
	switch {
	case mask != "":
		n, ok := syntax.MaskLength(mask)
		if !ok || a.Is6() {
			return netip.Prefix{}, fmt.Errorf("%s is not a mask", syntax.Quote(mask))
		}
		bits = n
	case length != "":
		if n, ok := syntax.MaskLength(length); ok && a.Is4() {
			bits = n
			break
		}
		n, wrong := syntax.Number(length, 0, a.BitLen())
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
		return netip.Prefix{}, fmt.Errorf("%s has no prefix length", syntax.Quote(s))
	default:
		bits = 32
	}
	return a.Prefix(bits)
}

// An Ifconfig is what arguments of ifconfig(8) set.
type Ifconfig struct {
	Addrs  []netip.Prefix
	Kernel bool // addresses come from the network
	MTU    string
	MAC    string
	Tag    string // VLAN ID
	Dev    string // device of the VLAN
	PCP    string
	Wrong  []string // what has no equivalent

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

// Parse adds what args say.
func (f *Ifconfig) Parse(args []string) {
	if slices.Contains(args, "vhid") {
		f.Wrong = append(f.Wrong, "an address of CARP: where this router has to answer for it, write it on the port line with vmac 00:00:5e:00:01:XX, XX being the vhid")
		return
	}
	for i := 0; i < len(args); i++ {
		var value *string
		var drop string
		switch a := args[i]; a {
		case "netmask", "prefixlen":
			value = &drop
		case "mtu":
			value = &f.MTU
		case "ether", "link", "lladdr", "hwether":
			value = &f.MAC
		case "vlan":
			value = &f.Tag
		case "vlandev":
			value = &f.Dev
		case "vlanpcp":
			value = &f.PCP
		case "DHCP", "SYNCDHCP", "NOSYNCDHCP", "dhcp", "syncdhcp", "accept_rtadv":
			f.Kernel = true
		case "fib":
			if i++; i < len(args) && args[i] != "0" {
				f.Wrong = append(f.Wrong, fmt.Sprintf("routing table %s: there is only table 0", syntax.Quote(args[i])))
			}
		default:
			switch {
			case dashed(a) || slices.Contains(ifconfigFlags, a):
			case slices.Contains(ifconfigValues, a):
				value = &drop
			default:
				if bits, ok := syntax.MaskLength(a); ok && bits > 0 && f.last.Is4() { // ADDRESS MASK
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
			f.Wrong = append(f.Wrong, key+" without a value")
			break
		}
		*value = args[i]
		switch key {
		case "netmask", "prefixlen":
			f.length(key, drop)
		case "ether", "link", "lladdr", "hwether":
			m, wrong := syntax.MAC(f.MAC)
			if f.MAC = m.String(); wrong != "" {
				f.Wrong = append(f.Wrong, wrong)
			}
		case "vlanproto":
			if drop != "802.1q" && drop != "802.1Q" {
				f.Wrong = append(f.Wrong, "VLANs of "+syntax.Quote(drop))
			}
		}
	}
	f.end()
}

// address adds an address, possibly with its length; the last number may be a
// range, as in 192.0.2.5-23/24.
func (f *Ifconfig) address(s string) {
	f.end()
	host, length, sized := strings.Cut(s, "/")
	first, to, ranged := strings.Cut(host, "-")
	if at := strings.LastIndexByte(first, '%'); at >= 0 {
		first = first[:at]
	}
	a, wrong := syntax.Address(first)
	if wrong != "" {
		f.Wrong = append(f.Wrong, "unknown word "+syntax.Quote(s))
		return
	}
	f.last = a
	if sized {
		f.length("prefixlen", length)
	}
	if !ranged {
		return
	}
	n, wrong := syntax.Number(to, 0, 255)
	if wrong != "" || a.Is6() || !sized {
		f.Wrong = append(f.Wrong, "the range "+syntax.Quote(s))
		return
	}
	// The others of a range have no network of their own.
	for b := a.As4(); int(b[3]) < n; {
		b[3]++
		f.Addrs = append(f.Addrs, syntax.HostPrefix(netip.AddrFrom4(b)))
	}
}

// length gives the last address its length.
func (f *Ifconfig) length(key, s string) {
	a := f.last
	f.last = netip.Addr{}
	if !a.IsValid() {
		f.Wrong = append(f.Wrong, fmt.Sprintf("%s %s without an address", key, syntax.Quote(s)))
		return
	}
	bits, ok := syntax.MaskLength(s)
	if !ok || a.Is6() {
		var wrong string
		if bits, wrong = syntax.Number(s, 0, a.BitLen()); wrong != "" || key == "netmask" {
			f.Wrong = append(f.Wrong, fmt.Sprintf("%s %s of %s", key, syntax.Quote(s), a))
			return
		}
	}
	f.Addrs = append(f.Addrs, netip.PrefixFrom(a, bits))
}

// end settles an address that had no length.
func (f *Ifconfig) end() {
	switch a := f.last; {
	case !a.IsValid():
	case a.Is6():
		f.length("prefixlen", "64")
	default:
		f.last = netip.Addr{}
		f.Wrong = append(f.Wrong, fmt.Sprintf("%s has no netmask", a))
	}
}

// Settings returns what follows the name on a port line, with a blank before
// each word.
func (f *Ifconfig) Settings() string {
	var b strings.Builder
	for i, a := range f.Addrs {
		if !slices.Contains(f.Addrs[:i], a) {
			b.WriteString(" " + a.String())
		}
	}
	if f.Kernel {
		b.WriteString(" addr kernel")
	}
	if f.MTU != "" {
		b.WriteString(" mtu " + f.MTU)
	}
	if f.MAC != "" {
		b.WriteString(" mac " + f.MAC)
	}
	return b.String()
}

// VLAN returns the vlan line on a device.
func (f *Ifconfig) VLAN(dev string) string {
	g := *f
	g.MAC = ""
	line := fmt.Sprintf("vlan %s on %s%s", f.Tag, dev, g.Settings())
	if n, err := strconv.Atoi(f.PCP); err == nil && n > 0 {
		line += " pcp " + f.PCP
	}
	return line
}
