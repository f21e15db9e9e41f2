package podinfo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

const (
	// saveInterval is the shortest time between two writes of the file of known pods.
	saveInterval = time.Second
	// finishTimeout bounds the last write.
	finishTimeout = 5 * time.Second
)

// keptPod is a pod in the file of known pods.
type keptPod struct {
	Source memoryqos.Source `json:"source"`
	Pod    *pods.Pod        `json:"pod"`
}

// load reads the pods that an earlier run knew. A file that cannot be read is no more than their loss: the sources know them.
func (r *Resolver) load(path string) {
	kept, err := readKept(path)
	if err != nil {
		r.log.WithError(err).Warn("what was known of the pods cannot be read: their requests are estimates until a source answers")
	}
	r.kept = kept
	if path != "" {
		r.file = durable.NewWriter(durable.Options{Path: path, Interval: saveInterval})
	}
}

// readKept reads the file of known pods; "" and a file that is not there have none.
func readKept(file string) (map[pods.Ref]pods.Answer, error) {
	kept := map[pods.Ref]pods.Answer{}
	if file == "" {
		return kept, nil
	}
	var list []keptPod
	err := durable.Load(file, func(data []byte) error { return json.Unmarshal(data, &list) })
	if errors.Is(err, fs.ErrNotExist) {
		return kept, nil
	}
	if err != nil {
		return kept, err
	}
	for _, k := range list {
		if k.Pod != nil {
			kept[k.Pod.Ref] = pods.Answer{Pod: k.Pod, Source: k.Source}
		}
	}
	return kept, nil
}

// Retain drops what an earlier run knew of all other pods: they have ended.
func (r *Resolver) Retain(refs []pods.Ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) == 0 {
		return
	}
	maps.DeleteFunc(r.kept, func(ref pods.Ref, _ pods.Answer) bool { return !slices.Contains(refs, ref) })
	r.save()
}

// give notes the answer that the caller receives for a pod. The lock is held.
func (r *Resolver) give(ref pods.Ref, k *known, answer pods.Answer) {
	if answer.Pod != k.given.Pod {
		k.updated = nil
		r.save()
	}
	delete(r.kept, ref)
	k.given, k.resolved = answer, true
}

// save has the file of known pods written.
func (r *Resolver) save() {
	if r.file != nil {
		r.file.Submit(r.content)
	}
}

// File are the counters of the file of known pods.
func (r *Resolver) File() durable.Stats {
	if r.file == nil {
		return durable.Stats{}
	}
	return r.file.Stats()
}

// finish writes what is pending, unless the disk hangs.
func (r *Resolver) finish() {
	ctx, cancel := context.WithTimeout(context.Background(), finishTimeout)
	defer cancel()
	if err := r.file.Close(ctx); err != nil {
		r.log.WithError(err).Debug("what was last known of the pods is not written")
	}
}

// content encodes what is known of resolved pods, and of an earlier run's pods that have not been seen yet.
func (r *Resolver) content(buffer []byte) ([]byte, error) {
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
	return json.Marshal(list)
}
