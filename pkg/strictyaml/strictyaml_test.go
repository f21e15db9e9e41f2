package strictyaml

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// duration reads itself.
type duration time.Duration

func (d *duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = duration(parsed)
	return err
}

// words are a list in a file, or a text with commas.
type words []string

func (w *words) UnmarshalText(text []byte) error {
	*w = strings.Split(string(text), ",")
	return nil
}

type inner struct {
	On     bool     `yaml:"on"`
	Window duration `yaml:"window"`
}

type sample struct {
	Name    string            `yaml:"name"`
	Share   float64           `yaml:"share"`
	Factor  *float64          `yaml:"factor"`
	Count   int               `yaml:"count"`
	Small   int32             `yaml:"small"`
	Pages   uint64            `yaml:"pages"`
	Labels  map[string]string `yaml:"labels"`
	List    []inner           `yaml:"list"`
	Words   words             `yaml:"words"`
	Inner   inner             `yaml:"inner"`
	Channel chan int          `yaml:"channel"`
	Skipped string            `yaml:"-"`
	Untaged string
	private string
}

func TestDecode(t *testing.T) {
	factor := 0.5
	got := sample{Name: "kept", Factor: new(float64), Labels: map[string]string{"old": "gone"}, private: "kept"}
	doc, err := Decode("f.yaml", []byte(`# comment
share: 1e-1
factor: 0.5
count: -3
small: 7
pages: 18446744073709551615
labels: {cpu: 4, memory: 1Gi, on: true, day: 2001-01-01}
list:
- {on: true, window: 1s}
- &second {window: 2m}
- *second
words: [a, b]
inner:
  on: True
`), &got)
	if err != nil {
		t.Fatal(err)
	}
	want := sample{Name: "kept", Share: 0.1, Factor: &factor, Count: -3, Small: 7, Pages: 1<<64 - 1,
		Labels: map[string]string{"cpu": "4", "memory": "1Gi", "on": "true", "day": "2001-01-01"},
		List:   []inner{{true, duration(time.Second)}, {false, duration(2 * time.Minute)}, {false, duration(2 * time.Minute)}},
		Words:  words{"a", "b"}, Inner: inner{On: true}, private: "kept"}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(sample{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for path, want := range map[string]string{
		"list[0].window": "f.yaml:9: list[0].window: too short",
		"list[0].absent": "f.yaml:9: list[0].absent: too short",
		"inner.window":   "f.yaml:13: inner.window: too short",
		"absent":         "f.yaml: absent: too short",
		"":               "f.yaml: too short",
	} {
		if err := doc.Errorf(path, "too %s", "short"); err.Error() != want {
			t.Errorf("error at %q = %q, want %q", path, err, want)
		}
	}
	if !doc.Has("labels.cpu") || doc.Has("name") {
		t.Error("the document does not know which fields it has")
	}
}

func TestNullEmptiesAndTextFillsLists(t *testing.T) {
	factor := 0.5
	got := sample{Factor: &factor, Labels: map[string]string{"a": "b"}, List: []inner{{}}}
	if _, err := Decode("f", []byte("factor: null\nlabels: ~\nlist:\nwords: a,b"), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample{Words: words{"a", "b"}}, got, cmp.AllowUnexported(sample{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNumbersMayHaveQuotes(t *testing.T) {
	var got sample
	if _, err := Decode("f", []byte(`{share: "0.8", factor: '1e-1', count: "-3", small: "7", pages: "4096"}`), &got); err != nil {
		t.Fatal(err)
	}
	factor := 0.1
	if diff := cmp.Diff(sample{Share: 0.8, Factor: &factor, Count: -3, Small: 7, Pages: 4096}, got, cmp.AllowUnexported(sample{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFileWithoutContentChangesNothing(t *testing.T) {
	for _, text := range []string{"", "\n# only a comment\n", "---\n", "null"} {
		got := sample{Name: "kept"}
		if _, err := Decode("f", []byte(text), &got); err != nil || got.Name != "kept" {
			t.Errorf("%q: %v, name %q", text, err, got.Name)
		}
	}
}

func TestBadFileIsOneClearError(t *testing.T) {
	tests := map[string]struct{ text, want string }{
		"unknown field":            {"name: x\nnmae: y", `f:2: unknown field "nmae", did you mean "name"?`},
		"unknown field below":      {"inner:\n  windwo: 1s", `f:2: inner: unknown field "windwo", did you mean "window"?`},
		"case of a field":          {"Name: x", `f:1: unknown field "Name", did you mean "name"?`},
		"field of a field":         {"name: x\nwindow: 1s", `f:2: unknown field "window": it belongs in list[] or in inner`},
		"field of what is above":   {"inner:\n  share: 1", `f:2: inner: unknown field "share": it belongs at the top level`},
		"empty field":              {`"": x`, `f:1: unknown field ""`},
		"untagged field":           {"Untaged: x", `f:1: unknown field "Untaged"`},
		"hidden field":             {`"-": x`, `f:1: unknown field "-"`},
		"hostile field":            {`"\0` + strings.Repeat("z", 100) + `": x`, `f:1: unknown field "\x00` + strings.Repeat("z", 79) + `"…`},
		"twice":                    {"name: x\nname: y", `f:2: field "name" is already set on line 1`},
		"twice in a map":           {"labels: {a: 1, a: 2}", `f:1: labels: field "a" is already set on line 1`},
		"two documents":            {"name: x\n---\nname: y", "f:2: second document: only one is read"},
		"bad second document":      {"name: x\n---\n[", "f:3: did not find expected node content"},
		"not YAML":                 {"name: [", "f:1: did not find expected node content"},
		"tab":                      {"inner:\n\ton: true", "f:2: column 1: a TAB character; indent with spaces"},
		"tab on the first line":    {"\tname: x", "f:1: column 1: a TAB character; indent with spaces"},
		"tab behind spaces":        {"inner:\n  \ton: true", "f:2: column 3: a TAB character; indent with spaces"},
		"tab behind a value":       {"name: x\ninner:\n  on: true\n\twindow: 1s", "f:4: column 1: a TAB character; indent with spaces"},
		"tab behind a text":        {"name: x\n  y\n\n\tz", "f:4: column 1: a TAB character; indent with spaces"},
		"tab behind quotes":        {"inner:\n  window: '1s'\n\ton: true", "f:3: column 1: a TAB character; indent with spaces"},
		"tab in a list":            {"words:\n-\ta: b", "f:2: column 2: a TAB character; indent with spaces"},
		"tab before an item":       {"words:\n  - a\n\t- b", "f:3: column 1: a TAB character; indent with spaces"},
		"tab in a text":            {"name: |\n  x\n\ty", "f:3: column 1: a TAB character; indent with spaces"},
		"tab alone on a line":      {"inner:\n  on: true\n\t\n  window: 1s", "f:3: column 1: a TAB character; indent with spaces"},
		"tab before a comment":     {"inner:\n  on: true\n\t# off\n", "f:3: column 1: a TAB character; indent with spaces"},
		"tab with CRLF":            {"inner:\r\n\ton: true\r\n", "f:2: column 1: a TAB character; indent with spaces"},
		"tab after what is wrong":  {"name: @x\ninner:\n\ton: true", "f: found character that cannot start any token"},
		"tab before what is wrong": {"inner:\n\t@x: y", "f:2: column 1: a TAB character; indent with spaces"},
		"tab that is no matter":    {"inner: {\n\ton: @x}", "f:2: found character that cannot start any token"},
		"control":                  {"name: \x01", "f: control characters are not allowed"},
		"list for a struct":        {"- a", "f:1: want a mapping of names to values, got a list"},
		"text for a struct":        {"inner: on", `f:1: inner: want a mapping of names to values, got "on"`},
		"null for a struct":        {"inner:", "f:1: inner: want a mapping of names to values, got nothing"},
		"text for a list":          {"list: a", `f:1: list: want a list, got "a"`},
		"mapping for a text":       {"name: {}", "f:1: name: want a text, got a mapping"},
		"null for a text":          {"name:", "f:1: name: want a text, got nothing"},
		"null for a text of ours":  {"inner: {window: null}", `f:1: inner.window: time: invalid duration ""`},
		"list for a text of ours":  {"inner: {window: []}", "f:1: inner.window: want a text, got a list"},
		"wrong text of ours":       {"list:\n- window: soon", `f:2: list[0].window: time: invalid duration "soon"`},
		"text for a bool":          {"inner: {on: yes}", `f:1: inner.on: want true or false, got "yes"`},
		"number for a bool":        {"inner: {on: 1}", `f:1: inner.on: want true or false, got "1"`},
		"NaN":                      {"share: .nan", `f:1: share: want a number, got ".nan"`},
		"nan as text":              {"share: nan", `f:1: share: want a number, got "nan"`},
		"infinity":                 {"factor: -.inf", `f:1: factor: want a number, got "-.inf"`},
		"too large float":          {"share: 1e999", `f:1: share: want a number, got "1e999"`},
		"quoted NaN":               {`share: ".nan"`, `f:1: share: want a number, got ".nan"`},
		"quoted hexadecimal":       {`share: "0x1p-2"`, `f:1: share: want a number, got "0x1p-2"`},
		"number with a blank":      {`share: "0.5 "`, `f:1: share: want a number, got "0.5 "`},
		"empty for a number":       {`factor: ""`, `f:1: factor: want a number, got ""`},
		"quoted null":              {`factor: "null"`, `f:1: factor: want a number, got "null"`},
		"quoted fraction":          {`count: "1.5"`, `f:1: count: want a whole number, got "1.5"`},
		"quoted bool":              {`inner: {on: "true"}`, `f:1: inner.on: want true or false, got "true"`},
		"fraction for a whole":     {"count: 1.5", `f:1: count: want a whole number, got "1.5"`},
		"hexadecimal":              {"count: 0x10", `f:1: count: want a whole number, got "0x10"`},
		"too large for its bits":   {"small: 2147483648", `f:1: small: want a whole number, got "2147483648"`},
		"negative":                 {"pages: -1", `f:1: pages: want a whole number, 0 or more, got "-1"`},
		"channel":                  {"channel: 1", "f:1: channel: can not be set in a file"},
		"merge":                    {"inner: {<<: {on: true}}", "f:1: inner: merge keys (<<) are not supported"},
		"list as a key":            {"labels: {[a]: b}", "f:1: labels: want a name as the key, got a list"},
		"alias as a key":           {"name: &n x\nlabels: {*n : b}", "f:2: labels: want a name as the key, got an alias"},
		"unknown alias":            {"name: x\nlist: [*-n]", "f:2: unknown anchor '-n' referenced; a text that begins with * needs quotes"},
		"indented too far":         {"name: x\n  list: [a]", "f:2: mapping values are not allowed in this context; is the line indented like its neighbours, and a text with a colon in quotes?"},
		"a colon in a text":        {"name: x: y", "f:1: mapping values are not allowed in this context; is the line indented like its neighbours, and a text with a colon in quotes?"},
		"indented too little":      {"a:\n  b: 1\n c: 2", "f:2: did not find expected key; is the line, or the one before it, indented like its neighbours?"},
		"wildcard in a list":       {"name: x\nlist: [a?b]", "f:1: did not find expected ',' or ']'; a text with ? or ! needs quotes"}, // the reader has the line before
		"binary":                   {"name: !!binary eA==", `f:1: name: tag "!!binary" is not supported`},
		"own tag for ours":         {"inner: {window: !x 1s}", `f:1: inner.window: tag "!x" is not supported`},
		"strange key in the path":  {"labels: {\"a\\nb\": {}}", `f:1: labels."a\nb": want a text, got a mapping`},
		"long key in the path":     {"labels: {" + strings.Repeat("k", 81) + ": {}}", `f:1: labels."` + strings.Repeat("k", 80) + `"…: want a text, got a mapping`},
		"alias to itself":          {"list: &l [*l]", "f:1: list[0]: want a mapping of names to values, got a list"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Decode("f", []byte(tc.text), &sample{})
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("error = %v\nwant    %s", err, tc.want)
			}
			var located *Error
			if !errors.As(err, &located) || located.File != "f" {
				t.Errorf("error %T names no file", err)
			}
		})
	}
}

func TestAliasesCannotMakeAFileLarger(t *testing.T) {
	var into struct {
		A [][][]string `yaml:"a"`
		B []string     `yaml:"b"`
	}
	row := "[" + strings.Repeat("x,", 200) + "]"
	text := "b: &b " + row + "\na: [ &c [" + strings.Repeat("*b,", 200) + "]," + strings.Repeat("*c,", 200) + "]"
	_, err := Decode("f", []byte(text), &into)
	if err == nil || !strings.HasSuffix(err.Error(), "the file has more than 100000 values") {
		t.Errorf("error = %v", err)
	}
	if _, err := Decode("f", make([]byte, largestFile+1), &into); err == nil || err.Error() != "f: is larger than 1048576 bytes" {
		t.Errorf("error = %v", err)
	}
}

// FuzzDecode: any text fills the struct or is one located error.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{"name: x", "list:\n- &a {on: true}\n- *a", "labels: {a: 1}\n---\n", "factor: .nan", "words: a,b", "a: &a [*a]", "<<: {}", "? [a]\n: b"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var got sample
		doc, err := Decode("f", data, &got)
		if err == nil {
			_ = doc.Errorf("list[0].window", "x")
			return
		}
		var located *Error
		if !errors.As(err, &located) || located.Line < 0 || strings.ContainsAny(err.Error(), "\n\x00\x1b") {
			t.Errorf("%T: %q", err, err)
		}
	})
}

// TABs are fine where they do not indent.
func TestTabsThatAreNoIndentation(t *testing.T) {
	for _, text := range []string{"name:\tx\t# a comment\n", "inner: {\n\ton: true,\n\twindow: 1s\n}\n", "name: \"x\n\ty\"\n", "words: [a,\n\tb]\n"} {
		if _, err := Decode("f", []byte(text), &sample{}); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}
