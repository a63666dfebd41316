// Package apu2 sets up the APU2 lab in network namespaces: what is wired as in
// examples/apu2 stands between a generator and a receiver, and forwards by nmfwd
// or by the kernel itself.
//
//	generator                     router                       receiver
//	gen0 198.18.0.203   ----   igb1 198.18.0.205
//	     2001:2::203                2001:2::205
//	                           igb2 198.19.0.205       ----   rcv0 198.19.0.203
//	                                2001:2:0:8000::205             2001:2:0:8000::203
package apu2
