package world

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

const (
	bracketed Promise = "the true request lies between what status shows and that and its error"
	sayAway   Promise = "a source of requests that is away is shown as away, with the reason"
	unplugged Promise = "a daemon without a runtime says so"
	knows     Promise = "what was known of a pod holds while the pod API is silent, also for the next daemon"
)

// requestsShown looks at the requests that the daemon shows while the pod API is silent, when it has to estimate those of new pods and, where it has
// been started again, of all. One that does not answer is not asked again.
func (n *simulation) requestsShown() {
	text, err := n.current().admin.get("/status")
	var status struct {
		Pods []struct {
			Containers []struct {
				ID, RequestSource     string
				Request, RequestError uint64
			} `json:"containers"`
		} `json:"pods"`
	}
	if err != nil || json.Unmarshal(text, &status) != nil {
		return
	}
	n.judge(func() {
		living, of := map[string]LiveContainer{}, map[string]LivePod{}
		for p, c := range n.containers() {
			living[c.ID], of[c.ID] = c, p
		}
		for _, p := range status.Pods {
			for _, shown := range p.Containers {
				c, lives := living[shown.ID]
				if limit := n.limit(c); !lives || !n.runs(c) || c.Resizing || limit != of[c.ID].limitOf(c.Spec)&^(page-1) || n.hasChange(of[c.ID], Resize) || shown.RequestSource == "" {
					continue
				}
				if of[c.ID].PodLevel() && shown.RequestSource != "kubelet" || c.Spec.Kind == memoryqos.Sidecar && shown.RequestSource == "oomscore" {
					continue // only the pod API tells of what they follow from: resources of the pod, and scores of other containers
				}
				n.report.Requests++
				if c.Spec.Request < shown.Request || c.Spec.Request > shown.Request+shown.RequestError {
					n.broken(bracketed, "%s/%s asks for %d, and is shown with %d and an error of %d from %s", of[c.ID].Name, c.Spec.Name, c.Spec.Request, shown.Request, shown.RequestError,
						shown.RequestSource)
				}
			}
		}
	})
}

// whileSilent asks in the middle of a silence of the pod API and near its end.
func (n *simulation) whileSilent(length time.Duration) {
	for _, at := range []time.Duration{length / 2, length - length/20} {
		time.AfterFunc(at, n.requestsShown)
	}
}

// whileAway looks at the end of a while in which the API server cannot be reached, which is longer than client-go's longest pause.
func (n *simulation) whileAway(kind string, length time.Duration) {
	from := n.current()
	if kind != APIAway || n.scenario.APIServer == "" || length < 65*time.Second || time.Since(from.since) < time.Minute {
		return
	}
	time.AfterFunc(length-time.Second, func() {
		text, err := n.current().admin.get("/status")
		var status statusDocument
		if n.current() != from || err != nil || json.Unmarshal(text, &status) != nil {
			return
		}
		for _, source := range status.RequestSources {
			if source.Connected || source.Problem == "" {
				n.judge(func() { n.broken(sayAway, "%+v", source) })
			}
		}
	})
}

// whileUnplugged asks in the middle of a while in which the runtime has no plugins.
func (n *simulation) whileUnplugged(length time.Duration) {
	from, began := n.current(), time.Now()
	if length < 10*time.Second {
		return
	}
	time.AfterFunc(length/2, func() {
		a := n.answers()
		if n.current() == from && a.problem == nil && !n.runtime.Connected() && n.trouble.count(DaemonFrozen, began.Add(-time.Minute)) == 0 && a.metrics[`nri_memory_manager_condition{condition="connected"}`] != 0 {
			n.judge(func() { n.broken(unplugged, "it is connected, as metrics have it") })
		}
	})
}

// stillKnown compares a container's values while the pod API is silent with what it has said before: when a daemon was there and could keep it.
func (n *simulation) stillKnown(see seer, who string, p LivePod, c LiveContainer, have, want memoryQoS) {
	const keeps = 15 * time.Second // until a daemon that starts has asked, and has it on the disk
	silence := n.trouble.since(PodAPISilent, time.Now())
	if silence.IsZero() || n.scenario.APIServer != "" || n.hasChange(p, Resize) || n.scenario.endsDuring(DiskHangs, DiskFails) ||
		silence.Sub(latest(c.Since, n.trouble.calm(connected, silence))) < keeps {
		return
	}
	if have.min != want.min || have.low != want.low {
		see(knows, who, "has memory.min %d and memory.low %d, want %d and %d", have.min, have.low, want.min, want.low)
	}
}

// since is when what goes wrong at a time has begun, without a moment in between in which it did not; zero where nothing of the kind does.
func (t *trouble) since(kind string, now time.Time) (began time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := now
	for _, s := range slices.Backward(t.spans) { // in the order in which they began
		if s.kind == kind && !s.from.After(at) && s.to.After(at) {
			began, at = s.from, s.from
		}
	}
	return began
}
