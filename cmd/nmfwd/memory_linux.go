package main

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"nmfwd/cmd/nmfwd/report"
)

// netmapMemory returns the parameters of netmap's memory.
func netmapMemory() report.Memory {
	get := func(name string) int {
		b, _ := os.ReadFile("/sys/module/netmap/parameters/" + name)
		n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		return n
	}
	m := report.Memory{Buffers: get("buf_num"), BufSize: get("buf_size"), Rings: get("ring_num"), Interfaces: get("if_num")}
	var i unix.Sysinfo_t
	if unix.Sysinfo(&i) == nil {
		m.RAM = uint64(i.Totalram) * uint64(i.Unit)
	}
	return m
}
