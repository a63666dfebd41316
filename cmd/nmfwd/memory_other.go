//go:build !linux && !freebsd

package main

import "nmfwd/cmd/nmfwd/report"

func netmapMemory() report.Memory { return report.Memory{} }
