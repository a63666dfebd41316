//go:build integration && linux

package oracle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// program is the nmfwd under test.
var program string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "nmfwd-oracle-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "nmfwd")
		if out, err := exec.Command("go", "build", "-o", program, "nmfwd/cmd/nmfwd").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build nmfwd: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// A pairOfTwins is two routers of which the kernel forwards one.
type pairOfTwins struct {
	kernel, nmfwd *twin
	hits          map[string]int // of intended differences, by name
}

func newPair(ctx context.Context, dir string) (*pairOfTwins, error) {
	p := &pairOfTwins{hits: map[string]int{}}
	var err error
	if p.kernel, err = newTwin(ctx, "kernel", "", dir); err != nil {
		return nil, err
	}
	if p.nmfwd, err = newTwin(ctx, "nmfwd", program, dir); err != nil {
		return nil, errors.Join(err, p.kernel.close())
	}
	return p, nil
}

func (p *pairOfTwins) close() error { return errors.Join(p.kernel.close(), p.nmfwd.close()) }

// both has both routers do something at the same time.
func (p *pairOfTwins) both(f func(*twin) error) error {
	var errs [2]error
	var wg sync.WaitGroup
	for i, w := range []*twin{p.kernel, p.nmfwd} {
		wg.Go(func() { errs[i] = f(w) })
	}
	wg.Wait()
	return errors.Join(errs[:]...)
}

// A failure says that the routers differ.
type failure struct {
	line int // of the script
	text string
	kind string // equal of failures that may have one cause

	causes map[string]bool // frames that are wrongly forwarded, as lines
}

// atOnce is how many frames of a family a port gets before the routers have come
// to rest: nmfwd sends no more errors than that without a rest, whatever the rate.
const atOnce = 10

// stillDiffer is how long routers differ until that is believed: what is on its way
// through queues of the system that no marker passes has arrived then.
const stillDiffer = 500 * time.Millisecond

// compare sends frames to both and compares what comes out.
func (p *pairOfTwins) compare(ctx context.Context, frames []*frame) (*failure, error) {
	all := frames
	for len(frames) > 0 {
		var n [ports + 1][2]int
		chunk := 0
		for _, f := range frames {
			v6 := 0
			if f.src.Is6() {
				v6 = 1
			}
			if n[f.port][v6]++; n[f.port][v6] > atOnce {
				break
			}
			chunk++
		}
		if err := p.both(func(w *twin) error {
			for _, f := range frames[:chunk] {
				if err := w.send(f.port, f.build()); err != nil {
					return err
				}
			}
			return w.settle()
		}); err != nil {
			return nil, err
		}
		frames = frames[chunk:]
	}
	began := time.Now()
	for {
		l := subtract(p.kernel.got, p.nmfwd.got)
		hits := map[string]int{}
		for _, d := range intended {
			hits[d.name] += d.take(ctx, p, &l)
		}
		sets := p.sets()
		if l.empty() && sets == "" {
			for name, n := range hits {
				p.hits[name] += n
			}
			p.kernel.got, p.nmfwd.got = nil, nil
			return nil, nil
		}
		if time.Since(began) > stillDiffer {
			p.kernel.got, p.nmfwd.got = nil, nil
			f := &failure{text: l.String() + sets, kind: l.kind(), causes: l.causes(all)}
			for _, c := range slices.Sorted(maps.Keys(f.causes)) {
				f.text += "  of " + c + "\n"
			}
			return f, nil
		}
		if err := p.both((*twin).settle); err != nil {
			return nil, err
		}
	}
}

// A tamper says what nmfwd's router is told in place of a line. It has a state of
// its own, so that each run needs a new one.
type tamper func(line string) []string

// run does a script with both routers. A failure is what differs first; an error is
// one of the test.
func (p *pairOfTwins) run(ctx context.Context, script []string, t tamper) (*failure, error) {
	var frames []*frame
	flush := func(line int) (*failure, error) {
		if len(frames) == 0 {
			return nil, nil
		}
		f, err := p.compare(ctx, frames)
		if frames = nil; f != nil {
			f.line = line
		}
		return f, err
	}
	for i, line := range script {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		fs, err := expand(line)
		if err != nil {
			return nil, err
		}
		if fs != nil {
			frames = append(frames, fs...)
			continue
		}
		if f, err := flush(i - 1); f != nil || err != nil {
			return f, err
		}
		var said [2]string
		if err := p.both(func(w *twin) (err error) {
			if w == p.kernel {
				said[0], err = w.do(ctx, line)
				return err
			}
			lines := []string{line}
			if t != nil {
				lines = t(line)
			}
			for _, l := range lines {
				if said[1], err = w.do(ctx, l); err != nil {
					return err
				}
			}
			return w.settle() // its questions for gateways have been answered
		}); err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", i+1, line, err)
		}
		// nmfwd asks for gateways before packets come, so that it may have neighbors
		// to be deleted which the other has not.
		if said[0] != said[1] && t == nil && !strings.Contains(line, " neigh ") {
			return &failure{line: i, text: fmt.Sprintf("  the systems answer: %q and %q\n", said[0], said[1]), kind: "answer"}, nil
		}
	}
	if f, err := flush(len(script) - 1); f != nil || err != nil {
		return f, err
	}
	if n, err := p.nmfwd.forwardedByKernel(); n > 0 || err != nil {
		return &failure{line: len(script) - 1, text: fmt.Sprintf("  the kernel of nmfwd's router has forwarded %d packets of IPv4\n", n), kind: "kernel"}, err
	}
	return nil, nil
}

// try runs a script with new routers.
func try(ctx context.Context, t testing.TB, script []string, tamper func() tamper) (f *failure, hits map[string]int) {
	t.Helper()
	p, err := newPair(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}()
	if tamper != nil {
		f, err = p.run(ctx, script, tamper())
	} else {
		f, err = p.run(ctx, script, nil)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, p.nmfwd.log.String())
	}
	return f, p.hits
}

// shrink returns the shortest script that it finds which still fails in the same
// way, in the time that there is: the lines up to the failure, then without one part after the other
// (A. Zeller, R. Hildebrandt:
// Simplifying and Isolating Failure-Inducing Input).
func shrink(ctx context.Context, t testing.TB, script []string, f *failure, tamper func() tamper, within time.Duration) ([]string, *failure) {
	t.Helper()
	end := time.Now().Add(within)
	script = slices.Clone(script[:f.line+1])
	if less := slices.DeleteFunc(slices.Clone(script), func(line string) bool { return strings.HasPrefix(line, "frame ") && !f.causes[line] }); f.causes != nil && len(less) < len(script) {
		if g, _ := try(ctx, t, less, tamper); g != nil && g.kind == f.kind {
			script, f = less[:g.line+1], g
		}
	}
	for parts := 2; len(script) > 1 && time.Now().Before(end); {
		size := (len(script) + parts - 1) / parts
		removed := false
		for at := 0; at < len(script) && time.Now().Before(end); {
			less := slices.Concat(script[:at], script[min(at+size, len(script)):])
			if g, _ := try(ctx, t, less, tamper); g != nil && g.kind == f.kind {
				script, f, removed = less[:g.line+1], g, true
			} else {
				at += size
			}
		}
		switch {
		case size == 1 && !removed:
			return script, f
		case !removed:
			parts = min(2*parts, len(script))
		default:
			parts = max(2, min(parts, len(script)))
		}
	}
	return script, f
}

// shrinkFor is how long a script is shrunk.
const shrinkFor = 90 * time.Second

// report fails a test with the shortest script.
func report(ctx context.Context, t *testing.T, script []string, f *failure) {
	t.Helper()
	t.Logf("differs at line %d, %s\n%s", f.line+1, script[f.line], f.text)
	short, g := shrink(ctx, t, script, f, nil, shrinkFor)
	file := filepath.Join(os.TempDir(), fmt.Sprintf("nmfwd-oracle-%d", os.Getpid()))
	if err := os.WriteFile(file, []byte(strings.Join(short, "\n")+"\n"), 0o600); err != nil {
		t.Error(err)
	}
	t.Errorf("the routers differ:\n%s\nafter %d lines, which ORACLE_SCRIPT=%s repeats; the last of them:\n%s", g.text, len(short), file, strings.Join(short[max(0, len(short)-40):], "\n"))
}

// The gate's seeds and their steps.
var seeds = []uint64{1, 2, 3}

const steps = 40

// TestTwins: commands and frames from fixed seeds, the same of both routers. With
// SOAK=1 the seeds are new ones, for ever.
func TestTwins(t *testing.T) {
	if os.Getenv("SOAK") != "" {
		for ok := true; ok; {
			seed := rand.Uint64()
			ok = t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { runSeed(t, generate(seed, 10*steps)) })
		}
		return
	}
	if n, err := strconv.Atoi(os.Getenv("ORACLE_SEEDS")); err == nil {
		seeds = nil
		for i := range n {
			seeds = append(seeds, uint64(1000+i))
		}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			runSeed(t, generate(seed, steps))
		})
	}
}

func runSeed(t *testing.T, script []string) {
	t.Helper()
	f, hits := try(t.Context(), t, script, nil)
	if f != nil {
		report(t.Context(), t, script, f)
		return
	}
	maps.DeleteFunc(hits, func(_ string, n int) bool { return n == 0 })
	t.Logf("%d lines, intended differences: %v", len(script), hits)
}

// TestScript repeats the script in the file ORACLE_SCRIPT.
func TestScript(t *testing.T) {
	name := os.Getenv("ORACLE_SCRIPT")
	if name == "" {
		t.Skip("ORACLE_SCRIPT names no file")
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	script := strings.Split(strings.TrimSpace(string(b)), "\n")
	f, hits := try(t.Context(), t, script, nil)
	t.Logf("intended differences: %v", hits)
	if f != nil {
		t.Errorf("line %d, %s\n%s", f.line+1, script[f.line], f.text)
	}
}

// TestIntended shows each intended difference: it is there, and nothing else.
func TestIntended(t *testing.T) {
	for _, d := range intended {
		t.Run(d.name, func(t *testing.T) {
			f, hits := try(t.Context(), t, strings.Split(d.script, "\n"), nil)
			if f != nil {
				t.Errorf("differs by more than that:\n%s", f.text)
			} else if hits[d.name] == 0 {
				t.Errorf("does not differ any more: take it from the lists here and in docs/oracle.md")
			}
		})
	}
}

// TestKnown shows each defect that is to be mended: routers differ as long as it is
// there.
func TestKnown(t *testing.T) {
	for _, d := range known {
		t.Run(d.name, func(t *testing.T) {
			if f, _ := try(t.Context(), t, strings.Split(d.script, "\n"), nil); f == nil {
				t.Errorf("is mended: take it from the lists here and in docs/oracle.md, and scripts have it")
			}
		})
	}
}

// TestPlanted: what the oracle is for. Each of these bugs, which one of the routers
// seems to have, is found by one of the gate's scripts.
func TestPlanted(t *testing.T) {
	replace := func(old, new string) func() tamper {
		return func() tamper {
			return func(line string) []string { return []string{strings.Replace(line, old, new, 1)} }
		}
	}
	for _, bug := range []struct {
		name   string
		tamper func() tamper
	}{
		{"a deletion is lost", func() tamper {
			return func(line string) []string {
				if strings.Contains(line, "route del") {
					return nil
				}
				return []string{line}
			}
		}},
		{"a metric is wrong", replace("metric 10", "metric 150")},
		{"a change of a neighbor is lost", func() tamper {
			return func(line string) []string {
				if strings.HasPrefix(line, "ip neigh replace") {
					return nil
				}
				return []string{line}
			}
		}},
		{"a neighbor is late", func() tamper {
			var late []string
			return func(line string) []string {
				now := late
				if late = nil; strings.HasPrefix(line, "ip neigh replace") {
					late = []string{line}
					return now
				}
				return append(now, line)
			}
		}},
		{"a type of route is another one", replace("replace blackhole", "replace prohibit")},
	} {
		t.Run(bug.name, func(t *testing.T) {
			for _, seed := range seeds {
				script := generate(seed, steps)
				f, _ := try(t.Context(), t, script, bug.tamper)
				if f == nil {
					continue
				}
				t.Logf("found at line %d of %d, seed %d:\n%s", f.line+1, len(script), seed, f.text)
				return
			}
			t.Error("is not found")
		})
	}
}

// TestShrink: a difference that few lines make is shown by these.
func TestShrink(t *testing.T) {
	var script []string
	for i := range 5 {
		script = append(script, fmt.Sprintf("ip route add 10.65.%d.0/24 via 10.2.0.3", i), fmt.Sprintf("frame p1 10.1.0.2 10.2.0.3 id=%d", i))
	}
	script = slices.Insert(script, 4, "ip route add blackhole 10.64.0.0/16 metric 10")
	script = append(script, "frame p1 10.1.0.2 10.64.0.3 id=100", "frame p1 10.1.0.2 10.2.0.4 id=101", "ip route del blackhole 10.64.0.0/16", "frame p1 10.1.0.2 10.2.0.4 id=102")
	deaf := func() tamper {
		return func(line string) []string {
			if strings.Contains(line, "add blackhole") {
				return nil
			}
			return []string{line}
		}
	}
	f, _ := try(t.Context(), t, script, deaf)
	if f == nil {
		t.Fatal("is not found")
	}
	short, _ := shrink(t.Context(), t, script, f, deaf, time.Minute)
	want := []string{"ip route add blackhole 10.64.0.0/16 metric 10", "frame p1 10.1.0.2 10.64.0.3 id=100"}
	if !slices.Equal(short, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(short, "\n"), strings.Join(want, "\n"))
	}
}

// TestDocument: docs/oracle.md has the lists as they are here.
func TestDocument(t *testing.T) {
	b, err := os.ReadFile("../../docs/oracle.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, d := range intended {
		if want := fmt.Sprintf("| %s | %s |\n", d.name, d.reason); !strings.Contains(text, want) {
			t.Errorf("no line %s", want)
		}
	}
	for _, d := range known {
		if want := fmt.Sprintf("| %s | %s |\n", d.name, d.what); !strings.Contains(text, want) {
			t.Errorf("no line %s", want)
		}
	}
	if n := strings.Count(text, "\n| ") - 2; n != len(intended)+len(known) {
		t.Errorf("%d lines in the tables, want %d", n, len(intended)+len(known))
	}
}
