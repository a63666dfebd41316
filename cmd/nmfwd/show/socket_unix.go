//go:build unix

package show

import (
	"errors"
	"net"
	"syscall"
)

// isRefused reports whether there is a socket that nobody listens at.
func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// isNotSocket reports whether there is something else than a stream socket.
func isNotSocket(err error) bool {
	return errors.Is(err, syscall.ENOTSOCK) || errors.Is(err, syscall.EPROTOTYPE) || errors.Is(err, syscall.ENOTDIR)
}

// isGone reports whether the other end has closed.
func isGone(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// listen makes a socket that only its owner may use. The mask of the process is
// changed for that: a mode set afterwards would come too late for who connects
// before.
func listen(path string) (*net.UnixListener, error) {
	old := syscall.Umask(0o177)
	defer syscall.Umask(old)
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}
