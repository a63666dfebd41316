//go:build unix

package nic

import (
	"fmt"
	"os"
	"syscall"
)

// trusted returns an error unless the file is the user's own or root's: what it
// says is done to an interface.
func trusted(i os.FileInfo) error {
	s, ok := i.Sys().(*syscall.Stat_t)
	if ok && s.Uid != 0 && int(s.Uid) != os.Geteuid() {
		return fmt.Errorf("the file belongs to user %d, so it is not believed: look at it and remove it", s.Uid)
	}
	return nil
}
