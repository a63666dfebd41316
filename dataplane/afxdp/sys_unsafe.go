//go:build linux

package afxdp

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// desc is struct xdp_desc of linux/if_xdp.h.
type desc struct {
	addr    uint64
	len     uint32
	options uint32
}

// indexAt returns the ring index at byte off of mem.
func indexAt(mem []byte, off uint64) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&mem[off : off+4][0]))
}

// descsAt returns the n descriptors from byte off of mem.
func descsAt(mem []byte, off uint64, n int) []desc {
	b := mem[off : off+uint64(n)*uint64(unsafe.Sizeof(desc{}))]
	return unsafe.Slice((*desc)(unsafe.Pointer(&b[0])), n)
}

// addrsAt returns the n addresses from byte off of mem.
func addrsAt(mem []byte, off uint64, n int) []uint64 {
	b := mem[off : off+uint64(n)*8]
	return unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), n)
}

// registerUMEM makes mem, in buffers of size bytes, the UMEM of socket fd.
func registerUMEM(fd int, mem []byte, size int) error {
	r := unix.XDPUmemReg{
		Addr: uint64(uintptr(unsafe.Pointer(&mem[0]))), // mapped memory: it does not move
		Len:  uint64(len(mem)),
		Size: uint32(size),
	}
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_UMEM_REG,
		uintptr(unsafe.Pointer(&r)), unsafe.Sizeof(r), 0)
	return errnoErr(errno)
}

// offsets returns where the parts of the rings of socket fd are.
func offsets(fd int) (unix.XDPMmapOffsets, error) {
	var o unix.XDPMmapOffsets
	err := getsockopt(fd, unix.XDP_MMAP_OFFSETS, unsafe.Pointer(&o), unsafe.Sizeof(o))
	return o, err
}

// statistics returns the kernel's counters of socket fd.
func statistics(fd int) (unix.XDPStatistics, error) {
	var s unix.XDPStatistics
	err := getsockopt(fd, unix.XDP_STATISTICS, unsafe.Pointer(&s), unsafe.Sizeof(s))
	return s, err
}

func getsockopt(fd, opt int, p unsafe.Pointer, size uintptr) error {
	n := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(opt),
		uintptr(p), uintptr(unsafe.Pointer(&n)), 0)
	if errno == 0 && uintptr(n) < size {
		return unix.ENOPROTOOPT // a kernel before 5.4 has no ring flags
	}
	return errnoErr(errno)
}

func errnoErr(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}
