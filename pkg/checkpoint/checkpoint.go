// Package checkpoint reads, verifies and writes the Memory Manager's state in the kubelet's state file format. Several decisions share one
// write.
// https://kubernetes.io/docs/tasks/administer-cluster/memory-manager/ describes the file memory_manager_state.
package checkpoint

import "github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"

// FileName is the name of the state file, as in the kubelet.
const FileName = "memory_manager_state"

// PolicyStatic is the policyName of every state that has allocations.
const PolicyStatic = "Static"

// policyNone is the policyName of a kubelet without Memory Manager; its state is empty.
const policyNone = "None"

// Format is the layout of a state file.
type Format string

// The layouts of the kubelet's state file.
const (
	// V1 is the layout of kubelets 1.21 to 1.36. This plugin writes it while no pod is allocated as a whole.
	V1 Format = "v1"
	// V2 is the layout of kubelet 1.36 with the feature gate PodLevelResourceManagers: V1 with the key "podEntries".
	V2 Format = "v2"
	// V3 is the layout of kubelets from 1.37: V1 and, as a string, the state with its pod entries. This plugin writes it otherwise.
	V3 Format = "v3"
	// Nodes is the layout before 1.21, with the key "nodes" for a node's group. Its checksum is not verified.
	Nodes Format = "nodes"
)

// File is the content of a state file.
type File struct {
	// Policy is the policy of the Memory Manager that wrote the file, "Static" or "None".
	Policy string
	// State has PerNode amounts only if this program wrote the file.
	State memorymanager.State
	// Checksum is the stored one; 0 if there is none, which the kubelet accepts.
	Checksum uint32
	Format   Format
	// Verified is set if the stored checksum is right. Otherwise the state has passed Check.
	Verified bool
}
