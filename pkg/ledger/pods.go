package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// errStopped answers an event that was received after its pod has ended.
var errStopped = errors.New("the pod sandbox has been stopped")

// RunPod is a new pod sandbox.
type RunPod struct {
	Pod Pod
	Header
}

func (e RunPod) apply(l *Ledger) {
	_, exists := l.pods[e.Pod.Key()]
	p, err := l.podOf(e.Pod)
	if err != nil {
		l.step.effects.Err = err
		return
	}
	p.Sandboxes = []string{e.Pod.ID} // the kubelet runs one at a time
	p.Fresh = p.Fresh || !exists && p.managed
}

// UpdatePod has new resources of a pod in bytes (in-place resize). They replace those in Pod, which may be outdated.
type UpdatePod struct {
	Pod             Pod
	Overhead, Limit uint64
	Header
}

func (e UpdatePod) apply(l *Ledger) {
	p, err := l.podOf(e.Pod)
	if err != nil {
		l.step.effects.Err = err
		return
	}
	if e.Seq < p.Seq {
		return // a newer event has been applied
	}
	p.Overhead, p.Seq = e.Overhead, e.Seq
	p.setLimit(e.Limit)
	p.compareLimits()
}

// EndPod is a sandbox that was stopped or removed. If the pod has no other sandbox, its containers have ended. Its memory is freed when its
// cgroup is removed, because it may get another sandbox until then. The kubelet removes an old sandbox much later.
type EndPod struct {
	Pod Pod
	// Gone is set if the pod's cgroup has been removed.
	Gone bool
}

func (e EndPod) apply(l *Ledger) {
	l.state.StoppedSandboxes.add(e.Pod.ID, l.state.Newest)
	p := l.change(l.pods[e.Pod.Key()])
	if p == nil {
		return
	}
	p.Sandboxes = slices.DeleteFunc(p.Sandboxes, func(id string) bool { return id == e.Pod.ID || e.Pod.ID == "" })
	if left := len(p.Sandboxes); left > 0 {
		p.ID = p.Sandboxes[left-1]
		return
	}
	if p.managed && !e.Gone {
		l.endContainers(p)
		return
	}
	l.endPod(p)
	l.note(Debug, "pod has ended", p.fields(), nil)
}

// endContainers ends the containers of a pod that has no sandbox. The pod keeps its allocations.
func (l *Ledger) endContainers(p *pod) {
	for _, c := range slices.Clone(p.containers) {
		if c.alive() {
			l.end(c)
			l.dropSlot(c)
		}
	}
	l.note(Debug, "the pod has no sandbox", p.fields(), nil)
}

// podOf returns the pod of an event, and adds it if it is new.
func (l *Ledger) podOf(received Pod) (*pod, error) {
	if l.stopped(received) {
		l.step.effects.Forget = append(l.step.effects.Forget, received.Ref())
		return nil, fmt.Errorf("pod %s/%s: %w", received.Namespace, received.Name, errStopped)
	}
	p := l.pods[received.Key()]
	if p == nil || p.ID != received.ID || p.CgroupParent != received.CgroupParent {
		var err error
		if p, err = l.newSandbox(p, received); err != nil {
			return nil, err
		}
	}
	l.change(p)
	p.addSandbox(received.ID)
	return p, nil
}

// newSandbox gives a pod its new sandbox. If p is nil, the pod is added.
func (l *Ledger) newSandbox(p *pod, received Pod) (*pod, error) {
	if p != nil {
		if err := p.overtaken(received, l.step.seq); err != nil {
			return nil, err
		}
	}
	if err := received.check(); err != nil {
		return nil, err
	}
	path, managed, err := received.Path()
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", received.Namespace, received.Name, err)
	}
	if p == nil {
		p = l.add(&PodState{Born: l.step.now}, received.Key())
	}
	received.Annotated = cmp.Or(received.Annotated, p.Annotated)
	if received.Annotated == nil {
		received.Annotated = read(received, l.node)
	}
	received.Annotations = nil
	p.Pod, p.Seq, p.Revision = received, max(p.Seq, l.step.seq), p.Revision+1
	l.locate(p, path, managed)
	l.setRules(p)
	return p, nil
}

// ending reports whether the pod has only its allocations left. It ends when its cgroup is removed.
func (p *pod) ending() bool {
	return p.managed && len(p.Sandboxes) == 0 && !slices.ContainsFunc(p.containers, (*container).alive)
}

// add adds a pod to the living ones. What the Memory Manager has for it already is from the state file, or a snapshot.
func (l *Ledger) add(s *PodState, key string) *pod {
	l.added++
	p := &pod{PodState: s, number: l.added}
	if l.manager != nil {
		p.stored = l.manager.Allocations(key)
	}
	l.pods[key] = p
	l.living, l.state.Pods = append(l.living, p), append(l.state.Pods, s)
	return p
}

// locate records the pod's cgroup.
func (l *Ledger) locate(p *pod, path cgroup.PodPath, managed bool) {
	l.unlocate(p)
	if p.path, p.managed = path, managed; managed {
		l.byCgroup[path.Pod] = p
	}
}

// unlocate drops the record, unless another pod has the cgroup.
func (l *Ledger) unlocate(p *pod) {
	if l.byCgroup[p.path.Pod] == p {
		delete(l.byCgroup, p.path.Pod)
	}
}

// addSandbox adds a sandbox to those that have not ended.
func (p *pod) addSandbox(sandbox string) {
	if !slices.Contains(p.Sandboxes, sandbox) {
		p.Sandboxes = append(p.Sandboxes, sandbox)
	}
}

// ReadAnnotations is the parsed content of a pod's annotations. Its size is bounded.
type ReadAnnotations struct {
	Annotations config.PodAnnotations
	Claims      pods.Claims
}

// stopped reports whether the sandbox of an event has ended.
func (l *Ledger) stopped(received Pod) bool {
	p := l.pods[received.Key()]
	return (p == nil || !slices.Contains(p.Sandboxes, received.ID)) && l.state.StoppedSandboxes.has(received.ID, 0)
}

// read parses a pod's annotations.
func read(pod Pod, node pods.Node) *ReadAnnotations {
	claims, _ := node.ReadClaims(pod.Annotations) // on error nothing is claimed, and requests are estimates
	return &ReadAnnotations{Annotations: config.ReadAnnotations(pod.Annotations), Claims: claims}
}

// podFor returns the pod of an event about one of its containers, updated with the facts that were gathered. It returns nil if the pod is
// not managed, or if the pod may not have containers any more; Effects.Err is set then.
func (l *Ledger) podFor(received Pod, info pods.Answer, limit *uint64) *pod {
	p, err := l.podOf(received)
	if err != nil {
		l.step.effects.Err = err
		return nil
	}
	if !p.managed {
		return nil
	}
	l.learn(p, info)
	if limit != nil && p.Info == nil && l.step.seq >= p.Seq { // an older event may show the limit from before a resize
		p.setLimit(*limit)
	}
	return p
}

// Key is the pod's UID, or the sandbox's id for a pod without a UID, which no kubelet made.
func (p Pod) Key() string {
	if p.UID != "" {
		return p.UID
	}
	return p.ID
}

// Ref names the pod to the pod APIs.
func (p Pod) Ref() pods.Ref {
	return pods.Ref{UID: p.UID, Namespace: p.Namespace, Name: p.Name}
}

// Path returns the pod's cgroups. A pod outside kubepods is not the kubelet's, so it is not managed. A path that could escape is an error.
func (p Pod) Path() (path cgroup.PodPath, managed bool, err error) {
	path, err = cgroup.ParsePod(p.CgroupParent)
	if err == nil {
		return path, true, nil
	}
	if strings.Contains(p.CgroupParent, "kubepods") || strings.Contains(p.CgroupParent, "..") {
		return cgroup.PodPath{}, false, err
	}
	return cgroup.PodPath{}, false, nil
}

// setRules updates what the configuration says about the pod, and what the pod's annotations mean under it.
func (l *Ledger) setRules(p *pod) {
	p.rules, p.wishes = l.rulesFor(p.Pod), nil
	p.settings = l.state.Resolved.SettingsFor(p.rules)
	l.recheckAnnotations(p)
}

func (l *Ledger) rulesFor(p Pod) config.AnnotationRules {
	return l.state.Resolved.Config.AnnotationRulesFor(config.Subject{Namespace: p.Namespace, Labels: p.Labels})
}

// wishesOf returns what the annotations and the configuration's defaults wish for one container, or for the pod itself if container is "". The result is cached, because
// values are derived at every event.
func (p *pod) wishesOf(container string) config.Wishes {
	if p.Annotated.Annotations.Empty() && p.rules.Defaults == nil {
		return config.Wishes{}
	}
	wishes, ok := p.wishes[container]
	if !ok {
		wishes, _ = p.Annotated.Annotations.Wishes(container, p.rules)
		if p.wishes == nil {
			p.wishes = map[string]config.Wishes{}
		}
		p.wishes[container] = wishes
	}
	return wishes
}

// endPod removes a pod and frees all that it has.
func (l *Ledger) endPod(p *pod) {
	l.change(p)
	for _, c := range p.containers {
		l.end(c)
	}
	delete(l.pods, p.Key())
	l.unlocate(p)
	at := slices.Index(l.living, p)
	l.living, l.state.Pods = slices.Delete(l.living, at, at+1), slices.Delete(l.state.Pods, at, at+1)
	if l.manager != nil {
		l.manager.ReleasePod(p.Key())
	}
	l.placeWaiting()
	l.forgetRejections(p.has)
	l.step.effects.Forget = append(l.step.effects.Forget, p.Ref())
}
