package abi

// The ioctl numbers of netmap on FreeBSD, where _IO sets IOC_VOID.
const (
	CTRL   = 0xc0586997 // NIOCCTRL: _IOWR('i', 151, Header)
	TXSync = 0x20006994 // NIOCTXSYNC: _IO('i', 148)
	RXSync = 0x20006995 // NIOCRXSYNC: _IO('i', 149)
)
