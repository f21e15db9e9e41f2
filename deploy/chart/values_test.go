package chart

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// property is what the tests read of a schema's property.
type property struct {
	Description string
	Properties  map[string]property
}

// valuesSchema is the schema of the values. Its descriptions are the one source of what people read about a value.
func valuesSchema(t *testing.T) (values, config property) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		property
		Definitions struct{ Config property }
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	return schema.property, schema.Definitions.Config
}

// documentedValue is one of values.yaml. Below it are keys of the user's choice, if any.
type documentedValue struct {
	path, description string
	value             any
}

// documentedValues are all of values.yaml, with what the schema says of them.
func documentedValues(t *testing.T) []documentedValue {
	t.Helper()
	schema, _ := valuesSchema(t)
	return schema.values("", load(t).Values)
}

func (p property) values(prefix string, defaults map[string]any) (all []documentedValue) {
	for _, name := range slices.Sorted(maps.Keys(defaults)) {
		child, value := p.Properties[name], defaults[name]
		if inner, isMap := value.(map[string]any); isMap && len(child.Properties) > 0 {
			all = append(all, child.values(prefix+name+".", inner)...)
			continue
		}
		all = append(all, documentedValue{prefix + name, child.Description, value})
	}
	return all
}

// TestValuesAreCommented keeps the comments of values.yaml, which `helm show values` prints: the schema's descriptions. Its first
// paragraph is written by hand.
func TestValuesAreCommented(t *testing.T) {
	path := filepath.Join(folder, "values.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, values, found := strings.Cut(string(text), "\n\n")
	if !found {
		t.Fatalf("%s has no first paragraph", path)
	}
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(values), &document); err != nil {
		t.Fatal(err)
	}
	schema, config := valuesSchema(t)
	about := schema.Properties["config"]
	about.Properties = config.Properties
	schema.Properties["config"] = about
	described := map[int]string{}
	describe(t, schema, "", document.Content[0], described)

	var out strings.Builder
	out.WriteString(head + "\n\n")
	for i, line := range strings.Split(strings.TrimSuffix(values, "\n"), "\n") {
		key := strings.TrimLeft(line, " ")
		if strings.HasPrefix(key, "#") {
			continue
		}
		indent := line[:len(line)-len(key)]
		comment := wrapped(described[i+1], 110-len(indent+"# "))
		if len(comment) > 3 {
			t.Errorf("the description of %s has %d lines, want at most 3: %q", key, len(comment), comment)
		}
		for _, part := range comment {
			out.WriteString(indent + "# " + part + "\n")
		}
		out.WriteString(line + "\n")
	}
	compareGolden(t, path, out.String())
}

// describe collects what the schema says of each key, by the key's line. Keys of the user's choice, such as labels, have nothing.
func describe(t *testing.T, schema property, prefix string, values *yaml.Node, described map[int]string) {
	t.Helper()
	for i := 0; values.Kind == yaml.MappingNode && i < len(values.Content) && len(schema.Properties) > 0; i += 2 {
		key := values.Content[i]
		child := schema.Properties[key.Value]
		if child.Description == "" {
			t.Errorf("values.schema.json does not describe %s", prefix+key.Value)
		}
		described[key.Line] = child.Description
		describe(t, child, prefix+key.Value+".", values.Content[i+1], described)
	}
}

// wrapped is a text in lines of at most width characters.
func wrapped(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len(line)+len(" ")+len(word) <= width:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	if line == "" {
		return lines
	}
	return append(lines, line)
}
