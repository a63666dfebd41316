//go:build linux || freebsd

package netmap

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// socketLinks reads news of links from a socket of the system.
type socketLinks struct {
	f   *os.File
	buf [8192]byte
}

// newSocketLinks returns the news of s, a socket that does not block.
func newSocketLinks(s int) *socketLinks {
	return &socketLinks{f: os.NewFile(uintptr(s), "links")}
}

// Wait returns at a message about a link, or when messages were lost.
func (l *socketLinks) Wait() error {
	for {
		n, err := l.f.Read(l.buf[:])
		switch {
		case errors.Is(err, unix.ENOBUFS):
			return nil
		case err != nil:
			return err
		case aboutLink(l.buf[:n]):
			return nil
		}
	}
}

// Close ends Wait.
func (l *socketLinks) Close() error { return l.f.Close() }
