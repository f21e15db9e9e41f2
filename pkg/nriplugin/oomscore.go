package nriplugin

import (
	"strconv"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// oomScoreAnnotation is the annotation of a container whose oom_score_adj this plugin has set. Runtimes keep it with the container's OCI spec,
// so that a plugin that starts later finds the kubelet's value, which the spec does not have any more.
const oomScoreAnnotation = "kubelet-oom-score-adj.memory-manager.noderesource.dev"

// textOfOOMScore is the annotation's value: the container's id, the kubelet's oom_score_adj ("-" for none), and the source of this plugin's.
// Some runtimes give containers the annotations of their pods, which a tenant writes: a tenant does not know the id of a container before it
// is created.
func textOfOOMScore(id string, score ledger.OOMScore) string {
	kubelet := "-"
	if score.Kubelet != nil {
		kubelet = strconv.FormatInt(*score.Kubelet, 10)
	}
	return id + " " + kubelet + " " + score.From
}

// oomScoreOf returns what this plugin has set for a container; nil if it has set nothing.
func oomScoreOf(container *api.Container) *ledger.OOMScore {
	parts := strings.SplitN(container.GetAnnotations()[oomScoreAnnotation], " ", 3)
	now := container.GetLinux().GetOomScoreAdj()
	if len(parts) != 3 || parts[0] != container.GetId() || now == nil {
		return nil
	}
	score := &ledger.OOMScore{Value: now.GetValue(), From: parts[2]}
	if kubelet, err := strconv.ParseInt(parts[1], 10, 64); err == nil {
		score.Kubelet = &kubelet
	}
	return score
}
