package main

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"

	"nmfwd/cmd/nmfwd/explain"
	"nmfwd/config"
	"nmfwd/pcap"
	"nmfwd/router"
)

type explainCmd struct {
	Config string   `short:"c" required:"" placeholder:"FILE" help:"The configuration, routes.conf."`
	Port   string   `arg:"" help:"The port that the frame comes in by."`
	Frame  []string `arg:"" help:"The frame from its destination MAC address on, without FCS: in hexadecimal, blanks and colons do not matter; a capture file (pcap, pcapng, also gzipped), whose frames are explained one after another; or - for either on standard input."`
}

// Run prints what would become of the frames.
func (c *explainCmd) Run() error {
	cfg, err := loadConfig(c.Config)
	if err != nil {
		return err
	}
	warn(cfg.Warnings)
	if len(cfg.Ports) == 0 {
		return coded{exDataErr, fmt.Errorf("%s: no port line, so nothing to explain", c.Config)}
	}
	if err := resolve(cfg, kernelAddrs); err != nil {
		return err
	}
	i := cfg.Port(c.Port)
	if i < 0 {
		return coded{exUsage, fmt.Errorf("explain: the configuration has no port %s", c.Port)}
	}
	if i >= len(cfg.Devices()) {
		return coded{exUsage, fmt.Errorf("explain: %s is a VLAN: name its port, and give the frame with its tag", c.Port)}
	}
	frames, err := c.frames()
	if err != nil {
		return err
	}
	kernel, _, err := router.ReadRoutes(cfg)
	if err != nil {
		return err
	}
	e, err := explain.New(cfg, c.devices(cfg, frames[0]), kernel)
	if err != nil {
		return err
	}
	defer e.Close()
	out := bufio.NewWriter(os.Stdout)
	for n, f := range frames {
		if n > 0 {
			fmt.Fprintln(out)
		}
		r, err := e.Explain(cfg.Ports[i].Name, f)
		if err != nil {
			return errors.Join(out.Flush(), coded{exDataErr, fmt.Errorf("explain: %w", err)})
		}
		if _, err := r.WriteTo(out); err != nil {
			return err
		}
	}
	return out.Flush()
}

// devices returns what the system knows of ports, without opening them. Of a
// port whose MAC address nobody knows the frame is taken to be for it.
func (c *explainCmd) devices(cfg *config.Config, frame []byte) map[string]explain.Device {
	known := make(map[string]explain.Device)
	for _, p := range cfg.Devices() {
		var d explain.Device
		if i, err := net.InterfaceByName(p.Name); err == nil {
			d = explain.Device{MAC: i.HardwareAddr, MTU: i.MTU}
		}
		if p.MAC != nil || len(d.MAC) == 6 {
			known[p.Name] = d
			continue
		}
		d.MAC = nil
		if name := cfg.Ports[cfg.Port(c.Port)].Name; p.Name == name && len(frame) >= 6 && frame[0]&1 == 0 {
			d.MAC = net.HardwareAddr(frame[:6])
			fmt.Fprintf(os.Stderr, "nmfwd: the MAC address of %s is not known here: taken to be the frame's destination\n", p.Name)
		} else {
			fmt.Fprintf(os.Stderr, "nmfwd: the MAC address of %s is not known here: made up\n", p.Name)
		}
		known[p.Name] = d
	}
	return known
}

// frames returns the frames that the command line names, at least one.
func (c *explainCmd) frames() ([][]byte, error) {
	arg := strings.Join(c.Frame, " ")
	if arg == "-" {
		b, err := io.ReadAll(os.Stdin)
		if err != nil {
			return nil, err
		}
		return readFrames("standard input", b)
	}
	if b, err := parseFrame(arg); err == nil {
		return [][]byte{b}, nil
	}
	b, err := os.ReadFile(arg)
	switch {
	case errors.Is(err, fs.ErrNotExist) && strings.ContainsAny(arg, "./"):
		return nil, coded{exNoInput, err}
	case errors.Is(err, fs.ErrNotExist):
		return nil, coded{exUsage, fmt.Errorf("explain: %q is neither a frame in hexadecimal nor a capture file", arg)}
	case err != nil:
		return nil, err
	}
	return readFrames(arg, b)
}

// readFrames returns the frames in a capture, or the one that b says in
// hexadecimal.
func readFrames(name string, b []byte) ([][]byte, error) {
	fail := func(err error) ([][]byte, error) {
		return nil, coded{exDataErr, fmt.Errorf("explain: %s: %w", name, err)}
	}
	r, err := pcap.NewReader(name, bytes.NewReader(b))
	if errors.Is(err, pcap.ErrNoCapture) {
		f, err := parseFrame(string(b))
		if err != nil {
			return fail(errors.New("neither a capture nor a frame in hexadecimal"))
		}
		return [][]byte{f}, nil
	}
	if err != nil {
		return nil, coded{exDataErr, fmt.Errorf("explain: %w", err)}
	}
	var frames [][]byte
	for {
		f, _, err := r.Next()
		switch {
		case err == io.EOF && len(frames) == 0:
			return fail(errors.New("a capture without frames"))
		case err == io.EOF:
			return frames, nil
		case err != nil:
			return nil, coded{exDataErr, fmt.Errorf("explain: frame %d: %w", len(frames)+1, err)}
		case len(f) == 0:
			return fail(fmt.Errorf("frame %d: empty", len(frames)+1))
		}
		frames = append(frames, bytes.Clone(f))
	}
}

// parseFrame reads a frame in hexadecimal. Blanks, colons, 0x in front and
// comments behind # do not matter.
func parseFrame(s string) ([]byte, error) {
	var digits strings.Builder
	for line := range strings.Lines(s) {
		line, _, _ = strings.Cut(line, "#")
		for _, w := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\r\n:", r) }) {
			digits.WriteString(strings.TrimPrefix(w, "0x"))
		}
	}
	b, err := hex.DecodeString(digits.String())
	if err == nil && len(b) == 0 {
		err = errors.New("empty frame")
	}
	return b, err
}
