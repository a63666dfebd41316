package show

import (
	"net/netip"
	"strconv"
	"strings"

	"nmfwd/control"
	"nmfwd/fib"
)

// A routeDoc is a route.
type routeDoc struct {
	Prefix   netip.Prefix `json:"prefix"`
	Origin   string       `json:"origin"`
	Type     string       `json:"type"`
	Used     bool         `json:"used"` // of the routes to the prefix, packets follow this one
	Port     string       `json:"port,omitempty"`
	Gateways []gatewayDoc `json:"gateways,omitempty"`
	MTU      uint16       `json:"mtu,omitempty"` // of the route itself
}

// A gatewayDoc is a gateway of a route.
type gatewayDoc struct {
	Gateway  netip.Addr `json:"gateway"`
	Port     string     `json:"port"`
	Weight   uint16     `json:"weight"`   // share of the flows, in proportion to other gateways
	Neighbor string     `json:"neighbor"` // state
	Resolved bool       `json:"resolved"` // packets can be sent to it
}

// typeOf returns the word of the configuration for a kind of route, where there
// is one.
func typeOf(k fib.Kind) string {
	switch k {
	case fib.Via:
		return "via"
	case fib.OnLink:
		return "on-link"
	}
	return k.String()
}

func routeOf(e *control.RouteEntry) *routeDoc {
	d := &routeDoc{Prefix: e.Prefix, Origin: e.Origin.String(), Type: typeOf(e.Kind), Used: e.Used, Port: e.PortName, MTU: e.MTU}
	for _, h := range e.Hops {
		d.Gateways = append(d.Gateways, gatewayDoc{h.Gateway, h.PortName, h.Weight, h.State.String(), h.Resolved})
	}
	return d
}

var routeHead = []string{"PREFIX", "ORIGIN", "TYPE", "USED", "GATEWAY", "PORT", "NEIGHBOR", ">MTU"}

// routeRow adds a route: with several gateways, a row for each.
func (a *answer) routeRow(e *control.RouteEntry) error {
	d := routeOf(e)
	if a.json {
		return a.item(d)
	}
	used, mtu := "no", ""
	if d.Used {
		used = "yes"
	}
	if d.MTU != 0 {
		mtu = strconv.Itoa(int(d.MTU))
	}
	if len(d.Gateways) == 0 {
		return a.item(d, d.Prefix.String(), d.Origin, d.Type, used, "", d.Port, "", mtu)
	}
	for _, g := range d.Gateways {
		if err := a.item(d, d.Prefix.String(), d.Origin, d.Type, used, g.Gateway.String(), g.Port, g.Neighbor, mtu); err != nil {
			return err
		}
	}
	return nil
}

// everything are the prefixes that all routes are within.
var everything = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// routes answers with all routes; with those to a prefix, or within it; or with
// those that cover an address.
func (a *answer) routes(r *Request) error {
	a.head(routeHead...)
	if r.Arg == "" {
		return a.within(everything...)
	}
	p, isAddr, err := r.prefix()
	if err != nil {
		return err
	}
	if r.Longer {
		return a.within(p)
	}
	ask := a.source.Control.ExactRoutes
	if isAddr {
		ask = a.source.Control.CoveringRoutes
	}
	entries, err := ask(a.ctx, p)
	return a.listed(entries, err)
}

func (a *answer) within(prefixes ...netip.Prefix) error {
	for _, p := range prefixes {
		for e, err := range a.source.Control.Routes(a.ctx, p) {
			if err != nil {
				return err
			}
			if err := a.routeRow(&e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *answer) listed(entries []control.RouteEntry, err error) error {
	for i := range entries {
		if err == nil {
			err = a.routeRow(&entries[i])
		}
	}
	return err
}

// A lookupDoc says what becomes of packets to an address.
type lookupDoc struct {
	Address  netip.Addr  `json:"address"`
	Paths    []pathDoc   `json:"paths"`    // one, or several that flows share
	Covering []*routeDoc `json:"covering"` // longest first: packets follow the first
}

// A pathDoc is a way that packets take.
type pathDoc struct {
	Action  string  `json:"action"`
	Port    string  `json:"port,omitempty"`
	Gateway string  `json:"gateway,omitempty"` // next hop: the address itself where it is on the link
	MAC     string  `json:"mac,omitempty"`     // of the next hop
	MTU     uint16  `json:"mtu,omitempty"`
	Share   float64 `json:"share"` // of the flows
}

func pathOf(p *control.PathEntry, to netip.Addr) pathDoc {
	d := pathDoc{Action: p.Action.String(), Share: p.Share}
	switch p.Action {
	case fib.Local, fib.Broadcast:
		d.Port = p.PortName
	case fib.Forward, fib.Verify, fib.Tagged, fib.Glean, fib.Resolve:
		d.Port, d.MTU, d.Gateway = p.PortName, p.MTU, to.String()
		if g := p.NeighborAddr(); g.IsValid() {
			d.Gateway = g.String()
		}
	}
	if p.HeadLen > 0 {
		d.MAC = macString([6]byte(p.Head[:6]))
	}
	return d
}

// String returns the path as a line says it.
func (d *pathDoc) String() string {
	words := []string{d.Action}
	for _, w := range []struct{ name, value string }{{"by", d.Port}, {"to", d.Gateway}, {"at", d.MAC}} {
		if w.value != "" {
			words = append(words, w.name, w.value)
		}
	}
	if d.MTU != 0 {
		words = append(words, "mtu", strconv.Itoa(int(d.MTU)))
	}
	return strings.Join(words, " ")
}

// route answers with what becomes of packets to an address, and with the routes
// that cover it.
func (a *answer) route(r *Request) error {
	to, err := r.addr()
	if err != nil {
		return err
	}
	paths, entries, err := a.source.Control.Lookup(a.ctx, to)
	if err != nil {
		return err
	}
	d := lookupDoc{Address: to, Covering: []*routeDoc{}}
	for i := range paths {
		d.Paths = append(d.Paths, pathOf(&paths[i], to))
	}
	if a.json {
		for i := range entries {
			d.Covering = append(d.Covering, routeOf(&entries[i]))
		}
		return a.item(d)
	}
	if len(d.Paths) == 1 {
		err = a.note("%v: %v", to, &d.Paths[0])
	} else {
		err = a.note("%v: flows share %d paths", to, len(d.Paths))
		for i := range d.Paths {
			err = a.note("  %.1f%% %v", 100*d.Paths[i].Share, &d.Paths[i])
		}
	}
	if err != nil || len(entries) == 0 {
		return err
	}
	a.head(routeHead...)
	return a.listed(entries, nil)
}
