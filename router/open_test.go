package router

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"nmfwd/config"
	"nmfwd/dataplane"
	"nmfwd/dataplane/memport"
	"nmfwd/system/nic"
	nicfake "nmfwd/system/nic/fake"
)

// A closing device tells that it was closed.
type closing struct {
	dataplane.Device
	closed func()
}

func (c closing) Close() error { c.closed(); return c.Device.Close() }

// TestOpenIsWholeOrNot opens ports of two backends. When the second one fails, the
// ports of the first are closed again, and the error names the line.
func TestOpenIsWholeOrNot(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprintf("fails %v", fails), func(t *testing.T) {
			region := memport.NewRegion("test", 4096, memport.Stride)
			var opened, closed []string
			backend := func(err error) Backend {
				return Backend{
					Probe: func(string) (dataplane.Rings, error) { return dataplane.Rings{RX: 1, TX: 1}, nil },
					Hosts: func(string) bool { return false },
					Open: func(cfgs []dataplane.PortConfig, _ config.Options, _ *slog.Logger, _ func(string)) (ports []*dataplane.Port, _ error) {
						for _, c := range cfgs {
							if err != nil {
								return nil, &dataplane.PortError{Port: c.Name, Err: err}
							}
							p, err := memport.New(region, memport.Config{Name: c.Name, MAC: c.MAC, RXSlots: 64, TXSlots: 64})
							if err != nil {
								return nil, err
							}
							opened = append(opened, c.Name)
							p.Port.Device = closing{p.Port.Device, func() { closed = append(closed, c.Name) }}
							ports = append(ports, &p.Port)
						}
						return ports, nil
					},
				}
			}
			var second error
			if fails {
				second = errors.New("no card")
			}
			o := Opening{
				Backends: []Backend{backend(nil), backend(second)},
				Choose: func(p *config.Port) (int, error) {
					if p.Name == "vale0:b" {
						return 1, nil
					}
					return 0, nil
				},
				System: func() (nic.System, error) { return &nicfake.System{}, nil },
				Log:    slog.New(slog.DiscardHandler),
			}
			cfg := parse(t, "port vale0:b 198.18.1.1/24\nport vale0:a 198.18.0.1/24\nport vale0:c 198.18.2.1/24\noption workers 1\n")
			d, err := Open(cfg, o)
			if fails {
				if !errors.As(err, new(Unavailable)) || err.Error() != "routes.conf:1:1: no card" {
					t.Errorf("got error %v", err)
				}
				if fmt.Sprint(closed) != "[vale0:c vale0:a]" {
					t.Errorf("opened %v, closed %v", opened, closed)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r, err := New(cfg, d.Ports, Options{Workers: d.Plan.Workers, At: d.At})
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(r.Names()); got != "[vale0:b vale0:a vale0:c]" {
				t.Errorf("ports are %v", got)
			}
			r.Close()
			d.Close()
			if fmt.Sprint(closed) != "[vale0:c vale0:a vale0:b]" {
				t.Errorf("closed %v", closed)
			}
		})
	}
}
