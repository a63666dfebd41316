// Bench measures nmfwd beside its peers and says which targets are met.
//
//	go run ./bench [-quick] [-only path,lookup] [-rows REGEXP] [-o DIR]
//
// The questions are path, instructions, lookup, load, idle, latency, scale and
// wire; wire and parts of idle and latency need root, for they make network
// namespaces. Each answer goes to bench/results as text, CSV and a chart (SVG).
// Peers that do not run here are quoted from peers.csv. A C compiler and
// valgrind are used where they are installed.
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// options are the flags.
type options struct {
	quick   bool
	rounds  int            // of interleaved runs
	packets int            // per run
	rows    *regexp.Regexp // of rows to measure
}

// A question is what one report answers.
type question struct {
	name string
	run  func(*options) (*report, error)
}

// questions are what can be measured, in order.
var questions = []question{
	{"path", path},
	{"instructions", instructions},
	{"lookup", lookup},
	{"load", load},
	{"idle", idle},
	{"latency", latency},
	{"scale", scale},
	{"wire", onWire},
}

func main() {
	o := &options{rounds: 21, packets: 400_000}
	flag.BoolVar(&o.quick, "quick", false, "fewer and shorter rounds")
	only := flag.String("only", "", "questions to answer, separated by commas (default all)")
	rows := flag.String("rows", "", "measure the rows that match a regular expression")
	dir := flag.String("o", "bench/results", "directory for results")
	child := flag.String("child", "", "do one task, load:FILE or step:PACKETS:CASE; the driver calls itself so")
	flag.Parse()
	if *child != "" {
		if err := work(*child); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	var err error
	if o.rows, err = regexp.Compile(*rows); err == nil {
		if o.quick {
			o.rounds, o.packets = 9, 200_000
		}
		err = answer(o, *only, *dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// work does a task in a process of its own.
func work(task string) error {
	kind, arg, _ := strings.Cut(task, ":")
	switch kind {
	case "load":
		return loadChild(arg)
	case "step":
		packets, name, _ := strings.Cut(arg, ":")
		n, err := strconv.Atoi(packets)
		if err != nil {
			return err
		}
		return stepChild(n, name)
	}
	return fmt.Errorf("no task %q", kind)
}

// answer runs the chosen questions and writes their reports.
func answer(o *options, only, dir string) error {
	chosen := strings.Split(only, ",")
	for _, name := range chosen {
		if only != "" && !slices.ContainsFunc(questions, func(q question) bool { return q.name == name }) {
			return fmt.Errorf("no question %q", name)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, q := range questions {
		if only != "" && !slices.Contains(chosen, q.name) {
			continue
		}
		before := loadAverage()
		r, err := q.run(o)
		if err != nil {
			return fmt.Errorf("%s: %w", q.name, err)
		}
		r.conditions = conditions(before)
		if r.quoted, err = quoted(q.name); err != nil {
			return err
		}
		r.text(os.Stdout)
		if err := r.write(dir); err != nil {
			return err
		}
	}
	return nil
}
