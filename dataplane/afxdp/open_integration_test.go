//go:build integration && linux

package afxdp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"nmfwd/test/frame"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nmfwd/dataplane"
	"nmfwd/test/netns"
)

// The network of these tests, with two queues a port:
//
//	gen g0 ------ igb1 router igb2 ------ x0 sink
//
// The test is the worker: it calls Recv, Send and Release itself.

var (
	macIgb1 = net.HardwareAddr{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x3d}
	macIgb2 = net.HardwareAddr{0x00, 0x0d, 0xb9, 0x41, 0xca, 0x3e}
	macG0   = net.HardwareAddr{0x00, 0x1b, 0x21, 0xc4, 0x95, 0x7a}
	macX0   = net.HardwareAddr{0x00, 0x1b, 0x21, 0xc4, 0x95, 0x7b}
)

const patience = 10 * time.Second

type lab struct {
	gen, router, sink *netns.Namespace
}

func newLab(t testing.TB, queues, mtu int) *lab {
	t.Helper()
	var l lab
	for _, n := range []struct {
		name string
		ns   **netns.Namespace
	}{{"gen", &l.gen}, {"router", &l.router}, {"sink", &l.sink}} {
		ns := netns.ForTest(t, n.name)
		// The kernel sends nothing of its own, so counters are exact.
		if err := ns.Sysctl("net/ipv6/conf/default/disable_ipv6", "1"); err != nil {
			t.Fatal(err)
		}
		*n.ns = ns
	}
	join := func(a, b netns.Port) {
		a.Queues, b.Queues, a.MTU, b.MTU = queues, queues, mtu, mtu
		if err := netns.Join(a, b); err != nil {
			t.Fatal(err)
		}
	}
	join(netns.Port{NS: l.gen, Name: "g0", MAC: macG0}, netns.Port{NS: l.router, Name: "igb1", MAC: macIgb1})
	join(netns.Port{NS: l.router, Name: "igb2", MAC: macIgb2}, netns.Port{NS: l.sink, Name: "x0", MAC: macX0})
	return &l
}

// config returns a port whose queue i belongs to worker i.
func config(name string, queues int, host bool) dataplane.PortConfig {
	var own []int
	for i := range queues {
		own = append(own, i)
	}
	return dataplane.PortConfig{
		Name: name, Host: host, Addrs: ownAddrs, Spare: 32,
		Owners: dataplane.Owners{RX: own, TX: slices.Clone(own)},
	}
}

// tryOpen opens ports in the router's namespace.
func (l *lab) tryOpen(opt Options, cfgs ...dataplane.PortConfig) (ports []*dataplane.Port, err error) {
	err = l.router.Do(func() error {
		ports, err = Open(cfgs, opt)
		return err
	})
	return ports, err
}

func (l *lab) open(t testing.TB, opt Options, cfgs ...dataplane.PortConfig) []*dataplane.Port {
	t.Helper()
	if opt.Note == nil {
		opt.Note = func(s string) { t.Log(s) }
	}
	ports, err := l.tryOpen(opt, cfgs...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(t, ports) })
	return ports
}

func closeAll(t testing.TB, ports []*dataplane.Port) {
	t.Helper()
	for _, p := range slices.Backward(ports) {
		if err := p.Device.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A wire is a packet socket on the far end of a port.
type wire struct {
	t    testing.TB
	send [2]int // by CPU and so by queue
	recv int
}

func newWire(t testing.TB, ns *netns.Namespace, name string) *wire {
	t.Helper()
	w := &wire{t: t}
	index := 0
	if err := ns.Do(func() error {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		index = i.Index
		for _, fd := range []*int{&w.send[0], &w.send[1], &w.recv} {
			if *fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, fd := range []int{w.send[0], w.send[1], w.recv} {
			unix.Close(fd)
		}
	})
	all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
	for fd, protocol := range map[int]uint16{w.send[0]: 0, w.send[1]: 0, w.recv: all} {
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: index, Protocol: protocol}); err != nil {
			t.Fatal(err)
		}
	}
	tv := unix.NsecToTimeval(patience.Nanoseconds())
	if err := errors.Join(
		unix.SetsockoptTimeval(w.recv, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv),
		unix.SetsockoptInt(w.recv, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
		unix.SetsockoptInt(w.recv, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		// The queue follows the CPU only past the queueing discipline.
		unix.SetsockoptInt(w.send[0], unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1),
		unix.SetsockoptInt(w.send[1], unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1),
	); err != nil {
		t.Fatal(err)
	}
	return w
}

// write sends frames from CPU cpu, into the other end's queue of that number.
func (w *wire) write(cpu int, frames ...[]byte) {
	w.t.Helper()
	errs := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, and its affinity with it
		var set unix.CPUSet
		set.Set(cpu)
		err := unix.SchedSetaffinity(0, &set)
		for i := 0; err == nil && i < len(frames); i++ {
			for {
				if _, err = unix.Write(w.send[cpu], frames[i]); !errors.Is(err, unix.ENOBUFS) {
					break
				}
			}
		}
		errs <- err
	}()
	if err := <-errs; err != nil {
		w.t.Fatalf("send: %v", err)
	}
}

// read returns the next n frames.
func (w *wire) read(n int) [][]byte {
	w.t.Helper()
	var frames [][]byte
	buf := make([]byte, 1<<16)
	for len(frames) < n {
		got, err := unix.Read(w.recv, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			w.t.Fatalf("%d frames of %d arrived: %v", len(frames), n, err)
		}
		frames = append(frames, bytes.Clone(buf[:got]))
	}
	return frames
}

// numbered returns n different frames of size bytes to MAC dst.
func numbered(dst net.HardwareAddr, queue, n, size int) [][]byte {
	var frames [][]byte
	for i := range n {
		f := make([]byte, size)
		copy(f, dst)
		copy(f[6:], macG0)
		copy(f[12:], "\x08\x00\x45\x00")
		binary.BigEndian.PutUint16(f[16:], uint16(size-14))
		copy(f[22:], "\x40\x11\x00\x00\xc6\x12\x0a\x01\xc6\x13\x0a\x01")
		binary.BigEndian.PutUint32(f[42:], uint32(queue)<<24|uint32(i))
		for j := 46; j < size; j++ {
			f[j] = byte(i + j)
		}
		frames = append(frames, f)
	}
	return frames
}

// await waits until queue q has frames, as a worker that has nothing to do does.
func await(t testing.TB, q *dataplane.Queue) {
	t.Helper()
	events, err := q.Descriptor.Before(true)
	if err != nil {
		t.Fatal(err)
	}
	fds := []unix.PollFd{{Fd: int32(q.Descriptor.FD()), Events: events}}
	for {
		n, err := unix.Poll(fds, int(patience.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			t.Fatalf("poll queue %d: %d ready, %v", q.Index, n, err)
		}
		break
	}
	if err := q.Descriptor.After(fds[0].Revents); err != nil {
		t.Fatal(err)
	}
}

// move takes at least n frames from one queue and sends them to another, and
// returns how many it took.
func move(t testing.TB, from, to *dataplane.Queue, n int) int {
	t.Helper()
	s := make([]dataplane.Slot, 64)
	free := make([]uint32, 0, len(s))
	moved := 0
	for moved < n {
		got := from.RX.Recv(s)
		if got == 0 {
			await(t, from)
			continue
		}
		if sent := to.TX.Send(from.RX.Region(), s[:got]); sent != got {
			t.Fatalf("sent %d of %d", sent, got)
		}
		if _, err := to.Descriptor.Before(false); err != nil {
			t.Fatal(err)
		}
		free = free[:0]
		for _, sl := range s[:got] {
			free = append(free, sl.Buf)
		}
		from.RX.Release(free)
		moved += got
	}
	return moved
}

// take receives n frames from q.
func take(t testing.TB, q *dataplane.Queue, n int) [][]byte {
	t.Helper()
	s := make([]dataplane.Slot, 64)
	var frames [][]byte
	for len(frames) < n {
		got := q.RX.Recv(s)
		if got == 0 {
			await(t, q)
			continue
		}
		var free []uint32
		for _, sl := range s[:got] {
			frames = append(frames, bytes.Clone(q.RX.Region().Bytes(&sl)))
			free = append(free, sl.Buf)
		}
		q.RX.Release(free)
	}
	return frames
}

// until waits for a condition that another thread or the kernel brings about.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// census fails unless each buffer of the region is in exactly one place.
func census(t testing.TB, ports []*dataplane.Port) {
	t.Helper()
	u := ports[0].Device.(*port).umem
	var where map[uint32]string
	twice := ""
	count := func() bool {
		where, twice = map[uint32]string{}, ""
		put := func(n uint32, place string) {
			if was, ok := where[n]; ok {
				twice = fmt.Sprintf("buffer %d in %s and in %s", n, was, place)
			}
			where[n] = place
		}
		for _, n := range u.region.Spare() {
			put(n, "spare")
		}
		for _, p := range ports {
			for _, s := range p.Device.(*port).sockets {
				if r := s.rx; r != nil {
					for i := r.fill.consumer.Load(); i != r.next; i++ {
						put(uint32(r.fill.addrs[i&r.fill.mask]>>r.shift), fmt.Sprintf("%s fill ring %d", p.Name, s.queue))
					}
					for i := r.cons; i != r.ring.producer.Load(); i++ {
						put(uint32(r.ring.descs[i&r.ring.mask].addr>>r.shift), fmt.Sprintf("%s receive ring %d", p.Name, s.queue))
					}
				}
				if x := s.tx; x != nil {
					for _, n := range x.free {
						put(n, fmt.Sprintf("%s free list %d", p.Name, s.queue))
					}
					for i := x.ring.consumer.Load(); i != x.prod; i++ {
						put(uint32(x.ring.descs[i&x.ring.mask].addr>>x.shift), fmt.Sprintf("%s transmit ring %d", p.Name, s.queue))
					}
					for i := x.cons; i != x.comp.producer.Load(); i++ {
						put(uint32(x.comp.addrs[i&x.comp.mask]>>x.shift), fmt.Sprintf("%s completion ring %d", p.Name, s.queue))
					}
				}
			}
		}
		return len(where) == len(u.mem)/u.frame
	}
	until(t, "all buffers at rest", func() bool { return count() || twice != "" }) // the kernel completes when the other end has taken a frame
	if twice != "" {
		t.Fatal(twice)
	}
}

// same fails unless got holds the frames of want, in any order.
func same(t testing.TB, got, want [][]byte) {
	t.Helper()
	key := func(f []byte) string { return string(f) }
	seen := map[string]int{}
	for _, f := range got {
		seen[key(f)]++
	}
	for i, f := range want {
		if seen[key(f)]--; seen[key(f)] < 0 {
			t.Fatalf("frame %d is missing or differs: %x", i, f[:min(len(f), 64)])
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%d frames, want %d", len(got), len(want))
	}
}

func TestExchange(t *testing.T) {
	for _, test := range []struct {
		name      string
		host      bool
		queues    int
		mtu, size int
		mode      string
		buf       int
	}{
		{"host", true, 2, 1500, 60, "native", 2048},
		{"no host", false, 2, 1500, 60, "native", 2048},
		{"full frames", true, 2, 1500, 1514, "native", 2048},
		// veth has no native XDP for what does not fit a page, and records no
		// queue for generic XDP.
		{"generic", true, 1, 3700, 3714, "generic", 4096},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLab(t, test.queues, test.mtu)
			ports := l.open(t, Options{}, config("igb1", test.queues, test.host), config("igb2", test.queues, test.host))
			for i, p := range ports {
				want := dataplane.Info{
					Name: fmt.Sprintf("igb%d", i+1), MAC: []net.HardwareAddr{macIgb1, macIgb2}[i], Backend: "afxdp", Driver: "veth",
					Mode: test.mode, RXRings: test.queues, TXRings: test.queues, RXSlots: 4096, TXSlots: 2048, BufSize: test.buf - headroom, MTU: test.mtu, Host: test.host,
				}
				if fmt.Sprint(p.Info) != fmt.Sprint(want) {
					t.Errorf("info %+v, want %+v", p.Info, want)
				}
				if !p.Device.LinkUp() {
					t.Errorf("%s: link is down", p.Name)
				}
			}
			census(t, ports)
			gen, sink := newWire(t, l.gen, "g0"), newWire(t, l.sink, "x0")
			const n = 300
			for round := range 3 {
				var sent [][]byte
				for q := range test.queues {
					frames := numbered(macIgb1, q, n, test.size)
					gen.write(q, frames...)
					if got := move(t, &ports[0].Queues[q], &ports[1].Queues[q], n); got != n {
						t.Fatalf("round %d: queue %d received %d, want %d", round, q, got, n)
					}
					sent = append(sent, frames...)
				}
				same(t, sink.read(len(sent)), sent)
			}
			census(t, ports)
			for q := range test.queues {
				for _, p := range ports {
					if got := p.Device.Counters(q); got != (dataplane.DeviceCounters{}) {
						t.Errorf("%s queue %d: %+v, want none", p.Name, q, got)
					}
				}
			}
		})
	}
}

// TestRingTurns moves more frames than any ring has slots, with the smallest
// rings, so that each index passes its size many times.
func TestRingTurns(t *testing.T) {
	l := newLab(t, 1, 1500)
	ports := l.open(t, Options{RXSlots: 64, TXSlots: 64}, config("igb1", 1, false), config("igb2", 1, false))
	gen, sink := newWire(t, l.gen, "g0"), newWire(t, l.sink, "x0")
	var sent [][]byte
	for i := range 100 {
		frames := numbered(macIgb1, i, 40, 60+i)
		gen.write(0, frames...)
		move(t, &ports[0].Queues[0], &ports[1].Queues[0], len(frames))
		sent = append(sent, frames...)
	}
	same(t, sink.read(len(sent)), sent)
	census(t, ports)
}

func TestOrder(t *testing.T) {
	l := newLab(t, 1, 1500)
	ports := l.open(t, Options{}, config("igb1", 1, true), config("igb2", 1, true))
	gen, sink := newWire(t, l.gen, "g0"), newWire(t, l.sink, "x0")
	want := numbered(macIgb1, 0, 2000, 67)
	gen.write(0, want...)
	move(t, &ports[0].Queues[0], &ports[1].Queues[0], len(want))
	for i, got := range sink.read(len(want)) {
		if !bytes.Equal(got, want[i]) {
			t.Fatalf("frame %d is not the one sent", i)
		}
	}
}

// TestRingFull sends more than the ring holds while nobody reads.
func TestRingFull(t *testing.T) {
	l := newLab(t, 1, 1500)
	ports := l.open(t, Options{RXSlots: 64, TXSlots: 64}, config("igb1", 1, false), config("igb2", 1, false))
	gen := newWire(t, l.gen, "g0")
	gen.write(0, numbered(macIgb1, 0, 100, 60)...)
	until(t, "36 frames lost", func() bool { return ports[0].Device.Counters(0).RXRingFull == 36 })
	if got := len(take(t, &ports[0].Queues[0], 64)); got != 64 {
		t.Errorf("%d frames received, want 64", got)
	}
	gen.write(0, numbered(macIgb1, 0, 10, 60)...)
	take(t, &ports[0].Queues[0], 10)
}

func TestCopyFromOtherRegion(t *testing.T) {
	l := newLab(t, 1, 1500)
	ports := l.open(t, Options{TXSlots: 64}, config("igb1", 1, true), config("igb2", 1, true))
	sink := newWire(t, l.sink, "x0")
	other := dataplane.NewRegion("other", make([]byte, 40*2048), 2048, nil)
	want := numbered(macX0, 0, 32, 100)
	var s []dataplane.Slot
	for i, f := range want {
		buf := uint32(i)
		copy(other.Buffer(buf)[7:], f)
		s = append(s, dataplane.Slot{Buf: buf, Off: 7, Len: uint16(len(f))})
	}
	// A frame of three slots becomes one.
	f := numbered(macX0, 1, 1, 1400)[0]
	for i, part := range [][]byte{f[:10], f[10:900], f[900:]} {
		buf := uint32(len(want) + i)
		copy(other.Buffer(buf), part)
		s = append(s, dataplane.Slot{Buf: buf, Len: uint16(len(part)), Flags: dataplane.More})
	}
	s[len(s)-1].Flags = 0
	want = append(want, f)

	q := &ports[1].Queues[0]
	before := slices.Clone(s)
	if got := q.TX.Send(other, s); got != len(s) {
		t.Fatalf("sent %d slots, want %d", got, len(s))
	}
	if !slices.Equal(s, before) {
		t.Error("buffers of the other region were exchanged")
	}
	if _, err := q.Descriptor.Before(false); err != nil {
		t.Fatal(err)
	}
	same(t, sink.read(len(want)), want)
	census(t, ports)
}

// TestHost lets the router's kernel answer ping and ARP, and counts it.
func TestHost(t *testing.T) {
	l := newLab(t, 2, 1500)
	for _, a := range []struct {
		ns   *netns.Namespace
		port string
		addr string
	}{{l.gen, "g0", "198.18.0.203/24"}, {l.router, "igb1", "198.18.0.205/24"}} {
		if err := a.ns.AddAddr(a.port, netip.MustParsePrefix(a.addr)); err != nil {
			t.Fatal(err)
		}
	}
	ports := l.open(t, Options{}, config("igb1", 2, true), config("igb2", 2, true))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if out, err := l.gen.Output(ctx, "ping", "-c3", "-i0.01", "-w5", "198.18.0.205"); err != nil {
		t.Fatalf("ping: %v\n%s", err, out)
	}
	var before [2]dataplane.DeviceCounters
	total := uint64(0)
	for q := range before {
		before[q] = ports[0].Device.Counters(q)
		total += before[q].HostPackets
	}
	if total < 4 {
		t.Errorf("%d packets left to the host, want an ARP request and 3 echo requests at least", total)
	}

	gen := newWire(t, l.gen, "g0")
	var kept [2][][]byte
	for q, n := range [2]int{7, 13} {
		for range n {
			kept[q] = append(kept[q], frame.Hex(t, fromG1(macAA, "88b5", pad+pad+pad)))
		}
		gen.write(q, kept[q]...)
		gen.write(q, numbered(macIgb1, q, 5, 60)...)
		take(t, &ports[0].Queues[q], 5)
	}
	for q := range kept {
		want := before[q]
		want.HostPackets += uint64(len(kept[q]))
		want.HostBytes += uint64(len(kept[q]) * len(kept[q][0]))
		if got := ports[0].Device.Counters(q); got != want {
			t.Errorf("queue %d: %+v, want %+v", q, got, want)
		}
	}

	// After a reload without the address, packets to it are for forwarding.
	if err := ports[0].Device.(dataplane.AddressFilter).SetAddrs(nil); err != nil {
		t.Fatal(err)
	}
	f := frame.Hex(t, v4("c61200cd"))
	gen.write(1, f)
	same(t, take(t, &ports[0].Queues[1], 1), [][]byte{f})
}

// TestNoHost receives all that the XDP program could leave to a host.
func TestNoHost(t *testing.T) {
	l := newLab(t, 2, 1500)
	ports := l.open(t, Options{}, config("igb1", 2, false), config("igb2", 2, false))
	gen := newWire(t, l.gen, "g0")
	var want [][]byte
	for _, v := range verdicts {
		want = append(want, frame.Hex(t, v.frame))
	}
	gen.write(1, want...)
	same(t, take(t, &ports[0].Queues[1], len(want)), want)
	if got := ports[0].Device.Counters(1); got != (dataplane.DeviceCounters{}) {
		t.Errorf("%+v, want none", got)
	}
}

func (l *lab) attrs(t testing.TB, name string) *netlink.LinkAttrs {
	t.Helper()
	a, err := l.router.Port(name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// attached reports whether an XDP program is on the port.
func (l *lab) attached(t testing.TB, name string) bool {
	t.Helper()
	a := l.attrs(t, name)
	return a.Xdp != nil && a.Xdp.Attached
}

// untouched fails unless the port is as it was before it was opened.
func (l *lab) untouched(t testing.TB, name string) {
	t.Helper()
	if l.attached(t, name) {
		t.Errorf("%s: an XDP program is attached", name)
	}
}

// TestMACs has frames for a further address of the port.
func TestMACs(t *testing.T) {
	l := newLab(t, 1, 1500)
	extra := config("igb2", 1, true)
	extra.MACs = []net.HardwareAddr{macIgb2, parseMAC(t, macVRRP)}
	ports := l.open(t, Options{}, config("igb1", 1, false), extra)
	sink := newWire(t, l.sink, "x0")
	f := numbered(extra.MACs[1], 0, 1, 60)
	sink.write(0, f...)
	same(t, take(t, &ports[1].Queues[0], 1), f)
	closeAll(t, ports)
	l.untouched(t, "igb1")
	l.untouched(t, "igb2")
}

const childEnv = "AFXDP_TEST_CHILD"

// TestMain runs a child of TestKill where the environment says so: a process
// that opens both ports and holds them until it is killed.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(m.Run())
	}
	c := config("igb1", 2, false)
	c.MACs = []net.HardwareAddr{{0, 0, 0x5e, 0, 1, 7}}
	if _, err := Open([]dataplane.PortConfig{c, config("igb2", 2, true)}, Options{}); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("open")
	io.Copy(io.Discard, os.Stdin) // until killed, or the parent has gone
	os.Exit(1)
}

func TestKill(t *testing.T) {
	l := newLab(t, 2, 1500)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.router.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "open\n" {
		t.Fatalf("child says %q, %v", line, err)
	}
	if !l.attached(t, "igb1") {
		t.Fatal("the child does not hold igb1")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := l.router.Wait(ctx, cmd); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("child ended with %v, want killed", err)
	}
	l.untouched(t, "igb1")
	l.untouched(t, "igb2")
	l.open(t, Options{}, config("igb1", 2, true), config("igb2", 2, true))
}

// TestUnprivileged opens ports in a process without any capability.
func TestUnprivileged(t *testing.T) {
	l := newLab(t, 2, 1500)
	_, err := l.router.Output(t.Context(), "setpriv", "--bounding-set=-all", "--inh-caps=-all", "env", childEnv+"=1", os.Args[0])
	if err == nil || !strings.Contains(err.Error(), "afxdp: port igb1: ") || !strings.Contains(err.Error(), "needs root, or CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON") {
		t.Errorf("child says: %v", err)
	}
}

func TestInUse(t *testing.T) {
	l := newLab(t, 1, 1500)
	l.open(t, Options{}, config("igb1", 1, true))
	_, err := l.tryOpen(Options{}, config("igb2", 1, false), config("igb1", 1, true))
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), `port igb1: XDP program "nmfwd"`) {
		t.Errorf("second open: %v", err)
	}
	l.untouched(t, "igb2")
	l.open(t, Options{}, config("igb2", 1, true))
}

// TestQueueInUse has the queue, but not the port's XDP hook, taken by another
// program.
func TestQueueInUse(t *testing.T) {
	l := newLab(t, 2, 1500)
	u, err := newUMEM(64, 2048)
	if err != nil {
		t.Fatal(err)
	}
	defer u.unmap()
	u.region = dataplane.NewRegion("", u.mem, 2048, nil)
	s := &socket{port: &port{index: l.attrs(t, "igb2").Index, rxSlots: 64, txSlots: 64}, queue: 1, fd: -1, rxBufs: make([]uint32, 64)}
	defer s.close()
	if err := l.router.Do(func() error { return s.open(u, -1, unix.XDP_COPY) }); err != nil {
		t.Fatal(err)
	}
	_, err = l.tryOpen(Options{}, config("igb1", 2, false), config("igb2", 2, false))
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "port igb2 queue 1: bind: another AF_XDP socket") {
		t.Errorf("open: %v", err)
	}
	l.untouched(t, "igb1")
	l.untouched(t, "igb2")
}

func TestErrors(t *testing.T) {
	l := newLab(t, 2, 1500)
	if err := l.router.SetMTU("igb2", 9000); err != nil {
		t.Fatal(err)
	}
	l.ip(t, "link", "property", "add", "dev", "igb1", "altname", "uplink")
	with := func(f func(*dataplane.PortConfig)) dataplane.PortConfig {
		c := config("igb1", 2, true)
		f(&c)
		return c
	}
	for _, test := range []struct {
		name string
		cfg  dataplane.PortConfig
		opt  Options
		want string
	}{
		{"no interface", config("igb7", 2, true), Options{}, "afxdp: port igb7: no such interface"},
		{"other name", config("uplink", 2, true), Options{}, "afxdp: port uplink: this is another name of igb1: use that"},
		{"no ethernet", config("lo", 1, true), Options{}, "afxdp: port lo: not an Ethernet device"},
		{"interface mtu too large", config("igb2", 2, true), Options{}, "afxdp: port igb2: a frame of MTU 9000 does not fit the largest buffer, 4096 bytes: ip link set dev igb2 mtu 3822"},
		{"mtu too large", with(func(c *dataplane.PortConfig) { c.MTU = 1501 }), Options{}, "afxdp: port igb1: MTU 1501 is more than the interface's 1500: ip link set dev igb1 mtu 1501"},
		{"buffer size", with(func(c *dataplane.PortConfig) { c.BufSize = 3000 }), Options{}, "afxdp: option buffer-size 3000"},
		{"receive slots", config("igb1", 2, true), Options{RXSlots: 1000}, "afxdp: receive ring of 1000 slots"},
		{"transmit slots", config("igb1", 2, true), Options{TXSlots: 32}, "afxdp: transmit ring of 32 slots"},
		{"queue without reader", config("igb1", 1, true), Options{}, "afxdp: port igb1: 1 receive queues have a reader, the device has 2: ethtool --set-channels"},
		{"reader missing", with(func(c *dataplane.PortConfig) { c.Owners.RX[1] = -1 }), Options{}, "afxdp: port igb1: receive queue 1 has no reader"},
		{"too many writers", with(func(c *dataplane.PortConfig) { c.Owners.TX = []int{0, 1, 2} }), Options{}, "afxdp: port igb1: 3 transmit queues wanted, the device has 2"},
		{"zero copy", with(func(c *dataplane.PortConfig) { c.ZeroCopy = true }), Options{}, "afxdp: port igb1: no zero copy: port igb1 queue 0: bind: operation not supported"},
		{"mac", with(func(c *dataplane.PortConfig) { c.MACs = []net.HardwareAddr{{1, 2}} }), Options{}, "afxdp: port igb1: 01:02 is not an Ethernet address"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := l.tryOpen(test.opt, test.cfg); err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("error %v, want %s...", err, test.want)
			}
			l.untouched(t, "igb1")
		})
	}
	if err := l.router.Down("igb1"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.tryOpen(Options{}, config("igb1", 2, true)); err == nil || !strings.Contains(err.Error(), "ip link set dev igb1 up") {
		t.Errorf("port down: %v", err)
	}
	if err := l.router.Up("igb1"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.router.SetMTU("igb1", 3700), l.gen.SetMTU("g0", 3700)); err != nil {
		t.Fatal(err)
	}
	c := config("igb1", 2, true)
	c.Native = true
	if _, err := l.tryOpen(Options{}, c); err == nil || !strings.Contains(err.Error(), "no native XDP") {
		t.Errorf("native: %v", err)
	}
}

// TestOwners opens ports whose sides belong to different workers, or to none.
func TestOwners(t *testing.T) {
	l := newLab(t, 2, 1500)
	in, out := config("igb1", 2, false), config("igb2", 2, false)
	in.Owners = dataplane.Owners{RX: []int{0, 1}, TX: []int{1, 0}}
	out.Owners = dataplane.Owners{RX: []int{1, 0}, TX: []int{0, -1}}
	ports := l.open(t, Options{}, in, out)
	sides := func(p *dataplane.Port) (s []string) {
		for _, q := range p.Queues {
			s = append(s, fmt.Sprintf("%d/%d %t %t", q.Index, q.Worker, q.RX != nil, q.TX != nil))
		}
		return s
	}
	if got, want := sides(ports[0]), []string{"0/0 true false", "0/1 false true", "1/1 true false", "1/0 false true"}; !slices.Equal(got, want) {
		t.Errorf("igb1: %q, want %q", got, want)
	}
	if got, want := sides(ports[1]), []string{"0/1 true false", "0/0 false true", "1/0 true false"}; !slices.Equal(got, want) {
		t.Errorf("igb2: %q, want %q", got, want)
	}
	// Nobody can sleep on a socket that another sends to.
	fds := map[int]int{}
	for _, p := range ports {
		for _, q := range p.Queues {
			if w, ok := fds[q.Descriptor.FD()]; ok && w != q.Worker {
				t.Errorf("%s queue %d: workers %d and %d share a socket", p.Name, q.Index, w, q.Worker)
			}
			fds[q.Descriptor.FD()] = q.Worker
		}
	}
	// Both directions at once: four workers on four sides of two queues.
	gen, sink := newWire(t, l.gen, "g0"), newWire(t, l.sink, "x0")
	const n = 500
	there, back := numbered(macIgb1, 0, n, 60), numbered(macIgb2, 0, n, 60)
	gen.write(0, there...)
	sink.write(0, back...)
	var wg sync.WaitGroup
	wg.Go(func() { move(t, &ports[0].Queues[0], &ports[1].Queues[1], n) })
	wg.Go(func() { move(t, &ports[1].Queues[0], &ports[0].Queues[1], n) })
	wg.Wait()
	same(t, sink.read(n), there)
	same(t, gen.read(n), back)
	census(t, ports)
}

func TestProbe(t *testing.T) {
	l := newLab(t, 2, 1500)
	if err := l.router.Do(func() error {
		probe := func(want dataplane.Rings) error {
			if got, err := Probe("igb1"); err != nil || got != want {
				return fmt.Errorf("%+v, %v, want %+v", got, err, want)
			}
			return nil
		}
		if err := probe(dataplane.Rings{RX: 2, TX: 2}); err != nil {
			return err
		}
		if err := SetQueues("igb1", 1); err != nil {
			return err
		}
		if err := probe(dataplane.Rings{RX: 1, TX: 1}); err != nil {
			return err
		}
		for n, want := range map[int]string{3: "3 queues: the device has 1 to 2", 0: "0 queues"} {
			if err := SetQueues("igb1", n); err == nil || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("%d queues: error %v, want %s", n, err, want)
			}
		}
		if err := SetQueues("lo", 1); err == nil || !strings.Contains(err.Error(), "afxdp: port lo: the driver cannot change") {
			return fmt.Errorf("lo: %v", err)
		}
		if _, err := Probe("igb7"); err == nil || !strings.Contains(err.Error(), "afxdp: port igb7: no such interface") {
			return fmt.Errorf("igb7: %v", err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestLinkDown takes a port down and up again while frames wait to be sent.
func TestLinkDown(t *testing.T) {
	l := newLab(t, 1, 1500)
	ports := l.open(t, Options{TXSlots: 64}, config("igb1", 1, false), config("igb2", 1, false))
	gen, sink := newWire(t, l.gen, "g0"), newWire(t, l.sink, "x0")
	if err := l.router.Down("igb2"); err != nil {
		t.Fatal(err)
	}
	if ports[1].Device.LinkUp() {
		t.Error("link of igb2 is up")
	}
	frames := numbered(macIgb1, 0, 10, 60)
	gen.write(0, frames...)
	move(t, &ports[0].Queues[0], &ports[1].Queues[0], len(frames))
	d := ports[1].Queues[0].Descriptor
	for range 3 {
		if events, err := d.Before(true); err != nil || events != unix.POLLIN {
			t.Fatalf("events %#x, %v, want POLLIN: a sleeping worker would spin", events, err)
		}
	}
	if got := ports[1].Device.Counters(0).TXRingFull; got != 10 {
		t.Errorf("%d frames refused, want 10", got)
	}
	// The other port goes on.
	sent := numbered(macG0, 0, 5, 60)
	s := fill(t, ports[0].Queues[0].TX.Region(), sent)
	if got := ports[0].Queues[0].TX.Send(ports[0].Queues[0].TX.Region(), s); got != len(s) {
		t.Fatalf("sent %d, want %d", got, len(s))
	}
	if _, err := ports[0].Queues[0].Descriptor.Before(false); err != nil {
		t.Fatal(err)
	}
	same(t, gen.read(len(sent)), sent)

	if err := l.router.Up("igb2"); err != nil {
		t.Fatal(err)
	}
	until(t, "link of igb2 up", ports[1].Device.LinkUp)
	if _, err := d.Before(true); err != nil {
		t.Fatal(err)
	}
	same(t, sink.read(len(frames)), frames)
}

// fill takes buffers from the region and writes frames to them.
func fill(t testing.TB, r *dataplane.Region, frames [][]byte) []dataplane.Slot {
	t.Helper()
	bufs, err := r.Take(len(frames))
	if err != nil {
		t.Fatal(err)
	}
	var s []dataplane.Slot
	for i, f := range frames {
		copy(r.Buffer(bufs[i]), f)
		s = append(s, dataplane.Slot{Buf: bufs[i], Len: uint16(len(f))})
	}
	return s
}

// TestLinkRemoved removes an open port: it stays silent, and the other one works.
func TestLinkRemoved(t *testing.T) {
	l := newLab(t, 1, 1500)
	ports := l.open(t, Options{}, config("igb1", 1, false), config("igb2", 1, false))
	gen := newWire(t, l.gen, "g0")
	if err := l.router.Remove("igb2"); err != nil {
		t.Fatal(err)
	}
	if ports[1].Device.LinkUp() {
		t.Error("link of igb2 is up")
	}
	frames := numbered(macIgb1, 0, 10, 60)
	gen.write(0, frames...)
	move(t, &ports[0].Queues[0], &ports[1].Queues[0], len(frames))
	d := ports[1].Queues[0].Descriptor
	events, err := d.Before(true)
	if err != nil || events != unix.POLLIN {
		t.Fatalf("events %#x, %v, want POLLIN", events, err)
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(d.FD()), Events: events}}, 0); n != 0 || err != nil {
		t.Errorf("poll: %d ready, %v: a sleeping worker would spin", n, err)
	}
	if got := ports[1].Queues[0].RX.Recv(make([]dataplane.Slot, 4)); got != 0 {
		t.Errorf("%d frames received from no port", got)
	}
	if got := ports[1].Device.Counters(0).TXRingFull; got != 10 {
		t.Errorf("%d frames refused, want 10", got)
	}
	gen.write(0, frames...)
	same(t, take(t, &ports[0].Queues[0], len(frames)), frames)
	closeAll(t, ports)
	if got := ports[1].Device.Counters(0).TXRingFull; got != 10 {
		t.Errorf("after Close: %d frames refused, want 10", got)
	}
}

// TestChanged changes open ports behind their back. A port that is renamed works
// on; one that is made again under its name is not the one that was opened.
func TestChanged(t *testing.T) {
	l := newLab(t, 1, 1500)
	ports := l.open(t, Options{}, config("igb1", 1, false), config("igb2", 1, false))
	gen, sink := newWire(t, l.gen, "g0"), newWire(t, l.sink, "x0")
	works := func() {
		t.Helper()
		frames := numbered(macIgb1, 0, 5, 60)
		gen.write(0, frames...)
		move(t, &ports[0].Queues[0], &ports[1].Queues[0], len(frames))
		same(t, sink.read(len(frames)), frames)
	}
	w := ports[1].Device.(dataplane.Watcher)
	for _, test := range []struct {
		name, there, back, want string
	}{
		{"mtu", "igb2 mtu 1400", "igb2 mtu 1500", "MTU is now 1400: restart nmfwd, or ip link set dev igb2 mtu 1500"},
		{"mac", "igb2 address 02:00:00:00:00:01", "igb2 address 00:0d:b9:41:ca:3e", "MAC address is now 02:00:00:00:00:01: restart nmfwd, or ip link set dev igb2 address 00:0d:b9:41:ca:3e"},
		{"name", "igb2 name wan", "wan name igb2", "called wan: ip link set dev wan name igb2"},
		{"down", "igb2 down", "igb2 up", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			l.ip(t, append([]string{"link", "set", "dev"}, strings.Fields(test.there)...)...)
			if err := w.Changed(); fmt.Sprint(err) != "<nil>" && test.want == "" || test.want != "" && !strings.Contains(fmt.Sprint(err), test.want) {
				t.Errorf("changed: %v, want %q", err, test.want)
			}
			if up := ports[1].Device.LinkUp(); up != (test.name != "down") {
				t.Errorf("link up: %t", up)
			}
			l.ip(t, append([]string{"link", "set", "dev"}, strings.Fields(test.back)...)...)
			until(t, "link up", ports[1].Device.LinkUp)
			if err := w.Changed(); err != nil {
				t.Errorf("changed back: %v", err)
			}
			works()
		})
	}
	l.ip(t, "link", "set", "dev", "igb2", "name", "wan")
	if !ports[1].Device.LinkUp() {
		t.Error("link of a renamed port is down")
	}
	works()
	if err := l.router.Remove("wan"); err != nil {
		t.Fatal(err)
	}
	if err := netns.Join(netns.Port{NS: l.router, Name: "igb2", MAC: macIgb2}, netns.Port{NS: l.sink, Name: "x0", MAC: macX0}); err != nil {
		t.Fatal(err)
	}
	if ports[1].Device.LinkUp() {
		t.Error("link of a port made again is up")
	}
	if err := w.Changed(); err == nil || !strings.Contains(err.Error(), "has gone: restart nmfwd") {
		t.Errorf("changed: %v", err)
	}
	closeAll(t, ports)
	if err := w.Changed(); err != nil {
		t.Errorf("closed: changed: %v", err)
	}
}

// TestDivert leaves to the host what comes from then on. What came before can
// still be received.
func TestDivert(t *testing.T) {
	l := newLab(t, 2, 1500)
	p := l.open(t, Options{}, config("igb1", 2, true))[0]
	gen := newWire(t, l.gen, "g0")
	want := numbered(macIgb1, 1, 20, 60)
	gen.write(1, want...)
	await(t, &p.Queues[1])
	for range 2 {
		if err := p.Device.(dataplane.Diverter).Divert(); err != nil {
			t.Fatal(err)
		}
	}
	gen.write(1, numbered(macIgb1, 1, 30, 60)...)
	until(t, "50 packets received or left to the host", func() bool {
		return p.Queues[1].RX.(*rx).ring.producer.Load()+uint32(p.Device.Counters(1).HostPackets) == 50
	})
	if got := p.Device.Counters(1).HostPackets; got < 30 {
		t.Errorf("%d packets left to the host, want 30", got)
	}
	same(t, take(t, &p.Queues[1], 50-int(p.Device.Counters(1).HostPackets)), want)
}

// ip runs ip(8) in the router.
func (l *lab) ip(t testing.TB, args ...string) {
	t.Helper()
	if _, err := l.router.Output(t.Context(), "ip", args...); err != nil {
		t.Fatal(err)
	}
}

// TestCloseUnderReaders closes ports while others read their state, as metrics
// and control may.
func TestCloseUnderReaders(t *testing.T) {
	l := newLab(t, 1, 1500)
	ports := l.open(t, Options{RXSlots: 64, TXSlots: 64}, config("igb1", 1, true))
	d := ports[0].Device
	gen := newWire(t, l.gen, "g0")
	gen.write(0, numbered(macIgb2, 0, 9, 60)...) // another's MAC
	until(t, "9 packets left to the host", func() bool { return d.Counters(0).HostPackets == 9 })
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for d.LinkUp() {
				if got := d.Counters(0).HostPackets; got != 9 {
					t.Errorf("%d packets left to the host, want 9", got)
					return
				}
				if err := d.(dataplane.AddressFilter).SetAddrs(ownAddrs); err != nil && !errors.Is(err, net.ErrClosed) {
					t.Error(err)
					return
				}
			}
		})
	}
	closeAll(t, ports)
	wg.Wait()
	if got := d.Counters(0).HostPackets; got != 9 {
		t.Errorf("after Close: %d packets left to the host, want 9", got)
	}
}

// TestCycles opens and closes ports many times, each time at once after the
// last.
func TestCycles(t *testing.T) {
	l := newLab(t, 2, 1500)
	cycle := func() {
		ports, err := l.tryOpen(Options{RXSlots: 1024, TXSlots: 1024}, config("igb1", 2, true), config("igb2", 2, false))
		if err != nil {
			t.Fatal(err)
		}
		closeAll(t, ports)
	}
	for range 5 {
		cycle()
	}
	files, resident := openFiles(t), residentBytes(t)
	cycles := 200
	if testing.Short() {
		cycles = 20
	}
	for range cycles {
		cycle()
	}
	if got := openFiles(t); got > files {
		t.Errorf("%d files open, %d before", got, files)
	}
	// Each cycle maps more than 16 MiB.
	if got := residentBytes(t); got > resident+64<<20 {
		t.Errorf("%d bytes resident, %d before", got, resident)
	}
	l.untouched(t, "igb1")
	l.untouched(t, "igb2")
}

func openFiles(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

func residentBytes(t *testing.T) (n int64) {
	t.Helper()
	runtime.GC()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	if _, err := fmt.Sscan(string(b), &size, &n); err != nil {
		t.Fatal(err)
	}
	return n * int64(os.Getpagesize())
}
