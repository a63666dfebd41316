package routes

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"nmfwd/fib"
)

// A mirror is what a reader of a feed has.
type mirror map[netip.Prefix]fib.Route

// take takes all that a feed says, three at a time.
func (m mirror) take(f *Feed) {
	for {
		n := 0
		f.Take(3, func(r fib.Route, gone bool) {
			n++
			if m[r.Prefix] = r; gone {
				delete(m, r.Prefix)
			}
		})
		if n == 0 {
			return
		}
	}
}

func (m mirror) String() string {
	var ps []netip.Prefix
	for p := range m {
		ps = append(ps, p)
	}
	slices.SortFunc(ps, func(a, b netip.Prefix) int { return prefixOf(a).compare(prefixOf(b)) })
	var b strings.Builder
	for _, p := range ps {
		fmt.Fprintln(&b, strings.TrimSuffix(m[p].String(), " kernel"))
	}
	return b.String()
}

func TestFeed(t *testing.T) {
	f := &Feed{ready: make(chan struct{}, 1), at: map[prefix]int{}}
	p := func(i byte) prefix { return prefixOf(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, i}), 16)) }
	black, host := &fib.Route{Origin: fib.Kernel, Kind: fib.Blackhole}, &fib.Route{Origin: fib.Kernel, Kind: fib.Host}
	for i := range byte(5) {
		f.add(p(i), black)
	}
	f.add(p(1), host)
	f.add(p(3), nil)
	var got []string
	read := func(n int) {
		f.Take(n, func(r fib.Route, gone bool) { got = append(got, fmt.Sprint(r.Prefix, r.Kind, gone)) })
	}
	<-f.Ready()
	read(2)
	<-f.Ready() // there are more
	f.add(p(0), host)
	f.add(p(4), nil)
	read(2)
	<-f.Ready()
	read(9)
	if want := []string{
		"10.0.0.0/16 blackhole false", "10.1.0.0/16 host false", "10.2.0.0/16 blackhole false", "10.3.0.0/16 no route true",
		"10.4.0.0/16 no route true", "10.0.0.0/16 host false",
	}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	select {
	case <-f.Ready():
		t.Error("ready with nothing to take")
	default:
	}
}
