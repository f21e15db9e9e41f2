package nodeset

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"testing/quick"
)

func TestParse(t *testing.T) {
	tests := map[string]struct {
		text string
		want Set
		err  string
	}{
		"nothing":             {text: ""},
		"blank line":          {text: " \n"},
		"one":                 {text: "0", want: Of(0)},
		"range":               {text: "0-1,3", want: Of(0, 1, 3)},
		"spaces and newline":  {text: "0 - 1, 63\n", want: Of(0, 1, 63)},
		"all":                 {text: "0-63", want: ^Set(0)},
		"not a number":        {text: "a", err: `node list "a": "a" is not a node id`},
		"negative":            {text: "-1", err: `node list "-1": "" is not a node id`},
		"open range":          {text: "1-", err: `node list "1-": "" is not a node id`},
		"above the last":      {text: "64", err: `node list "64": node id 64 is above 63`},
		"range above":         {text: "1-70", err: `node list "1-70": node id 70 is above 63`},
		"backwards":           {text: "3-1", err: `node list "3-1": range "3-1" runs backwards`},
		"empty part":          {text: "1,,2", err: `node list "1,,2": "" is not a node id`},
		"number out of range": {text: "99999999999", err: `node list "99999999999": "99999999999" is not a node id`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(test.text)
			if text := errorText(err); got != test.want || text != test.err {
				t.Errorf("got %s, %q, want %s, %q", got, text, test.want, test.err)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestParseIDs(t *testing.T) {
	for text, want := range map[string]string{
		"0,8,252-255\n": "[0 8 252 253 254 255] <nil>", "": "[] <nil>", "1023,3,0-3": "[0 1 2 3 1023] <nil>",
		"0,1024": `[0] node list "0,1024": node id 1024 is above 1023`,
	} {
		ids, err := ParseIDs(text)
		if got := fmt.Sprint(ids, err); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

func TestTextOfAnySetReadsBack(t *testing.T) {
	same := func(s Set) bool {
		data, err := json.Marshal(s)
		var back Set
		read, bad := Parse(s.String())
		return err == nil && bad == nil && read == s && json.Unmarshal(data, &back) == nil && back == s && Of(s.IDs()...) == s && len(s.IDs()) == s.Len()
	}
	if err := quick.Check(same, nil); err != nil {
		t.Error(err)
	}
	for _, s := range []Set{0, 1, ^Set(0), 1 << 63, ^Set(1)} {
		if !same(s) {
			t.Errorf("%s does not read back", s)
		}
	}
}

func TestJSON(t *testing.T) {
	for text, test := range map[string]struct {
		want Set
		err  string
	}{
		"[]":      {},
		"[0,1,3]": {want: Of(0, 1, 3)},
		"[63]":    {want: Of(63)},
		"[64]":    {err: "node list [64]: node id 64 is not between 0 and 63"},
		"[0,-1]":  {err: "node list [0,-1]: node id -1 is not between 0 and 63"},
		`"0-1"`:   {err: `node list "0-1": want a list of ids: json: cannot unmarshal string into Go value of type []int`},
	} {
		var got Set
		if err := json.Unmarshal([]byte(text), &got); got != test.want || errorText(err) != test.err {
			t.Errorf("%s: got %s, %v, want %s, %q", text, got, err, test.want, test.err)
		}
		if written, err := json.Marshal(got); test.err == "" && (err != nil || string(written) != text) {
			t.Errorf("%s is written as %s, %v", text, written, err)
		}
	}
}

func TestSets(t *testing.T) {
	s := Of(1, 2, 5, -1, 64)
	tests := map[string]struct{ got, want any }{
		"text":          {s.String(), "1-2,5"},
		"named":         {s.Named(), "nodes 1-2,5"},
		"one named":     {Of(2).Named(), "node 2"},
		"length":        {s.Len(), 3},
		"has":           {s.Has(5), true},
		"has not":       {s.Has(0), false},
		"has no 64":     {s.Has(64), false},
		"first":         {s.First(), 1},
		"first of none": {Set(0).First(), -1},
		"empty":         {s.Empty(), false},
		"none is empty": {Set(0).Empty(), true},
		"union":         {s.Union(Of(0)), Of(0, 1, 2, 5)},
		"intersect":     {s.Intersect(Of(0, 1)), Of(1)},
		"minus":         {s.Minus(Of(1, 7)), Of(2, 5)},
		"subset":        {Of(1, 5).SubsetOf(s), true},
		"no subset":     {Of(0, 1).SubsetOf(s), false},
	}
	for name, test := range tests {
		if test.got != test.want {
			t.Errorf("%s: got %v, want %v", name, test.got, test.want)
		}
	}
	if ids := Set(0).IDs(); ids == nil || len(ids) != 0 {
		t.Errorf("ids of none are %v, want an empty list", ids)
	}
	for id := range s.All() {
		if id == 2 {
			break
		}
		if !slices.Contains([]int{1, 2}, id) {
			t.Errorf("id %d out of order", id)
		}
	}
}

// Where the kernel moves the pages of nodes 0, 1 and so on at a write of cpuset.mems (do_migrate_pages in mm/mempolicy.c).
func TestRemap(t *testing.T) {
	for _, test := range []struct {
		from, to Set
		want     []int
	}{
		{Of(0, 1), 0, []int{0, 1}},
		{Of(0), Of(1), []int{1}},
		{Of(0, 1), Of(2, 3), []int{2, 3}},
		{Of(0, 1), Of(1, 2), []int{1, 2}}, // as many: each to the same place
		{Of(0, 1), Of(1), []int{1, 1}},    // fewer: those of both stay
		{Of(0, 1, 2, 3), Of(0, 1), []int{0, 1, 0, 1}},
		{Of(0, 1, 2, 3), Of(1, 6, 7), []int{1, 1, 7, 1}},
		{Of(1, 3), Of(0, 2, 4), []int{0, 2}},
	} {
		var got []int
		for id := range test.from.All() {
			got = append(got, test.from.Remap(id, test.to))
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("from %s to %s: %v, want %v", test.from, test.to, got, test.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "0", "0-1,3", "63", "5-2", "1,,2", "0-63\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		if back, err := Parse(s.String()); err != nil || back != s {
			t.Errorf("%q is %s, which reads as %s (%v)", text, s, back, err)
		}
	})
}
