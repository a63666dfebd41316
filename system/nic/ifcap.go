package nic

// Bits of FreeBSD's net/if.h and net/if_media.h. They are the same on all
// processors and in all releases since 12.
const (
	ifmAValid   = 1          // IFM_AVALID: the status is known
	ifmActive   = 2          // IFM_ACTIVE
	ifmNMask    = 0x000000e0 // IFM_NMASK
	ifmEther    = 0x00000020 // IFM_ETHER
	ifmTMask    = 0x0000001f // IFM_TMASK
	ifmXType    = 0x00007800 // IFM_ETH_XTYPE
	ifmXShift   = 6          // IFM_ETH_XSHIFT
	ifmRXPause  = 0x00000200 // IFM_ETH_RXPAUSE
	ifmTXPause  = 0x00000400 // IFM_ETH_TXPAUSE
	iffPPromisc = 0x20000    // IFF_PPROMISC: promiscuous by the administrator's wish
)

// capabilities are the interface capabilities (IFCAP_) that may stand in the
// way, by the words of ifconfig(8).
var capabilities = []struct {
	name string
	bit  uint32
	kind Kind
}{
	{"rxcsum", 0x1, RXChecksum},           // IFCAP_RXCSUM
	{"txcsum", 0x2, TXChecksum},           // IFCAP_TXCSUM
	{"rxcsum6", 0x200000, RXChecksum},     // IFCAP_RXCSUM_IPV6
	{"txcsum6", 0x400000, TXChecksum},     // IFCAP_TXCSUM_IPV6
	{"tso4", 0x100, Segmentation},         // IFCAP_TSO4
	{"tso6", 0x200, Segmentation},         // IFCAP_TSO6
	{"lro", 0x400, Merge},                 // IFCAP_LRO
	{"vlanhwtag", 0x10, VLANStrip},        // IFCAP_VLAN_HWTAGGING
	{"vlanhwcsum", 0x80, TXChecksum},      // IFCAP_VLAN_HWCSUM
	{"vlanhwtso", 0x40000, Segmentation},  // IFCAP_VLAN_HWTSO
	{"vlanhwfilter", 0x10000, VLANFilter}, // IFCAP_VLAN_HWFILTER
}

// promisc is the word of ifconfig(8) for promiscuous mode.
const promisc = "promisc"

// capSettings returns the settings of an interface that has the capabilities in
// have, those of enabled switched on, and promiscuous mode as given.
func capSettings(have, enabled uint32, promiscuous bool) []Setting {
	var s []Setting
	for _, c := range capabilities {
		if (have|enabled)&c.bit != 0 {
			s = append(s, Setting{Name: c.name, Kind: c.kind, On: enabled&c.bit != 0, Fixed: have&c.bit == 0})
		}
	}
	return append(s, Setting{Name: promisc, Kind: Promiscuous, On: promiscuous})
}

// capBits returns enabled with the settings in s, and the settings that are none
// of its bits.
func capBits(enabled uint32, s []Setting) (_ uint32, rest []Setting) {
next:
	for _, x := range s {
		for _, c := range capabilities {
			if c.name != x.Name {
				continue
			}
			enabled &^= c.bit
			if x.On {
				enabled |= c.bit
			}
			continue next
		}
		rest = append(rest, x)
	}
	return enabled, rest
}

// mediaSpeed returns the speed in Mbit/s of the media that ifm_active names, 0
// if it is not known here.
func mediaSpeed(active uint32) int {
	if active&ifmNMask != ifmEther {
		return 0
	}
	switch active&ifmTMask | active&ifmXType>>ifmXShift {
	case 3, 4, 5, 12, 13: // IFM_10_T, _2, _5, _STP, _FL
		return 10
	case 6, 7, 8, 9, 10, 52, 62: // IFM_100_TX, _FX, _T4, _VG, _T2, IFM_100_T, IFM_100_SGMII
		return 100
	case 11, 14, 15, 16, 30, 41, 44: // IFM_1000_SX, _LX, _CX, _T, _KX, _SGMII, _CX_SGMII
		return 1000
	case 21, 36, 37, 63: // IFM_2500_SX, _KX, _T, _X
		return 2500
	case 38, 64, 69, 70: // IFM_5000_T, _KR, _KR_S, _KR1
		return 5000
	case 18, 19, 20, 22, 23, 24, 26, 32, 33, 34, 42, 46, 59: // IFM_10G_LR to IFM_10G_T, _KX4, _KR, _CR1, _SFI, _ER, _AOC
		return 10_000
	case 53, 54, 55, 58, 60, 61, 65, 66, 67, 68, 71, 86: // IFM_25G_
		return 25_000
	case 27, 28, 29, 43, 45, 72, 73, 74: // IFM_40G_
		return 40_000
	case 47, 48, 49, 50: // IFM_100G_CR4, _SR4, _KR4, _LR4
		return 100_000
	}
	return 0
}
