//go:build netmap

package netmap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"nmfwd/dataplane"
	"nmfwd/dataplane/wire"
)

// How often and how long each forwarder's rate is measured.
const (
	rateRounds = 5
	rateFor    = 2 * time.Second
)

// bridge returns netmap's own program that moves frames between two ports, if it
// is in PATH or beside the test binary.
func bridge() (string, error) {
	if p, err := exec.LookPath("bridge"); err == nil {
		return p, nil
	}
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	return exec.LookPath(filepath.Join(filepath.Dir(exe), "bridge"))
}

// TestRate measures how many of the smallest frames nmfwd forwards with one
// worker, beside netmap's bridge, which looks at none of them: the medians of
// rounds in turn. One thread sends as fast as it can by one port and counts what
// arrives at another one; the forwarder has the port between. It needs two CPUs.
func TestRate(t *testing.T) {
	exe := nmfwd(t)
	br, err := bridge()
	if err != nil {
		t.Log("no bridge in PATH to compare with")
	}
	for _, tt := range []struct{ name, a, b, c, d string }{
		{"vale ports", "vale7:a", "vale7:b", "vale8:c", "vale8:d"},
		{"pipes", "rate{1", "rate}1", "rate}2", "rate{2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			workers := "option workers 1\n"
			type forwarder struct {
				name  string
				args  []string
				rates []float64
			}
			fs := []forwarder{
				{name: "nmfwd", args: []string{exe, "-c", labConf(t, tt.b, tt.c, workers)}},
				{name: "nmfwd, idle busy", args: []string{exe, "-c", labConf(t, tt.b, tt.c, workers+"option idle busy\n")}},
			}
			if br != "" {
				fs = append(fs, forwarder{name: "bridge", args: []string{br, "-w", "0", "-i", "netmap:" + tt.b, "-i", "netmap:" + tt.c}})
			}
			for range rateRounds {
				for i := range fs {
					f := &fs[i]
					f.rates = append(f.rates, rate(t, exec.Command(f.args[0], f.args[1:]...), tt.a, tt.d))
				}
			}
			medians := make([]float64, len(fs))
			for i, f := range fs {
				r := slices.Sorted(slices.Values(f.rates))
				medians[i] = r[len(r)/2]
				t.Logf("%s: %.0f packets/s, of %.0f", f.name, medians[i], f.rates)
			}
			if br != "" {
				t.Logf("of bridge's rate: %.2f, idle busy %.2f", medians[0]/medians[2], medians[1]/medians[2])
			}
		})
	}
}

// rate returns how many packets per second cmd moves from what a sends to d.
func rate(t *testing.T, cmd *exec.Cmd, a, d string) float64 {
	t.Helper()
	ports := open(t, spare(configs(a, d)))
	defer func() {
		for _, p := range slices.Backward(ports) {
			p.Device.Close()
		}
	}()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Signal(syscall.SIGTERM)
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			t.Error(err)
		}
	}()
	in, out := ports[0].Queues[0], ports[1].Queues[0]
	r := in.TX.Region()
	bufs, err := r.Take(64)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { r.Give(bufs) }()
	smallest := packet(0, false)[:60]
	binary.BigEndian.PutUint16(smallest[16:], 46)
	smallest[24], smallest[25] = 0, 0
	binary.BigEndian.PutUint16(smallest[24:], wire.Checksum(smallest[14:34]))
	s := make([]dataplane.Slot, len(bufs))
	free := make([]uint32, 256)
	slots := make([]dataplane.Slot, len(free))
	var began time.Time
	got := 0
	for start := time.Now(); ; {
		for range 4 {
			for i, b := range bufs {
				s[i] = dataplane.Slot{Buf: b, Len: 60}
				copy(r.Buffer(b), smallest)
			}
			in.TX.Send(r, s)
			for i := range s {
				bufs[i] = s[i].Buf
			}
		}
		poll(t, 0, in.Descriptor)
		poll(t, 0, out.Descriptor)
		for n := out.RX.Recv(slots); n > 0; n = out.RX.Recv(slots) {
			for i := range n {
				free[i] = slots[i].Buf
			}
			out.RX.Release(free[:n])
			got += n
		}
		now := time.Now()
		switch {
		case began.IsZero() && got > 10000:
			began, got = now, 0
		case !began.IsZero() && now.Sub(began) >= rateFor:
			return float64(got) / now.Sub(began).Seconds()
		case now.Sub(start) > patience:
			t.Fatalf("%v moves nothing, %d packets", cmd, got)
		}
	}
}

// labConf writes a configuration of the lab between two ports, and returns its
// name.
func labConf(t *testing.T, b, c, more string) string {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "routes.conf")
	text := fmt.Sprintf(`port %s 198.18.0.205/24 2001:2::205/64 host off mac %x:%x:%x:%x:%x:%x
port %s 198.19.0.205/24 2001:2:0:8000::205/64 host off mac %x:%x:%x:%x:%x:%x
route 198.18.0.0/16 via 198.18.0.203
route 198.19.0.0/16 via 198.19.0.203
route 2001:2::/49 via 2001:2::203
route 2001:2:0:8000::/49 via 2001:2:0:8000::203
arp 198.18.0.203 02:00:00:00:01:0a
arp 198.19.0.203 02:00:00:00:01:0d
ndp 2001:2::203 02:00:00:00:01:0a
ndp 2001:2:0:8000::203 02:00:00:00:01:0d
%s`, b, macB[0], macB[1], macB[2], macB[3], macB[4], macB[5], c, macC[0], macC[1], macC[2], macC[3], macC[4], macC[5], more)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return conf
}
