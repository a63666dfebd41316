package metrics

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"nmfwd/control"
)

// patience is how long anything may take that happens by itself.
const patience = 30 * time.Second

// connect opens a connection to the server at url that asks for what text says.
func connect(t *testing.T, url, text string) *net.TCPConn {
	t.Helper()
	c, err := net.DialTimeout("tcp", strings.TrimPrefix(url, "http://"), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// TestSlowReadersHoldNobodyUp: clients that ask and do not read take nothing from
// those that do.
func TestSlowReadersHoldNobodyUp(t *testing.T) {
	c := collector(distinct())
	c.Control = func(s *control.Snapshot) { // more than sockets hold
		counted(s)
		for i := range 2_000 {
			s.Ports = append(s.Ports, control.PortSnapshot{Name: fmt.Sprintf("a device with a long name, number %d", i)})
		}
	}
	url := serve(t, c)
	for range 6 {
		slow, err := net.DialTimeout("tcp", strings.TrimPrefix(url, "http://"), patience)
		if err != nil {
			t.Fatal(err)
		}
		defer slow.Close()
		if err := slow.(*net.TCPConn).SetReadBuffer(4096); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(slow, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := slow.Read(make([]byte, 1)); err != nil { // it is being answered
			t.Fatal(err)
		}
	}
	if status, body := get(t, url+"/metrics"); status != http.StatusOK || !strings.Contains(body, "number 1999") {
		t.Errorf("got status %d, %d bytes", status, len(body))
	}
}

// TestSilentConnectionsMakeRoom: connections that are held are bounded in number,
// whether they are silent, have begun to ask, or wait between two requests, and a
// scrape comes through.
func TestSilentConnectionsMakeRoom(t *testing.T) {
	url := serve(t, collector(distinct()))
	var held []net.Conn
	for i := range 10 * maxConns {
		text := []string{"", "GET /metr", "GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n"}[i%3]
		held = append(held, connect(t, url, text))
		if i%100 == 99 {
			if _, ok := scrape(t, url)["nmfwd_config_last_reload_successful"]; !ok {
				t.Error("no series")
			}
		}
	}
	scrape(t, url)
	open := 0
	for _, c := range held[:len(held)-maxConns] {
		// One that made room is closed, at once.
		if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		var timeout net.Error
		if _, err := io.Copy(io.Discard, c); errors.As(err, &timeout) && timeout.Timeout() {
			if open++; open > 3 {
				break
			}
		}
	}
	if open > 0 {
		t.Errorf("at least %d connections are held beyond the last %d", open, maxConns)
	}
}
