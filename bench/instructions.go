package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
)

// Packets of the two runs whose difference is counted: what comes before and
// after the steps is the same in both.
const fewPackets, morePackets = 50_000, 450_000

// instructions counts the instructions that a packet takes in Step and in C, by
// callgrind: a figure that no other program disturbs.
func instructions(o *options) (*report, error) {
	r := &report{
		name: "instructions", title: "Instructions per packet of Step on ports in memory", unit: "instructions", series: []string{"Go", contestants[2]},
		columns: []string{"case", "Go", contestants[2], "Go/C"},
		notes:   []string{fmt.Sprintf("Callgrind, difference of runs of %d and %d packets. It does not know what -march=native makes here.", fewPackets, morePackets)},
	}
	if _, err := exec.LookPath("valgrind"); err != nil {
		r.notes = append(r.notes, "Not run: no valgrind.")
		return r, nil
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	bin, err := compileC(dir, "step", stepC, "-O2", "-march=x86-64")
	if err != nil && !errors.Is(err, exec.ErrNotFound) {
		return nil, err
	}
	for _, c := range pathGroups()[0] {
		if c.frames != inL2 || !o.rows.MatchString(c.name) {
			continue
		}
		inGo, err := perPacket(func(n int) *exec.Cmd {
			cmd := exec.Command(self, "-child", fmt.Sprintf("step:%d:%s", n, c.name))
			cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=1", "GOGC=off") // callgrind cannot take the signals
			return cmd
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		values := []float64{inGo}
		cells := []string{c.name, fmt.Sprintf("%.0f", inGo), "", ""}
		if bin != "" {
			b, err := c.bed()
			if err != nil {
				return nil, err
			}
			name := filepath.Join(dir, "case")
			err = b.writeCase(name)
			b.close()
			if err != nil {
				return nil, err
			}
			inC, err := perPacket(func(n int) *exec.Cmd {
				cmd := exec.Command(bin, name)
				cmd.Stdin = strings.NewReader(fmt.Sprintf("run %d\n", n))
				return cmd
			})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			values = append(values, inC)
			cells[2], cells[3] = fmt.Sprintf("%.0f", inC), fmt.Sprintf("%.2f", inGo/inC)
		}
		r.rows = append(r.rows, row{cells, values})
	}
	return r, nil
}

// collected is what callgrind writes at the end.
var collected = regexp.MustCompile(`Collected : (\d+)`)

// perPacket returns the instructions per packet of a program that is started
// for so many.
func perPacket(start func(n int) *exec.Cmd) (float64, error) {
	var count [2]float64
	for i, n := range []int{fewPackets, morePackets} {
		cmd := start(n)
		cmd.Args = append([]string{"valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", cmd.Path}, cmd.Args[1:]...)
		var err error
		if cmd.Path, err = exec.LookPath("valgrind"); err != nil {
			return 0, err
		}
		var out bytes.Buffer
		cmd.Stderr = &out
		if err := cmd.Run(); err != nil {
			return 0, fmt.Errorf("valgrind: %w\n%s", err, out.Bytes())
		}
		m := collected.FindSubmatch(out.Bytes())
		if m == nil {
			return 0, fmt.Errorf("valgrind: no count in its output:\n%s", out.Bytes())
		}
		if count[i], err = strconv.ParseFloat(string(m[1]), 64); err != nil {
			return 0, err
		}
	}
	return (count[1] - count[0]) / (morePackets - fewPackets), nil
}

// stepChild steps the bed of a case for n packets.
func stepChild(n int, name string) error {
	runtime.LockOSThread()
	for _, c := range pathGroups()[0] {
		if c.name == name {
			b, err := c.bed()
			if err != nil {
				return err
			}
			for got := 0; got < n; {
				got += b.worker.Step(0)
			}
			return nil
		}
	}
	return fmt.Errorf("no case %q", name)
}
