//go:build netmap

package netmap

import (
	"errors"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane/netmap"
	"nmfwd/dataplane/netmap/abi"
)

// control performs one request with a version of its own.
func control[T any](fd int, version, req uint16, name string, body *T) error {
	h := abi.Header{Version: version, ReqType: req}
	copy(h.Name[:], name)
	var p runtime.Pinner
	defer p.Unpin()
	p.Pin(body)
	h.Body = uint64(uintptr(unsafe.Pointer(body)))
	return netmap.System().Control(fd, &h)
}

// openDevice opens the netmap device for the time of the test.
func openDevice(t *testing.T) int {
	t.Helper()
	fd, err := netmap.System().Open()
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { netmap.System().Close(fd) })
	return fd
}

// TestABI compares what the kernel writes in three places about one
// registration: the request, the memory and the port information.
func TestABI(t *testing.T) {
	for _, tt := range []struct {
		name string
		port string
		ask  abi.Register
	}{
		{"vale default", "vale9:abi0", abi.Register{Mode: abi.ModeAllNIC}},
		{"vale 2x3 rings of 64", "vale9:abi1", abi.Register{Mode: abi.ModeAllNIC, TXRings: 2, RXRings: 3, TXSlots: 64, RXSlots: 64}},
		{"vale rx only", "vale9:abi2", abi.Register{Mode: abi.ModeAllNIC, TXRings: 2, RXRings: 2, Flags: abi.RXRingsOnly}},
		{"vale one of two", "vale9:abi3", abi.Register{Mode: abi.ModeOneNIC, RingID: 1, TXRings: 2, RXRings: 2}},
		{"extra buffers", "vale9:abi4", abi.Register{Mode: abi.ModeAllNIC, ExtraBufs: 8}},
		{"pipe", "abi{1", abi.Register{Mode: abi.ModeAllNIC}},
		{"pipe end", "abi}1", abi.Register{Mode: abi.ModeAllNIC}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k, fd := netmap.System(), openDevice(t)
			reg := tt.ask
			if err := control(fd, abi.API, abi.ReqRegister, tt.port, &reg); err != nil {
				t.Fatalf("register: %v", err)
			}
			t.Logf("registered %s: %+v", tt.port, reg)
			mem, err := k.Map(fd, int(reg.MemSize))
			if err != nil {
				t.Fatalf("map: %v", err)
			}
			defer k.Unmap(mem)
			var info abi.PortInfo
			if err := control(fd, abi.API, abi.ReqPortInfo, tt.port, &info); err != nil {
				t.Fatalf("port info: %v", err)
			}
			if info.MemSize != reg.MemSize || info.TXRings != reg.TXRings || info.RXRings != reg.RXRings || info.TXSlots != reg.TXSlots || info.RXSlots != reg.RXSlots || info.MemID != reg.MemID {
				t.Errorf("port info %+v, registered %+v", info, reg)
			}
			pools := abi.PoolsInfo{MemID: reg.MemID}
			if err := control(fd, abi.API, abi.ReqPools, tt.port, &pools); err != nil {
				t.Fatalf("pools: %v", err)
			}
			if pools.MemSize != reg.MemSize || pools.MemID != reg.MemID {
				t.Errorf("pools %+v, registered %+v", pools, reg)
			}
			f, err := abi.IfAt(mem, reg.Offset)
			if err != nil {
				t.Fatal(err)
			}
			if got := unix.ByteSliceToString(f.Name[:]); got != tt.port || f.TXRings != uint32(reg.TXRings) || f.RXRings != uint32(reg.RXRings) {
				t.Errorf("netmap_if %q %+v", got, f)
			}
			ofs, err := abi.Offsets(mem, reg.Offset)
			if err != nil {
				t.Fatal(err)
			}
			seen := map[uint32]bool{}
			for dir, n := range []int{int(reg.RXRings), int(reg.TXRings)} {
				for i := range n {
					bound := (tt.ask.Mode != abi.ModeOneNIC || i == int(tt.ask.RingID)) && (dir == abi.DirRX || tt.ask.Flags&abi.RXRingsOnly == 0)
					at := ofs[f.Pos(dir, i)]
					if (at != 0) != bound {
						t.Errorf("direction %d ring %d at %d, want bound %v", dir, i, at, bound)
					}
					if at == 0 {
						continue
					}
					at += int(reg.Offset)
					r, slots, err := abi.RingAt(mem, at)
					if err != nil {
						t.Fatal(err)
					}
					tail := 0
					if dir == abi.DirTX {
						tail = len(slots) - 1
					}
					if int(r.Dir) != dir || int(r.RingID) != i || r.Head != 0 || r.Cur != 0 || int(r.Tail) != tail {
						t.Errorf("direction %d ring %d: %+v", dir, i, r)
					}
					base, count, err := abi.Buffers(mem, at, r)
					if err != nil {
						t.Fatal(err)
					}
					if uint64(base) != pools.BufOffset || count != int(pools.BufTotal) || r.BufSize != pools.BufSize {
						t.Errorf("%d buffers of %d at %d, pools say %+v", count, r.BufSize, base, pools)
					}
					for _, s := range slots {
						if s.BufIdx < abi.FirstBuffer || s.BufIdx >= pools.BufTotal || seen[s.BufIdx] {
							t.Fatalf("buffer %d of direction %d ring %d is out of bounds or in two slots", s.BufIdx, dir, i)
						}
						seen[s.BufIdx] = true
					}
				}
			}
			b, n := f.BufsHead, 0
			for ; reg.ExtraBufs > 0 && b != 0; n++ {
				if seen[b] {
					t.Fatalf("extra buffer %d is in a slot too", b)
				}
				seen[b] = true
				b = *abi.Word(mem[int(pools.BufOffset)+int(b)*int(pools.BufSize):])
			}
			if n != int(tt.ask.ExtraBufs) {
				t.Errorf("%d extra buffers, want %d", n, tt.ask.ExtraBufs)
			}
		})
	}
}

// TestRequestErrors fixes which errors the kernel answers, on which the
// backend's own rest.
func TestRequestErrors(t *testing.T) {
	for _, tt := range []struct {
		name    string
		version uint16
		port    string
		reg     abi.Register
		want    error
	}{
		{"version 13", 13, "vale9:e0", abi.Register{Mode: abi.ModeAllNIC}, unix.EINVAL},
		{"version 14", 14, "vale9:e0", abi.Register{Mode: abi.ModeAllNIC}, nil},
		{"version 15", 15, "vale9:e0", abi.Register{Mode: abi.ModeAllNIC}, nil},
		{"version 999", 999, "vale9:e0", abi.Register{Mode: abi.ModeAllNIC}, unix.EINVAL},
		{"no mode", abi.API, "vale9:e0", abi.Register{}, unix.EINVAL},
		{"no such ring", abi.API, "vale9:e0", abi.Register{Mode: abi.ModeOneNIC, RingID: 7}, unix.EINVAL},
		{"host rings of a switch", abi.API, "vale9:e0", abi.Register{Mode: abi.ModeNICSW}, unix.EINVAL},
		{"no such region", abi.API, "vale9:e0", abi.Register{Mode: abi.ModeAllNIC, MemID: 9999}, unix.EINVAL},
		{"no such interface", abi.API, "nmfwdnone0", abi.Register{Mode: abi.ModeAllNIC}, unix.ENXIO},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := control(openDevice(t), tt.version, abi.ReqRegister, tt.port, &tt.reg); !errors.Is(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
	t.Run("registered twice", func(t *testing.T) {
		fd := openDevice(t)
		reg := abi.Register{Mode: abi.ModeAllNIC}
		if err := control(fd, abi.API, abi.ReqRegister, "vale9:e0", &reg); err != nil {
			t.Fatal(err)
		}
		if err := control(fd, abi.API, abi.ReqRegister, "vale9:e0", &reg); !errors.Is(err, unix.EBUSY) {
			t.Errorf("got %v, want %v", err, unix.EBUSY)
		}
	})
	t.Run("not registered", func(t *testing.T) {
		if err := netmap.System().RXSync(openDevice(t)); !errors.Is(err, unix.ENXIO) {
			t.Errorf("got %v, want %v", err, unix.ENXIO)
		}
	})
	t.Run("exclusive", func(t *testing.T) {
		reg := abi.Register{Mode: abi.ModeAllNIC, Flags: abi.Exclusive}
		if err := control(openDevice(t), abi.API, abi.ReqRegister, "vale9:e1", &reg); err != nil {
			t.Fatal(err)
		}
		_, err := netmap.Open(configs("vale9:e1"), netmap.Options{LockDir: t.TempDir()})
		if !errors.Is(err, unix.EBUSY) {
			t.Errorf("got %v, want %v", err, unix.EBUSY)
		}
	})
}
