package ledger

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

var zeroTime time.Time

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
	p.sandboxes = []string{e.Pod.ID} // the kubelet runs one at a time
	if p.managed {
		p.fresh = p.fresh || !known
		l.sumUp(p)
	}
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
	if e.Seq < p.seq {
		return // a newer one has come
	}
	p.Overhead, p.MemoryLimit, p.seq = e.Overhead, e.Limit, e.Seq
	p.compareLimits()
	if p.managed {
		l.sumUp(p)
	}
}

// EndPod is a sandbox that was stopped or removed. Without another one the pod's containers have ended. What the pod has is free once its
// cgroup is gone: until then it may get another sandbox. The kubelet removes an old sandbox much later.
type EndPod struct {
	Pod Pod
	// Gone is set where the pod's cgroup is not there any more.
	Gone bool
}

func (e EndPod) apply(l *Ledger) {
	l.stopped.add(e.Pod.ID, l.newest)
	p := l.pods[e.Pod.Key()]
	if p == nil {
		return
	}
	p.sandboxes = slices.DeleteFunc(p.sandboxes, func(id string) bool { return id == e.Pod.ID || e.Pod.ID == "" })
	if left := len(p.sandboxes); left > 0 {
		p.ID = p.sandboxes[left-1]
		l.touch(p)
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
	l.ending[p.key()] = p
	l.sumUp(p)
	l.note(Debug, "the pod has no sandbox", p.fields(), nil)
}

// Ending are the pods without a sandbox, which end with their cgroups, in no order.
func (l *Ledger) Ending() []Place {
	if len(l.ending) == 0 {
		return nil
	}
	places := make([]Place, 0, len(l.ending))
	for _, p := range l.ending {
		places = append(places, p.place())
	}
	return places
}

// podOf returns the pod of an event, made when it is new.
func (l *Ledger) podOf(received Pod) (*pod, error) {
	if l.stopped.has(received.ID) {
		l.step.effects.Forget = append(l.step.effects.Forget, received.Ref())
		return nil, fmt.Errorf("pod %s/%s: %w", received.Namespace, received.Name, errStopped)
	}
	key := received.Key()
	p := l.pods[key]
	if p != nil && p.ID == received.ID && p.CgroupParent == received.CgroupParent {
		l.runsIn(p, received.ID)
		return p, nil
	}
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
		p = &pod{born: l.step.now, index: len(l.living)}
		l.pods[key] = p
		l.living = append(l.living, p)
		l.values = append(l.values, memoryqos.PodValues{})
	}
	if p.managed && p.path.Pod != path.Pod {
		l.step.effects.Ended = append(l.step.effects.Ended, p.path.Pod)
		l.sumChanged(p)
	}
	if received.Brought == nil && p.brought == nil {
		received = l.Read(received)
	}
	if received.Brought != nil {
		p.brought = received.Brought
	}
	received.Annotations, received.Brought = nil, nil
	l.runsIn(p, received.ID)
	p.Pod, p.path, p.managed, p.seq = received, path, managed, max(p.seq, l.step.seq)
	p.ref = received.Ref()
	l.takeRules(p)
	l.touch(p)
	return p, nil
}

// runsIn adds a sandbox to those of a pod that have not ended.
func (l *Ledger) runsIn(p *pod, sandbox string) {
	delete(l.ending, p.key())
	if !slices.Contains(p.sandboxes, sandbox) {
		p.sandboxes = append(p.sandboxes, sandbox)
	}
}

// Brought is what a pod's annotations say, within bounds.
type Brought struct {
	Annotations config.PodAnnotations
	Claims      pods.Claims
}

// Read reads what a pod brings. It uses nothing that changes, and may be called without the driver's lock: a driver does so
// once for each sandbox, because a tenant decides how much there is to read.
func (l *Ledger) Read(received Pod) Pod {
	claims, _ := l.node.ReadClaims(received.Annotations) // with an error nothing is claimed, and requests are estimates
	received.Brought = &Brought{Annotations: config.ReadAnnotations(received.Annotations), Claims: claims}
	received.Annotations = nil
	return received
}

// HasRead reports whether a sandbox is known, so that there is nothing to Read.
func (l *Ledger) HasRead(received Pod) bool {
	p := l.pods[received.Key()]
	return p != nil && p.ID == received.ID || l.stopped.has(received.ID)
}

// Stopped reports whether a sandbox has ended.
func (l *Ledger) Stopped(id string) bool { return l.stopped.has(id) }

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
	if limit != nil && p.info == nil && l.step.seq >= p.seq { // after a resize the runtime may show an old one
		p.MemoryLimit = *limit
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
	p.settings = l.resolved.SettingsFor(p.Namespace)
	p.wishes, p.overrides = config.Wishes{}, nil
	if !p.brought.Annotations.Empty() {
		p.rules = l.resolved.Config.AnnotationRulesFor(p.Namespace)
		p.wishes, _ = p.wishesFor("")
	}
	l.annotations(p)
}

// wishesFor are the annotations' wishes for one container, "" for the pod itself.
func (p *pod) wishesFor(container string) (config.Wishes, []config.Problem) {
	return p.brought.Annotations.Wishes(container, p.rules)
}

// overridesFor is what the annotations wish for a container of the spec. They are found once: sums are made at every event.
func (p *pod) overridesFor(container string) memoryqos.Overrides {
	if p.brought.Annotations.Empty() {
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

// endPod frees all that a pod has.
func (l *Ledger) endPod(p *pod) {
	for _, c := range p.containers {
		l.end(c)
	}
	delete(l.pods, p.key())
	delete(l.ending, p.key())
	last := len(l.living) - 1 // takes its place
	l.living[p.index], l.values[p.index] = l.living[last], l.values[last]
	l.living[p.index].index = p.index
	l.living[last], l.values[last] = nil, memoryqos.PodValues{}
	l.living, l.values = l.living[:last], l.values[:last]
	if l.manager != nil && l.manager.ReleasePod(p.key()) {
		l.persist(p)
	}
	if p.managed {
		l.step.effects.Ended = append(l.step.effects.Ended, p.path.Pod)
		l.step.effects.Over = append(l.step.effects.Over, p.path.Pod)
		l.sumChanged(p)
	}
	l.rejections = slices.DeleteFunc(slices.Clone(l.rejections), func(r Rejection) bool { // views share the old ones
		return r.UID == p.UID && r.Namespace == p.Namespace && r.Pod == p.Name
	})
	l.changed()
	l.step.effects.Forget = append(l.step.effects.Forget, p.ref)
}
