//go:build !linux

package afxdp

import (
	"errors"
	"fmt"

	"nmfwd/dataplane"
)

var errOS = fmt.Errorf("afxdp: Linux only: %w", errors.ErrUnsupported)

// Probe returns an error that wraps errors.ErrUnsupported.
func Probe(string) (dataplane.Rings, error) { return dataplane.Rings{}, errOS }

// SetQueues returns an error that wraps errors.ErrUnsupported.
func SetQueues(string, int) error { return errOS }

// Open returns an error that wraps errors.ErrUnsupported.
func Open([]dataplane.PortConfig, Options) ([]*dataplane.Port, error) { return nil, errOS }
