package netmap

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane/netmap/abi"
)

// control performs one request about the port called name. The header is made
// anew for each call, for the kernel leaves marks in it. The address of body
// travels as a number, which neither the garbage collector nor vet sees: body
// is pinned meanwhile.
func control[T abi.Register | abi.PortInfo | abi.PoolsInfo](k Kernel, fd int, version, req uint16, name string, body *T) error {
	h := abi.Header{Version: version, ReqType: req}
	if len(name) >= len(h.Name) {
		return unix.ENAMETOOLONG
	}
	copy(h.Name[:], name)
	var p runtime.Pinner
	defer p.Unpin()
	p.Pin(body)
	h.Body = uint64(uintptr(unsafe.Pointer(body)))
	return k.Control(fd, &h)
}

// register binds fd to rings of the port called name. What the kernel answers
// is written to r.
func register(k Kernel, fd int, name string, r *abi.Register) error {
	return control(k, fd, abi.API, abi.ReqRegister, name, r)
}

// portInfo asks what the port called name is, without binding fd.
func portInfo(k Kernel, fd int, name string) (abi.PortInfo, error) {
	var p abi.PortInfo
	err := control(k, fd, abi.API, abi.ReqPortInfo, name, &p)
	return p, err
}

// poolsInfo asks how the region of the port called name is divided.
func poolsInfo(k Kernel, fd int, name string, p *abi.PoolsInfo) error {
	return control(k, fd, abi.API, abi.ReqPools, name, p)
}

// noPort is the name of no interface, for it has characters that none has. A
// question about it shows what the kernel thinks of the version: a version it
// knows gets ENXIO, any other EINVAL.
const noPort = "no/such/port"

// checkVersion returns an error that wraps ErrVersion when the kernel does not
// know our version of the API. The kernel does not tell which it has, so the
// versions around ours are tried, once each.
func checkVersion(k Kernel, fd int) error {
	knows := func(v uint16) (bool, error) {
		err := control(k, fd, v, abi.ReqPortInfo, noPort, &abi.PortInfo{})
		return !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTTY), err
	}
	ok, err := knows(abi.API)
	if ok {
		return nil
	}
	for v := uint16(abi.API - 4); v < abi.API+32; v++ {
		if ok, _ := knows(v); ok {
			return fmt.Errorf("%w: the kernel's is %d, nmfwd's is %d: install the netmap module that nmfwd was made for, or a newer nmfwd (%w)", ErrVersion, v, abi.API, err)
		}
	}
	return fmt.Errorf("%w: the kernel's is older than %d: install a newer netmap module (%w)", ErrVersion, abi.API, err)
}
