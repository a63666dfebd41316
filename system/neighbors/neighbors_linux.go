package neighbors

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"nmfwd/neigh"
	"nmfwd/wire"
)

const (
	// buffer is the size in bytes of the socket's buffer, as far as the system
	// grants it: room for some thousand changes at once.
	buffer = 1 << 20

	askTimeout = time.Second            // the longest that control waits for the system
	retry      = 100 * time.Millisecond // until what went wrong is tried again
)

// A Table follows the system's table for some interfaces.
type Table struct {
	*news
	ports   map[int]uint16 // port number by interface index
	indexes map[uint16]int
	handle  *netlink.Handle // for commands and lists
	changes *os.File        // the socket by which the system tells of changes; not blocking
	conn    syscall.RawConn // of changes
	note    func(string)

	// questions is the socket for questions about one neighbor.
	questions map[int]*nl.SocketHandle

	done    chan struct{}
	running sync.WaitGroup

	reading sync.Mutex         // held by who reads changes; guards what follows
	has     map[neigh.Key]bool // what the system has, as told
	lost    bool               // changes were lost, and no list has been taken since
	buf     []byte
}

// Open follows the table for interfaces, which are named with the numbers of
// their ports, in the network namespace of the calling thread. Its sockets are
// opened once and kept, so that nothing needs a privilege later. Note is told what
// an operator may have to know.
func Open(interfaces map[string]uint16, note func(string)) (_ *Table, err error) {
	t := &Table{
		news: newNews(), ports: map[int]uint16{}, indexes: map[uint16]int{},
		note: note, has: map[neigh.Key]bool{}, done: make(chan struct{}), buf: make([]byte, 1<<16),
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("neighbors: %w", err), t.stop(), t.release())
		}
	}()
	for name, port := range interfaces {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", name, err)
		}
		t.ports[i.Index], t.indexes[port] = port, i.Index
	}
	if t.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	if err = t.handle.SetSocketTimeout(askTimeout); err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	q, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	t.questions = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: q}}
	timeout := unix.NsecToTimeval(int64(askTimeout))
	if err = errors.Join(q.SetSendTimeout(&timeout), q.SetReceiveTimeout(&timeout)); err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	if err = t.subscribe(); err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	if err = t.list(); err != nil { // what changed before and meanwhile is read afterwards
		return nil, err
	}
	t.running.Go(t.run)
	return t, nil
}

// subscribe opens the socket by which the system tells of changes.
func (t *Table) subscribe() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	t.changes = os.NewFile(uintptr(fd), "netlink")
	if t.conn, err = t.changes.SyscallConn(); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.RTNLGRP_NEIGH - 1)}))
}

// Close ends following.
func (t *Table) Close() error {
	close(t.done)
	err := t.stop()
	t.running.Wait()
	return errors.Join(err, t.release())
}

// stop ends the wait for changes.
func (t *Table) stop() error {
	if t.changes == nil {
		return nil
	}
	return t.changes.Close()
}

func (t *Table) release() error {
	if t.handle != nil {
		t.handle.Close()
	}
	for _, q := range t.questions {
		q.Close()
	}
	return nil
}

func (t *Table) closed() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// Ready receives a value when there is something for Take.
func (t *Table) Ready() <-chan struct{} { return t.ready }

// Take calls f for what is new since the last call: the latest of each neighbor,
// in no order.
func (t *Table) Take(f func(neigh.Update)) { t.take(f) }

// Ask has the system find out k, or verify it. The answer comes by Take.
func (t *Table) Ask(k neigh.Key) error {
	fixed, err := t.fixed(k)
	if err == nil && !fixed {
		err = t.handle.NeighSet(&netlink.Neigh{LinkIndex: t.indexes[k.Port], IP: k.Addr.AsSlice(), State: netlink.NUD_NONE, Flags: netlink.NTF_USE})
	}
	if err != nil {
		return fmt.Errorf("neighbors: ask for %s: %w", k.Addr, err)
	}
	t.repeat(k)
	return nil
}

// fixed reports whether the system has k from somebody who wants it to stay as it
// is: a use by netlink would make that one like any other, and so lose it. What is
// known by Take may be older.
func (t *Table) fixed(k neigh.Key) (bool, error) {
	family := unix.AF_INET
	if k.Addr.Is6() {
		family = unix.AF_INET6
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	req.Sockets = t.questions
	req.AddData(&netlink.Ndmsg{Family: uint8(family), Index: uint32(t.indexes[k.Port])})
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, k.Addr.AsSlice()))
	ms, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) { // Linux before 5.0 answers lists only
		return false, nil
	}
	if err != nil || len(ms) == 0 {
		return false, err
	}
	n, err := netlink.NeighDeserialize(ms[0])
	return err == nil && n.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0, err
}

// Sync returns when Take has all that the system told before.
func (t *Table) Sync() error {
	t.reading.Lock()
	defer t.reading.Unlock()
	return t.drain()
}

// run reads what the system tells until Close.
func (t *Table) run() {
	for {
		err := t.wait()
		if t.closed() {
			return
		}
		if err == nil {
			err = t.Sync()
		}
		if err == nil {
			continue
		}
		t.note(err.Error())
		select {
		case <-t.done:
			return
		case <-time.After(retry):
		}
	}
}

// wait waits until the system has told something, or changes are to be found by a
// list.
func (t *Table) wait() (err error) {
	t.reading.Lock()
	lost := t.lost
	t.reading.Unlock()
	if lost {
		return nil
	}
	rerr := t.conn.Read(func(fd uintptr) bool {
		var n int
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
	if err := cmp.Or(rerr, os.NewSyscallError("poll", err)); err != nil {
		return fmt.Errorf("neighbors: %w", err)
	}
	return nil
}

// drain takes all that the system has told, without waiting for more. The message
// that changes were lost comes before those that are still queued: only when these
// have been taken is a list newer than all of them.
func (t *Table) drain() error {
	for !t.closed() {
		n, err := t.read()
		switch {
		case err == unix.EAGAIN && !t.lost:
			return nil
		case err == unix.EAGAIN:
			if err := t.list(); err != nil {
				return fmt.Errorf("neighbors: %w", err)
			}
			t.lost = false
		case err == unix.ENOBUFS:
			t.lost = true
		case err != nil:
			return fmt.Errorf("neighbors: %w", err)
		default:
			t.messages(t.buf[:n])
		}
	}
	return nil
}

// read reads what one datagram of the kernel says, if there is one.
func (t *Table) read() (n int, err error) {
	rerr := t.conn.Control(func(fd uintptr) {
		for {
			var flags int
			var from unix.Sockaddr
			n, _, flags, from, err = unix.Recvmsg(int(fd), t.buf, nil, 0)
			switch a, ok := from.(*unix.SockaddrNetlink); {
			case err == unix.EINTR:
			case err != nil:
				return
			case !ok || a.Pid != 0: // anyone may send to the socket
			case flags&unix.MSG_TRUNC != 0:
				err = unix.ENOBUFS
				return
			default:
				return
			}
		}
	})
	return n, cmp.Or(rerr, err)
}

// messages takes what the system tells in b.
func (t *Table) messages(b []byte) {
	ms, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		t.lost = true
		return
	}
	for _, m := range ms {
		if m.Header.Type != unix.RTM_NEWNEIGH && m.Header.Type != unix.RTM_DELNEIGH || len(m.Data) < unix.SizeofNdMsg {
			continue
		}
		n, err := netlink.NeighDeserialize(m.Data)
		if err != nil {
			t.lost = true
			return
		}
		if u, ok := t.update(n, m.Header.Type == unix.RTM_DELNEIGH); ok {
			t.tell(u)
		}
	}
}

// list takes the table as it is. Changes that the socket holds from before are
// followed there by those that led to what the list says.
func (t *Table) list() error {
	gone := maps.Clone(t.has)
	for index := range t.ports {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			ns, err := t.handle.NeighList(index, family)
			if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // what changed meanwhile is read afterwards
				return fmt.Errorf("list: %w", err)
			}
			for i := range ns {
				if u, ok := t.update(&ns[i], false); ok {
					delete(gone, u.Key)
					t.tell(u)
				}
			}
		}
	}
	for k := range gone {
		t.tell(neigh.Update{Entry: neigh.Entry{Key: k}, Gone: true})
	}
	return nil
}

func (t *Table) tell(u neigh.Update) {
	if u.Gone {
		delete(t.has, u.Key)
	} else {
		t.has[u.Key] = true
	}
	t.add(u)
}

// update returns what a message says, and whether it is about a neighbor of a
// port.
func (t *Table) update(n *netlink.Neigh, deleted bool) (u neigh.Update, ok bool) {
	port, ok := t.ports[n.LinkIndex]
	addr, isAddr := netip.AddrFromSlice(n.IP)
	if !ok || !isAddr || addr.IsMulticast() || n.Flags&netlink.NTF_PROXY != 0 || n.Family != unix.AF_INET && n.Family != unix.AF_INET6 {
		return u, false
	}
	if n.Family == unix.AF_INET {
		addr = addr.Unmap()
	}
	u.Key = neigh.Key{Port: port, Addr: addr}
	u.State, ok = stateOf(n.State)
	u.Gone = deleted || !ok
	if len(n.HardwareAddr) == 6 {
		u.MAC = wire.MACOf(n.HardwareAddr)
	}
	return u, true
}

// stateOf returns what the state of a neighbor of the system means (linux/neighbour.h),
// false for none.
func stateOf(nud int) (neigh.State, bool) {
	switch {
	case nud&(netlink.NUD_PERMANENT|netlink.NUD_NOARP|netlink.NUD_REACHABLE) != 0:
		return neigh.Reachable, true
	case nud&netlink.NUD_STALE != 0:
		return neigh.Stale, true
	case nud&netlink.NUD_DELAY != 0:
		return neigh.Delay, true
	case nud&netlink.NUD_PROBE != 0:
		return neigh.Probe, true
	case nud&netlink.NUD_INCOMPLETE != 0:
		return neigh.Incomplete, true
	case nud&netlink.NUD_FAILED != 0:
		return neigh.Failed, true
	}
	return 0, false
}
