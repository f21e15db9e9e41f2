package config

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// origin is where a configuration's values came from, for messages.
type origin struct {
	doc *strictyaml.Document
	// kubelet is the path of the KubeletConfiguration, taken the keys that came from it.
	kubelet  string
	taken    map[string]bool
	warnings []string
	// assigns is the topology policy by which the kubelet assigns exclusive CPUs; empty where it assigns none, or is not known.
	assigns topologymanager.Policy
}

// Load reads a configuration file.
func Load(path string) (Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	return Parse(path, data)
}

// Parse reads the text of a configuration file; name is what errors call it. No file is read but the one that kubeletConfig
// names. Every error names file, line, key and what would be right.
func Parse(name string, data []byte) (Config, error) {
	c := Default()
	doc, err := strictyaml.Decode(name, data, &c)
	if err != nil {
		return Config{}, err
	}
	c.origin = &origin{doc: doc}
	if c.KubeletConfig != "" {
		// Below our file's values lie the kubelet's, below these the defaults.
		if c, err = takeOver(c.KubeletConfig, name, doc); err != nil {
			return Config{}, doc.Errorf("kubeletConfig", "%v", err)
		}
		_, err = strictyaml.Decode(name, data, &c)
	}
	if err == nil {
		err = c.validate()
	}
	if err != nil {
		return Config{}, err
	}
	return c, nil
}

// Marshal writes the effective configuration as YAML that Parse reads.
func (c Config) Marshal() ([]byte, error) {
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	err := cmp.Or(encoder.Encode(c), encoder.Close())
	return out.Bytes(), err
}

// errorf returns an error about a key, with the file and line that it came from.
func (c Config) errorf(path, format string, args ...any) error {
	switch {
	case c.origin == nil:
		return &strictyaml.Error{File: "configuration", Path: path, Message: fmt.Sprintf(format, args...)}
	case c.origin.taken[firstKey(path)]:
		return &strictyaml.Error{File: c.origin.kubelet, Path: path, Message: fmt.Sprintf(format, args...)}
	}
	return c.origin.doc.Errorf(path, format, args...)
}

func firstKey(path string) string {
	if end := strings.IndexAny(path, ".["); end >= 0 {
		return path[:end]
	}
	return path
}

// given reports whether a key of the first level stands in our file or in the kubelet's.
func (c Config) given(key string) bool {
	return c.origin != nil && (c.origin.taken[key] || c.origin.doc.Has(key))
}
