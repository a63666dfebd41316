package afxdp

import "testing"

func TestDefaultSlots(t *testing.T) {
	for _, test := range []struct {
		queues, rx, tx int
	}{{0, 4096, 2048}, {1, 4096, 2048}, {4, 4096, 2048}, {8, 4096, 2048}, {9, 4096, 2048}, {16, 2048, 1024}, {32, 1024, 512}, {128, 1024, 512}} {
		if rx, tx := defaultSlots(test.queues); rx != test.rx || tx != test.tx {
			t.Errorf("%d queues: %d and %d slots, want %d and %d", test.queues, rx, tx, test.rx, test.tx)
		}
	}
}

func TestSlots(t *testing.T) {
	for _, test := range []struct {
		name   string
		opt    Options
		rx, tx int // 0: an error
	}{
		{"default", Options{}, 4096, 2048},
		{"given", Options{RXSlots: 128, TXSlots: 32768}, 128, 32768},
		{"no power of two", Options{RXSlots: 1000}, 0, 0},
		{"too small", Options{TXSlots: 32}, 0, 0},
		{"too large", Options{TXSlots: 65536}, 0, 0},
		{"negative", Options{RXSlots: -64}, 0, 0},
	} {
		rx, tx, err := test.opt.slots(1)
		if rx != test.rx || tx != test.tx || (err == nil) != (test.rx != 0) {
			t.Errorf("%s: %d and %d slots, %v, want %d and %d", test.name, rx, tx, err, test.rx, test.tx)
		}
	}
}

func TestFrameSize(t *testing.T) {
	for _, test := range []struct {
		name            string
		want, page, mtu int
		size            int
		err             string
	}{
		{"ethernet", 0, 4096, 1500, 2048, ""},
		{"last of 2048", 0, 4096, 1774, 2048, ""},
		{"first of 4096", 0, 4096, 1775, 4096, ""},
		{"last of 4096", 0, 4096, 3822, 4096, ""},
		{"first too large", 0, 4096, 3823, 0, "afxdp: port p: a frame of MTU 3823 does not fit the largest buffer, 4096 bytes: ip link set dev p mtu 3822"},
		{"jumbo on large pages", 0, 65536, 9000, 16384, ""},
		{"given", 4096, 4096, 1500, 4096, ""},
		{"given too small", 2048, 4096, 3000, 0, "afxdp: port p: a frame of MTU 3000 does not fit buffers of 2048 bytes: set option buffer-size 4096 or ip link set dev p mtu 1774"},
		{"given, and no size is enough", 2048, 4096, 9000, 0, "afxdp: port p: a frame of MTU 9000 does not fit the largest buffer, 4096 bytes: ip link set dev p mtu 3822"},
		{"no power of two", 3000, 4096, 1500, 0, "afxdp: option buffer-size 3000: want a power of two from 2048 to 4096"},
		{"below the least", 1024, 4096, 500, 0, "afxdp: option buffer-size 1024: want a power of two from 2048 to 4096"},
		{"above the page", 8192, 4096, 1500, 0, "afxdp: option buffer-size 8192: want a power of two from 2048 to 4096"},
		{"negative", -2048, 4096, 1500, 0, "afxdp: option buffer-size -2048: want a power of two from 2048 to 4096"},
	} {
		size, err := frameSize(test.want, test.page, "p", test.mtu)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if size != test.size || got != test.err {
			t.Errorf("%s: %d, %q, want %d, %q", test.name, size, got, test.size, test.err)
		}
	}
}

// TestBufSizeOfNone: where no buffer holds a frame there is no size to be told.
func TestBufSizeOfNone(t *testing.T) {
	for _, mtu := range []int{1 << 20, 1<<16 + 1500} {
		if n, err := BufSize("p", 0, mtu); n != 0 || err == nil {
			t.Errorf("MTU %d: %d bytes, %v", mtu, n, err)
		}
	}
	if n, err := BufSize("p", 3000, 1500); n != 0 || err == nil {
		t.Errorf("a size that cannot be had: %d bytes, %v", n, err)
	}
	if n, err := BufSize("p", 0, 1500); n != 2048-headroom || err != nil {
		t.Errorf("MTU 1500: %d bytes, %v", n, err)
	}
}
