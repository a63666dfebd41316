//go:build !linux

package routes

import (
	"errors"
	"fmt"
)

// openSystem returns an error that wraps errors.ErrUnsupported.
func openSystem() (system, error) {
	return nil, fmt.Errorf("Linux only: %w", errors.ErrUnsupported)
}
