package main

import (
	"bytes"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"testing"
)

const cacheLine = 64

// An area is memory of one object that workers may reach, in whole cache lines.
type area struct {
	from, to uintptr
	what     string
}

// areas returns the memory that is reached from v by pointers, slices and
// interfaces.
func areas(v any) []area {
	type object struct {
		at uintptr
		t  reflect.Type
	}
	seen := make(map[object]bool)
	var found []area
	add := func(at, size uintptr, what reflect.Type) bool {
		o := object{at, what}
		if at == 0 || size == 0 || seen[o] {
			return false
		}
		seen[o] = true
		found = append(found, area{at &^ (cacheLine - 1), (at + size + cacheLine - 1) &^ (cacheLine - 1), what.String()})
		return true
	}
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			if add(v.Pointer(), v.Type().Elem().Size(), v.Type().Elem()) {
				walk(v.Elem())
			}
		case reflect.Interface:
			walk(v.Elem())
		case reflect.Slice:
			if !add(v.Pointer(), uintptr(v.Cap())*v.Type().Elem().Size(), v.Type()) {
				return
			}
			fallthrough
		case reflect.Array:
			if leads(v.Type().Elem()) {
				for i := range v.Len() {
					walk(v.Index(i))
				}
			}
		case reflect.Struct:
			for i := range v.NumField() {
				walk(v.Field(i))
			}
		}
	}
	walk(reflect.ValueOf(v))
	return found
}

// leads reports whether values of a type lead to other memory.
func leads(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Slice:
		return true
	case reflect.Array:
		return leads(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if leads(t.Field(i).Type) {
				return true
			}
		}
	}
	return false
}

// TestScale runs two workers, one after the other, and looks at what each wrote:
// no cache line may be among both, for it would wander between their CPUs.
func TestScale(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	r, err := scaleBed(2)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ports := r.Ports()
	all := areas(&ports)
	for _, w := range r.Workers() {
		all = append(all, areas(w)...)
	}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	snapshot := func() [][]byte {
		s := make([][]byte, len(all))
		for i, a := range all {
			s[i] = make([]byte, a.to-a.from)
			if _, err := mem.ReadAt(s[i], int64(a.from)); err != nil {
				t.Fatalf("read %s: %v", a.what, err)
			}
		}
		return s
	}
	before := snapshot()
	written := func(worker int) map[uintptr][]string {
		for range 100 {
			r.Workers()[worker].Step(0)
		}
		after := snapshot()
		lines := make(map[uintptr][]string)
		for i, a := range all {
			for at := 0; at < len(after[i]); at += cacheLine {
				if !bytes.Equal(before[i][at:at+cacheLine], after[i][at:at+cacheLine]) {
					l := a.from + uintptr(at)
					lines[l] = append(lines[l], a.what)
				}
			}
		}
		before = after
		return lines
	}
	shared := func(a, b map[uintptr][]string) (what []string) {
		for l := range a {
			if b[l] != nil {
				what = append(what, b[l]...)
			}
		}
		slices.Sort(what)
		return slices.Compact(what)
	}
	written(0)
	written(1)
	first, second, again := written(0), written(1), written(0)
	if len(shared(first, again)) == 0 || len(second) < 1000 {
		t.Fatalf("one worker wrote %d, %d and the other %d lines: what they write is not seen", len(first), len(again), len(second))
	}
	if what := shared(first, second); len(what) > 0 {
		t.Errorf("both workers write to lines of %q", what)
	}
}
