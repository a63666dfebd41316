package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nmfwd/test/lab/apu2"
	"nmfwd/test/lab/traffic"
)

// queues is how many each port has, and how many CPUs send.
const queues = 2

// options are the command line.
type options struct {
	dut      string
	program  string
	config   string
	rate     float64
	seconds  float64
	overload bool
	families []int
}

func main() {
	var o options
	flags := flag.NewFlagSet("lab", flag.ContinueOnError)
	family := flags.String("family", "both", "send `4`, 6 or both")
	flags.StringVar(&o.dut, "dut", "nmfwd", "what forwards: nmfwd or `kernel`")
	flags.StringVar(&o.program, "nmfwd", "bin/nmfwd", "the `program`")
	flags.StringVar(&o.config, "config", "examples/apu2/routes.conf", "its configuration `file`")
	flags.Float64Var(&o.rate, "rate", 100_000, "frames per second over all senders")
	flags.Float64Var(&o.seconds, "seconds", 4, "of each family, up to 20")
	flags.BoolVar(&o.overload, "overload", false, "send as fast as possible; loss is no fault")
	if err := flags.Parse(os.Args[1:]); errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	} else if err != nil {
		os.Exit(exUsage)
	}
	switch *family {
	case "4":
		o.families = []int{4}
	case "6":
		o.families = []int{6}
	case "both":
		o.families = []int{4, 6}
	}
	if o.families == nil || o.dut != "nmfwd" && o.dut != "kernel" || !(o.rate > 0) || !(o.seconds > 0 && o.seconds <= 20) || flags.NArg() > 0 {
		flags.Usage()
		os.Exit(exUsage)
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "lab: needs root, for it makes network namespaces: run it as root or with sudo")
		os.Exit(exNoPerm)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, &o); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		fmt.Fprintf(os.Stderr, "lab: %v\n", err)
		os.Exit(1)
	}
}

// run makes the lab, sends all families and removes it again.
func run(ctx context.Context, o *options) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(float64(len(o.families))*o.seconds*float64(time.Second))+30*time.Second)
	defer cancel()
	l, err := apu2.New(queues, queues)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()

	var fwd *apu2.NMFWD
	if o.dut == "kernel" {
		err = l.KernelRouter()
	} else if _, e := os.Stat(o.program); errors.Is(e, fs.ErrNotExist) {
		return fmt.Errorf("no program %s: build it with make, or name another with -nmfwd", o.program)
	} else {
		fwd, err = l.StartNMFWD(ctx, o.program, o.config, os.Stderr)
	}
	if err != nil {
		return err
	}
	fmt.Printf("generator gen0 ==== igb1 router (%s) igb2 ==== rcv0 receiver, %d queues on each port\n", o.dut, queues)
	if err := ping(l); err != nil {
		return err
	}
	var rounds []*round
	for _, family := range o.families {
		r, err := send(ctx, o, l, fwd, family)
		if err != nil {
			return fmt.Errorf("IPv%d: %w", family, err)
		}
		rounds = append(rounds, r)
	}
	var stopped error
	if fwd != nil {
		stopped = fwd.Stop()
	}
	table(os.Stdout, rounds, fwd != nil)
	faults := []error{stopped}
	for _, r := range rounds {
		faults = append(faults, r.faults(o.overload))
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	fmt.Println("\nAll is well: every frame that arrived is right, in order, and accounted for.")
	return nil
}

// pings is how often ping asks: on a busy machine an answer may come late.
const pings = 5

// ping lets the kernels of generator and receiver talk through the router.
func ping(l *apu2.Lab) error {
	for _, dst := range apu2.ReceiverAddrs {
		p, err := l.Generator.NewPinger(dst.Addr())
		if err != nil {
			return err
		}
		var start time.Time
		for range pings {
			start = time.Now()
			if err = p.Ping(56, 3*time.Second); err == nil {
				break
			}
		}
		p.Close()
		if err != nil {
			return fmt.Errorf("from the generator's kernel to the receiver's: %w", err)
		}
		fmt.Printf("ping from the generator to %v: reply in %v\n", dst.Addr(), time.Since(start).Round(time.Microsecond))
	}
	return nil
}

// A round is what happened to one family.
type round struct {
	family  int
	res     *traffic.Result
	elapsed time.Duration
	bySent  []uint64     // frames by sending CPU
	metrics apu2.Metrics // growth
	atRest  error        // what nmfwd does not account for
	cpu     time.Duration
	kernel  map[string]uint64 // frames that the kernel dropped at a port
}

// send sends one family and reports every second.
func send(ctx context.Context, o *options, l *apu2.Lab, fwd *apu2.NMFWD, family int) (r *round, err error) {
	cpus, err := senderCPUs()
	if err != nil {
		return nil, err
	}
	sampleEvery := uint32(16)
	rate := o.rate
	if o.overload {
		sampleEvery, rate = 1<<10, 0
	}
	rcv, err := traffic.NewReceiver(l.Receiver, apu2.Rcv0, apu2.Flows(family), sampleEvery)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rcv.Close()) }()
	gen, err := traffic.NewSender(l.Generator, apu2.Gen0, rcv, cpus)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, gen.Close()) }()

	r = &round{family: family}
	var before apu2.Metrics
	var cpu time.Duration
	if fwd != nil {
		if before, err = fwd.Scrape(ctx); err != nil {
			return nil, err
		}
		if cpu, err = fwd.CPU(); err != nil {
			return nil, err
		}
	}
	drops, err := kernelDrops(l)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	sending := make(chan error, 1)
	go func() { sending <- gen.Send(ctx, rate, time.Duration(o.seconds*float64(time.Second))) }()
	if err := report(family, gen, rcv, sending); err != nil {
		return nil, err
	}
	r.elapsed = time.Since(start)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := settle(ctx, gen, rcv); err != nil {
		return nil, err
	}
	if r.res, err = rcv.Result(gen); err != nil {
		return nil, err
	}
	if r.bySent, err = gen.Sent(); err != nil {
		return nil, err
	}
	if r.kernel, err = kernelDrops(l); err != nil {
		return nil, err
	}
	for port := range r.kernel {
		r.kernel[port] -= drops[port]
	}
	if fwd != nil {
		after, err := fwd.AtRest(ctx)
		if after == nil {
			return nil, err
		}
		r.atRest, r.metrics = err, after.Sub(before)
		if r.cpu, err = fwd.CPU(); err != nil {
			return nil, err
		}
		r.cpu -= cpu
	}
	return r, nil
}

// senderCPUs returns the CPUs that send.
func senderCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	var may []int
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			may = append(may, cpu)
		}
	}
	return pickCPUs(may)
}

// pickCPUs returns one of the CPUs for each queue of igb1, in order: what CPU c
// sends arrives in queue c modulo their number. It picks the last ones, for
// nmfwd's workers take the first.
func pickCPUs(may []int) ([]int, error) {
	cpus := make([]int, queues)
	for q := range cpus {
		cpus[q] = -1
		for _, cpu := range may {
			if cpu%queues == q {
				cpus[q] = cpu
			}
		}
		if cpus[q] < 0 {
			return nil, fmt.Errorf("none of the CPUs %v fills queue %d: %d CPUs in a row are needed", may, q, queues)
		}
	}
	return cpus, nil
}

// report prints rates every second until sending has ended, and returns its
// error.
func report(family int, gen *traffic.Sender, rcv *traffic.Receiver, sending <-chan error) error {
	var sent, received uint64
	last := time.Now()
	every := time.NewTicker(time.Second)
	defer every.Stop()
	for second := 1; ; second++ {
		select {
		case err := <-sending:
			return err
		case now := <-every.C:
			s, g, err := progress(gen, rcv)
			if err != nil {
				return err
			}
			t := now.Sub(last).Seconds()
			fmt.Printf("IPv%d %2d s: sent %s/s, received %s/s\n", family, second,
				grouped(float64(s-sent)/t), grouped(float64(g-received)/t))
			sent, received, last = s, g, now
		}
	}
}

// progress returns the frames sent and received so far.
func progress(gen *traffic.Sender, rcv *traffic.Receiver) (sent, received uint64, err error) {
	of, err := gen.Sent()
	if err != nil {
		return 0, 0, err
	}
	for _, n := range of {
		sent += n
	}
	received, _, err = rcv.Received()
	return sent, received, err
}

// settle waits until all that was sent has arrived, or nothing has arrived for a
// while.
func settle(ctx context.Context, gen *traffic.Sender, rcv *traffic.Receiver) error {
	const patience = 300 * time.Millisecond
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	var last uint64
	for since := time.Now(); time.Since(since) < patience; {
		sent, received, err := progress(gen, rcv)
		if err != nil || received >= sent {
			return err
		}
		if received != last {
			last, since = received, time.Now()
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// kernelDrops returns the frames that the kernel has dropped on the way into
// each port.
func kernelDrops(l *apu2.Lab) (map[string]uint64, error) {
	drops := map[string]uint64{}
	igb1, err := l.Router.Port(apu2.IGB1)
	if err != nil {
		return nil, err
	}
	rcv0, err := l.Receiver.Port(apu2.Rcv0)
	if err != nil {
		return nil, err
	}
	drops[apu2.IGB1] = igb1.Statistics.RxDropped
	drops[apu2.Rcv0] = rcv0.Statistics.RxDropped
	return drops, nil
}
