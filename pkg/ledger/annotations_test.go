package ledger

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// specOf is what a pod API says of a pod with these containers.
func specOf(pod Pod, containers ...string) pods.Answer {
	spec := &pods.Pod{Ref: pod.Ref(), Class: memoryqos.Burstable}
	for _, name := range containers {
		spec.Containers = append(spec.Containers, pods.Container{Name: name, Kind: memoryqos.App})
	}
	return pods.Answer{Pod: spec, Source: memoryqos.SourceKubelet}
}

// TestProblemsOfAnnotationsAreInTheLogOnce has steps of a pod's life, and after each what the log says of the pod's annotations and the
// view shows.
func TestProblemsOfAnnotationsAreInTheLogOnce(t *testing.T) {
	const (
		key     = "metadata.annotations[numa.memory-manager.noderesource.dev"
		wrong   = key + `]: Unsupported value: "near": supported values: "none", "preferred", "required"`
		wrongC  = key + `/container.main]: Unsupported value: "far": supported values: "none", "preferred", "required"`
		astray  = key + `/container.mian]: Not found: "mian": the pod has no such container, did you mean "main"?`
		debug   = key + `/container.debug]: Not found: "debug": the pod has no such container`
		barred  = key + `]: Forbidden: annotationRules[0] does not allow numa`
		domain  = ".memory-manager.noderesource.dev"
		another = "container-of-another-name"
	)
	pod := func(annotations ...string) Pod { // as annotated, with the domain in the middle of the keys
		all := map[string]string{}
		for i := 0; i < len(annotations); i += 2 {
			all["numa"+domain+annotations[i]] = annotations[i+1]
		}
		p := claimPod("web", "burstable/")
		p.Annotated = &ReadAnnotations{Annotations: config.ReadAnnotations(all)}
		return p
	}
	create := func(p Pod, known pods.Answer, name string) CreateContainer {
		event := claimed(p, name, claimGi)
		event.PodInfo = known
		return event
	}
	facts := func(known pods.Answer) PodFacts { return PodFacts{UID: "web", PodInfo: known} }
	type step struct {
		event  Event
		logged string
		shown  []string
	}
	bad, both, mian, later := pod("", "near"), pod("", "near", "/container.main", "far"), pod("/container.mian", "none"), pod("/container.debug", "none")
	again := bad
	again.ID = "another sandbox"
	restarted := create(mian, specOf(mian, "main"), "main").Container
	restarted.State = Running
	for name, steps := range map[string][]step{
		"a value, over many events and containers": {
			{RunPod{Pod: bad}, wrong, []string{wrong}}, {create(bad, pods.Answer{}, "main"), "", []string{wrong}}, {create(bad, pods.Answer{}, another), "", []string{wrong}},
			{facts(specOf(bad, "main", another)), "", []string{wrong}}, {create(again, pods.Answer{}, "main"), "", []string{wrong}},
			{Synchronize{Pods: []Pod{again}}, "", []string{wrong}},
		},
		"those of containers are among them": {{RunPod{Pod: both}, wrong + "; " + wrongC, []string{wrong, wrongC}}},
		"no such container, as soon as the containers are known": {
			{RunPod{Pod: mian}, "", nil}, {create(mian, pods.Answer{}, "main"), "", nil}, {facts(specOf(mian, "main")), astray, []string{astray}},
			{facts(specOf(mian, "main", "mian")), "", nil},
		},
		"no such container, known at the first create":  {{RunPod{Pod: mian}, "", nil}, {create(mian, specOf(mian, "main"), "main"), astray, []string{astray}}},
		"no such container, known at a synchronization": {{Synchronize{Pods: []Pod{mian}, Containers: []Container{restarted}, PodInfos: map[string]pods.Answer{"web": specOf(mian, "main")}}, astray, []string{astray}}},
		"an ephemeral container that comes before the pod API knows it": {
			{create(later, specOf(later, "main"), "main"), debug, []string{debug}}, {create(later, specOf(later, "main"), "debug"), "", nil},
		},
		"rules that change": {
			{RunPod{Pod: bad}, wrong, []string{wrong}}, {reconfigured(t, "annotationRules: [{namespaces: ['*'], allowedAnnotations: []}]"), barred, []string{barred}}, {reconfigured(t, "annotationRules: [{namespaces: ['*'], allowedAnnotations: []}]\nprofile: Observe"), "", []string{barred}},
		},
		"a new sandbox without them": {{RunPod{Pod: bad}, wrong, []string{wrong}}, {RunPod{Pod: func() Pod { p := pod(); p.ID = "another"; return p }()}, "", nil}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, "")
			for i, s := range steps {
				effects := l.Step(time.Unix(int64(i), 0), s.event)
				var logged []string
				for _, note := range effects.Notes {
					if note.Text == "annotations are ignored" && note.Level == Warn && note.Fields["pod"] == "web" {
						logged = append(logged, note.Fields["problems"].(string))
					}
				}
				if got := strings.Join(logged, "\n"); got != s.logged {
					t.Errorf("step %d logs %q, want %q", i, got, s.logged)
				}
				shown := l.View().Pods[0].Problems
				if !slices.Equal(shown, s.shown) {
					t.Errorf("after step %d the view shows %q, want %q", i, shown, s.shown)
				}
			}
		})
	}
}

// Where wrong annotations reject, one for a container that is not there rejects all of the pod's.
func TestAnAnnotationForNoContainerRejects(t *testing.T) {
	web := claimPod("web", "burstable/")
	web.Annotated = &ReadAnnotations{Annotations: config.ReadAnnotations(map[string]string{"numa.memory-manager.noderesource.dev/container.debug": "none"})}
	create := func(name string, known pods.Answer) Event {
		event := claimed(web, name, claimGi)
		event.PodInfo = known
		return event
	}
	const refused = `bad annotations: metadata.annotations[numa.memory-manager.noderesource.dev/container.debug]: Not found: "debug": the pod has no such container`
	for name, test := range map[string]struct {
		event Event
		want  string
	}{
		"a container":                    {create("main", specOf(web, "main")), refused},
		"containers that are not known":  {create("main", pods.Answer{}), "<nil>"},
		"the container that it is for":   {create("debug", specOf(web, "main", "debug")), "<nil>"},
		"that before the pod API has it": {create("debug", specOf(web, "main")), "<nil>"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, "onBadAnnotation: Reject")
			effects := l.Step(time.Unix(1, 0), test.event)
			got := "<nil>"
			if effects.Err != nil {
				got = effects.Err.Error()
			}
			if got != test.want {
				t.Errorf("error %s, want %s", got, test.want)
			}
			if ignored := slices.ContainsFunc(effects.Notes, func(n Note) bool { return n.Text == "annotations are ignored" }); ignored {
				t.Errorf("the log says that the annotation is ignored: %+v", effects.Notes)
			}
		})
	}
}

// reconfigured puts another configuration in force.
func reconfigured(t *testing.T, yaml string) Event {
	t.Helper()
	_, resolved := resolvedOn(t, twoNodes, yaml)
	return Reconfigure{Config: resolved}
}
