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

// errStopped answers an event that is so late that its pod has ended meanwhile.
var errStopped = errors.New("the pod sandbox has been stopped")

// RunPod is a new pod sandbox.
type RunPod struct {
	Pod Pod
	Header
}

func (e RunPod) apply(l *Ledger) {
	_, known := l.pods[e.Pod.Key()]
	p, err := l.podOf(e.Pod)
	if err != nil {
		l.step.effects.Err = err
		return
	}
	p.Sandboxes = []string{e.Pod.ID} // the kubelet runs one at a time
	p.Fresh = p.Fresh || !known && p.managed
}

// UpdatePod are new resources of a pod (in-place resize), in bytes. They replace those in Pod, which may be stale.
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
		return // a newer one has come
	}
	p.Overhead, p.Seq = e.Overhead, e.Seq
	p.limitedTo(e.Limit)
	p.compareLimits()
}

// EndPod is a sandbox that was stopped or removed. Without another one the pod's containers have ended. What the pod has is free once its
// cgroup is gone: until then it may get another sandbox. The kubelet removes an old sandbox much later.
type EndPod struct {
	Pod Pod
	// Gone is set where the pod's cgroup is not there any more.
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
		l.endSandbox(p)
		return
	}
	l.endPod(p)
	l.note(Debug, "pod has ended", p.fields(), nil)
}

// endSandbox leaves a pod without a sandbox, and with its allocations.
func (l *Ledger) endSandbox(p *pod) {
	for _, c := range slices.Clone(p.containers) {
		if c.alive() {
			l.end(c)
			l.forget(c)
		}
	}
	l.note(Debug, "the pod has no sandbox", p.fields(), nil)
}

// podOf returns the pod of an event, made when it is new.
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
	p.runsIn(received.ID)
	return p, nil
}

// newSandbox has a pod be what its new sandbox says. p is nil for a pod that is new, too.
func (l *Ledger) newSandbox(p *pod, received Pod) (*pod, error) {
	if p != nil {
		if err := p.overtakes(received, l.step.seq); err != nil {
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
	l.takeRules(p)
	return p, nil
}

// ending reports whether the pod has nothing but its allocations: it ends with its cgroup.
func (p *pod) ending() bool {
	return p.managed && len(p.Sandboxes) == 0 && !slices.ContainsFunc(p.containers, (*container).alive)
}

// add has a pod among the living ones.
func (l *Ledger) add(s *PodState, key string) *pod {
	l.added++
	p := &pod{PodState: s, number: l.added}
	l.pods[key] = p
	l.living, l.state.Pods = append(l.living, p), append(l.state.Pods, s)
	return p
}

// locate enters where a pod's cgroup is.
func (l *Ledger) locate(p *pod, path cgroup.PodPath, managed bool) {
	l.unlocate(p)
	if p.path, p.managed = path, managed; managed {
		l.byCgroup[path.Pod] = p
	}
}

// unlocate forgets where it was, unless another pod has the cgroup.
func (l *Ledger) unlocate(p *pod) {
	if l.byCgroup[p.path.Pod] == p {
		delete(l.byCgroup, p.path.Pod)
	}
}

// runsIn adds a sandbox to those of a pod that have not ended.
func (p *pod) runsIn(sandbox string) {
	if !slices.Contains(p.Sandboxes, sandbox) {
		p.Sandboxes = append(p.Sandboxes, sandbox)
	}
}

// ReadAnnotations is what a pod's annotations say, within bounds.
type ReadAnnotations struct {
	Annotations config.PodAnnotations
	Claims      pods.Claims
}

// stopped reports whether the sandbox of an event has ended.
func (l *Ledger) stopped(received Pod) bool {
	p := l.pods[received.Key()]
	return (p == nil || !slices.Contains(p.Sandboxes, received.ID)) && l.state.StoppedSandboxes.has(received.ID, 0)
}

// read is what a pod's annotations say.
func read(pod Pod, node pods.Node) *ReadAnnotations {
	claims, _ := node.ReadClaims(pod.Annotations) // with an error nothing is claimed, and requests are estimates
	return &ReadAnnotations{Annotations: config.ReadAnnotations(pod.Annotations), Claims: claims}
}

// podFor returns the pod of an event about one of its containers, with what was found out for it. It is nil for a pod that is
// left alone, and for one that must not have containers any more, which is Effects.Err.
func (l *Ledger) podFor(received Pod, known pods.Answer, limit *uint64) *pod {
	p, err := l.podOf(received)
	if err != nil {
		l.step.effects.Err = err
		return nil
	}
	if !p.managed {
		return nil
	}
	l.learn(p, known)
	if limit != nil && p.Info == nil && l.step.seq >= p.Seq { // after a resize the runtime may show an old one
		p.limitedTo(*limit)
	}
	return p
}

// Key is the pod's UID; pods that no kubelet made may have none, and have the sandbox's id instead.
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

// Path finds the pod's cgroups. A pod outside kubepods is not the kubelet's, and managed is false; a path that tries to
// lead elsewhere is an error.
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

// takeRules takes what the configuration says about the pod's namespace, and determines the pod's wishes.
func (l *Ledger) takeRules(p *pod) {
	p.settings = l.state.Resolved.SettingsFor(p.Namespace)
	p.wishes = nil
	if !p.Annotated.Annotations.Empty() {
		p.rules = l.state.Resolved.Config.AnnotationRulesFor(p.Namespace)
	}
	l.annotations(p)
}

// wishesOf are the annotations' wishes for one container, "" for the pod itself. They are found once: values are derived at every event.
func (p *pod) wishesOf(container string) config.Wishes {
	if p.Annotated.Annotations.Empty() {
		return config.Wishes{}
	}
	wishes, known := p.wishes[container]
	if !known {
		wishes, _ = p.Annotated.Annotations.Wishes(container, p.rules)
		if p.wishes == nil {
			p.wishes = map[string]config.Wishes{}
		}
		p.wishes[container] = wishes
	}
	return wishes
}

// endPod frees all that a pod has.
func (l *Ledger) endPod(p *pod) {
	l.change(p)
	for _, c := range p.containers {
		l.end(c)
	}
	delete(l.pods, p.key())
	l.unlocate(p)
	at := slices.Index(l.living, p)
	l.living, l.state.Pods = slices.Delete(l.living, at, at+1), slices.Delete(l.state.Pods, at, at+1)
	if l.manager != nil {
		l.manager.ReleasePod(p.key())
	}
	l.state.Rejections = slices.DeleteFunc(slices.Clone(l.state.Rejections), func(r Rejection) bool { // views share the old ones
		return r.UID == p.UID && r.Namespace == p.Namespace && r.Pod == p.Name
	})
	l.step.effects.Forget = append(l.step.effects.Forget, p.Ref())
}
