package main

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrite writes a report and reads its files again.
func TestWrite(t *testing.T) {
	r := &report{
		name: "x", title: "A <title> & more", unit: "ns", columns: []string{"case", "Go, C"}, series: []string{"Go", "C"},
		rows:    []row{{[]string{"a, b", "1.5"}, []float64{1.5, 3}}, {[]string{"c", "2"}, []float64{2}}},
		targets: []target{{"speed", 1.5, 1.4, true}, {"gain", 20, 20, false}},
	}
	dir := t.TempDir()
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "x.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"missed  speed: 1.5, at most 1.4", "met     gain: 20, at least 20"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("text lacks %q:\n%s", want, text)
		}
	}
	table, err := os.ReadFile(filepath.Join(dir, "x.csv"))
	if err != nil {
		t.Fatal(err)
	}
	if rows, err := csv.NewReader(bytes.NewReader(table)).ReadAll(); err != nil || len(rows) != 3 || rows[1][0] != "a, b" {
		t.Errorf("CSV: %q, %v", rows, err)
	}
	svg, err := os.ReadFile(filepath.Join(dir, "x.svg"))
	if err != nil {
		t.Fatal(err)
	}
	bars := 0
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("SVG: %v", err)
		}
		if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "rect" {
			bars++
		}
	}
	if want := 1 + 2 + 3; bars != want { // background, legend, values
		t.Errorf("%d rectangles in the chart, want %d", bars, want)
	}
}

// TestQuoted reads all lines of peers.csv, each of which belongs to a question.
func TestQuoted(t *testing.T) {
	total := 0
	for _, q := range questions {
		ls, err := quoted(q.name)
		if err != nil {
			t.Fatal(err)
		}
		total += len(ls)
	}
	if want := strings.Count(peersCSV, "\n") - 1; total != want {
		t.Errorf("%d lines belong to questions, want %d", total, want)
	}
}
