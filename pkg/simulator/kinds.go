package simulator

import (
	"cmp"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kyaml "sigs.k8s.io/yaml"
)

// maxReplicas bounds the pods of one controller.
const maxReplicas = 10000

const knownKinds = "Pod, Deployment, ReplicaSet, StatefulSet, DaemonSet, Job or CronJob"

// podless are the kinds of the API groups core, apps and batch that make no pods.
const podless = "ConfigMap ControllerRevision Endpoints Event LimitRange Namespace Node PersistentVolume PersistentVolumeClaim PodTemplate ResourceQuota Secret Service ServiceAccount"

// podlessGroups are the API groups of Kubernetes and its subprojects that have a dot in their name. Operators have groups below k8s.io, too.
const podlessGroups = "admissionregistration.k8s.io apiextensions.k8s.io apiregistration.k8s.io authentication.k8s.io authorization.k8s.io " +
	"certificates.k8s.io coordination.k8s.io discovery.k8s.io events.k8s.io flowcontrol.apiserver.k8s.io gateway.networking.k8s.io " +
	"internal.apiserver.k8s.io metrics.k8s.io networking.k8s.io node.k8s.io policy.networking.k8s.io rbac.authorization.k8s.io resource.k8s.io " +
	"scheduling.k8s.io snapshot.storage.k8s.io storage.k8s.io storagemigration.k8s.io topology.node.k8s.io"

// podlessOthers are kinds that most charts have.
const podlessOthers = "cert-manager.io/Certificate cert-manager.io/ClusterIssuer cert-manager.io/Issuer monitoring.coreos.com/PodMonitor " +
	"monitoring.coreos.com/Probe monitoring.coreos.com/PrometheusRule monitoring.coreos.com/ServiceMonitor"

// makesNoPods reports whether a kind of an API group ("." is core) is known to make no pods.
func makesNoPods(group, name string) bool {
	switch {
	case slices.Contains([]string{".", "apps", "batch"}, group):
		return slices.Contains(strings.Fields(podless), name)
	case !strings.Contains(group, "."): // autoscaling, policy and other old groups of Kubernetes
		return true
	}
	return slices.Contains(strings.Fields(podlessGroups), group) || slices.Contains(strings.Fields(podlessOthers), group+"/"+name)
}

type kind struct {
	of reflect.Type
	// template is where its pod template is; empty for a Pod.
	template string
	read     func(document []byte) (owner, error)
}

type found struct {
	object object
	owner  owner
	kind   string
}

// owner is a Pod, or a controller of pods: a template and how many pods it makes of it here.
type owner struct {
	meta     metav1.ObjectMeta
	template corev1.PodTemplateSpec
	replicas int32
	first    int32 // the number of the first pod
	alone    bool  // a Pod
}

func kindOf[T any](template string, owns func(*T) owner) kind {
	return kind{reflect.TypeFor[T](), template, func(document []byte) (owner, error) {
		var object T
		if err := kyaml.UnmarshalStrict(document, &object); err != nil {
			return owner{}, err
		}
		return owns(&object), nil
	}}
}

// kinds are the objects that make pods, by apiVersion and kind.
var kinds = map[string]kind{
	"v1 Pod": kindOf("", func(p *corev1.Pod) owner {
		return owner{meta: p.ObjectMeta, template: corev1.PodTemplateSpec{ObjectMeta: p.ObjectMeta, Spec: p.Spec}, replicas: 1, alone: true}
	}),
	"v1 ReplicationController": kindOf("spec.template", func(r *corev1.ReplicationController) owner {
		from := owner{meta: r.ObjectMeta, replicas: ptr.Deref(r.Spec.Replicas, 1)}
		if r.Spec.Template != nil {
			from.template = *r.Spec.Template
		}
		return from
	}),
	"apps/v1 Deployment": kindOf("spec.template", func(d *appsv1.Deployment) owner {
		return owner{meta: d.ObjectMeta, template: d.Spec.Template, replicas: ptr.Deref(d.Spec.Replicas, 1)}
	}),
	"apps/v1 ReplicaSet": kindOf("spec.template", func(r *appsv1.ReplicaSet) owner {
		return owner{meta: r.ObjectMeta, template: r.Spec.Template, replicas: ptr.Deref(r.Spec.Replicas, 1)}
	}),
	"apps/v1 StatefulSet": kindOf("spec.template", func(s *appsv1.StatefulSet) owner {
		first := ptr.Deref(s.Spec.Ordinals, appsv1.StatefulSetOrdinals{}).Start
		return owner{meta: s.ObjectMeta, template: s.Spec.Template, replicas: ptr.Deref(s.Spec.Replicas, 1), first: first}
	}),
	"apps/v1 DaemonSet": kindOf("spec.template", func(d *appsv1.DaemonSet) owner {
		return owner{meta: d.ObjectMeta, template: d.Spec.Template, replicas: 1}
	}),
	"batch/v1 Job": kindOf("spec.template", func(j *batchv1.Job) owner { return jobOwner(j.ObjectMeta, j.Spec) }),
	"batch/v1 CronJob": kindOf("spec.jobTemplate.spec.template", func(c *batchv1.CronJob) owner {
		job := c.Spec.JobTemplate.Spec // of one run
		if ptr.Deref(c.Spec.Suspend, false) {
			job.Suspend = c.Spec.Suspend
		}
		return jobOwner(c.ObjectMeta, job)
	}),
}

func jobOwner(meta metav1.ObjectMeta, spec batchv1.JobSpec) owner {
	replicas := ptr.Deref(spec.Parallelism, 1)
	if spec.Completions != nil {
		replicas = min(replicas, *spec.Completions)
	}
	if ptr.Deref(spec.Suspend, false) {
		replicas = 0
	}
	return owner{meta: meta, template: spec.Template, replicas: replicas}
}

// otherVersion returns the apiVersion in which Kubernetes has a kind whose group is right, or left out; objects of other groups
// may have the same kind.
func otherVersion(version, name string) string {
	group := path.Dir(version)
	for key := range kinds {
		known, kind, _ := strings.Cut(key, " ")
		if kind == name && (group == path.Dir(known) || group == "extensions" || group == ".") {
			return known
		}
	}
	return ""
}

// kindsOf are the kinds of an apiVersion that make pods.
func kindsOf(version string) (names []string) {
	for key := range kinds {
		if name, is := strings.CutPrefix(key, version+" "); is {
			names = append(names, name)
		}
	}
	return names
}

// named returns an owner's pod of a name, with Kubernetes' defaults.
func (o owner) named(name string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: *o.template.ObjectMeta.DeepCopy(), Spec: *o.template.Spec.DeepCopy()}
	pod.Name, pod.Namespace = name, o.meta.Namespace
	if !o.alone {
		pod.UID = ""
	}
	complete(pod)
	return pod
}

// nameOf is what m.names has of an object: the same name may be there once of each kind.
func nameOf(kind string, of metav1.ObjectMeta, name string) string {
	return strings.ToLower(kind) + " " + cmp.Or(of.Namespace, corev1.NamespaceDefault) + "/" + name
}

// addName keeps the name that an object has itself.
func (m *Manifests) addName(f found) error {
	switch {
	case f.owner.meta.Name == "" && f.owner.meta.GenerateName == "":
		return f.object.errorf("metadata.name", "is missing")
	case f.owner.meta.Name == "":
		return nil
	}
	name := nameOf(f.kind, f.owner.meta, f.owner.meta.Name)
	if other, twice := m.names[name]; twice {
		return f.object.errorf("metadata.name", "%s is there twice, first in %s", name, other)
	}
	m.names[name] = f.object.place()
	return nil
}

// podNames returns the names of an owner's pods. Those that are made are as a StatefulSet makes them, with the kind in them where an object
// of another kind has such pods.
func (m *Manifests) podNames(f found) []string {
	meta := f.owner.meta
	prefix := cmp.Or(meta.Name, strings.TrimSuffix(meta.GenerateName, "-")) + "-"
	switch {
	case f.owner.alone && meta.Name != "":
		return []string{meta.Name}
	case f.owner.alone:
		prefix = meta.GenerateName
	}
	taken := func(number int32) bool {
		return m.names[nameOf("Pod", meta, fmt.Sprint(prefix, number))] != ""
	}
	for number := range f.owner.replicas {
		if meta.Name != "" && taken(f.owner.first+number) {
			prefix += strings.ToLower(f.kind) + "-"
			break
		}
	}
	names := make([]string, 0, f.owner.replicas)
	for number := f.owner.first; len(names) < cap(names); number++ {
		if !taken(number) {
			names = append(names, fmt.Sprint(prefix, number))
		}
	}
	return names
}

// addPods adds the checked pods of an owner.
func (m *Manifests) addPods(f found) error {
	from, of := f.object, f.owner
	if of.replicas < 0 || of.replicas > maxReplicas {
		path := strings.TrimPrefix(from.path+"."+strings.TrimSuffix(from.template, "template"), ".")
		for _, name := range []string{"replicas", "parallelism", "completions"} {
			if from.doc.Has(path + name) {
				path += name
				break
			}
		}
		return from.doc.Errorf(path, "want 0 to %d, got %d", maxReplicas, of.replicas)
	}
	for _, name := range m.podNames(f) {
		pod := of.named(name)
		if err := from.check(pod); err != nil {
			return err
		}
		if other, twice := m.uids[string(pod.UID)]; twice {
			return from.errorf("metadata.uid", "%s is the UID of another pod, in %s", pod.UID, other)
		}
		m.names[nameOf("Pod", of.meta, name)], m.uids[string(pod.UID)] = from.place(), from.place()
		m.Pods = append(m.Pods, pod)
	}
	return nil
}
