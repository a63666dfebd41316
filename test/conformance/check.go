package conformance

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Router is a running router that was started with the configuration of a
// case: over ports in memory, AF_XDP, netmap or anything else.
type Router interface {
	// Begin makes the router forget what earlier cases left: neighbors that it
	// found, tokens that it spent.
	Begin() error

	// Do makes an event happen.
	Do(Event) error

	// Inject gives the router a frame on a port.
	Inject(port string, frame []byte) error

	// Collect waits until the router has dealt with all frames and returns what
	// left by each port since the last call, in order.
	Collect() (map[string][][]byte, error)

	// Counters returns the counters of all ports as Outcome.Counters calls
	// them; those of queues are summed up, and those that are 0 may be missing.
	Counters() (map[string]uint64, error)
}

// A HostWatcher is a Router that knows which frames the host stacks got.
type HostWatcher interface {
	// ToHost returns what the host of each port got since the last call.
	ToHost() map[string][][]byte
}

// A Padder is a Router whose ports do not pad all frames to 60 bytes, as the
// table has them, because their devices do.
type Padder interface {
	MinFrame(port string) int
}

// unpadded takes the zeros behind the packet from a frame, down to n bytes.
func unpadded(f []byte, n int) []byte {
	p := untagged(f)
	tag := len(f) - len(p)
	if len(p) < 34 {
		return f
	}
	switch binary.BigEndian.Uint16(p[12:]) {
	case 0x0800:
		n = max(n, tag+14+int(binary.BigEndian.Uint16(p[16:])))
	case 0x86dd:
		n = max(n, tag+54+int(binary.BigEndian.Uint16(p[18:])))
	case 0x0806:
		n = max(n, tag+42)
	default:
		return f
	}
	return f[:min(n, len(f))]
}

// Check runs a case on a router and returns an error that tells all
// differences of the first step that has any.
func Check(r Router, c *Case, h Host) error {
	if err := r.Begin(); err != nil {
		return err
	}
	if _, err := r.Collect(); err != nil { // what it says for itself at the start
		return err
	}
	if w, ok := r.(HostWatcher); ok {
		w.ToHost()
	}
	for i := range c.Steps {
		if err := checkStep(r, &c.Steps[i], h); err != nil {
			if len(c.Steps) > 1 {
				err = fmt.Errorf("step %d: %w", i+1, err)
			}
			return err
		}
	}
	return nil
}

func checkStep(r Router, s *Step, h Host) error {
	before, err := r.Counters()
	if err != nil {
		return err
	}
	for _, e := range s.Events {
		e.Config = withHost(e.Config, h)
		if err := r.Do(e); err != nil {
			return fmt.Errorf("%s: %w", e.Kind, err)
		}
	}
	want := maps.Clone(s.Outcome(h).Counters)
	for i := range s.In {
		f := &s.In[i]
		for range f.Times {
			if err := r.Inject(f.Port, f.Bytes); err != nil {
				return err
			}
			want[f.Port+" receive"]++
			want[f.Port+" receive_bytes"] += uint64(len(f.Bytes))
		}
	}
	got, err := r.Collect()
	if err != nil {
		return err
	}
	after, err := r.Counters()
	if err != nil {
		return err
	}
	out := make(map[string][]Frame)
	padder, _ := r.(Padder)
	for _, f := range s.Outcome(h).Out {
		if padder != nil {
			f.Bytes = unpadded(f.Bytes, padder.MinFrame(f.Port))
		}
		for range f.Times {
			out[f.Port] = append(out[f.Port], f)
			want[f.Port+" transmit"]++
			want[f.Port+" transmit_bytes"] += uint64(len(f.Bytes))
		}
	}
	errs := compareFrames(got, out)
	for _, k := range union(want, after) {
		if g := after[k] - before[k]; g != want[k] {
			errs = append(errs, fmt.Errorf("counter %s: moved by %d, want %d", k, int64(g), want[k]))
		}
	}
	errs = append(errs, conserved(before, after)...)
	if w, ok := r.(HostWatcher); ok {
		errs = append(errs, s.checkHost(w.ToHost(), want)...)
	}
	return errors.Join(errs...)
}

// compareFrames compares what left by each port with what has to leave.
func compareFrames(got map[string][][]byte, want map[string][]Frame) (errs []error) {
	for _, port := range union(want, got) {
		if g, w := len(got[port]), len(want[port]); g != w {
			errs = append(errs, fmt.Errorf("port %s: %d frames left, want %d", port, g, w))
		}
		for i, g := range got[port] {
			if i >= len(want[port]) {
				errs = append(errs, fmt.Errorf("port %s: frame %d was not expected:\n%s", port, i+1, formatHex(g)))
			} else if w := &want[port][i]; !w.Matches(g) {
				errs = append(errs, fmt.Errorf("port %s: frame %d left as\n%swant %s\n%s", port, i+1, formatHex(g), w.Expr, formatHex(w.Bytes)))
			}
		}
	}
	return errs
}

// Matches reports whether b is the frame. The IPv4 identification of errors and
// echo replies, which the router makes itself, may be any.
func (f *Frame) Matches(b []byte) bool {
	if bytes.Equal(b, f.Bytes) {
		return true
	}
	kind, _, _ := strings.Cut(f.Expr, " ")
	return (kind == "error" || kind == "echo_reply") && bytes.Equal(anyID(b), anyID(f.Bytes))
}

// checkHost compares what hosts got with what came in: as many frames as the
// counters say, in order and unchanged.
func (s *Step) checkHost(got map[string][][]byte, want map[string]uint64) (errs []error) {
	for port, frames := range got {
		if w := want[port+" to_host"]; uint64(len(frames)) != w {
			errs = append(errs, fmt.Errorf("port %s: the host got %d frames, want %d", port, len(frames), w))
		}
		var in [][]byte
		for _, f := range s.In {
			if f.Port == port {
				in = append(in, slices.Repeat([][]byte{f.Bytes}, f.Times)...)
			}
		}
		for _, g := range frames {
			for len(in) > 0 && !bytes.Equal(in[0], g) {
				in = in[1:]
			}
			if len(in) == 0 {
				errs = append(errs, fmt.Errorf("port %s: the host got a frame that did not come in:\n%s", port, formatHex(g)))
				break
			}
			in = in[1:]
		}
	}
	return errs
}

// conserved checks for each port that every frame received had exactly one end:
// receive = forwarded + to_host + punted + dropped.
func conserved(before, after map[string]uint64) (errs []error) {
	in, ends := make(map[string]uint64), make(map[string]uint64)
	for k, v := range after {
		v -= before[k]
		port, name, _ := strings.Cut(k, " ")
		name, _, _ = strings.Cut(name, "{")
		switch name {
		case "receive":
			in[port] += v
		case "forwarded", "to_host", "punted", "dropped":
			ends[port] += v
		}
	}
	for _, port := range union(in, ends) {
		if in[port] != ends[port] {
			errs = append(errs, fmt.Errorf("port %s: %d frames received, %d accounted for", port, in[port], ends[port]))
		}
	}
	return errs
}

// union returns the keys of both maps, sorted.
func union[V, W any](a map[string]V, b map[string]W) []string {
	return slices.Compact(slices.Sorted(func(yield func(string) bool) {
		for k := range a {
			if !yield(k) {
				return
			}
		}
		for k := range b {
			if !yield(k) {
				return
			}
		}
	}))
}
