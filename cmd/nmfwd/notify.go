package main

import (
	"net"
	"os"
	"time"
)

// notifyFor is how long the service manager may take to read.
const notifyFor = time.Second

// notify tells the service manager of a change of state, if there is one that
// wants to know (sd_notify(3)): a datagram to the socket that NOTIFY_SOCKET
// names, where @ stands for the NUL of an abstract one.
func notify(state string) error {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetWriteDeadline(time.Now().Add(notifyFor)); err != nil {
		return err
	}
	_, err = c.Write([]byte(state))
	return err
}
