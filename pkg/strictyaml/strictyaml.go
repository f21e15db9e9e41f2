// Package strictyaml reads a YAML file into a struct and leaves nothing to chance: an unknown or doubled field, a value of
// the wrong kind, a number that is none or a second document is an error with file, line and field. The lines stay
// available for what only the owner of the struct can judge.
package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	// largestFile, in bytes, is more than any file of ours needs (a ConfigMap holds as much).
	largestFile = 1 << 20
	// mostValues bounds what aliases can make of a small file.
	mostValues = 100_000
	// mostErrors of one mapping or list are reported.
	mostErrors = 20
)

// Error is what is wrong with a file.
type Error struct {
	File string
	// Line counts from 1; 0 when the value stands in no file.
	Line int
	// Path is the field, for example "stallGuard.window" or "reservedMemory[0].limits"; empty for the file as a whole.
	Path    string
	Message string
}

// Error is "FILE:LINE: path: message".
func (e *Error) Error() string {
	where := e.File
	if e.Line > 0 {
		where += ":" + strconv.Itoa(e.Line)
	}
	if e.Path != "" {
		where += ": " + e.Path
	}
	return where + ": " + e.Message
}

// Errors are several errors of one file. As text they are one line; each can be had by Unwrap.
type Errors []error

// Error joins the errors with semicolons.
func (e Errors) Error() string {
	texts := make([]string, len(e))
	for i, err := range e {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the errors.
func (e Errors) Unwrap() []error { return e }

// Join returns nil for no errors, an error alone as it is, and several as Errors, each once.
func Join(errs ...error) error {
	var all Errors
	for _, err := range errs {
		for _, one := range List(err) {
			if !slices.ContainsFunc(all, func(other error) bool { return other.Error() == one.Error() }) {
				all = append(all, one)
			}
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}

// List returns the errors that Join has joined; nil has none.
func List(err error) []error {
	switch joined := err.(type) {
	case nil:
		return nil
	case Errors:
		return joined
	}
	return []error{err}
}

// Replacer is a struct whose file once had other fields.
type Replacer interface {
	// Instead says what is to be written in place of a field that was removed; "" for any other.
	Instead(field string) string
}

// Document knows where each field of a file stands.
type Document struct {
	file  string
	lines map[string]int
	texts map[string]string // of scalars
}

// Has reports whether the file has this field.
func (d *Document) Has(path string) bool {
	_, ok := d.lines[path]
	return ok
}

// Text returns a scalar as the file has it; empty for other fields.
func (d *Document) Text(path string) string { return d.texts[path] }

// Scalars returns the paths of the fields that have a Text, sorted.
func (d *Document) Scalars() []string { return slices.Sorted(maps.Keys(d.texts)) }

// Errorf returns an *Error about a field. A field that the file leaves out is placed at the nearest one above it.
func (d *Document) Errorf(path, format string, args ...any) error {
	line := 0
	for above := path; line == 0 && above != ""; above = parent(above) {
		line = d.lines[above]
	}
	return &Error{File: d.file, Line: line, Path: path, Message: fmt.Sprintf(format, args...)}
}

// parent cuts the last field or index off a path.
func parent(path string) string {
	return path[:max(strings.LastIndexAny(path, ".["), 0)]
}

// Decode reads the only YAML document of data into the struct that into points to; name is what errors call the file.
// Field names are those of the yaml tags. Fields that the file leaves out keep their value, a map or list that it has
// replaces the old one, null empties pointers, maps and lists. A scalar goes into a type that has UnmarshalText through it.
// An empty file changes nothing. Every error is an *Error; several are Errors, and their fields keep their value.
func Decode(name string, data []byte, into any) (*Document, error) {
	doc := newDocument(name)
	if len(data) > largestFile {
		return doc, &Error{File: name, Message: fmt.Sprintf("is larger than %d bytes", largestFile)}
	}
	documents, err := documents(name, data, 2)
	switch {
	case err != nil:
		return doc, err
	case len(documents) > 1:
		return doc, &Error{File: name, Line: documents[1].Line, Message: "second document: only one is read"}
	case len(documents) == 0 || isNull(documents[0].Content[0]):
		return doc, nil
	}
	root := reflect.ValueOf(into).Elem()
	d := &decoder{doc: doc, values: mostValues, root: root.Type()}
	return doc, d.value(documents[0].Content[0], "", root)
}

func newDocument(name string) *Document {
	return &Document{file: name, lines: map[string]int{}, texts: map[string]string{}}
}

// documents returns the YAML documents of a file, at most so many.
func documents(name string, data []byte, most int) (all []*yaml.Node, err error) {
	reader := yaml.NewDecoder(bytes.NewReader(data))
	for len(all) < most {
		document := &yaml.Node{}
		switch err := reader.Decode(document); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, syntaxError(name, data, err)
		}
		all = append(all, document)
	}
	return all, nil
}

// syntaxError moves the line of the YAML reader's message to where ours has it, and names a TAB that the reader stumbles over, and wildcards.
func syntaxError(name string, data []byte, err error) error {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	e := &Error{File: name, Message: message}
	if rest, ok := strings.CutPrefix(message, "line "); ok {
		number, text, _ := strings.Cut(rest, ": ")
		if line, err := strconv.Atoi(number); err == nil {
			e.Line, e.Message = line, text
		}
	}
	if line, column := wrongTab(data, e.Line, e.Message); column > 0 {
		e.Line, e.Message = line, fmt.Sprintf("column %d: a TAB character; indent with spaces", column)
	}
	if anchor, ok := strings.CutPrefix(e.Message, "unknown anchor '"); ok {
		before, _, _ := bytes.Cut(data, []byte("*"+strings.TrimSuffix(anchor, "' referenced")))
		e.Line, e.Message = 1+bytes.Count(before, []byte("\n")), e.Message+"; a text that begins with * needs quotes"
	} else if hint := hints[e.Message]; hint != "" {
		e.Line, e.Message = max(e.Line, 1), e.Message+"; "+hint // the YAML reader does not name the first line
	}
	return e
}

// hints say what is usually wrong, by the YAML reader's message.
var hints = map[string]string{
	"did not find expected ',' or ']'":               "a text with ? or ! needs quotes",
	"did not find expected key":                      "is the line, or the one before it, indented like its neighbours?",
	"found unexpected end of stream":                 "is a closing quote missing?",
	"mapping values are not allowed in this context": "is the line indented like its neighbours, and a text with a colon in quotes?",
}

// The YAML reader's errors about a TAB; the first may be about another character.
const (
	noToken  = "found character that cannot start any token"
	tabFound = "found a tab character"
)

// indentingTab is a TAB before the first word of a line.
var indentingTab = regexp.MustCompile(`^[ ?:-]*\t`)

// wrongTab finds the TAB that an error of the YAML reader is about, counted from 1; column is 0 where it is about none. from is the
// line where the reader's error begins, 0 for the first: the TAB is there or, behind a text of several lines, below.
func wrongTab(data []byte, from int, message string) (line, column int) {
	if message != noToken && !strings.HasPrefix(message, tabFound) {
		return 0, 0
	}
	begin, end := max(from, 1), 0
	for text := range bytes.Lines(data) {
		line++
		at := indentingTab.FindIndex(text)
		switch {
		case line < begin:
		case message == noToken && (line > begin || at == nil || !endsAtTab(data[:end+at[1]])):
			return 0, 0
		case at != nil:
			return line, at[1]
		}
		end += len(text)
	}
	return 0, 0
}

// endsAtTab reports whether the YAML reader gets no further than to the TAB at the end of a text: within brackets it does.
func endsAtTab(text []byte) bool {
	reader := yaml.NewDecoder(io.MultiReader(bytes.NewReader(text), strings.NewReader("x")))
	for {
		if err := reader.Decode(&yaml.Node{}); err != nil {
			return strings.HasSuffix(err.Error(), noToken)
		}
	}
}

// longestQuote bounds, in bytes, what an error repeats of the file.
const longestQuote = 80

// Quote shows a text of a file or flag in an error: on one line, escaped and shortened.
func Quote(text string) string {
	if len(text) > longestQuote {
		return strconv.Quote(text[:longestQuote]) + "…"
	}
	return strconv.Quote(text)
}

var plainName = regexp.MustCompile(`^[a-zA-Z0-9._/-]*$`)

// join adds a key to a path; keys that are not plain names are quoted.
func join(path, key string) string {
	if len(key) > longestQuote || !plainName.MatchString(key) {
		key = Quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}
