package spelling

import (
	"strings"
	"testing"
)

func TestHintOnlyWhereANameIsNear(t *testing.T) {
	keys := []string{"dra", "dryRun", "log", "migration", "events", "topologyManagerPolicy", "topologyManagerPolicyOptions"}
	commands := []string{"run", "simulate", "state", "status", "explain", "verify", "version"}
	for name, test := range map[string]struct {
		word  string
		names []string
		want  string
	}{
		"two letters swapped":        {"statsu", commands, "status"},
		"two letters swapped inside": {"simluate", commands, "simulate"},
		"a letter left out":          {"verfy", commands, "verify"},
		"a letter too many":          {"sstatus", commands, "status"},
		"a letter replaced":          {"ecents", keys, "events"},
		"another case":               {"topologymanagerpolicy", keys, "topologyManagerPolicy"},
		"a short name":               {"dar", keys, "dra"},
		"a plural":                   {"logs", keys, "log"},
		"the first of equals":        {"stats", commands, "state"},
		"begun, of equals":           {"statu", commands, "status"},
		"begun":                      {"topologyManager", keys, "topologyManagerPolicy"},
		"a part left out":            {"topologyPolicy", keys, "topologyManagerPolicy"},
		"a separator too many":       {"dry-run", keys, "dryRun"},
		"hardly begun":               {"topology", keys, ""},
		"nothing in common":          {"kind", keys, ""},
		"another word":               {"apiVersion", keys, ""},
		"another command":            {"fly", commands, ""},
		"every letter replaced":      {"x", []string{"y"}, ""},
		"empty":                      {"", commands, ""},
		"an empty name":              {"a", []string{""}, ""},
		"no names":                   {"run", nil, ""},
		"very long":                  {strings.Repeat("run", 1<<20), commands, ""},
		"not UTF-8":                  {"\xff", []string{"numa"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			want := ""
			if test.want != "" {
				want = `, did you mean "` + test.want + `"?`
			}
			if got := Hint(test.word, test.names); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}

func TestHintOrListsTheNames(t *testing.T) {
	for _, test := range []struct {
		word  string
		names []string
		want  string
	}{
		{"nuna", []string{"numa", "reservation"}, `, did you mean "numa"?`}, {"cpu", []string{"numa", "reservation"}, "; want numa or reservation"},
		{"cpu", []string{"numa", "reservation", "guard"}, "; want numa, reservation or guard"}, {"cpu", []string{"numa"}, "; want numa"},
	} {
		if got := HintOr(test.word, test.names); got != test.want {
			t.Errorf("%q among %q: %q, want %q", test.word, test.names, got, test.want)
		}
	}
}

func TestEdits(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"a", "a", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abd", 1}, {"abc", "acb", 1}, {"ab", "ba", 1}, {"abcd", "badc", 2},
		{"kitten", "sitting", 3}, {"ca", "abc", 3}, {"kind", "dra", 4},
	} {
		if got := edits(test.a, test.b); got != test.want || edits(test.b, test.a) != got {
			t.Errorf("%q and %q: %d, want %d both ways", test.a, test.b, got, test.want)
		}
	}
}
