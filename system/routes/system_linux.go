package routes

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// buffer is the size in bytes of the socket's buffer for changes, as far as
	// the system grants it.
	buffer = 32 << 20

	listTimeout = 10 * time.Second // the longest that the system may be silent in a list
)

// groups are what the socket for changes hears: linux/rtnetlink.h.
var groups = []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE}

// A netlink is the system as rtnetlink(7) shows it, by two sockets, which belong
// to the network namespace that they were made in.
type netlink struct {
	changes *os.File // not blocking
	conn    syscall.RawConn
	lists   int
	seq     uint32
	buf     []byte
	reader  netlinkReader
}

func openSystem() (_ system, err error) {
	n := &netlink{lists: -1, buf: make([]byte, 1<<16)}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.stop(), n.close())
		}
	}()
	fd, err := netlinkSocket(unix.SOCK_NONBLOCK)
	if err != nil {
		return nil, err
	}
	n.changes = os.NewFile(uintptr(fd), "netlink")
	if n.conn, err = n.changes.SyscallConn(); err != nil {
		return nil, err
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer) != nil { // which needs CAP_NET_ADMIN
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer); err != nil {
			return nil, os.NewSyscallError("setsockopt", err)
		}
	}
	for _, g := range groups {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil {
			return nil, os.NewSyscallError("setsockopt", err)
		}
	}
	// Since Linux 5.3; without it there are no nexthop objects.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.RTNLGRP_NEXTHOP)
	if n.lists, err = netlinkSocket(0); err != nil {
		return nil, err
	}
	// With it only the tables asked for are listed, since Linux 4.20.
	_ = unix.SetsockoptInt(n.lists, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	t := unix.NsecToTimeval(int64(listTimeout))
	if err := unix.SetsockoptTimeval(n.lists, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &t); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	return n, nil
}

func netlinkSocket(flags int) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|flags, unix.NETLINK_ROUTE)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("bind", err)
	}
	return fd, nil
}

func (n *netlink) stop() error {
	if n.changes == nil {
		return nil
	}
	return n.changes.Close()
}

func (n *netlink) close() error {
	if n.lists < 0 {
		return nil
	}
	return unix.Close(n.lists)
}

func (n *netlink) wait() error { return waitReadable(n.conn) }

func (n *netlink) compare() time.Duration { return 0 }

// read reads a message. ENOBUFS, of a full buffer, comes before what the buffer
// holds, and the system adds nothing to it until all of that has been read.
func (n *netlink) read(b []byte) (length int, err error) {
	rerr := n.conn.Control(func(fd uintptr) { length, err = receive(int(fd), b) })
	switch {
	case rerr != nil:
		return 0, rerr
	case err == unix.EAGAIN:
		return 0, errNothing
	case err == unix.ENOBUFS:
		return 0, errLost
	}
	return length, err
}

// receive receives one datagram of the kernel.
func receive(fd int, b []byte) (int, error) {
	for {
		n, _, flags, from, err := unix.Recvmsg(fd, b, nil, 0)
		switch a, ok := from.(*unix.SockaddrNetlink); {
		case err == unix.EINTR:
		case err != nil:
			return 0, err
		case !ok || a.Pid != 0: // anyone may send to the socket
		case flags&unix.MSG_TRUNC != 0:
			return 0, errLost
		default:
			return n, nil
		}
	}
}

func (n *netlink) take(t *table, b []byte) error {
	n.reader.table = t
	return eachMessage(b, n.reader.message)
}

func (n *netlink) list(do func([]byte) error) error {
	if err := n.dump(unix.RTM_GETLINK, make([]byte, ifinfoLen), do); err != nil {
		return fmt.Errorf("interfaces: %w", err)
	}
	if err := n.dump(unix.RTM_GETNEXTHOP, make([]byte, nhmsgLen), do); err != nil {
		return fmt.Errorf("nexthop objects: %w", err)
	}
	for _, family := range []byte{familyIPv4, familyIPv6} {
		body := make([]byte, ruleLen)
		body[0] = family
		if err := n.dump(unix.RTM_GETRULE, body, do); err != nil {
			return fmt.Errorf("rules: %w", err)
		}
		for _, table := range []byte{tableMain, tableLocal, tableDefault} {
			body := make([]byte, rtmsgLen)
			body[0], body[rtmTable] = family, table
			if err := n.dump(unix.RTM_GETROUTE, body, do); err != nil {
				return fmt.Errorf("routes: %w", err)
			}
		}
	}
	return nil
}

// dump asks for a list and calls do for its parts. There is none of what the
// system does not have.
func (n *netlink) dump(kind uint16, body []byte, do func([]byte) error) error {
	n.seq++
	b := make([]byte, nlHeader, nlHeader+len(body))
	native.PutUint32(b, uint32(nlHeader+len(body)))
	native.PutUint16(b[4:], kind)
	native.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	native.PutUint32(b[8:], n.seq)
	if err := unix.Sendto(n.lists, append(b, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	interrupted := false
	for done := false; !done; {
		k, err := receive(n.lists, n.buf)
		if err != nil {
			return os.NewSyscallError("recvmsg", err)
		}
		if native.Uint32(n.buf[8:]) != n.seq {
			continue // of a list that was given up
		}
		err = eachMessage(n.buf[:k], func(m message) error {
			interrupted = interrupted || m.flags&nlmInterrupted != 0
			if m.kind != nlmsgError && m.kind != nlmsgDone {
				return nil
			}
			done = true
			code, err := number(m.payload)
			switch e := unix.Errno(-int32(code)); {
			case err != nil:
				return err
			case e == 0, e == unix.EOPNOTSUPP, e == unix.ENOENT, e == unix.EAFNOSUPPORT:
				return nil
			default:
				return e
			}
		})
		if err == nil {
			err = do(n.buf[:k])
		}
		if err != nil {
			return err
		}
	}
	if interrupted {
		return errInterrupted
	}
	return nil
}
