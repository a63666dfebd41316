package lock_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"nmfwd/system/lock"
)

func TestLock(t *testing.T) {
	p := filepath.Join(t.TempDir(), "f")
	if _, err := lock.Open(p, false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want %v", err, fs.ErrNotExist)
	}
	f, err := lock.Open(p, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("mine"); err != nil {
		t.Fatal(err)
	}
	g, err := lock.Open(p, true)
	if !errors.Is(err, lock.ErrHeld) {
		t.Fatalf("got %v, want %v", err, lock.ErrHeld)
	}
	b := make([]byte, 8)
	if n, _ := g.Read(b); string(b[:n]) != "mine" {
		t.Errorf("read %q from a file that another has", b[:n])
	}
	g.Close()
	if _, err := lock.Create(p); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v, want %v", err, fs.ErrExist)
	}
	f.Close()
	if f, err = lock.Open(p, false); err != nil {
		t.Fatal(err)
	}
	f.Close()
	link := p + ".link"
	if err := os.Symlink(p, link); err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Open(link, true); err == nil {
		t.Error("a symbolic link was followed")
	}
}
