//go:build unix

// Package lock lets one process of the machine at a time have what a file stands
// for. The kernel takes a lock (flock(2)) back when the process ends, however it
// does.
package lock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ErrHeld says that another process, or another open file of this one, has the
// lock.
var ErrHeld = errors.New("locked by another process")

// Open opens a file for reading and writing, but follows no symbolic link, and
// takes its lock. It makes the file if there is none and create says so. If
// another has the lock the error is ErrHeld and the file is open nevertheless.
func Open(path string, create bool) (*os.File, error) {
	flags := os.O_RDWR | unix.O_NOFOLLOW
	if create {
		flags |= os.O_CREATE
	}
	return open(path, flags)
}

// Create makes a file that nobody else has, and takes its lock.
func Create(path string) (*os.File, error) {
	f, err := open(path, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if errors.Is(err, ErrHeld) {
		f.Close()
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return f, err
}

func open(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return f, ErrHeld
	case err != nil:
		f.Close()
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return f, nil
}

// Dir returns the folder for files of running programs: the system's, or that
// for temporary ones where we may not write there.
func Dir() string {
	for _, d := range []string{"/var/run", "/run"} {
		if unix.Access(d, unix.W_OK) == nil {
			return d
		}
	}
	return os.TempDir()
}
