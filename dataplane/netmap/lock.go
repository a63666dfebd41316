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

	"nmfwd/system/lock"
)

// lockPort takes the lock of the port called name, which only one nmfwd on the
// machine can have: netmap's own NR_EXCLUSIVE would keep our further
// descriptors out too. The kernel releases it when the process ends, however it
// does. The file stays, and tells who had it last.
func lockPort(dir, name string) (*os.File, error) {
	if dir == "" {
		dir = lock.Dir()
	}
	path := filepath.Join(dir, "nmfwd-"+url.PathEscape(name)+".lock")
	f, err := lock.Open(path, true)
	switch {
	case errors.Is(err, lock.ErrHeld):
		defer f.Close()
		who, _ := io.ReadAll(io.LimitReader(f, 32))
		return nil, fmt.Errorf("another nmfwd has it (pid %s, lock file %s): %w", strings.TrimSpace(string(who)), path, unix.EBUSY)
	case err != nil:
		return nil, fmt.Errorf("lock: %w", err)
	}
	if _, err := f.WriteAt(fmt.Appendf(nil, "%-10d\n", os.Getpid()), 0); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock: %w", err)
	}
	return f, nil
}
