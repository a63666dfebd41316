package cases

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"

	"nmfwd/cmd/nmfwd/setup"
	"nmfwd/config"
	"nmfwd/dataplane"
	"nmfwd/dataplane/control"
	"nmfwd/dataplane/memport"
	"nmfwd/fib/neigh"
)

// buffers is the number of buffers of a memory router's region: two ports with
// two rings of 128.
const buffers = 512

// A memory is a Router over ports in memory, with one worker that is stepped.
type memory struct {
	region *dataplane.Region
	ports  []*memport.Port
	spec   *control.Spec
	router *dataplane.Router
	ctl    *control.Control
	asleep bool           // control does not run until all frames are through
	stuck  map[string]int // frames that fill a port's TX ring
}

func newMemory(t *testing.T, text string) *memory {
	t.Helper()
	cfg, err := config.Parse("routes.conf", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{region: memport.NewRegion("cases", buffers, memport.Stride), stuck: make(map[string]int)}
	own := setup.Own(cfg)
	var ports []*dataplane.Port
	for _, p := range cfg.Devices() {
		port, err := memport.New(m.region, memport.Config{
			Name: p.Name, MAC: p.MAC, MTU: max(p.MTU, 1500), MinFrame: 60, Host: p.Host, RXSlots: 128, TXSlots: 128,
			Keeps: func(f []byte) bool { return hostKeeps(f, append(p.VMACs, p.MAC), own) },
		})
		if err != nil {
			t.Fatal(err)
		}
		m.ports = append(m.ports, port)
		ports = append(ports, &port.Port)
	}
	if m.spec, err = setup.Spec(cfg, ports); err != nil {
		t.Fatal(err)
	}
	if m.router, err = dataplane.NewRouter(ports, 1, dataplane.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.router.Close)
	if err := m.control(); err != nil {
		t.Fatal(err)
	}
	return m
}

// control starts control anew, which looks at the links.
func (m *memory) control() (err error) {
	m.ctl, err = control.New(m.router, m.spec, slog.New(slog.DiscardHandler))
	return err
}

// hostKeeps says what an XDP program leaves to the kernel on a port with a
// host: all frames but those that are for forwarding. It takes no part in
// checking a packet.
func hostKeeps(f []byte, macs []net.HardwareAddr, own []netip.Addr) bool {
	if len(f) < 14 {
		return false
	}
	if !slices.ContainsFunc(macs, func(m net.HardwareAddr) bool { return slices.Equal(m, f[:6]) }) {
		return true
	}
	p := f[14:]
	switch binary.BigEndian.Uint16(f[12:]) {
	case 0x0800:
		if len(p) < 20 || p[0]>>4 != 4 {
			return false
		}
		dst := netip.AddrFrom4([4]byte(p[16:]))
		alert := p[0]&15 > 5 && len(p) > 20 && p[20] == 148
		return slices.Contains(own, dst) || dst.IsMulticast() || dst.IsLinkLocalUnicast() || alert ||
			dst == netip.AddrFrom4([4]byte{255, 255, 255, 255})
	case 0x86dd:
		if len(p) < 40 || p[0]>>4 != 6 {
			return false
		}
		dst := netip.AddrFrom16([16]byte(p[24:]))
		alert := false
		if hop := p[40:]; p[6] == 0 && len(hop) >= 8 {
			at := 2
			if hop[2] == 1 { // PadN
				at += 2 + int(hop[3])
			}
			alert = at < len(hop) && hop[at] == 5
		}
		return slices.Contains(own, dst) || dst.IsMulticast() || dst.IsLinkLocalUnicast() || dst.IsUnspecified() || alert
	}
	return true
}

func (m *memory) port(name string) (int, error) {
	for i, p := range m.ports {
		if p.Name == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("no port %s", name)
}

func (m *memory) Inject(port string, frame []byte) error {
	i, err := m.port(port)
	if err == nil && !m.ports[i].Deliver(0, frame) {
		err = fmt.Errorf("port %s: frame not received", port)
	}
	return err
}

func (m *memory) Collect() (map[string][][]byte, error) {
	w := m.router.Workers()[0]
	for n := 1; n > 0; {
		n = w.Step(0)
		if !m.asleep || n == 0 {
			m.ctl.HandlePunts()
			n += w.Step(0) // what control answered
		}
	}
	out := make(map[string][][]byte)
	for _, p := range m.ports {
		f := p.Transmit(0)
		out[p.Name] = f[m.stuck[p.Name]:]
		m.stuck[p.Name] = 0
	}
	return out, memport.CheckCensus(m.region, buffers, m.ports)
}

func (m *memory) ToHost() map[string][][]byte {
	out := make(map[string][][]byte)
	for _, p := range m.ports {
		out[p.Name] = p.ToHost()
	}
	return out
}

func (m *memory) Break(s Setup) error {
	i, err := m.port(s.Port)
	if err != nil {
		return err
	}
	p := m.ports[i]
	switch s.Kind {
	case "link_down":
		p.SetLink(false)
		return m.control()
	case "tx_full":
		other := dataplane.NewRegion("other", make([]byte, 60), 60, nil)
		for p.Queues[0].TX.Send(other, []dataplane.Slot{{Len: 60}}) == 1 {
			m.stuck[s.Port]++
		}
	case "control_asleep":
		m.asleep = true
	}
	return nil
}

func (m *memory) Counters() (map[string]uint64, error) {
	var s dataplane.Snapshot
	m.router.Snapshot(&s)
	c := make(map[string]uint64)
	for i, p := range s.Ports {
		add := func(v uint64, format string, args ...any) {
			c[p.Info.Name+" "+fmt.Sprintf(format, args...)] += v
		}
		for _, q := range p.RX {
			add(q.Packets, "receive")
			add(q.Bytes, "receive_bytes")
			add(q.Forwarded4, `forwarded{family="ipv4"}`)
			add(q.Forwarded6, `forwarded{family="ipv6"}`)
			add(q.ToHost, "to_host")
			for k, v := range q.Punted {
				add(v, `punted{kind="%v"}`, dataplane.Kind(k))
			}
			for r, v := range q.Dropped {
				add(v, `dropped{reason="%v"}`, dataplane.Reason(r))
			}
		}
		for _, q := range p.TX {
			add(q.Packets, "transmit")
			add(q.Bytes, "transmit_bytes")
		}
		for _, k := range []neigh.Conflict{neigh.StaticConflict, neigh.OwnAddressConflict} {
			add(m.ctl.Neighbors().Conflicts(uint16(i), k), `neighbor_conflicts{kind="%v"}`, k)
		}
	}
	return c, nil
}

// TestMemory runs the table over ports in memory, with host off and host on.
// Cases of one configuration share a router, but for those that break it.
func TestMemory(t *testing.T) {
	routers := make(map[string]*memory)
	for _, c := range all(t) {
		for _, host := range []bool{false, true} {
			conf := c.ConfigFor(host)
			m := routers[conf]
			if m == nil || c.Setup != nil {
				m = newMemory(t, conf)
			}
			if c.Setup == nil {
				routers[conf] = m
			}
			t.Run(fmt.Sprintf("%s/host=%v", c.Name, host), func(t *testing.T) {
				if err := Check(m, &c, host); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
