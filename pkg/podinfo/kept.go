package podinfo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/google/renameio/v2"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// saveInterval is the shortest time between two writes of the file of known pods.
const saveInterval = time.Second

// keptPod is a pod in the file of known pods.
type keptPod struct {
	Source memoryqos.Source `json:"source"`
	Pod    *Pod             `json:"pod"`
}

// load reads the pods that an earlier run knew. A file that cannot be read is no more than their loss: the sources know them.
func (r *Resolver) load() {
	kept, err := readKept(r.file)
	if err != nil {
		r.log.WithError(err).Warn("what was known of the pods cannot be read: their requests are estimates until a source answers")
	}
	r.kept = kept
}

// readKept reads the file of known pods; "" and a file that is not there have none.
func readKept(file string) (map[Ref]Answer, error) {
	kept := map[Ref]Answer{}
	if file == "" {
		return kept, nil
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return kept, nil
	}
	var list []keptPod
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return kept, fmt.Errorf("read %s: %w", file, err)
	}
	for _, k := range list {
		if k.Pod != nil {
			kept[k.Pod.Ref] = Answer{Pod: k.Pod, Source: k.Source}
		}
	}
	return kept, nil
}

// Retain drops what an earlier run knew of all other pods: they have ended.
func (r *Resolver) Retain(refs []Ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) == 0 {
		return
	}
	retained := make(map[Ref]Answer, len(refs))
	for _, ref := range refs {
		if answer, ok := r.kept[ref]; ok {
			retained[ref] = answer
		}
	}
	r.kept = retained
	r.save()
}

// give notes the answer that the caller receives for a pod. The lock is held.
func (r *Resolver) give(ref Ref, k *known, answer Answer) {
	if answer.Pod != k.given.Pod {
		k.updated = nil
		r.save()
	}
	delete(r.kept, ref)
	k.given, k.resolved = answer, true
}

// save has the file of known pods written. The lock is held.
func (r *Resolver) save() {
	select {
	case r.unsaved <- struct{}{}:
	default:
	}
}

// keep writes the file of known pods whenever they have changed, until ctx ends.
func (r *Resolver) keep(ctx context.Context) {
	for failed := false; ; {
		select {
		case <-r.unsaved:
		case <-ctx.Done():
			select {
			case <-r.unsaved:
			default:
				return
			}
		}
		err := r.write()
		if (err != nil) != failed {
			failed = err != nil
			if failed {
				r.log.WithError(err).Warn("what is known of the pods cannot be written: after a restart their requests are estimates until a source answers")
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(saveInterval):
		}
	}
}

// write writes what is known of the pods that were resolved, and of those of an earlier run that have not been seen yet.
func (r *Resolver) write() error {
	r.mu.Lock()
	known := maps.Clone(r.kept)
	for ref, k := range r.pods {
		if k.given.Pod != nil {
			known[ref] = k.given
		}
	}
	r.mu.Unlock()
	list := make([]keptPod, 0, len(known))
	for _, answer := range known {
		list = append(list, keptPod{answer.Source, answer.Pod})
	}
	slices.SortFunc(list, func(a, b keptPod) int {
		return cmp.Or(cmp.Compare(a.Pod.UID, b.Pod.UID), cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
	})
	data, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("encode %s: %w", r.file, err)
	}
	if err := renameio.WriteFile(r.file, data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", r.file, err)
	}
	return nil
}
