package memport

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParsePcap(t *testing.T) {
	tests := []struct{ in, name, rx, tx, err string }{
		{"igb1=in.pcap:out.pcap", "igb1", "in.pcap", "out.pcap", ""},
		{"igb1=in.pcap", "igb1", "in.pcap", "", ""},
		{"igb1=in.pcap:", "igb1", "in.pcap", "", ""},
		{"igb2=:out.pcap", "igb2", "", "out.pcap", ""},
		{"igb2=-:out.pcap", "igb2", "-", "out.pcap", ""},
		{"vale0:p1=a:b", "vale0:p1", "a", "b", ""},
		{"igb1", "", "", "", "want PORT=IN"},
		{"=a:b", "", "", "", "want PORT=IN"},
		{"igb1=", "", "", "", "neither"},
		{"igb1=-:-", "", "", "", "neither"},
		{"igb1=a:b:c", "", "", "", "colon"},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			p, err := ParsePcap(tt.in)
			if got := (p); got != (Pcap{tt.name, tt.rx, tt.tx}) {
				t.Errorf("got %q", got)
			}
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
		})
	}
}

func TestDistinct(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"a", "b", "folder/c", "far/folder/d"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"soft": "a", "softly": "soft", "dangling": "o", "folder/dangling": "../o", "to": "folder", "away": "far/folder", "loop": "loop"} {
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link("a", "hard"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		p1, p2 Pcap
		want   string // of the error, "" for none
	}{
		{"different files", Pcap{In: "a", Out: "o"}, Pcap{In: "b", Out: "p"}, ""},
		{"one input for both", Pcap{In: "a", Out: "o"}, Pcap{In: "a", Out: "p"}, ""},
		{"none", Pcap{In: "-", Out: "-"}, Pcap{In: "-", Out: ""}, ""},
		{"devices", Pcap{In: "a", Out: os.DevNull}, Pcap{In: os.DevNull, Out: os.DevNull}, ""},
		{"equal names in two folders", Pcap{Out: "folder/new"}, Pcap{Out: "new"}, ""},
		{"a folder above that a link leads elsewhere", Pcap{In: "a"}, Pcap{Out: "away/../a"}, ""},
		{"own input", Pcap{}, Pcap{In: "a", Out: "a"}, "port p2: a: cannot read and write the same file"},
		{"an output is a later input", Pcap{In: "a", Out: "b"}, Pcap{In: "b", Out: "o"}, "port p1: b: already used by port p2, which reads it"},
		{"an output is an earlier input", Pcap{In: "a"}, Pcap{In: "b", Out: "a"}, "port p2: a: already used by port p1, which reads it"},
		{"one output for both", Pcap{Out: "o"}, Pcap{Out: "o"}, "port p2: o: already used by port p1, which writes it"},
		{"an output that is there for both", Pcap{Out: "a"}, Pcap{Out: "a"}, "which writes it"},
		{"other spelling", Pcap{In: "a"}, Pcap{Out: "./folder//../a"}, "which reads it"},
		{"absolute name", Pcap{In: "a"}, Pcap{Out: filepath.Join(here, "a")}, "which reads it"},
		{"hard link", Pcap{In: "a"}, Pcap{Out: "hard"}, "which reads it"},
		{"symbolic link", Pcap{In: "a"}, Pcap{Out: "softly"}, "which reads it"},
		{"input by a symbolic link", Pcap{In: "softly"}, Pcap{Out: "a"}, "which reads it"},
		{"folder by a symbolic link", Pcap{In: "folder/c"}, Pcap{Out: "to/c"}, "which reads it"},
		{"outputs that are not there, other spelling", Pcap{Out: "o"}, Pcap{Out: "folder/../o"}, "which writes it"},
		{"outputs that are not there, by a link", Pcap{Out: "o"}, Pcap{Out: "dangling"}, "which writes it"},
		{"outputs that are not there, by a link of another folder", Pcap{Out: "o"}, Pcap{Out: "to/dangling"}, "which writes it"},
		{"an input that an output would make", Pcap{In: "o"}, Pcap{Out: "o"}, "which reads it"},
		{"links in a circle", Pcap{In: "loop"}, Pcap{Out: "loop"}, ""},
		{"no such folder", Pcap{Out: "none/o"}, Pcap{Out: "none/o"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.p1.Port, tt.p2.Port = "p1", "p2"
			err := Distinct([]Pcap{tt.p1, tt.p2})
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got error %v, want %q", err, tt.want)
			}
		})
	}
}
