package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/controlplane"
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
	nrts   int              // of these, NodeResourceTopologies
}

const header = "pods\tscheduler\tinterval\trunning\trejected\tpending\tlast bound\tlast running\twrites per pod\twrites of objects"

func (r result) String() string {
	return fmt.Sprintf("%d of %d\t%d\t%d\t%.1f s\t%.1f s\t%.1f\t%d", r.counts[running], r.pods, r.counts[rejected], r.pods-r.counts[bound],
		r.took[bound].Seconds(), r.took[running].Seconds(), float64(r.all)/float64(r.pods), r.nrts)
}

// check says what is wrong with a result: the default scheduler must send more pods than the nodes take, or nothing was
// tested, and the other one must fill the nodes with not one pod too many.
func (r result) check(s setting, nodes int) error {
	switch room := nodes * s.room; {
	case !s.exports() && r.counts[rejected] == 0:
		return fmt.Errorf("%s: no pod was rejected at its node, want some", s)
	case s.exports() && (r.counts[rejected] > 0 || r.counts[running] != room):
		return fmt.Errorf("%s: %d pods run and %d were rejected at their nodes, want %d and 0", s, r.counts[running], r.counts[rejected], room)
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
	calm := time.Since(t.last)
	done := t.counts[running]+t.counts[rejected] == t.counts[bound] && (t.counts[running] >= places || t.counts[bound] == t.pods)
	return done && calm > 5*time.Second || calm > time.Minute
}

// measure runs one setting on a cluster of its own.
func (o *options) measure(ctx context.Context, s setting, dir string) (result, error) {
	cluster, err := controlplane.New(o.bin, filepath.Join(dir, "cluster"))
	if err != nil {
		return result{}, err
	}
	defer cluster.Stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before the cluster stops
	if err := cluster.Start(ctx); err != nil {
		return result{}, err
	}
	if err := cluster.ServeTopologies(ctx, o.definition); err != nil {
		return result{}, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", cluster.AdminKubeconfig())
	if err != nil {
		return result{}, err
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return result{}, err
	}
	nodes, err := o.startNodes(ctx, s, client, cluster.AdminKubeconfig(), dir)
	defer func() {
		for _, n := range nodes {
			n.stop()
		}
	}()
	if err != nil {
		return result{}, err
	}
	if err := await(ctx, "the nodes", func() (bool, error) { return ready(ctx, cluster, client, s, len(nodes)) }); err != nil {
		return result{}, err
	}
	if s.exports() {
		if err := cluster.StartTopologyAware(ctx, s.arguments); err != nil {
			return result{}, err
		}
	}
	logf("%d nodes are ready", len(nodes))
	return s.load.run(ctx, client, s.scheduler(), nodes)
}

// startNodes returns those, too, that were started before an error.
func (o *options) startNodes(ctx context.Context, s setting, client kubernetes.Interface, kubeconfig, dir string) (nodes []*node, err error) {
	for i := range o.nodes {
		n := &node{name: fmt.Sprintf("node-%03d", i), dir: filepath.Join(dir, strconv.Itoa(i)), client: client, pods: make(chan *corev1.Pod, 1000)}
		if err := n.join(ctx); err != nil {
			return nodes, fmt.Errorf("join %s: %w", n.name, err)
		}
		settings := fmt.Sprintf("nodeName: %s\ntopologyManagerPolicy: single-numa-node\nrequestSources: [oomscore]\n", n.name)
		if s.exports() {
			settings += fmt.Sprintf("kubeconfig: %s\nnodeResourceTopology: {enabled: true, interval: %s}\n", kubeconfig, s.interval)
		}
		err := n.start(ctx, o.plugin, settings)
		nodes = append(nodes, n)
		if err != nil {
			return nodes, fmt.Errorf("start %s: %w", n.name, err)
		}
	}
	return nodes, nil
}

// ready reports whether pods may come: no node has a taint, and every object is there.
func ready(ctx context.Context, cluster *controlplane.Cluster, client kubernetes.Interface, s setting, nodes int) (bool, error) {
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	for _, n := range list.Items {
		if len(n.Spec.Taints) > 0 {
			return false, nil
		}
	}
	objects, err := cluster.Topologies(ctx)
	return objects == nodes || !s.exports(), err
}

// run creates the pods, plays the kubelets and waits until nothing more happens.
func (l load) run(ctx context.Context, client kubernetes.Interface, scheduler string, nodes []*node) (result, error) {
	t := &tally{began: time.Now(), last: time.Now(), result: result{pods: l.perNode * len(nodes)}}
	byName := map[string]*node{}
	for _, n := range nodes {
		byName[n.name] = n
		go n.serve(ctx, t.saw)
	}
	known := map[types.UID]bool{}
	bind := func(object any) {
		pod := object.(*corev1.Pod)
		if n := byName[pod.Spec.NodeName]; n != nil && !known[pod.UID] {
			known[pod.UID] = true
			t.saw(bound)
			n.pods <- pod
		}
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().Pods().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: bind, UpdateFunc: func(_, pod any) { bind(pod) }}); err != nil {
		return result{}, err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	before, objects, err := writes(ctx, client)
	if err != nil {
		return result{}, err
	}
	t.began = time.Now()
	if err := l.create(ctx, client, scheduler, t.pods); err != nil {
		return result{}, err
	}
	if err := await(ctx, "the pods", func() (bool, error) { return t.settled(l.room * len(nodes)), nil }); err != nil {
		return result{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all, t.nrts, err = writes(ctx, client)
	t.all, t.nrts = t.all-before, t.nrts-objects
	return t.result, err
}

// create creates all pods, a few at a time.
func (l load) create(ctx context.Context, client kubernetes.Interface, scheduler string, pods int) error {
	resources := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse(l.memory)}
	no := false
	errs := make([]error, pods)
	free := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for i := range pods {
		free <- struct{}{}
		wg.Go(func() {
			_, errs[i] = client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%04d", i)},
				Spec: corev1.PodSpec{SchedulerName: scheduler, AutomountServiceAccountToken: &no, Containers: []corev1.Container{{
					Name: "app", Image: "none", Resources: corev1.ResourceRequirements{Requests: resources, Limits: resources}}}}}, metav1.CreateOptions{})
			<-free
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// writes asks the API server for the writes that it has served.
func writes(ctx context.Context, client kubernetes.Interface) (all, objects int, err error) {
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
		if strings.Contains(line, `resource="noderesourcetopologies"`) {
			objects += int(n)
		}
	}
	return all, objects, nil
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
