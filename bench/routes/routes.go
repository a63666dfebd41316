// Package routes makes the large routing tables that benchmarks and tests use:
// like those of the Internet's core, generated from a seed, or read from a file.
package routes

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// lengths4 and lengths6 are how often prefix lengths occur in the tables of
// the Internet's core, per thousand: about what BGP speakers of 2025 hold.
var (
	lengths4 = map[int]int{8: 1, 11: 1, 12: 1, 13: 1, 14: 1, 15: 2, 16: 15, 17: 9, 18: 15, 19: 28, 20: 47, 21: 56, 22: 120, 23: 107, 24: 594, 32: 2}
	lengths6 = map[int]int{20: 1, 24: 1, 28: 2, 29: 27, 30: 4, 31: 2, 32: 141, 33: 18, 34: 16, 35: 7, 36: 37, 38: 10, 39: 9, 40: 84, 42: 14, 44: 90, 46: 19, 47: 20, 48: 494, 56: 1, 64: 2, 128: 1}
)

// blocks6 are the first 16 bits of most of IPv6 in use.
var blocks6 = []uint16{
	0x2001, 0x2400, 0x2401, 0x2402, 0x2403, 0x2404, 0x2405, 0x2406, 0x2407, 0x2408, 0x2409, 0x240a, 0x240e, 0x2600, 0x2602, 0x2604,
	0x2605, 0x2606, 0x2607, 0x2620, 0x2800, 0x2801, 0x2803, 0x2804, 0x2a00, 0x2a01, 0x2a02, 0x2a03, 0x2a04, 0x2a05, 0x2a06, 0x2a07,
	0x2a09, 0x2a0a, 0x2a0b, 0x2a0c, 0x2a0d, 0x2a0e, 0x2a0f, 0x2a10, 0x2a11, 0x2a12, 0x2a13, 0x2c0e, 0x2c0f,
}

// Generate returns n distinct prefixes in order. As in real tables they come in
// clusters: most are more specific ones of allocations, which lie in few
// blocks.
func Generate(n int, v4 bool, seed uint64) []netip.Prefix {
	rnd := rand.New(rand.NewPCG(seed, uint64(n)))
	lengths, first := lengths6, 32
	block := func() netip.Prefix {
		var a [16]byte
		binary.BigEndian.PutUint16(a[:], blocks6[rnd.IntN(len(blocks6))])
		return netip.PrefixFrom(netip.AddrFrom16(a), 16)
	}
	if v4 {
		lengths, first = lengths4, 16
		block = func() netip.Prefix {
			return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(1 + rnd.IntN(223))}), 8)
		}
	}
	var draw []int
	for _, l := range slices.Sorted(maps.Keys(lengths)) {
		draw = append(draw, slices.Repeat([]int{l}, lengths[l])...)
	}
	seen := make(map[netip.Prefix]bool, n)
	var from []netip.Prefix // allocations
	for len(seen) < n {
		l := draw[rnd.IntN(len(draw))]
		in := block()
		if l > first && len(from) > 8 && rnd.IntN(16) > 0 {
			in = from[rnd.IntN(len(from))]
		}
		p := netip.PrefixFrom(Host(rnd, in), l).Masked()
		if seen[p] {
			continue
		}
		seen[p] = true
		if l <= first {
			from = append(from, p)
		}
	}
	return slices.SortedFunc(maps.Keys(seen), netip.Prefix.Compare)
}

// Host returns a random address within p.
func Host(rnd *rand.Rand, p netip.Prefix) netip.Addr {
	var r [16]byte
	binary.BigEndian.PutUint64(r[:8], rnd.Uint64())
	if p.Addr().Is6() {
		binary.BigEndian.PutUint64(r[8:], rnd.Uint64())
	}
	a := p.Addr().AsSlice()
	for i := range a {
		keep := byte(0xff) << (8 - min(8, max(0, p.Bits()-8*i)))
		a[i] |= r[i] &^ keep
	}
	h, _ := netip.AddrFromSlice(a)
	return h
}

// Env names the environment variable that names a file for Real.
const Env = "NMFWD_PREFIXES"

// Real returns the prefixes of one family in the file that NMFWD_PREFIXES
// names, one a line, gzipped or not, in order. Without the variable it returns
// none.
func Real(v4 bool) ([]netip.Prefix, error) {
	name := os.Getenv(Env)
	if name == "" {
		return nil, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(name, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	var ps []netip.Prefix
	sc := bufio.NewScanner(r)
	for line := 1; sc.Scan(); line++ {
		p, err := netip.ParsePrefix(strings.TrimSpace(sc.Text()))
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, line, err)
		}
		if p.Addr().Is4() == v4 {
			ps = append(ps, p.Masked())
		}
	}
	slices.SortFunc(ps, netip.Prefix.Compare)
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(ps) == 0 {
		return nil, errors.New(name + ": no prefixes of this family")
	}
	return slices.Compact(ps), nil
}
