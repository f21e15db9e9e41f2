package world

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

const (
	onClaim        Promise = "a container may use the NUMA nodes of its claims alone"
	claimGranted   Promise = "a container is not refused for a claim that is prepared for its pod alone"
	claimReleased  Promise = "nothing of a released claim is left"
	claimAnswered  Promise = "a claim that fits is prepared, soon and as before"
	claimPublished Promise = "what is published for claims is their share"
)

// drives reports whether the daemon is the driver for claims.
func (n *simulation) drives() bool {
	return n.current().driver.listens.Load() && n.settings().places()
}

// byClaims reports whether claims say where a container's memory is.
func (n *simulation) byClaims(c LiveContainer) bool { return len(c.Claims) > 0 && n.drives() }

// preparedClaims are those that the kubelet knows to be prepared. The daemon may release one that the API server has no more once no container has it.
func (n *simulation) preparedClaims() (all []heldClaim) {
	for _, p := range n.kubelet.Pods() {
		for _, h := range p.Claims {
			again := slices.ContainsFunc(all, func(other heldClaim) bool { return other.uid == h.uid })
			if len(h.devices) > 0 && !h.released && (!h.gone || len(p.Containers) > 0) && !again {
				all = append(all, h)
			}
		}
	}
	return all
}

// plain is a NUMA node's memory without its huge pages, in bytes.
func (n NUMANode) plain() uint64 { return n.Memory - n.Hugepages*hugePage }

// blocksOf are what the claims of a container have, as the state file has blocks; none where they are not prepared.
func (n *simulation) blocksOf(uid, container string) (blocks []block) {
	sums := make([]uint64, len(n.scenario.Machine.Nodes))
	for p, c := range n.containers() {
		if p.UID != uid || c.Spec.Name != container {
			continue
		}
		for _, name := range c.Claims {
			for _, node := range p.Claims[name].nodes {
				sums[node] += p.Claims[name].Memory
			}
		}
	}
	for node, sum := range sums {
		if sum > 0 {
			blocks = append(blocks, block{[]int{node}, "memory", sum})
		}
	}
	return blocks
}

// bits are the NUMA nodes of the claims that a container names.
func (p LivePod) bits(c LiveContainer) (bits int) {
	for _, name := range c.Claims {
		bits |= p.Claims[name].bits()
	}
	return bits
}

// contested are the claims that containers of more than one pod name, by UID: the others have started while the daemon gave no answer. One pod has
// such a claim, and which one is the daemon's choice: it may have started again since.
func contested(all []LivePod) map[string]bool {
	by, contested := map[string]string{}, map[string]bool{}
	for _, p := range all {
		for _, c := range p.Containers {
			for _, name := range c.Claims {
				uid := p.Claims[name].uid
				if by[uid] != "" && by[uid] != p.UID {
					contested[uid] = true
				}
				by[uid] = p.UID
			}
		}
	}
	return contested
}

// contests are the contested claims that a container names.
func (p LivePod) contests(names []string, contested map[string]bool) (all []heldClaim) {
	for _, name := range names {
		if contested[p.Claims[name].uid] {
			all = append(all, p.Claims[name])
		}
	}
	return all
}

// contesting are the containers, by their pod's UID and their name, that may be without their claims because another pod has one.
func (n *simulation) contesting() map[string]bool {
	claims, all := contested(n.kubelet.Pods()), map[string]bool{}
	for p, c := range n.containers() {
		all[p.UID+"/"+c.Spec.Name] = len(p.contests(c.Claims, claims)) > 0
	}
	return all
}

// onClaims looks whether containers may use the NUMA nodes of their claims, and no others. Of a contested claim one pod has it, and containers of
// the others may use what they were created with.
func (n *simulation) onClaims(see seer) {
	if !n.drives() {
		return
	}
	claims := contested(n.kubelet.Pods())
	has, without := map[string]bool{}, map[string]string{} // contested claims, by UID
	for p, c := range n.containers() {
		want, mems := p.bits(c), n.text(c.Cgroup, "cpuset.mems")
		if want == 0 {
			continue
		}
		is, contests := bits(mems), p.contests(c.Claims, claims)
		for _, claim := range contests {
			without[claim.uid] = claim.String()
		}
		if is == want || !n.runs(c) || !n.seesPlaced(c.Since) || n.kernel.mapped(c.Cgroup, n.withMemory()&^want) > mostMoved {
			for _, claim := range contests {
				has[claim.uid] = true
			}
			continue
		}
		if len(contests) == 0 || n.withMemory()&^is != 0 && is != 0 {
			see(onClaim, p.Name+"/"+c.ID, "has cpuset.mems %q, and claims %v", mems, p.Claims)
		}
	}
	for uid, claim := range without {
		if !has[uid] {
			see(onClaim, uid, "is contested, and no container is on %s", claim)
		}
	}
}

// claimsGranted looks for containers that were refused for a claim: all claims that they name are prepared before.
func (n *simulation) claimsGranted() {
	passed := n.passedOn()
	for _, refused := range n.runtime.Calls().Refused {
		text := refused.Reason.Error()
		waits := slices.ContainsFunc(passed, func(object string) bool { return strings.Contains(text, "/"+object) })
		if (strings.Contains(text, "resource claim") || strings.Contains(text, "CDI")) && !waits {
			n.broken(claimGranted, "%s", refused)
		}
	}
}

// passedOn are the names of claims that one pod has after another. Until the first has ended, the second is refused.
func (n *simulation) passedOn() (names []string) {
	for _, p := range n.scenario.Pods {
		for _, claim := range p.Claims {
			if claim.Of != "" {
				names = append(names, claim.Of+"-"+claim.Name)
			}
		}
	}
	return names
}

// claimsPassedOn looks for pods that have nothing that runs although their claims are prepared and no other pod's.
func (n *simulation) claimsPassedOn() {
	all := n.kubelet.Pods()
	for _, p := range all {
		roomless := func(c Container) bool { return len(c.Claims) == 0 } // it may have none, and the others wait for it
		waits := len(p.Claims) == 0 || len(p.Containers) > 0 || p.Restarts || p.Ending || !n.drives() || slices.ContainsFunc(n.spec(p).Containers, roomless)
		for _, h := range p.Claims {
			waits = waits || len(h.devices) == 0
			for _, other := range all {
				for _, theirs := range other.Claims {
					waits = waits || other.UID != p.UID && theirs.uid == h.uid
				}
			}
		}
		if !waits {
			n.broken(claimGranted, "%s has claims %v, and no container", p.Name, p.Claims)
		}
	}
}

// claimsReleased looks for CDI specifications of claims that no pod has.
func (n *simulation) claimsReleased(see seer) {
	if !n.current().driver.listens.Load() {
		return
	}
	files, _ := os.ReadDir(n.current().cdi())
	held := map[string]bool{}
	for _, p := range n.kubelet.Pods() {
		for _, h := range p.Claims {
			held[h.uid] = true
		}
	}
	for _, file := range files {
		_, uid, _ := strings.Cut(strings.TrimSuffix(file.Name(), ".json"), "_")
		if strings.HasSuffix(file.Name(), ".json") && !held[uid] {
			see(claimReleased, uid, "is released, and has a CDI specification")
		}
	}
}

// prepareAnswered judges an answer to the kubelet: one that is late, and one that refuses what fits beside the other claims and the pods.
func (n *simulation) prepareAnswered(began time.Time, h heldClaim, err error) {
	if n.trouble.calm(claimAnswered, time.Now()).After(began) || !n.drives() || n.allPlaced().After(began) {
		return
	}
	if took := time.Since(began); took > 10*time.Second {
		n.broken(claimAnswered, "%s took %s", h, took)
	}
	if err == nil {
		return
	}
	file := n.stateFile()
	for _, node := range h.nodes {
		used := file.on(node)
		for _, p := range n.kubelet.Pods() {
			for _, other := range p.Claims {
				if other.asked && other.uid != h.uid && slices.Contains(other.nodes, node) {
					used += other.Memory
				}
			}
		}
		if has := n.scenario.Machine.Nodes[node]; has.CPUs == 0 || used+h.Memory+reservedMost > has.plain() {
			return
		}
	}
	n.broken(claimAnswered, "%s: %v", h, err)
}

// reservedMost is what is kept on a NUMA node where nothing is configured: evictionHard's 100Mi, which all nodes share.
const reservedMost = 101 * mi

// claimsPublished compares the slice with the share of each NUMA node, or with what claims have of it if that is more. What pods have of the share
// from before is not theirs.
func (n *simulation) claimsPublished() {
	if !n.current().driver.listens.Load() {
		n.nothingForClaims()
		return
	}
	have := devicesIn(n.kubelet.server.published())
	s := n.settings()
	if !s.places() || !s.DRA.Enabled { // which a reload has set, and the next start heeds
		if len(have) > 0 {
			n.broken(claimPublished, "a dry run, or a daemon whose claims end with it, has %v", have)
		}
		return
	}
	file := n.stateFile()
	for id, node := range n.scenario.Machine.Nodes {
		if node.Memory == 0 || node.CPUs == 0 {
			continue
		}
		memory, want := node.plain(), s.share(node)
		var claimed uint64
		kept := false // from before claims were off, when others may have had their memory
		for _, h := range n.preparedClaims() {
			if slices.Contains(h.nodes, id) {
				claimed, kept = claimed+h.Memory, kept || h.prepared.Before(n.claims)
			}
		}
		want = max(want, claimed)
		n.leftToPods(id, want)
		want = min(want, less(memory, file.on(id)))
		if have[id] > want || have[id]+reservedMost+file.beyond(id) < want || have[id] < claimed && !kept {
			n.broken(claimPublished, "NUMA node %d has %dMi in the slice, want %dMi (claims have %dMi)", id, have[id]/mi, want/mi, claimed/mi)
		}
	}
}

// share is what is published for claims of a NUMA node at least, in bytes.
func (s settings) share(node NUMANode) uint64 {
	share := "50%"
	for _, s := range s.DRA.Shares {
		share = s.Limits["memory"]
	}
	bytes, err := quantity.Parse(share)
	if percent, is := strings.CutSuffix(share, "%"); is {
		var number uint64
		number, err = strconv.ParseUint(percent, 10, 64)
		bytes = node.plain() / 100 * number
	}
	must(err)
	return bytes
}

// leftToPods compares what the node map has of a NUMA node for pods with what claims leave of it.
func (n *simulation) leftToPods(id int, claims uint64) {
	node := n.scenario.Machine.Nodes[id]
	if has := n.stateFile().MachineState[id].MemoryMap["memory"].Allocatable; has+claims+reservedMost < node.plain() {
		n.broken(claimReleased, "the state file has %dMi for pods on NUMA node %d of %dMi, and claims %dMi", has/mi, id, node.plain()/mi, claims/mi)
	}
}

// claimDifferences compares what status shows to be prepared with what the kubelet has.
func (n *simulation) claimDifferences(a answers) (wrong []string) {
	if !n.drives() {
		return nil
	}
	shown := map[string]bool{}
	if a.status.Claims != nil {
		for _, claim := range a.status.Claims.Prepared {
			shown[claim.UID] = true
		}
	}
	for uid, pods := range n.shownBy(a) {
		if len(pods) > 1 {
			wrong = append(wrong, fmt.Sprintf("status shows claim %s as %v's", uid, pods))
		}
	}
	for _, h := range n.preparedClaims() {
		if !shown[h.uid] {
			wrong = append(wrong, "status does not show "+h.String()+", which is prepared")
		}
		delete(shown, h.uid)
	}
	for _, p := range n.kubelet.Pods() {
		for _, h := range p.Claims { // asked for, and perhaps not answered
			delete(shown, h.uid)
		}
	}
	for uid := range shown {
		wrong = append(wrong, "status shows claim "+uid+", which no pod has")
	}
	return wrong
}

// shownBy are the pods whose containers status shows to have a claim, by the claim's UID.
func (n *simulation) shownBy(a answers) map[string][]string {
	has := map[string]bool{} // by UID and name of containers
	for _, p := range a.status.Pods {
		for _, c := range p.Containers {
			has[p.UID+"/"+c.Name] = len(c.Blocks) > 0 && c.State == "running"
		}
	}
	by := map[string][]string{}
	for p, c := range n.containers() {
		for _, name := range c.Claims {
			if uid := p.Claims[name].uid; has[p.UID+"/"+c.Spec.Name] && !slices.Contains(by[uid], p.Name) {
				by[uid] = append(by[uid], p.Name)
			}
		}
	}
	return by
}

// claimsGone looks once all pods have ended.
func (n *simulation) claimsGone() {
	if n.scenario.hasClaims() {
		a := n.answers()
		n.judge(func() {
			for _, text := range n.claimDifferences(a) {
				n.broken(claimReleased, "%s", text)
			}
			for id, node := range n.scenario.Machine.Nodes {
				if s := n.settings(); n.drives() && s.DRA.Enabled && node.Memory > 0 && node.CPUs > 0 {
					n.leftToPods(id, s.share(node))
				}
			}
		})
	}
}
