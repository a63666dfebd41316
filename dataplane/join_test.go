package dataplane_test

import (
	"bytes"
	"slices"
	"testing"

	"nmfwd/dataplane"
)

// TestJoin makes one slot of several, where a buffer is long enough for all.
func TestJoin(t *testing.T) {
	const more = dataplane.More
	for _, c := range []struct {
		name string
		off  int // of the first slot
		lens []int
		most int
		want int // offset of the frame, -1 where it stays in its slots
	}{
		{"two", 0, []int{60, 30}, 100, 0},
		{"three", 8, []int{30, 1, 59}, 100, 8},
		{"one", 0, []int{60}, 100, 0},
		{"with an empty slot", 0, []int{60, 0, 10}, 100, 0},
		{"as long as a buffer", 0, []int{60, 40}, 100, 0},
		{"moved to the start of the buffer", 20, []int{60, 40}, 100, 0},
		{"moved over itself", 5, []int{90, 10}, 100, 0},
		{"one byte longer than a buffer", 0, []int{60, 41}, 200, -1},
		{"one byte longer than is taken", 0, []int{60, 31}, 90, -1},
		{"much longer", 0, []int{100, 100, 100}, 1000, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := dataplane.NewRegion("test", make([]byte, 4*100), 100, nil)
			var s []dataplane.Slot
			var frame []byte
			for i, n := range c.lens {
				x := dataplane.Slot{Buf: uint32(3 - i), Len: uint16(n), Flags: more | 1<<8}
				if i == 0 {
					x.Off = uint16(c.off)
				}
				for j := range r.Bytes(&x) {
					r.Bytes(&x)[j] = byte(len(frame))
					frame = append(frame, byte(len(frame)))
				}
				s = append(s, x)
			}
			s[len(s)-1].Flags &^= more
			before := slices.Clone(s)
			got := r.Join(s, c.most)
			if want := c.want >= 0; got != want {
				t.Fatalf("joined %t, want %t", got, want)
			}
			if !got {
				if !slices.Equal(s, before) {
					t.Errorf("got %+v, want %+v", s, before)
				}
				return
			}
			if s[0].Buf != 3 || int(s[0].Off) != c.want || s[0].Flags != 1<<8 || !bytes.Equal(r.Bytes(&s[0]), frame) {
				t.Errorf("got %+v: %x, want %x", s[0], r.Bytes(&s[0]), frame)
			}
			if !slices.Equal(s[1:], before[1:]) {
				t.Errorf("the other slots: got %+v, want %+v", s[1:], before[1:])
			}
		})
	}
}
