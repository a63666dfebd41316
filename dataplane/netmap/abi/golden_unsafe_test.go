//go:build amd64 || arm64

package abi

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

// A dump is one line of testdata/index.json: bytes that a kernel wrote, and
// what they say.
type dump struct {
	Case, Part, File string
	Len              int
	Desc             string
}

// view returns the first bytes of b as a T.
func view[T any](t *testing.T, b []byte) *T {
	t.Helper()
	var v T
	if len(b) < int(unsafe.Sizeof(v)) {
		t.Fatalf("%d bytes are too few for %T", len(b), v)
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)), b)
	return &v
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(name, ".gz") {
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if b, err = io.ReadAll(z); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func cstring(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// TestGolden decodes what real kernels wrote (Linux 6.1, API 14) and compares
// every field with its description.
func TestGolden(t *testing.T) {
	var dumps []dump
	if err := json.Unmarshal(read(t, "index.json"), &dumps); err != nil {
		t.Fatal(err)
	}
	regs := map[string]*Register{} // by case
	pools := map[string]*PoolsInfo{}
	for _, d := range dumps {
		b := read(t, d.File)
		switch d.Part {
		case "reg_out":
			regs[d.Case] = view[Register](t, b)
		case "pools":
			pools[d.Case] = view[PoolsInfo](t, b)
		}
	}
	for _, d := range dumps {
		t.Run(d.Case+"/"+d.Part, func(t *testing.T) {
			b := read(t, d.File)
			if len(b) != d.Len {
				t.Fatalf("%d bytes, want %d", len(b), d.Len)
			}
			reg, pool := regs[d.Case], pools[d.Case]
			var got string
			switch {
			case d.Part == "hdr_in" || d.Part == "hdr_out":
				h := view[Header](t, b)
				if h.Version != API || h.ReqType != ReqRegister || h.Reserved != 0 || h.Options != 0 || h.Body == 0 {
					t.Errorf("header %+v", h)
				}
				for _, o := range dumps {
					if o.Case == d.Case && o.Part == "reg_out" && !strings.Contains(o.Desc, " name="+cstring(h.Name[:])+" ") {
						t.Errorf("name %q, registered: %s", cstring(h.Name[:]), o.Desc)
					}
				}
				return
			case d.Part == "reg_in":
				r := view[Register](t, b)
				if r.Mode != reg.Mode || r.RingID != reg.RingID || r.Flags != reg.Flags || r.ExtraBufs != reg.ExtraBufs || r.Offset != 0 || r.MemSize != 0 {
					t.Errorf("request %+v, answered %+v", r, reg)
				}
				return
			case d.Part == "reg_out":
				name := cstring(view[Header](t, read(t, d.Case+".hdr_out.bin")).Name[:])
				got = fmt.Sprintf("after: name=%s mode=%d nr_offset=%d nr_memsize=%d tx_slots=%d rx_slots=%d tx_rings=%d rx_rings=%d host_tx=%d host_rx=%d mem_id=%d ringid=%d extra=%d flags=%#x",
					name, reg.Mode, reg.Offset, reg.MemSize, reg.TXSlots, reg.RXSlots, reg.TXRings, reg.RXRings, reg.HostTXRings, reg.HostRXRings, reg.MemID, reg.RingID, reg.ExtraBufs, reg.Flags)
			case d.Part == "port_info":
				p := view[PortInfo](t, b)
				if p.MemSize != reg.MemSize || p.TXSlots != reg.TXSlots || p.RXSlots != reg.RXSlots || p.TXRings != reg.TXRings || p.RXRings != reg.RXRings ||
					p.HostTXRings != reg.HostTXRings || p.HostRXRings != reg.HostRXRings || p.MemID != reg.MemID {
					t.Errorf("port info %+v, registered %+v", p, reg)
				}
				return
			case d.Part == "pools":
				got = fmt.Sprintf("pools: memsize=%d mem_id=%d if@%d %dx%d ring@%d %dx%d buf@%d %dx%d", pool.MemSize, pool.MemID,
					pool.IfOffset, pool.IfTotal, pool.IfSize, pool.RingOffset, pool.RingTotal, pool.RingSize, pool.BufOffset, pool.BufTotal, pool.BufSize)
			case d.Part == "nifp":
				f, err := IfAt(b, 0)
				if err != nil {
					t.Fatal(err)
				}
				ofs, err := Offsets(b, 0)
				if err != nil {
					t.Fatal(err)
				}
				got = fmt.Sprintf("netmap_if + %d ring_ofs: ni_name=%s ver=%d flags=%#x tx=%d rx=%d htx=%d hrx=%d bufs_head=%d",
					len(ofs), cstring(f.Name[:]), f.Version, f.Flags, f.TXRings, f.RXRings, f.HostTXRings, f.HostRXRings, f.BufsHead)
				checkOffsets(t, dumps, d.Case, f, ofs)
			case strings.HasPrefix(d.Part, "ring"):
				k, err := strconv.Atoi(d.Part[len("ring"):])
				if err != nil {
					t.Fatal(err)
				}
				mem := make([]byte, 256+16*int(view[Ring](t, b).NumSlots))
				copy(mem, b)
				r, slots, err := RingAt(mem, 0)
				if err != nil {
					t.Fatal(err)
				}
				nifp := read(t, d.Case+".nifp.bin")
				f, _ := IfAt(nifp, 0)
				ofs, _ := Offsets(nifp, 0)
				kind := []string{"rx", "tx"}[r.Dir]
				nic := int(f.TXRings)
				if r.Dir == DirRX {
					nic = int(f.RXRings)
				}
				if int(r.RingID) >= nic {
					kind = "host_" + kind
				}
				if got := f.Pos(int(r.Dir), int(r.RingID)); got != k {
					t.Errorf("place %d in the list of offsets, want %d", got, k)
				}
				abs := ofs[k] + int(reg.Offset)
				if got := uint64(int64(abs) + r.BufOfs); got != pool.BufOffset {
					t.Errorf("buffers at %d, want %d", got, pool.BufOffset)
				}
				got = fmt.Sprintf("%s ring_ofs=%d abs=%d buf_ofs=%d num_slots=%d buf_size=%d ringid=%d dir=%d head=%d cur=%d tail=%d flags=%d buf_align=%d slot0={%d,%d,%#x} buf0_abs=%d",
					kind, ofs[k], abs, r.BufOfs, r.NumSlots, r.BufSize, r.RingID, r.Dir, r.Head, r.Cur, r.Tail, r.Flags, r.BufAlign,
					slots[0].BufIdx, slots[0].Len, slots[0].Flags, int64(abs)+r.BufOfs+int64(slots[0].BufIdx)*int64(r.BufSize))
			default:
				t.Fatalf("unknown part %q", d.Part)
			}
			if got != d.Desc {
				t.Errorf("\n got %s\nwant %s", got, d.Desc)
			}
		})
	}
	if len(dumps) < 90 {
		t.Errorf("only %d dumps", len(dumps))
	}
}

// checkOffsets compares the list of ring offsets with the rings that were
// dumped: a ring that the descriptor is not bound to has offset 0 and no dump.
func checkOffsets(t *testing.T, dumps []dump, name string, f *If, ofs []int) {
	t.Helper()
	ringOfs := regexp.MustCompile(`ring_ofs=(\d+) `)
	want := make([]int, len(ofs))
	for _, d := range dumps {
		if d.Case == name && strings.HasPrefix(d.Part, "ring") {
			k, _ := strconv.Atoi(d.Part[len("ring"):])
			want[k], _ = strconv.Atoi(ringOfs.FindStringSubmatch(d.Desc)[1])
		}
	}
	if fmt.Sprint(ofs) != fmt.Sprint(want) {
		t.Errorf("ring offsets %v, want %v", ofs, want)
	}
}

// TestGoldenRegion walks a whole memory region that had received three frames.
func TestGoldenRegion(t *testing.T) {
	mem := read(t, "vale_rx3.region.bin.gz")
	reg := view[Register](t, read(t, "vale_rx3.reg_out.bin"))
	if uint64(len(mem)) != reg.MemSize {
		t.Fatalf("region of %d bytes, registered %d", len(mem), reg.MemSize)
	}
	f, err := IfAt(mem, reg.Offset)
	if err != nil {
		t.Fatal(err)
	}
	if got := cstring(f.Name[:]); got != "vale3:b" {
		t.Errorf("name %q, want vale3:b", got)
	}
	ofs, err := Offsets(mem, reg.Offset)
	if err != nil {
		t.Fatal(err)
	}
	off := int(reg.Offset) + ofs[f.Pos(DirRX, 0)]
	r, slots, err := RingAt(mem, off)
	if err != nil {
		t.Fatal(err)
	}
	base, n, err := Buffers(mem, off, r)
	if err != nil {
		t.Fatal(err)
	}
	if base != 421888 || n != 4098 {
		t.Errorf("%d buffers at %d, want 4098 at 421888", n, base)
	}
	if r.Head != 0 || r.Tail != 3 {
		t.Fatalf("head %d, tail %d, want 0, 3", r.Head, r.Tail)
	}
	for i, s := range slots[r.Head:r.Tail] {
		size, fill := 60+10*i, byte('A'+i)
		want := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 0}, bytes.Repeat([]byte{fill}, size-14)...)
		at := base + int(s.BufIdx)*int(r.BufSize)
		if got := mem[at : at+int(s.Len)]; !bytes.Equal(got, want) {
			t.Errorf("frame %d: got %x, want %x", i, got, want)
		}
		if s.Flags != 0x100 {
			t.Errorf("frame %d: flags %#x, want 0x100", i, s.Flags)
		}
	}
}

// TestBadRegion gives the views offsets and counts that do not fit.
func TestBadRegion(t *testing.T) {
	words := make([]uint64, 1024)
	mem := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 8*len(words))
	f, err := IfAt(mem, 64)
	if err != nil {
		t.Fatal(err)
	}
	for _, off := range []uint64{4, 8192, 8192 - 8, 1 << 63, ^uint64(7)} {
		if _, err := IfAt(mem, off); err == nil {
			t.Errorf("IfAt(%d): no error", off)
		}
	}
	f.TXRings = 1 << 31
	if _, err := Offsets(mem, 64); err == nil {
		t.Error("Offsets with 2^31 rings: no error")
	}
	f.TXRings = 4
	if ofs, err := Offsets(mem, 64); err != nil || len(ofs) != 4 {
		t.Errorf("Offsets = %v, %v, want 4 of them", ofs, err)
	}
	for _, off := range []int{-8, 4, 8192, 8192 - 128} {
		if _, _, err := RingAt(mem, off); err == nil {
			t.Errorf("RingAt(%d): no error", off)
		}
	}
	r := (*Ring)(unsafe.Pointer(&mem[1024]))
	for _, tt := range []struct {
		name string
		head ringHead
		ok   bool
	}{
		{"fits", ringHead{NumSlots: (8192 - 1280) / 16, BufSize: 2048}, true},
		{"no slots", ringHead{}, false},
		{"one slot", ringHead{NumSlots: 1}, false},
		{"a slot too many", ringHead{NumSlots: (8192-1280)/16 + 1}, false},
		{"2^32-1 slots", ringHead{NumSlots: ^uint32(0)}, false},
		{"head beyond", ringHead{NumSlots: 8, Head: 8}, false},
		{"cur beyond", ringHead{NumSlots: 8, Cur: 9}, false},
		{"tail beyond", ringHead{NumSlots: 8, Tail: 1 << 31}, false},
	} {
		r.ringHead = tt.head
		if _, slots, err := RingAt(mem, 1024); (err == nil) != tt.ok || tt.ok && len(slots) != int(tt.head.NumSlots) {
			t.Errorf("%s: %d slots, %v", tt.name, len(slots), err)
		}
	}
	for _, tt := range []struct {
		name string
		head ringHead
		ok   bool
	}{
		{"three buffers", ringHead{BufOfs: 1024, BufSize: 2048}, true},
		{"before the region", ringHead{BufOfs: -1025, BufSize: 2048}, false},
		{"no size", ringHead{BufOfs: 1024}, false},
		{"two buffers", ringHead{BufOfs: 8192 - 1024 - 4096, BufSize: 2048}, false},
		{"far away", ringHead{BufOfs: 1 << 62, BufSize: 2048}, false},
	} {
		r.ringHead = tt.head
		if _, n, err := Buffers(mem, 1024, r); (err == nil) != tt.ok {
			t.Errorf("%s: %d buffers, %v", tt.name, n, err)
		}
	}
}
