package oom

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

// surroundings adds who shared what ran out.
func (r *Recorder) surroundings(k *Kill, view *ledger.View, dir string) {
	if k.Away {
		return
	}
	if r.options.MemInfo != nil {
		k.Memory, k.Reserve = r.memory(view)
	}
	if dir != "" {
		if nodes, err := r.options.Tree.EffectiveNodes(dir); err == nil {
			k.Nodes = nodes
		}
	}
	switch level, _ := k.Hit(); level {
	case Pod:
		if len(k.Unread) > 0 { // one of them may have used most
			return
		}
		k.Users = r.containersOf(view, k.UID, dir)
	case Parent, Node:
		k.Users = r.podsOf(view, k.UID)
		if level == Node {
			k.Users = append(k.Users, r.outside(view))
		}
	case NUMANode:
		k.Users = r.usersOf(view, k.Nodes, dir)
	}
}

// containersOf are the containers of a pod, and what none of those that are there uses: files in memory outlive the containers that wrote them.
// Once the victim's cgroup is gone, which part of these was the victim's is not known, and they are counted as its.
func (r *Recorder) containersOf(view *ledger.View, uid, victim string) (users []User) {
	var left User
	known := false
	for pod, c := range view.Containers() {
		if pod.UID != uid || c.Cgroup == "" {
			continue
		}
		if left.Pod == "" {
			whole, err := readHeld(r.options.Tree, pod.Cgroup)
			left, known = User{Namespace: pod.Namespace, Pod: pod.Name, Used: whole.Tmpfs}, err == nil
		}
		held, err := readHeld(r.options.Tree, c.Cgroup)
		if err != nil && c.Cgroup != victim {
			continue
		}
		known = known && err == nil
		left.Used = less(left.Used, held.Tmpfs)
		users = append(users, User{Namespace: pod.Namespace, Pod: pod.Name, Container: c.Name, Used: held.unreclaimable(), Share: c.Request,
			Limit: c.Limit, victim: c.Cgroup == victim})
	}
	if known && left.Used > 0 {
		users = append(users, left)
	}
	return users
}

func (r *Recorder) podsOf(view *ledger.View, victim string) (users []User) {
	for _, pod := range view.Pods {
		if pod.Cgroup == "" {
			continue
		}
		held, err := readHeld(r.options.Tree, pod.Cgroup)
		if err != nil {
			continue
		}
		users = append(users, User{Namespace: pod.Namespace, Pod: pod.Name, Used: held.unreclaimable(), Share: pod.Share(), victim: pod.UID == victim})
	}
	return users
}

// outside is what the node's own processes use beyond all pods, beside what is reserved for them.
func (r *Recorder) outside(view *ledger.View) User {
	info, err := sysfs.Meminfo(r.options.Proc)
	if err != nil {
		return User{Outside: true}
	}
	used := info["AnonPages"] + info["Shmem"] + info["SUnreclaim"] + info["KernelStack"] + info["PageTables"]
	if held, err := readHeld(r.options.Tree, view.Kubepods()); err == nil {
		used = less(used, held.Processes+held.Tmpfs+held.Kernel)
	}
	return User{Outside: true, Used: used, Share: less(view.Config.Machine.MemTotal, view.Config.QoS.NodeAllocatable)}
}

// usersOf are the containers with memory on some NUMA nodes, and what they are allocated there. The containers of a pod that is allocated as
// a whole are one user.
func (r *Recorder) usersOf(view *ledger.View, nodes nodeset.Set, victim string) (users []User) {
	wholes := map[*ledger.PodView]int{} // places in users
	for pod, c := range view.Containers() {
		if c.Cgroup == "" {
			continue
		}
		held, err := readNodes(r.options.Tree, c.Cgroup, nodes)
		if err != nil {
			continue
		}
		u := User{Namespace: pod.Namespace, Pod: pod.Name, Container: c.Name, Share: allocatedOn(c.Blocks, nodes), victim: c.Cgroup == victim}
		for _, bytes := range held {
			u.Used += bytes
		}
		if pod.Blocks != nil {
			u.Container, u.Share = "", allocatedOn(pod.Blocks, nodes)
			if i, known := wholes[pod]; known {
				users[i].Used, users[i].victim = users[i].Used+u.Used, users[i].victim || u.victim
				continue
			}
			wholes[pod] = len(users)
		}
		users = append(users, u)
	}
	return users
}

// allocatedOn is what blocks have on some NUMA nodes, in bytes.
func allocatedOn(blocks []memorymanager.Block, nodes nodeset.Set) (bytes uint64) {
	for _, block := range blocks {
		for _, amount := range block.PerNode {
			if block.Type == memorymanager.Memory && nodes.Has(amount.Node) {
				bytes += amount.Bytes
			}
		}
	}
	return bytes
}

// memory reads the NUMA nodes, and the free memory that the kernel keeps.
func (r *Recorder) memory(view *ledger.View) (nodes []NodeAtKill, reserve uint64) {
	read, err := r.options.MemInfo()
	if err != nil {
		return nil, 0
	}
	allocated := make(map[int]uint64, len(view.Nodes))
	for _, node := range view.Nodes {
		allocated[node.ID] = node.Of(memorymanager.Memory).Reserved
	}
	for _, m := range read {
		nodes = append(nodes, NodeAtKill{ID: m.Node, Free: m.Free, Allocated: allocated[m.Node]})
	}
	data, _ := os.ReadFile(filepath.Join(r.options.Proc, "sys/vm/min_free_kbytes"))
	kilobytes, _ := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 54)
	return nodes, kilobytes << 10
}

// setOrder adds by which oom_score_adj the kernel chose among containers, if this plugin has changed the kubelet's order.
func (v *Verdict) setOrder(victim *ledger.ContainerView, view *ledger.View) {
	if v.Level == Container || v.Level == UnknownLevel {
		return
	}
	changed, culprit := victim.OOMScore != nil, ""
	if c := v.Culprit; c != nil && !v.Itself {
		for pod, container := range view.Containers() {
			if pod.Namespace == c.Namespace && pod.Name == c.Pod && (c.Container == "" || c.Container == container.Name) &&
				(culprit == "" || container.OOMScore != nil) {
				culprit, changed = container.Order(), changed || container.OOMScore != nil
			}
		}
	}
	if !changed {
		return
	}
	if v.Order = victim.Order(); culprit != "" {
		v.Culprit.Order = culprit
	}
}
