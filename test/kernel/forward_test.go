//go:build integration && linux

package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"nmfwd/test/lab/apu2"
	"nmfwd/test/netns"
)

// TestPing sends echo requests of every size.
func TestPing(t *testing.T) {
	b := newBed(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			p, err := b.Generator.NewPinger(apu2.ReceiverAddrs[f.index].Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			for size := range f.most + 1 {
				if err := p.Ping(size, 2*time.Second); err != nil {
					t.Fatal(err)
				}
			}
			grew := b.settle()
			for _, port := range []string{apu2.IGB1, apu2.IGB2} {
				got := grew.Sum("nmfwd_forwarded_packets_total", `device="`+port+`"`, `family="`+f.ip+`"`)
				if got != float64(f.most+1) {
					t.Errorf("%s forwarded %.0f packets, want %d", port, got, f.most+1)
				}
			}
			// A byte more makes two fragments, which a router forwards like any packet.
			if err := p.Ping(f.most+1, 2*time.Second); err != nil {
				t.Error(err)
			}
			b.settle()
		})
	}
	b.stop()
}

// TestIperf runs iperf3 both ways.
func TestIperf(t *testing.T) {
	b := newBed(t)
	iperfServer(t, b.Receiver, "5201")
	for _, f := range families {
		for _, proto := range []struct {
			name string
			args []string
		}{
			{"TCP", nil},
			{"UDP", []string{"-u", "-b", "10M", "-l", "1400"}},
		} {
			for _, way := range []struct {
				name string
				args []string
			}{{"to receiver", nil}, {"to generator", []string{"-R"}}} {
				t.Run(f.name+" "+proto.name+" "+way.name, func(t *testing.T) {
					lucky(t, func() error {
						before := b.udpOverruns() + b.full()
						lost, err := iperf(t, b.Generator, proto.name == "UDP", append(slices.Concat([]string{apu2.ReceiverAddrs[f.index].Addr().String()}, proto.args), way.args...)...)
						if after := b.udpOverruns() + b.full(); float64(lost) > after-before {
							t.Errorf("%d packets lost, %.0f of them by slow end hosts and where a ring was full", lost, after-before)
						}
						return err
					})
					grew := b.settle("tx_full") // TCP finds the limit by loss
					for _, port := range []string{apu2.IGB1, apu2.IGB2} {
						if grew.Sum("nmfwd_forwarded_packets_total", `device="`+port+`"`, `family="`+f.ip+`"`) == 0 {
							t.Errorf("%s forwarded nothing", port)
						}
					}
				})
			}
		}
	}
	b.stop()
}

// udpOverruns returns how many packets the end hosts received for iperf3 while
// its socket was full.
func (b *bed) udpOverruns() (n float64) {
	b.Helper()
	for _, host := range []*netns.Namespace{b.Generator, b.Receiver} {
		v4, err := snmp(host, "Udp", "RcvbufErrors")
		if err != nil {
			b.Fatal(err)
		}
		v6, err := snmp6(host, "Udp6RcvbufErrors")
		if err != nil {
			b.Fatal(err)
		}
		n += float64(v4 + v6)
	}
	return n
}

// iperf runs iperf3 from a namespace for a second and returns the packets lost, and
// an error when little got through.
func iperf(t *testing.T, from *netns.Namespace, udp bool, to ...string) (lost uint64, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	report, err := from.Output(ctx, "iperf3", append([]string{"-p", "5201", "-t", "1", "-J", "-c"}, to...)...)
	if err != nil {
		return 0, err
	}
	var r struct {
		Error string // as that the server has not done with the test before
		End   struct {
			Sum struct { // UDP
				Bytes       float64
				Packets     float64
				LostPackets float64 `json:"lost_packets"`
			}
			SumReceived struct { // TCP
				Bytes         float64
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal([]byte(report), &r); err != nil {
		t.Fatalf("iperf3: %v: %s", err, report)
	}
	if r.Error != "" {
		return 0, errors.New("iperf3: " + r.Error)
	}
	if !udp {
		t.Logf("%.0f Mbit/s", r.End.SumReceived.BitsPerSecond/1e6)
		if r.End.SumReceived.Bytes < 1e6 {
			err = fmt.Errorf("%.0f bytes received in a second", r.End.SumReceived.Bytes)
		}
		return 0, err
	}
	s := r.End.Sum
	t.Logf("%.0f packets, %.0f lost", s.Packets, s.LostPackets)
	if s.Packets < 300 || s.LostPackets > s.Packets/2 { // about 900 in a second
		err = fmt.Errorf("%.0f packets sent, %.0f lost", s.Packets, s.LostPackets)
	}
	return uint64(s.LostPackets), err
}

// TestChecksumOffload leaves checksums to the generator's device. TCP does not
// get through: the receiver's kernel counts checksum errors. All else goes on.
func TestChecksumOffload(t *testing.T) {
	b := newBed(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			dst := apu2.ReceiverAddrs[f.index].Addr()
			l, err := b.Receiver.Listen("tcp", netip.AddrPortFrom(dst, 0).String())
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			connect := func(timeout time.Duration) error {
				ctx, cancel := context.WithTimeout(t.Context(), timeout)
				defer cancel()
				c, err := b.Generator.Dial(ctx, "tcp", l.Addr().String())
				if err == nil {
					err = c.Close()
				}
				return err
			}
			if err := connect(20 * time.Second); err != nil {
				t.Errorf("with checksums written by the kernel: %v", err)
			}
			errs := func() uint64 {
				n, err := snmp(b.Receiver, "Tcp", "InCsumErrors")
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			before := errs()
			if before != 0 && f.index == 0 {
				t.Errorf("%d TCP checksum errors before", before)
			}
			if err := b.Generator.SetFeature(apu2.Gen0, netns.TXChecksum, true); err != nil {
				t.Fatal(err)
			}
			var nerr net.Error
			if err := connect(1500 * time.Millisecond); !errors.As(err, &nerr) || !nerr.Timeout() {
				t.Errorf("with checksums left to the device: %v, want a timeout", err)
			}
			if after := errs(); after == before {
				t.Error("the receiver's kernel counted no TCP checksum error")
			}
			if err := b.ping(b.Generator, dst, 100); err != nil {
				t.Error(err)
			}
			if err := b.Generator.SetFeature(apu2.Gen0, netns.TXChecksum, false); err != nil {
				t.Fatal(err)
			}
			if err := connect(20 * time.Second); err != nil {
				t.Errorf("with checksums written by the kernel again: %v", err)
			}
			b.settle()
		})
	}
	b.stop()
}

// TestRouterItself talks to the router's own addresses while it forwards.
func TestRouterItself(t *testing.T) {
	b := newBed(t)
	_, grew := b.withoutLoss(4, 20_000, both, func(f *flows) {
		for _, list := range [][]netip.Prefix{apu2.IGB1Addrs, apu2.IGB2Addrs} {
			for _, p := range list {
				lucky(t, func() error { return b.ping(b.Generator, p.Addr(), 1000) })
				if err := echo(t, b.Generator, b.Router, p.Addr()); err != nil {
					t.Errorf("TCP to %v: %v", p.Addr(), err)
				}
			}
		}
		f.more(1000)
	})
	if n := grew.Sum("nmfwd_host_packets_total", `direction="to_host"`, `device="igb1"`); n < 16 {
		t.Errorf("%.0f packets to the host, want at least those of 4 pings and 4 connections", n)
	}
	b.stop()
}

// echo sends a megabyte to addr over TCP and reads it back.
func echo(t *testing.T, from, to *netns.Namespace, addr netip.Addr) error {
	l, err := to.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return err
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return // closed
		}
		defer c.Close()
		_, _ = io.Copy(c, c) // the other side notices
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := from.Dial(ctx, "tcp", l.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	sent := make([]byte, 1<<20)
	for i := range sent {
		sent[i] = byte(i * i >> 8)
	}
	writing := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		writing <- err
	}()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(c, got); err != nil {
		return errors.Join(err, <-writing)
	}
	for i := range got {
		if got[i] != sent[i] {
			return fmt.Errorf("byte %d is %#x, want %#x", i, got[i], sent[i])
		}
	}
	return <-writing
}

// TestHostHears sends what every station of a network is to hear: the router's
// host gets it while nmfwd forwards.
func TestHostHears(t *testing.T) {
	b := newBed(t)
	for _, to := range []string{"224.0.0.251", "255.255.255.255", "198.18.0.255", "ff02::fb"} {
		t.Run(to, func(t *testing.T) {
			dst := netip.MustParseAddr(to)
			network, zone := "udp4", ""
			if dst.Is6() {
				network, zone = "udp6", apu2.Gen0
			}
			var host *net.UDPConn
			if err := b.Router.Do(func() (err error) {
				if !dst.IsMulticast() {
					host, err = net.ListenUDP(network, &net.UDPAddr{Port: 5354})
					return err
				}
				port, err := net.InterfaceByName(apu2.IGB1)
				if err != nil {
					return err
				}
				host, err = net.ListenMulticastUDP(network, port, &net.UDPAddr{IP: dst.AsSlice(), Port: 5354})
				return err
			}); err != nil {
				t.Fatal(err)
			}
			defer host.Close()
			if err := b.Generator.Do(func() error {
				lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
					if e := c.Control(func(fd uintptr) { err = syscall.BindToDevice(int(fd), apu2.Gen0) }); e != nil {
						return e
					}
					return err
				}}
				c, err := lc.ListenPacket(t.Context(), network, ":0")
				if err != nil {
					return err
				}
				defer c.Close()
				_, err = c.WriteTo([]byte(to), &net.UDPAddr{IP: dst.AsSlice(), Port: 5354, Zone: zone})
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if err := host.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 64)
			if n, err := host.Read(buf); err != nil || string(buf[:n]) != to {
				t.Errorf("the host received %q, %v, want %q", buf[:n], err, to)
			}
			b.settle()
		})
	}
	b.stop()
}

// TestQueues sends from one CPU at a time: the metrics of each queue count what
// was sent to it, by either family.
func TestQueues(t *testing.T) {
	b := newBed(t)
	for i, family := range []int{4, 6} {
		for cpu := range 2 {
			res, grew := b.withoutLoss(family, 20_000, []int{cpu}, func(f *flows) { f.more(2000) })
			sent := float64(res.Sent)
			label := fmt.Sprintf(`queue="%d"`, cpu)
			for _, c := range []struct {
				what string
				got  float64
				want float64
			}{
				{"forwarded", grew.Sum("nmfwd_forwarded_packets_total", `device="igb1"`, label, `family="`+families[i].ip+`"`), sent},
				{"forwarded of all queues", grew.Sum("nmfwd_forwarded_packets_total"), sent},
				{"transmitted", grew.Sum("nmfwd_transmit_packets_total", `device="igb2"`), sent},
				{"received less what the host got", grew.Sum("nmfwd_receive_packets_total", `device="igb1"`, label) -
					grew.Sum("nmfwd_host_packets_total", `device="igb1"`, label, `direction="to_host"`), sent},
				{"bytes transmitted", grew.Sum("nmfwd_transmit_bytes_total", `device="igb2"`), sent * float64(apu2.Flows(family).Len())},
			} {
				if c.got != c.want {
					t.Errorf("IPv%d from CPU %d: %s: %.0f, want %.0f", family, cpu, c.what, c.got, c.want)
				}
			}
		}
	}
	b.stop()
}

// TestHandOff has one port of one queue, so that what comes in by the other's
// second queue has to pass from one worker to the other. When that one waits for a
// CPU its ring fills up, and what it does not take is told for it.
func TestHandOff(t *testing.T) {
	l := newLab(t, 2, 1)
	b := startBed(t, l, labConfig(t)+"option workers 2\n")
	for _, family := range []int{4, 6} {
		b.withoutLoss(family, 20_000, both, func(f *flows) {
			before := b.scrape().Sum("nmfwd_handoff_packets_total")
			f.more(4000)
			eventually(t, func() error { // either sender may wait for its CPU
				if b.scrape().Sum("nmfwd_handoff_packets_total") == before {
					return fmt.Errorf("IPv%d: no packet was handed off", family)
				}
				return nil
			})
		})
	}
	lost, dropped := b.before.Sum("nmfwd_handoff_lost_packets_total"), b.before.Sum("nmfwd_dropped_packets_total", `reason="tx_full"`)
	if lost > dropped {
		t.Errorf("workers did not take %.0f frames, of which %.0f are counted as dropped", lost, dropped)
	}
	b.stop()
}

// TestHostOff has ports without a host: nmfwd itself answers for the router.
func TestHostOff(t *testing.T) {
	config := strings.NewReplacer("2001:2::205/64", "2001:2::205/64 host off", "2001:2:0:8000::205/64", "2001:2:0:8000::205/64 host off").
		Replace(labConfig(t))
	b := startBed(t, newLab(t, 2, 2), config)
	for _, f := range families {
		if err := b.ping(b.Generator, apu2.ReceiverAddrs[f.index].Addr(), 1000); err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
		kind := map[int]string{0: "arp", 1: "nd"}[f.index]
		grew := b.settle("multicast", "link_local", "router_alert") // the end hosts' kernels say more than we asked for
		for _, port := range []string{apu2.IGB1, apu2.IGB2} {
			if grew.Sum("nmfwd_punted_packets_total", `kind="`+kind+`"`, `device="`+port+`"`) == 0 {
				t.Errorf("%s: no packet was punted: %s", port, kind)
			}
			if n := grew.Sum("nmfwd_host_packets_total", `device="`+port+`"`); n != 0 {
				t.Errorf("%s: the host got %.0f packets", port, n)
			}
		}
	}
	b.stop()
}
