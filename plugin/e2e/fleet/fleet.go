package main

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/controlplane"
)

// namespace is where the pods are.
const namespace = "default"

// fleet is a control plane and its nodes, for one setting.
type fleet struct {
	setting
	cluster *controlplane.Cluster
	client  kubernetes.Interface
	nodes   []*node
}

// assemble starts a fleet, does the work once pods may come, and stops the fleet.
func (o *options) assemble(ctx context.Context, s setting, nodes int, dir string, work func(context.Context, *fleet) error) error {
	cluster, err := controlplane.New(o.bin, filepath.Join(dir, "cluster"))
	if err != nil {
		return err
	}
	defer cluster.Stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before the cluster stops
	f := &fleet{setting: s, cluster: cluster}
	defer f.stopNodes()
	if err := f.startControlPlane(ctx, o); err != nil {
		return err
	}
	if err := f.startNodes(ctx, o.plugin, nodes, dir); err != nil {
		return err
	}
	if err := await(ctx, "the nodes", func() (bool, error) { return f.ready(ctx) }); err != nil {
		return err
	}
	if s.exports() {
		extenders := "[]"
		if s.heeds {
			if extenders, err = f.extender(ctx); err != nil {
				return err
			}
		}
		if err := cluster.StartTopologyAware(ctx, s.arguments, extenders, o.schedulerFlags...); err != nil {
			return err
		}
	}
	logf("%d nodes are ready", nodes)
	return work(ctx, f)
}

// startControlPlane starts the control plane and creates the objects that the setting needs.
func (f *fleet) startControlPlane(ctx context.Context, o *options) error {
	if err := f.cluster.Start(ctx); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", f.cluster.AdminKubeconfig())
	if err != nil {
		return err
	}
	config.QPS = -1
	if f.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	switch {
	case f.exports():
		return f.cluster.ServeTopologies(ctx, o.definition)
	case f.claims:
		if err := f.cluster.Apply(ctx, deviceClasses, o.class); err != nil {
			return err
		}
		return f.cluster.Apply(ctx, claimTemplates, f.claimTemplate())
	}
	return nil
}

func (f *fleet) startNodes(ctx context.Context, plugin string, nodes int, dir string) error {
	for i := range nodes {
		n := &node{name: fmt.Sprintf("node-%03d", i), dir: filepath.Join(dir, strconv.Itoa(i)), client: f.client, pods: make(chan *corev1.Pod, 1000)}
		f.nodes = append(f.nodes, n)
		if err := n.join(ctx); err != nil {
			return fmt.Errorf("join %s: %w", n.name, err)
		}
		if err := n.start(ctx, plugin, f.configuration(), f.flags(n.name)); err != nil {
			return fmt.Errorf("start %s: %w", n.name, err)
		}
		if f.claims {
			if err := n.register(ctx); err != nil {
				return fmt.Errorf("register the driver of %s: %w", n.name, err)
			}
		}
	}
	return nil
}

func (f *fleet) stopNodes() {
	for _, n := range f.nodes {
		n.stop()
	}
}

// flags are those of a node's plugin. One that neither exports nor has claims needs no API server.
func (f *fleet) flags(node string) []string {
	flags := []string{"--node-name", node, "--timings", fmt.Sprint("export=", cmp.Or(f.interval, 10*time.Second))}
	if f.knowsNUMANodes() || f.evicts {
		flags = append(flags, "--kubeconfig", f.cluster.AdminKubeconfig())
	}
	return flags
}

// configuration is the plugins'.
func (f *fleet) configuration() string {
	policy := "single-numa-node"
	if f.groups {
		policy = "restricted"
	}
	lines := "topologyManagerPolicy: " + policy + "\nrequestSources: [oomscore]\n"
	switch {
	case f.exports():
		lines += "nodeResourceTopology: true\n"
	case f.evicts:
		lines += "evictRejectedAfter: 30s\nevents: true\n"
	case f.claims:
		lines += "dra: {enabled: true, shares: [{limits: {memory: 100%}}]}\n"
	}
	return lines
}

// ready reports whether pods may come: no node has a taint, and every node's object is there.
func (f *fleet) ready(ctx context.Context) (bool, error) {
	list, err := f.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	for _, n := range list.Items {
		if len(n.Spec.Taints) > 0 {
			return false, nil
		}
	}
	objects := len(f.nodes)
	switch {
	case f.exports():
		objects, err = f.cluster.Topologies(ctx)
	case f.claims:
		objects, err = f.published(ctx)
	}
	return objects == len(f.nodes), err
}

// follow has each node run the pods that are bound to it, and end those that are deleted.
func (f *fleet) follow(ctx context.Context, seen func(outcome)) error {
	byName := map[string]*node{}
	for _, n := range f.nodes {
		byName[n.name] = n
		go n.serve(ctx, seen)
	}
	known, ending := map[types.UID]bool{}, map[types.UID]bool{}
	changed := func(object any) {
		pod := object.(*corev1.Pod)
		n := byName[pod.Spec.NodeName]
		if n == nil {
			return
		}
		if !known[pod.UID] {
			known[pod.UID] = true
			seen(bound)
			n.pods <- pod
		}
		if pod.DeletionTimestamp != nil && !ending[pod.UID] {
			ending[pod.UID] = true
			n.pods <- pod
		}
	}
	factory := informers.NewSharedInformerFactory(f.client, 0)
	informer := factory.Core().V1().Pods().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, pod any) { changed(pod) }}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return nil
}

// empty deletes all pods and fails unless their nodes end them, and release everything that their claims had.
func (f *fleet) empty(ctx context.Context) error {
	pods := f.client.CoreV1().Pods(namespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("delete the pods: %w", err)
	}
	err = each(len(list.Items), func(i int) error { return pods.Delete(ctx, list.Items[i].Name, metav1.DeleteOptions{}) })
	if err != nil {
		return fmt.Errorf("delete the pods: %w", err)
	}
	err = await(ctx, "the pods to end", func() (bool, error) {
		list, err := pods.List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil && len(list.Items) == 0, err
	})
	if err != nil {
		return err
	}
	for _, n := range f.nodes {
		if left, _ := filepath.Glob(n.path("cdi/*.json")); len(left) > 0 {
			return fmt.Errorf("%s has CDI specifications of claims that it has released: %v", n.name, left)
		}
	}
	return nil
}
