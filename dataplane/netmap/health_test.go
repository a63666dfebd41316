package netmap_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nmfwd/dataplane"
	"nmfwd/dataplane/netmap"
	"nmfwd/dataplane/netmap/fake"
	"nmfwd/wire"
)

// TestBlocked takes a card down under a worker that has no warning, on a kernel
// whose calls block then. The others go on; so does that worker, in another
// thread, but for the card, until that is up again and the first thread comes
// back.
func TestBlocked(t *testing.T) {
	for _, workers := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
			l := newLab(t, workers, true, false, fake.Card{}, fake.Card{}, fake.Card{})
			l.Blocks = true
			if err := l.router.Start(); err != nil {
				t.Fatal(err)
			}
			for round := range 2 {
				l.card[2].SetUp(false)
				defer l.card[2].SetUp(true)
				await(t, "a worker to block", func() bool { return l.Blocked() == 1 })
				if l.router.Hanging() != 0 {
					t.Error("a thread was replaced by itself")
				}
				netmap.Look(l.ports[2]) // from now on nobody calls
				if !l.router.Replace(l.ports[2].Queues[0].Worker) || l.router.Hanging() != 1 {
					t.Fatal("no other thread")
				}
				got := 0
				for n := range 67 {
					l.card[0].Deliver(0, l.packet(n, 0, 80))
					await(t, "a packet between other ports", func() bool {
						got += len(l.card[1].Sent(0))
						return got == n+1
					})
				}
				if n, h := l.Blocked(), l.router.Hanging(); n != 1 || h != 1 {
					t.Errorf("round %d: %d calls are blocked, %d threads hang, want 1 and 1", round, n, h)
				}
				l.card[2].SetUp(true)
				netmap.Look(l.ports[2])
				await(t, "the thread to come back", func() bool { return l.router.Hanging() == 0 })
				b := l.packet(0, 0, 80)
				copy(b, l.ports[2].MAC)
				l.card[2].Deliver(0, b)
				await(t, "a packet of the card that was down", func() bool { return len(l.card[1].Sent(0)) == 1 })
			}
			l.router.Stop()
			l.conserved(0)
			l.conserved(2)
			l.census()
		})
	}
}

// TestBlockedAtEnd stops a router one of whose threads does not come back.
func TestBlockedAtEnd(t *testing.T) {
	l := newLab(t, 1, true, false, fake.Card{}, fake.Card{})
	l.Blocks = true
	if err := l.router.Start(); err != nil {
		t.Fatal(err)
	}
	l.card[1].SetUp(false)
	await(t, "the worker to block", func() bool { return l.Blocked() == 1 })
	netmap.Look(l.ports[1])
	if !l.router.Replace(0) {
		t.Fatal("no other thread")
	}
	l.router.Stop()
	if n := l.router.Hanging(); n != 1 {
		t.Errorf("%d threads hang, want 1", n)
	}
	l.card[1].SetUp(true)
	await(t, "the thread to come back", func() bool { return l.router.Hanging() == 0 })
}

// TestWatcher: links that go and come are noticed at once, and a
// port known to be down is not called, which the kernel would note.
func TestWatcher(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		t.Run(fmt.Sprintf("no news %v", quiet), func(t *testing.T) {
			l := newRigWatched(t, quiet)
			p := l.ports[0]
			for range 3 {
				for _, f := range []func(bool){l.card[0].SetCarrier, l.card[0].SetUp} {
					f(false)
					await(t, "the link to go", func() bool { return !p.Device.LinkUp() })
					l.pollAll()
					f(true)
					await(t, "the link to come", func() bool { return p.Device.LinkUp() })
					l.pollAll()
				}
			}
			if err := p.Device.(dataplane.Watcher).Changed(); err != nil {
				t.Error(err)
			}
		})
	}
}

// newRigWatched opens two cards that nmfwd itself looks after.
func newRigWatched(t *testing.T, quiet bool) *lab {
	t.Helper()
	r, c := newRig(t, fake.Card{}, fake.Card{})
	r.Quiet = quiet
	ports, err := netmap.Open([]dataplane.PortConfig{config("c0", 1), config("c1", 1)}, netmap.Options{Kernel: r.Kernel, LockDir: r.locks})
	if err != nil {
		t.Fatal(err)
	}
	r.ports = ports
	return &lab{rig: r, card: c, ports: ports}
}

// TestLinkAtOpen: entering netmap mode takes the link down, and Open
// returns when it is back. What is sent from then on is received.
func TestLinkAtOpen(t *testing.T) {
	r, c := newRig(t, fake.Card{Bounce: 20})
	ports, err := netmap.Open([]dataplane.PortConfig{config("c0", 1)}, netmap.Options{Kernel: r.Kernel, LockDir: r.locks})
	if err != nil {
		t.Fatal(err)
	}
	r.ports = ports
	if !ports[0].Device.LinkUp() {
		t.Error("Open returned before the link was back")
	}
	var slots [8]dataplane.Slot
	q := ports[0].Queues[0]
	for n := range 67 {
		c[0].Deliver(0, frame(n, 60))
		r.poll(q.Descriptor)
		if k, _ := forward(slots[:], q.RX, q.TX); k != 1 {
			t.Fatalf("frame %d: %d received", n, k)
		}
	}
}

// TestVanish deletes the interface of a port under two workers: once they have
// let go of it its descriptors are closed, without which it cannot go, its
// packets are dropped as its link is down, and the other port goes on. When the
// interface is back so is the port. The buffers that hand-off rings hold stay
// what they are.
func TestVanish(t *testing.T) {
	for _, cards := range [][]fake.Card{{{}, {}}, {{RXRings: 2, TXRings: 1}}} {
		t.Run(fmt.Sprintf("of %d", len(cards)), func(t *testing.T) {
			l := newLab(t, 2, true, false, cards...)
			others := len(cards) > 1
			p := l.ports[0]
			changed := p.Device.(dataplane.Watcher).Changed
			hairpin := func(port int) bool {
				l.t.Helper()
				b := l.packet(0, 0, 80)
				copy(b, l.ports[port].MAC)
				b[31] = 18 + byte(port)
				b[24], b[25] = 0, 0
				sum := wire.Checksum(b[14:34])
				b[24], b[25] = byte(sum>>8), byte(sum)
				l.card[port].Deliver(0, b)
				for range 3 {
					l.step()
				}
				return len(l.card[port].Sent(0)) == 1
			}
			if !hairpin(0) {
				t.Fatal("nothing forwarded")
			}
			for round := range 3 {
				l.Trace()
				l.card[0].Deliver(0, l.packet(0, 0, 80))
				l.step() // the packet is in the ring, where nobody may look for it later
				l.card[0].SetGone(true)
				for range 2 {
					for _, w := range l.router.Workers() {
						w.Poll(0)
					}
				}
				if err := changed(); !errors.Is(err, unix.EIO) {
					t.Errorf("got %v, want %v", err, unix.EIO)
				}
				netmap.Look(p)
				if p.Device.LinkUp() {
					t.Error("the link is up")
				}
				closes := 0
				for _, s := range l.Trace() {
					if strings.HasPrefix(s, "close") {
						closes++
					}
				}
				if want := len(p.Queues) + len(p.Host) + 1; closes != want {
					t.Errorf("%d descriptors closed, want %d", closes, want)
				}
				var slots [4]dataplane.Slot
				for _, q := range p.Queues {
					if q.RX != nil && q.RX.Recv(slots[:]) != 0 {
						t.Error("frames received from a closed ring")
					}
				}
				l.up[0] = false
				l.publish()
				if others && !hairpin(1) {
					t.Error("the other port does not forward")
				}
				for range 3 {
					l.step()
					netmap.Look(p)
				}
				l.card[0].SetGone(false)
				netmap.Look(p)
				if err := changed(); err != nil || !p.Device.LinkUp() {
					t.Errorf("after its return: %v, link up %v", err, p.Device.LinkUp())
				}
				l.up[0] = true
				l.publish()
				if !hairpin(0) {
					t.Errorf("round %d: nothing forwarded after its return", round)
				}
				l.conserved(0)
				l.census()
			}
		})
	}
}

// TestPreparedBeforeReopened: whoever set the card up is told each time before it
// enters netmap mode again, when nothing of the port is open, and never else.
func TestPreparedBeforeReopened(t *testing.T) {
	var told []string
	l := newLab(t, 1, true, false, fake.Card{}, fake.Card{})
	l.disassemble()
	l.rig.close()
	opt := l.options()
	opt.Prepare = func(port string) {
		told = append(told, port)
		for _, s := range l.Trace() {
			if strings.HasPrefix(s, "register") {
				t.Errorf("told of %s after %q", port, s)
			}
		}
		if l.card[0].Changes%4 != 0 { // both rings and the host's two leave netmap mode
			t.Errorf("told of %s with rings in netmap mode", port)
		}
	}
	l.assemble(1, opt)
	if len(told) > 0 {
		t.Errorf("told at the start: %q", told)
	}
	p := l.ports[0]
	for round := range 3 {
		l.Trace()
		l.card[0].SetGone(true)
		for range 3 {
			l.step()
			netmap.Look(p)
		}
		if len(told) != round {
			t.Fatalf("round %d: told %d times while the card is away", round, len(told))
		}
		l.card[0].Up = false
		l.card[0].SetGone(false)
		netmap.Look(p)
		if len(told) != round {
			t.Fatalf("round %d: told %d times while the card is down", round, len(told))
		}
		l.card[0].SetUp(true)
		netmap.Look(p)
		if len(told) != round+1 || told[round] != "c0" || !p.Device.LinkUp() {
			t.Fatalf("round %d: told %q, link up %t", round, told, p.Device.LinkUp())
		}
	}
	// A card that stalls is reset, too.
	for range 10 {
		l.card[0].Deliver(0, l.packet(0, 0, 80))
		l.step()
		netmap.Check(p)
	}
	l.Trace()
	l.card[0].Wedged = true
	for range 70 {
		l.card[0].Deliver(0, l.packet(0, 0, 80))
		l.step()
		netmap.Check(p)
	}
	if n := p.Device.(dataplane.Staller).Reopened(); uint64(len(told)) != n || n < 3 {
		t.Errorf("told %d times, opened again %d times", len(told), n)
	}
}

// TestComesBackDifferent: a card that comes back with another address or MTU is
// used, and told of until it has what the port was opened with.
func TestComesBackDifferent(t *testing.T) {
	l := newLab(t, 1, true, false, fake.Card{}, fake.Card{})
	p, c := l.ports[0], l.card[0]
	mac, other := c.MAC, net.HardwareAddr{2, 0, 0, 0, 9, 9}
	for _, tt := range []struct {
		mac  net.HardwareAddr
		mtu  int
		want string
	}{{other, 1500, "came back with MAC address 02:00:00:00:09:09: restart nmfwd, or give it " + mac.String()}, {mac, 1280, "came back with MTU 1280: restart nmfwd, or set it to 1500"}, {mac, 1500, ""}} {
		c.SetGone(true)
		for range 3 {
			l.step()
			netmap.Look(p)
		}
		c.MAC, c.MTU = tt.mac, tt.mtu
		c.SetGone(false)
		netmap.Look(p)
		if err := p.Device.(dataplane.Watcher).Changed(); tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("got %v, want %q", err, tt.want)
		}
		if !p.Device.LinkUp() {
			t.Error("it is not used")
		}
	}
}

// TestStopped resets a card, and takes it down, where calls fail meanwhile: the
// port is not opened again, which would reset it once more, and goes on when the
// calls do.
func TestStopped(t *testing.T) {
	for _, tt := range []struct {
		name string
		up   bool
	}{{"reset", true}, {"down", false}} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, 1, true, false, fake.Card{}, fake.Card{})
			c, p := l.card[0], l.ports[0]
			forwarded := func(n int) bool {
				c.Deliver(0, l.packet(n, 0, 80))
				for range 3 {
					l.step()
				}
				return len(l.card[1].Sent(0)) == 1
			}
			if !forwarded(0) {
				t.Fatal("nothing forwarded")
			}
			changes := c.Changes
			c.SetStopped(true)
			c.SetUp(tt.up)
			for range 3 {
				for _, w := range l.router.Workers() {
					w.Poll(0)
				}
			}
			if got := p.Device.LinkUp(); got != tt.up {
				t.Errorf("link up %v, want %v", got, tt.up)
			}
			if err := p.Device.(dataplane.Watcher).Changed(); err != nil {
				t.Error(err)
			}
			c.SetUp(true)
			c.SetStopped(false)
			netmap.Look(p)
			if !forwarded(1) {
				t.Error("nothing forwarded after it")
			}
			if c.Changes != changes {
				t.Errorf("%d rings changed their mode", c.Changes-changes)
			}
		})
	}
}

// TestGoneForGood closes all while an interface is gone.
func TestGoneForGood(t *testing.T) {
	l := newLab(t, 2, true, false, fake.Card{}, fake.Card{})
	for i := range l.card {
		l.card[i].SetGone(true)
	}
	for range 3 {
		l.step()
		netmap.Look(l.ports[0])
		netmap.Look(l.ports[1])
	}
	if s := fmt.Sprint(l.ports[0].Device); !strings.Contains(s, "closed") {
		t.Errorf("got %s", s)
	}
}

// TestSilent: a card that receives, but whose rings do not,
// is reported and opened again, once.
func TestSilent(t *testing.T) {
	l := newLab(t, 1, true, false, fake.Card{}, fake.Card{})
	p, c := l.ports[0], l.card[0]
	stalled := func() bool {
		rx, tx := p.Device.(interface{ Stalled() (rx, tx bool) }).Stalled()
		if tx {
			t.Error("the TX side has stalled")
		}
		return rx
	}
	second := func() {
		c.Deliver(0, l.packet(0, 0, 80))
		l.step()
		netmap.Check(p)
	}
	for range 10 {
		second()
	}
	if stalled() {
		t.Fatal("a port that receives has stalled")
	}
	// Nothing to receive is no stall, nor are a few frames that get lost.
	for range 10 {
		l.step()
		netmap.Check(p)
	}
	c.Wedged = true
	for range 10 {
		second()
		for range 3 {
			l.step()
			netmap.Check(p)
		}
	}
	c.Wedged = false
	second()
	if stalled() {
		t.Fatal("a port that loses a frame now and then has stalled")
	}
	// Nor is a worker that does not look.
	c.Wedged = true
	for range 10 {
		c.Deliver(0, l.packet(0, 0, 80))
		netmap.Check(p)
	}
	if stalled() {
		t.Fatal("a port that nobody looks at has stalled")
	}
	registered := func() (n int) {
		for _, s := range l.Trace() {
			if strings.HasPrefix(s, "register") && strings.Contains(s, " c0 ") {
				n++
			}
		}
		return n
	}
	l.Trace()
	for range 2 { // the counters may be brought up to date less often than they are read
		second()
		l.step()
		netmap.Check(p)
	}
	second()
	if !stalled() || p.Device.LinkUp() {
		t.Fatalf("stalled %v, link up %v", stalled(), p.Device.LinkUp())
	}
	if err := p.Device.(dataplane.Watcher).Changed(); err == nil || !strings.Contains(err.Error(), "stalled: the card receives") {
		t.Errorf("got %v", err)
	}
	l.step()
	netmap.Check(p)
	if n := registered(); n != 3 { // the control descriptor, the queue's, the host's
		t.Errorf("%d registrations, want 3", n)
	}
	if n := p.Device.(dataplane.Staller).Reopened(); n != 1 {
		t.Errorf("opened again %d times, want once", n)
	}
	if stalled() || !p.Device.LinkUp() || c.Wedged {
		t.Fatalf("opened again: stalled %v, link up %v", stalled(), p.Device.LinkUp())
	}
	before := l.counts(0).Packets
	for c.Waiting(0) > 0 {
		l.step()
	}
	l.step()
	if n := l.counts(0).Packets - before; n == 0 {
		t.Error("nothing received after that")
	}
	// It stalls again at once: reported, left alone.
	c.Wedged = true
	for range 10 {
		second()
	}
	if n := registered(); n != 0 || !stalled() || !p.Device.LinkUp() {
		t.Errorf("%d registrations, stalled %v, link up %v", n, stalled(), p.Device.LinkUp())
	}
	// After a minute without it may be opened again.
	c.Wedged = false
	for range 70 {
		second()
	}
	c.Wedged = true
	for range 6 {
		second()
	}
	if n := registered(); n != 3 || stalled() {
		t.Errorf("%d registrations, stalled %v", n, stalled())
	}
	l.census()
}

// TestFull: a card that takes nothing from its TX ring costs its own
// packets, no time and nothing else. It is reported and opened again, once.
func TestFull(t *testing.T) {
	l := newLab(t, 1, true, false, fake.Card{}, fake.Card{TXSlots: 32})
	p, c := l.ports[1], l.card[1]
	changes := c.Changes
	c.Complete = func(n int) int {
		if c.Changes != changes {
			return n
		}
		return 0
	}
	stalled := func() bool {
		rx, tx := p.Device.(interface{ Stalled() (rx, tx bool) }).Stalled()
		if rx {
			t.Error("the RX side has stalled")
		}
		return tx
	}
	back := l.packet(0, 0, 80)
	back[31] = 18 // to the generator's network
	back[24], back[25] = 0, 0
	sum := wire.Checksum(back[14:34])
	back[24], back[25] = byte(sum>>8), byte(sum)
	sent := 0
	for second := range 3 {
		for range 100 {
			l.card[0].Deliver(0, l.packet(sent, 0, 80))
			sent++
			l.card[0].Deliver(0, back)
			before := l.Calls()
			l.step()
			if n := l.Calls() - before; n > 8 {
				t.Fatalf("%d calls in a round of 4 descriptors", n)
			}
			if n := len(l.card[0].Sent(0)); n > 2 {
				t.Fatalf("%d packets by the other port", n)
			}
		}
		if stalled() {
			t.Errorf("stalled after %d s", second)
		}
		netmap.Check(p)
	}
	netmap.Check(p) // of what nobody has looked at
	if stalled() {
		t.Error("stalled without a look")
	}
	l.step()
	netmap.Check(p)
	if !stalled() {
		t.Fatal("not stalled")
	}
	s := l.counts(0)
	if want := uint64(sent - 31); s.Dropped[dataplane.DropTXFull] < want-2 || s.Dropped[dataplane.DropTXFull] > want+2 {
		t.Errorf("%d dropped as tx_full, want about %d: %+v", s.Dropped[dataplane.DropTXFull], want, s)
	}
	if s.Forwarded4 < uint64(sent) {
		t.Errorf("%d forwarded, want %d by the other port", s.Forwarded4, sent)
	}
	l.step()
	netmap.Check(p)
	if !p.Device.LinkUp() || stalled() {
		t.Errorf("opened again: link up %v, stalled %v", p.Device.LinkUp(), stalled())
	}
	c.Sent(0)
	want := l.packet(7, 0, 80)
	l.card[0].Deliver(0, want)
	l.step()
	l.step()
	if got := c.Sent(0); len(got) != 1 || !bytes.Equal(got[0], l.forwarded(want)) {
		t.Errorf("after that: got %x", got)
	}
	for range 3 {
		l.step()
	}
	l.conserved(0)
	l.census()
}

// TestDrain: at the end what was sent leaves, what was
// received and not looked at goes to the host, and what the host gave leaves.
func TestDrain(t *testing.T) {
	for _, tt := range []struct {
		name   string
		done   int // slots completed by a sync
		noted  string
		queued int
	}{
		{"a slow card", 2, "", 20},
		{"a card that takes nothing", 0, "netmap: port c0: 21 slots had not been sent when it was closed", 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, c := newRig(t, fake.Card{})
			var notes []string
			opt := r.options()
			opt.Note = func(s string) { notes = append(notes, s) }
			cfg := config("c0", 1)
			cfg.Host, cfg.Spare = true, tt.queued
			ports, err := netmap.Open([]dataplane.PortConfig{cfg}, opt)
			if err != nil {
				t.Fatal(err)
			}
			r.ports = ports
			c[0].Complete = func(n int) int { return min(n, tt.done) }
			q := ports[0].Queues[0]
			region := q.TX.Region()
			bufs, err := region.Take(tt.queued)
			if err != nil {
				t.Fatal(err)
			}
			s := make([]dataplane.Slot, tt.queued)
			for i := range s {
				s[i] = dataplane.Slot{Buf: bufs[i]}
				s[i].Len = uint16(copy(region.Buffer(bufs[i]), frame(i, 60)))
			}
			if n := q.TX.Send(region, s); n != tt.queued {
				t.Fatalf("%d queued", n)
			}
			for i := range s {
				bufs[i] = s[i].Buf
			}
			region.Give(bufs)
			for i := range 5 {
				c[0].Deliver(0, frame(100+i, 80))
			}
			c[0].FromHost(frame(200, 90))
			r.poll(q.Descriptor)
			r.close()
			sent, host := c[0].Sent(0), c[0].ToHost()
			if len(sent) != tt.queued+1 || !bytes.Equal(sent[tt.queued], frame(200, 90)) {
				t.Errorf("%d frames sent, want %d and the host's", len(sent), tt.queued)
			}
			if len(host) != 5 || !bytes.Equal(host[4], frame(104, 80)) {
				t.Errorf("%d frames to the host, want 5", len(host))
			}
			if tt.noted == "" && notes != nil || tt.noted != "" && !slices.Contains(notes, tt.noted) {
				t.Errorf("noted %q, want %q", notes, tt.noted)
			}
		})
	}
}

// TestDrainOfChains: frames of several slots that nobody took reach the host at the
// end as they do before it, whole or not at all.
func TestDrainOfChains(t *testing.T) {
	r, c := newRigOf(t, jumbo, t.TempDir(), fake.Card{Part: 4096, Interface: netmap.Interface{MTU: 9000}, RXSlots: 128})
	cfg := config("c0", 1)
	cfg.Host = true
	r.open(cfg)
	var want [][]byte
	for _, n := range []int{60, 4200, 9014, 9217, 100, 8192, 12000, 61} {
		f := hiding("\xff\xff\xff\xff\xff\xff", "\x08\x06", n, 4096)
		c[0].Deliver(0, f)
		if n <= jumbo.BufSize {
			want = append(want, f)
		}
	}
	r.pollAll()
	r.close()
	if got := c[0].ToHost(); !slices.EqualFunc(got, want, bytes.Equal) {
		for _, f := range got {
			t.Logf("%d bytes: %x", len(f), f[:min(len(f), 24)])
		}
		t.Errorf("%d frames to the host, want %d", len(got), len(want))
	}
}
