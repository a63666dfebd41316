//go:build !linux

package main

import (
	"errors"
	"fmt"
	"os"
)

func main() {
	err := fmt.Errorf("lab: network namespaces are of Linux only; examples/apu2 tells how to run the lab on real machines: %w", errors.ErrUnsupported)
	fmt.Fprintln(os.Stderr, err)
	os.Exit(exUnavailable)
}
