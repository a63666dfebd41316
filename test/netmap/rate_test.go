//go:build netmap

package netmap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"nmfwd/dataplane"
	"nmfwd/wire"
)

// How often and how long each forwarder's rate is measured.
const (
	rateRounds = 5
	rateFor    = 2 * time.Second
)

// icount says that the machine's clock counts instructions, one per nanosecond,
// as that of qemu-system does with -icount shift=0. Then time on the CPU is what
// a packet costs, exactly, if there is one CPU: with more the clock counts the
// instructions of all.
var icount = os.Getenv("ICOUNT") == "1"

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

// A forwarder is a program that moves frames between two ports.
type forwarder struct {
	name    string
	args    []string
	own     bool // pins its threads itself
	results []result
}

// A result is what one round tells about a forwarder.
type result struct {
	rate         float64 // packets per second
	user, system float64 // ns on the CPU per packet
}

// median returns the median of what get takes from the results.
func (f *forwarder) median(get func(result) float64) float64 {
	var v []float64
	for _, r := range f.results {
		v = append(v, get(r))
	}
	slices.Sort(v)
	return v[len(v)/2]
}

func (f *forwarder) rate() float64 { return f.median(func(r result) float64 { return r.rate }) }

// log says what was measured.
func (f *forwarder) log(t *testing.T) {
	var all []string
	for _, r := range f.results {
		all = append(all, fmt.Sprintf("%.0f", r.rate))
	}
	unit := "ns"
	if icount {
		unit = "instructions"
	}
	user, system := f.median(func(r result) float64 { return r.user }), f.median(func(r result) float64 { return r.system })
	t.Logf("%-17s %.0f packets/s of %v, %.0f %s on the CPU per packet, %.0f + %.0f in the kernel", f.name, f.rate(), all, user+system, unit, user, system)
}

// TestRate measures how many of the smallest frames nmfwd forwards with one
// worker, beside netmap's bridge, which looks at none of them: the medians of
// rounds in turn. One thread sends as fast as it can by one port and counts what
// arrives at another one; the forwarder has the port between. It needs two CPUs:
// the thread has the first one, the forwarder's has the second one. Where the
// clock counts instructions it needs one, and the forwarders sleep when there is
// nothing to do, since looking costs instructions too.
func TestRate(t *testing.T) {
	exe := nmfwd(t)
	br, err := bridge()
	if err != nil {
		t.Log("no bridge in PATH to compare with")
	}
	cpus, err := dataplane.CPUs()
	if err != nil {
		t.Fatal(err)
	}
	workers, modes, rounds := "option workers 1\n", []string{"adaptive", "busy"}, rateRounds
	if len(cpus) > 1 {
		workers += fmt.Sprintf("option cpus %d\n", cpus[1])
	}
	if icount {
		modes, rounds = []string{"poll"}, 1
	}
	for _, tt := range []struct{ name, a, b, c, d string }{
		{"vale ports", "vale7:a", "vale7:b", "vale8:c", "vale8:d"},
		{"pipes", "rate{1", "rate}1", "rate}2", "rate{2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var fs []*forwarder
			for _, m := range modes {
				conf := labConf(t, tt.b, tt.c, workers+"option idle "+m+"\n")
				fs = append(fs, &forwarder{name: "nmfwd, " + m + ":", args: []string{exe, "-c", conf}, own: true})
			}
			if br != "" {
				fs = append(fs, &forwarder{name: "bridge:", args: []string{br, "-w", "0", "-i", "netmap:" + tt.b, "-i", "netmap:" + tt.c}})
			}
			for range rounds {
				for _, f := range fs {
					f.results = append(f.results, measure(t, f, cpus, tt.a, tt.d))
				}
			}
			for _, f := range fs {
				f.log(t)
			}
			for i, m := range modes {
				if br != "" {
					t.Logf("nmfwd, %s / bridge: %.2f", m, fs[i].rate()/fs[len(modes)].rate())
				}
			}
		})
	}
}

// start starts a forwarder. One that does not pin its threads gets the second of
// the CPUs; the calling thread, which has to be locked, the first one. What the
// forwarder has to say goes to said.
func (f *forwarder) start(t *testing.T, cpus []int, said *os.File) *exec.Cmd {
	t.Helper()
	to := cpus
	if !f.own && len(cpus) > 1 {
		to = cpus[1:2]
	}
	cmd := exec.Command(f.args[0], f.args[1:]...)
	cmd.Stderr = said
	if err := errors.Join(pin(to), cmd.Start(), pin(cpus[:1])); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// measure returns how many packets per second f moves from what port a sends to
// port d.
func measure(t *testing.T, f *forwarder, cpus []int, a, d string) result {
	t.Helper()
	ports := open(t, spare(configs(a, d)))
	defer func() {
		for _, p := range slices.Backward(ports) {
			p.Device.Close()
		}
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer pin(cpus)
	said, err := os.Create(filepath.Join(t.TempDir(), "said"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	cmd := f.start(t, cpus, said)
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
	var user, system time.Duration
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
			user, system = cpuTime(cmd.Process.Pid)
			began, got = time.Now(), 0
		case !began.IsZero() && now.Sub(began) >= rateFor:
			u, s := cpuTime(cmd.Process.Pid)
			n := float64(got)
			return result{n / now.Sub(began).Seconds(), float64(u-user) / n, float64(s-system) / n}
		case now.Sub(start) > patience:
			text, _ := os.ReadFile(said.Name())
			t.Fatalf("%v moves nothing, %d packets\n%s", cmd, got, text)
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
