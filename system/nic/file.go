package nic

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"nmfwd/system/lock"
)

// A record is what a file of settings says: which interface had which settings
// before they were changed.
type record struct {
	name     string
	pid      int // of the process that changed them
	mac      net.HardwareAddr
	index    int
	settings []Setting // Name and On
}

// same reports whether r is about the interface in: not about an earlier one.
// Systems use an index again, and let one of name and address be changed.
func (r *record) same(in *Info) bool {
	return r.index == in.Index && (r.name == in.Name || bytes.Equal(r.mac, in.MAC))
}

const (
	fileHeader = "nmfwd settings 1"
	maxFile    = 1 << 16
)

// text returns r as it is in a file.
func (r *record) text() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\n# What %s had before nmfwd changed it; \"nmfwd restore %s\" gives it back.\n", fileHeader, r.name, r.name)
	fmt.Fprintf(&b, "port %s\npid %d\ndevice %d %s\n", r.name, r.pid, r.index, r.mac)
	for _, s := range r.settings {
		fmt.Fprintf(&b, "set %s %s\n", s.Name, onOff(s.On))
	}
	return b.Bytes()
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// parseRecord reads what text wrote. Nothing but what it can have written is
// accepted: root acts on it.
func parseRecord(data []byte) (*record, error) {
	r := &record{}
	seen := map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		fail := func() (*record, error) {
			return nil, fmt.Errorf("line %d: %q is no line of a file of settings", n, line)
		}
		if n == 1 {
			if line != fileHeader {
				return fail()
			}
			continue
		}
		w := strings.Split(line, " ")
		key := w[0]
		if key == "set" && len(w) == 3 {
			key = "set " + w[1]
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		if seen[key] {
			return fail()
		}
		seen[key] = true
		var err error
		switch {
		case w[0] == "port" && len(w) == 2 && w[1] != "":
			r.name = w[1]
		case w[0] == "pid" && len(w) == 2:
			r.pid, err = strconv.Atoi(w[1])
		case w[0] == "device" && len(w) == 3:
			if r.index, err = strconv.Atoi(w[1]); err == nil && w[2] != "" {
				r.mac, err = net.ParseMAC(w[2])
			}
		case w[0] == "set" && len(w) == 3 && isName(w[1]) && (w[2] == "on" || w[2] == "off"):
			r.settings = append(r.settings, Setting{Name: w[1], On: w[2] == "on"})
		default:
			return fail()
		}
		if err != nil {
			return fail()
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	for _, key := range []string{"port", "pid", "device"} {
		if !seen[key] {
			return nil, fmt.Errorf("no line %q: the file was cut", key)
		}
	}
	return r, nil
}

// isName reports whether s can be the name of a setting.
func isName(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
}

// path returns the name of the file with the settings of the interface called
// name, in folder dir or, if that is empty, the system's place for such files.
func path(sys System, dir, name string) string {
	if dir == "" {
		dir = lock.Dir()
	}
	base := "nmfwd-" + url.PathEscape(name)
	if s := sys.Space(); s != "" {
		base += "@" + s
	}
	return filepath.Join(dir, base+".settings")
}

// A file is an open and locked file of settings.
type file struct {
	path string
	f    *os.File
}

// openFile opens and locks the file called path. It makes one if there is none
// and create says so. The record is nil if nothing is in it yet.
//
// Who replaces the file locks the new one first, and who removes it holds its
// lock: so the one under the name, once locked, is the only one that counts.
func openFile(path string, create bool) (*file, *record, error) {
	for {
		f, err := lock.Open(path, create)
		if errors.Is(err, lock.ErrHeld) {
			data, _ := readAll(f)
			f.Close()
			if r, err := parseRecord(data); err == nil {
				return nil, nil, fmt.Errorf("%w (pid %d, file %s)", ErrBusy, r.pid, path)
			}
			return nil, nil, fmt.Errorf("%w (file %s)", ErrBusy, path)
		}
		if err != nil {
			return nil, nil, err
		}
		have, err := f.Stat()
		if err == nil {
			var now os.FileInfo
			if now, err = os.Lstat(path); errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(have, now) {
				f.Close()
				continue
			}
		}
		var data []byte
		if err == nil {
			err = trusted(have)
		}
		if err == nil {
			data, err = readAll(f)
		}
		if err != nil {
			f.Close()
			return nil, nil, fmt.Errorf("%s: %w", path, err)
		}
		if len(data) == 0 {
			return &file{path, f}, nil, nil
		}
		r, err := parseRecord(data)
		if err != nil {
			f.Close()
			return nil, nil, fmt.Errorf("%s: %w: remove it once the settings are as they should be", path, err)
		}
		return &file{path, f}, r, nil
	}
}

func readAll(f *os.File) ([]byte, error) {
	b := make([]byte, maxFile+1)
	n, err := f.ReadAt(b, 0)
	if n > maxFile {
		return nil, fmt.Errorf("more than %d bytes", maxFile)
	}
	if n > 0 || errors.Is(err, io.EOF) {
		return b[:n], nil
	}
	return nil, err
}

// write replaces what is in the file, all or nothing.
func (f *file) write(r *record) error {
	next := f.path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	n, err := lock.Create(next)
	if err != nil {
		return err
	}
	if _, err = n.Write(r.text()); err == nil {
		if err = n.Sync(); err == nil {
			err = os.Rename(next, f.path)
		}
	}
	if err != nil {
		n.Close()
		return errors.Join(err, os.Remove(next))
	}
	err = f.f.Close()
	f.f = n
	return err
}

// remove removes the file and gives up its lock.
func (f *file) remove() error { return errors.Join(os.Remove(f.path), f.f.Close()) }

// close gives up the lock and leaves the file.
func (f *file) close() error { return f.f.Close() }
