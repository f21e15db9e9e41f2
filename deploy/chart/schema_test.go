package chart

import (
	"bytes"
	"encoding"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	ours "github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// schemaOfConfig is where the generated part of values.schema.json begins; it is the last one.
const schemaOfConfig = `  "definitions": `

// TestSchemaOfTheConfiguration keeps the schema of the value config: generated from the types of the configuration file, with
// the comments of deploy/config.yaml.
func TestSchemaOfTheConfiguration(t *testing.T) {
	path := filepath.Join(folder, "values.schema.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, _, found := strings.Cut(string(text), schemaOfConfig)
	if !found {
		t.Fatalf("%s has no line that begins with %q", path, schemaOfConfig)
	}
	g := generator{choices: ours.Choices(), comments: comments(t)}
	definitions := map[string]schema{"config": g.of(reflect.TypeFor[ours.Config](), "")}
	for path := range g.choices {
		t.Errorf("the configuration has no key %s, which has a list of names", path)
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("  ", "  ")
	if err := encoder.Encode(definitions); err != nil {
		t.Fatal(err)
	}
	compareGolden(t, path, head+schemaOfConfig+out.String()+"}\n")
}

// TestSchemaAdmitsEveryDefault renders the chart with the file that has every key.
func TestSchemaAdmitsEveryDefault(t *testing.T) {
	text, err := os.ReadFile("../config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range map[string]string{
		"the file with every key": "config:\n  " + strings.ReplaceAll(string(text), "\n", "\n  "),
		"texts for numbers":       `{config: {memoryThrottlingFactor: "0.8", guaranteedHeadroom: "1e-1", stateTolerance: 4096, kubeReserved: {cpu: 4, memory: 1Gi}}}`,
		"both forms of a list":    `{config: {reservedMemory: [{numaNode: "0", limits: {memory: 1073741824}}], kubeReserved: null}}`,
		"the ends of ranges":      `{config: {maxMigrationBytes: 0, stateTolerance: 0}}`,
		"quantities":              `{config: {maxMigrationBytes: .5G, stateTolerance: 1e6, reservedMemory: [{numaNode: 0, limits: {memory: +1Gi, hugepages-1Gi: 1E}}]}}`,
		"the other form":          `{config: {maxMigrationBytes: 1Pi, reservedMemory: "0:memory=1Gi", memoryThrottlingFactor: null, onUnsatisfiable: "", stateTolerance: auto}}`,
	} {
		got, err := render(t, values)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		config(t, got, "nri-memory-manager")
	}
}

// schema is the part of JSON Schema that the configuration needs.
type schema struct {
	Description          string            `json:"description,omitempty"`
	Type                 types             `json:"type,omitempty"`
	Enum                 []string          `json:"enum,omitempty"`
	Minimum              *int              `json:"minimum,omitempty"`
	Pattern              string            `json:"pattern,omitempty"`
	Items                *schema           `json:"items,omitempty"`
	Properties           map[string]schema `json:"properties,omitempty"`
	AdditionalProperties any               `json:"additionalProperties,omitempty"`
}

// types are one name, or a list of several.
type types []string

func (t types) MarshalJSON() ([]byte, error) {
	if len(t) == 1 {
		return json.Marshal(t[0])
	}
	return json.Marshal([]string(t))
}

// Patterns of what the daemon reads from a text.
const (
	aNumber   = `^[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?$`
	aQuantity = `[+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?`
)

type generator struct {
	// choices are the names that keys may hold; those that were used are gone.
	choices  map[string][]string
	comments map[string]string
}

// of returns the schema of a key's type. It admits what the daemon reads: a number with quotes, a text without.
func (g generator) of(t reflect.Type, path string) schema {
	s := g.byType(t, path)
	s.Description = g.comments[path]
	if names, ok := g.choices[path]; ok {
		s.Type, s.Enum = []string{"string"}, names
		delete(g.choices, path)
	}
	return s
}

func (g generator) byType(t reflect.Type, path string) schema {
	switch t {
	case reflect.TypeFor[quantity.Bytes](), reflect.TypeFor[ours.ReservedBytes]():
		return schema{Type: []string{"string", "integer"}, Minimum: new(int), Pattern: "^" + aQuantity + "$"}
	case reflect.TypeFor[ours.Tolerance]():
		return schema{Type: []string{"string", "integer"}, Minimum: new(int), Pattern: "^(auto|" + aQuantity + ")$"}
	case reflect.TypeFor[ours.ReservedMemory]():
		items := g.of(t.Elem(), path+"[]")
		return schema{Type: []string{"array", "string", "null"}, Items: &items}
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		panic(t.String() + " reads itself: say here what it reads")
	}
	switch t.Kind() {
	case reflect.Pointer:
		s := g.byType(t.Elem(), path)
		s.Type = append(s.Type, "null")
		return s
	case reflect.Struct:
		s := schema{Type: []string{"object"}, Properties: map[string]schema{}, AdditionalProperties: false}
		for field := range fields(t) {
			name, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
			s.Properties[name] = g.of(field.Type, strings.TrimPrefix(path+"."+name, "."))
		}
		return s
	case reflect.Slice:
		items := g.of(t.Elem(), path+"[]")
		return schema{Type: []string{"array", "null"}, Items: &items}
	case reflect.Map:
		return schema{Type: []string{"object", "null"}, AdditionalProperties: g.of(t.Elem(), path+".*")}
	case reflect.Bool:
		return schema{Type: []string{"boolean"}}
	case reflect.Float64:
		return schema{Type: []string{"number", "string"}, Pattern: aNumber}
	case reflect.Int:
		return schema{Type: []string{"integer", "string"}, Pattern: aNumber}
	case reflect.String:
		return schema{Type: []string{"string", "number", "boolean"}}
	}
	panic("the configuration has no " + t.String() + " yet: say here what it reads")
}

// fields are a struct's fields that a file may set.
func fields(t reflect.Type) func(yield func(reflect.StructField) bool) {
	return slices.Values(slices.DeleteFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return f.Tag.Get("yaml") == "" || f.Tag.Get("yaml") == "-" }))
}

// comments are what deploy/config.yaml says above each key, in one line.
func comments(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	var collect func(n *yaml.Node, prefix string)
	collect = func(n *yaml.Node, prefix string) {
		for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
			key := n.Content[i]
			paragraphs := strings.Split(key.HeadComment, "\n\n")
			comment, _, _ := strings.Cut(paragraphs[len(paragraphs)-1], "\n#   ") // an example
			comment = strings.ReplaceAll(strings.TrimPrefix(comment, "# "), "\n# ", " ")
			found[prefix+key.Value] = strings.TrimSuffix(comment, " (kubelet)")
			collect(n.Content[i+1], prefix+key.Value+".")
		}
	}
	collect(document.Content[0], "")
	return found
}
