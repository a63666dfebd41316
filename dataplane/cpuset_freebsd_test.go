package dataplane

import "golang.org/x/sys/unix"

// Numbers of FreeBSD 12.1. It does not compile if ours differ.
var (
	_ = [1]struct{}{}[unix.SYS_CPUSET_GETAFFINITY-487]
	_ = [1]struct{}{}[unix.SYS_CPUSET_SETAFFINITY-488]
)
