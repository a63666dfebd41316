package main

import (
	"golang.org/x/sys/unix"

	"nmfwd/cmd/nmfwd/report"
)

// netmapMemory returns the parameters of netmap's memory.
func netmapMemory() report.Memory {
	get := func(name string) int {
		n, _ := unix.SysctlUint32("dev.netmap." + name)
		return int(n)
	}
	m := report.Memory{Buffers: get("buf_num"), BufSize: get("buf_size"), Rings: get("ring_num"), Interfaces: get("if_num")}
	if b, err := unix.SysctlRaw("hw.physmem"); err == nil { // an unsigned long
		for i, x := range b {
			m.RAM |= uint64(x) << (8 * i)
		}
	}
	return m
}
