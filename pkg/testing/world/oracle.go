package world

import (
	"fmt"
	"iter"
	"slices"
	"time"
)

// Promise is what must hold. Each has a file, and judges by the model and by what users see: cgroup files, the files of the state folder, the
// answers to the runtime. None asks the daemon's code for what is right.
type Promise string

// Violation is a promise that was broken.
type Violation struct {
	At      time.Duration // since the start of the node
	Promise Promise
	Text    string
}

func (v Violation) String() string {
	return fmt.Sprintf("%12.6f %s: %s", v.At.Seconds(), v.Promise, v.Text)
}

// Report is what a run has shown.
type Report struct {
	Violations       []Violation
	Virtual          time.Duration
	Pods, Kills      int
	Creates, Refused int
	Containers       int // whose files were compared with what is asked for
	Verdicts         int // that were compared with a kill
	Fresh            int // starts of a daemon that were compared with the one before
	Requests         int // shown while the pod API was silent, and compared
	Scored           int // containers whose oom_score_adj was to be another than the kubelet's
}

// mostViolations bounds what is said of one promise.
const mostViolations = 5

// broken notes a violation.
func (n *simulation) broken(p Promise, format string, args ...any) {
	v := Violation{time.Since(n.began), p, fmt.Sprintf(format, args...)}
	n.mu.Lock()
	defer n.mu.Unlock()
	same := 0
	for _, other := range n.report.Violations {
		if other.Promise == p {
			same++
			if other.Text == v.Text {
				return
			}
		}
	}
	if same < mostViolations {
		n.report.Violations = append(n.report.Violations, v)
	}
}

// Broken are the promises that were broken, each once.
func (r *Report) Broken() (all []Promise) {
	for _, v := range r.Violations {
		if !slices.Contains(all, v.Promise) {
			all = append(all, v.Promise)
		}
	}
	return all
}

// First is the promise that was broken first; "" where none was.
func (r *Report) First() Promise {
	if len(r.Violations) == 0 {
		return ""
	}
	return r.Violations[0].Promise
}

// containers are those that run, with their pods.
func (n *simulation) containers() iter.Seq2[LivePod, LiveContainer] {
	return func(yield func(LivePod, LiveContainer) bool) {
		for _, p := range n.kubelet.Pods() {
			for _, c := range p.Containers {
				if !yield(p, c) {
					return
				}
			}
		}
	}
}

// always is what holds at every moment.
func (n *simulation) always() {
	n.allocationsSummed()
	n.promisedOnce()
	n.claimsGranted()
	n.sharesNode()
	n.standing()
	n.neverThrottlesItself()
	n.makersFirst()
	n.readsLittle()
	n.scores()
	n.synced()
}

// quiet is what holds once nothing has gone wrong for a while.
func (n *simulation) quiet() {
	n.pinned()
	n.claimsPassedOn()
	n.verdicts()
	n.dates()
	n.killsCounted()
	n.blames()
	n.ownRequests()
	n.remembered()
	n.ends()
	n.survives()
}
