package world

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"
)

const rolledBack Promise = "a rollback takes back all that was written, until it is ended"

// RolledBack is from a rollback until it has ended. It is no fault.
const RolledBack = "rolled back"

// rollsBack rolls the daemon of every second scenario back, and ends that. What is written in between is judged as where the profile is Observe.
func (n *simulation) rollsBack() {
	if d := draws(n.scenario.Seed, "rollback"); d.IntN(2) == 0 || n.settings().Profile == "Observe" || n.scenario.endsDuring(DiskHangs, DiskFails) {
		return
	}
	const takes = 15 * time.Second // it looks again after 10 s at what systemd has not confirmed
	var before picture
	n.judge(func() { before = n.picture() })
	n.trouble.begin(Fault{Kind: RolledBack, Length: Duration(2*takes + time.Minute)})
	n.order("/rollback", true)
	time.Sleep(takes)
	n.judge(func() {
		n.mayBeEverywhere()
		n.diesAsAsked()
	})
	n.order("/resume", false)
	n.placedLater()
	time.Sleep(takes)
	n.judge(func() {
		after := n.picture()
		if !maps.Equal(before.runs, after.runs) {
			return
		}
		for _, file := range slices.Sorted(maps.Keys(before.values)) {
			if before.values[file] != after.values[file] && before.values[file] != "" && after.values[file] != "" {
				n.broken(rolledBack, "%s was %s, and is %s once that is ended", file, before.values[file], after.values[file])
			}
		}
	})
}

// order has the daemon roll back, or end that.
func (n *simulation) order(path string, back bool) {
	began := time.Now()
	n.judge(func() { n.back = back })
	text, err := n.current().admin.ask(http.MethodPost, path)
	var answer struct {
		Lines []string
		Left  bool
	}
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	if err != nil || answer.Left {
		n.broken(rolledBack, "%s: %v, %q, in %s", path, err, answer.Lines, time.Since(began))
	}
}

// diesAsAsked looks for containers without the kubelet's memory.oom.group, except those that write their own files, and those in which another
// writer has changed it, perhaps before the daemon did.
func (n *simulation) diesAsAsked() {
	see := func(_ Promise, what, format string, args ...any) { n.broken(rolledBack, what+" "+format, args...) }
	for p, c := range n.containers() {
		if n.runs(c) && !n.writesItself(p, c.Spec.Name) && !n.flipped[c.Cgroup] {
			n.groupAsAsked(see, "", p.Name+"/"+c.Spec.Name, c)
		}
	}
}

// mayBeEverywhere looks for containers that are kept to NUMA nodes.
func (n *simulation) mayBeEverywhere() {
	all := 0
	for i, node := range n.scenario.Machine.Nodes {
		if node.Memory > 0 {
			all |= 1 << i
		}
	}
	for p, c := range n.containers() {
		if mems := n.text(c.Cgroup, "cpuset.mems"); mems != "" && all&^bits(mems) != 0 {
			n.broken(rolledBack, "%s/%s has cpuset.mems %s", p.Name, c.ID, mems)
		}
	}
}
