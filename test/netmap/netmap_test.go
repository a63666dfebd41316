//go:build netmap

package netmap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane"
	"nmfwd/dataplane/netmap"
)

// patience bounds every wait for frames: a test that takes so long has failed.
const patience = 60 * time.Second

var soak = os.Getenv("SOAK") == "1"

// TestMain says what the tests ran on, and is the victim of TestKill.
func TestMain(m *testing.M) {
	if port := os.Getenv("NMFWD_TEST_VICTIM"); port != "" {
		victim(port)
	}
	makeTemp()
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		fmt.Printf("%s %s %s\n", unix.ByteSliceToString(u.Sysname[:]), unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:]))
	}
	if err := netmap.Available(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// makeTemp sees to a place for temporary files: a guest may have none but that
// of the test binary.
func makeTemp() {
	d, err := os.MkdirTemp("", "nmfwd")
	if err == nil {
		os.Remove(d)
		return
	}
	if exe, err := os.Executable(); err == nil {
		os.Setenv("TMPDIR", filepath.Dir(exe))
	}
}

// configs makes one-queue ports of worker 0.
func configs(names ...string) []dataplane.PortConfig {
	var c []dataplane.PortConfig
	for _, n := range names {
		c = append(c, dataplane.PortConfig{Name: n, Owners: dataplane.Owners{RX: []int{0}, TX: []int{0}}})
	}
	return c
}

// open opens ports for the time of the test. When the test fails the state of
// the ports is printed.
func open(t *testing.T, cfgs []dataplane.PortConfig) []*dataplane.Port {
	t.Helper()
	ports, err := netmap.Open(cfgs, netmap.Options{LockDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for i := len(ports) - 1; i >= 0; i-- {
			if t.Failed() {
				t.Logf("%+v\n%v", ports[i].Info, ports[i].Device)
			}
			if err := ports[i].Device.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return ports
}

// The addresses of test frames: a card takes what is sent to all.
const (
	anyone = "\xff\xff\xff\xff\xff\xff"
	sender = "\x02\x00\x00\x00\x00\x01"
)

// frame returns the n-th frame of a run: IPv4 and IPv6 in turn, of lengths from
// the shortest to the longest.
func frame(n int) []byte {
	size := 62 + n*7919%1453
	b := make([]byte, size)
	copy(b, anyone)
	copy(b[6:], sender)
	for i := 14; i < size; i++ {
		b[i] = byte(i + n)
	}
	if ip := b[14:]; n%2 == 0 {
		binary.BigEndian.PutUint16(b[12:], 0x0800)
		ip[0], ip[8], ip[9] = 0x45, 64, 17
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	} else {
		binary.BigEndian.PutUint16(b[12:], 0x86dd)
		ip[0], ip[6], ip[7] = 0x60, 17, 64
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40))
	}
	binary.BigEndian.PutUint32(b[size-4:], uint32(n))
	return b
}

// An end sends and receives numbered frames by a queue, and moves frames to
// another one.
type end struct {
	t     *testing.T
	q     dataplane.Queue
	bufs  []uint32 // to send from
	slots [64]dataplane.Slot
	sent  int
	got   int
	made  func(n int) []byte // the frame to send
	want  func(n int) []byte // the frame to receive
}

// newEnd returns an end of queue 0 of a port that was opened with spare
// buffers.
func newEnd(t *testing.T, p *dataplane.Port) *end {
	t.Helper()
	e := &end{t: t, q: p.Queues[0], made: frame, want: frame}
	var err error
	if e.bufs, err = e.q.TX.Region().Take(len(e.slots)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.q.TX.Region().Give(e.bufs) })
	return e
}

// newEnds opens two ports together, which takes as little of netmap's memory as
// can be where the program under test needs what is left.
func newEnds(t *testing.T, a, b string) (*end, *end) {
	t.Helper()
	p := open(t, spare(configs(a, b)))
	return newEnd(t, p[0]), newEnd(t, p[1])
}

// send queues as many frames of the n of a run as go.
func (e *end) send(n int) {
	r := e.q.TX.Region()
	k := min(len(e.slots), n-e.sent)
	s := e.slots[:k]
	for i := range s {
		s[i] = dataplane.Slot{Buf: e.bufs[i]}
		s[i].Len = uint16(copy(r.Buffer(s[i].Buf), e.made(e.sent+i)))
	}
	e.sent += e.q.TX.Send(r, s)
	for i := range s {
		e.bufs[i] = s[i].Buf
	}
}

// receive compares received frames with those of the run, from number got on.
// Frames from other addresses, as the stack of the system sends them by a card
// before it is opened, and what a router announces to a group do not count.
func (e *end) receive() {
	r := e.q.RX.Region()
	s := e.slots[:e.q.RX.Recv(e.slots[:])]
	free := make([]uint32, len(s))
	for i := range s {
		free[i] = s[i].Buf
		got, want := r.Bytes(&s[i]), e.want(e.got)
		if len(got) >= 14 && (!bytes.Equal(got[6:12], want[6:12]) || got[0]&1 > want[0]&1) {
			continue
		}
		if !bytes.Equal(got, want) {
			e.t.Fatalf("frame %d:\n got %x\nwant %x", e.got, got, want)
		}
		e.got++
	}
	e.q.RX.Release(free)
}

// forward moves a burst and returns the number of frames dropped.
func forward(s []dataplane.Slot, from dataplane.RX, to dataplane.TX) int {
	s = s[:from.Recv(s)]
	n := to.Send(from.Region(), s)
	free := make([]uint32, len(s))
	for i := range s {
		free[i] = s[i].Buf
	}
	from.Release(free)
	return len(s) - n
}

// poll drives descriptors as a worker does.
func poll(t *testing.T, wait time.Duration, ds ...dataplane.Descriptor) {
	t.Helper()
	var fds []unix.PollFd
	var polled []dataplane.Descriptor
	for _, d := range ds {
		events, err := d.Before(wait > 0)
		if err != nil {
			t.Fatal(err)
		}
		if events != 0 {
			fds = append(fds, unix.PollFd{Fd: int32(d.FD()), Events: events})
			polled = append(polled, d)
		}
	}
	if _, err := unix.Poll(fds, int(wait.Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
		t.Fatal(err)
	}
	for i, d := range polled {
		if err := d.After(fds[i].Revents); err != nil {
			t.Fatal(err)
		}
	}
}

// spare gives each of the ports buffers to send from, also where all are in one
// region.
func spare(cfgs []dataplane.PortConfig) []dataplane.PortConfig {
	for i := range cfgs {
		cfgs[i].Spare = 64 * len(cfgs)
	}
	return cfgs
}

// TestForward sends numbered frames of both families through two ports: a - b,
// forwarded from b to c, c - d.
func TestForward(t *testing.T) {
	for _, tt := range []struct {
		name       string
		a, b, c, d string
		shared     bool // b and c are in one region
		lossy      bool // a switch drops what a port does not take at once
	}{
		{"pipes of one region", "fwd{1", "fwd}1", "fwd{2", "fwd}2", true, false},
		{"pipes of two regions", "fwa{1", "fwa}1", "fwb{1", "fwb}1", false, false},
		{"vale ports", "vale7:a", "vale7:b", "vale8:c", "vale8:d", false, true},
		{"vale to pipe", "vale7:a", "vale7:b", "fwd{1", "fwd}1", false, true},
	} {
		for _, n := range []int{67, 2048, 100000} {
			t.Run(fmt.Sprintf("%s/%d", tt.name, n), func(t *testing.T) {
				router := open(t, configs(tt.b, tt.c))
				in, out := open(t, spare(configs(tt.a)))[0], open(t, spare(configs(tt.d)))[0]
				b, c := router[0].Queues[0], router[1].Queues[0]
				if got := b.RX.Region() == c.TX.Region(); got != tt.shared {
					t.Errorf("one region: %v, want %v", got, tt.shared)
				}
				a, d := newEnd(t, in), newEnd(t, out)
				var slots [32]dataplane.Slot
				start := time.Now()
				for d.got < n {
					if a.sent < n && (!tt.lossy || a.sent-d.got < 256) {
						a.send(n)
					}
					poll(t, 0, a.q.Descriptor)
					poll(t, 0, b.Descriptor)
					if lost := forward(slots[:], b.RX, c.TX); lost > 0 {
						t.Fatalf("%d frames dropped after %d", lost, d.got)
					}
					poll(t, 0, c.Descriptor)
					poll(t, 0, d.q.Descriptor)
					d.receive()
					if time.Since(start) > patience {
						t.Fatalf("%d of %d frames after %v", d.got, n, patience)
					}
				}
				t.Logf("%d frames, exchange %v: %.0f frames/s", n, tt.shared, float64(n)/time.Since(start).Seconds())
			})
		}
	}
}

// TestLastFrame sends one frame at a time and nothing after it: it has to
// arrive all the same.
func TestLastFrame(t *testing.T) {
	for _, tt := range []struct{ name, a, b string }{
		{"pipe", "last{1", "last}1"},
		{"vale", "vale7:a", "vale7:b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := newEnd(t, open(t, spare(configs(tt.a)))[0]), newEnd(t, open(t, spare(configs(tt.b)))[0])
			for n := 1; n <= 67; n++ {
				a.send(n)
				poll(t, 0, a.q.Descriptor)
				for start := time.Now(); b.got < n; b.receive() {
					poll(t, 100*time.Millisecond, b.q.Descriptor)
					if time.Since(start) > patience {
						t.Fatalf("frame %d has not arrived", n)
					}
				}
			}
		})
	}
}

// TestFullRing fills a pipe that nobody reads, and then reads it: the rings must
// not stay full.
func TestFullRing(t *testing.T) {
	a, b := newEnd(t, open(t, spare(configs("full{1")))[0]), newEnd(t, open(t, spare(configs("full}1")))[0])
	const n = 10000
	for before := -1; before < a.sent; {
		before = a.sent
		a.send(n)
		poll(t, 0, a.q.Descriptor)
	}
	if a.sent == 0 || a.sent >= n {
		t.Fatalf("%d frames fit the pipe", a.sent)
	}
	t.Logf("%d frames fit the pipe", a.sent)
	for start := time.Now(); b.got < n; {
		poll(t, 0, a.q.Descriptor, b.q.Descriptor)
		b.receive()
		a.send(n)
		if time.Since(start) > patience {
			t.Fatalf("stuck after %d sent, %d received", a.sent, b.got)
		}
	}
}

// TestUnequalRings opens VALE ports with other numbers of RX than TX rings and
// more workers than either, and sends by every TX ring.
func TestUnequalRings(t *testing.T) {
	for _, tt := range []struct{ rx, tx, workers int }{{1, 1, 2}, {4, 2, 3}, {2, 4, 3}, {1, 4, 2}, {4, 1, 5}} {
		t.Run(fmt.Sprintf("rx %d tx %d workers %d", tt.rx, tt.tx, tt.workers), func(t *testing.T) {
			o := dataplane.Owners{}
			for i := range tt.rx {
				o.RX = append(o.RX, i%tt.workers)
			}
			for i := range tt.tx {
				o.TX = append(o.TX, (i+1)%tt.workers)
			}
			p := open(t, []dataplane.PortConfig{{Name: "vale7:u", Owners: o, Spare: 64}})[0]
			b := newEnd(t, open(t, spare(configs("vale7:b")))[0])
			n, rx := 0, 0
			for _, q := range p.Queues {
				if q.RX != nil {
					rx++
				}
				if q.TX == nil {
					continue
				}
				e := &end{t: t, q: q, sent: n, made: frame}
				var err error
				if e.bufs, err = q.TX.Region().Take(64); err != nil {
					t.Fatal(err)
				}
				n += 16
				e.send(n)
				poll(t, 0, q.Descriptor)
				q.TX.Region().Give(e.bufs)
			}
			if rx != tt.rx || n != 16*tt.tx {
				t.Errorf("%d RX and %d TX queues, want %d and %d", rx, n/16, tt.rx, tt.tx)
			}
			for start := time.Now(); b.got < n; b.receive() {
				poll(t, 10*time.Millisecond, b.q.Descriptor)
				if time.Since(start) > patience {
					t.Fatalf("%d of %d frames", b.got, n)
				}
			}
		})
	}
}

// TestRestart opens and closes ports again and again, with spare buffers and
// traffic each time.
func TestRestart(t *testing.T) {
	cycles := 30
	if soak {
		cycles = 1000
	}
	goroutines, files := 0, 0
	for i := range cycles {
		if i == 1 {
			goroutines, files = runtime.NumGoroutine(), descriptors(t)
		}
		ok := t.Run(fmt.Sprint(i), func(t *testing.T) {
			p := open(t, spare(configs("vale7:r1", "vale7:r2", "re{1", "re}1")))
			for k := 0; k < 4; k += 2 {
				a, b := newEnd(t, p[k]), newEnd(t, p[k+1])
				a.send(67)
				a.send(67)
				poll(t, 0, a.q.Descriptor)
				for start := time.Now(); b.got < 67; b.receive() {
					poll(t, 10*time.Millisecond, b.q.Descriptor)
					if time.Since(start) > patience {
						t.Fatalf("%d of 67 frames", b.got)
					}
				}
			}
		})
		if !ok {
			return
		}
	}
	if n, m := runtime.NumGoroutine(), descriptors(t); n > goroutines || m > files {
		t.Errorf("%d goroutines and %d descriptors, %d and %d after the first time", n, m, goroutines, files)
	}
}

// descriptors counts the descriptors of this process that are open.
func descriptors(t *testing.T) (n int) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	for fd := range min(int(limit.Cur), 4096) {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			n++
		}
	}
	return n
}

// victim opens a port, says so and waits for its end.
func victim(name string) {
	p, err := netmap.Open(spare(configs(name)), netmap.Options{LockDir: os.Getenv("NMFWD_TEST_LOCKS")})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("open", p[0].Name)
	select {}
}

// TestKill kills a process that has a port open, again and again: the lock and
// the port are free at once, and no memory is lost.
func TestKill(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cycles := 10
	if soak {
		cycles = 200
	}
	locks := t.TempDir()
	for range cycles {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), "NMFWD_TEST_VICTIM=vale7:k", "NMFWD_TEST_LOCKS="+locks)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 256)
		n, _ := out.Read(line)
		if got := string(line[:n]); !strings.HasPrefix(got, "open ") {
			t.Errorf("victim says %q", got)
		}
		if _, err := netmap.Open(configs("vale7:k"), netmap.Options{LockDir: locks}); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), fmt.Sprint(cmd.Process.Pid)) {
			t.Errorf("second open: got %v, want %v and pid %d", err, unix.EBUSY, cmd.Process.Pid)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		p, err := netmap.Open(spare(configs("vale7:k")), netmap.Options{LockDir: locks})
		if err != nil {
			t.Fatal(err)
		}
		if err := p[0].Device.Close(); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			return
		}
	}
}

func TestErrors(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  dataplane.PortConfig
		want error
		text string
	}{
		{"no interface", configs("nmfwdnone0")[0], unix.ENXIO, "no such interface"},
		{"a ring picked", configs("nmfwdnone0-1")[0], nil, "port nmfwdnone0"},
		{"mtu beyond the buffers", dataplane.PortConfig{Name: "vale7:e", Owners: dataplane.Owners{RX: []int{0}, TX: []int{0}}, MTU: 9000}, nil, "buf_size"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := netmap.Open([]dataplane.PortConfig{tt.cfg}, netmap.Options{LockDir: t.TempDir()})
			if err == nil {
				p[0].Device.Close()
				t.Fatal("no error")
			}
			t.Log(err)
			if tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %v with %q", err, tt.want, tt.text)
			}
		})
	}
	if _, err := netmap.Probe("nmfwdnone0"); !errors.Is(err, unix.ENXIO) {
		t.Errorf("Probe: got %v, want %v", err, unix.ENXIO)
	}
	for _, name := range []string{"vale7:probe", "probe{1", "probe}1"} {
		if r, err := netmap.Probe(name); err != nil || r.RX < 1 || r.TX < 1 {
			t.Errorf("Probe(%s) = %+v, %v", name, r, err)
		}
	}
}

// TestCards sends frames from one card of NMFWD_TEST_PORTS to the other, both
// ways. All have to arrive, by any ring: those of one ring in their order.
func TestCards(t *testing.T) {
	one, other := joined(t)
	p := open(t, []dataplane.PortConfig{cardConfig(t, one, false), cardConfig(t, other, false)})
	for _, p := range p {
		waitUp(t, p)
		t.Logf("%+v", p.Info)
	}
	if p[0].Queues[0].RX.Region() != p[1].Queues[0].TX.Region() {
		t.Error("the cards are in two regions")
	}
	for _, way := range [][2]int{{0, 1}, {1, 0}} {
		t.Run("from "+p[way[0]].Name, func(t *testing.T) {
			a, b := newEnd(t, p[way[0]]), p[way[1]]
			const n = 2000
			window := min(128, b.RXSlots/4) // what a ring that is full keeps waiting may come out of order
			seen, got, last := make([]bool, n), 0, make([]int, b.RXRings)
			for i := range last {
				last[i] = -1
			}
			for start := time.Now(); got < n; {
				if a.sent-got < window {
					a.send(n)
				}
				poll(t, 0, a.q.Descriptor)
				receiveAll(t, b, time.Millisecond, func(ring int, f []byte) {
					if len(f) < 62 || !bytes.Equal(f[6:12], []byte(sender)) {
						return // the system's own, from before the port was opened
					}
					k := int(binary.BigEndian.Uint32(f[len(f)-4:]))
					switch {
					case k >= n || !bytes.Equal(f, frame(k)):
						t.Fatalf("ring %d: frame that nobody sent: %x", ring, f)
					case seen[k] || k <= last[ring]:
						t.Fatalf("ring %d: frame %d after frame %d", ring, k, last[ring])
					}
					seen[k], last[ring] = true, k
					got++
				})
				if time.Since(start) > patience {
					missing := 0
					for seen[missing] {
						missing++
					}
					t.Fatalf("%d sent, %d received, first missing %d, last by ring %v", a.sent, got, missing, last)
				}
			}
			t.Logf("last frame by ring: %v", last)
		})
	}
}

// receiveAll waits for a time for frames of all rings of a port, and calls f
// with each, whole where it takes several slots.
func receiveAll(t *testing.T, p *dataplane.Port, wait time.Duration, f func(ring int, frame []byte)) {
	t.Helper()
	var ds []dataplane.Descriptor
	for _, q := range p.Queues {
		ds = append(ds, q.Descriptor)
	}
	poll(t, wait, ds...)
	var slots [64]dataplane.Slot
	for _, q := range p.Queues {
		if q.RX == nil {
			continue
		}
		s := slots[:q.RX.Recv(slots[:])]
		var free []uint32
		var parts []byte
		for i := range s {
			b := q.RX.Region().Bytes(&s[i])
			free = append(free, s[i].Buf)
			if s[i].Flags&dataplane.More != 0 {
				parts = append(parts, b...)
				continue
			}
			if parts != nil {
				b, parts = append(parts, b...), nil
			}
			f(q.Index, b)
		}
		q.RX.Release(free)
	}
}
