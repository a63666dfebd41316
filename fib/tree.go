package fib

import (
	"github.com/kentik/patricia"
	"github.com/kentik/patricia/uint32_tree"
)

// A tree is a patricia tree over the prefixes of one family. The value of a
// prefix is the number of its preferred route.
type tree interface {
	set(k key, n uint32)
	remove(k key)
	deepest(k key) (n uint32, ok bool)
	covering(to []uint32, k key) []uint32 // shortest first
}

type tree4 struct{ t *uint32_tree.TreeV4 }

func addr4(k key) patricia.IPv4Address {
	return patricia.NewIPv4Address(uint32(k.hi>>32), uint(k.len))
}

func matchAll(uint32, uint32) bool { return true }

func (t tree4) set(k key, n uint32) { t.t.Set(addr4(k), n) }
func (t tree4) remove(k key)        { t.t.Delete(addr4(k), matchAll, 0) }

func (t tree4) deepest(k key) (uint32, bool) {
	ok, n := t.t.FindDeepestTag(addr4(k))
	return n, ok
}

func (t tree4) covering(to []uint32, k key) []uint32 { return t.t.FindTagsAppend(to, addr4(k)) }

type tree6 struct{ t *uint32_tree.TreeV6 }

func addr6(k key) patricia.IPv6Address {
	return patricia.IPv6Address{Left: k.hi, Right: k.lo, Length: uint(k.len)}
}

func (t tree6) set(k key, n uint32) { t.t.Set(addr6(k), n) }
func (t tree6) remove(k key)        { t.t.Delete(addr6(k), matchAll, 0) }

func (t tree6) deepest(k key) (uint32, bool) {
	ok, n := t.t.FindDeepestTag(addr6(k))
	return n, ok
}

func (t tree6) covering(to []uint32, k key) []uint32 { return t.t.FindTagsAppend(to, addr6(k)) }
