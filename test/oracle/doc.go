// Package oracle compares nmfwd with the kernel's own forwarding: two routers that
// are alike in all but who forwards get the same commands and the same frames, and
// the same frames must leave them. What may differ is a list, with reasons, in
// docs/oracle.md and in the tests, which show each entry.
package oracle
