package simulator

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// maxReplicas bounds the pods of one controller.
const maxReplicas = 10000

// ReadFiles reads manifests that one node can have together; "-" is standard input.
func ReadFiles(paths []string, stdin io.Reader) ([]*corev1.Pod, error) {
	if len(paths) == 0 {
		return nil, errors.New("no manifest; want files, or - for standard input")
	}
	var pods []*corev1.Pod
	for _, path := range paths {
		more, err := readFile(path, stdin)
		if err != nil {
			return nil, err
		}
		pods = append(pods, more...)
	}
	return pods, Unique(pods)
}

func readFile(path string, stdin io.Reader) ([]*corev1.Pod, error) {
	if path == "-" {
		return Read("standard input", stdin)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	defer file.Close()
	return Read(path, file)
}

// Read reads a manifest of one or more documents: Pods, and Deployments, ReplicaSets, StatefulSets, DaemonSets and Jobs,
// which become the pods that they would have on one node. name is what errors call the manifest.
func Read(name string, manifest io.Reader) ([]*corev1.Pod, error) {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(manifest))
	var pods []*corev1.Pod
	for number := 1; ; number++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		more, err := readDocument(document)
		if err != nil {
			return nil, fmt.Errorf("%s: document %d: %w", name, number, err)
		}
		pods = append(pods, more...)
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("%s: no pods in it; want a Pod, Deployment, ReplicaSet, StatefulSet, DaemonSet or Job", name)
	}
	return pods, nil
}

// readDocument returns no pods for a document without content.
func readDocument(document []byte) ([]*corev1.Pod, error) {
	var content any
	if err := yaml.Unmarshal(document, &content); err != nil {
		return nil, err
	}
	if content == nil {
		return nil, nil
	}
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return nil, errors.New("not a Kubernetes object: want a map with apiVersion and kind")
	}
	if kind.APIVersion == "v1" && kind.Kind == "List" {
		return readList(document)
	}
	if err := checkQuantities(content, ""); err != nil {
		return nil, err
	}
	owner, err := readOwner(kind, document)
	if err != nil {
		return nil, err
	}
	pods, err := owner.pods()
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", kind.Kind, owner.meta.Name, err)
	}
	return pods, nil
}

// readList reads what "kubectl get -o yaml" prints.
func readList(document []byte) ([]*corev1.Pod, error) {
	var list struct {
		Items []any `json:"items"`
	}
	if err := yaml.Unmarshal(document, &list); err != nil {
		return nil, err
	}
	var pods []*corev1.Pod
	for i, item := range list.Items {
		text, err := yaml.Marshal(item)
		if err != nil {
			return nil, err
		}
		more, err := readDocument(text)
		if err != nil {
			return nil, fmt.Errorf("items[%d]: %w", i, err)
		}
		pods = append(pods, more...)
	}
	return pods, nil
}

// owner is a Pod, or a controller of pods: a template and how many pods it makes of it here.
type owner struct {
	meta     metav1.ObjectMeta
	template corev1.PodTemplateSpec
	replicas int32
	alone    bool // a Pod
}

func readOwner(kind metav1.TypeMeta, document []byte) (owner, error) {
	switch kind.APIVersion + " " + kind.Kind {
	case "v1 Pod":
		var pod corev1.Pod
		err := strict(document, &pod)
		return owner{pod.ObjectMeta, corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}, 1, true}, err
	case "apps/v1 Deployment":
		var d appsv1.Deployment
		err := strict(document, &d)
		return owner{meta: d.ObjectMeta, template: d.Spec.Template, replicas: orOne(d.Spec.Replicas)}, err
	case "apps/v1 ReplicaSet":
		var r appsv1.ReplicaSet
		err := strict(document, &r)
		return owner{meta: r.ObjectMeta, template: r.Spec.Template, replicas: orOne(r.Spec.Replicas)}, err
	case "apps/v1 StatefulSet":
		var s appsv1.StatefulSet
		err := strict(document, &s)
		return owner{meta: s.ObjectMeta, template: s.Spec.Template, replicas: orOne(s.Spec.Replicas)}, err
	case "apps/v1 DaemonSet":
		var d appsv1.DaemonSet
		err := strict(document, &d)
		return owner{meta: d.ObjectMeta, template: d.Spec.Template, replicas: 1}, err
	case "batch/v1 Job":
		var j batchv1.Job
		err := strict(document, &j)
		replicas := orOne(j.Spec.Parallelism)
		if j.Spec.Completions != nil {
			replicas = min(replicas, *j.Spec.Completions)
		}
		return owner{meta: j.ObjectMeta, template: j.Spec.Template, replicas: replicas}, err
	case " ":
		return owner{}, errors.New("not a Kubernetes object: apiVersion and kind are missing")
	}
	return owner{}, fmt.Errorf("apiVersion %q kind %q is not a pod; want v1 Pod, apps/v1 Deployment, ReplicaSet, StatefulSet or DaemonSet, or batch/v1 Job",
		kind.APIVersion, kind.Kind)
}

// strict reads an object and refuses fields that Kubernetes does not know.
func strict(document []byte, object any) error {
	return yaml.UnmarshalStrict(bytes.TrimSpace(document), object)
}

func orOne(replicas *int32) int32 {
	if replicas == nil {
		return 1
	}
	return *replicas
}

// pods returns checked pods with Kubernetes' defaults, named as a StatefulSet names them.
func (o owner) pods() ([]*corev1.Pod, error) {
	if o.replicas < 0 || o.replicas > maxReplicas {
		return nil, fmt.Errorf("%d replicas; want 0 to %d", o.replicas, maxReplicas)
	}
	pods := make([]*corev1.Pod, 0, o.replicas)
	for i := range o.replicas {
		pod := &corev1.Pod{ObjectMeta: *o.template.ObjectMeta.DeepCopy(), Spec: *o.template.Spec.DeepCopy()}
		pod.Namespace = o.meta.Namespace
		if o.alone && pod.Name == "" && pod.GenerateName != "" {
			pod.Name = pod.GenerateName + "0"
		}
		if !o.alone {
			pod.Name, pod.UID = fmt.Sprintf("%s-%d", o.meta.Name, i), ""
		}
		complete(pod)
		if err := check(pod); err != nil {
			return nil, err
		}
		pods = append(pods, pod)
	}
	return pods, nil
}
