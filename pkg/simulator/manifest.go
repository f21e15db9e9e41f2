package simulator

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/spelling"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

// Manifests are the pods of manifests, and what else is in them.
type Manifests struct {
	// Pods are those that one node can have together.
	Pods []*corev1.Pod
	// Unknown has an error for each kind that is skipped although it may make pods, and for each field that is skipped; nil where there is
	// none.
	Unknown error
	// skipped counts, for each reason, kinds of objects, phases of pods, and fields by their paths without indices.
	skipped map[reason]map[string]int
	// found are the objects that make pods, and owners the UIDs that objects name as their owners'.
	found  []found
	owners map[string]bool
	// names have the places of the objects and of the pods that they make, and uids those of the pods.
	names, uids map[string]string
	// wrong are the first mistakes, and more how many others there are.
	wrong []error
	more  int
}

// reason is why something is skipped, as people read it.
type reason string

const (
	makesNone    reason = "what makes no pods"
	noReplicas   reason = "what has 0 replicas"
	hook         reason = "hooks of Helm, which do not run beside the rest"
	owning       reason = "owners of others in the list"
	ended        reason = "pods that have ended"
	unknownField reason = "fields that are not known"
	unknownKind  reason = "kinds that are not known, and may make pods"
)

// skip counts something that is skipped, and returns how often it was.
func (m *Manifests) skip(why reason, what string) int {
	if m.skipped[why] == nil {
		m.skipped[why] = map[string]int{}
	}
	m.skipped[why][what]++
	return m.skipped[why][what]
}

// maxMistakes bounds the mistakes that are named at once.
const maxMistakes = 20

// note takes in a mistake; the objects after it are read all the same.
func (m *Manifests) note(err error) {
	for _, one := range strictyaml.List(err) {
		if len(m.wrong) == maxMistakes {
			m.more++
			continue
		}
		m.wrong = append(m.wrong, one)
	}
}

func (m *Manifests) mistakes() error {
	if m.more > 0 {
		m.wrong = append(m.wrong, fmt.Errorf("%d more mistakes in the manifests", m.more))
	}
	return strictyaml.Join(m.wrong...)
}

// ReadFiles reads manifests that one node can have together: files, folders with them, and "-" for standard input.
func ReadFiles(paths []string, stdin io.Reader) (*Manifests, error) {
	if len(paths) == 0 {
		return nil, errors.New("no manifest; want files, folders, or - for standard input")
	}
	m := &Manifests{skipped: map[reason]map[string]int{}, owners: map[string]bool{}, names: map[string]string{}, uids: map[string]string{}}
	for _, path := range paths {
		m.note(m.readPath(path, stdin))
	}
	m.found = slices.DeleteFunc(m.found, func(f found) bool {
		if uid := string(f.owner.meta.UID); uid != "" && m.owners[uid] { // what it owns is the same pods
			m.skip(owning, f.kind)
			return true
		}
		if f.owner.replicas == 0 {
			m.skip(noReplicas, f.kind)
		}
		return f.owner.replicas == 0
	})
	// Names that objects have come before those that are made.
	m.found = slices.DeleteFunc(m.found, func(f found) bool {
		err := m.addName(f)
		m.note(err)
		return err != nil
	})
	for _, f := range m.found {
		m.note(m.addPods(f))
	}
	if err := m.mistakes(); err != nil {
		return nil, err
	}
	return m, m.refuseNone(strings.Join(paths, ", "))
}

// LeftOut says in a line each what of the manifests is not simulated: kinds that make no pods, pods that have ended, and last kinds that are
// not known.
func (m *Manifests) LeftOut() (lines []string) {
	for _, why := range []reason{makesNone, noReplicas, hook, owning, ended, unknownField, unknownKind} {
		var all []string
		for _, what := range slices.Sorted(maps.Keys(m.skipped[why])) {
			all = append(all, fmt.Sprintf("%d %s", m.skipped[why][what], what))
		}
		if len(all) > 0 {
			lines = append(lines, fmt.Sprintf("skipped %s: %s", why, strings.Join(all, ", ")))
		}
	}
	return lines
}

// Doubtful says which containers ask for so little memory that a unit is missing; empty where none does.
func (m *Manifests) Doubtful() string {
	var tiny []string
	for _, pod := range m.Pods {
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
				if bytes := list.Memory().Value(); bytes > 0 && bytes < 1<<20 {
					tiny = append(tiny, fmt.Sprintf("%s/%s, container %s: %d", pod.Namespace, pod.Name, c.Name, bytes))
				}
			}
		}
	}
	tiny = slices.Compact(tiny)
	switch len(tiny) {
	case 0:
		return ""
	case 1:
		return "memory of less than 1Mi (" + tiny[0] + " bytes): is a unit missing?"
	}
	return fmt.Sprintf("memory of less than 1Mi (%s bytes, and %d more): is a unit missing?", tiny[0], len(tiny)-1)
}

func (m *Manifests) refuseNone(name string) error {
	if len(m.Pods) > 0 {
		return nil
	}
	if name == "-" {
		name = "standard input"
	}
	words := []string{name + ": no pods in it"}
	if len(m.skipped[noReplicas])+len(m.skipped[unknownKind]) == 0 {
		words[0] += "; want a " + knownKinds
	}
	return errors.New(strings.Join(append(words, m.LeftOut()...), "; "))
}

// OnNode keeps the pods on a node (spec.nodeName) or on none, "" keeps all. It returns the names of the nodes that pods were on.
func (m *Manifests) OnNode(node string) ([]string, error) {
	names := map[string]bool{}
	m.Pods = slices.DeleteFunc(m.Pods, func(p *corev1.Pod) bool {
		names[p.Spec.NodeName] = true
		return node != "" && p.Spec.NodeName != "" && p.Spec.NodeName != node
	})
	delete(names, "")
	all := slices.Sorted(maps.Keys(names))
	if node != "" && len(all) > 0 && !names[node] {
		return nil, fmt.Errorf("no pod is on node %q%s", node, spelling.Hint(node, all))
	}
	return all, nil
}

func (m *Manifests) readPath(path string, stdin io.Reader) error {
	if path == "-" {
		data, err := io.ReadAll(stdin)
		if err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		m.read("standard input", data)
		return nil
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
		m.read(file, data)
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

// unrendered matches what only a template of Helm has: Prometheus and others have text in braces, too.
var unrendered = regexp.MustCompile(`\{\{[^}\n]*(\.(Values|Release|Chart)\b|\binclude ")[^}\n]*(\}\})?`)

// read adds the pods of a manifest. name is what errors call it: one about the template where that is why it cannot be read.
func (m *Manifests) read(name string, data []byte) {
	before, more := len(m.wrong), m.more
	m.note(m.readDocuments(name, data))
	if at := unrendered.FindIndex(data); at != nil && len(m.wrong) > before {
		line := 1 + bytes.Count(data[:at[0]], []byte{'\n'})
		m.more, m.wrong = more, append(m.wrong[:before], &strictyaml.Error{File: name, Line: line, Message: fmt.Sprintf(
			"%s is of a Helm template that is not rendered; want the output of helm template", strictyaml.Quote(string(data[at[0]:at[1]])))})
	}
}

// readDocuments adds the pods of a manifest of one or more documents.
func (m *Manifests) readDocuments(name string, data []byte) error {
	list, isStream, err := jsonList(name, data)
	if err != nil {
		return err
	}
	roots, err := strictyaml.Documents(name, list)
	if err != nil {
		return err
	}
	if isStream {
		roots = roots[0].Content
	}
	for _, root := range roots {
		m.note(m.readObject(object{file: name, node: root}))
	}
	return nil
}

// jsonList makes one list, with the same lines, of JSON objects that follow one another, as jq prints them; any other text stays as it is.
func jsonList(name string, data []byte) (list []byte, isStream bool, err error) {
	reader := json.NewDecoder(bytes.NewReader(data))
	for from := int64(0); ; from = reader.InputOffset() {
		var one json.RawMessage
		err := reader.Decode(&one)
		rest := bytes.TrimLeft(data[from:], " \t\r\n")
		switch {
		case err == nil:
			list = append(append(list, "[,"[min(from, 1)]), data[from:reader.InputOffset()]...)
		case errors.Is(err, io.EOF) && len(list) > 0:
			return append(list, ']'), true, nil
		case len(list) > 0 && bytes.HasPrefix(rest, []byte{'{'}): // no YAML
			line := 1 + bytes.Count(data[:len(data)-len(rest)], []byte{'\n'})
			return nil, false, fmt.Errorf("%s:%d: the JSON object that begins here: %w", name, line, err)
		default:
			return data, false, nil
		}
	}
}

// readObject adds the pods that an object makes on one node, or those of a list of objects: "kubectl get -o yaml" prints a List, the API
// server one of a kind (PodList), in which each has the kind without saying so.
func (m *Manifests) readObject(o object) error {
	version, name := cmp.Or(scalar(o.node, "apiVersion"), o.version), cmp.Or(scalar(o.node, "kind"), o.kind)
	switch known := otherVersion("extensions/", name); {
	case o.node.Kind == yaml.SequenceNode:
		return o.wrong("a list without a kind is not a Kubernetes object; want its objects one after the other (jq '.[]'), or the items of a List")
	case version == "" && name == "":
		return o.wrong("not a Kubernetes object: apiVersion and kind are missing")
	case version == "" && known != "":
		return o.wrong("apiVersion of the %s is missing; want %s", name, known)
	case version == "":
		return o.wrong("apiVersion of the %s is missing", name)
	case name == "":
		return o.wrong("kind is missing; want a %s", knownKinds)
	}
	if of, isList := strings.CutSuffix(name, "List"); isList {
		if items := field(o.node, "items"); items != nil {
			for i, item := range items.Content {
				item := object{file: o.file, node: item, path: strings.TrimPrefix(fmt.Sprintf("%s.items[%d]", o.path, i), "."), version: version, kind: of}
				m.note(m.readObject(item))
			}
			return nil
		}
	}
	kind, known := kinds[version+" "+name]
	if !known {
		if other := otherVersion(version, name); other != "" {
			return o.wrong("apiVersion %q of a %s is not known; want %s", version, name, other)
		}
		if makesNoPods(path.Dir(version), name) {
			m.skip(makesNone, name)
			return nil
		}
		err := o.wrong("kind %q of apiVersion %q is not known, and may make pods; want a %s, a List of them, or a kind of Kubernetes that makes no pods", name, version, knownKinds)
		if meant := spelling.Nearest(name, kindsOf(version)); meant != "" {
			err = o.wrong("kind %q of apiVersion %q is not known, did you mean %q?", name, version, meant)
			name = fmt.Sprintf("%s (did you mean %q?)", name, meant)
		}
		if m.skip(unknownKind, name) == 1 {
			m.Unknown = strictyaml.Join(m.Unknown, err)
		}
		return nil
	}
	metadata := field(o.node, "metadata")
	served := scalar(metadata, "resourceVersion") != ""
	if scalar(field(metadata, "annotations"), "helm.sh/hook") != "" && !served {
		m.skip(hook, name)
		return nil
	}
	if refs := field(metadata, "ownerReferences"); refs != nil {
		for _, ref := range refs.Content {
			m.owners[scalar(ref, "uid")] = true
		}
	}
	if status := field(o.node, "status"); status != nil {
		phase := scalar(status, "phase")
		if name == "Pod" && (phase == string(corev1.PodSucceeded) || phase == string(corev1.PodFailed)) {
			m.skip(ended, phase)
			return nil
		}
		if name == "Job" && jobEnded(status) {
			m.skip(ended, name)
			return nil
		}
		*status = yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"} // it may have fields of a newer Kubernetes
	}
	text, err := o.checked(kind.of, m.skipField(served))
	if err != nil {
		return err
	}
	owner, err := kind.read(text)
	if err != nil {
		return o.wrong("%v", err)
	}
	o.template = kind.template
	m.found = append(m.found, found{o, owner, name})
	return nil
}

// resourceField matches names of fields that say what containers ask for, or how many there are: one in a wrong place is no field of a newer
// Kubernetes.
var resourceField = regexp.MustCompile(`^(limits|requests|claims|resources|cpu|memory|hugepages-.*|(initC|c)ontainers|spec|template|replicas)$`)

var anyIndex = regexp.MustCompile(`\[\d+\]`)

// skipField skips fields of a newer Kubernetes. One that is near to a known one is misspelled, unless an API server has taken the object.
func (m *Manifests) skipField(served bool) strictyaml.Unknown {
	return func(path, field string, near bool, err error) bool {
		if near && !served || resourceField.MatchString(field) || strings.Contains(path, "resources") {
			return false
		}
		name := strings.TrimPrefix(anyIndex.ReplaceAllString(path, "[]")+"."+field, ".")
		if m.skip(unknownField, name) == 1 {
			m.Unknown = strictyaml.Join(m.Unknown, err)
		}
		return true
	}
}

// jobEnded reports whether a Job with this status makes no more pods.
func jobEnded(status *yaml.Node) bool {
	conditions := field(status, "conditions")
	return scalar(status, "completionTime") != "" || conditions != nil && slices.ContainsFunc(conditions.Content, func(c *yaml.Node) bool {
		return (scalar(c, "type") == string(batchv1.JobComplete) || scalar(c, "type") == string(batchv1.JobFailed)) && scalar(c, "status") == "True"
	})
}

// checked compares an object with its type, and returns it as YAML for the reader that Kubernetes uses.
func (o *object) checked(of reflect.Type, unknown strictyaml.Unknown) (text []byte, err error) {
	if o.doc, err = strictyaml.Check(o.file, o.path, o.node, of, checkLeaf, unknown); err != nil {
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
		if n.ShortTag() == "!!null" {
			copied.Value = "null" // as nothing in {cpu: } it would be written as an empty text
		}
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
	if n == nil || n.Kind != yaml.MappingNode {
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
