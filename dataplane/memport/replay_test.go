package memport

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"nmfwd/dataplane"
)

// A record is a frame in a capture.
type record struct {
	when  time.Time
	frame []byte
	orig  int // length on the wire, 0 for that of frame
}

func at(sec, nsec int64) time.Time { return time.Unix(sec, nsec).UTC() }

// pcap writes a capture in one of the four classic forms.
func pcap(order binary.AppendByteOrder, nano bool, link uint32, recs ...record) []byte {
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

// pcapng writes a capture with one interface.
func pcapng(order binary.AppendByteOrder, link uint16, recs ...record) []byte {
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

func readAll(s *Source) ([]record, error) {
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
		{"microseconds, little-endian", pcap(binary.LittleEndian, false, 1, recs...)},
		{"microseconds, big-endian", pcap(binary.BigEndian, false, 1, recs...)},
		{"nanoseconds, little-endian", pcap(binary.LittleEndian, true, 1, recs...)},
		{"nanoseconds, big-endian", pcap(binary.BigEndian, true, 1, recs...)},
		{"FCS length in the link type", pcap(binary.LittleEndian, false, 0x24000001, recs...)},
		{"pcapng, little-endian", pcapng(binary.LittleEndian, 1, recs...)},
		{"pcapng, big-endian", pcapng(binary.BigEndian, 1, recs...)},
		{"gzip, pcap", gzipped(pcap(binary.LittleEndian, false, 1, recs...))},
		{"gzip, pcapng", gzipped(pcapng(binary.LittleEndian, 1, recs...))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := NewSource("x", bytes.NewReader(tt.file))
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
	good := pcap(binary.LittleEndian, false, 1, record{when: at(1, 0), frame: frame(1, 60)})
	wrongLink := pcapng(binary.LittleEndian, 113, record{when: at(1, 0), frame: frame(1, 60)})
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
		{"link type of pcap", pcap(binary.LittleEndian, false, 101), 0, "link type is 101"},
		{"link type of pcapng", wrongLink, 0, "link type is 113"},
		{"pcapng cut", pcapng(binary.LittleEndian, 1, record{when: at(1, 0), frame: frame(1, 60)})[:100], 0, "EOF"},
		{"gzip of nothing", gzipped(nil), 0, "too short"},
		{"gzip cut", gzipped(good)[:40], 0, "EOF"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "bad.pcap")
			if err := os.WriteFile(name, tt.file, 0o600); err != nil {
				t.Fatal(err)
			}
			r := NewReplay(512, Stride)
			p, err := r.Open(Config{Name: "igb1"}, name, "")
			if err == nil {
				err = r.Err()
				p.Device.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "port igb1") {
				t.Errorf("error %v, want the file, the port and %q in it", err, tt.want)
			}
			if !r.Done() {
				t.Error("not done")
			}
			if got := len(r.Region().Spare()); got != 512 {
				t.Errorf("%d spare buffers left of 512", got)
			}
		})
	}
}

// bounce passes one burst of each port to the next one, as a router of two
// ports would, and returns the number of slots.
func bounce(ports []*dataplane.Port, burst int) int {
	total := 0
	for i, p := range ports {
		s := make([]dataplane.Slot, burst)
		in := p.Queues[0].RX
		s = s[:in.Recv(s)]
		ports[(i+1)%len(ports)].Queues[0].TX.Send(in.Region(), s)
		free := make([]uint32, len(s))
		for j := range s {
			free[j] = s[j].Buf
		}
		in.Release(free)
		total += len(s)
	}
	return total
}

func TestReplay(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, b []byte) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	var a, b, order []record
	for i := range 400 {
		r := record{when: at(1000, int64(i)*1000), frame: frame(uint32(i), 60+i)}
		if i%3 == 0 {
			b = append(b, r)
		} else {
			a = append(a, r)
		}
		order = append(order, r)
	}
	long := record{when: at(1001, 0), frame: frame(9999, 9000)} // five slots
	a = append(a, long)
	aIn, bIn := write("a.pcap", pcap(binary.BigEndian, false, 1, a...)), write("b.pcapng", pcapng(binary.LittleEndian, 1, b...))
	aOut, bOut := filepath.Join(dir, "a-out.pcap"), filepath.Join(dir, "b-out.pcap")

	r := NewReplay(1024, Stride)
	var ports []*dataplane.Port
	for _, f := range []struct{ name, in, out string }{{"a", aIn, aOut}, {"b", bIn, bOut}} {
		p, err := r.Open(Config{Name: f.name, MinFrame: 64}, f.in, f.out)
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, p)
	}
	// Everything received, in order of time.
	var seen []uint32
	tapped := NewCapture(writerFunc(func(b []byte) (int, error) { return len(b), nil }))
	for i := range ports {
		ports[i] = Tap(ports[i], tapped, nil, func() time.Time { return time.Unix(0, 0) })
		ports[i].Queues[0].RX = recorder{ports[i].Queues[0].RX, &seen}
	}
	for rounds := 0; !r.Done(); rounds++ {
		bounce(ports, 7)
		if rounds > 2000 {
			t.Fatal("not done after 2,000 rounds")
		}
	}
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	for i := range order {
		if seen[i] != uint32(i) {
			t.Fatalf("frame %d was received as number %d", seen[i], i)
		}
	}
	// A frame of another region, such as control's, gets the time of the last
	// frame received.
	own := dataplane.NewRegion("control", frame(7, 256), 256, nil)
	ports[1].Queues[0].TX.Send(own, []dataplane.Slot{{Len: 42}})
	for _, p := range ports {
		if err := p.Device.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(r.Region().Spare()); got != 1024 {
		t.Errorf("%d spare buffers left of 1,024", got)
	}

	a = append(a, record{when: at(1001, 0), frame: append(frame(7, 256)[:42], make([]byte, 22)...)})
	for _, f := range []struct {
		name string
		want []record
	}{{bOut, a}, {aOut, b}} {
		s, err := openSource(f.name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := readAll(s)
		if err != nil || len(got) != len(f.want) {
			t.Fatalf("%s: %d frames, %v; want %d", f.name, len(got), err, len(f.want))
		}
		for i, g := range got {
			w := f.want[i]
			for len(w.frame) < 64 {
				w.frame = append(w.frame, 0)
			}
			if !g.when.Equal(w.when) || !bytes.Equal(g.frame, w.frame) {
				t.Errorf("%s: frame %d at %v, %d bytes; want %v, %d", f.name, i, g.when, len(g.frame), w.when, len(w.frame))
			}
		}
		s.close()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

type recorder struct {
	dataplane.RX
	seen *[]uint32
}

func (r recorder) Recv(s []dataplane.Slot) int {
	n := r.RX.Recv(s)
	for i := range s[:n] {
		if i == 0 || s[i-1].Flags&dataplane.More == 0 {
			*r.seen = append(*r.seen, binary.BigEndian.Uint32(r.Region().Bytes(&s[i])))
		}
	}
	return n
}

// TestReplayLost checks that a frame that no burst can hold stalls nothing.
func TestReplayLost(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x.pcap")
	file := pcap(binary.LittleEndian, false, 1,
		record{when: at(1, 0), frame: frame(1, 40000)},
		record{when: at(2, 0), frame: frame(2, 60)})
	if err := os.WriteFile(name, file, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, slots := range []int{4, 256} {
		r := NewReplay(300, Stride)
		p, err := r.Open(Config{Name: "a", RXSlots: slots}, name, "-")
		if err != nil {
			t.Fatal(err)
		}
		if ev, err := p.Queues[0].Descriptor.Before(true); ev != pollIn || err != nil {
			t.Errorf("events %d, %v; want POLLIN", ev, err)
		}
		s := make([]dataplane.Slot, 8)
		if n := p.Queues[0].RX.Recv(s); n != 1 || s[0].Len != 60 {
			t.Errorf("%d slots, first %d bytes; want 1 of 60", n, s[0].Len)
		}
		if c := p.Device.Counters(0); c.RXRingFull != 1 || c.DroppedBytes != 40000 {
			t.Errorf("counters %+v", c)
		}
		if ev, _ := p.Queues[0].Descriptor.Before(true); ev != 0 || !r.Done() {
			t.Errorf("events %d, done %v; want 0, true", ev, r.Done())
		}
	}
}

func TestReplayFiles(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in.pcap")
	if err := os.WriteFile(in, pcap(binary.LittleEndian, false, 1), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link.pcap")
	if err := os.Symlink(in, link); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, in, out, want string
	}{
		{"no such file", filepath.Join(dir, "nope.pcap"), "", "nope.pcap"},
		{"a directory", dir, "", "directory"},
		{"no such folder", in, filepath.Join(dir, "nope", "x.pcap"), "nope"},
		{"same file", in, in, "same file"},
		{"same file by another name", in, link, "same file"},
		{"input of another port", "", in, "already used by port first"},
		{"output of another port", "", filepath.Join(dir, "out.pcap"), "already used by port first"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := NewReplay(1024, Stride)
			// An input that ended is closed and may be written to: keep one open.
			keep := pcap(binary.LittleEndian, false, 1, record{when: at(1, 0), frame: frame(1, 60)})
			if err := os.WriteFile(in, keep, 0o600); err != nil {
				t.Fatal(err)
			}
			first, err := r.Open(Config{Name: "first"}, in, filepath.Join(dir, "out.pcap"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err = r.Open(Config{Name: "second"}, tt.in, tt.out); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
			if got, _ := os.ReadFile(in); !bytes.Equal(got, keep) {
				t.Error("the input was changed")
			}
			first.Device.Close()
			if got := len(r.Region().Spare()); got != 1024 {
				t.Errorf("%d spare buffers left of 1,024", got)
			}
		})
	}
}

// TestReplayDiskFull checks that an output that cannot be written ends the
// replay with an error.
func TestReplayDiskFull(t *testing.T) {
	if _, err := os.Stat("/dev/full"); errors.Is(err, os.ErrNotExist) {
		t.Skip("this system has no /dev/full")
	}
	name := filepath.Join(t.TempDir(), "x.pcap")
	var recs []record
	for i := range 200 {
		recs = append(recs, record{when: at(int64(i), 0), frame: frame(uint32(i), 1000)})
	}
	if err := os.WriteFile(name, pcap(binary.LittleEndian, false, 1, recs...), 0o600); err != nil {
		t.Fatal(err)
	}
	r := NewReplay(1024, Stride)
	p, err := r.Open(Config{Name: "a"}, name, "/dev/full")
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		bounce([]*dataplane.Port{p}, 16)
	}
	if err := r.Err(); err == nil || !r.Done() || !strings.Contains(err.Error(), "/dev/full") {
		t.Errorf("done %v, error %v; want an error that names the file", r.Done(), err)
	}
	if err := p.Device.Close(); err == nil {
		t.Error("Close: no error")
	}
}

func TestTimesNeverGoBack(t *testing.T) {
	in := pcapng(binary.LittleEndian, 1,
		record{when: at(50, 0), frame: frame(1, 60)},
		record{frame: frame(2, 60)}, // without a time
		record{when: at(40, 0), frame: frame(3, 60)})
	s, err := NewSource("x", bytes.NewReader(in))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	c := NewCapture(&out)
	recs, err := readAll(s)
	if err != nil || len(recs) != 3 {
		t.Fatalf("%d frames, %v", len(recs), err)
	}
	for _, r := range recs {
		c.Write(r.when, r.frame)
	}
	c.Flush()
	s, err = NewSource("y", &out)
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
	f.Add(pcap(binary.LittleEndian, false, 1, rec, rec))
	f.Add(pcap(binary.BigEndian, true, 1, rec))
	f.Add(pcapng(binary.LittleEndian, 1, rec, record{frame: frame(2, 61)}))
	f.Add(pcapng(binary.BigEndian, 1, rec))
	f.Add([]byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1 && b[0] == 0x1f && b[1] == 0x8b {
			return // the decompressor is not ours
		}
		s, err := NewSource("x", bytes.NewReader(b))
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
