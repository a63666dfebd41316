package netmap

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane/netmap/abi"
)

// A kind is what stands behind a port.
type kind int

const (
	nic  kind = iota
	vale      // a port of a VALE switch, made when it is opened
	pipe      // an end of a pipe
)

var (
	valeName = regexp.MustCompile(`^vale[^:{}]*:[^:{}]+$`)
	pipeName = regexp.MustCompile(`^[^{}]+[{}][0-9]+$`)
	subset   = regexp.MustCompile(`([\^*@/].*|-[0-9]+)$`)
	vlanName = regexp.MustCompile(`^(.+)\.([0-9]{1,4})$`)
)

// parseName returns the name that the kernel knows a port by, and its kind.
// Names that libnetmap reads more out of are refused, unless exists says that
// there is such an interface.
func parseName(s string, exists func(string) bool) (string, kind, error) {
	name := strings.TrimPrefix(s, "netmap:")
	limit := abi.IfNameSize - 1
	k := nic
	switch {
	case valeName.MatchString(name):
		k = vale
	case pipeName.MatchString(name):
		k = pipe
	}
	switch {
	case name == "":
		return "", 0, fmt.Errorf("netmap: port %q: no name", s)
	case len(name) > limit:
		return "", 0, fmt.Errorf("netmap: port %s: a name has at most %d characters", s, limit)
	case k != nic:
		return name, k, nil
	case strings.HasPrefix(name, "vale") && strings.Contains(name, ":"), strings.ContainsAny(name, "{}"):
		return "", 0, fmt.Errorf("netmap: port %s: not a VALE port such as vale0:p1 nor a pipe such as x{1 or x}1", s)
	}
	if m := vlanName.FindStringSubmatch(name); m != nil {
		return "", 0, fmt.Errorf("netmap: port %s: a VLAN cannot be opened by itself: use \"port %s\" and \"vlan %s on %s\"", s, m[1], m[2], m[1])
	}
	if base := subset.ReplaceAllString(name, ""); base != name && !exists(name) {
		return "", 0, fmt.Errorf("netmap: port %s: rings cannot be picked, nmfwd manages them itself: use \"port %s\"", s, base)
	}
	return name, nic, nil
}

// nameMAC derives a locally administered address from the name of a port that
// has none of its own: the same name always gives the same address.
func nameMAC(name string) net.HardwareAddr {
	h := fnv.New64a()
	h.Write([]byte(name))
	b := h.Sum(nil)
	return net.HardwareAddr{0x02, b[1], b[2], b[3], b[4], b[5]}
}

// noInterface turns the error of package net for a name it does not know into
// one that errors.Is knows.
func noInterface(err error) error {
	var op *net.OpError
	var call *os.SyscallError
	if errors.As(err, &op) && !errors.As(op.Err, &call) {
		return fmt.Errorf("there is no such interface: %w", unix.ENXIO)
	}
	return err
}
