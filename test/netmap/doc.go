// Package netmap tests the netmap backend on a real kernel: with VALE ports and
// pipes, which need no card, and with the pairs of ports named in
// NMFWD_TEST_PORTS ("eth0 eth1" or "igb0,igb1,igb2,igb3"), each joined by a cable or
// hub: where the first is not, the tests that need it are skipped. Conformance cases
// in which two links go down need two pairs, which must not meet. Cards that are
// down are taken up. In a guest with little memory netmap's has to be made smaller before
// (dev.netmap.buf_num and its like on FreeBSD).
//
// The tests carry the build tag netmap and need /dev/netmap, where they fail
// instead of being skipped. The test binary is static, so that it runs in a
// guest that has nothing else:
//
//	CGO_ENABLED=0 go test -c -tags netmap -o netmap.test ./test/netmap
//
// TestRate measures nmfwd beside netmap's program bridge where that is in PATH or
// beside the test binary: packets per second, and time on the CPU per packet. To
// have it in a guest, a runner copies it to the directory that it is given:
//
//	gcc -static -O2 -I sys -I apps/include -I libnetmap -o bridge apps/bridge/bridge.c libnetmap/*.c -lpthread
//
// With ICOUNT=1 it tells instructions, on a machine whose clock counts them:
// qemu-system with one CPU, -accel tcg,thread=single and -icount
// shift=0,sleep=off. With SOAK=1 the long forms run.
package netmap
