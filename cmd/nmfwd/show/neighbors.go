package show

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"nmfwd/control"
	"nmfwd/neigh"
)

// A neighborDoc is a neighbor.
type neighborDoc struct {
	Address netip.Addr `json:"address"`
	MAC     string     `json:"mac,omitempty"` // empty while it is not known
	Port    string     `json:"port"`
	State   string     `json:"state"`
	Source  string     `json:"source"`                // static, link (found by nmfwd) or system (by the host stack)
	Age     float64    `json:"age_seconds,omitempty"` // since the state was entered or confirmed, but for static ones
}

// macString writes a MAC address.
func macString(b [6]byte) string { return net.HardwareAddr(b[:]).String() }

// neighbors answers with the neighbors of all ports, or of one.
func (a *answer) neighbors(r *Request) error {
	if r.Arg != "" {
		entries, err := a.source.Control.PortEntries(a.ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(entries, func(e control.Port) bool { return e.Name == r.Arg }) {
			return noPort(r, entries)
		}
	}
	var all []control.NeighborEntry
	for e, err := range a.source.Control.NeighborEntries(a.ctx) {
		if err != nil {
			return err
		}
		if r.Arg == "" || r.Arg == e.PortName {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(x, y control.NeighborEntry) int {
		return cmp.Or(cmp.Compare(x.Port, y.Port), x.Addr.Compare(y.Addr))
	})
	a.head("ADDRESS", "MAC", "PORT", "STATE", "SOURCE", ">AGE")
	for _, e := range all {
		d := neighborDoc{Address: e.Addr, Port: e.PortName, State: e.State.String(), Source: "link", Age: e.Age.Seconds()}
		age := fmt.Sprint(e.Age.Round(time.Second))
		switch {
		case e.State == neigh.Static:
			d.Source, d.Age, age = "static", 0, ""
		case e.Source == neigh.System:
			d.Source = "system"
		}
		if e.MAC != 0 {
			d.MAC = macString(e.MAC.Bytes())
		}
		if err := a.item(d, d.Address.String(), d.MAC, d.Port, d.State, d.Source, age); err != nil {
			return err
		}
	}
	return nil
}
