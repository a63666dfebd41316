// Package pcap reads and writes captures of Ethernet frames. It reads pcap of both
// byte orders and both resolutions, and pcapng, each also gzipped; it writes pcap
// with nanoseconds. A Reader belongs to one goroutine; a Writer may be shared.
package pcap

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

// A Reader reads the frames of a capture.
type Reader struct {
	name    string
	file    *os.File // nil if what is read is the caller's
	packets interface {
		ZeroCopyReadPacketData() ([]byte, gopacket.CaptureInfo, error)
	}
	last time.Time
}

// ErrNoCapture says that what was read is no capture of a known format.
var ErrNoCapture = errors.New("no capture file: unknown magic number")

// Open opens a capture file. The caller closes the Reader.
func Open(name string) (*Reader, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err // names the file
	}
	r, err := NewReader(name, f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r.file = f
	return r, nil
}

// NewReader returns a Reader of a capture. Errors begin with the name. What
// is no capture of a known format is an error that wraps ErrNoCapture.
func NewReader(name string, from io.Reader) (*Reader, error) {
	b := bufio.NewReader(from)
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
	r := &Reader{name: name}
	switch binary.BigEndian.Uint32(m) {
	case 0x0a0d0d0a: // section header of pcapng, the same in both byte orders
		r.packets, err = pcapgo.NewNgReader(b, pcapgo.NgReaderOptions{WantMixedLinkType: true, SkipUnknownVersion: true})
	case 0xd4c3b2a1, 0xa1b2c3d4, // microseconds
		0x4d3cb2a1, 0xa1b23c4d: // nanoseconds
		var p *pcapgo.Reader
		if p, err = pcapgo.NewReader(b); err == nil {
			err = ethernet(p.LinkType()) // without the upper half, the FCS length
		}
		r.packets = p
	default:
		err = ErrNoCapture
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, eof(err))
	}
	return r, nil
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
func (r *Reader) Next() ([]byte, time.Time, error) {
	b, ci, err := r.packets.ZeroCopyReadPacketData()
	if err == io.EOF {
		return nil, time.Time{}, err
	}
	if err == nil && len(ci.AncillaryData) > 0 {
		if t, ok := ci.AncillaryData[0].(layers.LinkType); ok {
			err = ethernet(t)
		}
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("%s: %w", r.name, err)
	}
	// Simple packet blocks have no time, and garbage has one that pcap cannot
	// write.
	if sec := ci.Timestamp.Unix(); !ci.Timestamp.IsZero() && sec >= 0 && sec <= math.MaxUint32 {
		r.last = ci.Timestamp
	}
	return b, r.last, nil
}

// Close closes the file that Open opened.
func (r *Reader) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// A Writer writes frames to a pcap file, with nanoseconds. Its methods may be
// called from any goroutine.
type Writer struct {
	mu   sync.Mutex
	buf  *bufio.Writer
	to   *pcapgo.Writer
	last time.Time
	err  error
}

// NewWriter starts a capture on out.
func NewWriter(out io.Writer) *Writer {
	w := &Writer{buf: bufio.NewWriter(out), last: time.Unix(0, 0)}
	w.to = pcapgo.NewWriterNanos(w.buf)
	w.err = w.to.WriteFileHeader(1<<18, layers.LinkTypeEthernet)
	return w
}

// Write adds a frame. Times never go back: a frame older than the one before
// gets the time of that. After an error nothing more is written and the error
// is returned again.
func (w *Writer) Write(t time.Time, frame []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.After(w.last) {
		w.last = t
	}
	if w.err == nil {
		w.err = w.to.WritePacket(gopacket.CaptureInfo{Timestamp: w.last, CaptureLength: len(frame), Length: len(frame)}, frame)
	}
	return w.err
}

// Flush writes out what is buffered and returns the first error of the
// capture.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = w.buf.Flush()
	}
	return w.err
}
