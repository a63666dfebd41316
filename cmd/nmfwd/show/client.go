package show

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strconv"
	"strings"
)

// maxPart is the longest part of an answer in bytes.
const maxPart = 1 << 15

// Do sends a request to the socket at path and copies the answer to w. What went
// wrong, here or there, is an [Error].
func Do(ctx context.Context, path string, r *Request, w io.Writer) error {
	if err := r.Check(); err != nil {
		return err
	}
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return dialError(path, err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	// One that is refused may have its answer already.
	if _, err := io.WriteString(c, r.String()+"\n"); err != nil && !isGone(err) {
		return lost(path, err)
	}
	in := bufio.NewReaderSize(c, maxPart)
	for {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			return &Error{CodeProtocol, path + ": what answers is no nmfwd, or of another release"}
		}
		if err != nil {
			return lost(path, err)
		}
		if string(line) == ".\n" {
			return nil
		}
		code, n, ok := parsePart(string(line[:len(line)-1]))
		if !ok {
			return &Error{CodeProtocol, path + ": what answers is no nmfwd, or of another release"}
		}
		if code == 0 {
			_, err = io.CopyN(w, in, int64(n))
		} else {
			text := make([]byte, n)
			if _, err = io.ReadFull(in, text); err == nil {
				return &Error{code, string(text)}
			}
		}
		if err != nil {
			return lost(path, err)
		}
	}
}

// parsePart reads the line before a part of an answer. Code is 0 unless it is an
// error.
func parsePart(line string) (code, n int, ok bool) {
	var err error
	switch length, part := strings.CutPrefix(line, "+"); {
	case part:
		n, err = strconv.Atoi(length)
	case strings.HasPrefix(line, "-"):
		_, err = fmt.Sscanf(line, "-%d %d", &code, &n)
		if code < 64 || code > 78 {
			return 0, 0, false
		}
	default:
		return 0, 0, false
	}
	return code, n, err == nil && n >= 0 && n <= maxPart
}

// dialError says what to do about a socket that cannot be reached.
func dialError(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &Error{CodeUnavailable, path + ": no such socket: nmfwd does not run, or has another path: name it by --socket, or its configuration by --config"}
	case errors.Is(err, fs.ErrPermission):
		return &Error{CodeNoPerm, path + ": permission denied: the socket is of the user that nmfwd runs as, root"}
	case isRefused(err):
		return &Error{CodeUnavailable, path + ": nobody answers: nmfwd was killed and has not been started again"}
	case isNotSocket(err):
		return &Error{CodeUsage, path + ": no socket of nmfwd"}
	}
	return &Error{CodeUnavailable, fmt.Sprintf("%s: %v", path, err)}
}

// lost is the error of a connection that ends before the answer does.
func lost(path string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || isGone(err) {
		return &Error{CodeUnavailable, path + ": nmfwd ended, or closed the connection, before the answer was complete"}
	}
	return &Error{CodeUnavailable, fmt.Sprintf("%s: %v", path, err)}
}
