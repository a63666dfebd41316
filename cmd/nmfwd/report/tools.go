package report

import (
	"fmt"
	"slices"
	"strings"

	"nmfwd/system/nic"
)

// Tools write commands in the words of a system's own tools.
type Tools interface {
	// Settings gives settings of a port the values in s.
	Settings(port string, s []nic.Setting) string
	Up(port string) string
	MTU(port string, mtu int) string

	// NoPause switches pause frames off.
	NoPause(in *nic.Info) string

	// RXSlots makes the card's receive rings of n slots, "" where that is not
	// known to be possible.
	RXSlots(in *nic.Info, n int) string

	// Parameter sets a parameter of netmap's memory.
	Parameter(name string, v int) string

	// Kernel gives parameters of the kernel's IP values.
	Kernel(set []Parameter) string

	// Native says how the card gets a driver that supports netmap, "" where
	// nothing is known that helps.
	Native(in *nic.Info) string
}

// A Parameter is one of the kernel's IP, of an interface.
type Parameter struct {
	Format    string // of its name, with %s for the interface
	Interface string
	Value     int
}

// FreeBSD has the words of ifconfig(8), sysctl(8) and loader.conf(5).
var FreeBSD Tools = freeBSD{}

// Linux has the words of ethtool(8) and ip(8).
var Linux Tools = linux{}

type freeBSD struct{}

func (freeBSD) Settings(port string, s []nic.Setting) string {
	c := "ifconfig " + port
	for _, x := range s {
		if x.On {
			c += " " + x.Name
		} else {
			c += " -" + x.Name
		}
	}
	return c
}

func (freeBSD) Up(port string) string { return "ifconfig " + port + " up" }

func (freeBSD) MTU(port string, mtu int) string { return fmt.Sprintf("ifconfig %s mtu %d", port, mtu) }

// isCXGBE reports whether a driver is one of cxgbe(4), the Chelsio T4 to T6.
func isCXGBE(driver string) bool { return slices.Contains([]string{"cxgbe", "cxl", "cc"}, driver) }

// iflib reports whether a driver is made with iflib(4), which has the tunables.
func iflib(driver string) bool {
	return slices.Contains([]string{"em", "igb", "igc", "ix", "ixv", "ixl", "iavf", "ice", "bnxt", "vmx", "aq", "enic"}, driver)
}

func (freeBSD) NoPause(in *nic.Info) string {
	unit := fmt.Sprintf("dev.%s.%s", in.Driver, in.Unit)
	switch {
	case isCXGBE(in.Driver):
		return "sysctl " + unit + ".pause_settings=0"
	case slices.Contains([]string{"em", "igb", "ix", "ixl"}, in.Driver):
		return "sysctl " + unit + ".fc=0"
	}
	return fmt.Sprintf("ifconfig %s media autoselect -mediaopt flowcontrol", in.Name)
}

func (freeBSD) RXSlots(in *nic.Info, n int) string {
	switch {
	case isCXGBE(in.Driver), isCXGBE(strings.TrimPrefix(in.Driver, "v")):
		return fmt.Sprintf(`hw.cxgbe.qsize_rxq="%d" in /boot/loader.conf`, n)
	case iflib(in.Driver):
		return fmt.Sprintf(`dev.%s.%s.iflib.override_nrxds="%d" in /boot/loader.conf`, in.Driver, in.Unit, n)
	}
	return ""
}

func (freeBSD) Parameter(name string, v int) string {
	return fmt.Sprintf("sysctl dev.netmap.%s=%d", name, v)
}

// Kernel is not asked for: on FreeBSD all frames come by nmfwd.
func (freeBSD) Kernel([]Parameter) string { return "" }

func (freeBSD) Native(in *nic.Info) string {
	if !isCXGBE(in.Driver) {
		return ""
	}
	return fmt.Sprintf(`hw.cxgbe.num_vis="2" in /boot/loader.conf, and "port v%s" for "port %s": only the second virtual interface of a Chelsio port supports netmap`, in.Name, in.Name)
}

type linux struct{}

func (linux) Settings(port string, s []nic.Setting) string {
	c := "ethtool --features " + port
	for _, x := range s {
		c += " " + x.Name + " " + map[bool]string{true: "on", false: "off"}[x.On]
	}
	return c
}

func (linux) Up(port string) string { return "ip link set dev " + port + " up" }

func (linux) MTU(port string, mtu int) string {
	return fmt.Sprintf("ip link set dev %s mtu %d", port, mtu)
}

func (linux) NoPause(in *nic.Info) string {
	return "ethtool --pause " + in.Name + " autoneg off rx off tx off"
}

func (linux) RXSlots(in *nic.Info, n int) string {
	return fmt.Sprintf("ethtool --set-ring %s rx %d", in.Name, n)
}

func (linux) Parameter(name string, v int) string {
	return fmt.Sprintf("echo %d > /sys/module/netmap/parameters/%s", v, name)
}

func (linux) Kernel(set []Parameter) string {
	c := "sysctl"
	for _, p := range set {
		// Dots of a name are written as slashes, for those between names are dots.
		c += fmt.Sprintf(" "+p.Format+"=%d", strings.ReplaceAll(p.Interface, ".", "/"), p.Value)
	}
	return c
}

func (linux) Native(in *nic.Info) string { return "" }
