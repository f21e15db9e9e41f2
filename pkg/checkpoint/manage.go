package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// doRestore is what to do about a file that can not be read or trusted.
const doRestore = "put a good copy in its place; or leave it to the plugin, which keeps a bad file aside and rebuilds the node map from the running containers; a kubelet needs the node drained and the file removed"

// Import makes a state file, usually a kubelet's, the state of a store, durably. A state with containers that is there
// already is not replaced unless force is set; it is then kept aside, and kept says where.
func Import(store *Store, file File, force bool) (kept string, err error) {
	if file.Policy != PolicyStatic {
		return "", fmt.Errorf("policyName is %q: there is nothing to take over, want %q", file.Policy, PolicyStatic)
	}
	if err := store.Lock(); err != nil {
		return "", fmt.Errorf("%w: stop it first", err)
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

// Export returns the text of a state as a kubelet accepts it at its start, without anything of ours. The findings are
// what a kubelet would refuse.
func Export(file File) ([]byte, []Finding) {
	return Encode(file.Policy, withoutAmounts(file.State)), Check(file.State)
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
