package recording

import (
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// leftOut are fields that are not written: what belongs to the owners of the pods, what no decision needs, and what is for the
// log.
var leftOut = map[reflect.Type][]string{
	reflect.TypeFor[ledger.Pod]():     {"Annotations"},
	reflect.TypeFor[ledger.Effects](): {"Notes"},
	reflect.TypeFor[config.Config]():  {"origin"}, // for messages about the file
}

// cached is the type of fields that are made again from others.
var cached = reflect.TypeFor[*ledger.PodView]()

// The keys of an object that stands for a pointer: its number where it is first, and where it is again.
const (
	keyNumber = "&"
	keyAgain  = "*"
)

// mostDepth ends the encoding of a value that contains itself without pointers being numbered.
const mostDepth = 100

var (
	typeTime  = reflect.TypeFor[time.Time]()
	typeError = reflect.TypeFor[error]()
)

// encoder writes any value of structs, pointers, maps, lists and scalars as JSON, private fields included. Fields that are
// zero are not written.
type encoder struct {
	out []byte
	// anchor is the moment from which all times are counted.
	anchor time.Time
	// numbers are those of the pointers to structs by address and type; nil writes them as often as they are met.
	numbers map[pointer]int
	depth   int
}

type pointer struct {
	address uintptr
	of      reflect.Type
}

// encode returns a value's JSON. graph keeps pointers to the same struct the same.
func encode(value any, anchor time.Time, graph bool) ([]byte, error) {
	e := encoder{anchor: anchor}
	if graph {
		e.numbers = map[pointer]int{}
	}
	v := reflect.ValueOf(value)
	if v.Kind() != reflect.Pointer {
		v = addressable(v)
	} else {
		v = v.Elem()
	}
	if graph && v.Kind() == reflect.Struct {
		v = addressable(v.Addr())
	}
	err := e.encode(v)
	return e.out, err
}

// addressable returns a copy that has an address: without one, private fields cannot be read.
func addressable(v reflect.Value) reflect.Value {
	copied := reflect.New(v.Type()).Elem()
	copied.Set(v)
	return copied
}

// field returns a struct's field, accessible where it is private too.
func field(v reflect.Value, index int) reflect.Value {
	f := v.Field(index)
	return reflect.NewAt(f.Type(), f.Addr().UnsafePointer()).Elem()
}

func (e *encoder) encode(v reflect.Value) error {
	if e.depth++; e.depth > mostDepth {
		return fmt.Errorf("%s contains itself", v.Type())
	}
	defer func() { e.depth-- }()
	switch {
	case v.Type() == typeTime:
		e.string(e.moment(v.Interface().(time.Time)).Format(time.RFC3339Nano))
		return nil
	case hasText(v.Type()):
		text, err := v.Interface().(encoding.TextMarshaler).MarshalText()
		e.string(string(text))
		return err
	}
	switch v.Kind() {
	case reflect.Bool:
		e.out = strconv.AppendBool(e.out, v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		e.out = strconv.AppendInt(e.out, v.Int(), 10)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		e.out = strconv.AppendUint(e.out, v.Uint(), 10)
	case reflect.Float32, reflect.Float64:
		e.float(v.Float())
	case reflect.String:
		e.string(v.String())
	case reflect.Slice, reflect.Array:
		return e.list(v)
	case reflect.Map:
		return e.mapping(v)
	case reflect.Struct:
		return e.structure(v, 0)
	case reflect.Pointer:
		return e.pointer(v)
	case reflect.Interface:
		return e.failure(v)
	default:
		return fmt.Errorf("%s cannot be recorded", v.Type())
	}
	return nil
}

// moment is a time counted from the anchor by the monotonic clock.
func (e *encoder) moment(t time.Time) time.Time {
	if t.IsZero() {
		return t.UTC()
	}
	return e.anchor.Add(t.Sub(e.anchor)).Round(0).UTC()
}

// hasText reports whether a scalar has a text form that can be read again.
func hasText(t reflect.Type) bool {
	if text, known := texts.Load(t); known {
		return text.(bool)
	}
	text := false
	switch t.Kind() {
	case reflect.Struct, reflect.Pointer, reflect.Interface, reflect.Map, reflect.Slice, reflect.Array:
	default:
		text = t.Implements(reflect.TypeFor[encoding.TextMarshaler]()) &&
			reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	}
	texts.Store(t, text)
	return text
}

var texts sync.Map // reflect.Type → bool

func (e *encoder) string(text string) {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(text) // a string never fails
			e.out = append(e.out, quoted...)
			return
		}
	}
	e.out = append(append(append(e.out, '"'), text...), '"')
}

func (e *encoder) float(value float64) {
	text := strconv.FormatFloat(value, 'g', -1, 64)
	if math.IsNaN(value) || math.IsInf(value, 0) {
		e.string(text) // JSON has no number for it
		return
	}
	e.out = append(e.out, text...)
}

// list writes an array without the zeros at its end.
func (e *encoder) list(v reflect.Value) error {
	if v.Kind() == reflect.Slice && v.IsNil() {
		e.null()
		return nil
	}
	length := v.Len()
	for v.Kind() == reflect.Array && length > 0 && v.Index(length-1).IsZero() {
		length--
	}
	e.out = append(e.out, '[')
	for i := range length {
		if i > 0 {
			e.out = append(e.out, ',')
		}
		if err := e.encode(v.Index(i)); err != nil {
			return err
		}
	}
	e.out = append(e.out, ']')
	return nil
}

func (e *encoder) null() { e.out = append(e.out, "null"...) }

// mapping writes a map sorted by key: an object where the keys are strings, else a list of pairs.
func (e *encoder) mapping(v reflect.Value) error {
	if v.IsNil() {
		e.null()
		return nil
	}
	begin, between, end := byte('{'), byte(':'), byte('}')
	pairs := v.Type().Key().Kind() != reflect.String
	if pairs {
		begin, between, end = '[', ',', ']'
	}
	keys := v.MapKeys()
	slices.SortFunc(keys, compareKeys)
	e.out = append(e.out, begin)
	for i, key := range keys {
		if i > 0 {
			e.out = append(e.out, ',')
		}
		if pairs {
			e.out = append(e.out, '[')
		}
		if err := e.encode(addressable(key)); err != nil {
			return err
		}
		e.out = append(e.out, between)
		if err := e.encode(addressable(v.MapIndex(key))); err != nil {
			return err
		}
		if pairs {
			e.out = append(e.out, ']')
		}
	}
	e.out = append(e.out, end)
	return nil
}

func compareKeys(a, b reflect.Value) int {
	switch {
	case a.Kind() == reflect.String:
		return cmp.Compare(a.String(), b.String())
	case a.CanInt():
		return cmp.Compare(a.Int(), b.Int())
	case a.CanUint():
		return cmp.Compare(a.Uint(), b.Uint())
	}
	return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b))
}

// structure writes a struct; number is that of the pointer to it, 0 when it has none.
func (e *encoder) structure(v reflect.Value, number int) error {
	e.out = append(e.out, '{')
	first := true
	key := func(name string) {
		if !first {
			e.out = append(e.out, ',')
		}
		first = false
		e.out = append(append(append(e.out, '"'), name...), '"', ':')
	}
	if number > 0 {
		key(keyNumber)
		e.out = strconv.AppendInt(e.out, int64(number), 10)
	}
	for _, f := range fieldsOf(v.Type()) {
		value := field(v, f.index)
		if value.IsZero() {
			continue
		}
		key(f.name)
		if err := e.encode(value); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	e.out = append(e.out, '}')
	return nil
}

// structField is a field that is written.
type structField struct {
	index int
	name  string
}

var structs sync.Map // reflect.Type → []structField

func fieldsOf(t reflect.Type) []structField {
	if fields, known := structs.Load(t); known {
		return fields.([]structField)
	}
	fields := []structField{}
	for i := range t.NumField() {
		f := t.Field(i)
		if slices.Contains(leftOut[t], f.Name) || f.Type == cached {
			continue
		}
		fields = append(fields, structField{index: i, name: f.Name})
	}
	structs.Store(t, fields)
	return fields
}

func (e *encoder) pointer(v reflect.Value) error {
	switch {
	case v.IsNil():
		e.null()
		return nil
	case v.Elem().Kind() != reflect.Struct:
		return e.encode(v.Elem())
	case e.numbers == nil:
		return e.structure(v.Elem(), 0)
	}
	key := pointer{v.Pointer(), v.Type()}
	if number, again := e.numbers[key]; again {
		e.out = fmt.Appendf(e.out, `{"%s":%d}`, keyAgain, number)
		return nil
	}
	number := len(e.numbers) + 1
	e.numbers[key] = number
	return e.structure(v.Elem(), number)
}

// failure writes an error as its text. There are no other interfaces in what is recorded.
func (e *encoder) failure(v reflect.Value) error {
	if v.Type() != typeError {
		return fmt.Errorf("%s cannot be recorded", v.Type())
	}
	if v.IsNil() {
		e.null()
		return nil
	}
	err, ok := v.Interface().(error)
	if !ok {
		return errors.New("an error cannot be recorded")
	}
	e.string(err.Error())
	return nil
}
