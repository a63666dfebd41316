//go:build !linux

package neighbors

import (
	"errors"
	"fmt"

	"nmfwd/neigh"
)

// A Table follows the system's table: on Linux.
type Table struct{ *news }

// Open returns an error that wraps errors.ErrUnsupported.
func Open(map[string]uint16, func(string)) (*Table, error) {
	return nil, fmt.Errorf("neighbors: Linux only: %w", errors.ErrUnsupported)
}

// Close does nothing.
func (t *Table) Close() error { return nil }

// Ready receives a value when there is something for Take.
func (t *Table) Ready() <-chan struct{} { return t.ready }

// Take calls f for what is new since the last call.
func (t *Table) Take(f func(neigh.Update)) { t.take(f) }

// Ask returns an error that wraps errors.ErrUnsupported.
func (t *Table) Ask(neigh.Key) error { return errors.ErrUnsupported }

// Sync returns an error that wraps errors.ErrUnsupported.
func (t *Table) Sync() error { return errors.ErrUnsupported }
