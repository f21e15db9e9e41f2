package strictyaml

import (
	"encoding/json"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/spelling"
)

// Documents returns the root of each YAML document of a file; one without content is left out. Their lines are those of the
// file.
func Documents(name string, data []byte) ([]*yaml.Node, error) {
	all, err := documents(name, data, math.MaxInt)
	var roots []*yaml.Node
	for _, document := range all {
		if root := document.Content[0]; !isNull(root) {
			roots = append(roots, root)
		}
	}
	return roots, err
}

// Leaf judges a node of a type that reads itself.
type Leaf func(of reflect.Type, n *yaml.Node) error

// Unknown judges a field that its type lacks, by the path of what has it, its name, whether that is near to a name there, and the error that
// it is otherwise: true has it removed from the node.
type Unknown func(path, field string, near bool, err error) bool

// Check checks the names and kinds of a node's fields against a Go type with json tags, as Kubernetes' API types are, and
// decodes nothing. name is the file, path where in it the node is. What merge keys (<<) bring is left unchecked.
func Check(name, path string, n *yaml.Node, of reflect.Type, leaf Leaf, unknown Unknown) (*Document, error) {
	c := checker{decoder{doc: newDocument(name), values: mostValues, merges: true}, leaf, unknown}
	return c.doc, c.check(n, path, of)
}

type checker struct {
	decoder
	leaf    Leaf
	unknown Unknown
}

var readsItself = reflect.TypeFor[json.Unmarshaler]()

func (c *checker) check(n *yaml.Node, path string, of reflect.Type) error {
	n, err := c.visit(n, path)
	if err != nil {
		return err
	}
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	switch {
	case reflect.PointerTo(of).Implements(readsItself):
		if err := c.leaf(of, n); err != nil {
			return c.errorf(n, path, "%v", err)
		}
		return nil
	case isNull(n) || of.Kind() == reflect.Interface:
		return nil
	}
	switch of.Kind() {
	case reflect.Struct:
		return c.structure(n, path, of)
	case reflect.Map:
		return c.pairs(n, path, func(key string, _, value *yaml.Node) error { return c.check(value, join(path, key), of.Elem()) })
	case reflect.Slice:
		if of.Elem().Kind() == reflect.Uint8 {
			return nil // text in base64
		}
		return c.items(n, path, func(_ int, item *yaml.Node, path string) error { return c.check(item, path, of.Elem()) })
	}
	return c.scalar(n, path, of)
}

func (c *checker) structure(n *yaml.Node, path string, of reflect.Type) error {
	fields := jsonFields(of)
	var removed []*yaml.Node
	err := c.pairs(n, path, func(key string, keyNode, value *yaml.Node) error {
		if field, ok := fields[key]; ok {
			return c.check(value, join(path, key), field)
		}
		hint := spelling.Hint(key, slices.Sorted(maps.Keys(fields)))
		err := c.errorf(keyNode, path, "unknown field %s%s", Quote(key), hint)
		if c.unknown(path, key, hint != "", err) {
			removed = append(removed, keyNode, value)
			return nil
		}
		return err
	})
	n.Content = slices.DeleteFunc(n.Content, func(part *yaml.Node) bool { return slices.Contains(removed, part) })
	return err
}

// oldBools are true and false in YAML 1.1, which Kubernetes reads, and text in YAML 1.2.
const oldBools = "y Y yes Yes YES on On ON n N no No NO off Off OFF"

// scalar checks numbers and text, which the API server takes from no number and no bool. A bool is left to the reader.
func (c *checker) scalar(n *yaml.Node, path string, of reflect.Type) error {
	want := wanted(reflect.New(of).Elem())
	if n.Kind != yaml.ScalarNode {
		return c.errorf(n, path, "want %s, got %s", want, Describe(n))
	}
	switch of.Kind() {
	case reflect.String:
		if slices.Contains([]string{"!!int", "!!float", "!!bool"}, n.ShortTag()) || n.Style == 0 && slices.Contains(strings.Fields(oldBools), n.Value) {
			return c.errorf(n, path, "want text, got %s without quotes: write %q", n.Value, n.Value)
		}
	case reflect.Int, reflect.Int32, reflect.Int64:
		if _, err := strconv.ParseInt(n.Value, 0, of.Bits()); err != nil || n.ShortTag() != "!!int" {
			return c.errorf(n, path, "want %s, got %s", want, Quote(n.Value))
		}
	}
	return nil
}

// jsonFields are a struct's fields by the names of their json tags, those of inlined structs included.
func jsonFields(of reflect.Type) map[string]reflect.Type {
	fields := make(map[string]reflect.Type, of.NumField())
	for i := range of.NumField() {
		field := of.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name != "":
			fields[name] = field.Type
		case strings.Contains(options, "inline") || field.Anonymous:
			maps.Copy(fields, jsonFields(field.Type))
		}
	}
	return fields
}
