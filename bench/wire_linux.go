package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"nmfwd/test/lab/apu2"
)

// buildNMFWD builds the daemon into dir, as it ships.
func buildNMFWD(dir string) (string, error) {
	bin := filepath.Join(dir, "nmfwd")
	cmd := exec.Command("go", "build", "-trimpath", "-o", bin, "nmfwd/cmd/nmfwd")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build nmfwd: %w\n%s", err, out)
	}
	return bin, nil
}

// labConf returns the configuration of the lab with further lines.
func labConf(dir string, lines string) (string, error) {
	b, err := os.ReadFile("examples/apu2/routes.conf")
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "routes.conf")
	return name, os.WriteFile(name, append(b, lines...), 0o644)
}

// labLatency pings through the lab, forwarded by nmfwd and by the kernel.
func labLatency(o *options, add func(string, []time.Duration)) error {
	if os.Geteuid() != 0 {
		return nil
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bin, err := buildNMFWD(dir)
	if err != nil {
		return err
	}
	for _, c := range []struct{ name, idle string }{{"nmfwd, adaptive", "adaptive"}, {"nmfwd, busy", "busy"}, {"kernel", ""}} {
		took, err := pingLab(dir, bin, c.idle, 100*o.rounds)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		add("ping through the lab: "+c.name, took)
	}
	return nil
}

func pingLab(dir, bin, idle string, n int) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l, err := apu2.New(1, 1)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if idle == "" {
		err = l.KernelRouter()
	} else {
		var conf string
		if conf, err = labConf(dir, "option idle "+idle+"\n"); err != nil {
			return nil, err
		}
		var fwd *apu2.NMFWD
		if fwd, err = l.StartNMFWD(ctx, bin, conf, nil); err == nil {
			defer fwd.Stop()
		}
	}
	if err != nil {
		return nil, err
	}
	p, err := l.Generator.NewPinger(apu2.ReceiverAddrs[0].Addr())
	if err != nil {
		return nil, err
	}
	defer p.Close()
	var took []time.Duration
	for i := range n + 10 {
		start := time.Now()
		if err := p.Ping(56, time.Second); err != nil {
			return nil, err
		}
		if i >= 10 { // the first ones resolve neighbors
			took = append(took, time.Since(start))
		}
	}
	return took, nil
}
