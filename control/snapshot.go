package control

import "nmfwd/neigh"

// A Snapshot is what control counts, and the sizes of what it has.
type Snapshot struct {
	Stats
	Ports     []PortSnapshot          // by number: devices, then VLANs
	Neighbors [2][neigh.NumStates]int // by family (IPv4, IPv6) and state
	Missing   int                     // routes that devices have no place for
}

// A PortSnapshot counts what concerns packets that came in by a port.
type PortSnapshot struct {
	Name       string
	Parked     int    // packets that wait for their neighbor now
	Unresolved uint64 // packets given up for want of their neighbor
	Messages
	Fragmented Fragmented
	Conflicts  [neigh.NumConflicts]uint64
}

// Snapshot fills s with the current counts, each of its own moment. It may be
// called from any goroutine.
func (c *Control) Snapshot(s *Snapshot) {
	s.Stats, s.Missing = *c.Stats(), c.HostMissing()
	for f, family := range [...]int{4, 6} {
		for n := range s.Neighbors[f] {
			s.Neighbors[f][n] = c.neighbors.Count(family, neigh.State(n))
		}
	}
	s.Ports = make([]PortSnapshot, len(c.names))
	for i, name := range c.names {
		p := &s.Ports[i]
		p.Name = name
		p.Parked, p.Unresolved = c.Parked(i)
		p.Messages, p.Fragmented = c.Messages(i), c.Fragmented(i)
		for k := range p.Conflicts {
			p.Conflicts[k] = c.neighbors.Conflicts(uint16(i), neigh.Conflict(k))
		}
	}
}
