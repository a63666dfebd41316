//go:build integration && linux

package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nmfwd/config"
	"nmfwd/dataplane"
	"nmfwd/dataplane/afxdp"
	"nmfwd/router"
	"nmfwd/test/netns"
)

// The table over AF_XDP:
//
//	gA ------ A router B ------ gB
//
// The router's namespace holds the sockets only: worker and control are
// stepped by the test, which sends and receives at the far ends by packet
// sockets. The kernels have no addresses and say nothing by themselves, so
// counters are exact.

// deviceMTU leaves room for the frames that are too long.
const deviceMTU = 2000

// slots is the length of the rings.
const slots = 256

const patience = 10 * time.Second

// An xdp is a Router over AF_XDP.
type xdp struct {
	*Stepped
	far      map[string]*netns.Namespace // far ends by port
	ports    map[string]*dataplane.Port
	sockets  map[string]int // at the far ends
	injected uint64
	before   map[string]uint64 // counters at the last Collect
	stuck    map[string]uint64 // frames that fill a port's transmit ring
}

func newXDP(t *testing.T, text string) *xdp {
	t.Helper()
	cfg, err := config.Parse("routes.conf", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	x := &xdp{far: make(map[string]*netns.Namespace), ports: make(map[string]*dataplane.Port), sockets: make(map[string]int), stuck: make(map[string]uint64)}
	ns := namespace(t, "router")
	var cfgs []dataplane.PortConfig
	for i, p := range cfg.Devices() {
		far := namespace(t, "g"+p.Name)
		err := netns.Join(
			netns.Port{NS: ns, Name: p.Name, MAC: p.MAC, MTU: deviceMTU},
			netns.Port{NS: far, Name: "g" + p.Name, MTU: deviceMTU})
		if err != nil {
			t.Fatal(err)
		}
		x.far[p.Name] = far
		if x.sockets[p.Name], err = packetSocket(far, "g"+p.Name); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(x.sockets[p.Name]) })
		cfgs = append(cfgs, dataplane.PortConfig{
			Name: p.Name, Host: p.Host, MACs: append([]net.HardwareAddr{p.MAC}, p.VMACs...),
			Owners: dataplane.Owners{RX: []int{0}, TX: []int{0}}, Addrs: router.Own(cfg), VLANs: router.VLANs(cfg, i),
		})
	}
	var ports []*dataplane.Port
	err = ns.Do(func() (err error) {
		ports, err = afxdp.Open(cfgs, afxdp.Options{RXSlots: slots, TXSlots: slots})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, p := range slices.Backward(ports) {
			if err := p.Device.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	for _, p := range ports {
		x.ports[p.Name] = p
	}
	if x.Stepped, err = NewStepped(text, ports); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	if x.before, err = x.Counters(); err != nil {
		t.Fatal(err)
	}
	return x
}

func namespace(t *testing.T, name string) *netns.Namespace {
	t.Helper()
	ns := netns.ForTest(t, name)
	if err := ns.Sysctl("net/ipv6/conf/default/disable_ipv6", "1"); err != nil {
		t.Fatal(err)
	}
	return ns
}

// packetSocket returns a socket that sends frames on a port and receives what
// comes in there.
func packetSocket(ns *netns.Namespace, port string) (fd int, err error) {
	err = ns.Do(func() error {
		i, err := net.InterfaceByName(port)
		if err != nil {
			return err
		}
		all := uint16(unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8)
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return fmt.Errorf("packet socket on %s: %w", port, err)
		}
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index}); err != nil {
			return fmt.Errorf("packet socket on %s: %w", port, err)
		}
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20), // a full ring
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1))
	})
	return fd, err
}

func (x *xdp) Inject(port string, frame []byte) error {
	x.injected++
	if _, err := unix.Write(x.sockets[port], frame); err != nil {
		return fmt.Errorf("port %s: frame of %d bytes: %w", port, len(frame), err)
	}
	return nil
}

// MinFrame returns how far the backend pads frames.
func (x *xdp) MinFrame(port string) int { return x.ports[port].MinFrame }

// Collect runs the router until it has counted all frames that were injected,
// then takes as many as it counted sent.
func (x *xdp) Collect() (map[string][][]byte, error) {
	end := time.Now().Add(patience)
	var after map[string]uint64
	for {
		n := x.Step()
		var err error
		if after, err = x.Counters(); err != nil {
			return nil, err
		}
		received := uint64(0)
		for port := range x.ports {
			received += after[port+" receive"] - x.before[port+" receive"]
		}
		if n == 0 && received >= x.injected {
			break
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%d frames injected, %d received after %v", x.injected, received, patience)
		}
	}
	x.held = false
	for x.Step() > 0 {
	}
	before := x.before
	x.before, x.injected = after, 0
	out := make(map[string][][]byte)
	for port, fd := range x.sockets {
		for range x.stuck[port] + after[port+" transmit"] - before[port+" transmit"] {
			f, err := x.receive(fd, end)
			if err != nil {
				return nil, fmt.Errorf("port %s: %d frames arrived of those counted as sent: %w", port, len(out[port]), err)
			}
			out[port] = append(out[port], f)
		}
		out[port] = out[port][x.stuck[port]:]
		// What is here and was not counted.
		if f, err := receive(fd, 0); err == nil {
			out[port] = append(out[port], f)
		}
	}
	clear(x.stuck)
	return out, nil
}

// fill sends by a port until its transmit ring has all buffers that there are for
// it. The kernel takes them when the worker makes system calls again, at the next
// Collect.
func (x *xdp) fill(port string) error {
	x.held = true
	q := x.queue(port)
	for end := time.Now().Add(patience); x.stuck[port] < slots; time.Sleep(time.Millisecond) {
		x.stuck[port] += uint64(fillRing(q))
		if time.Now().After(end) {
			return fmt.Errorf("port %s: %d of %d buffers are back from the kernel after %v", port, x.stuck[port], slots, patience)
		}
	}
	return nil
}

// receive waits for a frame and lets the worker poll meanwhile, since sending
// may take more than one system call.
func (x *xdp) receive(fd int, end time.Time) ([]byte, error) {
	for {
		f, err := receive(fd, 10*time.Millisecond)
		if !errors.Is(err, unix.EAGAIN) || time.Now().After(end) {
			return f, err
		}
		x.Step()
	}
}

// receive returns the next frame that arrives in time, with the tag that the
// kernel takes out of it and tells of apart (packet(7), PACKET_AUXDATA).
func receive(fd int, wait time.Duration) ([]byte, error) {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(wait/time.Millisecond))
	switch {
	case err == unix.EINTR || err == nil && n == 0:
		return nil, unix.EAGAIN
	case err != nil:
		return nil, err
	}
	b, oob := make([]byte, 1<<16), make([]byte, 256)
	n, oobn, _, _, err := unix.Recvmsg(fd, b, oob, unix.MSG_DONTWAIT)
	if err != nil {
		return nil, err
	}
	b = b[:n]
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		// struct tpacket_auxdata: status, len, snaplen (4 bytes each), mac, net,
		// vlan_tci, vlan_tpid (2 bytes each).
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < 20 {
			continue
		}
		if binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0 {
			tci, tpid := binary.NativeEndian.Uint16(m.Data[16:]), binary.NativeEndian.Uint16(m.Data[18:])
			b = slices.Concat(b[:12], []byte{byte(tpid >> 8), byte(tpid), byte(tci >> 8), byte(tci)}, b[12:])
		}
	}
	return b, nil
}

func (x *xdp) Do(e Event) error {
	switch e.Kind {
	case LinkDown, LinkUp:
	case TXFull:
		return x.fill(e.Port)
	default:
		return x.Stepped.Do(e)
	}
	up := e.Kind == LinkUp
	set := x.far[e.Port].Down
	if up {
		set = x.far[e.Port].Up
	}
	if err := set("g" + e.Port); err != nil {
		return err
	}
	for end := time.Now().Add(patience); x.ports[e.Port].Device.LinkUp() != up; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("port %s: link has not changed after %v", e.Port, patience)
		}
	}
	x.Look()
	return nil
}

// TestAFXDP runs the table over AF_XDP, with host off and host on.
func TestAFXDP(t *testing.T) {
	const short = "the kernel sends no frame shorter than an Ethernet header"
	not := map[string]string{"header4/1 byte": short, "header4/13 bytes": short}
	Run(t, []Host{HostOff, HostFirst}, not, func(t *testing.T, config string, _ Host, _ []string) Router { return newXDP(t, config) })
}
