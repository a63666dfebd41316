package config

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

// FuzzParse checks that no text makes Parse panic, that errors have places in
// it, and that what is accepted prints and reads the same.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		lab, "", "port igb1 addr kernel\nroute default reject\n", "vlan 5 on x{1 10.0.0.1/31\nport x{1\n",
		"port igb1.x mtu 9000\nvlan 1 on igb1.x mtu 68\nport igb1 fe80::1/64\nroute ::/0 via fe80::2%igb1 via fe80::3%igb1.x.1\n",
		"route -net 10/8 10.0.0.1 -netmask 255.0.0.0\narp -s 10.0.0.1 0:0:0:0:0:1\n", "option cpus 0,2-3,1\nlisten metrics [::1%lo]:0\n",
		"port vale0:a\narp 10.0.0.1 2:0:0:0:0:1 on netmap:vale0:a\nndp fe80::1%vale0:a 2:0:0:0:0:1\n",
		"route 10.0.0.0/8 via 255.255.255.255\n", "include x\n", "port a 10.0.0.1/8\nport b 10.0.0.2/9\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse("f", text)
		if err != nil {
			var errs Errors
			if !errors.As(err, &errs) || len(errs) == 0 {
				t.Fatalf("error %v (%T), want Errors", err, err)
			}
			lines := bytes.Count(text, []byte("\n")) + 1
			for _, e := range errs {
				if e.Pos.Line() < 1 || e.Pos.Line() > lines || e.Pos.Column() < 1 {
					t.Fatalf("no such place: %v", e)
				}
			}
			return
		}
		roundTrip(t, c)
		if n := NeedsRestart(c, c); n != nil {
			t.Fatalf("changes to itself: %v", n)
		}
		before := bare(c)
		if err := c.Resolve(nil); err != nil {
			t.Fatalf("resolved again: %v", err)
		}
		if after := bare(c); !reflect.DeepEqual(after, before) {
			t.Fatalf("resolved again: got %+v, want %+v", after, before)
		}
	})
}
