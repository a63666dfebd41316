package abi

import (
	"encoding/json"
	"os"
	"runtime"
	"testing"
	"unsafe"
)

// A field is where a field of ours lies.
type field struct{ off, size uintptr }

// layouts has what the compiler made of our structures, by the names of
// netmap.h.
var layouts = map[string]struct {
	size   uintptr
	fields map[string]field
}{
	"netmap_slot": {unsafe.Sizeof(Slot{}), map[string]field{
		"buf_idx": {unsafe.Offsetof(Slot{}.BufIdx), 4},
		"len":     {unsafe.Offsetof(Slot{}.Len), 2},
		"flags":   {unsafe.Offsetof(Slot{}.Flags), 2},
		"ptr":     {unsafe.Offsetof(Slot{}.Ptr), 8},
	}},
	"netmap_ring": {unsafe.Sizeof(Ring{}), map[string]field{
		"buf_ofs":     {unsafe.Offsetof(Ring{}.BufOfs), unsafe.Sizeof(Ring{}.BufOfs)},
		"num_slots":   {unsafe.Offsetof(Ring{}.NumSlots), unsafe.Sizeof(Ring{}.NumSlots)},
		"nr_buf_size": {unsafe.Offsetof(Ring{}.BufSize), unsafe.Sizeof(Ring{}.BufSize)},
		"ringid":      {unsafe.Offsetof(Ring{}.RingID), unsafe.Sizeof(Ring{}.RingID)},
		"dir":         {unsafe.Offsetof(Ring{}.Dir), unsafe.Sizeof(Ring{}.Dir)},
		"head":        {unsafe.Offsetof(Ring{}.Head), unsafe.Sizeof(Ring{}.Head)},
		"cur":         {unsafe.Offsetof(Ring{}.Cur), unsafe.Sizeof(Ring{}.Cur)},
		"tail":        {unsafe.Offsetof(Ring{}.Tail), unsafe.Sizeof(Ring{}.Tail)},
		"flags":       {unsafe.Offsetof(Ring{}.Flags), unsafe.Sizeof(Ring{}.Flags)},
		"ts":          {unsafe.Offsetof(Ring{}.TS), unsafe.Sizeof(Ring{}.TS)},
		"ts.tv_sec":   {unsafe.Offsetof(Ring{}.TS) + unsafe.Offsetof(Timeval{}.Sec), unsafe.Sizeof(Timeval{}.Sec)},
		"ts.tv_usec":  {unsafe.Offsetof(Ring{}.TS) + unsafe.Offsetof(Timeval{}.Usec), unsafe.Sizeof(Timeval{}.Usec)},
		"offset_mask": {unsafe.Offsetof(Ring{}.OffsetMask), unsafe.Sizeof(Ring{}.OffsetMask)},
		"buf_align":   {unsafe.Offsetof(Ring{}.BufAlign), unsafe.Sizeof(Ring{}.BufAlign)},
		"sem":         {unsafe.Offsetof(Ring{}.Sem), unsafe.Sizeof(Ring{}.Sem)},
		"slot":        {unsafe.Sizeof(Ring{}), unsafe.Sizeof(Slot{})},
	}},
	"netmap_if": {unsafe.Sizeof(If{}), map[string]field{
		"ni_name":          {unsafe.Offsetof(If{}.Name), unsafe.Sizeof(If{}.Name)},
		"ni_version":       {unsafe.Offsetof(If{}.Version), unsafe.Sizeof(If{}.Version)},
		"ni_flags":         {unsafe.Offsetof(If{}.Flags), unsafe.Sizeof(If{}.Flags)},
		"ni_tx_rings":      {unsafe.Offsetof(If{}.TXRings), unsafe.Sizeof(If{}.TXRings)},
		"ni_rx_rings":      {unsafe.Offsetof(If{}.RXRings), unsafe.Sizeof(If{}.RXRings)},
		"ni_bufs_head":     {unsafe.Offsetof(If{}.BufsHead), unsafe.Sizeof(If{}.BufsHead)},
		"ni_host_tx_rings": {unsafe.Offsetof(If{}.HostTXRings), unsafe.Sizeof(If{}.HostTXRings)},
		"ni_host_rx_rings": {unsafe.Offsetof(If{}.HostRXRings), unsafe.Sizeof(If{}.HostRXRings)},
		"ni_spare1":        {unsafe.Offsetof(If{}.HostRXRings) + 4, 12},
		"ring_ofs":         {unsafe.Sizeof(If{}), unsafe.Sizeof(int(0))},
	}},
	"nmreq_header": {unsafe.Sizeof(Header{}), map[string]field{
		"nr_version":  {unsafe.Offsetof(Header{}.Version), unsafe.Sizeof(Header{}.Version)},
		"nr_reqtype":  {unsafe.Offsetof(Header{}.ReqType), unsafe.Sizeof(Header{}.ReqType)},
		"nr_reserved": {unsafe.Offsetof(Header{}.Reserved), unsafe.Sizeof(Header{}.Reserved)},
		"nr_name":     {unsafe.Offsetof(Header{}.Name), unsafe.Sizeof(Header{}.Name)},
		"nr_options":  {unsafe.Offsetof(Header{}.Options), unsafe.Sizeof(Header{}.Options)},
		"nr_body":     {unsafe.Offsetof(Header{}.Body), unsafe.Sizeof(Header{}.Body)},
	}},
	"nmreq_register": {unsafe.Sizeof(Register{}), map[string]field{
		"nr_offset":        {unsafe.Offsetof(Register{}.Offset), unsafe.Sizeof(Register{}.Offset)},
		"nr_memsize":       {unsafe.Offsetof(Register{}.MemSize), unsafe.Sizeof(Register{}.MemSize)},
		"nr_tx_slots":      {unsafe.Offsetof(Register{}.TXSlots), unsafe.Sizeof(Register{}.TXSlots)},
		"nr_rx_slots":      {unsafe.Offsetof(Register{}.RXSlots), unsafe.Sizeof(Register{}.RXSlots)},
		"nr_tx_rings":      {unsafe.Offsetof(Register{}.TXRings), unsafe.Sizeof(Register{}.TXRings)},
		"nr_rx_rings":      {unsafe.Offsetof(Register{}.RXRings), unsafe.Sizeof(Register{}.RXRings)},
		"nr_host_tx_rings": {unsafe.Offsetof(Register{}.HostTXRings), unsafe.Sizeof(Register{}.HostTXRings)},
		"nr_host_rx_rings": {unsafe.Offsetof(Register{}.HostRXRings), unsafe.Sizeof(Register{}.HostRXRings)},
		"nr_mem_id":        {unsafe.Offsetof(Register{}.MemID), unsafe.Sizeof(Register{}.MemID)},
		"nr_ringid":        {unsafe.Offsetof(Register{}.RingID), unsafe.Sizeof(Register{}.RingID)},
		"nr_mode":          {unsafe.Offsetof(Register{}.Mode), unsafe.Sizeof(Register{}.Mode)},
		"nr_extra_bufs":    {unsafe.Offsetof(Register{}.ExtraBufs), unsafe.Sizeof(Register{}.ExtraBufs)},
		"nr_flags":         {unsafe.Offsetof(Register{}.Flags), unsafe.Sizeof(Register{}.Flags)},
	}},
	"nmreq_port_info_get": {unsafe.Sizeof(PortInfo{}), map[string]field{
		"nr_memsize":       {unsafe.Offsetof(PortInfo{}.MemSize), unsafe.Sizeof(PortInfo{}.MemSize)},
		"nr_tx_slots":      {unsafe.Offsetof(PortInfo{}.TXSlots), unsafe.Sizeof(PortInfo{}.TXSlots)},
		"nr_rx_slots":      {unsafe.Offsetof(PortInfo{}.RXSlots), unsafe.Sizeof(PortInfo{}.RXSlots)},
		"nr_tx_rings":      {unsafe.Offsetof(PortInfo{}.TXRings), unsafe.Sizeof(PortInfo{}.TXRings)},
		"nr_rx_rings":      {unsafe.Offsetof(PortInfo{}.RXRings), unsafe.Sizeof(PortInfo{}.RXRings)},
		"nr_host_tx_rings": {unsafe.Offsetof(PortInfo{}.HostTXRings), unsafe.Sizeof(PortInfo{}.HostTXRings)},
		"nr_host_rx_rings": {unsafe.Offsetof(PortInfo{}.HostRXRings), unsafe.Sizeof(PortInfo{}.HostRXRings)},
		"nr_mem_id":        {unsafe.Offsetof(PortInfo{}.MemID), unsafe.Sizeof(PortInfo{}.MemID)},
		"pad":              {unsafe.Offsetof(PortInfo{}.MemID) + 2, 6},
	}},
	"nmreq_pools_info": {unsafe.Sizeof(PoolsInfo{}), map[string]field{
		"nr_memsize":            {unsafe.Offsetof(PoolsInfo{}.MemSize), unsafe.Sizeof(PoolsInfo{}.MemSize)},
		"nr_mem_id":             {unsafe.Offsetof(PoolsInfo{}.MemID), unsafe.Sizeof(PoolsInfo{}.MemID)},
		"pad1":                  {unsafe.Offsetof(PoolsInfo{}.MemID) + 2, 6},
		"nr_if_pool_offset":     {unsafe.Offsetof(PoolsInfo{}.IfOffset), unsafe.Sizeof(PoolsInfo{}.IfOffset)},
		"nr_if_pool_objtotal":   {unsafe.Offsetof(PoolsInfo{}.IfTotal), unsafe.Sizeof(PoolsInfo{}.IfTotal)},
		"nr_if_pool_objsize":    {unsafe.Offsetof(PoolsInfo{}.IfSize), unsafe.Sizeof(PoolsInfo{}.IfSize)},
		"nr_ring_pool_offset":   {unsafe.Offsetof(PoolsInfo{}.RingOffset), unsafe.Sizeof(PoolsInfo{}.RingOffset)},
		"nr_ring_pool_objtotal": {unsafe.Offsetof(PoolsInfo{}.RingTotal), unsafe.Sizeof(PoolsInfo{}.RingTotal)},
		"nr_ring_pool_objsize":  {unsafe.Offsetof(PoolsInfo{}.RingSize), unsafe.Sizeof(PoolsInfo{}.RingSize)},
		"nr_buf_pool_offset":    {unsafe.Offsetof(PoolsInfo{}.BufOffset), unsafe.Sizeof(PoolsInfo{}.BufOffset)},
		"nr_buf_pool_objtotal":  {unsafe.Offsetof(PoolsInfo{}.BufTotal), unsafe.Sizeof(PoolsInfo{}.BufTotal)},
		"nr_buf_pool_objsize":   {unsafe.Offsetof(PoolsInfo{}.BufSize), unsafe.Sizeof(PoolsInfo{}.BufSize)},
	}},
}

// facts is testdata/abi.json: what a C compiler says of netmap.h.
type facts struct {
	AMD64, I386 struct {
		Structs map[string]struct {
			Size   uintptr
			Fields map[string]struct {
				Off, Size uintptr
				ElemSize  uintptr `json:"elem_size"`
			}
		}
		Constants map[string]int64
	}
	Linux   map[string]int64 `json:"ioctl_linux"`
	FreeBSD map[string]int64 `json:"ioctl_freebsd"`
}

func readFacts(t *testing.T) facts {
	t.Helper()
	b, err := os.ReadFile("testdata/abi.json")
	if err != nil {
		t.Fatal(err)
	}
	var f facts
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestLayout(t *testing.T) {
	f := readFacts(t)
	arch := f.AMD64
	if unsafe.Sizeof(uintptr(0)) == 4 {
		arch = f.I386
	}
	if len(arch.Structs) != len(layouts) {
		t.Errorf("%d structures laid out, netmap.h facts have %d", len(layouts), len(arch.Structs))
	}
	for name, want := range arch.Structs {
		got := layouts[name]
		if got.size != want.Size {
			t.Errorf("%s: size %d, want %d", name, got.size, want.Size)
		}
		if len(got.fields) != len(want.Fields) {
			t.Errorf("%s: %d fields, want %d", name, len(got.fields), len(want.Fields))
		}
		for fn, w := range want.Fields {
			g, ok := got.fields[fn]
			if size := max(w.Size, w.ElemSize); !ok || g.off != w.Off || g.size != size {
				t.Errorf("%s.%s: %d bytes at %d, want %d at %d", name, fn, g.size, g.off, size, w.Off)
			}
		}
	}
}

func TestConstants(t *testing.T) {
	f := readFacts(t)
	got := map[string]int64{
		"NETMAP_API": API, "NETMAP_MIN_API": API, "NETMAP_MAX_API": API + 1,
		"NETMAP_MAX_FRAGS": MaxFrags, "NETMAP_REQ_IFNAMSIZ": NameSize, "IFNAMSIZ": IfNameSize,
		"NS_BUF_CHANGED": BufChanged, "NS_REPORT": Report, "NS_FORWARD": Forward, "NS_INDIRECT": Indirect, "NS_MOREFRAG": MoreFrag,
		"NI_PRIV_MEM":         PrivateMemory,
		"NETMAP_REQ_REGISTER": ReqRegister, "NETMAP_REQ_PORT_INFO_GET": ReqPortInfo, "NETMAP_REQ_POOLS_INFO_GET": ReqPools,
		"NR_EXCLUSIVE": Exclusive, "NR_RX_RINGS_ONLY": RXRingsOnly, "NR_TX_RINGS_ONLY": TXRingsOnly, "NR_NO_TX_POLL": NoTXPoll,
		"NR_REG_ALL_NIC": ModeAllNIC, "NR_REG_SW": ModeSW, "NR_REG_NIC_SW": ModeNICSW, "NR_REG_ONE_NIC": ModeOneNIC,
		"NR_REG_NULL": ModeNull, "NR_REG_ONE_SW": ModeOneSW,
	}
	for _, arch := range []map[string]int64{f.AMD64.Constants, f.I386.Constants} {
		for name, want := range arch {
			if g, ok := got[name]; !ok || g != want {
				t.Errorf("%s = %#x, want %#x", name, g, want)
			}
		}
	}
}

func TestIoctlNumbers(t *testing.T) {
	f := readFacts(t)
	want := map[string]map[string]int64{"linux": f.Linux, "freebsd": f.FreeBSD}[runtime.GOOS]
	got := map[string]uint{"NIOCCTRL": CTRL, "NIOCTXSYNC": TXSync, "NIOCRXSYNC": RXSync}
	for name, g := range got {
		if int64(g) != int64(want[name]) {
			t.Errorf("%s = %#x, want %#x", name, g, want[name])
		}
	}
}
