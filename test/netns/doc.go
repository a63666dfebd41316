// Package netns makes the networks in which nmfwd is tested: network namespaces
// joined by veth pairs, with addresses, routes, neighbors and offloads.
//
// The namespaces have no names. What holds one is a thread of this process, the
// processes started in it and open sockets, so the kernel removes it with all
// its ports when they end, whatever ends them: nothing is left after a kill -9,
// and runs beside each other never meet.
package netns
