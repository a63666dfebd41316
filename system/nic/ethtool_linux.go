package nic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Lengths and numbers of linux/ethtool.h.
const (
	gstringLen   = 32 // ETH_GSTRING_LEN
	ssFeatures   = 4  // ETH_SS_FEATURES
	mostFeatures = 4096
)

var word = binary.NativeEndian

// command returns a structure of n 32-bit words that begins with cmd.
func command(cmd uint32, n int) []byte {
	b := make([]byte, 4*n)
	word.PutUint32(b, cmd)
	return b
}

func at(b []byte, i int) int { return int(int32(word.Uint32(b[4*i:]))) }

// none reports whether err means that a driver does not have what was asked for.
func none(err error) bool { return errors.Is(err, unix.EOPNOTSUPP) }

// Channels are the numbers of queues of an interface (struct ethtool_channels).
type Channels struct {
	MaxRX, MaxTX, MaxCombined int
	RX, TX, Other, Combined   int
}

// GetChannels asks for the queues of the interface called name, by a socket of
// its network namespace. A driver that cannot tell gives an error.
func GetChannels(fd int, name string) (Channels, error) {
	b := command(unix.ETHTOOL_GCHANNELS, 9)
	if err := ethtool(fd, name, b); err != nil {
		return Channels{}, err
	}
	return Channels{
		MaxRX: at(b, 1), MaxTX: at(b, 2), MaxCombined: at(b, 4),
		RX: at(b, 5), TX: at(b, 6), Other: at(b, 7), Combined: at(b, 8),
	}, nil
}

// SetChannels sets the queues in use to those of c.
func SetChannels(fd int, name string, c Channels) error {
	b := command(unix.ETHTOOL_SCHANNELS, 9)
	for i, n := range map[int]int{5: c.RX, 6: c.TX, 7: c.Other, 8: c.Combined} {
		word.PutUint32(b[4*i:], uint32(n))
	}
	return ethtool(fd, name, b)
}

// rings asks for the card's own rings (struct ethtool_ringparam).
func (s *system) rings(in *Info) {
	b := command(unix.ETHTOOL_GRINGPARAM, 9)
	if ethtool(s.fd, in.Name, b) == nil {
		in.MaxRXSlots, in.MaxTXSlots, in.RXSlots, in.TXSlots = at(b, 1), at(b, 4), at(b, 5), at(b, 8)
	}
}

// pause asks for flow control (struct ethtool_pauseparam).
func (s *system) pause(in *Info) {
	b := command(unix.ETHTOOL_GPAUSEPARAM, 4)
	if ethtool(s.fd, in.Name, b) == nil {
		in.RXPause, in.TXPause = at(b, 2) != 0, at(b, 3) != 0
	}
}

// speed asks for the speed of the link (struct ethtool_cmd, which the kernel
// fills in for drivers of newer calls too).
func (s *system) speed(in *Info) {
	b := command(unix.ETHTOOL_GSET, 11)
	if ethtool(s.fd, in.Name, b) != nil {
		return
	}
	const unknown = 0xffffffff // SPEED_UNKNOWN
	if v := uint32(word.Uint16(b[28:]))<<16 | uint32(word.Uint16(b[12:])); v != unknown && v != unknown>>16 {
		in.Speed = int(v)
	}
}

// Driver returns the name of the kernel driver of an interface, "" where it is
// unknown (struct ethtool_drvinfo).
func Driver(fd int, name string) string {
	d, err := unix.IoctlGetEthtoolDrvinfo(fd, name)
	if err != nil {
		return ""
	}
	return unix.ByteSliceToString(d.Driver[:])
}

// featureNames returns the names of the kernel's features by their bits; some
// bits have none.
func (s *system) featureNames(name string) ([]string, error) {
	b := make([]byte, 20) // struct ethtool_sset_info with room for one length
	word.PutUint32(b, unix.ETHTOOL_GSSET_INFO)
	word.PutUint64(b[8:], 1<<ssFeatures)
	if err := ethtool(s.fd, name, b); err != nil {
		return nil, err
	}
	n := at(b, 4)
	if n < 0 || n > mostFeatures {
		return nil, fmt.Errorf("%d features", n)
	}
	b = make([]byte, 12+n*gstringLen) // struct ethtool_gstrings
	word.PutUint32(b, unix.ETHTOOL_GSTRINGS)
	word.PutUint32(b[4:], ssFeatures)
	word.PutUint32(b[8:], uint32(n))
	if err := ethtool(s.fd, name, b); err != nil {
		return nil, err
	}
	names := make([]string, n)
	for i := range names {
		names[i] = unix.ByteSliceToString(b[12+i*gstringLen : 12+(i+1)*gstringLen])
	}
	return names, nil
}

// features returns the features of an interface that are settings here (struct
// ethtool_gfeatures: blocks of 32 bits, of each the words available, requested,
// active and never changed).
func (s *system) features(name string) ([]Setting, error) {
	names, err := s.featureNames(name)
	if err != nil {
		return nil, err
	}
	blocks := (len(names) + 31) / 32
	b := command(unix.ETHTOOL_GFEATURES, 2+4*blocks)
	word.PutUint32(b[4:], uint32(blocks))
	if err := ethtool(s.fd, name, b); err != nil {
		return nil, err
	}
	var set []Setting
	for i, f := range names {
		k := featureKind(f)
		if k == 0 {
			continue
		}
		has := func(w int) bool { return word.Uint32(b[4*(2+4*(i/32)+w):])>>(i%32)&1 != 0 }
		available, active, never := has(0), has(2), has(3)
		if active || available {
			set = append(set, Setting{Name: f, Kind: k, On: active, Fixed: !available || never})
		}
	}
	return set, nil
}

// setFeatures changes features (struct ethtool_sfeatures: of each block the
// words valid and requested). What the kernel then does not have as requested is
// no error: whoever wants to know reads it back.
func (s *system) setFeatures(name string, set []Setting) error {
	names, err := s.featureNames(name)
	if err != nil {
		return err
	}
	blocks := (len(names) + 31) / 32
	b := command(unix.ETHTOOL_SFEATURES, 2+2*blocks)
	word.PutUint32(b[4:], uint32(blocks))
	for _, x := range set {
		i := slices.Index(names, x.Name)
		if i < 0 {
			return fmt.Errorf("the kernel knows no feature %s", x.Name)
		}
		for w, on := range []bool{true, x.On} {
			if on {
				p := b[4*(2+2*(i/32)+w):]
				word.PutUint32(p, word.Uint32(p)|1<<(i%32))
			}
		}
	}
	return ethtool(s.fd, name, b)
}

// featureKind returns what a feature of the kernel does (the table of names is
// netdev_features_strings of net/ethtool/common.c), 0 if that is of no interest.
func featureKind(name string) Kind {
	switch name {
	case "rx-lro", "rx-gro", "rx-gro-hw":
		return Merge
	case "rx-vlan-hw-parse", "rx-vlan-stag-hw-parse":
		return VLANStrip
	case "tx-vlan-hw-insert", "tx-vlan-stag-hw-insert":
		return VLANInsert
	case "rx-vlan-filter", "rx-vlan-stag-filter":
		return VLANFilter
	case "rx-checksum":
		return RXChecksum
	}
	switch {
	case strings.HasPrefix(name, "tx-checksum-"):
		return TXChecksum
	case strings.HasPrefix(name, "tx-") && strings.HasSuffix(name, "-segmentation"):
		return Segmentation
	}
	return 0
}
