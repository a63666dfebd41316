package router

import (
	"nmfwd/config"
	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
)

// A Memory is a router over ports in memory.
type Memory struct {
	*Router
	Region  *dataplane.Region
	Buffers int             // in Region
	Ports   []*memport.Port // the devices, by number
}

// NewMemory makes a router of cfg, which is resolved, over ports in memory. Set, if
// not nil, changes what the line of a device says of one.
func NewMemory(cfg *config.Config, o Options, set func(p *config.Port, c *memport.Config)) (*Memory, error) {
	m := new(Memory)
	devices := cfg.Devices()
	configs := make([]memport.Config, len(devices))
	stride := memport.Stride
	for i := range devices {
		p, c := &devices[i], &configs[i]
		*c = memport.Config{Name: p.Name, MAC: p.MAC, MTU: max(p.MTU, 1500), MinFrame: 60, Host: p.Host, RXSlots: 128, TXSlots: 128}
		if set != nil {
			set(p, c)
		}
		m.Buffers += 2 * (c.RXSlots + c.TXSlots) // as many to the host and from it
		stride = max(stride, c.MTU+64)
	}
	m.Region = memport.NewRegion("memory", m.Buffers, min(stride, 1<<16-1))
	var ports []*dataplane.Port
	for _, c := range configs {
		p, err := memport.New(m.Region, c)
		if err != nil {
			return nil, err
		}
		m.Ports = append(m.Ports, p)
		ports = append(ports, &p.Port)
	}
	var err error
	m.Router, err = New(cfg, ports, o)
	return m, err
}

// FromText makes a router over ports in memory of the text of a configuration.
func FromText(text string) (*Memory, error) {
	cfg, err := config.Parse("routes.conf", []byte(text))
	if err != nil {
		return nil, err
	}
	return NewMemory(cfg, Options{}, nil)
}
