package simulator

import (
	"strings"
	"testing"
)

// Each object keeps its line, and the lines before it are not kept for each object again.
func TestJSONList(t *testing.T) {
	for stream, want := range map[string]string{
		"":                    "",
		"kind: Pod\n":         "kind: Pod\n",
		"{\"a\": 1}\nb: 2\n":  "{\"a\": 1}\nb: 2\n",
		"\n{\n}\n\n  {}":      "[\n{\n},\n\n  {}]",
		"{} {}{}\n":           "[{}, {},{}]",
		manyObjects("{\n}\n"): "[" + strings.TrimSuffix(manyObjects("{\n},\n"), ",\n") + "]",
	} {
		if got, _, err := jsonList("pods.json", []byte(stream)); err != nil || string(got) != want {
			t.Errorf("%.80q becomes %.80q, %v, want %.80q", stream, got, err, want)
		}
	}
}

func manyObjects(one string) string { return strings.Repeat(one, 10000) }
