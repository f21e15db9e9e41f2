package world

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

const (
	asAsked   Promise = "the files are what Memory QoS asks for"
	protected Promise = "every level protects what is below it"
	untouched Promise = "where the profile writes no memory values, there are none"
	givenBack Promise = "no level protects more than what is below it"
)

// settings are what the daemon's configuration file says, read by other code than the daemon's.
type settings struct {
	Profile     string   `json:"profile"`
	Policy      string   `json:"topologyManagerPolicy"`
	Factor      *float64 `json:"memoryThrottlingFactor"`
	Reservation string   `json:"memoryReservationPolicy"`
	Headroom    float64  `json:"guaranteedHeadroom"`
	CacheRoom   float64  `json:"cacheRoom"`
	StallGuard  bool     `json:"stallGuard"`
	Reclaims    bool     `json:"reclaimBeforeEviction"`
	Manager     string   `json:"memoryManagerPolicy"`
	OnFull      string   `json:"onUnsatisfiable"`
	WithoutCPUs string   `json:"nodesWithoutCPUs"`
	Rules       []rule   `json:"annotationRules"`
	DRA         struct {
		Enabled bool `json:"enabled"`
		Shares  []struct {
			Limits map[string]string `json:"limits"`
		} `json:"shares"`
	} `json:"dra"`
}

// guards reports whether the stall guard may raise a memory.high of a pod.
func (s settings) guards(p LivePod) bool { return s.StallGuard && s.wish(p, "stall-guard") != "off" }

func (n *simulation) settings() settings {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.read.settings == nil || n.read.text != n.config {
		factor := 0.9
		s := settings{Profile: "Full", Policy: "best-effort", Factor: &factor, Reservation: "TieredReservation", Headroom: 0.02, StallGuard: true}
		must(yaml.Unmarshal([]byte(n.config), &s))
		n.read.text, n.read.settings = n.config, &s
	}
	s := *n.read.settings
	if n.back {
		s.Profile = "Observe"
	}
	return s
}

// writes reports whether the configuration has the daemon write memory values.
func (s settings) writes() bool { return s.Profile == "Full" || s.Profile == "QoS" }

// places reports whether it has the daemon place containers; else the state file stays as it is.
func (s settings) places() bool {
	return (s.Profile == "Full" || s.Profile == "NUMA") && s.Manager != "None"
}

const noLimit = ^uint64(0)

// memoryQoS are memory.min, memory.low and memory.high.
type memoryQoS struct{ min, low, high uint64 }

// wanted computes the values of a container. bound is its memory.max, which is its pod's limit where it has none, and 0 where that has none
// either. capacity is the memory of the node that pods may use: it stands for a limit that is not set.
func (s settings) wanted(p LivePod, c pods.Container, bound, capacity uint64) memoryQoS {
	limit := cmp.Or(c.Limit, capacity)
	v := memoryQoS{high: noLimit}
	switch s.reservation(p) {
	case "min":
		v.min = min(c.Request, uint64(float64(cmp.Or(bound, capacity))*(1-s.Headroom))) &^ (page - 1)
	case "low":
		v.low = c.Request &^ (page - 1)
	}
	factor := s.Factor
	if f, err := strconv.ParseFloat(s.wish(p, "throttling-factor"), 64); err == nil {
		factor = &f
	}
	if factor != nil && (p.Class != "Guaranteed" || p.PodLevel()) && c.Request < limit {
		v.high = uint64(float64(c.Request)+*factor*float64(limit-c.Request)) &^ (page - 1)
	}
	if room := uint64(s.CacheRoom * float64(bound)); room >= mi && s.guards(p) {
		v.high = min(v.high, (bound-room)&^(page-1))
	}
	return v
}

// reservation is the file that a pod's requests are promised in: min, low or none.
func (s settings) reservation(p LivePod) string {
	switch {
	case s.wish(p, "reservation") != "":
		return s.wish(p, "reservation")
	case s.Reservation == "None":
		return "none"
	case s.Reservation == "HardReservation" && p.Class == "Burstable":
		return "min"
	}
	return map[string]string{"Guaranteed": "min", "Burstable": "low", "BestEffort": "none"}[string(p.Class)]
}

// valuesAsAsked compares the files of every container that runs with what the specification asks for, and every cgroup above with the sum of
// what is below it.
func (n *simulation) valuesAsAsked(see seer) {
	s := n.settings()
	if !s.writes() {
		n.untouched(see)
		return
	}
	var want, burstable, most memoryQoS // of all pods, of the Burstable ones, and of all as their cgroups have it
	for _, p := range n.kubelet.Pods() {
		var sum, all memoryQoS
		wants := map[string]uint64{} // by container
		for _, c := range p.Containers {
			v, judged := n.containerAsAsked(see, s, p, c)
			all.min, all.low = all.min+v.min, all.low+v.low
			wants[c.Spec.Name] += v.min + v.low
			if judged {
				sum.min, sum.low = sum.min+v.min, sum.low+v.low
			}
		}
		have := n.values(p.Cgroup)
		if have.min+page < sum.min || have.min+have.low+page < sum.min+sum.low {
			see(protected, p.Cgroup, "has memory.min %d and memory.low %d, its containers want %d and %d", have.min, have.low, sum.min, sum.low)
		}
		if most := p.most(all, wants); have.min+have.low > most+page {
			see(givenBack, p.Cgroup, "has memory.min %d and memory.low %d, its containers want %d and %d, and it %d", have.min, have.low, sum.min, sum.low, most)
		}
		want.min, want.low = want.min+have.min, want.low+have.low
		most.min, most.low = most.min+have.min+have.low, most.low+have.low
		if p.Class == "Burstable" {
			burstable.min, burstable.low = burstable.min+have.min, burstable.low+have.low
		}
	}
	kubepods := n.values(n.kubelet.Parent("Guaranteed"))
	want.min += want.low // kubepods keeps the rest of the node from all that is protected below it
	for cgroup, want := range map[string]memoryQoS{n.kubelet.Parent("Guaranteed"): want, n.kubelet.Parent("Burstable"): burstable} {
		// memory.low protects no less than memory.min does: what is promised hard below may be promised soft above.
		have := n.values(cgroup)
		if have.min+page < want.min || max(have.min, have.low)+page < max(want.min, want.low) {
			see(protected, cgroup, "has memory.min %d and memory.low %d, its pods have %d and %d", have.min, have.low, want.min, want.low)
		}
	}
	if kubepods.min > most.min+page || kubepods.low > most.low+page {
		see(givenBack, n.kubelet.Parent("Guaranteed"), "has memory.min %d and memory.low %d, its pods have %d and %d", kubepods.min, kubepods.low, most.min, most.low)
	}
	if have := n.values(n.kubelet.Parent("Burstable")); have.min > burstable.min+page || have.low > burstable.low+page {
		see(givenBack, n.kubelet.Parent("Burstable"), "has memory.min %d and memory.low %d, its pods have %d and %d", have.min, have.low, burstable.min, burstable.low)
	}
}

// most is what a pod may be protected by at most. Its containers that do not run count with their requests, beside one that wants more because
// its limit was set from outside.
func (p LivePod) most(sum memoryQoS, wants map[string]uint64) uint64 {
	if slices.ContainsFunc(p.Containers, func(c LiveContainer) bool { return c.Resizing }) {
		return noLimit - page
	}
	pod := *p.Pod
	pod.Containers = slices.Clone(pod.Containers)
	for i, c := range pod.Containers {
		pod.Containers[i].Request = max(c.Request, wants[c.Name])
	}
	return max(LivePod{Pod: &pod}.share(), sum.min+sum.low)
}

// containerAsAsked compares a container's files, and returns what it wants. One that does not run, has not been resized yet, whose pod is unknown or
// that writes its own files just now is not judged.
func (n *simulation) containerAsAsked(see seer, s settings, p LivePod, c LiveContainer) (want memoryQoS, judged bool) {
	if c.Resizing || p.Unknown || !n.runs(c) {
		return want, false
	}
	if n.lostResize(p, c) {
		return n.values(c.Cgroup), false
	}
	c, bound := n.limitedFromOutside(p, c)
	want = s.wanted(p, c.Spec, bound, n.capacity())
	writes := n.writesItself(p, c.Spec.Name)
	if writes && !n.kernel.isCalm() {
		return want, false
	}
	if !n.judgedContainers[c.ID] {
		n.judgedContainers[c.ID] = true
		n.report.Containers++
	}
	have := n.values(c.Cgroup)
	if writes {
		have = have.set(want)
	}
	n.followRaise(s, p, c, have.high, want.high)
	who, limit := fmt.Sprintf("%s/%s in %s", p.Name, c.Spec.Name, c.Cgroup), n.text(c.Cgroup, "memory.max")
	if have.min != want.min || have.low != want.low {
		see(asAsked, who, "has memory.min %d and memory.low %d, want %d and %d (its memory.max is %s)", have.min, have.low, want.min, want.low, limit)
	}
	n.stillKnown(see, who, p, c, have, want)
	if have.high != want.high && !n.mayBeHigher(s, p, c, have.high, want.high) {
		see(asAsked, who, "has memory.high %d, want %d (its memory.max is %s)", have.high, want.high, limit)
	}
	if !writes {
		n.groupAsAsked(see, s.wish(p, "oom-group"), who, c)
	}
	return want, true
}

// groupAsAsked compares a container's memory.oom.group with what its pod says, else with what the kubelet has asked for. That is lost with
// a controller, where systemd writes its own and the daemon ends, and to another writer where the kubelet has not said it.
func (n *simulation) groupAsAsked(see seer, wish, who string, c LiveContainer) {
	group, whole := n.text(c.Cgroup, "memory.oom.group"), wish == "container" || wish == "" && n.scenario.GroupKills
	lost := n.trouble.count(Reset, c.Since) > 0 || n.units != nil && n.scenario.endsDuring(SystemdHangs, SystemdAway, FailingWrites, OpensFail) || n.flipped[c.Cgroup] && !n.scenario.GroupKills
	if (group == "1") != whole && !(lost && wish == "") {
		see(asAsked, who, "has memory.oom.group %q, want %t", group, whole)
	}
}

// limitedFromOutside is a container as its memory.max has it, which holds, too, where another than the kubelet has written it, and that limit in bytes.
func (n *simulation) limitedFromOutside(p LivePod, c LiveContainer) (_ LiveContainer, bound uint64) {
	limit, bound := n.limit(c), p.limitOf(c.Spec)
	if limit == bound&^(page-1) || n.lostLimit(p, c) {
		return c, bound
	}
	// In a pod with resources of its own it may stand for the pod's, which does not count for memory.high, and the spec says who asks for its limit.
	if !p.PodLevel() || c.Spec.Limit > c.Spec.Request {
		c.Spec.Limit = limit
	}
	if p.Class == "Guaranteed" && !p.PodLevel() { // whose limits are its requests
		c.Spec.Request = limit
	}
	if own := p.ownClaimed(c); own > 0 && n.drives() { // which the limit bounds
		c.Spec.Request = min(own, limit)
	}
	return c, limit
}

// ownClaimed is the memory of the claims that no other container of the pod has, in bytes.
func (p LivePod) ownClaimed(c LiveContainer) (bytes uint64) {
	for _, name := range c.Claims {
		others := slices.ContainsFunc(p.Containers, func(o LiveContainer) bool { return o.ID != c.ID && slices.Contains(o.Claims, name) })
		if others {
			return 0
		}
		bytes += p.Claims[name].Memory * uint64(len(p.Claims[name].nodes))
	}
	return bytes
}

// lostLimit reports whether a container has lost its limit with a controller.
func (n *simulation) lostLimit(p LivePod, c LiveContainer) bool {
	return n.limit(c) == 0 && p.limitOf(c.Spec) > 0
}

// lostResize reports whether nothing of the runtime shows a container's limit any more: CRI-O has the one before the resize again once it has started
// again.
func (n *simulation) lostResize(p LivePod, c LiveContainer) bool {
	return n.lostLimit(p, c) && n.runtime.record.CRIO && n.hasChange(p, Resize)
}

// set are the values without those that the daemon does not set, but leaves as a container itself has written them.
func (have memoryQoS) set(want memoryQoS) memoryQoS {
	if want.min == 0 {
		have.min = 0
	}
	if want.low == 0 {
		have.low = 0
	}
	if want.high == noLimit {
		have.high = noLimit
	}
	return have
}

// mayBeHigher reports whether the memory.high of a container need not be what follows from the specification.
func (n *simulation) mayBeHigher(s settings, p LivePod, c LiveContainer, have, want uint64) bool {
	limit := c.Spec.Limit
	switch {
	case n.lostLimit(p, c): // it stays lost
		return true
	case p.isDaemon():
		return true
	case limit > 0 && have >= limit && want >= limit: // neither is felt
		return true
	}
	// The stall guard raises, up to the limit, and takes back later. A controller that was reset has counted nothing before.
	return s.guards(p) && have > want && (n.reachedHigh(c) || n.trouble.calm(counts, time.Now()).After(c.Since))
}

// runs reports whether a container has processes.
func (n *simulation) runs(c LiveContainer) bool {
	return seen(n.kernel, c.Cgroup, func(g *group) bool { return g.processes > 0 })
}

// reachedHigh reports whether a container has been at its memory.high.
func (n *simulation) reachedHigh(c LiveContainer) bool {
	return !strings.Contains(n.text(c.Cgroup, "memory.events"), "\nhigh 0\n")
}

// untouched looks for values that the profile does not write: of an annotation, or of the profile before.
func (n *simulation) untouched(see seer) {
	none := memoryQoS{high: noLimit}
	cgroups := []string{n.kubelet.Parent("Guaranteed"), n.kubelet.Parent("Burstable")}
	for _, p := range n.kubelet.Pods() {
		if !n.forgotten(p) {
			cgroups = append(cgroups, p.Cgroup)
		}
		for _, c := range p.Containers {
			if !n.writesItself(p, c.Spec.Name) && !n.resizedUnseen(p) && !n.unjournaled(c) && n.text(c.Cgroup, "memory.max") != "" {
				cgroups = append(cgroups, c.Cgroup)
			}
		}
	}
	for _, cgroup := range cgroups {
		if have := n.values(cgroup); have != none && n.text(cgroup, "memory.max") != "" {
			see(untouched, cgroup, "has memory.min %d, memory.low %d and memory.high %d", have.min, have.low, have.high)
		}
	}
}

// resizedUnseen reports whether a pod was resized while no plugin was connected. The runtime has written the values of its record then, and a dry run
// takes what it finds for another's.
func (n *simulation) resizedUnseen(p LivePod) bool {
	return slices.ContainsFunc(n.spec(p).Changes, func(c Change) bool {
		at := n.began.Add(time.Duration(c.At))
		return c.Kind == Resize && n.trouble.calm(connected, at).After(at)
	})
}

// forgotten reports whether a daemon may know nothing of what the one before it has written to a pod's cgroup: its journal was not on the disk yet,
// no container runs, and the pod API may be silent.
func (n *simulation) forgotten(p LivePod) bool {
	return n.scenario.endsDuring(DiskHangs, DiskFails) && !slices.ContainsFunc(p.Containers, n.runs)
}

// unjournaled reports whether a container's first values were written while the journal could not be, and the daemon ended before it could: the
// next one takes them for the kubelet's.
func (n *simulation) unjournaled(c LiveContainer) bool {
	return Duration(c.Since.Sub(n.began)) <= n.scenario.lastEnd(DiskHangs, DiskFails)
}

// limitOf is a container's limit, which is the pod's where it has none of its own; 0 is none.
func (p LivePod) limitOf(c pods.Container) uint64 {
	if c.Limit == 0 && p.PodLimit != nil {
		return *p.PodLimit
	}
	return c.Limit
}

// writesItself reports whether a container is one that writes files of its own cgroup.
func (n *simulation) writesItself(p LivePod, container string) bool {
	for _, c := range n.spec(p).Containers {
		if c.Name == container {
			return slices.ContainsFunc(c.Lives, func(life Program) bool { return life.Writes != "" })
		}
	}
	return false
}

func near(a, b uint64) bool { return max(a, b)-min(a, b) <= page }

// capacity is the node's memory; the drawn configurations reserve none of it.
func (n *simulation) capacity() (sum uint64) {
	for _, node := range n.scenario.Machine.Nodes {
		sum += node.Memory
	}
	return sum
}

func (n *simulation) values(cgroup string) memoryQoS {
	return memoryQoS{n.kernel.number(cgroup, "memory.min"), n.kernel.number(cgroup, "memory.low"), n.kernel.number(cgroup, "memory.high")}
}

// text is what a file of a cgroup shows; "" where there is none.
func (n *simulation) text(cgroup, file string) string {
	text, _ := n.kernel.Text(cgroup, file)
	return text
}
