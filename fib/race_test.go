//go:build race

package fib

// scaled returns how much a test does: less under the race detector, which
// makes the walks over whole tables slow.
func scaled(_, race int) int { return race }
