package world

import (
	"slices"
	"strings"
	"time"
)

const countedOnce Promise = "each OOM kill is counted once"

// killsCounted compares how many kills the verdicts on each pod are on with how many there were, also around a daemon's end and while none was there.
// For pods that have ended, verdicts may be missing.
func (n *simulation) killsCounted() {
	kills, said := n.killsOf(), map[string]int{}
	for v := range n.said {
		said[v.UID] += v.Kills
	}
	for uid, number := range said {
		if number > kills[uid] && !n.killedInBothWays(uid) {
			n.broken(countedOnce, "%d kills in the pod %s have verdicts, of %d", number, uid, kills[uid])
		}
	}
	if slices.ContainsFunc(n.scenario.Faults, func(f Fault) bool { return f.Kind == Reset }) { // with which counters begin again
		return
	}
	for _, p := range n.kubelet.Pods() {
		if number := kills[p.UID]; said[p.UID] < number && !n.spec(p).Static && !n.isLost(p.UID) && !n.killedInBothWays(p.UID) {
			n.broken(countedOnce, "%s: %d of %d kills have verdicts", p.Name, said[p.UID], number)
		}
	}
}

// killsOf are the kills by UID, one for all of a cgroup.
func (n *simulation) killsOf() map[string]int {
	kills := map[string]int{}
	for _, k := range n.kernel.Kills() {
		if k.Whole {
			kills[k.Victim.UID]++
		} else {
			kills[k.Victim.UID] += k.Processes
		}
	}
	return kills
}

// killedInBothWays reports whether a pod had kills of single processes and of all of a cgroup, which may be counted together.
func (n *simulation) killedInBothWays(uid string) bool {
	var ways [2]bool
	for _, k := range n.kernel.Kills() {
		if k.Victim.UID == uid && k.Whole {
			ways[1] = true
		} else if k.Victim.UID == uid {
			ways[0] = true
		}
	}
	return ways == [2]bool{true, true}
}

// isLost reports whether a verdict on a pod may be one that the file of verdicts had no room for, or has not got yet.
func (n *simulation) isLost(uid string) bool {
	return slices.ContainsFunc(n.kernel.Kills(), func(k Kill) bool { return k.Victim.UID == uid && (n.drivenOut(k) || k.mayBeUnsaid()) })
}

// killsShown compares the metric, which counts from the daemon's start, with the verdicts that it gave. While a daemon waits for another to end, that
// gives some.
func (n *simulation) killsShown(a answers) {
	var shown, said int
	for name, value := range a.metrics {
		if strings.HasPrefix(name, "nri_memory_manager_oom_kills_total{") {
			shown += int(value)
		}
	}
	since := n.current().since
	for v := range n.said {
		if !v.Time.Before(since) {
			said += v.Kills
		}
	}
	full := slices.ContainsFunc(n.turns, func(t turn) bool { return t.newest.After(since.Add(-time.Second)) && t.full })
	if shown != said && !full && !slices.ContainsFunc(n.scenario.Faults, func(f Fault) bool { return f.Kind == DaemonReplaced }) {
		n.broken(countedOnce, "the metric has %d, and its verdicts are on %d", shown, said)
	}
}
