//go:build freebsd

package abi

import "unsafe"

// What sys/ioccom.h makes of the numbers in net/netmap.h. It does not compile if
// ours differ.
const (
	void  = 0x20000000 // IOC_VOID
	inout = 0xc0000000 // IOC_INOUT
)

var (
	_ = [1]struct{}{}[CTRL-(inout|unsafe.Sizeof(Header{})<<16|'i'<<8|151)]
	_ = [1]struct{}{}[TXSync-(void|'i'<<8|148)]
	_ = [1]struct{}{}[RXSync-(void|'i'<<8|149)]
)
