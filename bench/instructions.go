package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Packets of the two runs whose difference is counted, in whole batches: what
// comes before and after the steps is the same in both.
const fewPackets, morePackets = 12 * batch, 112 * batch

// instructions counts the instructions that a packet takes in Step and in C, by
// callgrind: a figure that no other program disturbs.
func instructions(o *options) (*report, error) {
	r := &report{
		name: "instructions", title: "Instructions per packet of Step on ports in memory", unit: "instructions", series: []string{"Go", plain, newer},
		columns: []string{"case", "Go", plain, newer, "Go/C"},
		notes:   []string{fmt.Sprintf("Callgrind, difference of runs of %d and %d packets. It does not know what -march=native makes here.", fewPackets, morePackets)},
	}
	if _, err := exec.LookPath("valgrind"); err != nil {
		r.notes = append(r.notes, "Not run: no valgrind.")
		return r, nil
	}
	dir, err := os.MkdirTemp("", "instructions")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	bs, notes, err := builds(o, dir)
	if err != nil {
		return nil, err
	}
	r.notes = append(r.notes, notes...)
	step := func(c *pathCase, _ string) []string { return []string{"-child", "step:" + c.name} }
	bs = append([]build{{"Go", self, step}}, slices.DeleteFunc(bs, func(b build) bool { return b.name == optimised })...)
	for _, c := range pathGroups()[0].cases {
		if c.frames != inL2 || !o.rows.MatchString(c.name) {
			continue
		}
		o.say("instructions: %s", c.name)
		b, err := c.bed()
		if err != nil {
			return nil, err
		}
		file := filepath.Join(dir, "case")
		err = b.writeCase(file)
		b.close()
		if err != nil {
			return nil, err
		}
		got := make(map[string]float64)
		for _, b := range bs {
			if got[b.name], err = perPacket(o, b, &c, file); err != nil {
				return nil, fmt.Errorf("%s, %s: %w", c.name, b.name, err)
			}
		}
		cells, values := []string{c.name}, []float64(nil)
		for _, name := range r.series {
			cell := ""
			if n := got[name]; n > 0 {
				cell = fmt.Sprintf("%.0f", n)
			}
			cells, values = append(cells, cell), append(values, got[name])
		}
		beside := ""
		if got[plain] > 0 {
			beside = fmt.Sprintf("%.2f", got["Go"]/got[plain])
		}
		r.rows = append(r.rows, row{append(cells, beside), values})
	}
	return r, nil
}

// collected is what callgrind writes at the end.
var collected = regexp.MustCompile(`Collected : (\d+)`)

// perPacket returns the instructions per packet of a build.
func perPacket(o *options, b build, c *pathCase, file string) (float64, error) {
	var count [2]float64
	for i, n := range []int{fewPackets, morePackets} {
		args := append([]string{"--tool=callgrind", "--callgrind-out-file=/dev/null", b.bin}, b.args(c, file)...)
		cmd := exec.CommandContext(o.ctx, "valgrind", args...)
		cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1,cpu.rdtscp=off", "GOMAXPROCS=1", "GOGC=off") // callgrind knows neither the signals nor RDTSCP
		cmd.Stdin = strings.NewReader(fmt.Sprintf("run %d\n", n))
		var out bytes.Buffer
		cmd.Stderr = &out
		if err := cmd.Run(); err != nil {
			return 0, fmt.Errorf("valgrind: %w\n%s", err, out.Bytes())
		}
		m := collected.FindSubmatch(out.Bytes())
		if m == nil {
			return 0, fmt.Errorf("valgrind: no count in its output:\n%s", out.Bytes())
		}
		var err error
		if count[i], err = strconv.ParseFloat(string(m[1]), 64); err != nil {
			return 0, err
		}
	}
	return (count[1] - count[0]) / (morePackets - fewPackets), nil
}

// stepChild answers lines "run N" with what bed.run says of a case, as step.c
// does.
func stepChild(name string) error {
	runtime.LockOSThread()
	for _, g := range pathGroups() {
		for _, c := range g.cases {
			if c.name != name {
				continue
			}
			b, err := c.bed()
			if err != nil {
				return err
			}
			defer b.close()
			lines := bufio.NewScanner(os.Stdin)
			for lines.Scan() {
				var n int
				if _, err := fmt.Sscanf(lines.Text(), "run %d", &n); err != nil {
					return fmt.Errorf("%q: %w", lines.Text(), err)
				}
				fmt.Printf("%f\n", b.run(n))
			}
			return lines.Err()
		}
	}
	return fmt.Errorf("no case %q", name)
}
