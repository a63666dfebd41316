// Package netmap tests the netmap backend on a real kernel: with VALE ports and
// pipes, which need no card, and with the pair of ports named in
// NMFWD_TEST_PORTS ("eth0 eth1"), which have to be joined by a cable.
//
// The tests carry the build tag netmap and need /dev/netmap, where they fail
// instead of being skipped. The test binary is static, so that it runs in a
// guest that has nothing else:
//
//	CGO_ENABLED=0 go test -c -tags netmap -o netmap.test ./test/netmap
//
// With SOAK=1 the long forms run.
package netmap
