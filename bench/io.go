package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"time"

	"nmfwd/dataplane"
)

// testpmd are the ways in which DPDK's testpmd moves packets between ports
// that need no hardware.
var testpmd = []struct {
	name  string
	ports string // but for the number
	mode  string
	start string
}{
	{"testpmd io, net_ring", "net_ring%d", "io", "start tx_first 32"},
	{"testpmd macswap, net_ring", "net_ring%d", "macswap", "start tx_first 32"},
	{"testpmd io, net_null", "net_null%d,size=64,copy=1", "io", "start"},
	{"testpmd macswap, net_null", "net_null%d,size=64,copy=1", "macswap", "start"},
}

// inOut measures what taking packets in and sending them costs, without
// forwarding: the part of Step's time that its ports in memory take, beside
// DPDK's.
func inOut(o *options) (*report, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := &report{
		name: "io", title: "Input and output alone", unit: "ns/packet", series: []string{"per packet"},
		columns: []string{"what", "ns/packet", "min", "max"},
		notes: []string{
			"Ports in memory: Recv, Send and Release of bursts of 64 in a loop of 2,000 buffers; with Step, the whole of it.",
			"testpmd: one core, two ports, bursts of 32, memory without huge pages. net_ring passes pointers; net_null allocates, copies 64 bytes and frees a buffer per packet.",
		},
	}
	b, err := pathGroups()[0].cases[0].bed()
	if err != nil {
		return nil, err
	}
	defer b.close()
	type row struct {
		name string
		run  func() (float64, error)
	}
	rows := []row{
		{"ports in memory, exchange alone", func() (float64, error) { return b.exchange(o.packets), nil }},
		{"ports in memory, Step, IPv4", func() (float64, error) { return b.run(o.packets), nil }},
	}
	if _, err := exec.LookPath("dpdk-testpmd"); err != nil {
		r.notes = append(r.notes, "testpmd: not run, no dpdk-testpmd (Debian: dpdk-dev).")
	} else {
		for _, t := range testpmd {
			rows = append(rows, row{t.name, func() (float64, error) { return runTestpmd(o, t.ports, t.mode, t.start) }})
		}
	}
	got := make([][]float64, len(rows))
	for range max(3, o.rounds/4) {
		for i, row := range rows {
			if !o.rows.MatchString(row.name) {
				continue
			}
			v, err := row.run()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", row.name, err)
			}
			got[i] = append(got[i], v)
		}
	}
	for i, row := range rows {
		if len(got[i]) > 0 {
			r.addPlain(row.name, got[i])
		}
	}
	return r, nil
}

// exchange moves at least n packets from the receive ring to the transmit ring
// as Step does, and does nothing else with them. It returns what bed.run does.
func (b *bed) exchange(n int) float64 {
	rx, tx, region := b.in.Queues[0].RX, b.out.Queues[0].TX, b.in.Queues[0].Region()
	slots, free := make([]dataplane.Slot, b.burst), make([]uint32, b.burst)
	return batches(n, func() int {
		k := rx.Recv(slots)
		tx.Send(region, slots[:k])
		for i := range slots[:k] {
			free[i] = slots[i].Buf
		}
		rx.Release(free[:k])
		return k
	})
}

// received is a line of testpmd's statistics of all ports.
var received = regexp.MustCompile(`Rx-pps:\s+(\d+)`)

// runTestpmd returns the nanoseconds per packet of testpmd between two ports.
func runTestpmd(o *options, ports, mode, start string) (float64, error) {
	cpus, err := dataplane.CPUs()
	if err != nil {
		return 0, err
	}
	args := []string{
		"--lcores", fmt.Sprintf("0@%d,1@%d", cpus[0], cpus[len(cpus)-1]), "--no-huge", "-m", "256", "--no-pci", "--no-telemetry", "--no-shconf",
		"--vdev=" + fmt.Sprintf(ports, 0), "--vdev=" + fmt.Sprintf(ports, 1),
		"--", "-i", "--forward-mode=" + mode, "--nb-cores=1", "--total-num-mbufs=8192",
	}
	cmd := exec.CommandContext(o.ctx, "dpdk-testpmd", args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	const measured = time.Second
	go func() { // testpmd computes rates between two looks
		fmt.Fprintf(in, "%s\n", start)
		time.Sleep(measured / 2)
		fmt.Fprintln(in, "show port stats all")
		time.Sleep(measured)
		fmt.Fprintf(in, "show port stats all\nstop\nquit\n")
		in.Close()
	}()
	var text []byte
	pps := []float64{}
	sc := bufio.NewScanner(out)
	for sc.Scan() {
		text = append(append(text, sc.Bytes()...), '\n')
		if m := received.FindSubmatch(sc.Bytes()); m != nil {
			v, _ := strconv.ParseFloat(string(m[1]), 64)
			pps = append(pps, v)
		}
	}
	io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil {
		return 0, fmt.Errorf("%w\n%s", err, text)
	}
	if len(pps) != 4 || pps[2]+pps[3] == 0 {
		return 0, errors.New("no rates in the output:\n" + string(text))
	}
	return 1e9 / (pps[2] + pps[3]), nil
}
