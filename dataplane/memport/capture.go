package memport

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// A Source reads frames from a capture of Ethernet frames: pcap of both byte
// orders and both resolutions, or pcapng, each also gzipped.
type Source struct {
	name string
	file *os.File // nil if it is the caller's
	r    interface {
		ZeroCopyReadPacketData() ([]byte, gopacket.CaptureInfo, error)
	}
	last time.Time
}

// ErrNoCapture says that what was read is no capture of a known format.
var ErrNoCapture = errors.New("no capture file: unknown magic number")

// openSource opens a capture file.
func openSource(name string) (*Source, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err // names the file
	}
	s, err := NewSource(name, f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	s.file = f
	return s, nil
}

// NewSource returns a Source that reads from r. Errors begin with the name. What
// is no capture of a known format is an error that wraps ErrNoCapture.
func NewSource(name string, r io.Reader) (*Source, error) {
	b := bufio.NewReader(r)
	if m, err := b.Peek(2); err == nil && m[0] == 0x1f && m[1] == 0x8b {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, eof(err))
		}
		b = bufio.NewReader(z)
	}
	m, err := b.Peek(4)
	if err == io.EOF {
		err = fmt.Errorf("%w: too short for a capture file", ErrNoCapture)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s := &Source{name: name}
	switch binary.BigEndian.Uint32(m) {
	case 0x0a0d0d0a: // section header of pcapng, the same in both byte orders
		s.r, err = pcapgo.NewNgReader(b, pcapgo.NgReaderOptions{WantMixedLinkType: true, SkipUnknownVersion: true})
	case 0xd4c3b2a1, 0xa1b2c3d4, // microseconds
		0x4d3cb2a1, 0xa1b23c4d: // nanoseconds
		var p *pcapgo.Reader
		if p, err = pcapgo.NewReader(b); err == nil {
			err = ethernet(p.LinkType()) // without the upper half, the FCS length
		}
		s.r = p
	default:
		err = ErrNoCapture
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, eof(err))
	}
	return s, nil
}

func ethernet(t layers.LinkType) error {
	if t != layers.LinkTypeEthernet {
		return fmt.Errorf("link type is %d (%v), not Ethernet (1)", int(t), t)
	}
	return nil
}

// eof turns the end of a file where none may be into an error that says so.
func eof(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Next returns the next frame as it was captured, and when. The frame is valid
// until the next call. The error is io.EOF at the end of the file.
func (s *Source) Next() ([]byte, time.Time, error) {
	b, ci, err := s.r.ZeroCopyReadPacketData()
	if err == io.EOF {
		return nil, time.Time{}, err
	}
	if err == nil && len(ci.AncillaryData) > 0 {
		if t, ok := ci.AncillaryData[0].(layers.LinkType); ok {
			err = ethernet(t)
		}
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("%s: %w", s.name, err)
	}
	// Simple packet blocks have no time, and garbage has one that pcap cannot
	// write.
	if sec := ci.Timestamp.Unix(); !ci.Timestamp.IsZero() && sec >= 0 && sec <= math.MaxUint32 {
		s.last = ci.Timestamp
	}
	return b, s.last, nil
}

// close closes the file of openSource.
func (s *Source) close() error { return s.file.Close() }

// A Capture writes frames to a pcap file, with nanoseconds. Its methods may be
// called from any goroutine.
type Capture struct {
	mu   sync.Mutex
	buf  *bufio.Writer
	w    *pcapgo.Writer
	last time.Time
	err  error
}

// NewCapture starts a capture on w.
func NewCapture(w io.Writer) *Capture {
	c := &Capture{buf: bufio.NewWriter(w), last: time.Unix(0, 0)}
	c.w = pcapgo.NewWriterNanos(c.buf)
	c.err = c.w.WriteFileHeader(1<<18, layers.LinkTypeEthernet)
	return c
}

// Write adds a frame. Times never go back: a frame older than the one before
// gets the time of that. After an error nothing more is written and the error
// is returned again.
func (c *Capture) Write(t time.Time, frame []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.After(c.last) {
		c.last = t
	}
	if c.err == nil {
		c.err = c.w.WritePacket(gopacket.CaptureInfo{Timestamp: c.last, CaptureLength: len(frame), Length: len(frame)}, frame)
	}
	return c.err
}

// Flush writes out what is buffered and returns the first error of the
// capture.
func (c *Capture) Flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = c.buf.Flush()
	}
	return c.err
}
