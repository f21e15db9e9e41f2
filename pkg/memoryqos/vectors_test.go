package memoryqos_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// record is one answer of a real kubelet (1.36.3).
type record struct {
	QOS               memoryqos.QOSClass `json:"qos"`
	Request           uint64             `json:"request"`
	Limit             uint64             `json:"limit"`
	NodeAllocatable   uint64             `json:"nodeAllocatable"`
	ThrottlingFactor  *float64           `json:"throttlingFactor"`
	ReservationPolicy string             `json:"reservationPolicy"`
	PageSize          uint64             `json:"pageSize"`
	Unified           map[string]string  `json:"unified"`
}

// TestMemoryHighVectors compares with what a kubelet computed. Further files can be named in MEMORY_HIGH_VECTORS.
func TestMemoryHighVectors(t *testing.T) {
	files := append([]string{"../../testdata/vectors/memory-high.jsonl"},
		filepath.SplitList(os.Getenv("MEMORY_HIGH_VECTORS"))...)
	records, differences := 0, 0
	for _, file := range files {
		if file == "" {
			continue
		}
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for number := 1; lines.Scan(); number++ {
			if len(lines.Bytes()) == 0 {
				continue
			}
			var r record
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				t.Fatalf("%s:%d: %v", file, number, err)
			}
			records++
			if difference := r.compare(); difference != "" {
				differences++
				t.Errorf("%s:%d: %s", file, number, difference)
			}
		}
		if err := lines.Err(); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	if records == 0 {
		t.Error("no records read")
	}
	fmt.Printf("memory.high vectors: %d records, %d differences\n", records, differences)
}

func (r record) compare() string {
	s := memoryqos.Settings{
		Factor: r.ThrottlingFactor, Reservation: memoryqos.ReservationPolicy(r.ReservationPolicy),
		NodeAllocatable: r.NodeAllocatable, PageSize: r.PageSize,
	}
	got := s.Container(memoryqos.Container{Class: r.QOS, Request: r.Request, Limit: r.Limit}, memoryqos.Overrides{})
	// This kubelet sends "0" where nothing is to be protected.
	for file, value := range map[string]*uint64{"memory.min": got.Min, "memory.low": got.Low, "memory.high": got.High} {
		want, set := r.Unified[file]
		if want == "0" && file != "memory.high" {
			set = false
		}
		// This kubelet still skips containers without request and limit; later ones, and we, do not.
		if file == "memory.high" && !set && r.Request == 0 && r.Limit == 0 {
			continue
		}
		if set != (value != nil) || set && want != strconv.FormatUint(*value, 10) {
			return fmt.Sprintf("%+v: %s = %s, want %q", r, file, show(value), r.Unified[file])
		}
	}
	return ""
}

func show(value *uint64) string {
	if value == nil {
		return "not set"
	}
	return strconv.FormatUint(*value, 10)
}
