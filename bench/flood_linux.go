package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/cilium/ebpf/asm"

	"nmfwd/dataplane"
	"nmfwd/test/lab/apu2"
	"nmfwd/test/netns"
)

// A flooding is packets that are dropped.
type flooding struct {
	name  string
	frame []byte // nil for none
	from  bool   // the last 16 bits of the source are at random
	to    bool   // the last bits of the destination are: 16, 32 in IPv6
}

// The flood's networks: one that is connected behind igb2, and one that goes
// nowhere.
const sweptPrefix, nowhere = "10.66.0.1/16", "10.67.0.0/16"

var floodings = []flooding{
	{"none", nil, false, false},
	{"to a blackhole", to("10.67.0.1")(frame4(0, 64)), true, true},
	{"IPv4, TTL 1", frame4(0, 1), true, false},
	{"IPv6, hop limit 1", frame6(0, 1), true, false},
	{"IPv4, a /16 swept by a host", to("10.66.0.0")(frame4(0, 64)), false, true},
	{"IPv6, a /64 swept by a host", to("2001:2:0:8000::")(frame6(0, 64)), false, true},
	{"IPv4, a /16 swept by 65,536", to("10.66.0.0")(frame4(0, 64)), true, true},
}

// floodRates are packets per second; 0 for as many as a CPU can send.
var floodRates = []float64{1e6, 0}

// Good traffic beside the flood.
const (
	goodRate  = 10_000 // frames per second of the lab's flows
	floodPing = 200    // pings through the router, one after the other
	floodAsk  = 10     // pings to the router after its address was forgotten, and to new neighbors
)

// flood measures good traffic beside floods of packets that are dropped.
func flood(o *options) (*report, error) {
	r := &report{
		name: "flood", title: "Good traffic beside a flood", unit: "us, median", series: []string{"ping through the router"},
		columns: []string{"flood", "M packets/s dropped", "good packets lost %", "ping through: median us", "99%", "lost", "ARP, ping to the router: median us", "lost", "new neighbor, ping: median us", "lost"},
		notes: []string{
			fmt.Sprintf("One CPU sends the flood, which but for sweeps by a host has 65,536 sources. With it, on the same port, come %d packets/s of 2,000 flows, and pings one after the other.", goodRate),
			"AF_XDP in copy mode, one queue, host off: nmfwd answers ARP and echo requests itself. 'To a blackhole' is what the machine itself costs: nothing is done about these packets.",
			"Median of rounds; what is lost is the sum of all.",
		},
	}
	if os.Geteuid() != 0 {
		r.notes = append(r.notes, "Not run: it needs root, for it makes network namespaces.")
		return r, nil
	}
	rounds, seconds := 3, 3*time.Second
	if o.quick {
		rounds, seconds = 1, 2*time.Second
	}
	type key struct {
		name string
		of   flooding
		rate float64
	}
	var keys []key
	for _, rate := range floodRates {
		for _, f := range floodings {
			k := key{f.name + ", 1 M/s", f, rate}
			if rate == 0 {
				k.name = f.name + ", all a CPU sends"
			}
			if f.frame == nil {
				k.name = f.name
			}
			if o.rows.MatchString(k.name) && (f.frame != nil || rate > 0) {
				keys = append(keys, k)
			}
		}
	}
	got := make([][]floodResult, len(keys))
	err := withNMFWD(func(dir, bin string) error {
		conf, err := labConf(dir, "flood.conf", func(b []byte) []byte {
			b = regexp.MustCompile("(?m)^port .*").ReplaceAll(b, []byte("$0 host off"))
			b = regexp.MustCompile("(?m)^port igb2 ").ReplaceAll(b, []byte("${0}"+sweptPrefix+" "))
			return append(b, "\nroute "+nowhere+" blackhole\n"...)
		})
		if err != nil {
			return err
		}
		for range rounds {
			for i, k := range keys {
				w, err := measureFlood(bin, conf, k.of, k.rate, seconds)
				if err != nil {
					return fmt.Errorf("%s: %w", k.name, err)
				}
				got[i] = append(got[i], w)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i, k := range keys {
		of := func(what func(*floodResult) float64) (v []float64) {
			for j := range got[i] {
				v = append(v, what(&got[i][j]))
			}
			return v
		}
		lost := func(what func(*floodResult) int) string {
			n := 0
			for j := range got[i] {
				n += what(&got[i][j])
			}
			return fmt.Sprint(n)
		}
		micros := func(what func(*floodResult) []time.Duration, p float64) float64 {
			return median(of(func(w *floodResult) float64 {
				if d := what(w); len(d) > 0 {
					return us(percentile(d, p))
				}
				return 0
			}))
		}
		through := func(w *floodResult) []time.Duration { return w.through }
		v := micros(through, 50)
		r.rows = append(r.rows, row{[]string{
			k.name, fmt.Sprintf("%.2f", median(of(func(w *floodResult) float64 { return w.dropped / 1e6 }))),
			fmt.Sprintf("%.2f", median(of(func(w *floodResult) float64 { return 100 * w.lost }))),
			fmt.Sprintf("%.0f", v), fmt.Sprintf("%.0f", micros(through, 99)), lost(func(w *floodResult) int { return floodPing - len(w.through) }),
			fmt.Sprintf("%.0f", micros(func(w *floodResult) []time.Duration { return w.router }, 50)), lost(func(w *floodResult) int { return floodAsk - len(w.router) }),
			fmt.Sprintf("%.0f", micros(func(w *floodResult) []time.Duration { return w.fresh }, 50)), lost(func(w *floodResult) int { return floodAsk - len(w.fresh) }),
		}, []float64{v}})
	}
	return r, nil
}

// A floodResult is what one run measured.
type floodResult struct {
	dropped                float64 // by the router, per second
	lost                   float64 // share of the good packets
	through, router, fresh []time.Duration
}

// measureFlood makes a lab, floods it and looks at all else.
func measureFlood(bin, conf string, f flooding, rate float64, seconds time.Duration) (w floodResult, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l, err := apu2.New(1, 1)
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	for i := range floodAsk {
		if err := l.Receiver.AddAddr(apu2.Rcv0, netip.PrefixFrom(newNeighbor(i), 24)); err != nil {
			return w, err
		}
	}
	fwd, err := l.StartNMFWD(ctx, bin, conf, nil)
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, fwd.Stop()) }()
	cpus, err := dataplane.CPUs()
	if err != nil {
		return w, err
	}
	good, err := newFlowSource(l, 4, cpus[:1])
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, good.Close()) }()
	bad := &plainSource{l: l, cpus: cpus[len(cpus)-1:]}
	defer func() { err = errors.Join(err, bad.Close()) }()
	if f.frame != nil {
		if err := bad.floodWith(f); err != nil {
			return w, err
		}
	}
	ended := make(chan error, 2)
	flooding, stop := context.WithCancel(ctx)
	defer stop()
	go func() { ended <- good.Send(flooding, goodRate, time.Minute) }()
	go func() {
		if f.frame != nil {
			ended <- bad.Send(flooding, rate, time.Minute)
		} else {
			ended <- nil
		}
	}()
	time.Sleep(200 * time.Millisecond)
	m0, err := fwd.Scrape(ctx)
	if err != nil {
		return w, err
	}
	sent0, received0, err := good.counts()
	if err != nil {
		return w, err
	}
	start := time.Now()
	if w.through, err = pings(l.Generator, floodPing, func(int) (netip.Addr, error) { return apu2.ReceiverAddrs[0].Addr(), nil }); err != nil {
		return w, err
	}
	if w.router, err = pings(l.Generator, floodAsk, func(int) (netip.Addr, error) {
		_, err := l.Generator.Output(ctx, "ip", "neigh", "flush", "dev", apu2.Gen0)
		return apu2.IGB1Addrs[0].Addr(), err
	}); err != nil {
		return w, err
	}
	if w.fresh, err = pings(l.Generator, floodAsk, func(i int) (netip.Addr, error) { return newNeighbor(i), nil }); err != nil {
		return w, err
	}
	time.Sleep(max(0, seconds-time.Since(start)))
	took := time.Since(start).Seconds()
	sent, received, err := good.counts()
	if err != nil {
		return w, err
	}
	m, err := fwd.Scrape(ctx)
	if err != nil {
		return w, err
	}
	stop()
	if err := errors.Join(<-ended, <-ended); err != nil {
		return w, err
	}
	grew := m.Sub(m0)
	w.dropped = (grew.Sum("nmfwd_dropped_packets_total") + grew.Sum("nmfwd_punted_packets_total")) / took
	w.lost = max(0, 1-float64(received-received0)/float64(sent-sent0))
	return w, nil
}

// newNeighbor returns the address of neighbor i < 100 of the router, which it does
// not know before.
func newNeighbor(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 19, 0, byte(100 + i)}) }

// pings sends n echo requests, each to an address that to returns, and returns how
// long those took, sorted, that were answered within a second.
func pings(from *netns.Namespace, n int, to func(int) (netip.Addr, error)) (took []time.Duration, err error) {
	for i := range n {
		a, err := to(i)
		if err != nil {
			return nil, err
		}
		p, err := from.NewPinger(a)
		if err != nil {
			return nil, err
		}
		start := time.Now()
		if p.Ping(56, time.Second) == nil {
			took = append(took, time.Since(start))
		}
		if err := p.Close(); err != nil {
			return nil, err
		}
	}
	slices.Sort(took)
	return took, nil
}

// floodWith makes s send a flood.
func (s *plainSource) floodWith(f flooding) error {
	out, err := s.l.Generator.Port(apu2.Gen0)
	if err != nil {
		return err
	}
	s.frame = slices.Clone(f.frame)
	copy(s.frame, apu2.IGB1MAC)
	copy(s.frame[6:], apu2.GeneratorMAC)
	const data, end, a, b, sum, carry = asm.R1, asm.R2, asm.R7, asm.R8, asm.R3, asm.R4
	code := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1), asm.Mov.Imm(a, 1), asm.Mov.Imm(b, 0),
	}
	if f.from {
		code = append(code, asm.FnGetPrandomU32.Call(), asm.Mov.Reg(a, asm.R0))
	}
	if f.to {
		code = append(code, asm.FnGetPrandomU32.Call(), asm.Mov.Reg(b, asm.R0))
	}
	code = append(code,
		asm.LoadMem(data, asm.R6, 0, asm.Word),
		asm.LoadMem(end, asm.R6, 4, asm.Word),
		asm.Mov.Reg(sum, data),
		asm.Add.Imm(sum, int32(len(s.frame))),
		asm.JGT.Reg(sum, end, "send"))
	is4 := s.frame[12] == 0x08
	if is4 { // what is at random is put in, so that the checksum stays right
		copy(s.frame[18:], []byte{0xff, 0xff})
		clear(s.frame[28:30])
		if f.to {
			clear(s.frame[32:34])
		}
		sum4(s.frame)
	}
	// The buffer may have been through a router: write all of it.
	for off := 0; off < len(s.frame); off += 2 {
		code = append(code, asm.StoreImm(data, int16(off), int64(binary.NativeEndian.Uint16(s.frame[off:])), asm.Half))
	}
	switch {
	case is4:
		// The identification makes up for both addresses in the checksum.
		code = append(code, asm.StoreMem(data, 28, a, asm.Half), asm.Mov.Reg(sum, a), asm.And.Imm(sum, 0xffff))
		if f.to {
			code = append(code, asm.StoreMem(data, 32, b, asm.Half), asm.And.Imm(b, 0xffff), asm.Add.Reg(sum, b))
		}
		code = append(code,
			asm.Mov.Reg(carry, sum), asm.RSh.Imm(carry, 16), asm.And.Imm(sum, 0xffff), asm.Add.Reg(sum, carry),
			asm.Xor.Imm(sum, 0xffff), asm.StoreMem(data, 18, sum, asm.Half))
	case f.to:
		code = append(code, asm.StoreMem(data, 36, a, asm.Half), asm.StoreMem(data, 50, b, asm.Word))
	default:
		code = append(code, asm.StoreMem(data, 36, a, asm.Half))
	}
	code = append(code,
		asm.Mov.Imm(asm.R1, int32(out.Index)).WithSymbol("send"),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return())
	if s.prog, err = xdpProgram(code); err != nil {
		return err
	}
	// A program that is attached nowhere takes milliseconds to be run.
	if err := netns.Join(netns.Port{NS: s.l.Generator, Name: "hold", Down: true}, netns.Port{NS: s.l.Generator, Name: "holdx", Down: true}); err != nil {
		return err
	}
	return s.attach(s.l.Generator, "hold", s.prog)
}
