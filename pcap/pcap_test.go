package pcap

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A record is a frame in a capture.
type record struct {
	when  time.Time
	frame []byte
	orig  int // length on the wire, 0 for that of frame
}

func at(sec, nsec int64) time.Time { return time.Unix(sec, nsec).UTC() }

// classic writes a capture in one of the four classic forms.
func classic(order binary.AppendByteOrder, nano bool, link uint32, recs ...record) []byte {
	magic := uint32(0xa1b2c3d4)
	if nano {
		magic = 0xa1b23c4d
	}
	b := order.AppendUint32(nil, magic)
	b = order.AppendUint16(b, 2)
	b = order.AppendUint16(b, 4)
	for _, v := range []uint32{0, 0, 65535, link} {
		b = order.AppendUint32(b, v)
	}
	for _, r := range recs {
		frac := r.when.Nanosecond()
		if !nano {
			frac /= 1000
		}
		orig := r.orig
		if orig == 0 {
			orig = len(r.frame)
		}
		for _, v := range []int{int(r.when.Unix()), frac, len(r.frame), orig} {
			b = order.AppendUint32(b, uint32(v))
		}
		b = append(b, r.frame...)
	}
	return b
}

// ng writes a capture with one interface.
func ng(order binary.AppendByteOrder, link uint16, recs ...record) []byte {
	var b []byte
	block := func(kind uint32, body []byte) {
		for len(body)%4 != 0 {
			body = append(body, 0)
		}
		n := uint32(12 + len(body))
		b = order.AppendUint32(b, kind)
		b = order.AppendUint32(b, n)
		b = append(b, body...)
		b = order.AppendUint32(b, n)
	}
	shb := order.AppendUint32(nil, 0x1a2b3c4d)
	shb = order.AppendUint16(shb, 1)
	shb = order.AppendUint16(shb, 0)
	shb = order.AppendUint64(shb, 1<<64-1)
	block(0x0a0d0d0a, shb)
	idb := order.AppendUint16(nil, link)
	idb = order.AppendUint16(idb, 0)
	idb = order.AppendUint32(idb, 0)
	block(1, idb)
	for _, r := range recs {
		if r.when.IsZero() { // a simple packet block
			block(3, append(order.AppendUint32(nil, uint32(len(r.frame))), r.frame...))
			continue
		}
		us := uint64(r.when.UnixMicro())
		epb := order.AppendUint32(nil, 0)
		epb = order.AppendUint32(epb, uint32(us>>32))
		epb = order.AppendUint32(epb, uint32(us))
		epb = order.AppendUint32(epb, uint32(len(r.frame)))
		epb = order.AppendUint32(epb, uint32(len(r.frame)))
		block(6, append(epb, r.frame...))
	}
	return b
}

func gzipped(b []byte) []byte {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Write(b)
	w.Close()
	return z.Bytes()
}

func readAll(s *Reader) ([]record, error) {
	var recs []record
	for {
		f, when, err := s.Next()
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return recs, err
		}
		recs = append(recs, record{when: when.UTC(), frame: slices.Clone(f)})
	}
}

func TestFormats(t *testing.T) {
	recs := []record{
		{when: at(1700000000, 123456000), frame: frame(1, 60)},
		{when: at(1700000001, 999999000), frame: frame(2, 1501)},
		{when: at(1700000001, 999999000), frame: frame(3, 61), orig: 1514},
	}
	tests := []struct {
		name string
		file []byte
	}{
		{"microseconds, little-endian", classic(binary.LittleEndian, false, 1, recs...)},
		{"microseconds, big-endian", classic(binary.BigEndian, false, 1, recs...)},
		{"nanoseconds, little-endian", classic(binary.LittleEndian, true, 1, recs...)},
		{"nanoseconds, big-endian", classic(binary.BigEndian, true, 1, recs...)},
		{"FCS length in the link type", classic(binary.LittleEndian, false, 0x24000001, recs...)},
		{"pcapng, little-endian", ng(binary.LittleEndian, 1, recs...)},
		{"pcapng, big-endian", ng(binary.BigEndian, 1, recs...)},
		{"gzip, pcap", gzipped(classic(binary.LittleEndian, false, 1, recs...))},
		{"gzip, pcapng", gzipped(ng(binary.LittleEndian, 1, recs...))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := NewReader("x", bytes.NewReader(tt.file))
			if err != nil {
				t.Fatal(err)
			}
			got, err := readAll(s)
			if err != nil || len(got) != len(recs) {
				t.Fatalf("%d frames, error %v, want %d", len(got), err, len(recs))
			}
			for i, r := range got {
				if !r.when.Equal(recs[i].when) || !bytes.Equal(r.frame, recs[i].frame) {
					t.Errorf("frame %d at %v: %x", i, r.when, r.frame)
				}
			}
		})
	}
}

func TestBadCaptures(t *testing.T) {
	good := classic(binary.LittleEndian, false, 1, record{when: at(1, 0), frame: frame(1, 60)})
	wrongLink := ng(binary.LittleEndian, 113, record{when: at(1, 0), frame: frame(1, 60)})
	huge := slices.Clone(good)
	binary.LittleEndian.PutUint32(huge[32:], 1<<31)
	tests := []struct {
		name   string
		file   []byte
		frames int
		want   string
	}{
		{"empty", nil, 0, "too short"},
		{"two bytes", good[:2], 0, "too short"},
		{"text", []byte("port igb1 198.18.0.205/24\n"), 0, "magic"},
		{"cut in the header", good[:20], 0, "EOF"},
		{"cut in a record header", good[:30], 0, "unexpected EOF"},
		{"cut in a frame", good[:70], 0, "unexpected EOF"},
		{"length of 2 GiB", huge, 0, "length"},
		{"link type of pcap", classic(binary.LittleEndian, false, 101), 0, "link type is 101"},
		{"link type of pcapng", wrongLink, 0, "link type is 113"},
		{"pcapng cut", ng(binary.LittleEndian, 1, record{when: at(1, 0), frame: frame(1, 60)})[:100], 0, "EOF"},
		{"gzip of nothing", gzipped(nil), 0, "too short"},
		{"gzip cut", gzipped(good)[:40], 0, "EOF"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "bad.pcap")
			if err := os.WriteFile(name, tt.file, 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := Open(name)
			if err == nil {
				_, err = readAll(r)
				r.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), name) {
				t.Errorf("error %v, want the file and %q in it", err, tt.want)
			}
		})
	}
}

func TestTimesNeverGoBack(t *testing.T) {
	in := ng(binary.LittleEndian, 1,
		record{when: at(50, 0), frame: frame(1, 60)},
		record{frame: frame(2, 60)}, // without a time
		record{when: at(40, 0), frame: frame(3, 60)})
	s, err := NewReader("x", bytes.NewReader(in))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	c := NewWriter(&out)
	recs, err := readAll(s)
	if err != nil || len(recs) != 3 {
		t.Fatalf("%d frames, %v", len(recs), err)
	}
	for _, r := range recs {
		c.Write(r.when, r.frame)
	}
	c.Flush()
	s, err = NewReader("y", &out)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := readAll(s)
	for i, r := range got {
		if !r.when.Equal(at(50, 0)) {
			t.Errorf("frame %d at %v, want 50 s", i, r.when)
		}
	}
}

// FuzzCapture reads arbitrary files: no panic, no endless loop, and no more
// bytes of frames than the file has.
func FuzzCapture(f *testing.F) {
	rec := record{when: at(1, 0), frame: frame(1, 60)}
	f.Add(classic(binary.LittleEndian, false, 1, rec, rec))
	f.Add(classic(binary.BigEndian, true, 1, rec))
	f.Add(ng(binary.LittleEndian, 1, rec, record{frame: frame(2, 61)}))
	f.Add(ng(binary.BigEndian, 1, rec))
	f.Add([]byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1 && b[0] == 0x1f && b[1] == 0x8b {
			return // the decompressor is not ours
		}
		s, err := NewReader("x", bytes.NewReader(b))
		if err != nil {
			return
		}
		recs, _ := readAll(s)
		n := 0
		for _, r := range recs {
			n += len(r.frame)
		}
		if n > len(b) {
			t.Errorf("%d bytes of frames in a file of %d", n, len(b))
		}
	})
}

// frame returns n bytes that begin with id.
func frame(id uint32, n int) []byte {
	return append(binary.BigEndian.AppendUint32(nil, id), make([]byte, n-4)...)
}
