package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// CorruptError says why a state file could not be used and where it is kept.
type CorruptError = durable.DamagedError

// ReadFile reads a state file, a kubelet's or ours, and leaves it where it is. The error is a *CorruptError when the
// content is bad, else the file system's.
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

// doRestore is what to do about a file that can not be read or trusted.
const doRestore = "put a good copy in its place; or leave it to the plugin, which keeps a bad file aside and rebuilds the node map from the running containers; a kubelet needs the node drained and the file removed"

// Import makes a state file, usually a kubelet's, the state of a store, durably. A state with containers that is there
// already is not replaced unless force is set; it is then kept aside, and kept says where.
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
	there, err := ReadFile(store.Path())
	empty := errors.Is(err, fs.ErrNotExist) || err == nil && len(there.State.Entries) == 0
	switch {
	case empty:
	case !force && err != nil:
		return "", fmt.Errorf("not replaced without --force: %w", err)
	case !force:
		return "", fmt.Errorf("%s has %d containers, not replaced without --force", store.Path(), len(there.State.Entries))
	default:
		if kept, err = store.setAside("replaced"); err != nil {
			return "", err
		}
	}
	return kept, store.Save(file.State)
}

// doPodLevel is what to do about pod entries that a kubelet does not take.
const doPodLevel = "drain the pods with pod-level resources, or start that kubelet with the feature gate PodLevelResourceManagers"

// Targets are the kubelets that Export writes for.
var Targets = []string{"1.35", "1.36", "1.37"}

// Export returns the text of a state as a kubelet of the target version accepts it at its start, without anything of ours;
// "" is any version. The findings are what it would refuse. A state with pod entries is for kubelets from 1.36 that have the
// feature gate PodLevelResourceManagers on: warning says so.
func Export(file File, target string) (text []byte, warning string, findings []Finding) {
	s := withoutAmounts(file.State)
	findings = Check(s)
	if len(s.Pods) == 0 {
		return textsOf(s).appendFile(nil, V1, file.Policy), "", findings
	}
	warning = fmt.Sprintf("%d pods have an allocation of their own: a kubelet without the feature gate PodLevelResourceManagers refuses this file", len(s.Pods))
	switch target {
	case "1.36":
		return textsOf(s).appendFile(nil, V2, file.Policy), warning, findings
	case "1.37":
		return textsOf(s).appendFile(nil, V3, file.Policy), warning, findings
	}
	where, what := "kubelet "+target, "reads no allocations of pods, and the state has %d"
	if target == "" {
		where, what = "kubelet", "versions differ in how they keep allocations of pods, and the state has %d: name the version"
	}
	return nil, "", append(findings, Finding{Where: where, What: fmt.Sprintf(what, len(s.Pods)), Do: doPodLevel})
}

func withoutAmounts(s memorymanager.State) memorymanager.State {
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

// Verify reads a state file, also a damaged one as far as that goes, and lists everything that is wrong with it: what
// can not be read, a wrong checksum, and what Check finds. The error is of reading the file.
func Verify(path string) (File, []Finding, error) {
	data, err := durable.ReadFile(path)
	if err != nil {
		return File{}, nil, fmt.Errorf("reading the state file: %w", err)
	}
	file, damage, err := decode(data)
	var findings []Finding
	for _, wrong := range []error{damage, err} {
		if wrong != nil {
			findings = append(findings, Finding{Where: path, What: wrong.Error(), Do: doRestore})
		}
	}
	if err == nil {
		findings = append(findings, Check(file.State)...)
	}
	return file, findings, nil
}
