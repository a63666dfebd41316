package apu2

import (
	"maps"
	"strings"
	"testing"
)

const exposition = `# HELP nmfwd_receive_packets_total Packets received.
# TYPE nmfwd_receive_packets_total counter
nmfwd_receive_packets_total{device="igb1",queue="0"} 10
nmfwd_receive_packets_total{device="igb1",queue="1"} 5
nmfwd_receive_packets_total{device="igb2",queue="0"} 1
nmfwd_forwarded_packets_total{device="igb1",queue="0",family="ipv4"} 7
nmfwd_forwarded_packets_total{device="igb1",queue="1",family="ipv6"} 4
nmfwd_host_packets_total{device="igb1",queue="0",direction="to_host"} 1
nmfwd_host_packets_total{device="igb1",queue="0",direction="from_host"} 100
nmfwd_host_packets_total{device="igb2",queue="0",direction="to_host"} 1
nmfwd_punted_packets_total{device="igb1",queue="0",kind="arp"} 1
nmfwd_dropped_packets_total{device="igb1",queue="0",reason="ttl"} 1
nmfwd_dropped_packets_total{device="igb1",queue="1",reason="ttl"} 1
process_cpu_seconds_total 1.5e+02
`

func TestMetrics(t *testing.T) {
	m, err := ParseMetrics(strings.NewReader(exposition))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"nmfwd_receive_packets_total", nil, 16},
		{"nmfwd_receive_packets_total", []string{`device="igb1"`}, 15},
		{"nmfwd_receive_packets_total", []string{`queue="0"`, `device="igb1"`}, 10},
		{"nmfwd_receive_packets_total", []string{`device="igb"`}, 0},
		{"nmfwd_receive_packets", nil, 0},
		{"process_cpu_seconds_total", nil, 150},
	} {
		if got := m.Sum(tt.name, tt.labels...); got != tt.want {
			t.Errorf("Sum(%s, %v) = %v, want %v", tt.name, tt.labels, got, tt.want)
		}
	}
	if got, want := m.By("reason", "nmfwd_dropped_packets_total"), map[string]float64{"ttl": 2}; !maps.Equal(got, want) {
		t.Errorf("By(reason) = %v, want %v", got, want)
	}
	if err := m.Conserved(); err != nil {
		t.Errorf("Conserved: %v", err)
	}
	if err := m.Sub(m).Conserved(); err != nil {
		t.Errorf("Conserved of no difference: %v", err)
	}
	m[`nmfwd_dropped_packets_total{device="igb2",queue="0",reason="ttl"}`] = 1
	if err := m.Conserved(); err == nil || !strings.Contains(err.Error(), "igb2: received 1, but") {
		t.Errorf("Conserved: %v, want igb2 named", err)
	}
	if (Metrics{}).Conserved() == nil {
		t.Error("no metrics at all are conserved")
	}
}

func TestUp(t *testing.T) {
	for _, tt := range []struct {
		name string
		m    Metrics
		want bool
	}{
		{"no ports", Metrics{"nmfwd_x": 1}, false},
		{"three", Metrics{`nmfwd_port_up{device="a"}`: 1, `nmfwd_port_up{device="b"}`: 1, `nmfwd_port_up{device="c"}`: 1}, true},
		{"one down", Metrics{`nmfwd_port_up{device="a"}`: 1, `nmfwd_port_up{device="b"}`: 0}, false},
	} {
		if got := tt.m.up(); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestParseMetricsErrors(t *testing.T) {
	for _, s := range []string{"nmfwd_x", "nmfwd_x one", `nmfwd_x{a="b"}`} {
		if m, err := ParseMetrics(strings.NewReader(s)); err == nil {
			t.Errorf("ParseMetrics(%q) = %v, want an error", s, m)
		}
	}
}
