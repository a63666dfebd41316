package fib

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// adviseHuge does nothing: FreeBSD promotes what is aligned and in use by itself.
func adviseHuge(b []byte, n int) {}

// superpages says whether the kernel promotes pages, on amd64 and i386, and on
// arm64.
var superpages = []string{"vm.pmap.pg_ps_enabled", "vm.pmap.superpages_enabled"}

// HugePages returns nil if tables can lie in huge pages, or why they cannot.
func HugePages() error {
	for _, name := range superpages {
		on, err := unix.SysctlUint32(name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("fib: %s: %w", name, err)
		}
		if on == 0 {
			return fmt.Errorf("fib: superpages are switched off: set %s=1 in /boot/loader.conf", name)
		}
		return nil
	}
	return fmt.Errorf("fib: kernel without superpages: %w", errors.ErrUnsupported)
}
