package fib

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// adviseHuge asks for huge pages for b, the first n bytes of which are about to
// be written: what of these has small pages already, for it was in use before,
// is moved to huge ones (Linux 6.1). A refusal is no error: small pages do.
func adviseHuge(b []byte, n int) {
	if unix.Madvise(b, unix.MADV_HUGEPAGE) == nil && n > 0 {
		unix.Madvise(b[:(n+hugeSize-1)&^(hugeSize-1)], unix.MADV_COLLAPSE)
	}
}

const thpEnabled = "/sys/kernel/mm/transparent_hugepage/enabled"

// HugePages returns nil if tables can lie in huge pages, or why they cannot.
func HugePages() error {
	mode, err := os.ReadFile(thpEnabled)
	if err != nil {
		return fmt.Errorf("fib: kernel without transparent huge pages: %w", err)
	}
	if strings.Contains(string(mode), "[never]") {
		return fmt.Errorf("fib: transparent huge pages are switched off: write madvise to %s", thpEnabled)
	}
	// Large enough to hold one huge page wherever it lies.
	b, err := unix.Mmap(-1, 0, 2*hugeSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return fmt.Errorf("fib: map memory: %w", err)
	}
	defer unix.Munmap(b)
	if err := unix.Madvise(b, unix.MADV_HUGEPAGE); err != nil {
		return fmt.Errorf("fib: madvise(MADV_HUGEPAGE): %w", err)
	}
	// EINVAL is also what kernels before 6.1 answer, which cannot be asked.
	if err := unix.Madvise(b, unix.MADV_COLLAPSE); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("fib: no huge page to be had: madvise(MADV_COLLAPSE): %w", err)
	}
	return nil
}
