package fib

import "unsafe"

// addressOf returns where w lies.
func addressOf(w []uint32) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(w))) }
