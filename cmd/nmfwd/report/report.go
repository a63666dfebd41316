// Package report says what ports are and what could be better, from facts alone:
// at start, and for "nmfwd check", which has the same facts but opens nothing.
package report

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"nmfwd/dataplane"
	"nmfwd/system/nic"
)

// Facts are what is known of the machine and of the ports, before they are
// opened or after.
type Facts struct {
	Tools   Tools
	Opened  bool  // else what is said is what a start would do
	Workers int   // threads that forward
	CPUs    []int // where they run, in turn
	Rest    []int // the CPUs of all other threads, nil if workers leave none
	Busy    bool  // workers never sleep
	Native  bool  // required, by itself or for zero copy
	Most    int   // rings that the busiest worker reads
	Least   int   // rings that the idlest one reads
	Memory  Memory
	Ports   []Port
	Refused []Refusal // what keeps nmfwd from starting, besides what is found here
}

// A Refusal is why nmfwd does not start.
type Refusal struct {
	Port string // empty for none
	Err  error
}

// Memory are the parameters of netmap's memory, and the machine's, 0 where they
// are not known.
type Memory struct {
	Buffers, BufSize, Rings, Interfaces int
	RAM                                 uint64 // bytes

}

// A Port is a port.
type Port struct {
	nic.Info        // of its interface, without one only Name
	Place    string // of the port line in the file
	Plain    bool   // there is no interface: a VALE port, a pipe
	Backend  string // "netmap" or "afxdp"
	Mode     string // "native", "emulated" or "generic", empty before it is known
	ZeroCopy bool   // once opened
	Region   string // of its buffers, once opened
	Rings    dataplane.Rings
	RXSlots  int // of each ring that nmfwd reads, 0 before it is known
	TXSlots  int
	BufSize  int // longest frame in one buffer, bytes, 0 before it is known
	MTU      int // that the port line asks for, 0 for none
	Host     bool
	VLANs    bool
	Spare    int // buffers beyond those of rings
	Owners   dataplane.Owners
	Set      []nic.Setting // that nmfwd changes
	Stay     []nic.Setting // in the way, but they stay
	SetErr   error         // why settings could not be changed
	Left     []nic.Setting // that a killed nmfwd has left changed, with the values to give back
	Busy     bool          // an nmfwd runs on it

	// Where the kernel has what is not for forwarding before nmfwd sees it.
	Sources  []Sources // what it asks of sources, of the port and its VLANs, where urpf does
	Forwards bool      // it would forward what the configuration wants to be dropped
}

// Sources are what is asked of the sources of packets that an interface receives.
type Sources struct {
	Name     string // of the interface
	Strict   bool   // urpf strict, not loose
	Own, All int    // rp_filter of the interface, and of all: the larger one counts
	IPv6     bool   // the port has addresses of IPv6
}

// weak reports whether the kernel asks less than urpf.
func (s *Sources) weak() bool {
	have := max(s.Own, s.All)
	return have == 0 || have != 1 && s.Strict
}

// A Level says how much a line matters.
type Level int

// The levels.
const (
	Tell   Level = iota // what is
	Note                // what the reader may want to know
	Warn                // what could be better
	Refuse              // what keeps nmfwd from starting
)

// A Line is one sentence of a report.
type Line struct {
	Level Level
	Port  string // empty for none
	Text  string
	Fix   string // the command that helps, empty for none
	Err   error  // of Refuse
}

// minFrame is what the shortest frame takes on the wire: 64 bytes, preamble and
// gap, in bits.
const minFrame = (64 + 20) * 8

// headLen is the longest header before the IP packet: Ethernet and a tag.
const headLen = 18

// Lines returns the report.
func (f *Facts) Lines() []Line {
	var r reporter
	for i := range f.Ports {
		r.port = f.Ports[i].Name
		f.describe(&r, &f.Ports[i])
	}
	for _, x := range f.Refused {
		r.lines = append(r.lines, Line{Level: Refuse, Port: x.Port, Text: x.Err.Error(), Err: x.Err})
	}
	for i := range f.Ports {
		r.port, r.place = f.Ports[i].Name, f.Ports[i].Place
		f.judge(&r, &f.Ports[i])
	}
	r.port, r.place = "", ""
	f.machine(&r)
	return r.lines
}

// A reporter collects lines.
type reporter struct {
	port  string
	place string // in the file of what is refused, empty where it is not known
	lines []Line
}

func (r *reporter) add(l Level, fix, format string, args ...any) {
	line := Line{Level: l, Port: r.port, Text: fmt.Sprintf(format, args...), Fix: fix}
	if l == Refuse {
		line.Err = fmt.Errorf("port %s: %s", r.port, line.Text)
		if r.place != "" {
			line.Text, line.Err = r.place+": "+line.Text, fmt.Errorf("%s: %w", r.place, line.Err)
		}
	}
	r.lines = append(r.lines, line)
}

// describe says what the port is.
func (f *Facts) describe(r *reporter, p *Port) {
	what := []string{p.Backend}
	switch {
	case p.Plain:
	case p.Mode == "":
		what = append(what, "mode known at start only")
	default:
		what = append(what, p.Mode)
	}
	if p.Driver != "" {
		what = append(what, "driver "+p.Driver)
	}
	if p.MAC != nil {
		what = append(what, p.MAC.String())
	}
	if p.Speed > 0 {
		what = append(what, fmt.Sprintf("%d Mbit/s", p.Speed))
	}
	if !p.Plain && p.Up && !p.Carrier {
		what = append(what, "no carrier")
	}
	what = append(what, map[bool]string{true: "host on", false: "host off"}[p.Host])
	r.add(Tell, "", "%s", strings.Join(what, ", "))

	rings := fmt.Sprintf("%s, %s", count(p.Rings.RX, "receive", p.RXSlots), count(p.Rings.TX, "transmit", p.TXSlots))
	if !p.Plain && p.Info.RXSlots > 0 && p.Backend == "afxdp" {
		rings += fmt.Sprintf("; the card's own have %d and %d", p.Info.RXSlots, p.Info.TXSlots)
	}
	if f.Opened {
		rings += "; region " + p.Region + map[bool]string{true: ", zero copy", false: ", the device copies"}[p.ZeroCopy]
	}
	r.add(Tell, "", "%s", rings)
	if p.Owners.RX != nil {
		r.add(Tell, "", "read by worker %s, written by %s", list(p.Owners.RX), list(p.Owners.TX))
	}
	size := fmt.Sprintf("MTU %d", p.mtu())
	if p.BufSize > 0 {
		size += fmt.Sprintf(", buffers for frames of %d bytes", p.BufSize)
	}
	r.add(Tell, "", "%s", size)
	if len(p.Set) > 0 {
		when := "changed while nmfwd runs"
		if !f.Opened {
			when = "to be changed while nmfwd runs"
		}
		r.add(Tell, "", "settings %s: %s", when, f.Tools.Settings(p.Name, p.Set))
	}
}

// count says how many rings there are.
func count(n int, what string, slots int) string {
	s := fmt.Sprintf("%d %s ring", n, what)
	if n != 1 {
		s += "s"
	}
	if slots > 0 {
		s += fmt.Sprintf(" of %d slots", slots)
	}
	return s
}

// list writes the workers of rings, - for none.
func list(owners []int) string {
	var s []string
	for _, o := range owners {
		if o < 0 {
			s = append(s, "-")
		} else {
			s = append(s, strconv.Itoa(o))
		}
	}
	return strings.Join(s, " ")
}

func (p *Port) mtu() int {
	if p.MTU != 0 {
		return p.MTU
	}
	return p.Info.MTU
}

// judge says what could be better on the port.
func (f *Facts) judge(r *reporter, p *Port) {
	t := f.Tools
	netmap := p.Backend == "netmap"
	if p.Busy {
		r.add(Note, "", "an nmfwd runs on it: a second one does not start")
	}
	if len(p.Left) > 0 {
		if f.Opened {
			r.add(Note, "", "an nmfwd before this one was killed: its settings are given back when this one ends: %s", t.Settings(p.Name, p.Left))
		} else {
			r.add(Warn, "nmfwd restore "+p.Name, "an nmfwd that was killed has left settings changed")
		}
	}
	if !f.Opened {
		f.size(r, p)
	}
	if p.Plain {
		return
	}
	if !p.Up && !f.Opened {
		r.add(Refuse, t.Up(p.Name), "the interface is down")
	}
	switch {
	case p.Mode == "emulated" && p.VLANs:
		r.add(Refuse, t.Native(&p.Info), "netmap is emulated on it, which loses VLAN tags: vlan lines need a driver that supports netmap, or driver afxdp")
	case p.Mode == "emulated" && f.Native:
		r.add(Refuse, t.Native(&p.Info), "driver %s does not support netmap, and option require asks for that", p.Driver)
	case p.Mode == "emulated":
		r.add(Warn, t.Native(&p.Info), "netmap is emulated on it: driver %s does not support netmap, so frames are copied and pass the kernel's stack", p.Driver)
	case p.Mode == "generic" && f.Native:
		r.add(Refuse, "", "driver %s has no native XDP, and option require asks for that", p.Driver)
	case p.Mode == "generic":
		r.add(Warn, "", "generic XDP: driver %s has no XDP of its own, so the kernel makes a socket buffer of each frame first", p.Driver)
	}
	if f.Opened && !p.ZeroCopy && p.Mode == "native" && !netmap {
		r.add(Note, "", "the kernel copies each frame: driver %s has no zero copy, or another port's has none", p.Driver)
	}
	f.offloads(r, p)
	if p.RXPause || p.TXPause {
		r.add(Warn, t.NoPause(&p.Info), "pause frames are on: a full receiver stops its sender, and what is lost is lost where nobody counts it")
	}
	f.sources(r, p)
	f.slots(r, p)
	if p.Rings.RX == 1 && f.Workers > 2 {
		r.add(Note, "", "all that it receives is read by one of %d workers", f.Workers)
	}
	if p.Backend == "afxdp" && p.Driver == "veth" {
		r.add(Note, "", `a veth hands over frames as its peer sends them: with transmit checksum offload there (ethtool --features PEER tx off) checksums are missing, with VLAN offload (txvlan off) tags`)
	}
}

// size compares the MTU with the device's and with the buffers, which opening a
// port does as well.
func (f *Facts) size(r *reporter, p *Port) {
	if !p.Plain && p.MTU > p.Info.MTU {
		r.add(Refuse, f.Tools.MTU(p.Name, p.MTU), "mtu %d is more than the interface's %d", p.MTU, p.Info.MTU)
	}
	most := p.BufSize - headLen
	bigger := func(mtu int) string { return f.Tools.Parameter("buf_size", (mtu+headLen+63)/64*64) }
	switch {
	case p.BufSize == 0:
	case p.Backend == "netmap" && p.Host && p.Info.MTU > most:
		r.add(Refuse, bigger(p.Info.MTU),
			"the host receives and sends packets of the interface's MTU, %d, each in one buffer of netmap's, and these have %d bytes: make them larger before netmap is first used, lower the interface's MTU, or say host off", p.Info.MTU, p.BufSize)
	case p.mtu() <= most:
	case p.Backend == "netmap":
		r.add(Refuse, bigger(p.mtu()),
			"MTU %d needs buffers of %d bytes, they have %d: make them larger before netmap is first used, or lower the MTU", p.mtu(), p.mtu()+headLen, p.BufSize)
	default:
		r.add(Refuse, f.Tools.MTU(p.Name, most), "MTU %d does not fit the largest buffer, %d bytes: lower it", p.mtu(), p.BufSize)
	}
}

// offloads says what stands in the way and stays.
func (f *Facts) offloads(r *reporter, p *Port) {
	off := func(kinds ...nic.Kind) []nic.Setting {
		var s []nic.Setting
		for _, x := range p.Stay {
			if slices.Contains(kinds, x.Kind) {
				x.On = false
				s = append(s, x)
			}
		}
		return s
	}
	why := "as the port line says (offload keep)"
	switch {
	case p.SetErr != nil:
		why = p.SetErr.Error()
	case slices.ContainsFunc(p.Stay, func(s nic.Setting) bool { return s.Fixed }):
		why = "the driver does not let them be changed"
	}
	if s := off(nic.TXChecksum, nic.Segmentation, nic.VLANInsert); len(s) > 0 {
		r.add(Warn, f.Tools.Settings(p.Name, s), "transmit offloads stay on: netmap drops TCP, UDP and large packets of the host, ping gets through; %s", why)
	}
	if s := off(nic.Merge); len(s) > 0 {
		r.add(Warn, f.Tools.Settings(p.Name, s), "received packets are merged: what does not fit a buffer is lost, and what is forwarded is not what was received; %s", why)
	}
	if s := off(nic.VLANStrip); len(s) > 0 {
		if p.VLANs {
			r.add(Refuse, f.Tools.Settings(p.Name, s), "the card takes VLAN tags out of frames, so vlan lines have no effect; %s", why)
		} else {
			r.add(Warn, f.Tools.Settings(p.Name, s), "the card takes VLAN tags out of frames: tagged frames are forwarded as untagged ones; %s", why)
		}
	}
	if s := off(nic.VLANFilter); len(s) > 0 {
		r.add(Note, "", "the card filters VLANs, so it is made promiscuous; %s", why)
	}
	if p.Backend == "netmap" && p.Rings.RX > 1 && slices.Contains([]string{"igb", "em"}, p.Driver) {
		var s []nic.Setting
		for _, x := range p.Settings {
			if x.Kind == nic.RXChecksum && !x.On {
				x.On = true
				s = append(s, x)
			}
		}
		if len(s) > 0 {
			r.add(Warn, f.Tools.Settings(p.Name, s), "receive checksums are off: %s spreads packets over its rings only with them, without all land in ring 0", p.Driver)
		}
	}
}

// sources says where the kernel lets more pass than the configuration.
func (f *Facts) sources(r *reporter, p *Port) {
	for _, s := range p.Sources {
		if s.weak() {
			asks, set := "loose", []Parameter{{"net.ipv4.conf.%s.rp_filter", s.Name, 2}}
			if s.Strict {
				asks, set[0].Value = "strict", 1
				if s.All > 1 {
					set = append(set, Parameter{"net.ipv4.conf.%s.rp_filter", "all", 0})
				}
			}
			r.add(Warn, f.Tools.Kernel(set), "packets to the router's own addresses stay with the kernel, which asks less of their sources on %s than urpf %s: rp_filter is %d, and %d for all", s.Name, asks, s.Own, s.All)
		}
		if s.IPv6 {
			r.add(Note, "", "packets to the router's own IPv6 addresses stay with the kernel, which asks nothing of their sources on %s: only its packet filter can (nftables: fib saddr . iif oif missing drop)", s.Name)
		}
	}
	if p.Forwards {
		r.add(Note, f.Tools.Kernel([]Parameter{{"net.ipv4.conf.%s.forwarding", p.Name, 0}, {"net.ipv6.conf.%s.forwarding", "all", 0}}),
			"the kernel forwards too: while nmfwd starts, ends or does not run, packets go by the kernel's routes, past the blackhole, reject and urpf of this file")
	}
}

// mostSlots is the longest ring that is asked for: longer ones no longer fit the
// caches, and few cards have them.
const mostSlots = 4096

// slots compares the card's receive rings with 2 ms of smallest frames at line
// rate, which the garbage collector's and the scheduler's pauses may take.
func (f *Facts) slots(r *reporter, p *Port) {
	have := p.RXSlots
	if p.Backend == "afxdp" {
		have = p.Info.RXSlots
	}
	if have == 0 || p.Speed == 0 || p.Rings.RX == 0 {
		return
	}
	perMS := p.Speed * 1000 / minFrame
	need := (2*perMS + p.Rings.RX - 1) / p.Rings.RX
	if have >= need {
		return
	}
	want := min(1<<bits.Len(uint(need-1)), mostSlots)
	if p.MaxRXSlots > 0 {
		want = min(want, p.MaxRXSlots)
	}
	held := fmt.Sprintf("%.2g ms", float64(have*p.Rings.RX)/float64(perMS))
	switch fix := f.Tools.RXSlots(&p.Info, want); {
	case want <= have:
		r.add(Note, "", "its receive rings hold %s of smallest frames at line rate, not 2 ms, and are as long as they get", held)
	case fix == "":
		r.add(Warn, "", "its receive rings hold %s of smallest frames at line rate, want 2 ms: %d slots; for driver %s no way to set that is known", held, want, p.Driver)
	default:
		r.add(Warn, fix, "its receive rings hold %s of smallest frames at line rate, want 2 ms", held)
	}
}

// machine says what concerns all ports.
func (f *Facts) machine(r *reporter) {
	if f.Workers > 0 {
		rest := "every CPU has workers: metrics and control share them"
		if f.Rest != nil {
			rest = fmt.Sprintf("all else on %s", list(f.Rest))
		}
		r.add(Tell, "", "%d workers on CPU %s, %s", f.Workers, list(f.CPUs[:min(f.Workers, len(f.CPUs))]), rest)
	}
	if f.Workers > 0 && (f.Most > f.Least+1 || f.Least == 0) {
		r.add(Warn, "", "workers read different numbers of rings, from %d to %d: set the ports' queues or option workers", f.Least, f.Most)
	}
	if f.Busy && f.Workers > len(f.CPUs) {
		r.add(Warn, "", "%d workers that never sleep share %d CPUs, each loses packets while others run: set option workers or option idle", f.Workers, len(f.CPUs))
	}
	f.copies(r)
	f.memory(r)
}

// copies names ports whose frames are copied from one to the other.
func (f *Facts) copies(r *reporter) {
	for i, a := range f.Ports {
		for _, b := range f.Ports[i+1:] {
			if a.Region != b.Region {
				r.add(Note, "", "frames between %s and %s are copied: their memory regions, %s and %s, differ", a.Name, b.Name, a.Region, b.Region)
			}
		}
	}
}

// memory compares netmap's memory with what the ports need of it.
func (f *Facts) memory(r *reporter) {
	m := &f.Memory
	if m.Buffers == 0 || f.Opened { // opened, there was enough
		return
	}
	rings, buffers, ifs := 0, 2, 0
	for i := range f.Ports {
		p := &f.Ports[i]
		if p.Backend != "netmap" || p.Plain {
			continue
		}
		if p.RXSlots == 0 { // unknown, so nothing can be said
			return
		}
		n := p.Rings.RX + p.Rings.TX
		buffers += p.Rings.RX*p.RXSlots + p.Rings.TX*p.TXSlots + p.Spare
		if p.Host {
			buffers += p.RXSlots + p.TXSlots
			n += 2
		}
		rings += n
		ifs += 1 + n // a descriptor for the port, and at most one for each ring
	}
	if ifs == 0 {
		return
	}
	for _, c := range []struct {
		name       string
		have, need int
	}{{"buf_num", m.Buffers, buffers}, {"ring_num", m.Rings, rings}, {"if_num", m.Interfaces, ifs}} {
		if c.have != 0 && c.have < c.need {
			r.add(Warn, f.Tools.Parameter(c.name, c.need), "netmap has %s=%d, the ports need about %d", c.name, c.have, c.need)
		}
	}
	const mega = 1 << 20
	if size := uint64(m.Buffers) * uint64(m.BufSize); m.RAM > 0 && size > m.RAM/8 && 2*buffers < m.Buffers {
		enough := 1 << bits.Len(uint(buffers-1))
		r.add(Note, f.Tools.Parameter("buf_num", enough), "netmap's buffers take %d of %d MB; the ports need a part of that, to be set before netmap is first used", size/mega, m.RAM/mega)
	}
}

var prefixes = [...]string{Tell: "", Note: "note: ", Warn: "warning: ", Refuse: "error: "}

// Write writes the report as text. A fix has a line of its own.
func (f *Facts) Write(w io.Writer) error {
	var b strings.Builder
	for _, l := range f.Lines() {
		name := l.Port
		if name == "" {
			name = "nmfwd"
		}
		fmt.Fprintf(&b, "%s: %s%s\n", name, prefixes[l.Level], l.Text)
		if l.Fix != "" {
			fmt.Fprintf(&b, "\t%s\n", l.Fix)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

var levels = [...]slog.Level{Tell: slog.LevelInfo, Note: slog.LevelInfo, Warn: slog.LevelWarn, Refuse: slog.LevelError}

// Log logs the report.
func (f *Facts) Log(log *slog.Logger) {
	for _, l := range f.Lines() {
		var args []any
		if l.Port != "" {
			args = append(args, "port", l.Port)
		}
		if l.Fix != "" {
			args = append(args, "fix", l.Fix)
		}
		log.Log(context.Background(), levels[l.Level], l.Text, args...)
	}
}

// Err returns the first thing that keeps nmfwd from starting, or nil.
func (f *Facts) Err() error {
	for _, l := range f.Lines() {
		if l.Level == Refuse {
			return l.Err
		}
	}
	return nil
}
