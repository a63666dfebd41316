//go:build integration && linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nmfwd/cmd/nmfwd/show"
)

// outside is a box whose nmfwd has a control socket, and metrics at port 9469.
func outside(t *testing.T, lines string) (b *box, socket string) {
	socket = filepath.Join(t.TempDir(), "control")
	return newBox(t, "listen metrics 127.0.0.1:9469\nlisten control "+socket+"\n"+lines), socket
}

// shell returns nmfwd, started by a shell that does something before.
func (b *box) shell(before string) *exec.Cmd {
	cmd := exec.Command("sh", "-c", before+`; exec "$0" "$@"`, os.Args[0], "-c", b.conf)
	cmd.Env = append(os.Environ(), "NMFWD_BE_THE_COMMAND=1")
	return cmd
}

// await asks a running nmfwd by its socket until it answers.
func (b *box) await(socket string, args ...string) {
	b.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		out, code := b.run(append(args, "-s", socket)...)
		if code == 0 {
			return
		}
		if time.Now().After(end) {
			b.Fatalf("%q: exit code %d: %s", args, code, out)
		}
	}
}

// scrape reads the metrics.
func (b *box) scrape() error {
	client := http.Client{Timeout: patience, Transport: &http.Transport{DialContext: b.Dial, DisableKeepAlives: true}}
	r, err := client.Get("http://127.0.0.1:9469/metrics")
	if err != nil {
		return err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && (r.StatusCode != http.StatusOK || !strings.Contains(string(text), "\nnmfwd_port_up{")) {
		err = fmt.Errorf("%s, %d bytes", r.Status, len(text))
	}
	return err
}

// TestFewDescriptors: half-open connections that are more than there are
// descriptors end neither nmfwd nor its answers.
func TestFewDescriptors(t *testing.T) {
	b, socket := outside(t, "")
	cmd := b.shell("ulimit -n 256")
	if err := b.Namespace.Start(cmd); err != nil {
		t.Fatal(err)
	}
	b.await(socket, "show", "status")
	for i := range 400 {
		c, err := b.Dial(t.Context(), "tcp", "127.0.0.1:9469")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /metr"); err != nil {
			t.Fatal(err)
		}
		if i%100 != 99 {
			continue
		}
		if out, code := b.run("show", "ports", "-s", socket); code != 0 {
			t.Errorf("with %d connections: exit code %d: %s", i+1, code, out)
		}
		if err := b.scrape(); err != nil {
			t.Errorf("with %d connections: %v", i+1, err)
		}
	}
	if out, code := b.run("reload", "-s", socket); code != 0 {
		t.Errorf("reload: exit code %d: %s", code, out)
	}
	if err := b.end(cmd, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

// TestNoDescriptors: a process that has none left at all still tells how it is.
func TestNoDescriptors(t *testing.T) {
	b, socket := outside(t, "")
	cmd, _ := b.forward()
	used, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Output(t.Context(), "prlimit", fmt.Sprintf("--pid=%d", cmd.Process.Pid), fmt.Sprintf("--nofile=%d", len(used))); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		b.await(socket, "show", "ports")
		if err := b.scrape(); err != nil {
			t.Error(err)
		}
	}
	if err := b.end(cmd, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

// TestLogReaderEnds: what reads the log, and the rate, may end.
func TestLogReaderEnds(t *testing.T) {
	b, socket := outside(t, "")
	cmd := b.command("-c", b.conf, "--status")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Namespace.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil { // it forwards
		t.Fatal(err)
	}
	stdout.Close()
	stderr.Close()
	for range 3 {
		if err := cmd.Process.Signal(syscall.SIGHUP); err != nil { // and logs that
			t.Fatal(err)
		}
		b.await(socket, "reload")
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); { // lines with the rate are due
		b.await(socket, "show", "status")
	}
	if err := b.end(cmd, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

// TestLogReaderStops: while nobody reads the log nmfwd reloads, resolves neighbors,
// answers, and ends by TERM; who reads again learns how many messages are missing.
func TestLogReaderStops(t *testing.T) {
	b, socket := outside(t, "")
	b.conf = filepath.Dir(b.conf) + strings.Repeat("/.", 1500) + "/" + filepath.Base(b.conf)
	start := func() (*exec.Cmd, *bufio.Scanner) {
		cmd := b.command("-c", b.conf)
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Namespace.Start(cmd); err != nil {
			t.Fatal(err)
		}
		b.await(socket, "show", "status")
		text, err := os.ReadFile(b.conf)
		if err != nil {
			t.Fatal(err)
		}
		// Each reload is refused, which logs the name of the file 20 times.
		bad := string(text) + strings.Repeat("route x\n", 20)
		if err := os.WriteFile(b.conf, []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for i := range 30 {
			var refused *show.Error
			if err := show.Do(ctx, socket, &show.Request{Command: "reload"}, io.Discard); !errors.As(err, &refused) || refused.Code != exDataErr {
				t.Fatalf("reload %d: %v", i, err)
			}
		}
		if err := os.WriteFile(b.conf, text, 0o644); err != nil {
			t.Fatal(err)
		}
		b.await(socket, "reload")
		return cmd, bufio.NewScanner(stderr)
	}
	cmd, _ := start()
	if err := b.Down("lan1"); err != nil { // control has something to say
		t.Fatal(err)
	}
	if err := b.Up("lan1"); err != nil {
		t.Fatal(err)
	}
	b.await(socket, "show", "neighbors")
	if err := b.end(cmd, syscall.SIGTERM); err != nil {
		t.Error(err)
	}

	cmd, lines := start()
	lines.Buffer(nil, 1<<20)
	stop := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	defer stop.Stop()
	missing := 0
	for missing == 0 && lines.Scan() {
		_, n, _ := strings.Cut(lines.Text(), "messages lost here")
		fmt.Sscanf(n[max(0, strings.Index(n, "messages=")):], "messages=%d", &missing)
	}
	if missing == 0 {
		t.Error("nothing is said to be missing")
	}
	go func() {
		for lines.Scan() {
		}
	}()
	if err := b.end(cmd, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

// TestReloadThatHangs: a configuration that cannot be opened, as on a disk that
// hangs, holds up neither the answers of nmfwd nor its end. A lease on the file
// lets nobody else open it for 45 seconds.
func TestReloadThatHangs(t *testing.T) {
	b, socket := outside(t, "")
	cmd, _ := b.forward()
	f, err := os.Open(b.conf)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lease := func(cmd, arg int) int {
		got, err := unix.FcntlInt(f.Fd(), cmd, arg)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	lease(unix.F_SETLEASE, unix.F_WRLCK)
	asks := b.command("reload", "-s", socket)
	if err := b.Namespace.Start(asks); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); lease(unix.F_GETLEASE, 0) == unix.F_WRLCK; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the file is not opened")
		}
	}
	b.await(socket, "show", "status")
	if err := b.scrape(); err != nil {
		t.Error(err)
	}
	if err := b.end(cmd, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

// TestServiceManagerThatHangs: the end does not wait for a service manager that
// does not read.
func TestServiceManagerThatHangs(t *testing.T) {
	b, socket := outside(t, "")
	name := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	full, err := (&net.Dialer{}).DialContext(context.Background(), "unixgram", name)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if err := full.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = full.Write([]byte("WATCHDOG=1"))
	}
	cmd := b.command("-c", b.conf)
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+name)
	if err := b.Namespace.Start(cmd); err != nil {
		t.Fatal(err)
	}
	b.await(socket, "show", "status")
	if err := b.end(cmd, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}
