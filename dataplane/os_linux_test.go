package dataplane_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
)

// TestConfine starts a worker on one CPU and checks that it is there alone, and
// every other thread elsewhere.
func TestConfine(t *testing.T) {
	cpus, err := dataplane.CPUs()
	if err != nil {
		t.Fatal(err)
	}
	if len(cpus) < 2 {
		t.Skip("needs two CPUs")
	}
	first, last := cpus[0], cpus[len(cpus)-1]
	procs := runtime.GOMAXPROCS(0)
	region := memport.NewRegion("test", 1200, memport.Stride)
	a := newPort(t, region, memport.Config{Name: "A"})
	r := newRouter(t, labState(labRIB(t).Commit()), 1, dataplane.Options{Idle: dataplane.Sleep, CPUs: []int{last}, Rest: []int{first}}, &a.Port, &newPort(t, region, memport.Config{Name: "B"}).Port)
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		r.Stop()
		runtime.GOMAXPROCS(procs)
		if err := dataplane.Confine(cpus); err != nil {
			t.Error(err)
		}
	}()
	if got := runtime.GOMAXPROCS(0); got != 3 {
		t.Errorf("got GOMAXPROCS %d for one worker, want 3", got)
	}
	on := make(map[string]int) // threads by the CPUs that they may use
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile("/proc/self/task/" + task.Name() + "/status")
		if err != nil {
			continue // it ended
		}
		for line := range strings.Lines(string(b)) {
			if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
				on[strings.TrimSpace(list)]++
			}
		}
	}
	if w, rest := on[fmt.Sprint(last)], on[fmt.Sprint(first)]; w != 1 || rest == 0 || len(on) != 2 {
		t.Errorf("got threads by CPUs %v, want one on %d and the others on %d", on, last, first)
	}
}
