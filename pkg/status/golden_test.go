package status

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// load reads a fixture strictly: a document of this version, no field unknown and none lost.
func load(t *testing.T, name string, document any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(document); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if difference := cmp.Diff(string(want), got); difference != "" {
		t.Errorf("%s (-) and the output (+) differ; UPDATE_GOLDEN=1 rewrites it:\n%s", file, difference)
	}
}

func asJSON(t *testing.T, document any) string {
	t.Helper()
	text, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}

func asYAML(t *testing.T, document any) string {
	t.Helper()
	text, err := yaml.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestOutputsOfStatus(t *testing.T) {
	for _, name := range []string{"busy", "new"} {
		t.Run(name, func(t *testing.T) {
			var document Document
			load(t, name+".json", &document)
			for output, wide := range map[string]bool{"table": false, "wide": true} {
				var text strings.Builder
				if err := document.Table(&text, wide); err != nil {
					t.Fatal(err)
				}
				golden(t, name+"."+output+".txt", text.String())
			}
			golden(t, name+".json", asJSON(t, document)) // the fixture is itself what is written
			golden(t, name+".yaml", asYAML(t, document))
		})
	}
}

func TestOutputsOfExplain(t *testing.T) {
	var documents []Explanation
	load(t, "explain.json", &documents)
	var text strings.Builder
	if err := WriteExplanations(&text, documents); err != nil {
		t.Fatal(err)
	}
	golden(t, "explain.txt", text.String())
	golden(t, "explain.json", asJSON(t, documents))
	golden(t, "explain.yaml", asYAML(t, documents))
	if err := WriteExplanations(&text, nil); err == nil {
		t.Error("nothing was explained without an error")
	}
}
