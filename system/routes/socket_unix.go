//go:build linux || freebsd

package routes

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// waitReadable returns when a socket that does not block has something to read, or
// is closed.
func waitReadable(c syscall.RawConn) error {
	var err error
	rerr := c.Read(func(fd uintptr) bool {
		var n int
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
	if rerr != nil {
		return rerr
	}
	return os.NewSyscallError("poll", err)
}
