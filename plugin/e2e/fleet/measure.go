package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// outcome is what became of a pod.
type outcome int

const (
	bound outcome = iota // to a node
	running
	rejected
)

// result is what was measured.
type result struct {
	counts [3]int
	pods   int
	took   [3]time.Duration // until the last one of each outcome
	all    int              // writes to the API server, Leases left out
	nodes  int              // of these, objects of nodes: NodeResourceTopologies and ResourceSlices
}

const header = "pods\tscheduler\tinterval\trunning\trejected\tpending\tlast bound\tlast running\twrites per pod\twrites of nodes' objects"

func (r result) String() string {
	return fmt.Sprintf("%d of %d\t%d\t%d\t%.1f s\t%.1f s\t%.1f\t%d", r.counts[running], r.pods, r.counts[rejected], r.pods-r.counts[bound],
		r.took[bound].Seconds(), r.took[running].Seconds(), float64(r.all)/float64(r.pods), r.nodes)
}

// check reports what is wrong with a result: without the NUMA nodes' free memory the scheduler must send more pods than the nodes
// take, or nothing was tested. With claims it must fill the nodes with not one pod too many. With the export it must fill them, too,
// and send at most half as many pods too many as without: the cache of NodeResourceTopologyMatch takes up a node's object when that
// has the fingerprint of the pods that run, and then forgets a pod that does not run yet.
func (r result) check(s setting, nodes, without int) error {
	most := 0
	if s.exports() {
		most = without / 2
	}
	switch room := nodes * s.room; {
	case !s.informed() && r.counts[rejected] == 0:
		return fmt.Errorf("%s: no pod was rejected at its node, want some", s)
	case s.informed() && (r.counts[running] != room || r.counts[rejected] > most):
		return fmt.Errorf("%s: %d pods run and %d were rejected at their nodes, want %d and at most %d", s, r.counts[running], r.counts[rejected], room, most)
	}
	return nil
}

// tally counts outcomes as they come.
type tally struct {
	mu    sync.Mutex
	began time.Time
	last  time.Time
	result
}

func (t *tally) saw(o outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = time.Now()
	t.counts[o]++
	t.took[o] = t.last.Sub(t.began)
}

// settled reports whether nothing more is to be expected: every place is taken or every pod is bound and nothing has
// happened for a while, or nothing has happened for very long.
func (t *tally) settled(places int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	quiet := time.Since(t.last)
	done := t.counts[running]+t.counts[rejected] == t.counts[bound] && (t.counts[running] >= places || t.counts[bound] == t.pods)
	return done && quiet > 5*time.Second || quiet > time.Minute
}

// measure runs one setting on a cluster of its own.
func (o *options) measure(ctx context.Context, s setting, dir string) (result, error) {
	var r result
	err := o.assemble(ctx, s, o.nodes, dir, func(ctx context.Context, f *fleet) (err error) {
		if r, err = f.measure(ctx); err != nil || !s.claims {
			return err
		}
		return f.empty(ctx)
	})
	return r, err
}

// measure creates the pods and waits until nothing more happens.
func (f *fleet) measure(ctx context.Context) (result, error) {
	t := &tally{began: time.Now(), last: time.Now(), result: result{pods: f.perNode * len(f.nodes)}}
	if err := f.follow(ctx, t.saw); err != nil {
		return result{}, err
	}
	if f.groups {
		if err := f.makeGroups(ctx, t); err != nil {
			return result{}, err
		}
	}
	before, objects, err := writes(ctx, f.client)
	if err != nil {
		return result{}, err
	}
	t.began = time.Now()
	if err := f.create(ctx, "pod", t.pods); err != nil {
		return result{}, err
	}
	if err := await(ctx, "the pods", func() (bool, error) { return t.settled(f.room * len(f.nodes)), nil }); err != nil {
		return result{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all, t.nodes, err = writes(ctx, f.client)
	t.all, t.nodes = t.all-before, t.nodes-objects
	return t.result, err
}

// create creates all pods.
func (f *fleet) create(ctx context.Context, name string, pods int) error {
	return each(pods, func(i int) error {
		_, err := f.client.CoreV1().Pods(namespace).Create(ctx, f.pod(fmt.Sprintf("%s-%04d", name, i)), metav1.CreateOptions{})
		return err
	})
}

// each makes n requests, a few at a time.
func each(n int, request func(int) error) error {
	errs := make([]error, n)
	free := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for i := range n {
		free <- struct{}{}
		wg.Go(func() {
			errs[i] = request(i)
			<-free
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// pod is one of the setting's pods.
func (s setting) pod(name string) *corev1.Pod {
	resources := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse(s.memory)}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		SchedulerName: s.scheduler(), AutomountServiceAccountToken: new(false), Containers: []corev1.Container{{
			Name: "app", Image: "none", Resources: corev1.ResourceRequirements{Requests: resources, Limits: resources}}}}}
	if s.claims {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "memory", ResourceClaimTemplateName: new(s.memoryTemplate())}}
		pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "memory"}}
	}
	return pod
}

// writes asks the API server for the writes that it has served, and for those of the nodes' objects among them.
func writes(ctx context.Context, client kubernetes.Interface) (all, nodes int, err error) {
	text, err := client.Discovery().RESTClient().Get().AbsPath("/metrics").Do(ctx).Raw()
	if err != nil {
		return 0, 0, fmt.Errorf("count the writes: %w", err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		line := lines.Text()
		if !strings.HasPrefix(line, "apiserver_request_total{") || strings.Contains(line, `resource="leases"`) ||
			!strings.Contains(line, `verb="POST"`) && !strings.Contains(line, `verb="PUT"`) && !strings.Contains(line, `verb="PATCH"`) {
			continue
		}
		n, err := strconv.ParseFloat(line[strings.LastIndex(line, " ")+1:], 64)
		if err != nil {
			return 0, 0, fmt.Errorf("count the writes: %w", err)
		}
		all += int(n)
		if strings.Contains(line, `resource="noderesourcetopologies"`) || strings.Contains(line, `resource="resourceslices"`) {
			nodes += int(n)
		}
	}
	return all, nodes, nil
}

// await waits until done holds.
func await(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	for {
		ok, err := done()
		if ok && err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, errors.Join(err, ctx.Err()))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
