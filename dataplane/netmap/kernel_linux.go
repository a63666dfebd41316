package netmap

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane/netmap/abi"
)

const (
	loadCommand = "modprobe netmap"
	upCommand   = "ip link set %s up"
	parameters  = "/sys/module/netmap/parameters/"
)

// setParameter returns the command that sets a parameter of netmap.
func setParameter(name string, v int) string {
	return fmt.Sprintf("%q", fmt.Sprintf("echo %d > %s%s", v, parameters, name))
}

func (system) SetBufSize(size int) (restore func() error, err error) {
	return swapParameters(size, func(name string) (int, error) {
		b, err := os.ReadFile(parameters + name)
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(string(b)))
	}, func(name string, v int) error {
		return os.WriteFile(parameters+name, []byte(strconv.Itoa(v)), 0)
	})
}

// Interface asks net and ethtool. A driver supports netmap itself when its
// module uses netmap's.
func (system) Interface(name string) (Interface, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return Interface{}, noInterface(err)
	}
	r := Interface{MAC: i.HardwareAddr, MTU: i.MTU, Up: i.Flags&net.FlagUp != 0}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return r, err
	}
	defer unix.Close(s)
	if d, err := unix.IoctlGetEthtoolDrvinfo(s, name); err == nil {
		r.Driver = unix.ByteSliceToString(d.Driver[:])
	}
	module := r.Driver
	if l, err := os.Readlink("/sys/class/net/" + name + "/device/driver/module"); err == nil {
		module = filepath.Base(l)
	}
	if module != "" {
		_, err = os.Stat("/sys/module/netmap/holders/" + strings.ReplaceAll(module, "-", "_"))
		r.Native = err == nil
	}
	return r, nil
}

func (system) Link(name string) (up, carrier bool, err error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, false, err
	}
	defer unix.Close(s)
	r, err := unix.NewIfreq(name)
	if err != nil {
		return false, false, err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, r); err != nil {
		return false, false, err
	}
	f := r.Uint16()
	return f&unix.IFF_UP != 0, f&unix.IFF_RUNNING != 0, nil
}

// Links listens to rtnetlink(7).
func (system) Links() (Links, error) {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(s, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK}); err != nil {
		unix.Close(s)
		return nil, err
	}
	return newSocketLinks(s), nil
}

// aboutLink reports whether a message of the socket that Links listens to is
// about a link: all of its group are.
func aboutLink([]byte) bool { return true }

// receiveCounters are the names that drivers give to the card's own counters of
// received frames (ethtool -S).
var receiveCounters = []string{"rx_packets", "rx_pkts_nic", "rx_packets_phy", "port.rx_unicast", "port.rx_broadcast", "port.rx_multicast"}

func (system) Received(name string) (uint64, error) {
	b, err := os.ReadFile("/sys/class/net/" + name + "/statistics/rx_packets")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0, err
	}
	counters, err := cardCounters(name) // not of all drivers
	if err == nil {
		for _, c := range receiveCounters {
			n += counters[c]
		}
	}
	return n, nil
}

// cardCounters returns the counters of a driver by their names, as ethtool -S
// does (structures ethtool_sset_info, ethtool_gstrings and ethtool_stats of
// linux/ethtool.h).
func cardCounters(name string) (map[string]uint64, error) {
	const (
		nameLen = 32 // ETH_GSTRING_LEN
		set     = 1  // ETH_SS_STATS
		most    = 1 << 16
	)
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(s)
	word := binary.NativeEndian
	info := make([]byte, 20)
	word.PutUint32(info, unix.ETHTOOL_GSSET_INFO)
	word.PutUint64(info[8:], 1<<set)
	if err := ethtool(s, name, info); err != nil {
		return nil, err
	}
	n := int(word.Uint32(info[16:]))
	if n > most {
		return nil, fmt.Errorf("%d counters", n)
	}
	names := make([]byte, 12+n*nameLen)
	word.PutUint32(names, unix.ETHTOOL_GSTRINGS)
	word.PutUint32(names[4:], set)
	word.PutUint32(names[8:], uint32(n))
	if err := ethtool(s, name, names); err != nil {
		return nil, err
	}
	values := make([]byte, 8+n*8)
	word.PutUint32(values, unix.ETHTOOL_GSTATS)
	word.PutUint32(values[4:], uint32(n))
	if err := ethtool(s, name, values); err != nil {
		return nil, err
	}
	c := make(map[string]uint64, n)
	for i := range n {
		c[unix.ByteSliceToString(names[12+i*nameLen:12+(i+1)*nameLen])] = word.Uint64(values[8+i*8:])
	}
	return c, nil
}

// Users looks for the device among the open files of all processes.
func (system) Users() string {
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	var users []string
	for _, f := range files {
		dir := filepath.Dir(filepath.Dir(f))
		pid := filepath.Base(dir)
		if l, err := os.Readlink(f); err != nil || l != abi.Device || pid == strconv.Itoa(os.Getpid()) {
			continue
		}
		name, _ := os.ReadFile(dir + "/comm")
		if u := fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), pid); !slices.Contains(users, u) {
			users = append(users, u)
		}
	}
	return strings.Join(users, ", ")
}
