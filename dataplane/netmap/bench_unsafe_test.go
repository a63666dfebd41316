package netmap

import (
	"fmt"
	"sync/atomic"
	"testing"
	"unsafe"

	"nmfwd/dataplane"
	"nmfwd/dataplane/netmap/abi"
)

// BenchmarkExchange moves bursts of 64 frames of 60 bytes from one ring of 1024
// slots to another in ordinary memory: by exchange of the buffers within a
// region, and by copy between two. A sync is two stores here, so what is
// measured is this package alone.
func BenchmarkExchange(b *testing.B) {
	const n, burst = 1024, 64
	for _, size := range []int{2048, 2112} {
		for _, copied := range []bool{false, true} {
			b.Run(fmt.Sprintf("copy=%v/bufsize=%d", copied, size), func(b *testing.B) {
				bufs := uint32(2 + 2*n)
				region := dataplane.NewRegion("1", make([]byte, int(bufs)*size), size, nil)
				other := region
				if copied {
					other = dataplane.NewRegion("2", make([]byte, int(bufs)*size), size, nil)
				}
				var state atomic.Uint32
				in, inSlots := newRing(n, size, 2)
				out, outSlots := newRing(n, size, 2+n)
				from := &rx{ring: in, slots: inSlots, region: region, bufs: bufs, state: &state}
				to := &tx{ring: out, slots: outSlots, region: other, bufs: bufs, least: minFrame, state: &state, sync: func() error { return nil }}
				for i := range inSlots {
					inSlots[i].Len = 60
				}
				var slots [burst]dataplane.Slot
				free := make([]uint32, burst)
				b.ReportAllocs()
				for b.Loop() {
					in.Tail = (in.Head + burst) % n
					out.Tail = (out.Head + n - 1) % n
					s := slots[:from.Recv(slots[:])]
					if to.Send(region, s) != burst {
						b.Fatal("ring full")
					}
					for i := range s {
						free[i] = s[i].Buf
					}
					from.Release(free)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*burst), "ns/frame")
			})
		}
	}
}

// newRing returns a ring of n slots with buffers from number first on.
func newRing(n, size int, first uint32) (*abi.Ring, []abi.Slot) {
	words := make([]uint64, 32+2*n)
	r := (*abi.Ring)(unsafe.Pointer(&words[0]))
	r.NumSlots, r.BufSize = uint32(n), uint32(size)
	slots := unsafe.Slice((*abi.Slot)(unsafe.Pointer(&words[32])), n)
	for i := range slots {
		slots[i].BufIdx = first + uint32(i)
	}
	return r, slots
}
