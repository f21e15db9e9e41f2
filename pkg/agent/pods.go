package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
)

// errStopped answers a handler that is so late that its pod has ended meanwhile.
var errStopped = errors.New("the pod sandbox has been stopped")

// RunPodSandbox tells of a new pod sandbox.
func (a *Agent) RunPodSandbox(ctx context.Context, told Pod) error {
	a.mu.Lock()
	_, known := a.pods[keyOf(told)]
	p, err := a.podOf(told)
	if err == nil && p.managed {
		p.fresh = p.fresh || !known
		a.sumUp(p)
	}
	a.mu.Unlock()
	if err != nil {
		return err
	}
	if p.managed && a.sourced {
		a.requests.Expect(p.ref)
	}
	a.protect(ctx)
	return nil
}

// UpdatePodSandbox tells that the resources of a pod change (in-place resize). overhead and limit are in bytes and
// replace those of the pod, whose own may be stale.
func (a *Agent) UpdatePodSandbox(ctx context.Context, told Pod, overhead, limit uint64) error {
	a.mu.Lock()
	p, err := a.podOf(told)
	if err == nil {
		p.Overhead, p.MemoryLimit = overhead, limit
		if p.managed {
			a.sumUp(p)
		}
	}
	a.mu.Unlock()
	if err != nil {
		return err
	}
	a.protect(ctx)
	return nil
}

// StopPodSandbox frees all that a pod has. Stopping it again is harmless.
func (a *Agent) StopPodSandbox(ctx context.Context, told Pod) error {
	a.endSandbox(ctx, told)
	return nil
}

// RemovePodSandbox frees all that a pod still has.
func (a *Agent) RemovePodSandbox(ctx context.Context, told Pod) error {
	a.endSandbox(ctx, told)
	return nil
}

// endSandbox frees a pod, unless the pod has a newer sandbox by now: the kubelet removes the old one much later.
func (a *Agent) endSandbox(ctx context.Context, told Pod) {
	a.mu.Lock()
	a.stopped.add(told.ID)
	p := a.pods[keyOf(told)]
	ends := p != nil && (p.ID == told.ID || told.ID == "")
	if ends {
		a.endPod(p)
	}
	a.mu.Unlock()
	if ends {
		a.log.WithFields(p.fields()).Debug("pod has ended")
		a.protect(ctx)
	}
}

// keyOf is the pod's UID; pods that no kubelet made may have none.
func keyOf(told Pod) string {
	if told.UID != "" {
		return told.UID
	}
	return told.ID
}

// podOf returns the pod that an event tells of, made when it is new. The lock is held.
func (a *Agent) podOf(told Pod) (*pod, error) {
	if a.stopped.has(told.ID) {
		return nil, fmt.Errorf("pod %s/%s: %w", told.Namespace, told.Name, errStopped)
	}
	key := keyOf(told)
	p := a.pods[key]
	if p != nil && p.ID == told.ID && p.CgroupParent == told.CgroupParent {
		return p, nil
	}
	path, managed, err := pathOf(told)
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", told.Namespace, told.Name, err)
	}
	if p == nil {
		p = &pod{born: a.now()}
		a.pods[key] = p
		p.index = len(a.living)
		a.living = append(a.living, p)
		a.values = append(a.values, memoryqos.PodValues{})
	}
	if p.managed && p.path.Pod != path.Pod {
		a.gone = append(a.gone, p.path.Pod)
		a.resum(p)
	}
	p.Pod, p.path, p.managed = told, path, managed
	p.ref = podinfo.Ref{UID: told.UID, Namespace: told.Namespace, Name: told.Name}
	p.annotated = annotated(told.Annotations)
	a.takeRules(p)
	a.touch(p)
	return p, nil
}

// pathOf finds the pod's cgroups. A pod outside kubepods is none of the kubelet's and is left alone; a path that tries
// to lead elsewhere is refused.
func pathOf(told Pod) (path cgroup.PodPath, managed bool, err error) {
	path, err = cgroup.ParsePod(told.CgroupParent)
	if err == nil {
		return path, true, nil
	}
	if strings.Contains(told.CgroupParent, "kubepods") || strings.Contains(told.CgroupParent, "..") {
		return cgroup.PodPath{}, false, err
	}
	return cgroup.PodPath{}, false, nil
}

// annotated is a quick no for the pods that have no annotation of ours.
func annotated(annotations map[string]string) bool {
	for key := range annotations {
		if strings.Contains(key, ".memory-manager.") {
			return true
		}
	}
	return false
}

// takeRules takes over what the configuration says about the pod's namespace, and reads the pod's wishes anew.
func (a *Agent) takeRules(p *pod) {
	p.settings = a.resolved.SettingsFor(p.Namespace)
	p.wishes, p.problems, p.overrides = config.Wishes{}, nil, nil
	if p.annotated {
		p.rules = a.resolved.Config.AnnotationRulesFor(p.Namespace)
		p.wishes, p.problems = config.ParseAnnotations(p.Annotations, "", p.rules)
	}
}

// wishesFor reads the annotations for one container. The lock is held.
func (p *pod) wishesFor(container string) (config.Wishes, []config.Problem) {
	if !p.annotated {
		return config.Wishes{}, nil
	}
	return config.ParseAnnotations(p.Annotations, container, p.rules)
}

// overridesFor is what the annotations wish for a container of the spec. They are read once: sums are made at every event. The
// lock is held.
func (p *pod) overridesFor(container string) memoryqos.Overrides {
	if !p.annotated {
		return memoryqos.Overrides{}
	}
	overrides, known := p.overrides[container]
	if !known {
		wishes, _ := p.wishesFor(container)
		overrides = wishes.QoS
		if p.overrides == nil {
			p.overrides = map[string]memoryqos.Overrides{}
		}
		p.overrides[container] = overrides
	}
	return overrides
}

// endPod frees all that a pod has. The lock is held.
func (a *Agent) endPod(p *pod) {
	for _, c := range p.containers {
		a.end(c)
	}
	key := keyOf(p.Pod)
	delete(a.pods, key)
	last := len(a.living) - 1 // takes its place
	a.living[p.index], a.values[p.index] = a.living[last], a.values[last]
	a.living[p.index].index = p.index
	a.living[last], a.values[last] = nil, memoryqos.PodValues{}
	a.living, a.values = a.living[:last], a.values[:last]
	if a.manager != nil && a.manager.ReleasePod(key) {
		a.record(p)
	}
	if p.managed {
		a.sums++
		a.gone = append(a.gone, p.path.Pod)
	}
	a.rejections = slices.DeleteFunc(slices.Clone(a.rejections), func(r RejectionView) bool { // views share the old ones
		return r.UID == p.UID && r.Namespace == p.Namespace && r.Pod == p.Name
	})
	a.changed()
	if a.sourced {
		a.requests.Forget(p.ref)
	}
}

// touch marks a pod as another one than the last View shows. The lock is held.
func (a *Agent) touch(p *pod) {
	p.view = nil
	a.changed()
}
