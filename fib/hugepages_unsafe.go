package fib

import "unsafe"

// toHugePage returns how many words of w are before the start of a huge page.
func toHugePage(w []uint32) int {
	return int(-uintptr(unsafe.Pointer(unsafe.SliceData(w)))%hugeSize) / wordSize
}

// bytesOf returns the bytes of w.
func bytesOf(w []uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), len(w)*wordSize)
}
