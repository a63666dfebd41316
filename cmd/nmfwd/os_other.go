//go:build !linux

package main

import (
	"fmt"
	"net/netip"

	"nmfwd/cmd/nmfwd/report"
)

// tools has the words for commands that are suggested.
var tools = report.FreeBSD

const haveAFXDP = false

// addCommand returns the command that gives a device an address.
func addCommand(name string, a netip.Prefix) string {
	family := "inet"
	if a.Addr().Is6() {
		family = "inet6"
	}
	return fmt.Sprintf("ifconfig %s %s %v alias", name, family, a)
}

// vlanCommand returns the command that makes an interface for a VLAN on a device.
func vlanCommand(device, name string, id int) string {
	return fmt.Sprintf("ifconfig %s create vlan %d vlandev %s", name, id, device)
}

// kernelSetting is for AF_XDP, which is Linux's.
func kernelSetting(family, name, parameter string) int { return 0 }
