package nic

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
)

// Taken are the settings of interfaces that this process has changed. Its methods may
// be called from any goroutine.
type Taken struct {
	sys System

	mu    sync.Mutex
	ports []*taken
}

// A taken is one interface of Taken.
type taken struct {
	purpose Purpose
	file    *file
	rec     record
	member  io.Closer // nil if none
	change  Change
}

// A Change is what was done to the settings of one interface.
type Change struct {
	Name string
	Set  []Setting // changed, with the values that they have now
	Stay []Setting // in the way, but they could not be changed, or are kept
	Err  error     // why settings could not be changed
	Left []Setting // found changed by an nmfwd that did not give them back, with the values to give back
	Lost []Setting // changed, but they have other values now, with the values wanted
}

// Take makes the interfaces fit their purposes. Files of settings are in folder
// dir, or in the system's place if that is empty. On an error nothing stays
// changed.
//
// A file that a killed process left behind keeps the values to give back: those
// that it changed are never taken for what was there at first.
func Take(sys System, dir string, purposes []Purpose) (_ *Taken, err error) {
	t := &Taken{sys: sys}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Close())
		}
	}()
	for i := range purposes {
		if err := t.take(dir, &purposes[i]); err != nil {
			return nil, fmt.Errorf("port %s: %w", purposes[i].Name, err)
		}
	}
	return t, nil
}

func (t *Taken) take(dir string, p *Purpose) error {
	in, err := t.sys.Info(p.Name)
	if err != nil {
		return err
	}
	f, old, err := openFile(path(t.sys, dir, p.Name), true)
	if err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	k := &taken{purpose: *p, file: f, rec: record{name: p.Name, pid: os.Getpid(), mac: in.MAC, index: in.Index}, change: Change{Name: p.Name}}
	t.ports = append(t.ports, k)
	if old != nil && old.same(&in) {
		k.rec.settings, k.change.Left = old.settings, slices.Clone(old.settings)
	}
	return t.set(k, &in)
}

// set makes the interface in, as it is, fit the purpose of k, and writes down before
// what it had, but for settings that are written down already.
func (t *Taken) set(k *taken, in *Info) error {
	plan := k.purpose.Plan(in)
	known := len(k.rec.settings)
	for _, s := range plan.Set {
		if find(k.rec.settings, s.Name) < 0 {
			k.rec.settings = append(k.rec.settings, Setting{Name: s.Name, Kind: s.Kind, On: !s.On})
		}
	}
	if err := k.file.write(&k.rec); err != nil {
		k.rec.settings = k.rec.settings[:known] // nothing was changed
		return fmt.Errorf("settings: %w", err)
	}
	k.change.Set, k.change.Stay, k.change.Err = slices.Clone(k.change.Set), plan.Stay, nil
	if len(plan.Set) > 0 {
		k.change.Err = t.sys.Set(in.Name, plan.Set)
		now, err := t.sys.Info(in.Name)
		if err != nil {
			return err
		}
		for _, s := range plan.Set {
			if i := find(k.change.Set, s.Name); i >= 0 {
				k.change.Set = slices.Delete(k.change.Set, i, i+1)
			}
			switch i := find(now.Settings, s.Name); {
			case i >= 0 && now.Settings[i].On == s.On:
				k.change.Set = append(k.change.Set, s)
			case i >= 0:
				k.change.Stay = append(k.change.Stay, now.Settings[i])
			}
		}
	}
	var member io.Closer
	if !plan.Filter.empty() {
		var err error
		if member, err = t.sys.Listen(in.Name, plan.Filter); err != nil {
			return err
		}
	}
	old := k.member
	k.member = member
	if old != nil {
		return old.Close()
	}
	return nil
}

// find returns the index of the setting called name, -1 for none.
func find(s []Setting, name string) int {
	return slices.IndexFunc(s, func(o Setting) bool { return o.Name == name })
}

// Again makes the interface called name fit its purpose once more: a card that was
// reset or taken out has lost what was set, and one that came back may be another.
// What it had at first is what it gets back at the end, if it is the same card. The
// change is what holds after that, also with an error.
func (t *Taken) Again(name string) (Change, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.port(name)
	if k == nil {
		return Change{Name: name}, nil
	}
	in, err := t.sys.Info(name)
	if err == nil {
		if !k.rec.same(&in) && !bytes.Equal(k.rec.mac, in.MAC) { // another card
			k.rec.settings, k.change.Set, k.change.Left = nil, nil, nil
		}
		k.rec.mac, k.rec.index = in.MAC, in.Index
		err = t.set(k, &in)
	}
	if err != nil {
		err = fmt.Errorf("port %s: %w", name, err)
	}
	return t.now(k), err
}

func (t *Taken) port(name string) *taken {
	for _, k := range t.ports {
		if k.purpose.Name == name {
			return k
		}
	}
	return nil
}

// Now returns the change of the interface called name as the system has it: what was
// set and is not so any more is lost. Where the interface is gone nothing is set.
func (t *Taken) Now(name string) Change {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := t.port(name); k != nil {
		return t.now(k)
	}
	return Change{Name: name}
}

func (t *Taken) now(k *taken) Change {
	c := k.change
	in, err := t.sys.Info(c.Name)
	if err != nil {
		c.Set, c.Err = nil, err
		return c
	}
	c.Set = nil
	for _, s := range k.change.Set {
		if i := find(in.Settings, s.Name); i >= 0 && in.Settings[i].On == s.On {
			c.Set = append(c.Set, s)
		} else {
			c.Lost = append(c.Lost, s)
		}
	}
	return c
}

// Changes returns what was done, in the order of the purposes.
func (t *Taken) Changes() []Change {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := make([]Change, len(t.ports))
	for i, k := range t.ports {
		c[i] = k.change
	}
	return c
}

// Close gives back what was there before, in reverse order. What cannot be given
// back stays in its file, for Restore.
func (t *Taken) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, k := range slices.Backward(t.ports) {
		if k.member != nil {
			errs = append(errs, k.member.Close())
		}
		if _, err := giveBack(t.sys, k.file, &k.rec); err != nil {
			errs = append(errs, fmt.Errorf("port %s: %w", k.rec.name, err))
		}
	}
	t.ports = nil
	return errors.Join(errs...)
}

// giveBack restores what r says, last change first, and removes the file. It
// returns the settings that were not so already. An interface that is gone has
// nothing to restore.
func giveBack(sys System, f *file, r *record) ([]Setting, error) {
	set, err := restore(sys, r)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("restore settings (they are in %s): %w", f.path, err), f.close())
	}
	return set, f.remove()
}

func restore(sys System, r *record) ([]Setting, error) {
	name, err := sys.Name(r.index) // it may have another one now
	if err != nil {
		return nil, err
	}
	in, err := sys.Info(name)
	if err != nil || !r.same(&in) {
		return nil, err
	}
	var set []Setting
	for _, s := range slices.Backward(r.settings) {
		i := find(in.Settings, s.Name)
		if i >= 0 && in.Settings[i].On != s.On {
			s.Kind = in.Settings[i].Kind
			set = append(set, s)
		}
	}
	if len(set) == 0 {
		return nil, nil
	}
	return set, sys.Set(name, set)
}

// Restore gives an interface the settings that it had before an nmfwd changed
// them that did not end as it should. It returns those that were not so already.
// The error wraps fs.ErrNotExist when no nmfwd has left any, and ErrBusy while
// one runs.
func Restore(sys System, dir, name string) ([]Setting, error) {
	f, r, err := openFile(path(sys, dir, name), false)
	if err != nil {
		return nil, fmt.Errorf("port %s: %w", name, err)
	}
	if r == nil {
		return nil, f.remove()
	}
	set, err := giveBack(sys, f, r)
	if err != nil {
		return nil, fmt.Errorf("port %s: %w", name, err)
	}
	return set, nil
}

// Left returns the settings that an nmfwd has left changed on the interface in,
// with the values to give back, or none. It changes nothing. The error wraps
// ErrBusy while that nmfwd runs.
func Left(sys System, dir string, in *Info) ([]Setting, error) {
	f, r, err := openFile(path(sys, dir, in.Name), false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := f.close(); err != nil || r == nil || !r.same(in) {
		return nil, err
	}
	return r.settings, nil
}
