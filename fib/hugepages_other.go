//go:build !linux && !freebsd

package fib

import (
	"errors"
	"fmt"
)

// adviseHuge does nothing.
func adviseHuge(b []byte, n int) {}

// HugePages returns why tables cannot lie in huge pages.
func HugePages() error { return fmt.Errorf("fib: huge pages: %w", errors.ErrUnsupported) }
