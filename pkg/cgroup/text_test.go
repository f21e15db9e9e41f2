package cgroup

import (
	"encoding/json"
	"fmt"
	"testing"
)

// A value is for people in the log's text form and the file's text in its JSON form; two that differ never read the same.
func TestValuesInTheLog(t *testing.T) {
	for name, test := range map[string]struct {
		a, b        uint64
		text, exact string
	}{
		"far apart":   {2040107008, 2 << 30, "1.9Gi 2Gi", `["2040107008","2147483648"]`},
		"a page less": {4<<30 - 4096, 4 << 30, "3.999996Gi 4Gi", `["4294963200","4294967296"]`},
		"max":         {64 << 20, Max, "64Mi max", `["67108864","max"]`},
		"the default": {0, Max, "0 max", `["0","max"]`},
	} {
		t.Run(name, func(t *testing.T) {
			both := LogApart(test.a, test.b)
			exact, err := json.Marshal(both)
			if text := fmt.Sprintf("%v %v", both[0], both[1]); text != test.text || string(exact) != test.exact || err != nil {
				t.Errorf("got %s and %s, %v; want %s and %s", text, exact, err, test.text, test.exact)
			}
		})
	}
}
