// Bench measures nmfwd beside its peers and says which targets are met.
//
//	go run ./bench [-quick] [-only path,lookup] [-rows REGEXP] [-o DIR]
//
// The questions are path, io, instructions, lookup, load, idle, latency, scale,
// wire and flood; the last two and parts of idle and latency need root, for they
// make network namespaces. Each answer goes to bench/results as text, CSV and a
// chart (SVG); targets.md there has the targets of all questions that were
// answered last.
// Peers that do not run here are quoted from peers.csv. A C compiler, valgrind
// and dpdk-testpmd are used where they are installed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"time"
)

// options are the flags, and what a run has.
type options struct {
	quick   bool
	rounds  int            // of interleaved runs
	packets int            // per run
	rows    *regexp.Regexp // of rows to measure

	ctx context.Context // ends with the run; programs are started with it
}

// say tells the user what is going on.
func (o *options) say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// A question is what one report answers.
type question struct {
	name string
	run  func(*options) (*report, error)
}

// questions are what can be measured, in order.
var questions = []question{
	{"path", path},
	{"io", inOut},
	{"instructions", instructions},
	{"lookup", lookup},
	{"load", load},
	{"idle", idle},
	{"latency", latency},
	{"scale", scale},
	{"wire", onWire},
	{"flood", flood},
}

func main() {
	o := &options{rounds: 15, packets: 300_000}
	flag.BoolVar(&o.quick, "quick", false, "fewer and shorter rounds")
	only := flag.String("only", "", "questions to answer, separated by commas (default all)")
	rows := flag.String("rows", "", "measure the rows that match a regular expression")
	dir := flag.String("o", "bench/results", "directory for results")
	child := flag.String("child", "", "do one task, load:FILE or step:CASE; the driver calls itself so")
	flag.Parse()
	var err error
	if *child != "" {
		err = work(*child)
	} else if o.rows, err = regexp.Compile(*rows); err == nil {
		if o.quick {
			o.rounds, o.packets = 9, 200_000
		}
		err = run(o, *only, *dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run answers the chosen questions. What they leave in the file system and
// started is gone when it returns, also when a signal ends them.
func run(o *options, only, dir string) error {
	temp, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	if err := os.Setenv("TMPDIR", temp); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	o.ctx = ctx
	done := make(chan error, 1)
	go func() { done <- answer(o, only, dir) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	stop() // a second signal ends the process at once
	select {
	case <-done:
	case <-time.After(3 * time.Second): // it was measuring and started nothing that outlives us
	}
	return errors.New("interrupted")
}

// work does a task in a process of its own.
func work(task string) error {
	kind, arg, _ := strings.Cut(task, ":")
	switch kind {
	case "load":
		return loadChild(arg)
	case "step":
		return stepChild(arg)
	}
	return fmt.Errorf("no task %q", kind)
}

// answer runs the chosen questions and writes their reports. One that goes
// wrong does not end the others.
func answer(o *options, only, dir string) error {
	chosen := questions
	if only != "" {
		chosen = nil
		for _, name := range strings.Split(only, ",") {
			i := slices.IndexFunc(questions, func(q question) bool { return q.name == name })
			if i < 0 {
				return fmt.Errorf("no question %q", name)
			}
			chosen = append(chosen, questions[i])
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	start := time.Now()
	var errs []error
	var all []string
	for i, q := range chosen {
		o.say("%v %s (%d of %d)", time.Since(start).Round(time.Second), q.name, i+1, len(chosen))
		before := loadAverage()
		r, err := q.run(o)
		if o.ctx.Err() != nil {
			return o.ctx.Err()
		}
		if errors.Is(err, errors.ErrUnsupported) {
			o.say("%s: not run: %v", q.name, err)
			continue
		}
		if err != nil {
			o.say("%s: %v", q.name, err)
			errs = append(errs, fmt.Errorf("%s: %w", q.name, err))
			continue
		}
		r.conditions = conditions(before)
		if r.quoted, err = quoted(q.name); err != nil {
			return err
		}
		r.text(os.Stdout)
		if err := r.write(dir); err != nil {
			return err
		}
		all = append(all, r.lines()...)
		if err := recordTargets(dir, r, o.rows.String() == ""); err != nil {
			return err
		}
	}
	if len(all) > 0 {
		fmt.Println("targets:")
		for _, l := range all {
			fmt.Println(" ", l)
		}
	}
	o.say("%v done; see %s", time.Since(start).Round(time.Second), dir)
	return errors.Join(errs...)
}
