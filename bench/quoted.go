package main

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"strings"
)

// peersCSV has figures of peers that do not run here, measured elsewhere: on two
// virtual CPUs of the same kind (AVX-512, 48 KB L1d, 2 MB L2), Linux 6.18, Go
// 1.26.8, gcc 12.2, DPDK 26.11-rc0.
//
//go:embed peers.csv
var peersCSV string

// quoted returns the lines of peers.csv for a question, for people.
func quoted(question string) ([]string, error) {
	rows, err := csv.NewReader(strings.NewReader(peersCSV)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("peers.csv: %w", err)
	}
	var ls []string
	for _, r := range rows[1:] {
		if r[0] == question {
			ls = append(ls, fmt.Sprintf("%-18s %-26s %6s %s (%s)", r[1], r[2], r[3], r[4], r[5]))
		}
	}
	return ls, nil
}
