package apu2

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Metrics are the series of one scrape by name and labels, as written:
// nmfwd_receive_packets_total{device="igb1",queue="0"}.
type Metrics map[string]float64

// ParseMetrics reads the text exposition format.
func ParseMetrics(r io.Reader) (Metrics, error) {
	m := Metrics{}
	for s := bufio.NewScanner(r); ; {
		if !s.Scan() {
			return m, s.Err()
		}
		line := s.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if at < 0 || err != nil {
			return nil, fmt.Errorf("apu2: metrics: %q is not a series and its value", line)
		}
		m[line[:at]] = v
	}
}

// Sum returns the sum of all series called name that have all labels, each
// given as key="value".
func (m Metrics) Sum(name string, labels ...string) float64 {
	var sum float64
	for series, v := range m {
		if has(series, name, labels) {
			sum += v
		}
	}
	return sum
}

// By returns the series called name that have all labels, summed by the value of
// label key.
func (m Metrics) By(key, name string, labels ...string) map[string]float64 {
	by := map[string]float64{}
	for series, v := range m {
		if has(series, name, labels) {
			_, value, _ := strings.Cut(series, key+`="`)
			value, _, _ = strings.Cut(value, `"`)
			by[value] += v
		}
	}
	return by
}

// up reports whether there are ports and all are up.
func (m Metrics) up() bool {
	ports := m.By("device", "nmfwd_port_up")
	for _, v := range ports {
		if v != 1 {
			return false
		}
	}
	return len(ports) > 0
}

// has reports whether a series has a name and labels.
func has(series, name string, labels []string) bool {
	n, rest, _ := strings.Cut(series, "{")
	if n != name {
		return false
	}
	have := strings.Split(strings.TrimSuffix(rest, "}"), ",")
	for _, l := range labels {
		if !slices.Contains(have, l) {
			return false
		}
	}
	return true
}

// Sub returns how much m grew since old.
func (m Metrics) Sub(old Metrics) Metrics {
	d := Metrics{}
	for series, v := range m {
		d[series] = v - old[series]
	}
	return d
}

// Conserved returns an error that names each port whose packets are not
// accounted for: received = forwarded + to the host + punted + dropped.
func (m Metrics) Conserved() error {
	var errs []error
	received := m.By("device", "nmfwd_receive_packets_total")
	if len(received) == 0 {
		return errors.New("no port counts what it receives")
	}
	for _, port := range sortedKeys(received) {
		device := `device="` + port + `"`
		forwarded := m.Sum("nmfwd_forwarded_packets_total", device)
		host := m.Sum("nmfwd_host_packets_total", device, `direction="to_host"`)
		punted := m.Sum("nmfwd_punted_packets_total", device)
		dropped := m.Sum("nmfwd_dropped_packets_total", device)
		if received[port] != forwarded+host+punted+dropped {
			errs = append(errs, fmt.Errorf("%s: received %.0f, but forwarded %.0f + to host %.0f + punted %.0f + dropped %.0f = %.0f",
				port, received[port], forwarded, host, punted, dropped, forwarded+host+punted+dropped))
		}
	}
	return errors.Join(errs...)
}

func sortedKeys(m map[string]float64) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
