package show

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"nmfwd/clients"
	"nmfwd/control"
	"nmfwd/dataplane"
)

const (
	maxClients = 16
	requestIn  = 5 * time.Second  // how long a client may take to ask
	readIn     = 10 * time.Second // and to read a part of the answer
)

// A Source is what is shown.
type Source struct {
	Snapshot func(*dataplane.Snapshot)
	Ports    []*dataplane.Port // devices by number
	Control  *control.Control  // that runs
	Counts   func(*control.Snapshot)
	Devices  []Device // what else is known of Ports
	Status   func() Status

	// Reload reads the configuration again and says what was done. It may be
	// called by several goroutines at once.
	Reload func(context.Context) (string, error)
	Code   func(error) int // the exit code for an error of Reload

	// Sync returns when all is in use that the system told before.
	Sync func(context.Context) error

	// Failed is told when clients cannot be accepted, which is tried again. It may
	// be nil.
	Failed func(error)
}

// A Device is what is known of the interface behind a port.
type Device struct {
	Speed int // Mbit/s when it was opened, 0 where it is not known

	// Settings asks the system for what nmfwd has changed, as the command that does
	// it, and for what of it is lost, as the command that mends it; empty for nothing.
	// It may be nil.
	Settings func() (set, lost string)
}

// A Server answers requests at a socket.
type Server struct {
	source   Source
	listener net.Listener
	path     string
	made     fs.FileInfo // the socket
	rates    rates
	patience time.Duration // readIn
	every    time.Duration // rateEvery
}

// ErrInUse says that another process listens at the path.
var ErrInUse = errors.New("in use by another nmfwd")

// Listen makes the socket, which only its owner may use. One that a process left
// which is gone is replaced; where another answers the error is ErrInUse. Requests
// wait until Serve.
func Listen(path string) (*Server, error) {
	if err := makeRoom(path); err != nil {
		return nil, fmt.Errorf("control socket %s: %w", path, err)
	}
	l, err := listen(path)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	l.SetUnlinkOnClose(false) // only if it is still ours: see remove
	s := &Server{listener: l, path: path, patience: readIn, every: rateEvery}
	if s.made, err = os.Lstat(path); err != nil {
		l.Close()
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return s, nil
}

// makeRoom removes a socket at path that nobody listens at.
func makeRoom(path string) error {
	switch i, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case i.Mode().Type() != fs.ModeSocket:
		return errors.New("there is a file of that name that is no socket")
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		c.Close()
		return ErrInUse
	case isRefused(err):
		return os.Remove(path)
	}
	return err
}

// Close closes and removes the socket of a server that does not serve.
func (s *Server) Close() error {
	err := s.listener.Close()
	now, statErr := os.Lstat(s.path)
	if statErr == nil && os.SameFile(s.made, now) && s.made.ModTime().Equal(now.ModTime()) { // numbers of files are used again
		err = cmp.Or(err, os.Remove(s.path))
	}
	return err
}

// Serve answers requests from source until ctx is done, then closes the server.
func (s *Server) Serve(ctx context.Context, source Source) error {
	s.source = source
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	running.Go(func() { s.rates.follow(ctx, s.every, s.source.Snapshot) })
	listener := clients.Listen(s.listener, 0, source.Failed)
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	slots := make(chan struct{}, maxClients)
	for {
		c, err := listener.Accept()
		if ctx.Err() != nil {
			if c != nil {
				c.Close()
			}
			return s.removed(nil)
		}
		if err != nil {
			return s.removed(fmt.Errorf("control socket: %w", err))
		}
		select {
		case slots <- struct{}{}:
			running.Go(func() {
				defer func() { <-slots }()
				s.serve(ctx, c)
			})
		default:
			refuse(c)
		}
	}
}

// removed closes the server after err.
func (s *Server) removed(err error) error {
	if closeErr := s.Close(); closeErr != nil && !errors.Is(closeErr, net.ErrClosed) {
		err = cmp.Or(err, closeErr)
	}
	return err
}

// refuse tells a client that there are too many. It is small enough to fit the
// socket's buffer.
func refuse(c net.Conn) {
	defer c.Close()
	c.SetWriteDeadline(time.Now().Add(time.Second))
	writeError(c, &Error{CodeUnavailable, fmt.Sprintf("%d clients are being answered: try again", maxClients)})
}

func writeError(w io.Writer, e *Error) error {
	text := e.Text
	if len(text) > maxPart {
		text = text[:maxPart]
	}
	_, err := fmt.Fprintf(w, "-%d %d\n%s", e.Code, len(text), text)
	return err
}

// serve answers the request of one client.
func (s *Server) serve(ctx context.Context, c net.Conn) {
	defer c.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })()
	c.SetReadDeadline(time.Now().Add(requestIn))
	line, err := bufio.NewReaderSize(c, maxRequest).ReadSlice('\n')
	if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
		return // it has gone, or says nothing
	}
	a := newAnswer(ctx, s, c)
	r, err := ParseRequest(strings.TrimSuffix(string(line), "\n"))
	if err == nil {
		a.json = r.JSON
		err = commands[r.Command].run(a, r)
	}
	a.end(err)
}

// An answer is written to a client.
type answer struct {
	*Server
	ctx   context.Context
	json  bool
	conn  net.Conn
	out   *bufio.Writer // of parts
	table table
}

func newAnswer(ctx context.Context, s *Server, c net.Conn) *answer {
	a := &answer{Server: s, ctx: ctx, conn: c}
	a.out = bufio.NewWriterSize(parts{a}, maxPart)
	return a
}

// parts writes parts of an answer.
type parts struct{ a *answer }

// Write sends b as one part, of at most maxPart bytes.
func (p parts) Write(b []byte) (int, error) {
	for done := 0; ; {
		n := min(len(b)-done, maxPart)
		p.a.conn.SetWriteDeadline(time.Now().Add(p.a.patience))
		if err := p.a.ctx.Err(); err != nil { // which may have set a deadline of its own
			return done, err
		}
		bufs := net.Buffers{fmt.Appendf(nil, "+%d\n", n), b[done : done+n]}
		if _, err := bufs.WriteTo(p.a.conn); err != nil {
			return done, err
		}
		if done += n; done == len(b) {
			return done, nil
		}
	}
}

// alive sends an empty part: it fails once the client has gone.
func (a *answer) alive() error {
	if err := a.out.Flush(); err != nil {
		return err
	}
	_, err := parts{a}.Write(nil)
	return err
}

// item adds doc, as JSON or as a row of the table with these cells.
func (a *answer) item(doc any, cells ...string) error {
	if !a.json {
		return a.table.add(a.out, cells)
	}
	line, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	_, err = a.out.Write(append(line, '\n'))
	return err
}

// head begins a table with these columns: those whose name begins with > have
// numbers.
func (a *answer) head(columns ...string) error {
	if err := a.table.flush(a.out); err != nil {
		return err
	}
	a.table = table{head: columns}
	return nil
}

// note adds a line of text to what is not JSON.
func (a *answer) note(format string, args ...any) error {
	if a.json {
		return nil
	}
	if err := a.table.flush(a.out); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.out, format+"\n", args...)
	return err
}

// end ends the answer.
func (a *answer) end(err error) {
	if err == nil && !a.json {
		err = a.table.flush(a.out)
	}
	if flushed := a.out.Flush(); flushed != nil {
		return // nobody reads
	}
	a.conn.SetWriteDeadline(time.Now().Add(a.patience))
	var e *Error
	switch {
	case err == nil:
		io.WriteString(a.conn, ".\n")
	case errors.As(err, &e):
		writeError(a.conn, e)
	case errors.Is(err, context.Canceled):
		writeError(a.conn, &Error{CodeUnavailable, "nmfwd ends"})
	default:
		writeError(a.conn, &Error{CodeSystem, err.Error()})
	}
}

// flushEvery is how many rows of a table are kept to find out how wide its
// columns are.
const flushEvery = 1000

// A table is rows whose cells are aligned. Columns of a long one, which is not
// kept as a whole, may get wider on the way.
type table struct {
	head   []string // nil for no line of them
	begun  bool
	widths []int
	rows   [][]string
}

func (t *table) add(w io.Writer, cells []string) error {
	if t.rows = append(t.rows, cells); len(t.rows) < flushEvery {
		return nil
	}
	return t.flush(w)
}

func (t *table) flush(w io.Writer) error {
	rows := t.rows
	if t.head != nil && !t.begun {
		head := make([]string, len(t.head))
		for i, h := range t.head {
			head[i] = strings.TrimPrefix(h, ">")
		}
		rows = append([][]string{head}, rows...)
	}
	for _, r := range rows {
		for i, c := range r {
			if i == len(t.widths) {
				t.widths = append(t.widths, 0)
			}
			t.widths[i] = max(t.widths[i], len(c))
		}
	}
	var b bytes.Buffer
	for _, r := range rows {
		line := b.Len()
		for i, c := range r {
			if c == "" {
				c = "-"
			}
			if i > 0 {
				b.WriteString("  ")
			}
			if width := t.widths[i]; i < len(t.head) && strings.HasPrefix(t.head[i], ">") {
				fmt.Fprintf(&b, "%*s", width, c)
			} else {
				fmt.Fprintf(&b, "%-*s", width, c)
			}
		}
		b.Truncate(line + len(bytes.TrimRight(b.Bytes()[line:], " ")))
		b.WriteByte('\n')
	}
	t.begun, t.rows = true, t.rows[:0]
	_, err := w.Write(b.Bytes())
	return err
}
