package world

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/guard"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/oom"
)

const (
	verdictEach Promise = "every OOM kill has a verdict"
	soonSaid    Promise = "a verdict is in the file a few seconds after the kill"
	standing    Promise = "no container stands still at its memory.high"
)

// verdict is what the oracles read of the file of verdicts.
type verdict struct {
	Time      time.Time `json:"time"`
	After     time.Time `json:"after"`
	Namespace string    `json:"namespace"`
	Container string    `json:"container"`
	UID       string    `json:"uid"`
	ID        string    `json:"id"`
	Level     string    `json:"level"`
	Cause     string    `json:"cause"`
	Unknown   string    `json:"unknown"`
	Kills     int       `json:"kills"`
	Culprit   culprit   `json:"culprit"`
}

// verdictFile is what the file of verdicts has. It is called each second, and keeps that: the file is bounded, and where everybody is killed again
// and again a verdict is not in it for long.
func (n *simulation) verdictFile() []verdict {
	if changed := n.look(&n.written.lastRead, "oom-kills.json"); changed {
		var file struct{ Verdicts []verdict }
		if json.Unmarshal(n.written.text, &file) == nil {
			n.turns = append(n.turns, turned(file.Verdicts))
		}
		n.written.verdicts = file.Verdicts
		for _, v := range file.Verdicts {
			if n.said[v].IsZero() {
				n.said[v] = time.Now()
			}
		}
	}
	return n.written.verdicts
}

// mostVerdicts are in the file at most: beyond them, the namespace with the most loses the oldest of its pod with the most.
const mostVerdicts = 100

// turn is what one state of the file may have lost.
type turn struct {
	full   bool
	newest time.Time            // of its verdicts
	losing map[string]bool      // namespaces that may have lost some
	oldest map[string]time.Time // by UID
}

// turned loses nothing where the file has room. In a full one no namespace gets more than the most have, and one that loses a verdict has one less
// than those then: so one that has two less than the most has lost none.
func turned(verdicts []verdict) turn {
	t := turn{full: len(verdicts) == mostVerdicts, losing: map[string]bool{}, oldest: map[string]time.Time{}}
	of, most := map[string]int{}, 0
	for _, v := range verdicts {
		of[v.Namespace]++
		t.newest, most = latest(t.newest, v.Time), max(most, of[v.Namespace])
		if t.oldest[v.UID].IsZero() {
			t.oldest[v.UID] = v.Time
		}
	}
	for namespace, number := range of {
		t.losing[namespace] = t.full && number >= most-1
	}
	return t
}

// drivenOut reports whether the file, when it was first written with what was known a second after a kill, or last, had lost the verdict on it: while
// the disk hangs, or where many are killed at once, the daemon knows more verdicts than the file takes.
func (n *simulation) drivenOut(k Kill) bool {
	for i, t := range n.turns {
		if t.newest.Sub(k.At) >= time.Second || i == len(n.turns)-1 {
			oldest, has := t.oldest[k.Victim.UID]
			return t.losing[k.Victim.Namespace] && (!has || !oldest.Before(k.At))
		}
	}
	return false
}

// most is how many kills a verdict may be on: where the runtime has removed several containers before anybody could look, the pod's counter is all
// that there is, and they have one together.
func (v verdict) most() int {
	if v.ID == "" {
		return v.Kills
	}
	return 1
}

// verdicts compares the kills of the model with what the daemon has said of them.
func (n *simulation) verdicts() {
	used, last := map[verdict]int{}, map[string]time.Time{}
	for _, kill := range n.kernel.Kills() {
		// One verdict is on all that a container loses within a second.
		before := last[kill.Victim.ID]
		last[kill.Victim.ID] = kill.At
		if kill.At.Sub(before) < time.Second || !n.verdictDue(kill) {
			continue
		}
		n.report.Verdicts++
		best, found := n.verdictOn(kill, used)
		if (!found || best.Time.Sub(kill.At) >= time.Second) && n.drivenOut(kill) {
			continue // and what there is, is on a later one
		}
		if !found {
			n.broken(verdictEach, "none for %s, killed at %s at the level %s", kill.Victim.ID, n.sinceBegan(kill.At), kill.Level)
			continue
		}
		used[best]++
		if said := n.said[best]; said.Sub(latest(kill.At, n.trouble.calm(soonSaid, said))) > promises[soonSaid].within {
			n.broken(soonSaid, "%s: its verdict is of %s, and in the file at %s", n.victim(kill), best.Time.Sub(n.began), said.Sub(n.began))
		}
		if text := n.misjudged(best, kill); text != "" {
			n.broken(verdictEach, "%s: %s", n.victim(kill), text)
		}
	}
}

// verdictDue reports whether a kill must have a verdict. Right after a start, while it cannot read or is not there, the daemon says what it can, some
// of it afterwards.
func (n *simulation) verdictDue(k Kill) bool {
	until := latest(k.At.Add(time.Minute), n.trouble.calm(kept, k.At.Add(time.Minute)))
	return !n.trouble.calm(verdictEach, until).After(k.At) && k.At.Sub(n.began) >= time.Minute && !k.mayBeUnsaid()
}

// verdictOn is the first verdict that may be on a kill and is not used up by others; of two of one time the one that names the container.
func (n *simulation) verdictOn(k Kill, used map[verdict]int) (best verdict, found bool) {
	for v := range n.said {
		late := v.Time.Sub(k.At)
		if v.UID != k.Victim.UID || v.ID != k.Victim.ID && v.ID != "" || used[v] >= v.most() || late < 0 || late >= time.Minute {
			continue
		}
		if !found || v.Time.Before(best.Time) || v.Time.Equal(best.Time) && v.ID != "" {
			best, found = v, true
		}
	}
	return best, found
}

// explainedAbove reports whether a verdict may say that a limit above the pods was hit: which of the kills in one second that explains cannot be known.
func (n *simulation) explainedAbove(v verdict, k Kill) bool {
	return v.Level == string(oom.Parent) && k.ofNode() && n.hitAbove(k.At)
}

func (k Kill) ofNode() bool { return k.Level == oom.Node || k.Level == oom.NUMANode }

// misjudged is what is wrong with a verdict; "" where it is right.
func (n *simulation) misjudged(v verdict, k Kill) string {
	switch level := v.Level == string(k.Level); {
	case n.explainedAbove(v, k):
	case strings.Contains(v.Level, "node") && k.ofNode():
		// A victim far from its own limit is not looked at before, and what it held is gone. Where nearly nothing was free elsewhere, either
		// level is right; and which nodes another container found full cannot be seen of a victim that may use all.
		if !level && k.Elsewhere > 256*mi && k.Asked.ID == k.Victim.ID {
			return fmt.Sprintf("it says level %s, it was %s, with %dMi free on other NUMA nodes", v.Level, k.Level, k.Elsewhere/mi)
		}
	case !level || v.Cause != string(k.Cause) && v.Cause != string(k.Later) && !k.waitsPerhaps():
		return fmt.Sprintf("it says level %s and cause %s (%s), it was %s and %s, of %+v", v.Level, v.Cause, v.Unknown, k.Level, k.Cause, k.Held)
	}
	return ""
}

// victim names what was killed, and when.
func (n *simulation) victim(k Kill) string {
	return fmt.Sprintf("%s/%s, killed at %s", k.Victim.Pod, k.Victim.Container, n.sinceBegan(k.At))
}

func (n *simulation) sinceBegan(at time.Time) time.Duration {
	return at.Sub(n.began).Round(time.Millisecond)
}

// hitAbove reports whether the kernel killed for a limit above the pods in about this second.
func (n *simulation) hitAbove(at time.Time) bool {
	return slices.ContainsFunc(n.kernel.Kills(), func(k Kill) bool { return k.Level == oom.Parent && k.At.Sub(at).Abs() < time.Second })
}

// waitsPerhaps reports whether about a sixteenth waited for the disk, from which on page cache is the cause: the last sample is a little older.
func (k Kill) waitsPerhaps() bool {
	total, waits := k.Held.Processes+k.Held.PageCache+k.Held.Tmpfs+k.Held.Kernel, 16*k.Held.Unwritten
	return waits > total-total/8 && waits < total+total/8
}

// mayBeUnsaid reports whether a kill was so lately that its verdict need not be in the file yet.
func (k Kill) mayBeUnsaid() bool { return time.Since(k.At) <= promises[soonSaid].within }

// standing looks for containers that have stood still for longer than the guard needs.
func (n *simulation) standing() {
	s := n.settings()
	if !s.writes() {
		return
	}
	// The guard learns of it within two of its windows (a kernel that has triggers looks at them once in one, and otherwise the guard does;
	// what ends in one may be too little), watches who may swap for another one, and then raises in steps that double until the limit, or all
	// that the node has, for which it gets two.
	bound := 5 * guard.Defaults().Window
	if n.kernel.fullStands() { // there it notices by two comparisons first
		bound *= 2
	}
	now := time.Now()
	if n.trouble.calm(standing, now).Add(bound).After(now) {
		return
	}
	hanging := n.trouble.calm(standingBesideHangs, now).Add(bound).After(now)
	stalls := n.kernel.Stalls()
	for p, c := range n.containers() {
		if !s.guards(p) {
			continue
		}
		for cgroup, length := range stalls {
			if length > bound && strings.HasPrefix(cgroup+"/", c.Cgroup+"/") && !n.writesItself(p, c.Spec.Name) && !n.mayStand(c, now.Add(-length)) && !(hanging && n.trouble.hangs(c.Cgroup)) {
				n.broken(standing, "%s/%s of class %s has for %s", p.Name, c.Spec.Name, p.Class, length)
			}
		}
	}
}
