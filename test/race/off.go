//go:build !race

// Package race tells tests whether the race detector, which makes them slow and
// allocates, watches them.
package race

// Enabled reports whether the race detector is on.
const Enabled = false
