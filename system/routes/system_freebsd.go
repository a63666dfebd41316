package routes

import (
	"errors"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/net/route"
	"golang.org/x/sys/unix"
)

// buffer is the size in bytes of the socket's buffer for changes, as far as
// kern.ipc.maxsockbuf grants it.
const buffer = 1 << 21

// compareEvery is how often the routes are compared where the system does not say
// that changes were lost.
const compareEvery = 10 * time.Second

// A rtsock is the system as route(4) and sysctl(3) show it.
type rtsock struct {
	changes *os.File // not blocking
	conn    syscall.RawConn
	reader  rtsockReader
	tells   bool // when changes were lost: SO_RERROR, of FreeBSD 14
}

func openSystem() (_ system, err error) {
	fd, err := unix.Socket(unix.AF_ROUTE, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.AF_UNSPEC)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &rtsock{changes: os.NewFile(uintptr(fd), "route"), reader: rtsockReader{word: strconv.IntSize / 8}}
	if s.conn, err = s.changes.SyscallConn(); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	for size := buffer; size > 1<<16; size /= 2 {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, size) == nil {
			break
		}
	}
	s.tells = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RERROR, 1) == nil
	return s, nil
}

func (s *rtsock) stop() error { return s.changes.Close() }

func (s *rtsock) close() error { return nil }

func (s *rtsock) wait() error { return waitReadable(s.conn) }

func (s *rtsock) compare() time.Duration {
	if s.tells {
		return 0
	}
	return compareEvery
}

// read reads a message. Where the buffer is full the system drops further ones:
// that shows as ENOBUFS, if at all, when all that the buffer holds has been read.
func (s *rtsock) read(b []byte) (n int, err error) {
	rerr := s.conn.Control(func(fd uintptr) {
		for err = unix.EINTR; err == unix.EINTR; {
			n, err = unix.Read(int(fd), b)
		}
	})
	switch {
	case rerr != nil:
		return 0, rerr
	case err == unix.EAGAIN:
		return 0, errNothing
	case err == unix.ENOBUFS:
		return 0, errLost
	}
	return n, os.NewSyscallError("read", err)
}

func (s *rtsock) list(do func([]byte) error) error {
	for _, kind := range []route.RIBType{route.RIBTypeInterface, route.RIBTypeRoute} {
		b, err := route.FetchRIB(unix.AF_UNSPEC, kind, 0)
		if err != nil {
			return err
		}
		if err := do(b); err != nil {
			return err
		}
	}
	return nil
}

func (s *rtsock) take(t *table, b []byte) error {
	s.reader.table = t
	return s.reader.messages(b)
}
