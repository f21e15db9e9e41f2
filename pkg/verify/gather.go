package verify

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

// Places are where a node's files are.
type Places struct {
	// Tree is the cgroup hierarchy; Plain is set when it is none of a kernel.
	Tree  *cgroupfs.Tree
	Plain bool
	// Sys and Proc are /sys and /proc, or copies; empty skips what is in them.
	Sys, Proc string
	// StateDir is the daemon's.
	StateDir string
	// KubeletConfig is the kubelet's configuration file; KubeletWanted makes it an error that there is none.
	KubeletConfig string
	KubeletWanted bool
}

// Gather reads what the checks look at. Its errors are of input; what cannot be read otherwise is in Node.Skipped.
func (p Places) Gather(document status.Document) (Node, error) {
	n := Node{Document: document, Cgroups: map[string]Cgroup{}, PageSize: uint64(os.Getpagesize())}
	if err := p.kubelet(&n); err != nil {
		return Node{}, err
	}
	p.cgroups(&n)
	p.hugepages(&n)
	p.kernel(&n)
	n.SetAside, _ = filepath.Glob(filepath.Join(p.StateDir, "*.corrupt-*")) // the pattern is good
	return n, nil
}

func (p Places) kubelet(n *Node) error {
	data, err := os.ReadFile(p.KubeletConfig)
	if err != nil {
		if p.KubeletWanted {
			return fmt.Errorf("read the kubelet's configuration: %w", err)
		}
		n.Skipped = append(n.Skipped, fmt.Sprintf("the kubelet's settings: %v; name its file with --kubelet-config", err))
		return nil
	}
	n.Kubelet = &Kubelet{}
	if err := yaml.Unmarshal(data, n.Kubelet); err != nil {
		return fmt.Errorf("read the kubelet's configuration %s: %w", p.KubeletConfig, err)
	}
	n.Kubelet.File = p.KubeletConfig
	return nil
}

// cgroups reads the pods' and containers' cgroups, those above them, and the siblings of each, who share in the same
// protection.
func (p Places) cgroups(n *Node) {
	for pod, c := range n.Document.Containers() {
		if c.State != status.Running || c.Cgroup == "" {
			continue
		}
		for _, level := range levels(c.Cgroup) {
			p.siblings(n, level)
		}
		at, ok := n.Cgroups[c.Cgroup]
		if !ok {
			n.Skipped = append(n.Skipped, fmt.Sprintf("container %s/%s/%s: no cgroup %s; it may just have ended", pod.Namespace, pod.Name, c.Name, c.Cgroup))
			continue
		}
		at.Mems, _ = p.Tree.Mems(c.Cgroup)
		if c.OOMGroup != nil {
			at.OOMGroup, _ = p.Tree.Get(c.Cgroup, cgroup.MemoryOOMGroup)
		}
		if there, _ := p.Tree.Exists(c.Cgroup + inner); there {
			n.Cgroups[c.Cgroup+inner] = p.read(c.Cgroup + inner)
		}
		if pages, err := p.Tree.NUMAStat(c.Cgroup); err == nil {
			at.Pages = pages
		} else {
			n.Skipped = append(n.Skipped, err.Error())
		}
		n.Cgroups[c.Cgroup] = at
	}
}

// siblings reads a cgroup and all beside it, unless that was done already.
func (p Places) siblings(n *Node, level string) {
	if _, ok := n.Cgroups[level]; ok {
		return
	}
	parent := path.Dir(level)
	entries, err := os.ReadDir(filepath.Join(p.Tree.Root(), parent))
	if err != nil {
		return
	}
	for _, entry := range entries {
		if entry.IsDir() {
			name := path.Join(parent, entry.Name())
			n.Cgroups[name] = p.read(name)
		}
	}
}

// read reads the values of a cgroup; what is missing is the kernel's default. The tree itself reaches nothing above
// kubepods, where a slice without protection can cancel everything.
func (p Places) read(name string) Cgroup {
	value := func(knob cgroup.Knob) uint64 {
		data, err := os.ReadFile(filepath.Join(p.Tree.Root(), name, string(knob)))
		bytes, err2 := cgroup.ParseLimit(data)
		if err != nil || err2 != nil {
			return knob.Default()
		}
		return bytes
	}
	return Cgroup{Min: value(cgroup.MemoryMin), Low: value(cgroup.MemoryLow), High: value(cgroup.MemoryHigh)}
}

// hugepages reads the pools of the node map's nodes.
func (p Places) hugepages(n *Node) {
	if p.Sys == "" {
		return
	}
	for _, node := range n.Document.Nodes {
		pools, err := sysfs.Pools(p.Sys, node.ID)
		if err != nil {
			n.Skipped = append(n.Skipped, fmt.Sprintf("huge pages of node %d: %v", node.ID, err))
		}
		n.Pools = append(n.Pools, pools...)
	}
}

// kernel asks the cgroup that all pods are in, for its top has not every file.
func (p Places) kernel(n *Node) {
	if p.Plain || p.Proc == "" {
		return
	}
	data, err := os.ReadFile(filepath.Join(p.Proc, "sys/kernel/osrelease"))
	if err != nil {
		n.Skipped = append(n.Skipped, fmt.Sprintf("the kernel's version: %v", err))
		return
	}
	balancing, err := os.ReadFile(filepath.Join(p.Proc, "sys/kernel/numa_balancing"))
	n.Kernel = &Kernel{NUMABalancing: err == nil && strings.TrimSpace(string(balancing)) != "0", Release: strings.TrimSpace(string(data)), Pressure: true, Reclaim: true,
		RecursiveProtection: cgroupfs.Mounted(p.Proc, "memory_recursiveprot"), LocalEvents: cgroupfs.Mounted(p.Proc, "memory_localevents")}
	if len(n.Document.Ancestors) == 0 {
		return
	}
	kubepods := n.Document.Ancestors[0].Cgroup
	if _, ok, err := p.Tree.Pressure(kubepods); err == nil {
		n.Kernel.Pressure = ok
	}
	if files, err := p.Tree.List(kubepods); err == nil {
		n.Kernel.Reclaim = slices.Contains(files, "memory.reclaim")
	}
}
