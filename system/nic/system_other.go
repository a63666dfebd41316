//go:build !linux && !freebsd

package nic

import (
	"errors"
	"fmt"
)

// Open returns an error that wraps errors.ErrUnsupported.
func Open() (System, error) { return nil, fmt.Errorf("nic: %w on this system", errors.ErrUnsupported) }
