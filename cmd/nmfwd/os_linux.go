package main

import (
	"fmt"
	"net/netip"

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
