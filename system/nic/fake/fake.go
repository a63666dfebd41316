// Package fake is a system of network interfaces that are made up, so that what
// changes their settings can be tested anywhere.
package fake

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"nmfwd/system/nic"
)

// System is a nic.System. It is not safe for use by several goroutines.
type System struct {
	Interfaces []nic.Info // whose Settings and Up may be changed at any time

	// Calls are the changes that were made, in order, such as
	// "igb1: -txcsum -tso4 promisc", "igb1: listen allmulti" and "igb1: silent".
	Calls []string

	// Refuse, if set, is asked before each change of a setting: an error makes
	// the whole request fail.
	Refuse func(name string, s nic.Setting) error

	// Stuck are names of settings that never change, without an error.
	Stuck []string
}

func (s *System) find(name string) (*nic.Info, error) {
	for i := range s.Interfaces {
		if s.Interfaces[i].Name == name {
			return &s.Interfaces[i], nil
		}
	}
	return nil, fmt.Errorf("fake: %s: there is no such interface: %w", name, fs.ErrNotExist)
}

// Info implements nic.System.
func (s *System) Info(name string) (nic.Info, error) {
	i, err := s.find(name)
	if err != nil {
		return nic.Info{}, err
	}
	in := *i
	in.Settings = slices.Clone(i.Settings)
	return in, nil
}

// Set implements nic.System.
func (s *System) Set(name string, set []nic.Setting) error {
	i, err := s.find(name)
	if err != nil {
		return err
	}
	var words []string
	for _, x := range set {
		if s.Refuse != nil {
			if err := s.Refuse(name, x); err != nil {
				return err
			}
		}
		word := x.Name
		if !x.On {
			word = "-" + word
		}
		words = append(words, word)
	}
	s.Calls = append(s.Calls, name+": "+strings.Join(words, " "))
	for _, x := range set {
		k := slices.IndexFunc(i.Settings, func(o nic.Setting) bool { return o.Name == x.Name })
		if k < 0 || i.Settings[k].Fixed {
			return fmt.Errorf("fake: %s: %s cannot be changed", name, x.Name)
		}
		if !slices.Contains(s.Stuck, x.Name) {
			i.Settings[k].On = x.On
		}
	}
	return nil
}

// Listen implements nic.System.
func (s *System) Listen(name string, f nic.Filter) (io.Closer, error) {
	if _, err := s.find(name); err != nil {
		return nil, err
	}
	words := []string{name + ": listen"}
	if f.AllMulticast {
		words = append(words, "allmulti")
	}
	if f.Promiscuous {
		words = append(words, "promisc")
	}
	for _, m := range f.MACs {
		words = append(words, m.String())
	}
	s.Calls = append(s.Calls, strings.Join(words, " "))
	return member{s, name}, nil
}

type member struct {
	s    *System
	name string
}

func (m member) Close() error {
	m.s.Calls = append(m.s.Calls, m.name+": silent")
	return nil
}

// Name implements nic.System.
func (s *System) Name(index int) (string, error) {
	for _, i := range s.Interfaces {
		if i.Index == index {
			return i.Name, nil
		}
	}
	return "", fmt.Errorf("fake: interface %d: %w", index, fs.ErrNotExist)
}

// Space implements nic.System.
func (s *System) Space() string { return "" }

// Close implements nic.System.
func (s *System) Close() error { return nil }

// ErrRefused is an error for Refuse.
var ErrRefused = errors.New("refused")

// FreeBSD returns the settings of a card of FreeBSD that has all that this
// package knows, as a fresh system sets them up.
func FreeBSD() []nic.Setting {
	return []nic.Setting{
		{Name: "rxcsum", Kind: nic.RXChecksum, On: true},
		{Name: "txcsum", Kind: nic.TXChecksum, On: true},
		{Name: "rxcsum6", Kind: nic.RXChecksum, On: true},
		{Name: "txcsum6", Kind: nic.TXChecksum, On: true},
		{Name: "tso4", Kind: nic.Segmentation, On: true},
		{Name: "tso6", Kind: nic.Segmentation, On: true},
		{Name: "lro", Kind: nic.Merge, On: true},
		{Name: "vlanhwtag", Kind: nic.VLANStrip, On: true},
		{Name: "vlanhwcsum", Kind: nic.TXChecksum, On: true},
		{Name: "vlanhwtso", Kind: nic.Segmentation, On: true},
		{Name: "vlanhwfilter", Kind: nic.VLANFilter, On: true},
		{Name: "promisc", Kind: nic.Promiscuous},
	}
}

// Linux returns the settings of a card of Linux, as a fresh system sets them up.
func Linux() []nic.Setting {
	return []nic.Setting{
		{Name: "tx-checksum-ipv4", Kind: nic.TXChecksum, Fixed: true},
		{Name: "tx-checksum-ip-generic", Kind: nic.TXChecksum, On: true},
		{Name: "tx-vlan-hw-insert", Kind: nic.VLANInsert, On: true},
		{Name: "rx-vlan-hw-parse", Kind: nic.VLANStrip, On: true},
		{Name: "rx-vlan-filter", Kind: nic.VLANFilter, On: true},
		{Name: "tx-generic-segmentation", Kind: nic.Segmentation, On: true},
		{Name: "rx-gro", Kind: nic.Merge, On: true},
		{Name: "tx-tcp-segmentation", Kind: nic.Segmentation, On: true},
		{Name: "tx-tcp6-segmentation", Kind: nic.Segmentation, On: true},
		{Name: "rx-checksum", Kind: nic.RXChecksum, On: true},
	}
}
