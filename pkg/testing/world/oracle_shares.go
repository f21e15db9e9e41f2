package world

import (
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/oom"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

const (
	blamed       Promise = "a verdict blames nobody for what is its own where others use more than theirs"
	reclaimed    Promise = "no page cache is asked of those who use no more than their request"
	ownRequest   Promise = "a pod is protected up to a request of its own"
	blameMargin          = 64 * mi  // that may change between a kill and the look at it
	reclaimSlack         = 8 * mi   // the same, between a look and a call
	evicts               = 100 * mi // evictionHard, as the drawn configurations have it
)

// share is what a pod may count on: its own request or else its containers'.
func (p LivePod) share() (bytes uint64) {
	if p.PodRequest != nil {
		return *p.PodRequest
	}
	var peak memoryqos.Peak
	for _, c := range p.Pod.Containers {
		peak.Add(c.Kind, c.Request)
	}
	return peak.Bytes()
}

// blames compares whom verdicts blame with what each had beyond its share. Where NUMA nodes ran out, an allocation is the share, which the model
// does not know; nor does it know what is reserved for what runs outside of pods.
func (n *simulation) blames() {
	for _, kill := range n.kernel.Kills() {
		if kill.Level != oom.Pod && kill.Level != oom.Parent && kill.Level != oom.Node ||
			n.trouble.calm(blamed, kill.At.Add(time.Minute)).After(kill.At) || kill.At.Sub(n.began) < time.Minute {
			continue
		}
		for v := range n.said {
			if late := v.Time.Sub(kill.At); v.UID != kill.Victim.UID || v.ID != kill.Victim.ID || v.Level != string(kill.Level) || late < 0 || late > 10*time.Second {
				continue
			}
			for _, use := range kill.Users {
				over := use.Over()
				if use.Outside { // at most
					over = use.Used
				}
				if v.Culprit.is(use) && over+blameMargin+kill.Doubt < kill.Culprit.Over() {
					n.broken(blamed, "%s/%s, killed at %s at the level %s: it blames %+v, which has %dMi of %dMi; %s has %dMi of %dMi", kill.Victim.Pod, kill.Victim.Container,
						kill.At.Sub(n.began).Round(time.Millisecond), kill.Level, v.Culprit, use.Used/mi, use.Share/mi, kill.Culprit.Pod, kill.Culprit.Used/mi, kill.Culprit.Share/mi)
				}
			}
		}
	}
}

// culprit is whom a verdict blames.
type culprit struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	Outside   bool   `json:"outsideOfPods"`
}

func (c culprit) is(use Use) bool {
	return c == culprit{use.Namespace, use.Pod, use.Container, use.Outside}
}

// asking are the faults between a daemon and the kernel, with a look at what it writes to memory.reclaim.
type asking struct {
	*trouble
	n *simulation
}

// Write implements Faults.
func (a asking) Write(cgroup, file, text string) error {
	if file == "memory.reclaim" {
		a.n.judge(func() { a.n.asked(cgroup, text) })
	}
	return a.trouble.Write(cgroup, file, text)
}

// asked compares what is asked of a container with what it and its pod use beyond their requests. The stall guard asks those that stand at their
// memory.high, for their own sake, and those whose raise it takes back.
func (n *simulation) asked(cgroup, text string) {
	s, now := n.settings(), time.Now()
	if n.trouble.calm(reclaimed, now).After(now) {
		return
	}
	bytes, _ := strconv.ParseUint(strings.Fields(text + " 0")[0], 10, 64)
	for p, c := range n.containers() {
		if c.Cgroup != cgroup && !strings.HasPrefix(cgroup, c.Cgroup+"/") {
			continue
		}
		high, computed := n.values(c.Cgroup).high, s.wanted(p, c.Spec, p.limitOf(c.Spec), n.capacity()).high
		if high > computed || high != noLimit && n.kernel.number(c.Cgroup, "memory.current") > high/16*15 {
			continue
		}
		if p.Class == "Burstable" {
			n.bestEffortFirst(p, c)
		}
		for at, share := range map[string]uint64{c.Cgroup: c.Spec.Request, p.Cgroup: p.share()} {
			used := n.workingSet(at)
			if share > 0 && used < share+less(bytes, reclaimSlack) {
				n.broken(reclaimed, "%s/%s of class %s is asked for %dMi, and %s uses %dMi of a request of %dMi", p.Name, c.Spec.Name, p.Class, bytes/mi, at, used/mi, share/mi)
			}
		}
	}
}

// ownRequests looks at the cgroups of pods with a request of their own.
func (n *simulation) ownRequests() {
	s := n.settings()
	for _, p := range n.kubelet.Pods() {
		if p.PodRequest == nil || len(p.Containers) == 0 || s.reservation(p) == "none" || !s.writes() {
			continue
		}
		if have := n.values(p.Cgroup); have.min+have.low+page < *p.PodRequest {
			n.broken(ownRequest, "%s has memory.min %d and memory.low %d, and %s requests %d", p.Cgroup, have.min, have.low, p.Name, *p.PodRequest)
		}
	}
}

// sharesNode notes when the node had little more to give to anybody: then the stall guard leaves who has its request where it is.
func (n *simulation) sharesNode() {
	if n.available() < 16*mi {
		n.full = time.Now()
	}
}

// available is what the node has to give to pods before the kubelet evicts, in bytes.
func (n *simulation) available() uint64 {
	kubepods := n.kubelet.Parent("Guaranteed")
	info, err := sysfs.Meminfo(filepath.Join(n.folder, "proc"))
	must(err)
	return min(less(info["MemAvailable"], evicts), less(n.kernel.number(kubepods, "memory.max"), n.workingSet(kubepods)))
}

// mayStand reports whether a container may stand at its memory.high since a time: it has its request, and the node has had nothing more to give.
func (n *simulation) mayStand(c LiveContainer, since time.Time) bool {
	return n.full.After(since) && n.kernel.number(c.Cgroup, "memory.current")+mi >= c.Spec.Request
}

// workingSet is what the kubelet takes for used in a cgroup.
func (n *simulation) workingSet(cgroup string) uint64 {
	return less(n.kernel.number(cgroup, "memory.current"), n.kernel.charged(cgroup, inactive, dirty))
}
