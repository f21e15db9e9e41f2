package config

import (
	"fmt"
	"slices"
	"strconv"
)

// The oom_score_adj that a pod can have in place of the kubelet's. The kernel adds a thousandth of the memory of what ran out for each point
// (mm/oom_kill.c, oom_badness). Pods get nothing stronger than what the kubelet gives Guaranteed and node-critical ones
// (pkg/kubelet/qos/policy.go): their sandboxes have -998, the kubelet and the runtime -999.
const (
	FirstKilled int64 = 1000
	LastKilled  int64 = -997
)

// ByAnnotation is the source of what a pod's own annotation sets.
const ByAnnotation = "annotation"

var wantOOMScoreAdj = fmt.Sprintf("must be first, last or a whole number from %d to %d", LastKilled, FirstKilled)

// oomScoreAdj reads a value of the annotation oom-score-adj.
func oomScoreAdj(value string) (score int64, ok bool) {
	switch value {
	case "first":
		return FirstKilled, true
	case "last":
		return LastKilled, true
	}
	score, err := strconv.ParseInt(value, 10, 64)
	return score, err == nil && LastKilled <= score && score <= FirstKilled
}

// OOMScoreAdj returns the oom_score_adj that a container with these wishes has in place of the kubelet's, and where it comes from. It is nil
// if nothing sets one. The pod's annotation counts before its PriorityClass, and that before the default for pods without the annotation.
func (rules AnnotationRules) OOMScoreAdj(w Wishes, priorityClass string) (score *int64, from string) {
	byDefault := slices.Contains(w.Defaults, AnnotationOOMScoreAdj)
	value, mapped := rules.PriorityClasses[priorityClass]
	switch {
	case mapped && (w.OOMScoreAdj == nil || byDefault):
		mapped, _ := oomScoreAdj(value) // validated
		return &mapped, "PriorityClass " + priorityClass
	case byDefault:
		return w.OOMScoreAdj, rules.Rule
	case w.OOMScoreAdj != nil:
		return w.OOMScoreAdj, ByAnnotation
	}
	return nil, ""
}
