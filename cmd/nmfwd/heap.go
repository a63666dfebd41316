package main

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
)

// How much garbage there may be in percent of what is in use, as GOGC says. A
// router is sized for what its tables take, and makes little garbage but for a
// reload: then both tables are there at once, and a few collections more are the
// price of a lower peak.
const (
	restPercent   = 20
	reloadPercent = 10
)

// collect sets how much garbage there may be, unless the environment does.
func collect(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// giveBack gives the system the memory that a start or a reload needed for a
// while, when that has ended.
func (d *daemon) giveBack(ctx context.Context) {
	runtime.GC() // what was in use before, and what both were made of
	if d.router.Control.Settle(ctx) == nil {
		debug.FreeOSMemory()
	}
	collect(restPercent)
}
