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

// A source reads frames from a capture file.
type source struct {
	name string
	file *os.File
	r    interface {
		ZeroCopyReadPacketData() ([]byte, gopacket.CaptureInfo, error)
	}
	last time.Time
}

// openSource opens a capture of Ethernet frames: pcap of both byte orders and
// both resolutions, or pcapng, each also gzipped.
func openSource(name string) (*source, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err // names the file
	}
	s, err := newSource(name, f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	s.file = f
	return s, nil
}

func newSource(name string, r io.Reader) (*source, error) {
	b := bufio.NewReader(r)
	if m, err := b.Peek(2); err == nil && m[0] == 0x1f && m[1] == 0x8b {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		b = bufio.NewReader(z)
	}
	m, err := b.Peek(4)
	if err != nil {
		if err == io.EOF {
			err = errors.New("too short for a capture file")
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s := &source{name: name}
	if binary.BigEndian.Uint32(m) == 0x0a0d0d0a { // section header of pcapng
		s.r, err = pcapgo.NewNgReader(b, pcapgo.NgReaderOptions{WantMixedLinkType: true, SkipUnknownVersion: true})
	} else {
		var p *pcapgo.Reader
		if p, err = pcapgo.NewReader(b); err == nil {
			err = ethernet(p.LinkType()) // without the upper half, the FCS length
		}
		s.r = p
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, eof(err))
	}
	return s, nil
}

func ethernet(t layers.LinkType) error {
	if t != layers.LinkTypeEthernet {
		return fmt.Errorf("link type is %d (%v), only Ethernet (1) can be replayed", int(t), t)
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

// next returns the next frame as it was captured, and when. The frame is valid
// until the next call. The error is io.EOF at the end of the file.
func (s *source) next() ([]byte, time.Time, error) {
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

func (s *source) Close() error { return s.file.Close() }

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
