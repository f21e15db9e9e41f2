// Package verify audits a node: whether what the daemon has promised to its containers is what the kernel does for them.
// Gather reads, the checks are pure functions over what was gathered.
package verify

import (
	"cmp"
	"slices"
	"time"
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

// Run runs every check.
func Run(n Node) Report {
	report := Report{Time: n.Document.Time, Findings: []Finding{}, Skipped: n.Skipped}
	for _, pod := range n.pods() {
		for _, container := range pod.Containers {
			if container.State == running {
				report.Containers++
			}
		}
	}
	for _, check := range []func(Node) []Finding{
		conditions, protection, files, migrations, placement, unpinned, short, aboveClaim, lostClaims, cpus, hugepages, overwrites, raised, kubelet, kernel, runtime, sources, deviceSources, requests,
		annotations, setAside,
	} {
		report.Findings = append(report.Findings, check(n)...)
	}
	rank := map[Severity]int{Error: 0, Warning: 1, Note: 2}
	slices.SortStableFunc(report.Findings, func(a, b Finding) int { return cmp.Compare(rank[a.Severity], rank[b.Severity]) })
	return report
}
