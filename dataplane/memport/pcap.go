package memport

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A Pcap says which files take the place of a port. In or Out may be empty or "-",
// for none.
type Pcap struct{ Port, In, Out string }

// ParsePcap reads the value of a --pcap flag, PORT=IN:OUT.
func ParsePcap(s string) (p Pcap, err error) {
	port, files, ok := strings.Cut(s, "=")
	if !ok || port == "" {
		return p, errors.New("want PORT=IN.pcap:OUT.pcap")
	}
	in, out, _ := strings.Cut(files, ":")
	if strings.Contains(out, ":") {
		return p, errors.New("more than two files, or a colon in a file name")
	}
	if none(in) && none(out) {
		return p, errors.New("neither a capture to read nor one to write")
	}
	return Pcap{port, in, out}, nil
}

func none(file string) bool { return file == "" || file == "-" }

// Distinct returns an error if a file that is to be written is also to be read, or
// to be written for another port: creating it would destroy what the other needs.
// Links and other names of a file are that file. Nothing is opened.
func Distinct(pcaps []Pcap) error {
	for i, p := range pcaps {
		if SameFile(p.In, p.Out) {
			return fmt.Errorf("port %s: %s: cannot read and write the same file", p.Port, p.Out)
		}
		for j, o := range pcaps {
			switch {
			case i != j && SameFile(o.In, p.Out):
				return fmt.Errorf("port %s: %s: already used by port %s, which reads it", p.Port, p.Out, o.Port)
			case i > j && SameFile(o.Out, p.Out):
				return fmt.Errorf("port %s: %s: already used by port %s, which writes it", p.Port, p.Out, o.Port)
			}
		}
	}
	return nil
}

// SameFile reports whether two names, which may be empty or "-" for none, are of
// one regular file, or would be once it is created. Devices and pipes can be
// several things at once.
func SameFile(a, b string) bool {
	p, ok := placeOf(a)
	if !ok {
		return false
	}
	q, ok := placeOf(b)
	return ok && p.base == q.base && os.SameFile(p.at, q.at)
}

// A place is where a regular file is: itself, or the folder that it will be
// created in and its name there.
type place struct {
	at   os.FileInfo
	base string
}

// maxLinks is how many symbolic links lead to a file that is not there, at most.
const maxLinks = 40

func placeOf(name string) (place, bool) {
	if none(name) {
		return place{}, false
	}
	for range maxLinks {
		st, err := os.Stat(name)
		if err == nil {
			return place{at: st}, st.Mode().IsRegular()
		}
		dir, base := filepath.Split(name) // keeps x/.., which x as a link may lead elsewhere
		if to, err := os.Readlink(name); err == nil {
			if name = to; !filepath.IsAbs(to) {
				name = dir + to
			}
			continue
		}
		if dir == "" {
			dir = "."
		}
		st, err = os.Stat(dir)
		return place{st, base}, err == nil
	}
	return place{}, false
}
