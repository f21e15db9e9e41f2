package simulator

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

// Manifests are the pods of manifests, and what else is in them.
type Manifests struct {
	// Pods are those that one node can have together.
	Pods []*corev1.Pod
	// skipped is how many objects of a kind make no pods.
	skipped map[string]int
	// names and uids have the places of the pods.
	names, uids map[string]string
}

// ReadFiles reads manifests that one node can have together: files, folders with them, and "-" for standard input.
func ReadFiles(paths []string, stdin io.Reader) (*Manifests, error) {
	if len(paths) == 0 {
		return nil, errors.New("no manifest; want files, folders, or - for standard input")
	}
	m := &Manifests{skipped: map[string]int{}, names: map[string]string{}, uids: map[string]string{}}
	for _, path := range paths {
		if err := m.readPath(path, stdin); err != nil {
			return nil, err
		}
	}
	return m, m.refuseNone(strings.Join(paths, ", "))
}

// Skipped names the kinds of objects that make no pods, with their numbers; empty where there are none.
func (m *Manifests) Skipped() string {
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(m.skipped)) {
		kinds = append(kinds, fmt.Sprintf("%d %s", m.skipped[kind], kind))
	}
	return strings.Join(kinds, ", ")
}

func (m *Manifests) refuseNone(name string) error {
	if len(m.Pods) > 0 {
		return nil
	}
	text := name + ": no pods in it; want a " + knownKinds
	if skipped := m.Skipped(); skipped != "" {
		text += "; skipped " + skipped
	}
	return errors.New(text)
}

func (m *Manifests) readPath(path string, stdin io.Reader) error {
	if path == "-" {
		data, err := io.ReadAll(stdin)
		if err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		return m.read("standard input", data)
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	files := []string{path}
	if info.IsDir() {
		if files, err = manifestsIn(path); err != nil {
			return err
		}
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("manifest: %w", err)
		}
		if err := m.read(file, data); err != nil {
			return err
		}
	}
	return nil
}

// manifestsIn returns the manifests of a folder, sorted; those of folders below are left out.
func manifestsIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	var files []string
	for _, entry := range entries {
		if !entry.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(entry.Name())) {
			files = append(files, filepath.Join(dir, entry.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: no manifest in it; want *.yaml, *.yml or *.json", dir)
	}
	return files, nil
}

// read adds the pods of a manifest of one or more documents. name is what errors call it.
func (m *Manifests) read(name string, data []byte) error {
	roots, err := strictyaml.Documents(name, data)
	if err != nil {
		return err
	}
	for i, root := range roots {
		if err := m.readDocument(name, i+1, root); err != nil {
			return err
		}
	}
	return nil
}

// readDocument adds the pods of an object, or of a list of them, which is what "kubectl get -o yaml" prints.
func (m *Manifests) readDocument(name string, number int, root *yaml.Node) error {
	if scalar(root, "apiVersion") != "v1" || scalar(root, "kind") != "List" {
		return m.readObject(object{file: name, number: number, node: root})
	}
	items := field(root, "items")
	if items == nil {
		return nil
	}
	for i, item := range items.Content {
		if err := m.readObject(object{file: name, number: number, node: item, path: fmt.Sprintf("items[%d]", i)}); err != nil {
			return err
		}
	}
	return nil
}

// readObject adds the pods that an object makes on one node.
func (m *Manifests) readObject(o object) error {
	version, name := scalar(o.node, "apiVersion"), scalar(o.node, "kind")
	if version == "" || name == "" {
		return o.wrong("not a Kubernetes object: apiVersion and kind are missing")
	}
	kind, known := kinds[version+" "+name]
	if !known {
		if other := otherVersion(version, name); other != "" {
			return o.wrong("apiVersion %q of a %s is not known; want %s", version, name, other)
		}
		if !slices.Contains(strings.Fields(podless[groupOf(version)]), name) {
			return o.wrong("document %d: kind %q of apiVersion %q is not known, and may make pods; want a %s, a List of them, or a kind of Kubernetes that makes no pods",
				o.number, name, version, knownKinds)
		}
		m.skipped[name]++
		return nil
	}
	text, err := o.checked(kind.of)
	if err != nil {
		return err
	}
	owner, err := kind.read(text)
	if err != nil {
		return o.wrong("%v", err)
	}
	o.template = kind.template
	return m.addPods(o, owner)
}

// checked compares an object with its type, and returns it as YAML for the reader that Kubernetes uses.
func (o *object) checked(of reflect.Type) (text []byte, err error) {
	if o.doc, err = strictyaml.Check(o.file, o.path, o.node, of, checkLeaf); err != nil {
		return nil, err
	}
	if text, err = withoutComments(o.node); err != nil {
		return nil, o.wrong("%v", err)
	}
	return text, nil
}

// withoutComments writes a node as YAML without comments and aliases.
func withoutComments(n *yaml.Node) ([]byte, error) {
	var plain func(n *yaml.Node) *yaml.Node
	left := 100_000 // as many values as strictyaml.Check lets pass
	plain = func(n *yaml.Node) *yaml.Node {
		if n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		left--
		copied := &yaml.Node{Kind: n.Kind, Style: n.Style, Tag: n.Tag, Value: n.Value}
		for _, child := range n.Content {
			if left < 0 {
				break
			}
			copied.Content = append(copied.Content, plain(child))
		}
		return copied
	}
	copied := plain(n)
	if left < 0 {
		return nil, errors.New("too many values behind merge keys")
	}
	return yaml.Marshal(copied)
}

// field returns the value of a mapping's key; nil where there is none.
func field(n *yaml.Node, key string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// scalar returns a mapping's text; empty where there is none.
func scalar(n *yaml.Node, key string) string {
	if at := field(n, key); at != nil && at.Kind == yaml.ScalarNode {
		return at.Value
	}
	return ""
}
