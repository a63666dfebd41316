package apu2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"nmfwd/test/netns"
)

// MetricsAddr is where the lab's nmfwd listens for Prometheus: what its
// routes.conf says.
const MetricsAddr = "127.0.0.1:9469"

// An NMFWD is nmfwd running in a namespace.
type NMFWD struct {
	ns   *netns.Namespace
	cmd  *exec.Cmd
	http http.Client
}

// StartNMFWD starts the program with a configuration in the router's namespace
// and waits until its metrics can be read and all ports are up. What the program says
// goes to log.
func (l *Lab) StartNMFWD(ctx context.Context, program, config string, log io.Writer, args ...string) (*NMFWD, error) {
	cmd := exec.Command(program, append([]string{"-c", config}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	n := &NMFWD{
		ns:   l.Router,
		cmd:  cmd,
		http: http.Client{Transport: &http.Transport{DialContext: l.Router.Dial, DisableKeepAlives: true}, Timeout: 30 * time.Second},
	}
	if err := l.Router.Start(cmd); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { ended <- l.Router.Wait(waiting, cmd) }()
	retry := time.NewTicker(20 * time.Millisecond)
	defer retry.Stop()
	for {
		m, err := n.Scrape(ctx)
		if err == nil && m.up() && m.Sum("nmfwd_config_last_reload_successful") == 1 {
			return n, nil
		}
		if err == nil {
			err = errors.New("not all ports are up")
		}
		select {
		case <-retry.C:
		case e := <-ended:
			if ctx.Err() != nil {
				return nil, fmt.Errorf("apu2: nmfwd is not ready: %w", errors.Join(ctx.Err(), err))
			}
			if e == nil {
				e = errors.New("exit status 0")
			}
			return nil, fmt.Errorf("apu2: nmfwd ended at start: %w", e)
		}
	}
}

// Scrape reads the metrics.
func (n *NMFWD) Scrape(ctx context.Context) (Metrics, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+MetricsAddr+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	res, err := n.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("apu2: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("apu2: metrics: %s", res.Status)
	}
	return ParseMetrics(res.Body)
}

// AtRest reads the metrics until all packets are accounted for, and for ten
// seconds at most: where the CPUs have other work, packets wait in rings.
func (n *NMFWD) AtRest(ctx context.Context) (Metrics, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	retry := time.NewTicker(20 * time.Millisecond)
	defer retry.Stop()
	var last error
	for {
		m, err := n.Scrape(ctx)
		if err != nil {
			return nil, errors.Join(err, last)
		}
		if last = m.Conserved(); last == nil {
			return m, nil
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return m, last
		}
	}
}

// CPU returns the time that nmfwd has used of all CPUs.
func (n *NMFWD) CPU() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	// The name in parentheses may hold blanks. utime and stime are fields 14 and
	// 15 in hundredths of a second (proc_pid_stat(5)).
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("apu2: short %s", b)
	}
	var ticks int64
	for _, f := range fields[11:13] {
		t, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("apu2: %w", err)
		}
		ticks += t
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// Signal sends a signal.
func (n *NMFWD) Signal(s syscall.Signal) error { return n.cmd.Process.Signal(s) }

// Wait waits for nmfwd to end and returns how it did: nil for exit code 0.
func (n *NMFWD) Wait(ctx context.Context) error { return n.ns.Wait(ctx, n.cmd) }

// Stop asks nmfwd to end, and returns nil if it does so with code 0 in time.
func (n *NMFWD) Stop() error {
	if err := n.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("apu2: stop nmfwd: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := n.Wait(ctx); err != nil {
		return fmt.Errorf("apu2: stop nmfwd: %w", err)
	}
	return nil
}
