package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// topology is what of a NodeResourceTopology a scheduler needs that heeds the groups of NUMA nodes.
type topology struct {
	metav1.ObjectMeta `json:"metadata"`
	Zones             []zone `json:"zones"`
}

type zone struct {
	Name       string
	Attributes []struct{ Name, Value string }
	Resources  []struct {
		Name                   string
		Allocatable, Available resource.Quantity
	}
}

// group is the attribute memoryGroup, "" of a zone that nobody uses.
func (z zone) group() string {
	for _, a := range z.Attributes {
		if a.Name == "memoryGroup" {
			return a.Value
		}
	}
	return ""
}

func (z zone) memory() (allocatable, available int64) {
	for _, r := range z.Resources {
		if r.Name == string(corev1.ResourceMemory) {
			return r.Allocatable.Value(), r.Available.Value()
		}
	}
	return 0, 0
}

// admits reports whether a node of the policy restricted takes a container on one zone. That is all that this fleet's pods need.
func (t topology) admits(bytes int64) bool {
	for _, z := range t.Zones {
		if group := z.group(); group == "" || group == z.Name {
			if _, available := z.memory(); available >= bytes {
				return true
			}
		}
	}
	return false
}

// fitsOneZone reports whether one zone could have the bytes if nobody used it.
func (t topology) fitsOneZone(bytes int64) bool {
	for _, z := range t.Zones {
		if allocatable, _ := z.memory(); allocatable >= bytes {
			return true
		}
	}
	return false
}

func (f *fleet) topologies(ctx context.Context) (map[string]topology, error) {
	var list struct{ Items []topology }
	text, err := f.client.Discovery().RESTClient().Get().AbsPath("/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	byNode := map[string]topology{}
	err = json.Unmarshal(text, &list)
	for _, t := range list.Items {
		byNode[t.Name] = t
	}
	return byNode, err
}

// extender serves a filter of the scheduler until ctx ends, and returns its configuration. It passes a node unless the zones bar the pod.
// https://kubernetes.io/docs/concepts/extend-kubernetes/#scheduler-extensions
func (f *fleet) extender(ctx context.Context) (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("serve the extender: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct { // ExtenderArgs and ExtenderFilterResult of k8s.io/kube-scheduler/extender/v1
			Pod       corev1.Pod
			NodeNames []string
		}
		var answer struct {
			NodeNames   []string
			FailedNodes map[string]string
			Error       string
		}
		answer.FailedNodes = map[string]string{}
		err := json.NewDecoder(r.Body).Decode(&asked)
		nodes, failed := f.topologies(r.Context())
		if err != nil || failed != nil {
			answer.Error = fmt.Sprint(err, failed)
		}
		for _, name := range asked.NodeNames {
			bytes := asked.Pod.Spec.Containers[0].Resources.Limits.Memory().Value()
			if t := nodes[name]; t.fitsOneZone(bytes) && !t.admits(bytes) {
				answer.FailedNodes[name] = "no zone that a group does not bar has the memory"
			} else {
				answer.NodeNames = append(answer.NodeNames, name)
			}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	return fmt.Sprintf("[{urlPrefix: 'http://%s', filterVerb: filter, nodeCacheCapable: true}]", listener.Addr()), nil
}

// makeGroups starts a pod that needs both NUMA nodes on half of the nodes, and waits until the nodes' objects say so. The pods are not counted.
func (f *fleet) makeGroups(ctx context.Context, t *tally) error {
	wide := *f
	wide.memory = "130Gi" // little more than one has
	if err := wide.create(ctx, "wide", len(f.nodes)/2); err != nil {
		return err
	}
	return await(ctx, "the groups", func() (bool, error) {
		topologies, err := f.topologies(ctx)
		groups := 0
		for _, t := range topologies {
			if strings.Contains(t.Zones[0].group(), ",") {
				groups++
			}
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if groups < len(f.nodes)/2 || t.counts[running] < groups {
			return false, err
		}
		t.counts, t.took = [3]int{}, [3]time.Duration{}
		return true, nil
	})
}
