package podinfo

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// ResourcesAnnotation is the pod annotation in which the resource annotator of containers/nri-plugins, an admission
// webhook, repeats the resources of a pod's containers for the plugins on its node.
const ResourcesAnnotation = "noderesource.dev/resources"

// Annotated are the memory requests of a resources annotation.
type Annotated struct {
	// Init and App are requests in bytes by container name, for the containers that are listed.
	Init, App map[string]uint64
}

// ParseAnnotation reads the value of the resources annotation: JSON of the form
// {"initContainers": {"<name>": <v1.ResourceRequirements>}, "containers": {…}}.
func ParseAnnotation(value string) (Annotated, error) {
	var listed struct {
		InitContainers map[string]corev1.ResourceRequirements `json:"initContainers"`
		Containers     map[string]corev1.ResourceRequirements `json:"containers"`
	}
	if err := json.Unmarshal([]byte(value), &listed); err != nil {
		return Annotated{}, fmt.Errorf("annotation %s: want JSON with the resources of initContainers and containers by name: %w",
			ResourcesAnnotation, err)
	}
	init, err := annotatedRequests("initContainers", listed.InitContainers)
	if err != nil {
		return Annotated{}, err
	}
	app, err := annotatedRequests("containers", listed.Containers)
	return Annotated{Init: init, App: app}, err
}

func annotatedRequests(list string, containers map[string]corev1.ResourceRequirements) (map[string]uint64, error) {
	all := make(map[string]uint64, len(containers))
	for name, r := range containers {
		for field, resources := range map[string]corev1.ResourceList{"requests": r.Requests, "limits": r.Limits} {
			if q := resources[corev1.ResourceMemory]; q.Sign() < 0 {
				return nil, fmt.Errorf("annotation %s: %s[%q].%s.memory: %s: want 0 or more",
					ResourcesAnnotation, list, name, field, q.String())
			}
		}
		setMissing(&r.Requests, r.Limits, always)
		all[name] = memory(r.Requests)
	}
	return all, nil
}

// annotated is the annotation's request for the event's container. Whoever may create the pod may write the annotation,
// so it is trusted only where the kubelet's own oom_score_adj agrees. An init container may also ask for less: the score
// of a sidecar is that of its pod's smallest app container if that is lower.
func (e Event) annotated(scored bracket) (uint64, bool) {
	value, ok := e.Annotations[ResourcesAnnotation]
	if !ok {
		return 0, false
	}
	listed, err := ParseAnnotation(value)
	if err != nil {
		return 0, false
	}
	if request, ok := listed.App[e.Container]; ok {
		return request, scored.Low <= request && request <= scored.High
	}
	request, ok := listed.Init[e.Container]
	return request, ok && request <= scored.High
}
