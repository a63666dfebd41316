//go:build !linux && !freebsd

package dataplane

import (
	"errors"
	"fmt"
	"runtime"
	"time"
)

var errOS = fmt.Errorf("dataplane: no workers on %s: %w", runtime.GOOS, errors.ErrUnsupported)

// A poller needs poll(2) and a descriptor to wake it; here is neither. Workers
// can be stepped, but not started.
type poller struct{ wake *waker }

func newPoller(w *waker, _ *Call, _ []Descriptor, _ func(error)) *poller { return &poller{wake: w} }

func (p *poller) renew() {}

func (p *poller) poll(time.Duration) {}

type waker struct{}

func newWaker() (*waker, error) { return &waker{}, nil }

func (w *waker) close()        {}
func (w *waker) wake()         {}
func (w *waker) signal()       {}
func (w *waker) sleeping(bool) {}

// CPUs returns the CPUs that this process may use, in order.
func CPUs() ([]int, error) { return nil, errOS }

func pinThread(int) error { return errOS }

func confine([]int) error { return errOS }

func (r *Forwarder) listenPunts() {}
