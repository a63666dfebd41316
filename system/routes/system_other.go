//go:build !linux && !freebsd

package routes

import (
	"errors"
	"fmt"
)

// openSystem returns an error that wraps errors.ErrUnsupported.
func openSystem() (system, error) {
	return nil, fmt.Errorf("not on this system: %w", errors.ErrUnsupported)
}
