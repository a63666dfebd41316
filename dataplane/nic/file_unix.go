//go:build unix

package nic

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

var errLocked = errors.New("locked")

// openLocked opens a file and takes its lock, which the kernel gives back when
// the process ends. If another has it the error is errLocked and the file is
// open.
func openLocked(path string, create bool) (*os.File, error) {
	flags := os.O_RDWR | unix.O_NOFOLLOW
	if create {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return f, errLocked
	}
	f.Close()
	return nil, &os.PathError{Op: "lock", Path: path, Err: err}
}

// createLocked makes a file that nobody else has, with its lock.
func createLocked(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return f, nil
}

// trusted returns an error unless the file is the user's own or root's: what it
// says is done to an interface.
func trusted(i os.FileInfo) error {
	s, ok := i.Sys().(*syscall.Stat_t)
	if ok && s.Uid != 0 && int(s.Uid) != os.Geteuid() {
		return fmt.Errorf("the file belongs to user %d, so it is not believed: look at it and remove it", s.Uid)
	}
	return nil
}

// RuntimeDir returns the folder for files of running programs: the system's, or
// that for temporary ones where we may not write there.
func RuntimeDir() string {
	for _, d := range []string{"/var/run", "/run"} {
		if unix.Access(d, unix.W_OK) == nil {
			return d
		}
	}
	return os.TempDir()
}
