package router

import (
	"fmt"
	"slices"

	"nmfwd/config"
	"nmfwd/dataplane"
)

// Placement says where threads run.
type Placement struct {
	Workers []int // the CPU of each worker, in turn
	Rest    []int // the CPUs of all other threads, nil for any
}

// Plan spreads the rings of cfg's devices over workers, and the workers over
// cpus, those that the process may use. Where there are more CPUs than workers,
// the first is left to everything else.
func Plan(cfg *config.Config, rings []dataplane.Rings, cpus []int) (dataplane.Plan, Placement, error) {
	use := cfg.Options.CPUs
	for _, c := range use {
		if !slices.Contains(cpus, c) {
			at, _ := cfg.Options.Set("cpus")
			return dataplane.Plan{}, Placement{}, Invalid{fmt.Errorf("%v: CPU %d is not among those that nmfwd may use: %v", at, c, cpus)}
		}
	}
	if use == nil {
		use = cpus
	}
	plan := dataplane.MakePlan(rings, cfg.Options.Workers, len(use))
	if cfg.Options.CPUs == nil && plan.Workers < len(use) {
		use = use[1:]
	}
	at := Placement{Workers: use}
	for _, c := range cpus {
		if !slices.Contains(use[:min(plan.Workers, len(use))], c) {
			at.Rest = append(at.Rest, c)
		}
	}
	return plan, at, nil
}
