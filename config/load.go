package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"nmfwd/config/syntax"
)

// Bounds of included files. Only files that are read again and again can be many
// times what is on the disk.
const (
	maxDepth     = 16       // include lines within each other
	maxFileSize  = 1 << 30  // bytes, and of all files together
	maxAgain     = 64       // times that a file is read that was read before
	maxAgainSize = 16 << 20 // bytes read so
)

// ErrNotFile means that a path names a directory, a FIFO or a device.
var ErrNotFile = errors.New("not a regular file")

// A sourceFile is a file being read.
type sourceFile struct {
	path string
	info fs.FileInfo
}

// A readings counts what was read.
type readings struct {
	files     map[fileKey][]fs.FileInfo
	size      int64 // bytes
	again     int   // times that a file was read that had been before
	againSize int64 // bytes read so
	stopped   bool  // it was too much, which has been said
}

// A fileKey is what the same files have in common, and few others.
type fileKey struct {
	size int64
	time time.Time
}

// note counts one reading, and returns what is wrong with it.
func (r *readings) note(info fs.FileInfo) (wrong string) {
	k := fileKey{info.Size(), info.ModTime()}
	if slices.ContainsFunc(r.files[k], func(o fs.FileInfo) bool { return os.SameFile(o, info) }) {
		r.again++
		r.againSize += info.Size()
	} else {
		if r.files == nil {
			r.files = make(map[fileKey][]fs.FileInfo)
		}
		r.files[k] = append(r.files[k], info)
	}
	r.size += info.Size()
	switch {
	case r.again > maxAgain:
		return fmt.Sprintf("include lines read files again more than %d times", maxAgain)
	case r.againSize > maxAgainSize:
		return fmt.Sprintf("include lines read files again, more than %d bytes", maxAgainSize)
	case r.size > maxFileSize:
		return fmt.Sprintf("all files together are larger than %d bytes", maxFileSize)
	}
	return ""
}

// Load reads the routes.conf at path and the files that it includes. Resolve
// has to be called if a port of the result has AddrKernel.
//
// The error is an Errors if the files were read and are wrong, and an
// *fs.PathError if the file at path cannot be read (EX_NOINPUT of sysexits(3));
// a file included that cannot be read is an error of the line that includes it.
func Load(path string) (*Config, error) { return LoadContext(context.Background(), path) }

// LoadContext is Load until ctx is done: then its error is that of ctx.
func LoadContext(ctx context.Context, path string) (*Config, error) {
	p := newParser()
	p.ctx = ctx
	src, info, err := readFile(path)
	if err != nil {
		return nil, err
	}
	p.files = []sourceFile{{path, info}}
	p.read.note(info)
	p.text(path, src)
	p.warnWritable(syntax.At(p.file, 1, 1), path, info)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return p.finish()
}

// readFile returns the text of a regular file. The error is an *fs.PathError.
func readFile(path string) (string, fs.FileInfo, error) {
	fail := func(err error) (string, fs.FileInfo, error) {
		return "", nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	// Before opening it, for opening a FIFO waits for a writer.
	info, err := os.Stat(path)
	if err != nil {
		return "", nil, err
	}
	if !info.Mode().IsRegular() {
		return fail(fmt.Errorf("%s: %w", fileType(info.Mode()), ErrNotFile))
	}
	if info.Size() > maxFileSize {
		return fail(fmt.Errorf("larger than %d bytes", maxFileSize))
	}
	f, err := os.Open(path)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	var b strings.Builder
	b.Grow(int(info.Size()))
	if _, err := io.Copy(&b, f); err != nil {
		return fail(err)
	}
	return b.String(), info, nil
}

// fileType names what is not a regular file.
func fileType(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

// warnWritable warns of a file that everyone may change.
func (p *parser) warnWritable(at Pos, path string, info fs.FileInfo) {
	if info.Mode().Perm()&0o002 != 0 {
		p.cfg.Warnings = append(p.cfg.Warnings, Error{Pos: at, Msg: fmt.Sprintf("%s is writable by everyone: chmod o-w", syntax.Quote(path))})
	}
}

// include reads: include PATTERN. Relative patterns start from the folder of
// the file that they stand in; the files that match are read in sorted order,
// those whose names begin with a dot only if the pattern says so, as in sh(1).
func (p *parser) include() {
	if _, ok := p.argument(1, "a path"); !ok || !p.rest(2) {
		return
	}
	pattern := p.words[1].s
	if p.files == nil {
		p.fail(1, "include is possible only in a file")
		return
	}
	if len(p.files) > maxDepth {
		p.fail(1, fmt.Sprintf("include lines go deeper than %d files", maxDepth))
		return
	}
	dir := filepath.Dir(p.files[len(p.files)-1].path)
	var paths []string
	if strings.ContainsAny(pattern, `*?[\`) {
		full := pattern
		if !filepath.IsAbs(pattern) {
			full = filepath.Join(globQuoter.Replace(dir), pattern)
		}
		var err error
		if paths, err = filepath.Glob(full); err != nil {
			p.fail(1, fmt.Sprintf("%s is not a pattern", syntax.Quote(pattern)))
			return
		}
		if !strings.HasPrefix(filepath.Base(pattern), ".") {
			paths = slices.DeleteFunc(paths, func(s string) bool { return strings.HasPrefix(filepath.Base(s), ".") })
		}
		slices.Sort(paths)
		if len(paths) == 0 {
			p.warn(p.words[1].col, fmt.Sprintf("no file matches %s", syntax.Quote(pattern)))
		}
	} else if filepath.IsAbs(pattern) {
		paths = []string{pattern}
	} else {
		paths = []string{filepath.Join(dir, pattern)}
	}
	at := p.at(p.words[1].col)
	for _, path := range paths {
		p.includeFile(at, path)
	}
}

// globQuoter takes their meaning from the special characters of a pattern.
var globQuoter = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`)

// includeFile reads the file at path for the include line at a place.
func (p *parser) includeFile(at Pos, path string) {
	if p.read.stopped || p.ctx.Err() != nil {
		return
	}
	if info, err := os.Stat(path); err == nil { // before reading what may be large
		for _, f := range p.files {
			if os.SameFile(f.info, info) {
				p.errs = append(p.errs, Error{Pos: at, Msg: fmt.Sprintf("include loop: %s is being read", syntax.Quote(path))})
				return
			}
		}
	}
	src, info, err := readFile(path)
	if err != nil {
		p.errs = append(p.errs, Error{Pos: at, Msg: "include: " + err.Error()})
		return
	}
	if wrong := p.read.note(info); wrong != "" {
		p.errs = append(p.errs, Error{Pos: at, Msg: fmt.Sprintf("%s: %s is too much", wrong, syntax.Quote(path))})
		p.read.stopped = true
		return
	}
	p.warnWritable(at, path, info)
	file, line := p.file, p.line
	p.files = append(p.files, sourceFile{path, info})
	p.text(path, src)
	p.files = p.files[:len(p.files)-1]
	p.file, p.line = file, line
}
