//go:build integration && linux

package kernel

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nmfwd/test/netns"
)

// hop is a line of traceroute: its number and what it found.
var hop = regexp.MustCompile(`(?m)^ *(\d+)  ([0-9a-f.:]+|\*)`)

// mtrHop is a line of mtr: a hop's number from 0 and who answered.
var mtrHop = regexp.MustCompile(`(?m)^h (\d+) (.*)$`)

// rows are the chains that traces go through.
var rows = []struct {
	name string
	chainOf
}{
	{"1 router", chainOf{routers: 1}},
	{"3 routers", chainOf{routers: 3}},
	{"3 routers, VLANs", chainOf{routers: 3, tagged: true, words: "host off"}},
}

// TestTraceroute: each router shows itself once, by the address nearer to the
// source, whatever the packets are.
func TestTraceroute(t *testing.T) {
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			c := newChain(t, row.chainOf)
			c.known()
			for f, version := range []string{"-4", "-6"} {
				var want []string
				for _, h := range c.hops[f] {
					want = append(want, h.String())
				}
				for _, proto := range []string{"-U", "-I", "-T"} {
					args := []string{version, "-n", "-q", "1", "-w", "3", "-m", "8", proto}
					lucky(t, func() error { // an answer may take longer than 3 s
						out, err := c.run("traceroute", append(args, c.dst[f].String())...)
						if err != nil {
							return err
						}
						var got []string
						for i, m := range hop.FindAllStringSubmatch(out, -1) {
							if got = append(got, m[2]); m[2] != "*" && (i >= len(want) || m[2] != want[i]) {
								t.Errorf("traceroute %s %s: hop %d is %s, want hops %v", version, proto, i+1, m[2], want)
							}
						}
						if !slices.Equal(got, want) {
							return fmt.Errorf("traceroute %s %s: got hops %v, want %v", version, proto, got, want)
						}
						return nil
					})
				}
				if row.routers == 1 {
					continue
				}
				// Each hop thrice, a hop after the other without waiting for answers.
				lucky(t, func() error { // mtr waits for them for a second at the end
					out, err := c.run("mtr", version, "--no-dns", "--raw", "-c", "3", "-i", "0.2", "-G", "1", c.dst[f].String())
					if err != nil {
						return err
					}
					for i, h := range want {
						for _, m := range mtrHop.FindAllStringSubmatch(out, -1) {
							if m[1] == fmt.Sprint(i) && m[2] != h {
								t.Errorf("mtr %s has %s as hop %d, want %s", version, m[2], i, h)
							}
						}
						if n := strings.Count(out, fmt.Sprintf("\np %d ", i)); n != 3 {
							return fmt.Errorf("mtr %s has %d replies of hop %d, want 3", version, n, i)
						}
					}
					return nil
				})
			}
			c.stop()
		})
	}
}

// TestPathMTU: MTUs differ from network to network. Packets of all sizes get
// through that may be fragmented, and tracepath, ping and TCP find the least MTU.
func TestPathMTU(t *testing.T) {
	for _, row := range rows[1:] {
		t.Run(row.name, func(t *testing.T) {
			of := row.chainOf
			of.mtus = []int{1500, 1492, 1400, 1500}
			c := newChain(t, of)
			c.known()
			// In IPv4, routers make the fragments as long as the source does not know the
			// MTU. In IPv6 the source does, once it has been told.
			lucky(t, func() error {
				if _, err := c.run("ping", "-6", "-n", "-c", "5", "-i", "0.1", "-W", "3", "-s", "1452", c.dst[1].String()); err != nil {
					return fmt.Errorf("IPv6 does not find the MTU: %w", err)
				}
				return nil
			})
			for _, size := range []int{64, 576, 1280, 1400, 1401, 1472, 1492, 1493, 1500, 1501, 2000, 8000} {
				for f, version := range []string{"-4", "-6"} {
					if _, err := c.run("ping", version, "-n", "-M", "dont", "-c", "1", "-w", "20", "-s", fmt.Sprint(size-28-20*f), c.dst[f].String()); err != nil {
						t.Errorf("%s: a packet of %d bytes: %v", families[f].name, size, err)
					}
				}
			}
			for f, version := range []string{"-4", "-6"} {
				lucky(t, func() error { // it waits for an answer for a second
					out, err := c.run("tracepath", version, "-n", "-m", "8", c.dst[f].String())
					if err == nil && !strings.Contains(out, "Resume: pmtu 1400 hops 4") {
						err = fmt.Errorf("tracepath %s does not find an MTU of 1400 and 4 hops", version)
					}
					return err
				})
				if _, err := c.run("ping", version, "-n", "-M", "do", "-c", "1", "-w", "20", "-s", fmt.Sprint(1400-28-20*f), c.dst[f].String()); err != nil {
					t.Errorf("a packet of 1400 bytes that may not be fragmented: %v", err)
				}
				for _, ns := range []*netns.Namespace{c.source, c.sink} { // forgets MTUs
					if _, err := ns.Output(t.Context(), "ip", version, "route", "flush", "cache"); err != nil {
						t.Fatal(err)
					}
				}
				if err := echo(t, c.source, c.sink, c.dst[f]); err != nil {
					t.Errorf("TCP %s: %v", version, err)
				}
				if out, err := c.run("ip", version, "route", "get", c.dst[f].String()); err != nil || !strings.Contains(out, "mtu 1400") {
					t.Errorf("TCP %s has not found an MTU of 1400: %v", version, err)
				}
			}
			for i, want := range []float64{0, 1} {
				m, err := c.routers[i].AtRest(t.Context())
				if err != nil {
					t.Error(err)
				}
				if n := m.Sum("nmfwd_fragmented_packets_total", `result="sent"`); n == 0 {
					t.Errorf("router %d counts no packet that it fragmented", i+1)
				}
				for _, fam := range families {
					if n := m.Sum("nmfwd_icmp_sent_total", `type="too_big"`, `family="`+fam.ip+`"`); n < want {
						t.Errorf("router %d counts no %s packet too big", i+1, fam.name)
					}
				}
			}
			c.stop()
		})
	}
}

// TestPingRouter: without a host the router answers by itself, for every address
// at every port, and says that nothing listens on UDP.
func TestPingRouter(t *testing.T) {
	c := newChain(t, chainOf{routers: 1, words: "host off"})
	c.known()
	for _, dst := range []string{"10.7.0.1", "10.7.1.1", "2001:db8:7:0::1", "2001:db8:7:1::1"} {
		p, err := c.source.NewPinger(netip.MustParseAddr(dst))
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int{0, 8, 56, 1000, 1452} {
			if err := p.Ping(size, 10*time.Second); err != nil {
				t.Errorf("%s: %v", dst, err)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		conn, err := c.source.Dial(t.Context(), "udp", netip.AddrPortFrom(netip.MustParseAddr(dst), 9).String())
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			if _, err := conn.Write([]byte("x")); err != nil {
				return nil // port unreachable came
			}
			return fmt.Errorf("%s: no port unreachable", dst)
		})
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	c.stop()
}

// TestTTLFlood: packets that run out of TTL as fast as a CPU can send them
// neither keep pings through the router from arriving nor get more errors than
// the rate.
func TestTTLFlood(t *testing.T) {
	c := newChain(t, chainOf{routers: 1})
	c.known()
	p, err := c.source.NewPinger(c.dst[0])
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	slowest := func() (worst time.Duration, lost int) {
		for range 200 {
			start := time.Now()
			if p.Ping(56, 2*time.Second) != nil {
				lost++
			}
			worst = max(worst, time.Since(start))
		}
		return worst, lost
	}
	var quiet, loud time.Duration
	lucky(t, func() (err error) {
		var lost int
		if quiet, lost = slowest(); lost > 0 {
			err = fmt.Errorf("%d of 200 pings lost without a flood", lost)
		}
		return err
	})
	before, err := c.routers[0].Scrape(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	done := make(chan error, 1)
	start := time.Now()
	go func() {
		done <- c.source.Do(func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, 1); err != nil {
				return err
			}
			to := &unix.SockaddrInet4{Port: 33434, Addr: c.dst[0].As4()}
			for !stop.Load() {
				_ = unix.Sendto(fd, make([]byte, 18), 0, to) // errors are about packets before
			}
			return nil
		})
	}()
	defer stop.Store(true)
	lucky(t, func() (err error) {
		var lost int
		if loud, lost = slowest(); lost > 2 {
			err = fmt.Errorf("%d of 200 pings lost", lost)
		}
		return err
	})
	stop.Store(true)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	m, err := c.routers[0].AtRest(t.Context())
	if err != nil {
		t.Error(err)
	}
	grew := m.Sub(before)
	sent := grew.Sum("nmfwd_icmp_sent_total", `type="time_exceeded"`)
	limited := grew.Sum("nmfwd_icmp_suppressed_total", `reason="rate"`)
	t.Logf("%.0f packets with TTL 1 in %v, %.0f errors; slowest of 200 pings %v, %v without a flood", sent+limited, took, sent, loud, quiet)
	if most := 1000*took.Seconds() + 20; sent == 0 || sent > most || limited == 0 {
		t.Errorf("%.0f errors sent, %.0f suppressed, want at most %.0f sent and the rest suppressed", sent, limited, most)
	}
	c.stop()
}
