package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A report is the answer to one question.
type report struct {
	name       string // of its files
	title      string
	unit       string   // of the chart
	columns    []string // of the table; the first one names the row
	series     []string // of the chart
	rows       []row
	targets    []target
	remarks    map[string]string // on targets, by what they are of
	notes      []string
	quoted     []string // figures of peers that were measured elsewhere
	conditions []string
}

// A row has the cells of the table and the bars of the chart.
type row struct {
	cells  []string
	values []float64 // by series; a missing or zero one has no bar
}

// addPlain adds a row with the median, least and most of some values.
func (r *report) addPlain(name string, v []float64) {
	r.rows = append(r.rows, row{[]string{name, ns(median(v)), ns(slices.Min(v)), ns(slices.Max(v))}, []float64{median(v)}})
}

// conditions describes the machine and the build; load is the load average
// before the measurement.
func conditions(load string) []string {
	build := runtime.Version()
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			switch s.Key {
			case "GOOS", "GOARCH", "GOAMD64":
				build += " " + s.Key + "=" + s.Value
			}
		}
	}
	return append(machine(),
		build,
		fmt.Sprintf("load average %s before, %s after; %s", load, loadAverage(), time.Now().UTC().Format("2006-01-02 15:04 MST")))
}

// text writes the report for people.
func (r *report) text(w io.Writer) {
	fmt.Fprintf(w, "%s: %s\n\n", r.name, r.title)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(cells []string) { fmt.Fprintf(t, "%s\t\n", strings.Join(cells, "\t")) }
	line(r.columns)
	for _, row := range r.rows {
		line(row.cells)
	}
	t.Flush()
	for _, l := range [][]string{r.notes, r.conditions} {
		fmt.Fprintln(w)
		for _, s := range l {
			fmt.Fprintln(w, s)
		}
	}
	if len(r.quoted) > 0 {
		fmt.Fprintln(w, "\nMeasured elsewhere, on two virtual CPUs of the same kind:")
	}
	for _, s := range r.quoted {
		fmt.Fprintln(w, "  "+s)
	}
	if len(r.targets) > 0 {
		fmt.Fprintln(w)
	}
	for _, l := range r.lines() {
		fmt.Fprintln(w, l)
	}
	fmt.Fprintln(w)
}

// addTarget adds a target with a remark.
func (r *report) addTarget(t target, remark string) {
	if r.remarks == nil {
		r.remarks = make(map[string]string)
	}
	r.targets = append(r.targets, t)
	r.remarks[t.what] = remark
}

// lines returns the targets for people.
func (r *report) lines() (ls []string) {
	for _, t := range r.targets {
		l := t.String()
		if m := r.remarks[t.what]; m != "" {
			l += " (" + m + ")"
		}
		ls = append(ls, l)
	}
	return ls
}

// write writes the report's files into dir.
func (r *report) write(dir string) error {
	var text, table bytes.Buffer
	r.text(&text)
	c := csv.NewWriter(&table)
	c.Write(r.columns)
	for _, row := range r.rows {
		c.Write(row.cells)
	}
	c.Flush()
	for suffix, b := range map[string][]byte{".txt": text.Bytes(), ".csv": table.Bytes(), ".svg": r.chart()} {
		if err := os.WriteFile(filepath.Join(dir, r.name+suffix), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}
