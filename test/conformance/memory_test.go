package conformance

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"nmfwd/config"
	"nmfwd/dataplane/memport"
	"nmfwd/router"
)

// A memory is a Router over ports in memory.
type memory struct {
	*Stepped
	memory *router.Memory
	own    []netip.Addr   // addresses of the router
	stuck  map[string]int // frames that fill a port's TX ring
}

func newMemory(t *testing.T, text string, h Host) *memory {
	t.Helper()
	cfg, err := config.Parse("routes.conf", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{stuck: make(map[string]int), own: router.Own(cfg)}
	m.memory, err = router.NewMemory(cfg, router.Options{}, func(p *config.Port, c *memport.Config) {
		if h == HostFirst {
			macs, vlans := append(p.VMACs, p.MAC), router.VLANs(cfg, cfg.Port(p.Name))
			c.Keeps = func(f []byte) bool { return hostKeeps(f, macs, vlans, m.own) }
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	m.Stepped = newStepped(text, m.memory.Router)
	t.Cleanup(m.Close)
	return m
}

// hostKeeps says what an XDP program leaves to the kernel on a port with a
// host: all frames but those that are for forwarding. It takes no part in
// checking a packet.
func hostKeeps(f []byte, macs []net.HardwareAddr, vlans []uint16, own []netip.Addr) bool {
	if len(f) < 14 {
		return false
	}
	if !slices.ContainsFunc(macs, func(m net.HardwareAddr) bool { return slices.Equal(m, f[:6]) }) {
		return true
	}
	p, t := f[14:], binary.BigEndian.Uint16(f[12:])
	if t == 0x8100 && len(p) >= 4 {
		if id := binary.BigEndian.Uint16(p) & 0xfff; id != 0 && !slices.Contains(vlans, id) {
			return true
		}
		p, t = p[4:], binary.BigEndian.Uint16(p[2:])
	}
	switch t {
	case 0x0800:
		if len(p) < 20 || p[0]>>4 != 4 {
			return false
		}
		dst := netip.AddrFrom4([4]byte(p[16:]))
		return slices.Contains(own, dst) || dst.IsMulticast() || dst == netip.AddrFrom4([4]byte{255, 255, 255, 255})
	case 0x86dd:
		if len(p) < 40 || p[0]>>4 != 6 {
			return false
		}
		dst := netip.AddrFrom16([16]byte(p[24:]))
		return slices.Contains(own, dst) || dst.IsMulticast() || dst.IsLinkLocalUnicast()
	}
	return true
}

func (m *memory) port(name string) (int, error) {
	for i, p := range m.memory.Ports {
		if p.Name == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("no port %s", name)
}

func (m *memory) Inject(port string, frame []byte) error {
	i, err := m.port(port)
	if err == nil && !m.memory.Ports[i].Deliver(0, frame) {
		err = fmt.Errorf("port %s: frame not received", port)
	}
	return err
}

func (m *memory) Collect() (map[string][][]byte, error) {
	for m.Step() > 0 {
	}
	out := make(map[string][][]byte)
	for _, p := range m.memory.Ports {
		f := p.Transmit(0)
		out[p.Name] = f[m.stuck[p.Name]:]
		m.stuck[p.Name] = 0
	}
	return out, memport.CheckCensus(m.memory.Region, m.memory.Buffers, m.memory.Ports)
}

func (m *memory) ToHost() map[string][][]byte {
	out := make(map[string][][]byte)
	for _, p := range m.memory.Ports {
		out[p.Name] = p.ToHost()
	}
	return out
}

func (m *memory) Do(e Event) error {
	if e.Kind == Reload {
		cfg, err := config.Parse("routes.conf", []byte(e.Config))
		if err != nil {
			return err
		}
		m.own = router.Own(cfg)
	}
	if e.Port == "" {
		return m.Stepped.Do(e)
	}
	i, err := m.port(e.Port)
	if err != nil {
		return err
	}
	p := m.memory.Ports[i]
	switch e.Kind {
	case LinkDown, LinkUp:
		p.SetLink(e.Kind == LinkUp)
		m.Look()
	case TXFull:
		m.stuck[e.Port] += fillRing(m.queue(e.Port))
	}
	return nil
}

// TestMemory runs the table over ports in memory.
func TestMemory(t *testing.T) {
	Run(t, []Host{HostOff, HostFirst, HostRings}, nil, func(t *testing.T, config string, h Host, _ []string) Router { return newMemory(t, config, h) })
}
