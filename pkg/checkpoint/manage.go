package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// CorruptError says why a state file could not be used, and its new name.
type CorruptError = durable.DamagedError

// ReadFile reads a state file, a kubelet's or this plugin's, and does not move it. The error is a *CorruptError if the content is bad, else
// the file system's.
func ReadFile(path string) (File, error) {
	data, err := durable.ReadFile(path)
	if err != nil {
		return File{}, fmt.Errorf("reading the state file: %w", err)
	}
	file, err := Decode(data)
	if err != nil {
		return File{}, fmt.Errorf("state file %w", &CorruptError{Path: path, Err: err})
	}
	return file, nil
}

// doRestore is what to do about a file that cannot be read or trusted.
const doRestore = "put a good copy in its place; or leave it to the plugin, which keeps a bad file aside and rebuilds the node map from the running containers; a kubelet needs the node drained and the file removed"

// Import writes a state file, usually a kubelet's, durably into a store. An existing state with containers is replaced only if force is
// set; it is then preserved as kept.
func Import(store *Store, file File, force bool) (kept string, err error) {
	if file.Policy != PolicyStatic {
		return "", fmt.Errorf("policyName is %q: there is nothing to take over, want %q", file.Policy, PolicyStatic)
	}
	switch err := store.Lock(); {
	case errors.Is(err, ErrInUse):
		return "", fmt.Errorf("%w: stop it first", err)
	case err != nil:
		return "", err
	}
	existing, err := ReadFile(store.Path())
	empty := errors.Is(err, fs.ErrNotExist) || err == nil && len(existing.State.Entries) == 0
	switch {
	case empty:
	case !force && err != nil:
		return "", fmt.Errorf("not replaced without --force: %w", err)
	case !force:
		return "", fmt.Errorf("%s has %d containers, not replaced without --force", store.Path(), len(existing.State.Entries))
	default:
		if kept, err = store.preserve("replaced"); err != nil {
			return "", err
		}
	}
	return kept, store.Save(file.State)
}

// doPodLevel is what to do about pod entries that a kubelet does not read.
const doPodLevel = "drain the pods with pod-level resources, or start that kubelet with the feature gate PodLevelResourceManagers"

// Targets are the kubelets that Export writes for.
var Targets = []string{"1.35", "1.36", "1.37"}

// Export returns the text of a state as a kubelet of the target version accepts it at its start, without this plugin's keys; "" is any
// version. findings are what the kubelet would refuse. A state with pod entries needs a kubelet from 1.36 with the feature gate
// PodLevelResourceManagers; warning says so.
func Export(file File, target string) (text []byte, warning string, findings []Finding) {
	s := withoutAmounts(file.State)
	findings = Check(s)
	if len(s.Pods) == 0 {
		return appendFile(nil, s, V1, file.Policy), "", findings
	}
	warning = fmt.Sprintf("%d pods have an allocation of their own: a kubelet without the feature gate PodLevelResourceManagers refuses this file", len(s.Pods))
	switch target {
	case "1.36":
		return appendFile(nil, s, V2, file.Policy), warning, findings
	case "1.37":
		return appendFile(nil, s, V3, file.Policy), warning, findings
	}
	where, what := "kubelet "+target, "reads no allocations of pods, and the state has %d"
	if target == "" {
		where, what = "kubelet", "versions differ in how they keep allocations of pods, and the state has %d: name the version"
	}
	return nil, "", append(findings, Finding{Where: where, What: fmt.Sprintf(what, len(s.Pods)), Do: doPodLevel})
}

// withoutAmounts returns the state without the PerNode amounts of its blocks. It copies nothing if there are none.
func withoutAmounts(s memorymanager.State) memorymanager.State {
	if !hasAmounts(s) {
		return s
	}
	s.Entries, s.Pods = slices.Clone(s.Entries), slices.Clone(s.Pods)
	for i := range s.Entries {
		s.Entries[i].Blocks = blocksAlone(s.Entries[i].Blocks)
	}
	for i := range s.Pods {
		s.Pods[i].Blocks = blocksAlone(s.Pods[i].Blocks)
	}
	return s
}

func blocksAlone(blocks []memorymanager.Block) []memorymanager.Block {
	blocks = slices.Clone(blocks)
	for i := range blocks {
		blocks[i].PerNode = nil
	}
	return blocks
}

// Verify reads a state file, even a damaged one as far as possible, and lists everything that is wrong with it: unreadable content, a wrong
// checksum, and the findings of Check. The error is from reading the file.
func Verify(path string) (File, []Finding, error) {
	data, err := durable.ReadFile(path)
	if err != nil {
		return File{}, nil, fmt.Errorf("reading the state file: %w", err)
	}
	file, mismatch, err := decode(data)
	var findings []Finding
	for _, wrong := range []error{mismatch, err} {
		if wrong != nil {
			findings = append(findings, Finding{Where: path, What: wrong.Error(), Do: doRestore})
		}
	}
	if err == nil {
		findings = append(findings, Check(file.State)...)
	}
	return file, findings, nil
}
