package dataplane_test

import (
	"bytes"
	"os/exec"
	"testing"
)

// TestInlines: what the loop over packets calls for every one of them must cost
// no call.
func TestInlines(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "build", "-gcflags=-m", ".", "nmfwd/wire").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, f := range []string{
		"(*Region).head", "head.u8", "head.u32", "head.be16", "head.be32", "head.be64", "head.destination",
		"(*Region).CopyShort", "head.valid4", "head.setHeader", "head.decrement4", "head.decrement6",
		"(*Region).Bytes", "(*Region).Buffer", "(*tally).add", "FrameSlots", "Sum20", "MACOf",
	} {
		if !bytes.Contains(out, []byte("can inline "+f)) {
			t.Errorf("%s is not inlined", f)
		}
	}
}
