package abi

// The ioctl numbers of netmap on Linux, where _IO has no direction bits.
const (
	CTRL   = 0xc0586997 // NIOCCTRL: _IOWR('i', 151, Header)
	TXSync = 0x00006994 // NIOCTXSYNC: _IO('i', 148)
	RXSync = 0x00006995 // NIOCRXSYNC: _IO('i', 149)
)
