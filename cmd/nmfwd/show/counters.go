package show

import (
	"maps"
	"slices"
	"strconv"

	"nmfwd/cmd/nmfwd/explain"
	"nmfwd/control"
	"nmfwd/dataplane"
	"nmfwd/neigh"
	"nmfwd/wire/icmp"
)

// A traffic is a number of packets and their bytes.
type traffic struct{ Packets, Bytes uint64 }

// totals are the counters of a port, summed over its queues.
type totals struct {
	received, transmitted  traffic
	forwarded              [2]uint64 // IPv4, IPv6
	toHost, fromHost       uint64
	punted                 [dataplane.NumKinds]uint64
	dropped                [dataplane.NumReasons]uint64
	limited                [2]uint64
	copied                 uint64
	rxRingFull, txRingFull uint64
}

// sum adds up the counters of a port.
func sum(p *dataplane.PortSnapshot) (t totals) {
	for i := range p.RX {
		q := &p.RX[i]
		t.received.Packets += q.Packets
		t.received.Bytes += q.Bytes
		t.forwarded[0] += q.Forwarded4
		t.forwarded[1] += q.Forwarded6
		t.toHost += q.ToHost
		t.fromHost += q.FromHost
		for k, n := range q.Punted {
			t.punted[k] += n
		}
		for r, n := range q.Dropped {
			t.dropped[r] += n
		}
		t.limited[0] += q.Limited4
		t.limited[1] += q.Limited6
		t.rxRingFull += q.RingFull
	}
	for i := range p.TX {
		q := &p.TX[i]
		t.transmitted.Packets += q.Packets
		t.transmitted.Bytes += q.Bytes
		t.copied += q.Copied
		t.txRingFull += q.RingFull
	}
	return t
}

// A countersDoc has the counters of a device, by the names of the metrics.
type countersDoc struct {
	Port            string                       `json:"port"`
	ReceivePackets  uint64                       `json:"receive_packets"`
	ReceiveBytes    uint64                       `json:"receive_bytes"`
	TransmitPackets uint64                       `json:"transmit_packets"`
	TransmitBytes   uint64                       `json:"transmit_bytes"`
	Forwarded       map[string]uint64            `json:"forwarded_packets"` // by family
	Host            map[string]uint64            `json:"host_packets"`      // by direction
	Punted          map[string]uint64            `json:"punted_packets"`    // by kind
	Dropped         map[string]uint64            `json:"dropped_packets"`   // by reason
	RingFull        map[string]uint64            `json:"ring_full"`         // by direction
	Copied          uint64                       `json:"copied_packets"`
	Parked          int                          `json:"parked_packets"`
	Unresolved      uint64                       `json:"unresolved_packets"`
	ICMPSent        map[string]map[string]uint64 `json:"icmp_sent"`       // by family and type
	ICMPSuppressed  map[string]map[string]uint64 `json:"icmp_suppressed"` // by family and reason
	Fragmented      map[string]uint64            `json:"fragmented_packets"`
	Fragments       uint64                       `json:"fragments"`
	Conflicts       map[string]uint64            `json:"neighbor_conflicts"`
}

var families = [2]string{"ipv4", "ipv6"}

// counted describes a device from its counters and control's.
func counted(p *dataplane.PortSnapshot, c *control.PortSnapshot) *countersDoc {
	t := sum(p)
	d := &countersDoc{
		Port:           p.Info.Name,
		ReceivePackets: t.received.Packets, ReceiveBytes: t.received.Bytes,
		TransmitPackets: t.transmitted.Packets, TransmitBytes: t.transmitted.Bytes,
		Forwarded: map[string]uint64{families[0]: t.forwarded[0], families[1]: t.forwarded[1]},
		Host:      map[string]uint64{"to_host": t.toHost, "from_host": t.fromHost},
		RingFull:  map[string]uint64{"rx": t.rxRingFull, "tx": t.txRingFull},
		Punted:    map[string]uint64{}, Dropped: map[string]uint64{}, Conflicts: map[string]uint64{},
		ICMPSent:       map[string]map[string]uint64{families[0]: {}, families[1]: {}},
		ICMPSuppressed: map[string]map[string]uint64{families[0]: {}, families[1]: {}},
		Copied:         t.copied,
		Parked:         c.Parked, Unresolved: c.Unresolved,
		Fragmented: map[string]uint64{"sent": c.Fragmented.Packets, "failed": c.Fragmented.Failed}, Fragments: c.Fragmented.Fragments,
	}
	for k, n := range t.punted {
		d.Punted[dataplane.Kind(k).String()] = n
	}
	for r, n := range t.dropped[1:] {
		d.Dropped[dataplane.Reason(r+1).String()] = n
	}
	for f, family := range families {
		for k, n := range c.Sent[f] {
			d.ICMPSent[family][icmp.Kind(k).String()] = n
		}
		for r, n := range c.Suppressed[f] {
			if r := icmp.Reason(r); r != icmp.OK {
				d.ICMPSuppressed[family][r.String()] = n
			}
		}
		d.ICMPSuppressed[family][icmp.Rate.String()] += t.limited[f] // by workers
	}
	for k, n := range c.Conflicts {
		if k := neigh.Conflict(k); k != neigh.NoConflict {
			d.Conflicts[k.String()] = n
		}
	}
	return d
}

// devices calls f for the device that the request names, or all, with its number.
func (a *answer) devices(r *Request, f func(int, *dataplane.PortSnapshot) error) error {
	var s dataplane.Snapshot
	a.source.Snapshot(&s)
	found := false
	for i := range s.Ports {
		if r.Arg != "" && r.Arg != s.Ports[i].Info.Name {
			continue
		}
		found = true
		if err := f(i, &s.Ports[i]); err != nil {
			return err
		}
	}
	if found {
		return nil
	}
	entries, err := a.source.Control.PortEntries(a.ctx)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name == r.Arg {
			return usage("%s: %s is a VLAN: its packets are counted with those of its device", r.Command, r.Arg)
		}
	}
	return noPort(r, entries)
}

// counters answers with the counters of devices.
func (a *answer) counters(r *Request) error {
	var c control.Snapshot
	a.source.Counts(&c)
	a.head("PORT", "COUNTER", ">VALUE")
	return a.devices(r, func(i int, p *dataplane.PortSnapshot) error {
		d := counted(p, &c.Ports[i])
		if a.json {
			return a.item(d)
		}
		var err error
		row := func(name string, n uint64) {
			if err == nil && (n != 0 || r.All) {
				err = a.item(nil, d.Port, name, strconv.FormatUint(n, 10))
			}
		}
		each := func(name string, counts map[string]uint64) {
			for _, k := range slices.Sorted(maps.Keys(counts)) {
				row(name+" "+k, counts[k])
			}
		}
		row("receive packets", d.ReceivePackets)
		row("receive bytes", d.ReceiveBytes)
		row("transmit packets", d.TransmitPackets)
		row("transmit bytes", d.TransmitBytes)
		each("forwarded", d.Forwarded)
		each("host", d.Host)
		each("punted", d.Punted)
		each("dropped", d.Dropped)
		each("ring full", d.RingFull)
		row("copied", d.Copied)
		row("parked", uint64(d.Parked))
		row("unresolved", d.Unresolved)
		for _, f := range families {
			each("icmp sent "+f, d.ICMPSent[f])
			each("icmp suppressed "+f, d.ICMPSuppressed[f])
		}
		each("fragmented", d.Fragmented)
		row("fragments", d.Fragments)
		each("neighbor conflicts", d.Conflicts)
		return err
	})
}

// A dropDoc is a number of packets that were dropped for one reason.
type dropDoc struct {
	Port    string `json:"port"`
	Reason  string `json:"reason"`
	Packets uint64 `json:"packets"`
	Meaning string `json:"meaning"`
}

// drops answers with the packets that devices received and were dropped.
func (a *answer) drops(r *Request) error {
	a.head("PORT", "REASON", ">PACKETS", "MEANING")
	return a.devices(r, func(_ int, p *dataplane.PortSnapshot) error {
		t := sum(p)
		for i, n := range t.dropped {
			if i == 0 || n == 0 && !r.All {
				continue
			}
			reason := dataplane.Reason(i)
			d := dropDoc{p.Info.Name, reason.String(), n, explain.Meaning(reason)}
			if err := a.item(d, d.Port, d.Reason, strconv.FormatUint(n, 10), d.Meaning); err != nil {
				return err
			}
		}
		return nil
	})
}
