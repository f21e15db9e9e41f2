package config

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

// Migration bounds the memory of a running container that a write of its cpuset.mems may move to other NUMA nodes. In a file it
// is Always, Never, or a mapping with upTo.
type Migration struct {
	// Always is set where there is no bound.
	Always bool
	// UpTo is the bound in bytes; 0 is Never.
	UpTo quantity.Bytes `yaml:"upTo"`
}

// Most is the bound in bytes, the largest number where there is none.
func (m Migration) Most() uint64 {
	if m.Always {
		return math.MaxUint64
	}
	return uint64(m.UpTo)
}

// String is Always, Never or "UpTo 4Gi".
func (m Migration) String() string {
	switch {
	case m.Always:
		return "Always"
	case m.UpTo == 0:
		return "Never"
	}
	return "UpTo " + m.UpTo.String()
}

// UnmarshalText reads Always or Never.
func (m *Migration) UnmarshalText(text []byte) error {
	switch string(text) {
	case "Always":
		*m = Migration{Always: true}
	case "Never":
		*m = Migration{}
	default:
		return fmt.Errorf("want Always, Never or a mapping such as {upTo: 4Gi}, got %s", strictyaml.Quote(string(text)))
	}
	return nil
}

// UnmarshalJSON reads the fields: UnmarshalText is for files.
func (m *Migration) UnmarshalJSON(data []byte) error {
	type fields Migration
	return json.Unmarshal(data, (*fields)(m))
}

// MarshalYAML writes what a file may have.
func (m Migration) MarshalYAML() (any, error) {
	if m.Always || m.UpTo == 0 {
		return m.String(), nil
	}
	return map[string]quantity.Bytes{"upTo": m.UpTo}, nil
}
