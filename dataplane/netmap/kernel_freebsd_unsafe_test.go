//go:build freebsd

package netmap

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets and numbers of FreeBSD 12.1. It does not compile if ours differ.
var (
	_ = [1]struct{}{}[unsafe.Offsetof(ifMIB{}.data)-(52+(unsafe.Sizeof(uintptr(0))-4))]
	_ = [1]struct{}{}[unsafe.Offsetof(ifMIB{}.data.ipackets)-24]
	_ = [1]struct{}{}[unix.SYS___SYSCTL-202]
	_ = [1]struct{}{}[unix.RTM_IFINFO-0xe]
	_ = [1]struct{}{}[unix.RTM_IFANNOUNCE-0x11]
)

func TestAboutLink(t *testing.T) {
	for _, tt := range []struct {
		name string
		m    []byte
		want bool
	}{
		{"empty", nil, false},
		{"cut", []byte{168, 0, unix.RTM_VERSION}, false},
		{"interface", []byte{168, 0, unix.RTM_VERSION, unix.RTM_IFINFO}, true},
		{"interface that comes or goes", []byte{24, 0, unix.RTM_VERSION, unix.RTM_IFANNOUNCE}, true},
		{"route", []byte{200, 0, unix.RTM_VERSION, unix.RTM_ADD}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := aboutLink(tt.m); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
