package podinfo

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// table is what one source has reported of the pods.
type table struct {
	mu   sync.Mutex
	pods map[pods.Ref]*pods.Pod
	news chan struct{} // closed and replaced when a pod comes in
}

func newTable() *table {
	return &table{pods: map[pods.Ref]*pods.Pod{}, news: make(chan struct{})}
}

func (t *table) get(ref pods.Ref) (*pods.Pod, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	pod, ok := t.pods[ref]
	return pod, ok
}

// put takes a pod in and reports whether it says anything new.
func (t *table) put(pod *pods.Pod) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if have, ok := t.pods[pod.Ref]; ok && reflect.DeepEqual(have, pod) {
		return false
	}
	t.pods[pod.Ref] = pod
	close(t.news)
	t.news = make(chan struct{})
	return true
}

func (t *table) drop(ref pods.Ref) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pods, ref)
}

// replace takes all pods that a source has.
func (t *table) replace(all []*pods.Pod) {
	refs := make(map[pods.Ref]struct{}, len(all))
	for _, pod := range all {
		refs[pod.Ref] = struct{}{}
		t.put(pod)
	}
	t.keep(refs)
}

// keep drops all pods but these: a source has sent every pod that it has.
func (t *table) keep(refs map[pods.Ref]struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.pods, func(ref pods.Ref, _ *pods.Pod) bool {
		_, kept := refs[ref]
		return !kept
	})
}

func (t *table) all() []*pods.Pod {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.pods))
}

func (t *table) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.pods)
}

// wait returns a pod as soon as it is in the table, or ctx's error.
func (t *table) wait(ctx context.Context, ref pods.Ref) (*pods.Pod, error) {
	for {
		t.mu.Lock()
		pod, news := t.pods[ref], t.news
		t.mu.Unlock()
		if pod != nil {
			return pod, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
