//go:build integration && linux

package oracle

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nmfwd/cmd/nmfwd/show"
	"nmfwd/test/netns"
	"nmfwd/wire"
)

// Each twin is a router with three ports. Their other ends are the test's, which
// sends and receives frames there, and answers ARP and Neighbor Discovery for the
// hosts that the networks seem to have:
//
//	ends                  router
//	k1 (n1)   ----    p1 10.1.0.1/24 2001:db8:1::1/64
//	k2 (n2)   ----    p2 10.2.0.1/24 2001:db8:2::1/64
//	k3 (n3)   ----    p3 10.3.0.1/24 2001:db8:3::1/64, MTU 1300
//
// Host N of a network has the last byte N in its addresses, also in fe80::N, and in
// the networks that routes put on the link.
const (
	ports    = 3
	smallMTU = 1300 // of the last port

	firstHost, lastHost = 2, 9 // that answer
	lastGateway         = 7    // of routes; hosts behind it may be silent for a while
	silentHost          = 77   // that does not
	markerHost          = 250  // where markers go
)

// patience is the longest that anything may take that the machine does by itself.
const patience = 20 * time.Second

func routerMAC(port int) [6]byte     { return [6]byte{2, 0, 0, 0, 0, byte(port)} }
func hostMAC(port, host int) [6]byte { return [6]byte{2, 0, 0, 1, byte(port), byte(host)} }

// address returns address n of a port's network.
func address(port, n int, v6 bool) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, byte(port), 15: byte(n)})
	}
	return netip.AddrFrom4([4]byte{10, byte(port), 0, byte(n)})
}

// A received frame came out of a port.
type received struct {
	port int
	data string
}

// A twin is one of the routers.
type twin struct {
	name   string
	router *netns.Namespace
	ends   *netns.Namespace
	fds    [ports + 1]int // sockets at the ends, by port
	nl     *netlink.Handle
	index  [ports + 1]int // of the interfaces in router

	control string // socket of nmfwd, empty where the kernel forwards
	log     logged

	up      [ports + 1]bool
	silent  map[[2]int]bool // hosts that do not answer, by port and number
	round   uint32          // of markers
	back    map[[2]int]bool // markers of the round that came back
	got     []received      // since the last batch
	asked   bool            // for a neighbor, since this was cleared
	waiting bool            // for a neighbor that does not answer
	buf     []byte
}

// A logged keeps what a program says.
type logged struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// settings are those of a router's kernel: it forwards, without limits, sends no
// redirects, does not use what has no carrier.
var settings = []string{
	"net/ipv4/ip_forward=1", "net/ipv6/conf/all/forwarding=1", "net/ipv6/conf/default/forwarding=1",
	"net/ipv4/conf/all/rp_filter=0", "net/ipv4/conf/default/rp_filter=0",
	"net/ipv4/conf/all/send_redirects=0", "net/ipv4/conf/default/send_redirects=0",
	"net/ipv4/conf/all/ignore_routes_with_linkdown=1", "net/ipv4/conf/default/ignore_routes_with_linkdown=1",
	"net/ipv6/conf/all/ignore_routes_with_linkdown=1", "net/ipv6/conf/default/ignore_routes_with_linkdown=1",
	"net/ipv6/conf/all/keep_addr_on_down=1", "net/ipv6/conf/default/keep_addr_on_down=1",
	"net/ipv4/icmp_errors_use_inbound_ifaddr=1", "net/ipv4/icmp_ratelimit=0", "net/ipv4/icmp_ratemask=0", "net/ipv6/icmp/ratelimit=0", "net/ipv6/icmp/ratemask=\n",
	"net/ipv4/fib_multipath_hash_policy=1", "net/ipv4/fib_multipath_use_neigh=1", "net/ipv6/fib_multipath_hash_policy=1",
	"net/ipv6/auto_flowlabels=0",
}

// neighborSettings are those of each port, in milliseconds and seconds: neighbors are
// asked for when they must be, and not because time passes, and three times within
// what a test may take to answer.
var neighborSettings = []string{
	"base_reachable_time_ms=36000000", "delay_first_probe_time=36000", "gc_stale_time=36000", "retrans_time_ms=100", "locktime=0",
}

// config is what nmfwd is told.
func config(control string) string {
	var b strings.Builder
	for i := 1; i <= ports; i++ {
		fmt.Fprintf(&b, "port p%d addr kernel driver afxdp\n", i)
	}
	fmt.Fprintf(&b, "option routes kernel\noption icmp-rate 1000000/s\noption ip-options forward\noption workers 1\nlisten control %s\n", control)
	return b.String()
}

// newTwin makes a router that the kernel forwards, or the program.
func newTwin(ctx context.Context, name, program, dir string) (_ *twin, err error) {
	w := &twin{name: name, silent: map[[2]int]bool{}, back: map[[2]int]bool{}, buf: make([]byte, 1<<16)}
	for i := range w.fds {
		w.fds[i] = -1
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", name, err), w.close())
		}
	}()
	if w.router, err = netns.New(name); err != nil {
		return nil, err
	}
	if w.ends, err = netns.New(name + " ends"); err != nil {
		return nil, err
	}
	for _, s := range settings {
		key, value, _ := strings.Cut(s, "=")
		if err := w.router.Sysctl(key, value); err != nil {
			return nil, err
		}
	}
	if err := w.ends.Sysctl("net/ipv6/conf/default/disable_ipv6", "1"); err != nil {
		return nil, err
	}
	if err := w.router.Do(func() (err error) {
		w.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	}); err != nil {
		return nil, err
	}
	for i := 1; i <= ports; i++ {
		if err := w.join(i); err != nil {
			return nil, err
		}
	}
	if program != "" {
		if err := w.start(ctx, program, dir); err != nil {
			return nil, err
		}
	}
	for i := 1; i <= ports; i++ {
		if err := w.changed(ctx, i, true); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// join makes port i.
func (w *twin) join(i int) error {
	mac := routerMAC(i)
	p := netns.Port{NS: w.router, Name: fmt.Sprintf("p%d", i), MAC: mac[:], Addrs: []netip.Prefix{
		netip.PrefixFrom(address(i, 1, false), 24), netip.PrefixFrom(address(i, 1, true), 64),
	}}
	e := netns.Port{NS: w.ends, Name: w.end(i)}
	if i == ports {
		p.MTU, e.MTU = smallMTU, smallMTU
	}
	if err := netns.Join(p, e); err != nil {
		return err
	}
	if err := w.router.SetFeature(p.Name, netns.TXChecksum, false); err != nil {
		return err
	}
	for _, s := range neighborSettings {
		key, value, _ := strings.Cut(s, "=")
		for _, family := range []string{"ipv4", "ipv6"} {
			if err := w.router.Sysctl("net/"+family+"/neigh/"+p.Name+"/"+key, value); err != nil {
				return err
			}
		}
	}
	attrs, err := w.router.Port(p.Name)
	if err != nil {
		return err
	}
	w.index[i] = attrs.Index
	attrs, err = w.ends.Port(e.Name)
	if err != nil {
		return err
	}
	return w.ends.Do(func() error {
		const ignoreOutgoing = 23 // PACKET_IGNORE_OUTGOING of linux/if_packet.h
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		w.fds[i] = fd
		for _, o := range [][3]int{{unix.SOL_PACKET, ignoreOutgoing, 1}, {unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8 << 20}} {
			if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
				return os.NewSyscallError("setsockopt", err)
			}
		}
		all := uint16(unix.ETH_P_ALL)<<8 | unix.ETH_P_ALL>>8
		return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: attrs.Index}))
	})
}

// end returns the name of the test's end of port i.
func (w *twin) end(i int) string { return fmt.Sprintf("%c%d", w.name[0], i) }

// start starts nmfwd.
func (w *twin) start(ctx context.Context, program, dir string) error {
	w.control = filepath.Join(dir, w.name+".sock")
	file := filepath.Join(dir, w.name+".conf")
	if err := os.WriteFile(file, []byte(config(w.control)), 0o600); err != nil {
		return err
	}
	cmd := exec.Command(program, "-c", file)
	cmd.Stdout, cmd.Stderr = &w.log, &w.log
	if err := w.router.Start(cmd); err != nil {
		return err
	}
	ended := make(chan error, 1)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	go func() { ended <- w.router.Wait(ctx, cmd) }()
	for {
		// Until it listens there is nothing to ask.
		if err := w.sync(); err == nil {
			return nil
		}
		select {
		case err := <-ended:
			return fmt.Errorf("nmfwd: %v\n%s", err, w.log.String())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (w *twin) close() error {
	for _, fd := range w.fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	if w.nl != nil {
		w.nl.Close()
	}
	var errs []error
	for _, n := range []*netns.Namespace{w.router, w.ends} {
		if n != nil {
			errs = append(errs, n.Close())
		}
	}
	return errors.Join(errs...)
}

// sync returns when nmfwd uses all that the kernel told before.
func (w *twin) sync() error {
	if w.control == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return show.Do(ctx, w.control, &show.Request{Command: "sync"}, io.Discard)
}

// changed follows a change of port i's link, and returns when the kernel has.
func (w *twin) changed(ctx context.Context, i int, up bool) error {
	name := fmt.Sprintf("p%d", i)
	w.up[i] = up
	mac := hostMAC(i, markerHost)
	deadline := time.Now().Add(patience)
	for {
		// The question has the kernel take what a work queue would take later.
		if _, err := w.router.Carrier(name); err != nil {
			return err
		}
		attrs, err := w.router.Port(name)
		if err != nil {
			return err
		}
		ready := (attrs.RawFlags&unix.IFF_RUNNING != 0) == up
		if ready && up {
			addrs, err := w.nl.AddrList(&netlink.Device{LinkAttrs: *attrs}, unix.AF_INET6)
			if err != nil {
				return err
			}
			ready = len(addrs) == 2 && !slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.Flags&unix.IFA_F_TENTATIVE != 0 })
		}
		if ready {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: %s is not as it was set: up %t: flags %#x", w.name, name, up, attrs.RawFlags)
		}
		if err := w.read(time.Millisecond); err != nil {
			return err
		}
	}
	if up {
		if err := w.router.AddNeighbor(name, address(i, markerHost, false), mac[:]); err != nil {
			return err
		}
	}
	return w.sync()
}

// send sends a frame to port i. It is lost if the port is down, or the frame too
// long for it.
func (w *twin) send(i int, b []byte) error {
	_, err := unix.Write(w.fds[i], b)
	if err == unix.ENETDOWN { // which is told once also of before
		_, err = unix.Write(w.fds[i], b)
	}
	if err == unix.EMSGSIZE || !w.up[i] && (err == unix.ENETDOWN || err == unix.ENETUNREACH || err == unix.ENOBUFS) {
		return nil
	}
	return os.NewSyscallError("write", err)
}

// read takes what came out of the ports, waiting for it no longer than given.
func (w *twin) read(wait time.Duration) error {
	var fds []unix.PollFd
	for _, fd := range w.fds[1:] {
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	if _, err := unix.Poll(fds, int(wait.Milliseconds())); err != nil && err != unix.EINTR {
		return os.NewSyscallError("poll", err)
	}
	for i := 1; i <= ports; i++ {
		for {
			n, err := unix.Read(w.fds[i], w.buf)
			if err == unix.EAGAIN {
				break
			}
			if err == unix.ENETDOWN || err == unix.EINTR {
				continue
			}
			if err != nil {
				return os.NewSyscallError("read", err)
			}
			if err := w.take(i, w.buf[:n]); err != nil {
				return err
			}
		}
	}
	return nil
}

// take takes a frame that came out of port i.
func (w *twin) take(i int, b []byte) error {
	switch {
	case len(b) < 14:
	case binary.BigEndian.Uint16(b[12:]) == wire.TypeARP:
		return w.arp(i, b)
	case binary.BigEndian.Uint16(b[12:]) == wire.TypeIPv6 && len(b) >= 14+40+24 && b[14+6] == 58 && b[14+40] == 135:
		return w.solicitation(i, b)
	case len(b) == 14+markerLen && string(b[14+28:14+32]) == "mark":
		if binary.BigEndian.Uint32(b[14+32:]) == w.round {
			w.back[[2]int{int(b[14+36]), i}] = true
		}
		return nil
	}
	w.got = append(w.got, received{i, string(b)})
	return nil
}

// answers returns the MAC address of who has an address on port i, if anyone does.
func (w *twin) answers(i int, a netip.Addr) (mac [6]byte, ok bool) {
	b := a.AsSlice()
	n := int(b[len(b)-1])
	w.asked = true
	if n < firstHost || n > lastHost || w.silent[[2]int{i, n}] {
		w.waiting = true
		return mac, false
	}
	return hostMAC(i, n), true
}

// arp answers a question: offsets are those of RFC 826.
func (w *twin) arp(i int, b []byte) error {
	if len(b) < 14+28 || b[14+7] != 1 {
		return nil
	}
	target := netip.AddrFrom4([4]byte(b[14+24:]))
	mac, ok := w.answers(i, target)
	if !ok {
		return nil
	}
	r := slices.Clone(b[:14+28])
	copy(r, b[6:12])
	copy(r[6:], mac[:])
	r[14+7] = 2
	copy(r[14+18:], b[14+8:14+18]) // who asked
	copy(r[14+8:], mac[:])
	copy(r[14+14:], b[14+24:14+28])
	return w.send(i, r)
}

// solicitation answers a question: offsets are those of RFC 4861, 4.3 and 4.4.
func (w *twin) solicitation(i int, b []byte) error {
	ip := b[14:]
	mac, ok := w.answers(i, netip.AddrFrom16([16]byte(ip[40+8:])))
	if !ok {
		return nil
	}
	r := make([]byte, 14+40+32)
	copy(r, b[6:12])
	copy(r[6:], mac[:])
	r[12], r[13] = 0x86, 0xdd
	p := r[14:]
	p[0], p[5], p[6], p[7] = 0x60, 32, 58, 255
	copy(p[8:], ip[40+8:40+24])
	copy(p[24:], ip[8:24])
	m := p[40:]
	m[0], m[4] = 136, 0x60 // solicited, override
	copy(m[8:], ip[40+8:40+24])
	m[24], m[25] = 2, 1
	copy(m[26:], mac[:])
	src, dst := [16]byte(p[8:]), [16]byte(p[24:])
	binary.BigEndian.PutUint16(m[2:], wire.ChecksumIPv6(&src, &dst, wire.ProtoICMPv6, m))
	return w.send(i, r)
}

// markerLen is the length of a marker: IPv4, UDP, "mark", the round, the port.
const markerLen = 20 + 8 + 4 + 4 + 1

// markers sends a frame from each port that is up to each, and returns when all
// have come back: what was sent before has been decided upon, and what was left on
// the same way has arrived.
func (w *twin) markers() error {
	w.round++
	clear(w.back)
	deadline := time.Now().Add(patience)
	for {
		missing := 0
		for i := 1; i <= ports; i++ {
			for j := 1; j <= ports; j++ {
				if !w.up[i] || !w.up[j] || w.back[[2]int{i, j}] {
					continue
				}
				missing++
				if err := w.send(i, w.marker(i, j)); err != nil {
					return err
				}
			}
		}
		if missing == 0 {
			return nil
		}
		again := time.Now().Add(200 * time.Millisecond)
		for time.Now().Before(again) && len(w.back) < w.pairs() {
			if err := w.read(10 * time.Millisecond); err != nil {
				return err
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: %d markers did not come back: up %v, back %v\n%s", w.name, missing, w.up[1:], w.back, w.shown())
		}
	}
}

// shown returns what nmfwd says of itself.
func (w *twin) shown() string {
	var b strings.Builder
	if w.control != "" {
		for _, what := range []string{"neighbors", "counters", "drops", "routes"} {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			if err := show.Do(ctx, w.control, &show.Request{Command: what}, &b); err != nil {
				fmt.Fprintln(&b, err)
			}
			cancel()
		}
	}
	return b.String()
}

func (w *twin) pairs() (n int) {
	for _, a := range w.up {
		for _, b := range w.up {
			if a && b {
				n++
			}
		}
	}
	return n
}

func (w *twin) marker(i, j int) []byte {
	f := frame{port: i, src: address(i, markerHost+1, false), dst: address(j, markerHost, false), words: map[string]string{}}
	b := f.ipv4(17, make([]byte, markerLen-20), nil)
	binary.BigEndian.PutUint16(b[24:], markerLen-20)
	copy(b[28:], "mark")
	binary.BigEndian.PutUint32(b[32:], w.round)
	b[36] = byte(i)
	dst, src := routerMAC(i), hostMAC(i, markerHost+1)
	return slices.Concat(dst[:], src[:], []byte{8, 0}, b)
}

// settle returns when all that was sent and told has come to its end.
func (w *twin) settle() error {
	deadline := time.Now().Add(patience)
	for {
		w.asked = false
		if err := w.markers(); err != nil { // what was sent has been decided upon
			return err
		}
		if w.control != "" {
			if err := w.sync(); err != nil { // what workers gave to control has been answered
				return err
			}
			if err := w.markers(); err != nil { // and has left
				return err
			}
		}
		resolving := false
		if !w.asked && (w.waiting || w.control != "") { // nmfwd may have asked where nobody hears it
			var err error
			if resolving, err = w.resolving(); err != nil {
				return err
			}
			w.asked = w.waiting || resolving // what came of it is to be seen
			w.waiting = resolving
		}
		if !w.asked {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: neighbors are asked for without end", w.name)
		}
		if resolving {
			if err := w.read(5 * time.Millisecond); err != nil {
				return err
			}
		}
	}
}

// resolving reports whether the kernel waits for the answer of a neighbor.
func (w *twin) resolving() (bool, error) {
	for i := 1; i <= ports; i++ {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			ns, err := w.nl.NeighList(w.index[i], family)
			if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
				return false, err
			}
			if err != nil || slices.ContainsFunc(ns, func(n netlink.Neigh) bool { return n.State&netlink.NUD_INCOMPLETE != 0 }) {
				return true, nil
			}
		}
	}
	return false, nil
}

// forwardedByKernel returns how many packets of IPv4 the kernel forwarded. In the
// router that is nmfwd's there is none that it has to, so that it hides no fault.
func (w *twin) forwardedByKernel() (n int, err error) {
	err = w.router.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		var names []string
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if f[0] != "Ip:" {
				continue
			}
			if names == nil {
				names = f
				continue
			}
			n, err = strconv.Atoi(f[slices.Index(names, "ForwDatagrams")])
			return err
		}
		return errors.New("no counters of IP")
	})
	return n, err
}

// do does a command of a script, and returns what was wrong with it for the system
// to say so. An error is one of the test.
func (w *twin) do(ctx context.Context, line string) (refused string, err error) {
	f := strings.Fields(line)
	var port, host int
	var state string
	switch {
	case f[0] == "ip":
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		_, err := w.router.Output(ctx, f[0], f[1:]...)
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if err != nil {
			refused = strings.ReplaceAll(err.Error(), w.name, "router")
		}
		if n, _ := fmt.Sscanf(line, "ip link set dev p%d %s", &port, &state); n == 2 && err == nil {
			return "", w.changed(ctx, port, state == "up" && w.endUp(port))
		}
		return refused, nil
	case scan(line, "carrier p%d %s", &port, &state):
		set := w.ends.Down
		if state == "up" {
			set = w.ends.Up
		}
		if err := set(w.end(port)); err != nil {
			return "", err
		}
		attrs, err := w.router.Port(fmt.Sprintf("p%d", port))
		if err != nil {
			return "", err
		}
		return "", w.changed(ctx, port, state == "up" && attrs.Flags&net.FlagUp != 0)
	case scan(line, "neighbors p%d", &port):
		for host := firstHost; host <= lastHost; host++ {
			mac := hostMAC(port, host)
			for _, v6 := range []bool{false, true} {
				if err := w.router.AddNeighbor(fmt.Sprintf("p%d", port), address(port, host, v6), mac[:]); err != nil {
					return "", err
				}
			}
		}
		return "", nil
	case scan(line, "host p%d %d %s", &port, &host, &state):
		w.silent[[2]int{port, host}] = state == "silent"
		return "", nil
	}
	return "", fmt.Errorf("%q: no such command", line)
}

func (w *twin) endUp(port int) bool {
	attrs, err := w.ends.Port(w.end(port))
	return err == nil && attrs.Flags&net.FlagUp != 0
}

func scan(line, format string, args ...any) bool {
	n, err := fmt.Sscanf(line, format, args...)
	return n == len(args) && err == nil
}
