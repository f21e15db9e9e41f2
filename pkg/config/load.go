package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

// places are where a configuration's values stand, for messages.
type places struct {
	doc *strictyaml.Document
	// taken are the keys that came from the KubeletConfiguration.
	taken map[string]bool
}

// Files reads a file: os.ReadFile, or what stands for it in a test. Nil has no files: kubeletConfig is an error.
type Files func(path string) ([]byte, error)

// Load reads a configuration file.
func (f Files) Load(path string) (Config, error) {
	data, err := f(path)
	if err != nil {
		return Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	return f.Parse(path, data)
}

// Check reads a configuration file and applies it to a machine as Load and Resolve do. Where Load ends with errors, it adds
// what is wrong for this machine too. The result has the configuration as far as it could be read even then.
func (f Files) Check(path string, m machine.Machine) (Resolved, error) {
	c, err := f.Load(path)
	if err != nil {
		return Resolved{Config: c}, also(err, c.checkReserved(m))
	}
	r, err := c.Resolve(m)
	if err != nil {
		return Resolved{Config: c}, strictyaml.Join(err, c.checkReserved(m))
	}
	return r, nil
}

// Parse reads the text of a configuration file; name is what errors call it. No file is read but the one that kubeletConfig
// names. Every error names file, line, key and what would be right; several are strictyaml.Errors. A key that could not be read
// has its default.
func (f Files) Parse(name string, data []byte) (Config, error) {
	c := Default()
	doc, err := strictyaml.Decode(name, data, &c)
	nameChoices(err)
	// Below our file's values lie the profile's, below these the kubelet's, and then the defaults.
	below := Default()
	below.places = &places{doc: doc}
	c.Profile.set(&below)
	if c.KubeletConfig != "" {
		if kubelet, failed := f.adopt(c.Profile, c.KubeletConfig, name, doc); failed == nil {
			below = kubelet
		} else {
			err = strictyaml.Join(err, doc.Errorf("kubeletConfig", "%v", failed))
		}
	}
	c = below
	_, _ = strictyaml.Decode(name, data, &c) // the errors are the same
	if doc.Text("kind") == kubeletKind {     // one error, not one for each of its keys
		return c, doc.Errorf("kind", "want %s, got the kubelet's: name its file in kubeletConfig of one of ours", Kind)
	}
	c.Origin.Warnings = append(c.Origin.Warnings, c.doubtful()...)
	c.NodeResourceTopology = c.NodeResourceTopology && c.Profile != ProfileObserve // a scheduler would heed what is not held
	c.Origin.EvictionHard = doc.Has("evictionHard") || c.places.taken["evictionHard"]
	return c, also(err, c.validate())
}

// nameChoices has the errors about keys that hold no text name what they may hold.
func nameChoices(err error) {
	for _, one := range strictyaml.List(err) {
		if at, ok := errors.AsType[*strictyaml.Error](one); ok {
			if names := choices[anyIndex.ReplaceAllString(at.Path, "[]")]; names != nil {
				at.Message = strings.Replace(at.Message, "want a text", "want "+namesOf(names), 1)
			}
		}
	}
}

// also adds the errors about keys that the first errors say nothing about: the others would only follow from these.
func also(err, more error) error {
	about := map[string]bool{}
	for _, one := range strictyaml.List(err) {
		about[keyOf(one)] = true
	}
	all := []error{err}
	for _, one := range strictyaml.List(more) {
		if !about[keyOf(one)] {
			all = append(all, one)
		}
	}
	return strictyaml.Join(all...)
}

// keyOf is the key of the first level that an error is about.
func keyOf(err error) string {
	if at, ok := errors.AsType[*strictyaml.Error](err); ok {
		return firstKey(at.Path)
	}
	return ""
}

// Marshal writes the effective configuration as YAML that Parse reads. Comments say what holds where a value leaves it open.
func (c Config) Marshal() ([]byte, error) {
	var (
		out  bytes.Buffer
		root yaml.Node
	)
	if err := root.Encode(c); err != nil {
		return nil, err
	}
	holds := map[string]string{
		"onUnsatisfiable": string(c.onUnsatisfiable()) + ", by topologyManagerPolicy",
		"reservedMemory":  "kubeReserved, systemReserved and evictionHard, spread over the NUMA nodes",
		"requestSources":  "all that are there, in this order: " + strings.Join(choices["requestSources[]"], ", "),
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		if value := root.Content[i+1]; value.Value == "" && len(value.Content) == 0 {
			value.LineComment = holds[root.Content[i].Value]
		}
	}
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	err := cmp.Or(encoder.Encode(&root), encoder.Close())
	return out.Bytes(), err
}

// Errorf returns an error about a key, with the file and line that it came from.
func (c Config) Errorf(path, format string, args ...any) error {
	switch {
	case c.places == nil:
		return &strictyaml.Error{File: "configuration", Path: path, Message: fmt.Sprintf(format, args...)}
	case c.places.taken[firstKey(path)]:
		return &strictyaml.Error{File: c.Origin.KubeletConfig, Path: path, Message: fmt.Sprintf(format, args...)}
	}
	return c.places.doc.Errorf(path, format, args...)
}

func firstKey(path string) string {
	if end := strings.IndexAny(path, ".["); end >= 0 {
		return path[:end]
	}
	return path
}
