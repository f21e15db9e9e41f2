package world

import (
	"os"
	"time"
)

const (
	inPlace   Promise = "where claims are turned off, what runs remains on the NUMA nodes that it had of them"
	claimsEnd Promise = "pods with claims can end once nothing is published, and leave nothing"
	noClaims  Promise = "where claims are off, nothing is kept or published for them"
)

// noteClaimed notes what runs on the NUMA nodes of its claims when a life ends that is their driver, and when one ends that is not.
func (n *simulation) noteClaimed() {
	if !n.current().driver.listens.Load() {
		n.claims = time.Now()
	}
	if !n.drives() {
		return
	}
	n.claimed = map[string]int{}
	for p, c := range n.containers() {
		want := p.bits(c)
		if want != 0 && n.runs(c) && bits(n.text(c.Cgroup, "cpuset.mems")) == want {
			n.claimed[c.ID] = want
		}
	}
}

// claimsKept looks at what had claims while the daemon is not their driver any more. One of another class than Guaranteed may use all NUMA nodes,
// and one that had claims on all is as one without NUMA nodes of its own, which the Memory Manager may place.
func (n *simulation) claimsKept(see seer) {
	s := n.settings()
	if n.current().driver.listens.Load() || !s.places() {
		return
	}
	file := n.stateFile()
	for p, c := range n.containers() {
		want, mems := n.claimed[c.ID], bits(n.text(c.Cgroup, "cpuset.mems"))
		if want == 0 || want == n.withMemory() || !n.runs(c) {
			continue
		}
		pins := p.Class == "Guaranteed" && s.wish(p, "numa") != "none"
		if want&^mems != 0 || pins && mems != want {
			see(inPlace, p.Name+"/"+c.ID, "has cpuset.mems %b, and had %b of its claims", mems, want)
		}
		if has := file.nodes(p.UID, c.Spec.Name); pins && has != want && file.alone(want) && time.Now().After(n.allPlaced()) {
			see(inPlace, p.Name+"/"+c.ID, "is allocated the NUMA nodes %b, and had %b of its claims", has, want)
		}
	}
}

// alone reports whether these are one NUMA node without allocations that are spread over others.
func (f stateFile) alone(nodes int) bool {
	for id, node := range f.MachineState {
		if nodes == 1<<id {
			return len(node.Cells) == 1
		}
	}
	return false
}

// endClaimed deletes the pods with claims and waits for their end: whatever goes wrong meanwhile is over in ten minutes.
func (n *simulation) endClaimed() {
	for range 600 {
		if n.kubelet.endClaimed() == 0 {
			n.judge(func() {
				if files, _ := os.ReadDir(n.current().cdi()); len(files) > 0 {
					n.broken(claimsEnd, "they have ended, and there is %s", files[0].Name())
				}
			})
			return
		}
		time.Sleep(time.Second)
	}
	for _, p := range n.kubelet.Pods() {
		if len(p.Claims) > 0 {
			n.broken(claimsEnd, "%s has not, with claims %v", p.Name, p.Claims)
		}
	}
}

// nothingForClaims looks at the slice and at what the node map has for pods.
func (n *simulation) nothingForClaims() {
	if !n.scenario.hasClaims() {
		return
	}
	if slice := n.kubelet.server.published(); slice != nil {
		n.broken(noClaims, "the slice has %v", devicesIn(slice))
	}
	file := n.stateFile()
	for id, node := range n.scenario.Machine.Nodes {
		if has := file.MachineState[id].MemoryMap["memory"].Allocatable; n.settings().places() && node.CPUs > 0 && has+reservedMost < node.plain() {
			n.broken(noClaims, "the state file has %dMi for pods on NUMA node %d, which has %dMi", has/mi, id, node.plain()/mi)
		}
	}
}
