package world

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// podAPI is the kubelet's pod API (KEP-4188).
type podAPI struct {
	mu     sync.Mutex
	pods   map[pods.Ref]*pods.Pod
	told   map[pods.Ref]bool // to a client, once
	silent bool
	news   chan struct{} // closed and replaced at each change
}

func newPodAPI() *podAPI {
	return &podAPI{pods: map[pods.Ref]*pods.Pod{}, told: map[pods.Ref]bool{}, news: make(chan struct{})}
}

func (a *podAPI) change(how func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	how()
	close(a.news)
	a.news = make(chan struct{})
}

func (a *podAPI) put(pod *pods.Pod)   { a.change(func() { a.pods[pod.Ref] = pod }) }
func (a *podAPI) remove(ref pods.Ref) { a.change(func() { delete(a.pods, ref) }) }

// neverTold reports whether a pod was deleted before a client received it.
func (a *podAPI) neverTold(ref pods.Ref) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pods[ref] == nil && !a.told[ref]
}

func (a *podAPI) silence(silent bool) { a.change(func() { a.silent = silent }) }
func (a *podAPI) client() *podAPIClient {
	return &podAPIClient{podAPI: a, known: map[pods.Ref]*pods.Pod{}}
}

// podAPIClient is a podinfo.Provider, as podinfo.Kubelet is one: it keeps what it was told while the API does not answer.
type podAPIClient struct {
	*podAPI
	known     map[pods.Ref]*pods.Pod
	connected bool
}

func (c *podAPIClient) Source() memoryqos.Source { return memoryqos.SourceKubelet }

func (c *podAPIClient) Known(ref pods.Ref) (*pods.Pod, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pod, ok := c.known[ref]
	return pod, ok
}

func (c *podAPIClient) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.known)
}

func (c *podAPIClient) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.connected && !c.silent
}

func (c *podAPIClient) Problem() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.silent {
		return errSilent.Error()
	}
	return ""
}

var errSilent = errors.New("the kubelet's pod API does not answer")

// Ask asks the kubelet, and waits for the end of a silence.
func (c *podAPIClient) Ask(ctx context.Context, ref pods.Ref) (*pods.Pod, error) {
	for {
		c.mu.Lock()
		pod, silent, news := cmp.Or(c.known[ref], c.pods[ref]), c.silent, c.news
		c.mu.Unlock()
		switch {
		case silent:
		case pod == nil:
			return nil, podinfo.ErrNotFound
		default:
			return pod, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Run watches: after a silence all pods are told again.
func (c *podAPIClient) Run(ctx context.Context, changed func(*pods.Pod)) {
	for ctx.Err() == nil {
		news, tell := c.next()
		for _, pod := range tell {
			changed(pod)
		}
		if len(tell) > 0 {
			continue
		}
		select {
		case <-news:
		case <-ctx.Done():
		}
	}
	c.change(func() { c.connected = false })
}

// next takes in what is new.
func (c *podAPIClient) next() (news <-chan struct{}, tell []*pods.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.silent {
		c.connected = false
		return c.news, nil
	}
	for _, ref := range slices.SortedFunc(maps.Keys(c.pods), func(a, b pods.Ref) int { return cmp.Compare(a.UID, b.UID) }) {
		if pod := c.pods[ref]; !c.connected || c.known[ref] != pod {
			tell, c.told[ref] = append(tell, pod), true
		}
	}
	c.known, c.connected = maps.Clone(c.pods), true
	return c.news, tell
}
