// Package world is a node in virtual time: a model of the kernel's memory side, a kubelet and a container runtime with the
// real NRI protocol, what goes wrong, and what must hold all the same. The daemon that runs on it is the real one.
package world

import (
	"encoding/json"
	"fmt"
	"time"
)

// Scenario is one run of a node: what happens at which time. It is data, made from a seed before the run, so that it can be kept as JSON
// and made smaller. Times count from the start of the node; no two things happen in the same instant.
type Scenario struct {
	Seed    uint64  `json:"seed,omitempty"` // that it was drawn from
	Config  string  `json:"config"`         // the daemon's configuration file
	Machine Machine `json:"machine"`
	Runtime Runtime `json:"runtime"`
	// APIServer has the daemon ask the API server for pods in place of the kubelet: one that streams lists, or that lists.
	APIServer string `json:"apiServer,omitempty"`
	// GroupKills has the kubelet ask that an OOM kill ends all of a container, which is its default (singleProcessOOMKill: false).
	GroupKills bool     `json:"groupKills,omitempty"`
	Length     Duration `json:"length"` // then nothing more happens, and after a while all must be right
	Pods       []Pod    `json:"pods"`
	Faults     []Fault  `json:"faults,omitempty"`
}

// Machine is the hardware and what its kernel is.
type Machine struct {
	Nodes    []NUMANode `json:"nodes"`
	Kernel   string     `json:"kernel"`             // version, as uname -r prints it
	Swap     uint64     `json:"swap,omitempty"`     // bytes
	Reserved uint64     `json:"reserved,omitempty"` // bytes that pods may not use beyond what is used outside of them (kubeReserved)
	Systemd  bool       `json:"systemd,omitempty"`  // the kubelet uses the systemd cgroup driver
}

// NUMANode is one NUMA node; all are 21 apart, but for those that are near.
type NUMANode struct {
	Memory    uint64 `json:"memory"`              // bytes
	Outside   uint64 `json:"outside"`             // bytes used outside of pods
	CPUs      int    `json:"cpus"`                // 0 is a node without CPUs
	Near      *int   `json:"near,omitempty"`      // the id of a node that is 12 away
	Hugepages uint64 `json:"hugepages,omitempty"` // number of 2 MiB pages
}

// Runtime is the container runtime.
type Runtime struct {
	Name    string `json:"name"` // containerd or cri-o
	Version string `json:"version"`
	NRI     string `json:"nri"`            // version of its NRI; before 0.12.4 it knows no failure policy
	Crun    bool   `json:"crun,omitempty"` // each container has a cgroup in its own
	// Creates is how long it takes from the plugins' answers until a container has its cgroup.
	Creates Duration `json:"creates,omitempty"`
	// Updates is how long it takes from the plugins' answers until a container has what an update asks for.
	Updates Duration `json:"updates,omitempty"`
}

// Pod is a pod's life.
type Pod struct {
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace"`
	Class       string            `json:"class"` // Guaranteed, Burstable or BestEffort
	Annotations map[string]string `json:"annotations,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Static      bool              `json:"static,omitempty"`
	// PriorityClass is the pod's spec.priorityClassName.
	PriorityClass string      `json:"priorityClass,omitempty"`
	Claims        []Claim     `json:"claims,omitempty"`
	Request       uint64      `json:"request,omitempty"` // bytes, pod-level resources; 0 has none
	Limit         uint64      `json:"limit,omitempty"`
	Containers    []Container `json:"containers"` // init containers and sidecars first
	At            Duration    `json:"at"`         // the kubelet sees it
	End           Duration    `json:"end"`        // it is deleted; 0 lives until the end of the run
	Forced        bool        `json:"forced,omitempty"`
	Changes       []Change    `json:"changes,omitempty"`
}

// Container is a container of a pod, with all that its processes will do.
type Container struct {
	Name      string    `json:"name"`
	Kind      string    `json:"kind"`              // app, init or sidecar
	Request   uint64    `json:"request,omitempty"` // bytes of memory
	Limit     uint64    `json:"limit,omitempty"`
	CPUs      int       `json:"cpus,omitempty"`      // whole CPUs
	Claims    []string  `json:"claims,omitempty"`    // names of the pod's
	Hugepages uint64    `json:"hugepages,omitempty"` // bytes in pages of 2 MiB
	Lives     []Program `json:"lives"`               // what each start of it does; the last holds for all that follow
}

// Claim is a resource claim: memory of NUMA nodes that the scheduler chooses by what the daemon has published.
type Claim struct {
	Name   string `json:"name"`
	Memory uint64 `json:"memory"`          // bytes of each of its NUMA nodes
	Nodes  int    `json:"nodes,omitempty"` // it has memory of so many; 0 is 1
	// Hasty has the scheduler decide by the node's memory, as if what is published had just changed.
	Hasty bool `json:"hasty,omitempty"`
	// Blind has it overlook other claims, as two schedulers do.
	Blind bool `json:"blind,omitempty"`
	// Of is the pod whose claim it is where there is that pod, which passes it on when it ends.
	Of string `json:"of,omitempty"`
}

// Program is what the processes of a container do.
type Program struct {
	Heap      uint64   `json:"heap,omitempty"`  // anonymous memory that it wants, in bytes
	Rate      uint64   `json:"rate,omitempty"`  // and gets at most a second
	Late      Duration `json:"late,omitempty"`  // after its start, when it begins to want it
	Falls     Duration `json:"falls,omitempty"` // after its start, when it gives three quarters of that back
	Cache     uint64   `json:"cache,omitempty"`
	CacheRate uint64   `json:"cacheRate,omitempty"`
	Dirty     bool     `json:"dirty,omitempty"`  // it writes its page cache, else it reads it
	Fresh     bool     `json:"fresh,omitempty"`  // what it reads are other files each time, each twice
	Tmpfs     uint64   `json:"tmpfs,omitempty"`  // bytes in an emptyDir of medium Memory, which outlive it
	Writes    string   `json:"writes,omitempty"` // a file of its own cgroup that it writes, FILE=TEXT: a tenant with its cgroup mounted writable
	Exit      Duration `json:"exit,omitempty"`   // after its start; 0 runs until it is stopped
	Forks     bool     `json:"forks,omitempty"`  // its memory is a child's: the kernel kills that alone, and it starts another one
	Daemon    bool     `json:"daemon,omitempty"` // it is the daemon's own process
}

// Change is something that is done to a pod while it lives.
type Change struct {
	At        Duration `json:"at"`
	Kind      string   `json:"kind"` // one of those below
	Container string   `json:"container,omitempty"`
	Limit     uint64   `json:"limit,omitempty"` // of a resize, in bytes; the request grows in the same proportion
}

// Kinds of changes.
const (
	Resize     = "resize"      // in place
	NewSandbox = "new sandbox" // the pod's network is made again: all containers, too
)

// Fault is something that goes wrong for a while.
type Fault struct {
	At     Duration `json:"at"`
	Kind   string   `json:"kind"`
	Length Duration `json:"length,omitempty"`
	Target string   `json:"target,omitempty"` // a file name, a pod's name or a configuration, by kind
	Draw   uint64   `json:"draw,omitempty"`   // the seed of what is drawn meanwhile
}

// Duration is a time.Duration that JSON has as text ("1m30s").
type Duration time.Duration

func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads what MarshalJSON writes.
func (d *Duration) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf(`a duration is text like "1m30s", not %s`, text)
	}
	v, err := time.ParseDuration(s)
	*d = Duration(v)
	return err
}
