// Package topologymanager holds the decisions of the kubelet's Topology Manager: which NUMA affinity a container gets
// under a policy, from the hints of its memory and its CPUs.
// https://kubernetes.io/docs/tasks/administer-cluster/topology-manager/
package topologymanager

import (
	"fmt"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Policy is the kubelet's topologyManagerPolicy.
type Policy string

// The policies of the Topology Manager.
const (
	// None asks for no hints: any placement is admitted.
	None Policy = "none"
	// BestEffort takes the best hint and always admits.
	BestEffort Policy = "best-effort"
	// Restricted admits only a preferred hint.
	Restricted Policy = "restricted"
	// SingleNUMANode admits only a preferred hint of one NUMA node.
	SingleNUMANode Policy = "single-numa-node"
)

// ParsePolicy reads a policy by the kubelet's name.
func ParsePolicy(text string) (Policy, error) {
	switch p := Policy(text); p {
	case None, BestEffort, Restricted, SingleNUMANode:
		return p, nil
	}
	return "", fmt.Errorf("topology manager policy %q is not one of none, best-effort, restricted, single-numa-node", text)
}

// Scope is the kubelet's topologyManagerScope.
type Scope string

// The scopes of the Topology Manager.
const (
	// ContainerScope aligns every container by itself.
	ContainerScope Scope = "container"
	// PodScope aligns all containers of a pod to one affinity.
	PodScope Scope = "pod"
)

// ParseScope reads a scope by the kubelet's name.
func ParseScope(text string) (Scope, error) {
	switch s := Scope(text); s {
	case ContainerScope, PodScope:
		return s, nil
	}
	return "", fmt.Errorf("topology manager scope %q is not one of container, pod", text)
}

// Hint is a NUMA affinity that a resource could have, or that a container was given.
type Hint struct {
	// Nodes is the affinity; empty means no affinity.
	Nodes nodeset.Set
	// Preferred is set when no smaller number of nodes could ever hold the request.
	Preferred bool
}
