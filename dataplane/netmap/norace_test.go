//go:build !race

package netmap_test

const raceEnabled = false
