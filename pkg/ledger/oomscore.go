package ledger

import (
	"fmt"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
)

// OOMScore is the oom_score_adj of a container's processes that this plugin has set in place of the kubelet's. It is set at creation and does
// not change while the container runs.
type OOMScore struct {
	Value int64 `json:"value"`
	// From is its source: "annotation", a PriorityClass, or a rule of the configuration.
	From string `json:"from"`
	// Kubelet is the kubelet's value, from which requests are estimated; nil if it gave none.
	Kubelet *int64 `json:"kubelet,omitempty"`
}

// String returns "oom_score_adj -500 by annotation".
func (s OOMScore) String() string { return fmt.Sprintf("oom_score_adj %d by %s", s.Value, s.From) }

// Order names the oom_score_adj of the container's processes and its source; "" if it is unknown.
func (c *ContainerView) Order() string {
	switch {
	case c.OOMScore != nil:
		return c.OOMScore.String()
	case c.KubeletScore != nil:
		return OOMScore{Value: *c.KubeletScore, From: "the kubelet"}.String()
	}
	return ""
}

// withoutScore says why a running container has the kubelet's oom_score_adj although another one is configured or requested now.
func (l *Ledger) withoutScore(c *container) string {
	score, without := l.oomScore(c)
	switch {
	case c.OOMScore != nil:
		return ""
	case score != nil:
		return score.String() + ": it was created without an answer of the plugin, or under another configuration"
	}
	return without
}

// oomScore returns the oom_score_adj to set for a new container; nil if the kubelet's remains. without says why one that was configured or
// requested is not set.
func (l *Ledger) oomScore(c *container) (score *OOMScore, without string) {
	known, kubelet := c.pod.Info != nil, c.Resources.OOMScoreAdj
	value, from := c.pod.rules.OOMScoreAdj(c.wishes(), c.pod.priorityClass())
	switch {
	case !known && from != config.ByAnnotation && len(c.pod.rules.PriorityClasses) > 0:
		if c.Phase != Creating { // it may have been known then
			return nil, c.NoOOMScore
		}
		return nil, "no pod API had reported its pod's PriorityClass when it was created"
	case value == nil, kubelet != nil && *kubelet == *value:
		return nil, ""
	}
	score = &OOMScore{Value: *value, From: from, Kubelet: kubelet}
	switch {
	case l.state.Resolved.Config.DryRun():
		return nil, score.String() + ": nothing is written"
	case l.state.Resolved.QoS.Off:
		return nil, score.String() + ": the profile is NUMA"
	case !l.state.Runtime.OOMScores:
		return nil, fmt.Sprintf("%s: %s %s applies none", score, l.state.Runtime.Name, l.state.Runtime.Version)
	}
	return score, ""
}

// priorityClass returns the name of the pod's PriorityClass; "" without one, or if no pod API has reported it.
func (p *pod) priorityClass() string {
	if p.Info == nil {
		return ""
	}
	return p.Info.PriorityClass
}
