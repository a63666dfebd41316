package netmap

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// lockPort takes the lock of the port called name, which only one nmfwd on the
// machine can have: netmap's own NR_EXCLUSIVE would keep our further
// descriptors out too. The kernel releases it when the process ends, however it
// does. The file stays, and tells who had it last.
func lockPort(dir, name string) (*os.File, error) {
	if dir == "" {
		dir = lockDir()
	}
	path := filepath.Join(dir, "nmfwd-"+url.PathEscape(name)+".lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		who, _ := io.ReadAll(io.LimitReader(f, 32))
		return nil, fmt.Errorf("another nmfwd has it (pid %s, lock file %s): %w", strings.TrimSpace(string(who)), path, unix.EBUSY)
	}
	if _, err := f.WriteAt(fmt.Appendf(nil, "%-10d\n", os.Getpid()), 0); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock: %w", err)
	}
	return f, nil
}

// lockDir returns the directory of lock files: the system's for the files of
// running programs, or that for temporary ones where we may not write there.
func lockDir() string {
	for _, d := range []string{"/var/run", "/run"} {
		if unix.Access(d, unix.W_OK) == nil {
			return d
		}
	}
	return os.TempDir()
}
