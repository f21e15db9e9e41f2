// Package checkpoint keeps the memory manager's state in the kubelet's state file format: it reads, verifies and writes
// it, with several decisions in one write.
// https://kubernetes.io/docs/tasks/administer-cluster/memory-manager/ describes the file memory_manager_state.
package checkpoint

import "github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"

// FileName is the kubelet's name for the state file, and ours.
const FileName = "memory_manager_state"

// PolicyStatic is the policyName of every state that has allocations.
const PolicyStatic = "Static"

// policyNone is the policyName of a kubelet without memory manager; its state is empty.
const policyNone = "None"

// Format is the layout that a state file was found in.
type Format string

// The layouts of the kubelet's state file.
const (
	// V1 is the layout of kubelets 1.21 to 1.36, and ours while no pod has an allocation of its own.
	V1 Format = "v1"
	// V2 is the layout of kubelet 1.36 with the feature gate PodLevelResourceManagers: V1 with the key "podEntries".
	V2 Format = "v2"
	// V3 is the layout of kubelets from 1.37, and ours otherwise: V1, and beside it the state with its pod entries as a string.
	V3 Format = "v3"
	// Nodes is the layout before 1.21, with the key "nodes" for a node's group. Its checksum is not verified.
	Nodes Format = "nodes"
)

// File is the content of a state file.
type File struct {
	// Policy is the memory manager policy that wrote it, "Static" or "None".
	Policy string
	// State has PerNode amounts only when this program wrote the file.
	State memorymanager.State
	// Checksum is the stored one; 0 when there is none, which the kubelet accepts.
	Checksum uint32
	Format   Format
	// Verified is set when the stored checksum is right. An unverified state has passed Check instead.
	Verified bool
}
