//go:build !linux && !freebsd

package netmap

import (
	"errors"
	"fmt"

	"nmfwd/dataplane/netmap/abi"
)

const (
	loadCommand = "none"
	upCommand   = "ifconfig %s up"
)

func setParameter(name string, v int) string { return fmt.Sprintf("%s=%d", name, v) }

var errUnsupported = fmt.Errorf("netmap: %w on this system", errors.ErrUnsupported)

type system struct{}

// System returns a kernel without netmap.
func System() Kernel { return system{} }

func (system) Open() (int, error)                        { return -1, errUnsupported }
func (system) Control(int, *abi.Header) error            { return errUnsupported }
func (system) TXSync(int) error                          { return errUnsupported }
func (system) RXSync(int) error                          { return errUnsupported }
func (system) Map(int, int) ([]byte, error)              { return nil, errUnsupported }
func (system) Unmap([]byte) error                        { return errUnsupported }
func (system) Close(int) error                           { return errUnsupported }
func (system) Pollable() bool                            { return false }
func (system) SetBufSize(int) (func() error, error)      { return nil, errUnsupported }
func (system) Interface(string) (Interface, error)       { return Interface{}, errUnsupported }
func (system) Link(string) (up, carrier bool, err error) { return false, false, errUnsupported }
func (system) Links() (Links, error)                     { return nil, errUnsupported }
func (system) Received(string) (uint64, error)           { return 0, errUnsupported }
func (system) Users() string                             { return "" }
