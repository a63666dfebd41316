package afxdp

import "os"

// BufSize returns the longest frame that a buffer holds on a port whose largest
// IP packet has mtu bytes, and whose buffers are asked to have want bytes, 0 for
// no wish; with an error it is 0. It is Info.BufSize when no other port needs longer buffers.
func BufSize(port string, want, mtu int) (int, error) {
	size, err := frameSize(want, os.Getpagesize(), port, mtu)
	if err != nil {
		return 0, err
	}
	return size - headroom, nil
}
