package recording

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"time"
)

// decoder fills values with what encoder has written. Whatever the JSON says, it returns an error and does not panic.
type decoder struct {
	numbers map[string]reflect.Value
}

// decode fills the value that a pointer points to.
func decode(data []byte, into any) error {
	parsed, err := parse(data)
	if err != nil {
		return err
	}
	d := decoder{numbers: map[string]reflect.Value{}}
	v := reflect.ValueOf(into)
	if _, numbered := member(parsed, keyNumber); numbered {
		return d.pointee(v, parsed)
	}
	return d.decode(v.Elem(), parsed)
}

func parse(data []byte) (parsed any, err error) {
	in := json.NewDecoder(bytes.NewReader(data))
	in.UseNumber()
	if err := in.Decode(&parsed); err != nil {
		return nil, fmt.Errorf("want JSON: %w", err)
	}
	if _, err := in.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("want one JSON value")
	}
	return parsed, nil
}

// member is an object's member.
func member(parsed any, key string) (any, bool) {
	object, _ := parsed.(map[string]any)
	value, there := object[key]
	return value, there
}

func (d *decoder) decode(v reflect.Value, from any) error {
	switch {
	case from == nil:
		v.SetZero()
		return nil
	case v.Type() == typeTime:
		text, err := want[string](from, "a time")
		if err != nil {
			return err
		}
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return fmt.Errorf("want a time such as 2026-01-02T15:04:05.123Z, got %s", shown(from))
		}
		v.Set(reflect.ValueOf(at))
		return nil
	case hasText(v.Type()):
		text, err := want[string](from, "a text")
		if err != nil {
			return err
		}
		return v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text))
	}
	switch v.Kind() {
	case reflect.Slice, reflect.Array:
		return d.list(v, from)
	case reflect.Map:
		return d.mapping(v, from)
	case reflect.Struct:
		return d.structure(v, from)
	case reflect.Pointer:
		return d.pointer(v, from)
	case reflect.Interface:
		text, err := want[string](from, "the text of an error")
		if err != nil {
			return err
		}
		if v.Type() != typeError {
			return fmt.Errorf("%s cannot be read", v.Type())
		}
		v.Set(reflect.ValueOf(errors.New(text)))
		return nil
	}
	return scalar(v, from)
}

// want returns what an interface holds, or an error that names what would be right.
func want[T any](from any, what string) (T, error) {
	value, ok := from.(T)
	if !ok {
		return value, fmt.Errorf("want %s, got %s", what, shown(from))
	}
	return value, nil
}

// shown is a JSON value for a message, cut short.
func shown(from any) string {
	text, _ := json.Marshal(from)
	const most = 60
	if len(text) > most {
		return strconv.QuoteToASCII(string(text[:most])) + "…"
	}
	return string(text)
}

func scalar(v reflect.Value, from any) error {
	switch v.Kind() {
	case reflect.Bool:
		value, err := want[bool](from, "true or false")
		v.SetBool(value)
		return err
	case reflect.String:
		value, err := want[string](from, "a text")
		v.SetString(value)
		return err
	case reflect.Float32, reflect.Float64:
		value, err := strconv.ParseFloat(fmt.Sprint(from), v.Type().Bits())
		if err != nil {
			return fmt.Errorf("want a number, got %s", shown(from))
		}
		v.SetFloat(value)
		return nil
	}
	number, _ := from.(json.Number)
	switch {
	case v.CanInt():
		value, err := strconv.ParseInt(string(number), 10, v.Type().Bits())
		if err != nil {
			return fmt.Errorf("want a whole number of %d bits, got %s", v.Type().Bits(), shown(from))
		}
		v.SetInt(value)
		return nil
	case v.CanUint():
		value, err := strconv.ParseUint(string(number), 10, v.Type().Bits())
		if err != nil {
			return fmt.Errorf("want a whole number from 0 of %d bits, got %s", v.Type().Bits(), shown(from))
		}
		v.SetUint(value)
		return nil
	}
	return fmt.Errorf("%s cannot be read", v.Type())
}

func (d *decoder) list(v reflect.Value, from any) error {
	elements, err := want[[]any](from, "a list")
	if err != nil {
		return err
	}
	switch {
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), len(elements), len(elements)))
	case len(elements) > v.Len():
		return fmt.Errorf("want a list of at most %d, got %d", v.Len(), len(elements))
	}
	for i, element := range elements {
		if err := d.decode(v.Index(i), element); err != nil {
			return fmt.Errorf("[%d]: %w", i, err)
		}
	}
	return nil
}

func (d *decoder) mapping(v reflect.Value, from any) error {
	of := v.Type()
	made := reflect.MakeMap(of)
	v.Set(made)
	put := func(key, value any) error {
		k, e := reflect.New(of.Key()).Elem(), reflect.New(of.Elem()).Elem()
		if err := d.decode(k, key); err != nil {
			return err
		}
		if err := d.decode(e, value); err != nil {
			return fmt.Errorf("%v: %w", key, err)
		}
		made.SetMapIndex(k, e)
		return nil
	}
	if of.Key().Kind() == reflect.String {
		object, err := want[map[string]any](from, "an object")
		if err != nil {
			return err
		}
		for key, value := range object {
			if err := put(key, value); err != nil {
				return err
			}
		}
		return nil
	}
	pairs, err := want[[]any](from, "a list of pairs")
	if err != nil {
		return err
	}
	for i, pair := range pairs {
		both, ok := pair.([]any)
		if !ok || len(both) != 2 {
			return fmt.Errorf("[%d]: want a pair, got %s", i, shown(pair))
		}
		if err := put(both[0], both[1]); err != nil {
			return fmt.Errorf("[%d]: %w", i, err)
		}
	}
	return nil
}

func (d *decoder) structure(v reflect.Value, from any) error {
	object, err := want[map[string]any](from, "an object")
	if err != nil {
		return err
	}
	left := len(object)
	if _, numbered := object[keyNumber]; numbered {
		left--
	}
	for _, f := range fieldsOf(v.Type()) {
		value, there := object[f.name]
		if !there {
			continue
		}
		left--
		if err := d.decode(field(v, f.index), value); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if left > 0 {
		return fmt.Errorf("%s has no field %s here: was it recorded by another version?", v.Type().Name(), d.unknown(v.Type(), object))
	}
	return nil
}

// unknown names the first key that is no field.
func (d *decoder) unknown(t reflect.Type, object map[string]any) string {
	known := map[string]bool{keyNumber: true}
	for _, f := range fieldsOf(t) {
		known[f.name] = true
	}
	first := ""
	for key := range object {
		if !known[key] && (first == "" || key < first) {
			first = key
		}
	}
	return shown(first)
}

func (d *decoder) pointer(v reflect.Value, from any) error {
	if v.Type().Elem().Kind() != reflect.Struct {
		v.Set(reflect.New(v.Type().Elem()))
		return d.decode(v.Elem(), from)
	}
	if again, ok := member(from, keyAgain); ok {
		earlier, known := d.numbers[fmt.Sprint(again)]
		if !known || earlier.Type() != v.Type() {
			return fmt.Errorf("want the number of an earlier %s, got %s", v.Type().Elem().Name(), shown(again))
		}
		v.Set(earlier)
		return nil
	}
	v.Set(reflect.New(v.Type().Elem()))
	return d.pointee(v, from)
}

// pointee fills the struct behind a pointer, which may lead back to it.
func (d *decoder) pointee(v reflect.Value, from any) error {
	if number, numbered := member(from, keyNumber); numbered {
		d.numbers[fmt.Sprint(number)] = v.Elem().Addr() // not the field, which may be set again
	}
	return d.structure(v.Elem(), from)
}
