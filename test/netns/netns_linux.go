package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A Namespace is a network namespace and one thread that lives in it. Its
// methods may be called from any goroutine.
type Namespace struct {
	name string
	file *os.File        // holds the namespace
	nl   *netlink.Handle // speaks to it
	home chan func()     // runs on the thread that lives there

	mu    sync.Mutex
	procs map[*exec.Cmd]chan struct{} // closed when the process has been waited for
}

// New makes a namespace with its loopback port up. Name is what errors call it.
// It needs the privilege to do so: an error wraps os.ErrPermission without.
func New(name string) (*Namespace, error) {
	n := &Namespace{name: name, home: make(chan func()), procs: map[*exec.Cmd]chan struct{}{}}
	started := make(chan error)
	thread(func() {
		started <- n.enter()
		for f := range n.home {
			f()
		}
	})
	if err := <-started; err != nil {
		close(n.home)
		return nil, fmt.Errorf("netns: %s: %w", name, err)
	}
	if err := n.setup(); err != nil {
		return nil, errors.Join(fmt.Errorf("netns: %s: %w", name, err), n.Close())
	}
	return n, nil
}

// enter moves the calling thread into a new namespace and holds that open.
func (n *Namespace) enter() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	f, err := os.Open("/proc/thread-self/ns/net")
	n.file = f
	return err
}

func (n *Namespace) setup() error {
	nl, err := netlink.NewHandleAt(vnetns.NsHandle(n.file.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	n.nl = nl
	// Addresses work at once, and nothing is sent that the test did not ask for.
	for _, s := range []string{"accept_dad=0", "accept_ra=0", "router_solicitations=0"} {
		key, value, _ := strings.Cut(s, "=")
		if err := n.Sysctl("net/ipv6/conf/default/"+key, value); err != nil {
			return err
		}
	}
	return n.Up("lo")
}

// thread runs f on a thread of its own that ends with it. It is never the
// process's first thread, whose namespace is the one that /proc/self shows.
func thread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		defer runtime.UnlockOSThread()
		done := make(chan struct{})
		thread(func() {
			defer close(done)
			f()
		})
		<-done
	}()
}

// Name returns the name given to New.
func (n *Namespace) Name() string { return n.name }

// Path returns a path by which other programs find the namespace while this
// process runs: nsenter --net=PATH.
func (n *Namespace) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd()) }

// Do calls f on a thread of its own in the namespace and returns its error. What
// f opens there stays there: sockets may be used from anywhere afterwards.
// Goroutines that f starts are elsewhere.
func (n *Namespace) Do(f func() error) error {
	done := make(chan error, 1)
	thread(func() {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("netns: %s: %w", n.name, os.NewSyscallError("setns", err))
			return
		}
		done <- f()
	})
	return <-done
}

// Start starts cmd in the namespace. It is killed when this process ends, and by
// Close. Its end is reported by Wait, not by cmd.Wait.
func (n *Namespace) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	n.home <- func() { started <- cmd.Start() } // the signal follows the thread that forks
	if err := <-started; err != nil {
		return fmt.Errorf("netns: %s: %w", n.name, err)
	}
	done := make(chan struct{})
	n.mu.Lock()
	n.procs[cmd] = done
	n.mu.Unlock()
	go func() {
		_ = cmd.Wait() // what it says is in cmd.ProcessState
		close(done)
	}()
	return nil
}

// Wait waits for a process that Start started, or for ctx, and returns how it
// ended: nil for exit code 0.
func (n *Namespace) Wait(ctx context.Context, cmd *exec.Cmd) error {
	n.mu.Lock()
	done := n.procs[cmd]
	n.mu.Unlock()
	if done == nil {
		return fmt.Errorf("netns: %s: %s was not started here", n.name, filepath.Base(cmd.Path))
	}
	select {
	case <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if cmd.ProcessState == nil || !cmd.ProcessState.Success() {
		return fmt.Errorf("%s: %v", filepath.Base(cmd.Path), cmd.ProcessState)
	}
	return nil
}

// Output runs a program in the namespace and returns what it wrote to standard
// output. The error of one that went wrong holds what it wrote to standard error.
// The program is killed when ctx ends.
func (n *Namespace) Output(ctx context.Context, name string, args ...string) (string, error) {
	var out, errs strings.Builder
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := n.Start(cmd); err != nil {
		return "", err
	}
	if err := n.Wait(ctx, cmd); err != nil {
		n.kill(cmd)
		return out.String(), fmt.Errorf("netns: %s: %w: %s%s", n.name, err, errs.String(), out.String())
	}
	return out.String(), nil
}

// kill ends a process and waits for it.
func (n *Namespace) kill(cmd *exec.Cmd) {
	n.mu.Lock()
	done := n.procs[cmd]
	delete(n.procs, cmd)
	n.mu.Unlock()
	if done == nil {
		return
	}
	_ = cmd.Process.Kill() // it may have ended
	<-done
}

// Dial connects from the namespace. It is a DialContext for HTTP clients.
func (n *Namespace) Dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = n.Do(func() error {
		var d net.Dialer
		c, err = d.DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// Listen listens in the namespace.
func (n *Namespace) Listen(network, address string) (l net.Listener, err error) {
	err = n.Do(func() error {
		l, err = net.Listen(network, address)
		return err
	})
	return l, err
}

// Sysctl sets a system variable: net/ipv4/ip_forward, "1".
func (n *Namespace) Sysctl(key, value string) error {
	return n.Do(func() error {
		return os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0)
	})
}

// Close ends the processes started in the namespace and gives it up. Its ports
// are gone once its sockets are closed as well.
func (n *Namespace) Close() error {
	n.mu.Lock()
	procs := make([]*exec.Cmd, 0, len(n.procs))
	for cmd := range n.procs {
		procs = append(procs, cmd)
	}
	n.mu.Unlock()
	for _, cmd := range procs {
		n.kill(cmd)
	}
	close(n.home)
	if n.nl != nil {
		n.nl.Close()
	}
	return n.file.Close()
}
