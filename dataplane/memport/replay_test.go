package memport

import (
	"bytes"
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
	"nmfwd/pcap"
)

// A record is a frame in a capture.
type record struct {
	when  time.Time
	frame []byte
}

func at(sec, nsec int64) time.Time { return time.Unix(sec, nsec).UTC() }

// capture writes a capture.
func capture(recs ...record) []byte {
	var b bytes.Buffer
	w := pcap.NewWriter(&b)
	for _, r := range recs {
		w.Write(r.when, r.frame)
	}
	w.Flush()
	return b.Bytes()
}

func readAll(r *pcap.Reader) ([]record, error) {
	var recs []record
	for {
		f, when, err := r.Next()
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return recs, err
		}
		recs = append(recs, record{when: when.UTC(), frame: slices.Clone(f)})
	}
}

// TestReplayBadCapture checks that a capture that cannot be read, or not to its
// end, ends the replay with an error that says where.
func TestReplayBadCapture(t *testing.T) {
	good := capture(record{at(1, 0), frame(1, 60)})
	for _, tt := range []struct {
		name string
		file []byte
		want string
	}{
		{"text", []byte("port igb1 198.18.0.205/24\n"), "magic"},
		{"cut in a frame", good[:70], "unexpected EOF"},
	} {
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
	aIn, bIn := write("a.pcap", capture(a...)), write("b.pcap", capture(b...))
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
	tapped := pcap.NewWriter(writerFunc(func(b []byte) (int, error) { return len(b), nil }))
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
		s, err := pcap.Open(f.name)
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
		s.Close()
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
	file := capture(
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
	if err := os.WriteFile(in, capture(), 0o600); err != nil {
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
			keep := capture(record{when: at(1, 0), frame: frame(1, 60)})
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
	if err := os.WriteFile(name, capture(recs...), 0o600); err != nil {
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
