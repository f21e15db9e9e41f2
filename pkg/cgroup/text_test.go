package cgroup

import (
	"encoding/json"
	"fmt"
	"strings"
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

// FuzzParseLimit: what is no limit is an error with no value beside it, and what is one has a text that reads as the same.
func FuzzParseLimit(f *testing.F) {
	for _, text := range []string{"max", "max\n", "0", "4096\n", "-1", "18446744073709551616", "anon ="} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := ParseLimit([]byte(text))
		if err != nil && v != 0 {
			t.Errorf("%q: %v beside %v", text, v, err)
		}
		if again, err2 := ParseLimit([]byte(FormatLimit(v))); err == nil && (err2 != nil || again != v) {
			t.Errorf("%q is %d, which is written as %q", text, v, FormatLimit(v))
		}
	})
}

// A text over an ordinary file leaves nothing of what the file held.
func TestOverwriting(t *testing.T) {
	for name, test := range map[string]struct{ before, text, want string }{
		"a new file":  {"", "0-1", "0-1"},
		"the same":    {"0-1\n", "1", "1"},
		"shorter":     {strings.Repeat("9", 60) + "\n", "max", "max"},
		"longer":      {"1\n", strings.Repeat("9", 60), strings.Repeat("9", 60)},
		"empty":       {"0-1\n", "", ""},
		"no line end": {strings.Repeat("9", 60), "7", "7"},
	} {
		t.Run(name, func(t *testing.T) {
			over := Overwriting(test.text, int64(len(test.before)))
			if got := string(over) + test.before[min(len(over), len(test.before)):]; strings.TrimSpace(got) != test.want {
				t.Errorf("the file holds %q", got)
			}
			if again := Overwriting("0", int64(len(over))); len(again) != len(over) {
				t.Errorf("a value makes %d bytes of %d", len(again), len(over))
			}
		})
	}
}
