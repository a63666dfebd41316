package foreign

import "strings"

// Matters reports whether a variable of rc.conf(5) matters here.
func Matters(name string) bool {
	switch name {
	case "static_routes", "ipv6_static_routes", "static_arp_pairs", "static_ndp_pairs", "defaultrouter", "ipv6_defaultrouter":
		return true
	}
	for _, p := range []string{"route_", "ipv6_route_", "static_arp_", "static_ndp_", "ifconfig_", "ipv6_ifconfig_", "ipv4_addrs_", "ipv6_addrs_", "ipv6_prefix_", "vlans_", "create_args_", "defaultrouter_fib", "ipv6_defaultrouter_fib"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// Assignment splits NAME=, NAME+= or NAME-= from the beginning of s and returns
// the name, "" if s is none, the sign before "=", if any, and the rest.
func Assignment(s string) (name string, sign byte, rest string) {
	n := NameLength(s)
	i := n
	if i < len(s) && (s[i] == '+' || s[i] == '-') {
		sign = s[i]
		i++
	}
	if n == 0 || i >= len(s) || s[i] != '=' {
		return "", 0, ""
	}
	return s[:n], sign, s[i+1:]
}

// NameLength returns the length of the variable's name that s begins with.
func NameLength(s string) int {
	n := 0
	for n < len(s) && (s[n] == '_' || s[n] >= 'a' && s[n] <= 'z' || s[n] >= 'A' && s[n] <= 'Z' || n > 0 && s[n] >= '0' && s[n] <= '9') {
		n++
	}
	return n
}
