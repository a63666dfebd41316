package netmap

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
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

func (system) SetBufSize(size int) error {
	for _, name := range []string{"buf_size", "priv_buf_size"} {
		if err := os.WriteFile(parameters+name, []byte(strconv.Itoa(size)), 0); err != nil {
			return err
		}
	}
	return nil
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
