package main

import (
	"bufio"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"nmfwd/fib"
)

//go:embed path/step.c
var stepC []byte

// compileC compiles a C program into dir and returns the name of the result.
func compileC(dir, name string, source []byte, flags ...string) (string, error) {
	src, bin := filepath.Join(dir, name+".c"), filepath.Join(dir, name)
	if err := os.WriteFile(src, source, 0o644); err != nil {
		return "", err
	}
	cmd := exec.Command("gcc", append(flags, "-Wall", "-Wextra", "-o", bin, src)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return bin, nil
}

// A peer is a running program that does what Step does, for one bed.
type peer struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
}

// startPeer starts a build for a case, of which writeCase wrote file. It ends
// with us.
func startPeer(b build, c *pathCase, file string) (*peer, error) {
	p := &peer{name: b.name, cmd: exec.Command(b.bin, b.args(c, file)...)}
	p.cmd.Stderr = os.Stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	return p, p.cmd.Start()
}

// ask sends one line and returns the answer.
func (p *peer) ask(format string, args ...any) (string, error) {
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		return "", fmt.Errorf("%s: %w", p.name, err)
	}
	s, err := p.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%s: no answer: %w", p.name, err)
	}
	return s, nil
}

// run is bed.run.
func (p *peer) run(n int) (float64, error) {
	s, err := p.ask("run %d", n)
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", p.name, err)
	}
	return ns, nil
}

func (p *peer) close() error {
	p.in.Close()
	return p.cmd.Wait()
}

// writeCase writes all that the C program needs to do the same as bed b, as
// read_case of step.c reads it.
func (b *bed) writeCase(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	put := func(vs ...uint64) {
		for _, v := range vs {
			w.Write(binary.LittleEndian.AppendUint64(w.AvailableBuffer(), v))
		}
	}
	huge := uint64(0)
	if b.huge {
		huge = 1
	}
	put(uint64(b.feed), uint64(b.burst), uint64(b.stride), huge, uint64(b.buffers()), uint64(b.rxSlots), txSlots)
	for i, p := range b.router.State().Ports {
		up := uint64(0)
		if p.Up {
			up = 1
		}
		put(uint64(p.MAC), uint64(p.MTU), up, uint64(b.router.Ports()[i].MinFrame))
		for _, every := range p.Every {
			put(uint64(every))
		}
	}
	s4, s6, err := b.table.spans()
	if err != nil {
		return err
	}
	t := b.table.fib
	put(uint64(len(t.Adj)))
	if err := binary.Write(w, binary.LittleEndian, t.Adj); err != nil {
		return err
	}
	// A family without frames gets no table.
	if b.mix == v4 {
		s6 = nil
	} else if b.mix == v6 {
		s4 = nil
	}
	for _, spans := range [][]span{s4, s6} {
		put(uint64(len(spans)))
		for _, s := range spans {
			put(s.hi, s.lo, uint64(s.adj))
		}
	}
	put(uint64(len(b.frames)))
	for _, f := range b.frames {
		put(uint64(len(f)))
		w.Write(f)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}

// A span is a range of addresses that share an adjacency: from hi, lo up to
// the next span.
type span struct {
	hi, lo uint64
	adj    int
}

// spans returns the ranges of both families, as the table's dump tells them.
func (f *fibOf) spans() (s4, s6 []span, err error) {
	if f.s4 == nil {
		f.s4, f.s6, err = spansOf(f.fib)
	}
	return f.s4, f.s6, err
}

func spansOf(t *fib.FIB) (s4, s6 []span, err error) {
	number := make(map[string]int)
	for i := range t.Adj {
		if s := t.Adj[i].String(); number[s] == 0 {
			number[s] = i
		}
	}
	r, w := io.Pipe()
	go func() {
		buf := bufio.NewWriterSize(w, 1<<20)
		w.CloseWithError(errors.Join(t.Dump(buf), buf.Flush()))
	}()
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		first, adj, _ := strings.Cut(sc.Text(), " ")
		a, err := netip.ParseAddr(first)
		if err != nil {
			return nil, nil, err
		}
		s := span{adj: number[adj]}
		if a.Is4() {
			b := a.As4()
			s.hi = uint64(binary.BigEndian.Uint32(b[:]))
			s4 = append(s4, s)
			continue
		}
		b := a.As16()
		s.hi, s.lo = binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
		s6 = append(s6, s)
	}
	return s4, s6, sc.Err()
}
