package config

import (
	"fmt"
	"net/netip"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

// manyRoutes returns a configuration of n routes, four of five IPv4, through
// two gateways of each family, in no order.
func manyRoutes(n int) []byte {
	var b strings.Builder
	b.WriteString("port igb1 198.18.0.205/24 2001:2::205/64\nport igb2 198.19.0.205/24 2001:2:0:8000::205/64\n")
	v4 := [2]string{"198.18.0.203", "198.19.0.203"}
	v6 := [2]string{"2001:2::203", "2001:2:0:8000::203"}
	for i := range uint32(n) {
		x := i * 2654435761 // odd, so no number comes twice
		if i%5 == 0 {
			a := netip.AddrFrom16([16]byte{0x20, 0x01, 4, byte(x >> 24), byte(x >> 16), byte(x >> 8), byte(x)})
			fmt.Fprintf(&b, "route %s/56 via %s\n", a, v6[i>>3&1])
		} else {
			x = 0x01000000 + x/4*3 // 1.0.0.0 to 193.0.0.0
			fmt.Fprintf(&b, "route %d.%d.%d.%d/32 via %s\n", x>>24, byte(x>>16), byte(x>>8), byte(x), v4[i>>3&1])
		}
	}
	return []byte(b.String())
}

// peak runs f and returns the largest heap seen, in MB.
func peak(f func()) float64 {
	debug.FreeOSMemory()
	stop, done := make(chan struct{}), make(chan uint64)
	go func() {
		var most uint64
		var m runtime.MemStats
		for {
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapInuse)
			select {
			case <-stop:
				done <- most
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	f()
	close(stop)
	return float64(<-done) / 1e6
}

func BenchmarkParse(b *testing.B) {
	for _, n := range []struct {
		name   string
		routes int
	}{{"1k", 1000}, {"1M", 1000000}} {
		b.Run(n.name, func(b *testing.B) {
			text := manyRoutes(n.routes)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				c, err := Parse("routes.conf", text)
				if err != nil || len(c.Routes) != n.routes {
					b.Fatalf("%d routes, %v", len(c.Routes), err)
				}
			}
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/op")
			b.StopTimer()
			b.ReportMetric(peak(func() { Parse("routes.conf", text) }), "MB-peak")
		})
	}
}
