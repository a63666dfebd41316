// Package kernel holds the integration tests of nmfwd between kernels: the end
// hosts are real network stacks, and so is what the router's ports keep for the
// host. They need root and Linux: go test -tags integration ./test/kernel.
package kernel
