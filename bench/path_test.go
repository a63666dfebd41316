package main

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"nmfwd/dataplane"
)

// variety returns frames of all kinds: forwarded ones, with data and trailers,
// those of every drop reason, and either with random bytes changed.
func variety(t *fibOf) [][]byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	frames := t.flows(table{}, mixed, 400)
	for i, f := range frames {
		switch i % 4 {
		case 1:
			frames[i] = append(f, make([]byte, rnd.IntN(80))...) // a trailer
		case 2:
			frames[i] = f[:len(f)-min(len(f)-54, rnd.IntN(8))]
			binary.BigEndian.PutUint16(frames[i][16:], uint16(len(frames[i])-14)) // to be padded where IPv4
			if frames[i][14] == 0x45 {
				sum4(frames[i])
			}
		}
	}
	for _, f := range faultyFrames {
		frames = append(frames, f.corrupt(t.flows(table{}, f.mix, 1)[0]))
	}
	alert := frame6(1, 64)
	alert[20], alert[54] = 0, 17
	copy(alert[56:], []byte{5, 2, 0, 0, 0, 0})
	frames = append(frames, nil, alert, to("2001:2::205")(frame6(1, 64)), to("198.18.0.205")(frame4(1, 1)), to("198.18.0.255")(frame4(1, 9)), to("ff02::1")(frame6(1, 64)))
	nd := to("2001:2::205")(frame6(1, 255))
	nd[20], nd[54] = 58, 135
	frames = append(frames, nd, to("fe80::9")(bytes.Clone(nd)), withOptions(1, 1, 1, 0)(frame4(1, 64)))
	arp := frame4(1, 64)
	arp[13] = 0x06
	frames = append(frames, arp)
	for range 40 { // more of one source than control takes
		frames = append(frames, to("203.0.113.1")(frame4(1, 64)), to("2001:2::1")(frame6(1, 64)))
	}
	for _, vlan := range []byte{0, 1} { // a priority, and a VLAN that is not known
		for _, f := range slices.Clone(frames) {
			if len(f) >= 14 && rnd.IntN(2) == 0 {
				frames = append(frames, slices.Insert(bytes.Clone(f), 12, 0x81, 0, 0xa0, vlan))
			}
		}
	}
	frames = append(frames, []byte("\x00\x0d\xb9\x41\xca\x3d......\x81\x00\xa0"))
	for _, f := range slices.Clone(frames) {
		for range 8 {
			g := bytes.Clone(f)
			for range 1 + rnd.IntN(3) {
				if len(g) > 0 {
					g[rnd.IntN(min(len(g), 64))] = byte(rnd.Uint32())
				}
			}
			if rnd.IntN(2) == 0 && len(g) >= 34 && g[12] == 8 && g[13] == 0 {
				sum4(g)
			}
			frames = append(frames, g)
		}
	}
	return frames
}

// TestPeer compares what the C program sends and counts with what Step does,
// byte for byte.
func TestPeer(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc")
	}
	dir := t.TempDir()
	bin, err := compileC(dir, "step", stepC, "-O2", "-Werror")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		table table
		burst int
		every time.Duration // of all limits
	}{
		{"lab", table{faults: true}, 16, 0},
		{"many routes", table{n4: 20_000, n6: 20_000, faults: true}, 64, time.Millisecond},
		{"many neighbors", table{neighbors: 300, faults: true}, 256, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			fibs, err := c.table.compile()
			if err != nil {
				t.Fatal(err)
			}
			routed := fibs.flows(c.table, mixed, 2000)
			if c.table.n4 > 0 {
				fibs.scatter(routed, 2000)
			}
			frames := append(variety(fibs), routed...)
			b := &bed{feed: once, mix: mixed, burst: c.burst, stride: stride, minFrame: 60, table: fibs, frames: frames}
			if err := b.open(); err != nil {
				t.Fatal(err)
			}
			defer b.close()
			st := b.router.State() // no worker runs yet
			for i := range st.Ports {
				for l := range st.Ports[i].Every {
					st.Ports[i].Every[l] = c.every
				}
			}
			name, result := filepath.Join(dir, "case"), filepath.Join(dir, "result")
			if err := b.writeCase(name); err != nil {
				t.Fatal(err)
			}
			p, err := startPeer(build{"C", bin, func(_ *pathCase, file string) []string { return []string{file} }}, nil, name)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.ask("once %s", result); err != nil {
				t.Fatal(err)
			}
			if err := p.close(); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(result)
			if err != nil {
				t.Fatal(err)
			}
			want := b.once()
			for i := 0; i < len(want) && i < len(got); i++ {
				if got[i] != want[i] {
					t.Fatalf("results differ at byte %d of %d and %d:\nC  %x\nGo %x", i, len(got), len(want), got[i:min(i+96, len(got))], want[i:min(i+96, len(want))])
				}
			}
			if len(got) != len(want) {
				t.Fatalf("C wrote %d bytes, want %d", len(got), len(want))
			}
			var s dataplane.Snapshot
			b.router.Snapshot(&s)
			if in := s.Ports[0].RX[0]; in.Packets != uint64(len(frames)) || in.Forwarded4 < 1000 || in.Forwarded6 < 1000 {
				t.Errorf("too little was compared: %+v", in)
			}
			for k, n := range s.Ports[0].RX[0].Punted {
				k := dataplane.Kind(k)
				limited := k != dataplane.PuntARP && k != dataplane.PuntND && k != dataplane.PuntNeighbor
				if (n > 0) != (c.every > 0 || !limited) {
					t.Errorf("%d frames were punted as %v", n, k)
				}
			}
			for r, n := range s.Ports[0].RX[0].Dropped {
				if r := dataplane.Reason(r); n == 0 && c.name == "lab" && slices.ContainsFunc(faults, func(f dataplane.Reason) bool { return f == r }) {
					t.Errorf("no frame was dropped as %v", r)
				}
			}
		})
	}
}

// faults are the reasons of faultyFrames.
var faults = func() (rs []dataplane.Reason) {
	for _, f := range faultyFrames {
		rs = append(rs, f.reason)
	}
	return rs
}()

// once handles every frame and returns what was sent and counted, in the form
// of the C program's command of this name.
func (b *bed) once() []byte {
	var w []byte
	put := func(vs ...uint64) {
		for _, v := range vs {
			w = binary.LittleEndian.AppendUint64(w, v)
		}
	}
	for b.worker.Step(0) > 0 {
		for i, p := range []interface{ Transmit(int) [][]byte }{b.in, b.out} {
			for _, f := range p.Transmit(0) {
				put(uint64(i), uint64(len(f)))
				w = append(w, f...)
			}
		}
	}
	var s dataplane.Snapshot
	b.router.Snapshot(&s)
	in := s.Ports[0].RX[0]
	put(2, in.Packets, in.Bytes, in.Forwarded4, in.Forwarded6, in.ToHost, in.FromHost)
	put(in.Punted[:]...)
	put(in.Dropped[:]...)
	put(in.Limited4, in.Limited6)
	for _, p := range s.Ports {
		put(p.TX[0].Packets, p.TX[0].Bytes)
	}
	return w
}

// TestPath runs every kind of row once: all packets end as the row says.
func TestPath(t *testing.T) {
	for _, g := range pathGroups() {
		for _, c := range g.cases {
			if c.table.n4 > 0 || c.table.real {
				continue
			}
			b, err := c.bed()
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			b.run(3 * len(b.frames))
			if err := (&contest{pathCase: c, bed: b}).check(); err != nil {
				t.Error(err)
			}
			b.close()
		}
	}
}

// BenchmarkPath measures the Go side of the rows that have targets.
func BenchmarkPath(b *testing.B) {
	seen := make(map[string]bool)
	for _, g := range pathGroups()[:2] {
		for _, c := range g.cases {
			if seen[c.name] || testing.Short() && c.table.n4 > 0 {
				continue
			}
			seen[c.name] = true
			b.Run(c.name, func(b *testing.B) {
				bed, err := c.bed()
				if err != nil {
					b.Fatal(err)
				}
				defer bed.close()
				bed.run(2 * len(bed.frames))
				b.ReportAllocs()
				packets := 0
				for b.Loop() {
					packets += bed.worker.Step(0)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(packets), "ns/pkt")
			})
		}
	}
}
