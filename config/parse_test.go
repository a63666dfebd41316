package config

import (
	"testing"
)

// lab is the configuration of the APU2 lab.
const lab = `port igb1 198.18.0.205/24 2001:2::205/64
port igb2 198.19.0.205/24 2001:2:0:8000::205/64
route 198.18.0.0/16 via 198.18.0.203
route 198.19.0.0/16 via 198.19.0.203
route 2001:2::/49 via 2001:2::203
route 2001:2:0:8000::/49 via 2001:2:0:8000::203
arp 198.18.0.203 00:1b:21:c4:95:7a
arp 198.19.0.203 00:1b:21:c4:95:7b
ndp 2001:2::203 00:1b:21:c4:95:7a
ndp 2001:2:0:8000::203 00:1b:21:c4:95:7b
`

func TestPrint(t *testing.T) {
	c, err := Parse("lab", []byte(lab))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.String(); got != lab {
		t.Errorf("got:\n%swant:\n%s", got, lab)
	}
}
