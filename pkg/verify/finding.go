// Package verify audits a node: whether what the daemon has promised to its containers is what the kernel does for them.
// Gather reads, the checks are pure functions over what was gathered.
package verify

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
)

// Severity says how bad a finding is.
type Severity string

// The severities.
const (
	// Error is a promise that is not kept.
	Error Severity = "error"
	// Warning is something that can break a promise, or already has for somebody.
	Warning Severity = "warning"
	// Note is worth knowing; nothing is wrong.
	Note Severity = "note"
)

// Finding is one thing that was found.
type Finding struct {
	Severity Severity `json:"severity"`
	// ID is the check's name, stable between releases.
	ID string `json:"id"`
	// Object is what it is about: a container, a cgroup, a NUMA node, a file.
	Object string `json:"object"`
	// What was found, in a sentence.
	What string `json:"what"`
	// Do is what to do about it.
	Do string `json:"do"`
}

// Report is the contract of `verify -o json`.
type Report struct {
	Time     time.Time `json:"time"`
	Findings []Finding `json:"findings"`
	// Containers is how many running containers were looked at.
	Containers int `json:"containers"`
	// Skipped names what could not be looked at, and why.
	Skipped []string `json:"skipped,omitempty"`
}

// Clean reports whether nothing but notes was found.
func (r Report) Clean() bool {
	return !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Severity != Note })
}

func (r *Report) find(severity Severity, id, object, what, do string) {
	r.Findings = append(r.Findings, Finding{severity, id, object, what, do})
}

// checks are in the order of their findings.
var checks = []func(Node, *Report){
	conditions, rejected, protection, off, each(files), each(migrations), each(placement), each(unpinned), each(unanswered), each(unscored),
	each(short), each(farther), each(aboveClaim), lostClaims, unmappedClaims, cpus, hugepages, overwrites, each(raised), each(atRisk), kubelet,
	kernel, runtime, sources, deviceSources, requests, annotations, setAside,
}

// each checks every running container.
func each(check func(Node, place, *Report)) func(Node, *Report) {
	return func(n Node, r *Report) {
		for _, c := range n.containers() {
			check(n, c, r)
		}
	}
}

// Run runs every check.
func Run(n Node) Report {
	report := Report{Time: n.Document.Time, Findings: []Finding{}, Skipped: n.Skipped}
	for pod, c := range n.Document.Containers() {
		if c.State == status.Running && n.audits(pod) {
			report.Containers++
		}
	}
	for _, check := range checks {
		check(n, &report)
	}
	rank := map[Severity]int{Error: 0, Warning: 1, Note: 2}
	slices.SortStableFunc(report.Findings, func(a, b Finding) int { return cmp.Compare(rank[a.Severity], rank[b.Severity]) })
	return report
}

// WriteText writes a report for people.
func (r Report) WriteText(to io.Writer) error {
	var b strings.Builder
	counts := map[Severity]int{}
	for _, f := range r.Findings {
		counts[f.Severity]++
		fmt.Fprintf(&b, "%-7s  %s: %s\n", strings.ToUpper(string(f.Severity)), f.Object, f.What)
		fmt.Fprintf(&b, "         → %s  [%s]\n", f.Do, f.ID)
	}
	if len(r.Findings) > 0 {
		fmt.Fprintln(&b)
	}
	for _, skipped := range r.Skipped {
		fmt.Fprintf(&b, "not looked at: %s\n", skipped)
	}
	verdict := "nothing is wrong"
	if !r.Clean() {
		verdict = several(counts[Error], "error") + ", " + several(counts[Warning], "warning")
	}
	fmt.Fprintf(&b, "%s looked at: %s, %s\n", several(r.Containers, "running container"), verdict, several(counts[Note], "note"))
	_, err := io.WriteString(to, b.String())
	return err
}

func several(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
