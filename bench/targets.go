package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A target compares a figure with what it should be.
type target struct {
	what string
	got  float64
	want float64
	most bool // want is an upper bound, else a lower one
}

func (t target) met() bool {
	if t.most {
		return t.got <= t.want
	}
	return t.got >= t.want
}

func (t target) bound() string {
	if t.most {
		return fmt.Sprintf("at most %.4g", t.want)
	}
	return fmt.Sprintf("at least %.4g", t.want)
}

func (t target) verdict() string {
	if t.met() {
		return "met"
	}
	return "missed"
}

func (t target) String() string {
	return fmt.Sprintf("%-6s  %s: %.3g, %s", t.verdict(), t.what, t.got, t.bound())
}

var targetColumns = []string{"question", "target", "bound", "measured", "", "note", "time (UTC)"}

// recordTargets puts the targets of a report into targets.csv and targets.md of
// dir, beside those of the other questions. Complete says that all rows of the
// question were measured: what was there of it goes then.
func recordTargets(dir string, r *report, complete bool) error {
	file := filepath.Join(dir, "targets.csv")
	rows, err := readTargets(file)
	if err != nil {
		return err
	}
	rows = slices.DeleteFunc(rows, func(row []string) bool {
		return row[0] == r.name && (complete || slices.ContainsFunc(r.targets, func(t target) bool { return t.what == row[1] }))
	})
	now := time.Now().UTC().Format("2006-01-02 15:04")
	for _, t := range r.targets {
		rows = append(rows, []string{r.name, t.what, t.bound(), fmt.Sprintf("%.3g", t.got), t.verdict(), r.remarks[t.what], now})
	}
	place := func(row []string) int {
		return slices.IndexFunc(questions, func(q question) bool { return q.name == row[0] })
	}
	slices.SortStableFunc(rows, func(a, b []string) int { return place(a) - place(b) })

	var table, page strings.Builder
	c := csv.NewWriter(&table)
	c.WriteAll(append([][]string{targetColumns}, rows...))
	fmt.Fprintf(&page, "| %s |\n|%s\n", strings.Join(targetColumns, " | "), strings.Repeat("---|", len(targetColumns)))
	for _, row := range rows {
		fmt.Fprintf(&page, "| %s |\n", strings.Join(row, " | "))
	}
	return errors.Join(
		os.WriteFile(file, []byte(table.String()), 0o644),
		os.WriteFile(filepath.Join(dir, "targets.md"), []byte(page.String()), 0o644))
}

// readTargets returns what an earlier run left in targets.csv, nothing if that was
// another version of this program.
func readTargets(name string) ([][]string, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(rows) == 0 || !slices.Equal(rows[0], targetColumns) {
		return nil, nil
	}
	return rows[1:], nil
}
