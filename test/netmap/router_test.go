//go:build netmap

package netmap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"nmfwd/dataplane"
	"nmfwd/fib"
	"nmfwd/wire"
)

// The addresses of the lab that the router's tests are in:
//
//	a -- b [router] c -- d
//	198.18.0.203   198.18.0.205  198.19.0.205   198.19.0.203
//	2001:2::203    2001:2::205   2001:2:0:8000::205 ... ::203
var (
	macB = [6]byte{0x02, 0, 0, 0, 1, 0x0b}
	macC = [6]byte{0x02, 0, 0, 0, 1, 0x0c}
	macA = [6]byte{0x02, 0, 0, 0, 1, 0x0a}
	macD = [6]byte{0x02, 0, 0, 0, 1, 0x0d}
)

// packet returns frame n of a run as a sends it, or as d has to receive it. The
// shortest are padded with zeros by the router.
func packet(n int, forwarded bool) []byte {
	b := frame(n)
	dst, src, hops := macB, macA, byte(64)
	if forwarded {
		dst, src, hops = macD, macC, 63
	}
	copy(b, dst[:])
	copy(b[6:], src[:])
	ip := b[14:]
	if n%2 == 0 {
		ip[8], ip[10], ip[11] = hops, 0, 0
		ip[6], ip[7] = 0x40, 0
		copy(ip[12:], []byte{198, 18, 10, 1, 198, 19, 10, 1})
		binary.BigEndian.PutUint16(ip[10:], wire.Checksum(ip[:20]))
	} else {
		ip[7] = hops
		copy(ip[8:], netip.MustParseAddr("2001:2:0:1::1").AsSlice())
		copy(ip[24:], netip.MustParseAddr("2001:2:0:8001::1").AsSlice())
	}
	return b
}

// state returns the state of the lab: port 0 is b, port 1 is c.
func state(t *testing.T) *dataplane.State {
	t.Helper()
	r := fib.New([]fib.PortAttr{{MAC: macB, MTU: 1500}, {MAC: macC, MTU: 1500}})
	for port, s := range [][4]string{
		{"198.18.0.0/24", "2001:2::/64", "198.18.0.203", "2001:2::203"},
		{"198.19.0.0/24", "2001:2:0:8000::/64", "198.19.0.203", "2001:2:0:8000::203"},
	} {
		beyond := [][2]string{{"198.18.0.0/16", "2001:2::/49"}, {"198.19.0.0/16", "2001:2:0:8000::/49"}}[port]
		for f := range 2 {
			gw := netip.MustParseAddr(s[2+f])
			err := errors.Join(
				r.Add(fib.Route{Prefix: netip.MustParsePrefix(s[f]), Kind: fib.OnLink, Origin: fib.Connected, Port: uint16(port)}),
				r.Add(fib.Route{Prefix: netip.MustParsePrefix(beyond[f]), Kind: fib.Via, Gateway: gw, Origin: fib.Static, Port: uint16(port)}),
				r.SetNeighbor(uint16(port), gw, [][6]byte{macA, macD}[port]))
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return &dataplane.State{FIB: r.Commit(), Ports: []dataplane.PortState{
		{Number: 0, MAC: wire.MACOf(macB[:]), MTU: 1500, Up: true},
		{Number: 1, MAC: wire.MACOf(macC[:]), MTU: 1500, Up: true},
	}}
}

// run sends n packets by a and compares what d receives.
func run(t *testing.T, a, d *end, n int) {
	t.Helper()
	a.made = func(n int) []byte { return packet(n, false) }
	d.want = func(n int) []byte { return packet(n, true) }
	start := time.Now()
	last, at := d.got, start
	for d.got < n {
		if a.sent < n && a.sent-d.got < 256 {
			a.send(n)
		}
		poll(t, 0, a.q.Descriptor)
		poll(t, 10*time.Millisecond, d.q.Descriptor)
		d.receive()
		if d.got != last {
			last, at = d.got, time.Now()
		} else if time.Since(at) > patience {
			t.Fatalf("%d of %d packets, %d sent", d.got, n, a.sent)
		}
	}
	t.Logf("%d packets: %.0f packets/s", n, float64(n)/time.Since(start).Seconds())
}

// TestRouter forwards packets of both families through workers on threads of
// their own.
func TestRouter(t *testing.T) {
	most := 100_000
	if soak {
		most = 1_000_000_000 / 6
	}
	for _, tt := range []struct{ name, a, b, c, d string }{
		{"pipes", "rta{1", "rta}1", "rta{2", "rta}2"},
		{"vale ports", "vale7:a", "vale7:b", "vale8:c", "vale8:d"},
		{"pipe to vale port", "rta{1", "rta}1", "vale8:c", "vale8:d"},
	} {
		for _, workers := range []int{1, 2} {
			for _, n := range []int{67, 2048, most} {
				t.Run(fmt.Sprintf("%s/%d workers/%d", tt.name, workers, n), func(t *testing.T) {
					plan := dataplane.MakePlan([]dataplane.Rings{{RX: 1, TX: 1}, {RX: 1, TX: 1}}, workers, workers)
					var cfgs []dataplane.PortConfig
					for i, name := range []string{tt.b, tt.c} {
						cfgs = append(cfgs, dataplane.PortConfig{Name: name, Owners: plan.Ports[i], Spare: plan.Spare(nil)})
					}
					ports := open(t, cfgs)
					a, d := newEnds(t, tt.a, tt.d)
					var fault atomic.Pointer[error]
					r, err := dataplane.NewForwarder(ports, plan.Workers, dataplane.Options{Fault: func(err error) { fault.Store(&err) }})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(r.Close)
					r.Publish(state(t))
					if err := r.Start(); err != nil {
						t.Fatal(err)
					}
					t.Cleanup(r.Stop)
					run(t, a, d, n)
					if err := fault.Load(); err != nil {
						t.Error(*err)
					}
				})
			}
		}
	}
}

// TestProgram runs the nmfwd beside the test binary with a configuration,
// between pipes, and ends it.
func TestProgram(t *testing.T) {
	exe := nmfwd(t)
	conf := labConf(t, "prg}1", "prg}2", "")
	a, d := newEnds(t, "prg{1", "prg{2")
	cmd := exec.Command(exe, "-c", conf)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("nmfwd: %v", err)
			}
		case <-time.After(patience):
			cmd.Process.Kill()
			t.Error("nmfwd does not end")
		}
	})
	run(t, a, d, 10000)
}
