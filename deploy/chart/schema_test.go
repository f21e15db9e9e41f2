package chart

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	ours "github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/spelling"
)

// schemaOfConfig is where the generated part of values.schema.json begins; it is the last one.
const schemaOfConfig = `  "definitions": `

// formerKeys are keys of earlier configuration files whose error is to say what replaces them, as the daemon's does.
var formerKeys = []string{"dryRun", "numaAllocationStrategy", "onGroupConflict", "onForeignCPUs", "alignTo", "reservedMemoryCheck", "allowedAnnotations",
	"minimumThrottlingFactor", "podResources", "log", "kubeconfig", "nodeName", "requestTimeout", "reconcilePeriod", "rebalance"}

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
	g := generator{choices: ours.Choices(), ranges: ours.Ranges(), comments: comments(t)}
	definitions := map[string]schema{"config": g.of(reflect.TypeFor[ours.Config](), "")}
	for _, key := range formerKeys {
		instead := new(ours.Config).Instead(key)
		if instead == "" {
			t.Errorf("the daemon says nothing of the removed key %s", key)
		}
		definitions["config"].Properties[key] = schema{Description: "Is no more; an error says so.", Const: "left out: " + instead}
	}
	for path := range g.choices {
		t.Errorf("the configuration has no key %s, which has a list of names", path)
	}
	for path := range g.ranges {
		t.Errorf("the configuration has no key %s, which has a range", path)
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

// TestKeysOfTheConfigurationBelongInConfig sets each key of the configuration as a value of the chart.
func TestKeysOfTheConfigurationBelongInConfig(t *testing.T) {
	values, config := valuesSchema(t)
	text := ""
	for key := range config.Properties {
		if _, ok := values.Properties[key]; !ok && !slices.Contains(formerKeys, key) {
			text += key + ": x\n"
		}
	}
	_, err := render(t, text)
	for line := range strings.Lines(text) {
		key, _, _ := strings.Cut(line, ":")
		if want := "at '/" + key + "': value must be 'left out: it is a key of config'"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no error %q: add %s to the pattern at the top of values.schema.json", want, key)
		}
	}
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
	Const                string            `json:"const,omitempty"`
	Minimum              *float64          `json:"minimum,omitempty"`
	ExclusiveMinimum     *float64          `json:"exclusiveMinimum,omitempty"`
	Maximum              *float64          `json:"maximum,omitempty"`
	ExclusiveMaximum     *float64          `json:"exclusiveMaximum,omitempty"`
	MultipleOf           int               `json:"multipleOf,omitempty"`
	Pattern              string            `json:"pattern,omitempty"`
	MinItems             int               `json:"minItems,omitempty"`
	UniqueItems          bool              `json:"uniqueItems,omitempty"`
	Items                *schema           `json:"items,omitempty"`
	MinProperties        int               `json:"minProperties,omitempty"`
	Required             []string          `json:"required,omitempty"`
	Properties           map[string]schema `json:"properties,omitempty"`
	PatternProperties    map[string]schema `json:"patternProperties,omitempty"`
	AdditionalProperties any               `json:"additionalProperties,omitempty"`
	Not                  *schema           `json:"not,omitempty"`
	If                   *schema           `json:"if,omitempty"`
	Then                 *schema           `json:"then,omitempty"`
	Else                 *schema           `json:"else,omitempty"`
}

// want has a value of the right type that is not admitted refused with what would be right, in place of a pattern.
func (admitted schema) want(text string) schema {
	s := schema{Type: admitted.Type, If: &admitted, Else: &schema{Const: text}}
	admitted.Type = nil
	return s
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
	aNumber    = `[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?`
	aQuantity  = `[+]?([0-9]+([.]0*)?([eE][+]?[0-9]+)?|([0-9]+[.]?[0-9]*|[.][0-9]+)([kMGTPE]|[KMGTPE]i))`
	aWhole     = `[+]?0*[1-9][0-9]*[.]?([eE][+]?[0-9]+|[kMGTPE]|[KMGTPE]i)?` // and not 0
	aNode      = `[+]?[0-9]{1,9}`
	aPercent   = `[+]?(0*[0-9]{1,2}([.][0-9]*)?|[.][0-9]+|0*100([.]0*)?)%`
	aLimit     = `(memory|hugepages-[^=,:;]*)=` + aWhole
	aReserved  = aNode + `:` + aLimit + `(,` + aLimit + `)*`
	aWeight    = `[ ]*([^=, ]+[ ]*=[ ]*0*([0-9]{1,2}|100))?[ ]*`
	aNamespace = `[a-z0-9*?]([-a-z0-9*?]*[a-z0-9*?])?` // with wildcards
	aLabel     = `[a-zA-Z0-9*?]([-a-zA-Z0-9_.*?]*[a-zA-Z0-9*?])?`
	aName      = `[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*`
	aScore     = `[+]?0*(1000|[0-9]{1,3})|-0*(99[0-7]|9[0-8][0-9]|[0-8]?[0-9]?[0-9])`
	zero       = `[+]?[0.]*([eE].*)?`
	zeroBytes  = "^(" + zero + "([kMGTPE]|[KMGTPE]i)?)$"

	oneOrLess  = `[+]?(0+([.][0-9]*)?|[.][0-9]+|[0-9]([.][0-9]*)?[eE]-0*[1-9][0-9]*`
	halfOrLess = `[+]?(0+([.]([0-4][0-9]*|50*)?)?|[.]([0-4][0-9]*|50*)|([0-4]([.][0-9]*)?|5([.]0*)?)[eE]-0*1|[0-9]([.][0-9]*)?[eE]-0*([2-9]|[1-9][0-9]+))`
)

const aByteCount = "a quantity such as 128Mi"

func whole(pattern string) string { return "^(" + pattern + ")$" }

// ranged is a number in a range, or its text.
func ranged(r ours.Range) schema {
	s := schema{Type: []string{"number", "string"}, Minimum: new(float64), Maximum: &r.Most}
	pattern := map[float64]string{1: oneOrLess + "|0*1([.]0*)?)", 0.5: halfOrLess}[r.Most]
	if r.Above {
		s.Minimum, s.ExclusiveMinimum = nil, s.Minimum
		pattern = oneOrLess + "|0*1([.]0*)?)" // 0 is left out below
	}
	if r.Below {
		s.Maximum, s.ExclusiveMaximum = nil, s.Maximum
		pattern = oneOrLess + ")"
	}
	if pattern == "" {
		panic(r.Want + ": say here which texts are in this range")
	}
	s.Pattern = whole(pattern)
	return s.want(r.Want)
}

// values returns the schema of a mapping that may have these keys.
func values(names []string, of func(name string) schema) (s schema) {
	s = schema{Type: []string{"object", "null"}, Properties: map[string]schema{}}
	for _, name := range names {
		if prefix, ok := strings.CutSuffix(name, "<size>"); ok {
			s.PatternProperties = map[string]schema{"^" + prefix: of(name)}
			continue
		}
		s.Properties[name] = of(name)
	}
	s.AdditionalProperties = schema{Const: "left out: the names here are " + spelling.List(names)}
	return s
}

type generator struct {
	// choices are the names that keys may hold; those that were used are gone.
	choices  map[string][]string
	ranges   map[string]ours.Range
	comments map[string]string
}

// of returns the schema of a key's type. It admits what the daemon reads: a number with quotes, a text without.
func (g generator) of(t reflect.Type, path string) schema {
	s := g.byType(t, path)
	s.Description = g.comments[path]
	if names, ok := g.choices[path]; ok && t.Kind() != reflect.Map {
		s.Type, s.Enum = []string{"string"}, names
	}
	delete(g.choices, path)
	delete(g.ranges, path)
	return s
}

func (g generator) byType(t reflect.Type, path string) schema {
	bytes := schema{Type: []string{"string", "number"}, Minimum: new(float64), MultipleOf: 1, Pattern: whole(aQuantity)}
	anything := schema{Type: []string{"string", "number", "boolean"}}
	switch t {
	case reflect.TypeFor[quantity.Bytes]():
		return bytes.want(aByteCount)
	case reflect.TypeFor[ours.ReservedBytes]():
		bytes.Minimum, bytes.ExclusiveMinimum, bytes.Pattern = nil, new(float64), whole(aWhole)
		return bytes.want("more than 0, as a whole number with a unit such as 1536Mi")
	case reflect.TypeFor[ours.Tolerance]():
		bytes.Pattern = whole("auto|" + aQuantity)
		return bytes.want("auto, or " + aByteCount)
	case reflect.TypeFor[ours.Duration]():
		return schema{Type: []string{"string", "number"}, Minimum: new(float64), Maximum: new(float64), Pattern: ours.DurationPattern}.want(ours.DurationWanted)
	case reflect.TypeFor[claims.Share]():
		bytes.Pattern = whole(aPercent + "|" + aQuantity)
		return bytes.want("a percentage from 0% to 100%, or a quantity such as 16Gi")
	case reflect.TypeFor[ours.ReservedMemory]():
		items := g.of(t.Elem(), path+"[]")
		s := schema{Type: []string{"array", "string", "null"}, Pattern: whole("(" + aReserved + "(;" + aReserved + ")*)?")}.want(
			"a list of numaNode and limits, or NODE:TYPE=QUANTITY[,TYPE=QUANTITY...] with ; between nodes, such as 0:memory=1Gi;1:memory=1Gi")
		s.Items = &items
		return s
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
		switch t {
		case reflect.TypeFor[ours.Reservation](), reflect.TypeFor[claims.NodeShare]():
			s.Required = []string{"limits"}
		case reflect.TypeFor[ours.AnnotationRule]():
			// With labels it may leave out namespaces.
			s.If = &schema{Not: &schema{Required: []string{"labels"}, Properties: map[string]schema{"labels": {Type: []string{"object"}, MinProperties: 1}}}}
			s.Then = &schema{Required: []string{"namespaces"}, Properties: map[string]schema{"namespaces": {Type: []string{"array"}, MinItems: 1}}}
		}
		return s
	case reflect.Slice:
		items := g.of(t.Elem(), path+"[]")
		s := schema{Type: []string{"array", "null"}, Items: &items}
		switch path {
		case "requestSources":
			s.UniqueItems = true
		}
		return s
	case reflect.Map:
		s := values(g.choices[path], func(name string) schema {
			switch {
			case path == "topologyManagerPolicyOptions":
				return g.policyOption(name, path+"."+name)
			case path == "annotationRules[].defaults":
				return g.annotation(ours.Annotation(name), path+"."+name)
			case path == "evictionHard" && name == "memory.available":
				bytes.Minimum, bytes.ExclusiveMinimum, bytes.Pattern = nil, new(float64), whole(aPercent+"|"+aQuantity)
				s := bytes.want("more than 0, as a quantity such as 100Mi, or a percentage from 0% to 100%")
				s.If.Not = &schema{Type: []string{"string"}, Pattern: zeroBytes}
				return s
			case t.Elem().Kind() != reflect.String || t.Elem() == reflect.TypeFor[claims.Share]():
				return g.byType(t.Elem(), path+"[]")
			case slices.Contains(ours.Choices()["reservedMemory[].limits"], name):
				return bytes.want(aByteCount)
			}
			return anything
		})
		if path == "annotationRules[].labels" {
			anything.Pattern, anything.Minimum = whole(aLabel), new(float64)
			s.Properties, s.AdditionalProperties, s.Type = nil, anything.want("a value or a pattern such as *, of letters, digits, -, _, . and the wildcards * and ?"), []string{"object"}
		}
		if path == "annotationRules[].priorityClasses" {
			s.Properties, s.PatternProperties = nil, map[string]schema{whole(aName): score()}
			s.AdditionalProperties = schema{Const: "left out: names of PriorityClasses are such as team-db"}
		}
		if strings.HasSuffix(path, ".limits") {
			s.Type, s.MinProperties = []string{"object"}, 1
		}
		return s
	case reflect.Bool:
		return schema{Type: []string{"boolean"}}
	case reflect.Float64:
		r, ok := g.ranges[path]
		if !ok {
			panic(path + " has no range")
		}
		s := ranged(r)
		if r.Above {
			s.If.Not = &schema{Type: []string{"string"}, Pattern: whole(zero)}
		}
		return s
	case reflect.Int:
		return schema{Type: []string{"integer", "string"}, Minimum: new(float64), Pattern: whole(aNode)}.want("the number of a NUMA node")
	case reflect.String:
		if path == "annotationRules[].namespaces[]" {
			anything.Pattern, anything.Minimum, anything.MultipleOf = whole(aNamespace), new(float64), 1
			return anything.want("a name or a pattern such as team-*, of a-z, 0-9, - and the wildcards * and ?")
		}
		return anything
	}
	panic("the configuration has no " + t.String() + " yet: say here what it reads")
}

// score is the schema of an oom_score_adj.
func score() schema {
	least, most := float64(ours.LastKilled), float64(ours.FirstKilled)
	s := schema{Type: []string{"string", "number"}, Minimum: &least, Maximum: &most, MultipleOf: 1, Pattern: whole("first|last|" + aScore)}
	return s.want(fmt.Sprintf("first, last or a whole number from %d to %d", ours.LastKilled, ours.FirstKilled))
}

// annotation is the schema of a default of an annotation.
func (g generator) annotation(name ours.Annotation, path string) schema {
	if names, ok := g.choices[path]; ok {
		delete(g.choices, path)
		return schema{Type: []string{"string"}, Enum: names}
	}
	switch name {
	case ours.AnnotationThrottlingFactor:
		s := ranged(ours.Range{Most: 1, Above: true, Want: "more than 0 and at most 1"})
		s.If.Not = &schema{Type: []string{"string"}, Pattern: whole(zero)}
		return s
	case ours.AnnotationOOMScoreAdj:
		return score()
	case ours.AnnotationCacheRoom:
		return ranged(ours.Ranges()["cacheRoom"])
	case ours.AnnotationMemoryHigh:
		s := schema{Type: []string{"string", "number"}, ExclusiveMinimum: new(float64), MultipleOf: 1, Pattern: whole("off|" + aQuantity)}.want(
			`"off", or a quantity such as 900Mi`)
		s.If.Not = &schema{Type: []string{"string"}, Pattern: zeroBytes}
		return s
	}
	panic("there was no annotation " + string(name) + " yet: say here what it reads")
}

// policyOption is the schema of one of topologyManagerPolicyOptions.
func (g generator) policyOption(name, path string) schema {
	if names, ok := g.choices[path]; ok {
		delete(g.choices, path)
		return schema{Type: []string{"string"}, Enum: names}
	}
	s, most := schema{Type: []string{"string", "number", "boolean"}, Minimum: new(float64)}, 1.0
	switch name {
	case "prefer-closest-numa-nodes":
		s.Pattern, s.Maximum, s.MultipleOf = "^(1|t|T|TRUE|true|True|0|f|F|FALSE|false|False)$", &most, 1
		return s.want("true or false")
	case "max-allowable-numa-nodes":
		most = 65535
		s.Type, s.Pattern, s.Maximum, s.MultipleOf = []string{"string", "number"}, "^0*([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$", &most, 1
		return s.want("a number of nodes")
	case "numa-score-weights":
		s.Type, s.Minimum, s.Pattern = []string{"string"}, nil, whole(aWeight+"(,"+aWeight+")*")
		return s.want("RESOURCE=WEIGHT, comma-separated, with whole weights from 0 to 100")
	}
	panic("topologyManagerPolicyOptions have no " + name + " yet: say here what it reads")
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

// TestAFormerKeyIsNamedWithWhatReplacesIt renders the chart with a key of an earlier configuration file.
func TestAFormerKeyIsNamedWithWhatReplacesIt(t *testing.T) {
	if _, err := render(t, "{config: {dryRun: true}}"); err == nil || !strings.Contains(err.Error(), "left out: use profile: Observe") {
		t.Errorf("the error is %v", err)
	}
}
