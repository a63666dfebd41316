package metrics

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"nmfwd/test/frame"
	"nmfwd/test/race"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"nmfwd/control"
	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
	"nmfwd/fib"
	"nmfwd/neigh"
	"nmfwd/wire"
	"nmfwd/wire/icmp"
)

var update = flag.Bool("update", false, "rewrite the golden exposition")

// preset is a Router with given counters.
type preset dataplane.Snapshot

func (p *preset) Snapshot(s *dataplane.Snapshot) { *s = dataplane.Snapshot(*p) }

// distinct returns two ports and three workers, no two counters of which are
// the same.
func distinct() *preset {
	n := uint64(1000)
	next := func() uint64 { n++; return n }
	p := &preset{Ports: []dataplane.PortSnapshot{
		{
			Info: dataplane.Info{Name: "igb1", MAC: net.HardwareAddr{0, 0x0d, 0xb9, 0x41, 0xca, 0x3d}, Backend: "netmap", Driver: "igb", Mode: "native", ZeroCopy: true, RXRings: 2, TXRings: 3},
			MTU:  1500, Up: true, LinkChanges: 3, Stalled: [2]bool{false, true}, Reopened: 2, RX: make([]dataplane.RXSnapshot, 2), TX: make([]dataplane.TXSnapshot, 3),
		},
		{
			Info: dataplane.Info{Name: "veth0", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Backend: "afxdp", Driver: "veth", Mode: "generic", RXRings: 1, TXRings: 1},
			MTU:  9000, RX: make([]dataplane.RXSnapshot, 1), TX: make([]dataplane.TXSnapshot, 1),
		},
	}}
	for i := range p.Ports {
		for q := range p.Ports[i].RX {
			r := &p.Ports[i].RX[q]
			for _, c := range []*uint64{&r.Packets, &r.Bytes, &r.Forwarded4, &r.Forwarded6, &r.ToHost, &r.FromHost, &r.RingFull, &r.Limited4, &r.Limited6} {
				*c = next()
			}
			for k := range r.Punted {
				r.Punted[k] = next()
			}
			for k := range r.Dropped[1:] {
				r.Dropped[1+k] = next()
			}
		}
		for q := range p.Ports[i].TX {
			p.Ports[i].TX[q] = dataplane.TXSnapshot{Packets: next(), Bytes: next(), RingFull: next(), Copied: next()}
		}
	}
	for i := range 3 {
		w := dataplane.WorkerSnapshot{CPU: i - 1, Busy: time.Duration(next()) * time.Millisecond, Idle: time.Duration(next()) * time.Millisecond, Handoff: next(), HandoffLost: next()}
		for b := range w.Batch {
			w.Batch[b] = uint64(1 + i + b)
		}
		w.BatchSum = next()
		p.Workers = append(p.Workers, w)
	}
	return p
}

// counted has counts of two ports and their control.
func counted(s *control.Snapshot) {
	s.Routes[0][fib.Static], s.Routes[1][fib.Connected] = 4, 6
	s.Neighbors[0][neigh.Static] = 2
	s.FIBBytes = [2]int{1 << 20, 1 << 21}
	s.Missing = 13
	s.Compiles[0], s.Compiles[3], s.Compiles[8] = 1, 1, 1
	s.CompileTime = 20_300_500 * time.Microsecond
	p := control.PortSnapshot{Name: "igb1", Parked: 3, Unresolved: 11, Fragmented: control.Fragmented{Packets: 11, Failed: 12, Fragments: 22}}
	p.Conflicts[neigh.StaticConflict] = 5
	p.Sent[0][icmp.TimeExceeded] = 8
	p.Suppressed[0][icmp.Rate], p.Suppressed[1][icmp.Rate], p.Suppressed[0][icmp.AboutError] = 1, 1, 10
	q := control.PortSnapshot{Name: "veth0"}
	q.Conflicts[neigh.OwnAddressConflict] = 7
	q.Sent[1][icmp.EchoReply] = 9
	s.Ports = []control.PortSnapshot{p, q}
}

func collector(r Router) *Collector {
	return &Collector{
		Router:  r,
		Control: counted,
		Reloads: new(Reloads),
		Version: "1.2.3",
	}
}

// serve starts a server for c and returns the URL of its root.
func serve(t *testing.T, c *Collector) string {
	t.Helper()
	s, err := Listen("127.0.0.1:0", c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, nil) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return "http://" + s.Addr().String()
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// scrape returns the values of all series of an exposition.
func scrape(t *testing.T, url string) map[string]float64 {
	t.Helper()
	status, body := get(t, url+"/metrics")
	if status != http.StatusOK {
		t.Fatalf("status: got %d, want 200: %s", status, body)
	}
	series := map[string]float64{}
	for s := bufio.NewScanner(strings.NewReader(body)); s.Scan(); {
		if strings.HasPrefix(s.Text(), "#") {
			continue
		}
		at := strings.LastIndexByte(s.Text(), ' ')
		v, err := strconv.ParseFloat(s.Text()[at+1:], 64)
		if err != nil {
			t.Fatal(err)
		}
		series[s.Text()[:at]] = v
	}
	return series
}

func TestExposition(t *testing.T) {
	c := collector(distinct())
	c.Reloads.Done(time.UnixMilli(1_700_000_000_500), nil)
	c.Reloads.Done(time.UnixMilli(1_700_000_100_000), errors.New("broken"))
	_, body := get(t, serve(t, c)+"/metrics")
	var lines []string
	for line := range strings.Lines(body) {
		if strings.Contains(line, "nmfwd_") {
			lines = append(lines, strings.ReplaceAll(line, runtime.Version(), "GOVERSION"))
		}
	}
	got := strings.Join(lines, "")
	golden := filepath.Join("testdata", "exposition.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got == string(want) {
		return
	}
	g, w := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			t.Fatalf("line %d:\ngot  %s\nwant %s", i+1, g[i], w[i])
		}
	}
	t.Fatalf("got %d lines, want %d", len(g), len(w))
}

// TestNames lists every name that there is.
func TestNames(t *testing.T) {
	want := strings.Fields(`
		nmfwd_build_info
		nmfwd_config_last_reload_success_timestamp_seconds nmfwd_config_last_reload_successful nmfwd_config_reloads_total
		nmfwd_copied_packets_total nmfwd_dropped_packets_total nmfwd_fib_bytes nmfwd_fib_compile_seconds nmfwd_forwarded_packets_total
		nmfwd_fragmented_packets_total nmfwd_fragments_total
		nmfwd_handoff_lost_packets_total nmfwd_handoff_packets_total nmfwd_host_packets_total nmfwd_host_routes_missing nmfwd_icmp_sent_total nmfwd_icmp_suppressed_total nmfwd_neighbor_conflicts_total nmfwd_neighbors
		nmfwd_parked_packets nmfwd_port_info nmfwd_port_link_changes_total nmfwd_port_mtu_bytes nmfwd_port_reopened_total nmfwd_port_stalled nmfwd_port_up
		nmfwd_punted_packets_total nmfwd_receive_bytes_total nmfwd_receive_packets_total nmfwd_ring_full_total nmfwd_routes
		nmfwd_transmit_bytes_total nmfwd_transmit_packets_total nmfwd_unresolved_packets_total
		nmfwd_worker_batch_packets nmfwd_worker_busy_seconds_total nmfwd_worker_idle_seconds_total`)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(collector(distinct()))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		got = append(got, f.GetName())
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// TestLint asks promtool's linter.
func TestLint(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(collector(distinct()))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestSeriesFromStart checks that a router that has done nothing shows every
// drop reason and every kind of punt, at 0.
func TestSeriesFromStart(t *testing.T) {
	got := scrape(t, serve(t, collector(&preset{Ports: []dataplane.PortSnapshot{
		{Info: dataplane.Info{Name: "igb1"}, RX: make([]dataplane.RXSnapshot, 2), TX: make([]dataplane.TXSnapshot, 1)},
	}})))
	reasons := strings.Fields(`truncated bad_header bad_checksum bad_options source_route ip_option not_our_mac l2_broadcast
		ethertype vlan_unknown ttl martian link_local multicast no_route blackhole reject no_neighbor too_big oversize
		link_down tx_full router_alert bad_ext punt_full host_full host_route host_too_big urpf internal`)
	for _, q := range []string{"0", "1"} {
		for _, r := range reasons {
			s := fmt.Sprintf(`nmfwd_dropped_packets_total{device="igb1",queue="%s",reason="%s"}`, q, r)
			if v, ok := got[s]; !ok || v != 0 {
				t.Errorf("%s: got %v, %t, want 0", s, v, ok)
			}
		}
		for _, k := range []string{"arp", "nd", "local", "ttl", "too_big", "unreachable", "fragment", "bad_option", "neighbor"} {
			s := fmt.Sprintf(`nmfwd_punted_packets_total{device="igb1",kind="%s",queue="%s"}`, k, q)
			if v, ok := got[s]; !ok || v != 0 {
				t.Errorf("%s: got %v, %t, want 0", s, v, ok)
			}
		}
	}
	n := 0
	for s := range got {
		if strings.HasPrefix(s, "nmfwd_dropped_packets_total") {
			n++
		}
	}
	if n != 2*len(reasons) {
		t.Errorf("series of drops: got %d, want %d", n, 2*len(reasons))
	}
	if v := got["nmfwd_config_last_reload_success_timestamp_seconds"]; v != 0 {
		t.Errorf("timestamp before anything was loaded: got %v, want 0", v)
	}
}

// TestLargeCounters: counters do not wrap at 32 bits.
func TestLargeCounters(t *testing.T) {
	const packets, bytes = 1<<32 + 1, 1<<52 + 1
	p := distinct()
	p.Ports[0].RX[1].Packets, p.Ports[0].TX[2].Bytes = packets, bytes
	got := scrape(t, serve(t, collector(p)))
	for s, want := range map[string]float64{
		`nmfwd_receive_packets_total{device="igb1",queue="1"}`: packets,
		`nmfwd_transmit_bytes_total{device="igb1",queue="2"}`:  bytes,
	} {
		if got[s] != want {
			t.Errorf("%s: got %v, want %v", s, got[s], want)
		}
	}
}

// newRouter returns a router of two ports in memory with as many queues as
// workers, queue n being worker n's. What comes in by port 0 is routed to a
// neighbor on port 1 that has the MAC address of port 0.
func newRouter(t *testing.T, workers int, idle dataplane.IdleMode) (*dataplane.Forwarder, []*memport.Port) {
	t.Helper()
	owners := make([]int, workers)
	for i := range owners {
		owners[i] = i
	}
	region := memport.NewRegion("memory", 2*2*256*workers+4096, 2112)
	var ports []*memport.Port
	var devices []*dataplane.Port
	st := new(dataplane.State)
	var attrs []fib.PortAttr
	for i, name := range []string{"igb1", "igb2"} {
		p, err := memport.New(region, memport.Config{Name: name, RX: workers, TX: workers, Owners: dataplane.Owners{RX: owners, TX: owners}})
		if err != nil {
			t.Fatal(err)
		}
		ports, devices = append(ports, p), append(devices, &p.Port)
		attrs = append(attrs, fib.PortAttr{MAC: [6]byte(p.MAC), MTU: 1500})
		st.Ports = append(st.Ports, dataplane.PortState{Number: uint16(i), MAC: wire.MACOf(p.MAC), MTU: 1500, Up: true})
	}
	rib := fib.New(attrs)
	gateway := netip.MustParseAddr("198.19.0.203")
	for _, r := range []fib.Route{
		{Prefix: netip.MustParsePrefix("198.19.0.0/24"), Kind: fib.OnLink, Origin: fib.Connected, Port: 1},
		{Prefix: netip.MustParsePrefix("198.19.0.0/16"), Kind: fib.Via, Origin: fib.Static, Gateway: gateway, Port: 1},
	} {
		if err := rib.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := rib.SetNeighbor(1, gateway, attrs[0].MAC); err != nil {
		t.Fatal(err)
	}
	st.FIB = rib.Commit()
	r, err := dataplane.NewForwarder(devices, workers, dataplane.Options{Idle: idle})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	r.Publish(st)
	return r, ports
}

// toGateway returns a UDP packet from 198.18.10.1 to 198.19.10.1 in a frame for mac.
func toGateway(mac net.HardwareAddr) []byte {
	return frame.UDP4(wire.MACOf(mac), wire.MACOf([]byte{0, 0x1b, 0x21, 0xc4, 0x95, 0x7a}), netip.MustParseAddr("198.18.10.1"), netip.MustParseAddr("198.19.10.1"), 255, 60)
}

// TestEachSeriesHasItsOwnValue: of three workers and two ports with
// different counts none shows those of another.
func TestEachSeriesHasItsOwnValue(t *testing.T) {
	r, ports := newRouter(t, 3, dataplane.Busy)
	url := serve(t, collector(r))
	want := map[string]float64{}
	for pi, p := range ports {
		for q := range 3 {
			forwarded, dropped := 10*(1-pi)*(q+1), 1+100*pi+20*q
			for range forwarded {
				p.Deliver(q, toGateway(p.MAC))
			}
			for range dropped {
				p.Deliver(q, toGateway(net.HardwareAddr{2, 0, 0, 0, 0, 0x99}))
			}
			at := fmt.Sprintf(`device="%s",queue="%d"`, p.Name, q)
			want[`nmfwd_receive_packets_total{`+at+`}`] = float64(forwarded + dropped)
			want[`nmfwd_receive_bytes_total{`+at+`}`] = float64(60 * (forwarded + dropped))
			want[`nmfwd_dropped_packets_total{`+at+`,reason="not_our_mac"}`] = float64(dropped)
			want[fmt.Sprintf(`nmfwd_forwarded_packets_total{device="%s",family="ipv4",queue="%d"}`, p.Name, q)] = float64(forwarded)
			want[fmt.Sprintf(`nmfwd_transmit_packets_total{device="%s",queue="%d"}`, ports[1-pi].Name, q)] = float64(forwarded)
			want[fmt.Sprintf(`nmfwd_worker_batch_packets_sum{worker="%d"}`, q)] += float64(forwarded + dropped)
		}
	}
	for _, w := range r.Workers() {
		for w.Step(1) > 0 {
		}
	}
	got := scrape(t, url)
	for s, v := range want {
		if g, ok := got[s]; !ok || g != v {
			t.Errorf("%s: got %v, %t, want %v", s, g, ok, v)
		}
	}
}

// TestAnswersUnderLoad: the server answers within 100 ms while all
// workers are busy all the time, and what it shows only grows. The machine may
// have other things to do, so the quickest of many answers is looked at.
func TestAnswersUnderLoad(t *testing.T) {
	workers := min(runtime.NumCPU(), 4)
	r, ports := newRouter(t, workers, dataplane.Busy)
	for q := range workers {
		frames := make([][]byte, 128)
		for i := range frames {
			frames[i] = toGateway(ports[0].MAC)
		}
		if err := memport.Loop(ports[0], q, ports[1], q, frames); err != nil {
			t.Fatal(err)
		}
	}
	url := serve(t, collector(r))
	procs := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(procs)
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	defer r.Stop()
	last := map[string]float64{}
	var took []time.Duration
	for range 20 {
		began := time.Now()
		now := scrape(t, url)
		took = append(took, time.Since(began))
		for s, v := range now {
			if strings.HasPrefix(s, "nmfwd_") && v < last[s] {
				t.Errorf("%s: got %v after %v", s, v, last[s])
			}
		}
		last = now
	}
	slices.Sort(took)
	t.Logf("%d workers: quickest %v, median %v, slowest %v", workers, took[0], took[len(took)/2], took[len(took)-1])
	answerWithin := 100 * time.Millisecond
	if race.Enabled { // which slows all down
		answerWithin = time.Second
	}
	if took[0] > answerWithin {
		t.Errorf("quickest answer: got %v, want at most %v", took[0], answerWithin)
	}
	for q := range workers {
		s := fmt.Sprintf(`nmfwd_forwarded_packets_total{device="igb1",family="ipv4",queue="%d"}`, q)
		if last[s] == 0 {
			t.Errorf("%s: got 0: the worker was not busy", s)
		}
	}
}

func TestServer(t *testing.T) {
	url := serve(t, collector(distinct()))
	got := scrape(t, url)
	for _, s := range []string{"go_goroutines", "nmfwd_config_last_reload_successful", fmt.Sprintf("nmfwd_build_info{goversion=%q,version=\"1.2.3\"}", runtime.Version())} {
		if _, ok := got[s]; !ok {
			t.Errorf("no series %s", s)
		}
	}
	if _, ok := got["process_cpu_seconds_total"]; !ok && runtime.GOOS == "linux" {
		t.Error("no series process_cpu_seconds_total")
	}
	for _, path := range []string{"/", "/metrics/", "/metrics/x", "/debug/pprof/"} {
		if status, _ := get(t, url+path); status != http.StatusNotFound {
			t.Errorf("GET %s: got status %d, want 404", path, status)
		}
	}
	resp, err := http.Post(url+"/metrics", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST /metrics: got status %d, want 405", resp.StatusCode)
	}
}

func TestListen(t *testing.T) {
	c := collector(distinct())
	s, err := Listen("127.0.0.1:0", c)
	if err != nil {
		t.Fatal(err)
	}
	addr := s.Addr().String()
	if _, err := Listen(addr, c); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), addr) {
		t.Errorf("second server: got error %v, want one that names %s and says that it is in use", err, addr)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Serve(ctx, nil); err != nil {
		t.Errorf("serve: got %v after the context was done, want no error", err)
	}
	s, err = Listen(addr, c)
	if err != nil {
		t.Fatalf("the address is not free again: %v", err)
	}
	if err := s.Serve(ctx, nil); err != nil {
		t.Error(err)
	}
}
