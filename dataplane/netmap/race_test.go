//go:build race

package netmap_test

const raceEnabled = true
