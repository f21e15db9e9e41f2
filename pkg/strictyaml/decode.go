package strictyaml

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/spelling"
)

// decoder puts nodes into Go values and notes their lines.
type decoder struct {
	doc *Document
	// values is how many more may be read.
	values int
	// root is the type of the whole file.
	root reflect.Type
	// merges allows merge keys (<<), whose fields are not looked at.
	merges bool
}

func (d *decoder) errorf(n *yaml.Node, path, format string, args ...any) error {
	return &Error{File: d.doc.file, Line: n.Line, Path: path, Message: fmt.Sprintf(format, args...)}
}

// visit notes where a node stands, and resolves an alias.
func (d *decoder) visit(n *yaml.Node, path string) (*yaml.Node, error) {
	if d.values--; d.values < 0 {
		return nil, d.errorf(n, path, "the file has more than %d values", mostValues)
	}
	d.doc.lines[path] = n.Line
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.ScalarNode {
		d.doc.texts[path] = n.Value
	}
	return n, nil
}

// value decodes a node into any of the supported kinds.
func (d *decoder) value(n *yaml.Node, path string, into reflect.Value) error {
	n, err := d.visit(n, path)
	if err != nil {
		return err
	}
	kind, null := into.Kind(), isNull(n)
	if null && (kind == reflect.Pointer || kind == reflect.Map || kind == reflect.Slice) {
		into.SetZero()
		return nil
	}
	if text, ok := into.Addr().Interface().(encoding.TextUnmarshaler); ok && n.Kind == yaml.ScalarNode && !null {
		return d.text(n, path, text)
	}
	switch kind {
	case reflect.Pointer:
		into.Set(reflect.New(into.Type().Elem()))
		return d.value(n, path, into.Elem())
	case reflect.Struct:
		return d.structure(n, path, into)
	case reflect.Map:
		return d.mapping(n, path, into)
	case reflect.Slice:
		return d.list(n, path, into)
	}
	return d.scalar(n, path, into)
}

func (d *decoder) structure(n *yaml.Node, path string, into reflect.Value) error {
	fields := fieldsOf(into.Type())
	return d.pairs(n, path, func(key string, keyNode, value *yaml.Node) error {
		if i := slices.Index(fields, key); i >= 0 && key != "" {
			return d.field(keyNode, value, join(path, key), into.Field(i))
		}
		hint := spelling.Hint(key, fields)
		if all := places(d.root, "", key); hint == "" && len(all) > 0 {
			hint = ": it belongs " + spelling.List(all)
		}
		if r, ok := into.Addr().Interface().(Replacer); ok && r.Instead(key) != "" {
			hint = ": " + r.Instead(key)
		}
		return d.errorf(keyNode, path, "unknown field %s%s", Quote(key), hint)
	})
}

// places says where a type has a field, and the types of its fields and items.
func places(of reflect.Type, path, field string) (all []string) {
	for i, name := range fieldsOf(of) {
		below, at := of.Field(i).Type, join(path, name)
		if below.Kind() == reflect.Slice {
			below, at = below.Elem(), at+"[]"
		}
		switch {
		case name != "" && name == field && path == "":
			all = append(all, "at the top level")
		case name != "" && name == field:
			all = append(all, "in "+path)
		case name != "" && below.Kind() == reflect.Struct:
			all = append(all, places(below, at, field)...)
		}
	}
	return all
}

// field decodes the value of a key; the field stands where its key stands.
func (d *decoder) field(key, value *yaml.Node, path string, into reflect.Value) error {
	err := d.value(value, path, into)
	d.doc.lines[path] = key.Line
	return err
}

func (d *decoder) mapping(n *yaml.Node, path string, into reflect.Value) error {
	entries := reflect.MakeMap(into.Type())
	err := d.pairs(n, path, func(key string, keyNode, value *yaml.Node) error {
		entry := reflect.New(into.Type().Elem()).Elem()
		if err := d.field(keyNode, value, join(path, key), entry); err != nil {
			return err
		}
		entries.SetMapIndex(reflect.ValueOf(key).Convert(into.Type().Key()), entry)
		return nil
	})
	if err == nil {
		into.Set(entries)
	}
	return err
}

// pairs walks a mapping's keys, each once, past errors.
func (d *decoder) pairs(n *yaml.Node, path string, visit func(key string, keyNode, value *yaml.Node) error) error {
	if n.Kind != yaml.MappingNode {
		return d.errorf(n, path, "want a mapping of names to values, got %s", Describe(n))
	}
	var errs []error
	seen := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content) && !d.enough(errs); i += 2 {
		var err error
		switch key := n.Content[i]; {
		case key.Kind != yaml.ScalarNode:
			err = d.errorf(key, path, "want a name as the key, got %s", Describe(key))
		case key.ShortTag() == "!!merge" && d.merges:
		case key.ShortTag() == "!!merge":
			err = d.errorf(key, path, "merge keys (<<) are not supported")
		case seen[key.Value] > 0:
			err = d.errorf(key, path, "field %s is already set on line %d", Quote(key.Value), seen[key.Value])
		default:
			seen[key.Value] = key.Line
			err = visit(key.Value, key, n.Content[i+1])
		}
		errs = append(errs, List(err)...)
	}
	return Join(errs...)
}

func (d *decoder) list(n *yaml.Node, path string, into reflect.Value) error {
	entries := reflect.MakeSlice(into.Type(), len(n.Content), len(n.Content))
	err := d.items(n, path, func(i int, item *yaml.Node, path string) error {
		return d.value(item, path, entries.Index(i))
	})
	if err == nil {
		into.Set(entries)
	}
	return err
}

// items walks a sequence, past errors.
func (d *decoder) items(n *yaml.Node, path string, visit func(i int, item *yaml.Node, path string) error) error {
	if n.Kind != yaml.SequenceNode {
		return d.errorf(n, path, "want a list, got %s", Describe(n))
	}
	var errs []error
	for i, item := range n.Content {
		errs = append(errs, List(visit(i, item, path+"["+strconv.Itoa(i)+"]"))...)
		if d.enough(errs) {
			break
		}
	}
	return Join(errs...)
}

// enough reports whether reading on would only repeat errors.
func (d *decoder) enough(errs []error) bool { return d.values < 0 || len(errs) >= mostErrors }

// text hands a scalar to a type that reads itself.
func (d *decoder) text(n *yaml.Node, path string, into encoding.TextUnmarshaler) error {
	if err := d.known(n, path); err != nil {
		return err
	}
	if err := into.UnmarshalText([]byte(n.Value)); err != nil {
		return d.errorf(n, path, "%v", err)
	}
	return nil
}

// scalar decodes text, true and false, and numbers. A string takes a number's digits as they are written, so that
// "cpu: 4" needs no quotes; a number may have quotes.
func (d *decoder) scalar(n *yaml.Node, path string, into reflect.Value) error {
	kind, want := into.Kind(), wanted(into)
	if own, ok := reflect.New(into.Type()).Interface().(encoding.TextUnmarshaler); ok && isNull(n) {
		if err := own.UnmarshalText(nil); err != nil { // it says what would be right
			return d.errorf(n, path, "%v", err)
		}
	}
	if n.Kind != yaml.ScalarNode || isNull(n) {
		return d.errorf(n, path, "want %s, got %s", want, Describe(n))
	}
	if err := d.known(n, path); err != nil {
		return err
	}
	wrong := d.errorf(n, path, "want %s, got %s", want, Quote(n.Value))
	tag := n.ShortTag()
	if kind != reflect.Bool {
		tag = unquoted(n)
	}
	switch kind {
	case reflect.String:
		into.SetString(n.Value)
	case reflect.Bool:
		if tag != "!!bool" {
			return wrong
		}
		into.SetBool(strings.EqualFold(n.Value, "true"))
	case reflect.Float64:
		f, err := strconv.ParseFloat(n.Value, 64)
		if err != nil || tag != "!!float" && tag != "!!int" || math.IsNaN(f) || math.IsInf(f, 0) {
			return wrong
		}
		into.SetFloat(f)
	case reflect.Int, reflect.Int32, reflect.Int64:
		i, err := strconv.ParseInt(n.Value, 10, into.Type().Bits())
		if err != nil || tag != "!!int" {
			return wrong
		}
		into.SetInt(i)
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		u, err := strconv.ParseUint(n.Value, 10, into.Type().Bits())
		if err != nil || tag != "!!int" {
			return wrong
		}
		into.SetUint(u)
	default:
		return d.errorf(n, path, "can not be set in a file")
	}
	return nil
}

// known refuses tags that would give a scalar another meaning.
func (d *decoder) known(n *yaml.Node, path string) error {
	switch n.ShortTag() {
	case "!!str", "!!bool", "!!int", "!!float", "!!timestamp":
		return nil
	}
	return d.errorf(n, path, "tag %s is not supported", Quote(n.Tag))
}

// unquoted is the tag of a scalar without its quotes: where a number is wanted, "0.8" is one, because tools that fill in
// templates (helm --set) quote it.
func unquoted(n *yaml.Node) string {
	return (&yaml.Node{Kind: yaml.ScalarNode, Value: n.Value}).ShortTag()
}

func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// fieldsOf returns the names of a struct's fields by index; unexported and untagged ones have none.
func fieldsOf(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		names[i], _, _ = strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		if names[i] == "-" {
			names[i] = ""
		}
	}
	return names
}

func wanted(into reflect.Value) string {
	if _, ok := into.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return "a text"
	}
	switch into.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Float64:
		return "a number"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		return "a whole number, 0 or more"
	}
	return "a text"
}

// Describe says what a node is, or quotes its text.
func Describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.AliasNode:
		return "an alias"
	case isNull(n):
		return "nothing"
	}
	return Quote(n.Value)
}
