package router

import (
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"nmfwd/fib"
)

// broadcastsAge is how long the system's networks are taken for the same.
const broadcastsAge = time.Second

// broadcasts are the broadcast addresses of the system's own IPv4 networks, of
// which ports need not know. They are read again, beside all else, when somebody
// asks and they are old.
type broadcasts struct {
	addrs   func() ([]net.Addr, error) // of all interfaces
	known   atomic.Pointer[map[netip.Addr]bool]
	began   time.Time
	read    atomic.Int64 // when, nanoseconds from began
	reading atomic.Bool
}

// readBroadcasts reads those of this moment.
func readBroadcasts(addrs func() ([]net.Addr, error)) *broadcasts {
	b := &broadcasts{addrs: addrs, began: time.Now()}
	b.known.Store(new(map[netip.Addr]bool))
	b.again()
	return b
}

// have reports whether a is one. It does not wait.
func (b *broadcasts) have(a netip.Addr) bool {
	if time.Since(b.began)-time.Duration(b.read.Load()) > broadcastsAge && b.reading.CompareAndSwap(false, true) {
		go func() {
			defer b.reading.Store(false)
			b.again()
		}()
	}
	return (*b.known.Load())[a]
}

// again reads them. What cannot be read stays as it was known.
func (b *broadcasts) again() {
	addrs, err := b.addrs()
	b.read.Store(int64(time.Since(b.began)))
	if err != nil {
		return
	}
	known := make(map[netip.Addr]bool)
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, _ := netip.AddrFromSlice(n.IP)
		bits, _ := n.Mask.Size()
		if ip = ip.Unmap(); !ip.Is4() || ip.IsLoopback() {
			continue
		}
		for _, r := range fib.ConnectedRoutes(0, netip.PrefixFrom(ip, bits)) {
			if r.Kind == fib.Broadcast {
				known[r.Prefix.Addr()] = true
			}
		}
	}
	b.known.Store(&known)
}
