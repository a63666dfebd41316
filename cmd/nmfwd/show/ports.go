package show

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"nmfwd/control"
	"nmfwd/dataplane"
)

// A portDoc is a port: a device, or a VLAN on one, which counts nothing itself.
type portDoc struct {
	Port        string         `json:"port"`
	Link        string         `json:"link"` // up or down
	Backend     string         `json:"backend,omitempty"`
	Driver      string         `json:"driver,omitempty"`
	Mode        string         `json:"mode,omitempty"`
	ZeroCopy    bool           `json:"zero_copy"`
	MAC         string         `json:"mac"`
	SpeedMbit   int            `json:"speed_mbit,omitempty"`
	RXRings     int            `json:"rx_rings,omitempty"`
	TXRings     int            `json:"tx_rings,omitempty"`
	RXSlots     int            `json:"rx_slots,omitempty"`
	TXSlots     int            `json:"tx_slots,omitempty"`
	MTU         int            `json:"mtu"`
	Host        bool           `json:"host"`
	VLAN        int            `json:"vlan,omitempty"`
	On          string         `json:"on,omitempty"` // of a VLAN: the device
	Addresses   []netip.Prefix `json:"addresses"`
	Settings    string         `json:"settings,omitempty"`
	Lost        string         `json:"settings_lost,omitempty"`
	LinkChanges uint64         `json:"link_changes"`
	StalledRX   bool           `json:"stalled_rx,omitempty"`
	StalledTX   bool           `json:"stalled_tx,omitempty"`
	Received    *movedDoc      `json:"received,omitempty"`
	Transmitted *movedDoc      `json:"transmitted,omitempty"`
	Dropped     uint64         `json:"dropped"`
	RXRingFull  uint64         `json:"rx_ring_full"`
	TXRingFull  uint64         `json:"tx_ring_full"`
}

// A movedDoc is what a device received or sent.
type movedDoc struct {
	Packets          uint64  `json:"packets"`
	Bytes            uint64  `json:"bytes"`
	PacketsPerSecond float64 `json:"packets_per_second"`
	BitsPerSecond    float64 `json:"bits_per_second"`
}

func moved(t traffic, r rate) *movedDoc { return &movedDoc{t.Packets, t.Bytes, r.packets, r.bits} }

// ports answers with all ports, or all about one.
func (a *answer) ports(r *Request) error {
	entries, err := a.source.Control.PortEntries(a.ctx)
	if err != nil {
		return err
	}
	var s dataplane.Snapshot
	a.source.Snapshot(&s)
	if r.Arg == "" {
		a.head("PORT", "LINK", "DRIVER", "MODE", ">RINGS", ">MTU", "HOST", ">RX-PPS", ">RX-BPS", ">TX-PPS", ">TX-BPS", ">DROPPED", "ADDRESSES")
	}
	found := false
	for i := range entries {
		if r.Arg != "" && r.Arg != entries[i].Name {
			continue
		}
		found = true
		d := a.port(entries, i, &s)
		if r.Arg == "" {
			err = a.item(d, d.row()...)
		} else {
			err = a.portInFull(d)
		}
		if err != nil {
			return err
		}
	}
	if !found {
		return noPort(r, entries)
	}
	return nil
}

// noPort is the error of a request for a port that there is not.
func noPort(r *Request, entries []control.Port) error {
	var have []string
	for _, e := range entries {
		have = append(have, e.Name)
	}
	return usage("%s: no port %q: there are %s", r.Command, r.Arg, strings.Join(have, ", "))
}

// port describes port number i.
func (a *answer) port(entries []control.Port, i int, s *dataplane.Snapshot) *portDoc {
	e := &entries[i]
	device := i
	if e.VLAN != 0 {
		device = e.On
	}
	p := &s.Ports[device]
	d := &portDoc{
		Port: e.Name, Link: "down", MAC: macString(e.MAC.Bytes()), MTU: e.MTU, Host: e.Host, Addresses: e.Addrs,
	}
	if p.Up {
		d.Link = "up"
	}
	if d.Addresses == nil {
		d.Addresses = []netip.Prefix{}
	}
	if e.VLAN != 0 {
		d.VLAN, d.On = int(e.VLAN), entries[device].Name
		return d
	}
	d.Backend, d.Driver, d.Mode, d.ZeroCopy = p.Info.Backend, p.Info.Driver, p.Info.Mode, p.Info.ZeroCopy
	d.RXRings, d.TXRings, d.RXSlots, d.TXSlots = p.Info.RXRings, p.Info.TXRings, p.Info.RXSlots, p.Info.TXSlots
	d.SpeedMbit = a.source.Devices[i].Speed
	if f := a.source.Devices[i].Settings; f != nil {
		d.Settings, d.Lost = f()
	}
	d.LinkChanges, d.StalledRX, d.StalledTX = p.LinkChanges, p.Stalled[0], p.Stalled[1]
	t := sum(p)
	rx, tx := a.rates.port(i)
	d.Received, d.Transmitted = moved(t.received, rx), moved(t.transmitted, tx)
	for _, n := range t.dropped {
		d.Dropped += n
	}
	d.RXRingFull, d.TXRingFull = t.rxRingFull, t.txRingFull
	return d
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

// row returns the cells of a port in the table of all.
func (d *portDoc) row() []string {
	var addrs []string
	for _, p := range d.Addresses {
		addrs = append(addrs, p.String())
	}
	if d.On != "" {
		return []string{d.Port, d.Link, "vlan", "", "", strconv.Itoa(d.MTU), onOff(d.Host), "", "", "", "", "", strings.Join(addrs, " ")}
	}
	driver := d.Backend
	if d.Driver != "" {
		driver += "/" + d.Driver
	}
	mode := d.Mode
	if d.ZeroCopy {
		mode += ",zc"
	}
	return []string{
		d.Port, d.Link, driver, mode, fmt.Sprintf("%d/%d", d.RXRings, d.TXRings), strconv.Itoa(d.MTU), onOff(d.Host),
		short(d.Received.PacketsPerSecond), short(d.Received.BitsPerSecond), short(d.Transmitted.PacketsPerSecond), short(d.Transmitted.BitsPerSecond),
		strconv.FormatUint(d.Dropped, 10), strings.Join(addrs, " "),
	}
}

// portInFull answers with all about one port.
func (a *answer) portInFull(d *portDoc) error {
	if a.json {
		return a.item(d)
	}
	a.head()
	line := func(name, format string, args ...any) {
		a.table.add(a.out, []string{name, fmt.Sprintf(format, args...)})
	}
	line("port", "%s", d.Port)
	line("link", "%s, changed %d times", d.Link, d.LinkChanges)
	line("MAC address", "%s", d.MAC)
	for _, p := range d.Addresses {
		line("address", "%v", p)
	}
	line("MTU", "%d", d.MTU)
	line("host", "%s", onOff(d.Host))
	if d.On != "" {
		line("VLAN", "%d on %s", d.VLAN, d.On)
		return nil
	}
	line("driver", "%s", strings.TrimSpace(d.Backend+" "+d.Driver))
	line("mode", "%s", d.Mode)
	line("zero copy", "%t", d.ZeroCopy)
	if d.SpeedMbit != 0 {
		line("speed", "%d Mbit/s", d.SpeedMbit)
	}
	line("rings", "%d to receive of %d slots, %d to transmit of %d slots", d.RXRings, d.RXSlots, d.TXRings, d.TXSlots)
	if d.Settings != "" {
		line("settings", "changed while nmfwd runs: %s", d.Settings)
	}
	if d.Lost != "" {
		line("settings lost", "%s sets them again", d.Lost)
	}
	for _, s := range []struct {
		what    string
		stalled bool
	}{{"rings receive nothing, but the device does", d.StalledRX}, {"nothing leaves a full ring", d.StalledTX}} {
		if s.stalled {
			line("stalled", "%s", s.what)
		}
	}
	for _, m := range []struct {
		name string
		*movedDoc
		full uint64
	}{{"received", d.Received, d.RXRingFull}, {"transmitted", d.Transmitted, d.TXRingFull}} {
		line(m.name, "%d packets, %d bytes, %s packets/s, %s bit/s, ring full %d times", m.Packets, m.Bytes, short(m.PacketsPerSecond), short(m.BitsPerSecond), m.full)
	}
	line("dropped", "%d packets of those received", d.Dropped)
	return nil
}
