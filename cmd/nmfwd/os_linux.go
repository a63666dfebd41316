package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"nmfwd/cmd/nmfwd/report"
)

// tools has the words for commands that are suggested.
var tools = report.Linux

// haveAFXDP says that ports without netmap are opened by AF_XDP.
const haveAFXDP = true

// addCommand returns the command that gives a device an address.
func addCommand(name string, a netip.Prefix) string {
	return fmt.Sprintf("ip address add %v dev %s", a, name)
}

// vlanCommand returns the command that makes an interface for a VLAN on a device.
func vlanCommand(device, name string, id int) string {
	return fmt.Sprintf("ip link add link %s name %s type vlan id %d", device, name, id)
}

// kernelSetting returns a parameter of the kernel's IP for an interface, 0 if it is
// not known.
func kernelSetting(family, name, parameter string) int {
	b, err := os.ReadFile(filepath.Join("/proc/sys/net", family, "conf", name, parameter))
	if err != nil {
		return 0 // a kernel without the family asks nothing and forwards nothing
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n
}
