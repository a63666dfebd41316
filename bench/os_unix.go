//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// ends are the signals that end a run.
var ends = []os.Signal{unix.SIGINT, unix.SIGTERM}
