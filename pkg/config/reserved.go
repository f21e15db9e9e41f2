package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

// ReservedMemory is what is kept from containers on each NUMA node. In a file it is the kubelet's list, or the text of the
// kubelet's --reserved-memory flag.
type ReservedMemory []Reservation

// Reservation is one entry of the kubelet's reservedMemory.
type Reservation struct {
	NUMANode int `yaml:"numaNode"`
	// Limits are bytes by memory type: memory or hugepages-<size>.
	Limits map[string]ReservedBytes `yaml:"limits"`
}

// ReservedBytes is a number of reserved bytes. As in the kubelet its text is a whole number with a unit: 1536Mi, not 1.5Gi.
type ReservedBytes uint64

// UnmarshalText reads a quantity that is neither a fraction nor negative: the kubelet's Memory Manager could not convert it to bytes.
func (b *ReservedBytes) UnmarshalText(text []byte) error {
	bytes, err := quantity.Parse(string(text))
	if err != nil {
		return err
	}
	if _, decimals, _ := strings.Cut(string(text), "."); strings.ContainsAny(decimals, "0123456789") || strings.ContainsAny(string(text), "mun-") {
		return fmt.Errorf("%q is not a whole number with a unit: write %s", text, quantity.Format(bytes))
	}
	*b = ReservedBytes(bytes)
	return nil
}

// MarshalText writes the shortest exact binary quantity.
func (b ReservedBytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// String is the shortest exact binary quantity.
func (b ReservedBytes) String() string { return quantity.Format(uint64(b)) }

// UnmarshalText reads the text of a --reserved-memory flag, NODE:TYPE=QUANTITY[,TYPE=QUANTITY...] with ";" between nodes. An empty one
// reserves nothing.
func (m *ReservedMemory) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*m = nil
		return nil
	}
	var reserved ReservedMemory
	for group := range strings.SplitSeq(string(text), ";") {
		r, err := parseReservation(group)
		if err != nil {
			return fmt.Errorf("reserved memory %s: %w", strictyaml.Quote(group), err)
		}
		reserved = append(reserved, r)
	}
	*m = reserved
	return nil
}

// UnmarshalJSON reads the list: UnmarshalText is for flags.
func (m *ReservedMemory) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, (*[]Reservation)(m))
}

// String is the text of a --reserved-memory flag: types sorted, groups separated by ";".
func (m ReservedMemory) String() string {
	groups := make([]string, len(m))
	for i, r := range m {
		var limits []string
		for _, memoryType := range slices.Sorted(maps.Keys(r.Limits)) {
			limits = append(limits, memoryType+"="+r.Limits[memoryType].String())
		}
		groups[i] = strconv.Itoa(r.NUMANode) + ":" + strings.Join(limits, ",")
	}
	return strings.Join(groups, ";")
}

func parseReservation(text string) (Reservation, error) {
	node, limits, _ := strings.Cut(text, ":")
	if limits == "" || strings.Contains(limits, ":") {
		return Reservation{}, errors.New("want NODE:TYPE=QUANTITY[,TYPE=QUANTITY...], for example 0:memory=1Gi")
	}
	id, err := strconv.ParseInt(node, 10, 32)
	if err != nil {
		return Reservation{}, fmt.Errorf("%s is not the number of a NUMA node", strictyaml.Quote(node))
	}
	r := Reservation{NUMANode: int(id), Limits: map[string]ReservedBytes{}}
	for limit := range strings.SplitSeq(limits, ",") {
		memoryType, amount, found := strings.Cut(limit, "=")
		if !found || strings.Contains(amount, "=") {
			return Reservation{}, fmt.Errorf("want TYPE=QUANTITY, got %s", strictyaml.Quote(limit))
		}
		if !isMemoryType(memoryType) {
			return Reservation{}, fmt.Errorf("%s is neither memory nor hugepages-<size>", strictyaml.Quote(memoryType))
		}
		if _, twice := r.Limits[memoryType]; twice {
			return Reservation{}, fmt.Errorf("%s is there twice", strictyaml.Quote(memoryType))
		}
		var bytes ReservedBytes
		if err := bytes.UnmarshalText([]byte(amount)); err != nil {
			return Reservation{}, fmt.Errorf("%s: %w", strings.Trim(strictyaml.Quote(memoryType), `"`), err)
		}
		r.Limits[memoryType] = bytes
	}
	return r, nil
}

func isMemoryType(name string) bool {
	return name == "memory" || strings.HasPrefix(name, hugepagesPrefix)
}

const (
	hugepagesPrefix = "hugepages-"
	anyHugepages    = hugepagesPrefix + "<size>"
)
