package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"nmfwd/config/syntax"
)

// Bounds of option values.
const (
	maxWorkers    = 1024
	maxCPU        = 1023 // CPU_SETSIZE of sched.h is 1024
	maxBurst      = 1024
	maxICMPRate   = 1000000
	minBufferSize = 512
	maxBufferSize = 65536
	maxNeighbors  = 1 << 20
)

// optionCount is the number of options of the language.
const optionCount = 12

// An option is one row of the option table.
type option struct {
	name  string
	parse func(o *Options, s string) string // returns what is wrong with the value
	print func(o *Options) string
}

// options is the option table; a value and its printed form read the same.
var options = [optionCount]option{
	{"workers", intOption(func(o *Options) *int { return &o.Workers }, 1, maxWorkers),
		func(o *Options) string { return autoOr(o.Workers) }},
	{"cpus", func(o *Options, s string) (wrong string) {
		o.CPUs, wrong = cpuSet(s)
		return wrong
	}, func(o *Options) string { return printCPUs(o.CPUs) }},
	{"idle", wordOption(func(o *Options) *Idle { return &o.Idle }, idleNames),
		func(o *Options) string { return o.Idle.String() }},
	{"burst", intOption(func(o *Options) *int { return &o.Burst }, 1, maxBurst),
		func(o *Options) string { return autoOr(o.Burst) }},
	{"icmp-rate", func(o *Options, s string) (wrong string) {
		o.ICMPRate, wrong = rate(s)
		return wrong
	}, func(o *Options) string {
		if o.ICMPRate == 0 {
			return "off"
		}
		return strconv.Itoa(o.ICMPRate) + "/s"
	}},
	{"icmp-source", wordOption(func(o *Options) *ICMPSource { return &o.ICMPSource }, sourceNames),
		func(o *Options) string { return o.ICMPSource.String() }},
	{"ip-options", wordOption(func(o *Options) *IPOptions { return &o.IPOptions }, ipOptionsNames),
		func(o *Options) string { return o.IPOptions.String() }},
	{"buffer-size", func(o *Options, s string) (wrong string) {
		o.BufferSize, wrong = bufferSize(s)
		return wrong
	}, func(o *Options) string { return autoOr(o.BufferSize) }},
	{"hugepages", wordOption(func(o *Options) *HugePages { return &o.HugePages }, hugeNames),
		func(o *Options) string { return o.HugePages.String() }},
	{"require", wordOption(func(o *Options) *Require { return &o.Require }, requireNames),
		func(o *Options) string { return o.Require.String() }},
	{"neighbors", func(o *Options, s string) (wrong string) {
		o.Neighbors, wrong = syntax.Number(s, 1, maxNeighbors)
		return wrong
	}, func(o *Options) string { return strconv.Itoa(o.Neighbors) }},
	{"routes", wordOption(func(o *Options) *RouteSource { return &o.Routes }, routesNames),
		func(o *Options) string { return o.Routes.String() }},
}

// optionIndex returns the row of an option that the program itself names.
func optionIndex(name string) int {
	i := slices.IndexFunc(options[:], func(o option) bool { return o.name == name })
	if i < 0 {
		panic("config: no option " + name)
	}
	return i
}

// optionNames returns the names of all options.
func optionNames() []string {
	names := make([]string, len(options))
	for i := range options {
		names[i] = options[i].name
	}
	return names
}

// intOption returns a parser of "auto", which is 0, or a number.
func intOption(field func(*Options) *int, low, high int) func(*Options, string) string {
	return func(o *Options, s string) (wrong string) {
		if s == "auto" {
			*field(o) = 0
			return ""
		}
		*field(o), wrong = syntax.Number(s, low, high)
		return orAuto(wrong)
	}
}

// wordOption returns a parser of one of names, whose index is the value.
func wordOption[T ~uint8](field func(*Options) *T, names []string) func(*Options, string) string {
	return func(o *Options, s string) string {
		i, wrong := syntax.OneOf(s, names)
		*field(o) = T(i)
		return wrong
	}
}

// orAuto adds to what is wrong with a number that it may be auto.
func orAuto(wrong string) string {
	if wrong == "" {
		return ""
	}
	return wrong + ", nor auto"
}

// autoOr prints n, of which 0 means auto.
func autoOr(n int) string {
	if n == 0 {
		return "auto"
	}
	return strconv.Itoa(n)
}

// rate parses N/s or off.
func rate(s string) (int, string) {
	if s == "off" {
		return 0, ""
	}
	d, ok := strings.CutSuffix(s, "/s")
	n, wrong := syntax.Number(d, 1, maxICMPRate)
	switch {
	case wrong != "":
		return 0, fmt.Sprintf("%s is not a rate from 1/s to %d/s, nor off", syntax.Quote(s), maxICMPRate)
	case !ok:
		return 0, fmt.Sprintf("%s has no unit: write %d/s", syntax.Quote(s), n)
	}
	return n, ""
}

// bufferSize parses the size of a buffer, a multiple of a cache line.
func bufferSize(s string) (int, string) {
	if s == "auto" {
		return 0, ""
	}
	n, wrong := syntax.Number(s, minBufferSize, maxBufferSize)
	if wrong == "" && n%64 != 0 {
		wrong = fmt.Sprintf("%s is not a multiple of 64", syntax.Quote(s))
	}
	return n, orAuto(wrong)
}

// cpuSet parses a set such as 1-3,5 and keeps its order.
func cpuSet(s string) ([]int, string) {
	if s == "auto" {
		return nil, ""
	}
	var cpus []int
	for part := range strings.SplitSeq(s, ",") {
		first, last, ok := strings.Cut(part, "-")
		if !ok {
			last = first
		}
		low, wrong := syntax.Number(first, 0, maxCPU)
		high, also := syntax.Number(last, 0, maxCPU)
		if wrong != "" || also != "" {
			return nil, fmt.Sprintf("%s is not a set of CPUs from 0 to %d such as 1-3,5, nor auto", syntax.Quote(s), maxCPU)
		}
		if high < low {
			return nil, fmt.Sprintf("%s has a range that falls: write %d-%d", syntax.Quote(s), high, low)
		}
		for c := low; c <= high; c++ {
			if slices.Contains(cpus, c) {
				return nil, fmt.Sprintf("%s has CPU %d twice", syntax.Quote(s), c)
			}
			cpus = append(cpus, c)
		}
	}
	return cpus, ""
}

// printCPUs prints a set of CPUs as cpuSet reads it.
func printCPUs(cpus []int) string {
	if cpus == nil {
		return "auto"
	}
	var b strings.Builder
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(cpus[i]))
		if j > i {
			b.WriteString("-" + strconv.Itoa(cpus[j]))
		}
		i = j + 1
	}
	return b.String()
}
