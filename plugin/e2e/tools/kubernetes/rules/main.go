// Command rules prints what Kubernetes' own functions say of pods: a v1.PodList on standard input, as a user writes it. It is
// in the module that pins the kubelet of the virtual machines, so that both are of one version.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	apipod "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	defaults "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
	kubeletqos "k8s.io/kubernetes/pkg/kubelet/qos"
)

// answer is about one pod; plugin/e2e/pods reads it.
type answer struct {
	QOSClass corev1.PodQOSClass `json:"qosClass"`
	// Request and Limit are the pod's bytes of memory, with overhead. Limit counts only where every container has one.
	Request    int64                `json:"request"`
	Limit      int64                `json:"limit"`
	Containers map[string]container `json:"containers"`
}

type container struct {
	Request     int64 `json:"request"`
	OOMScoreAdj int   `json:"oomScoreAdj"`
}

func main() {
	memory := flag.Int64("memory", 0, "bytes of memory of the node")
	flag.Parse()
	if err := run(*memory); err != nil {
		fmt.Fprintln(os.Stderr, "rules:", err)
		os.Exit(1)
	}
}

func run(memory int64) error {
	var list corev1.PodList
	if err := json.NewDecoder(os.Stdin).Decode(&list); err != nil {
		return fmt.Errorf("read a v1.PodList: %w", err)
	}
	answers := make([]answer, 0, len(list.Items))
	for i := range list.Items {
		pod, err := created(&list.Items[i])
		if err != nil {
			return err
		}
		answers = append(answers, of(pod, memory))
	}
	return json.NewEncoder(os.Stdout).Encode(answers)
}

// created is a pod as the API server keeps it: with its defaults, of which those of spec.resources come after the webhooks.
func created(pod *corev1.Pod) (*corev1.Pod, error) {
	defaults.SetObjectDefaults_Pod(pod)
	var internal core.Pod
	if err := defaults.Convert_v1_Pod_To_core_Pod(pod, &internal, nil); err != nil {
		return nil, fmt.Errorf("convert pod %s: %w", pod.Name, err)
	}
	apipod.DefaultPodLevelResources(&internal)
	var kept corev1.Pod
	if err := defaults.Convert_core_Pod_To_v1_Pod(&internal, &kept, nil); err != nil {
		return nil, fmt.Errorf("convert pod %s: %w", pod.Name, err)
	}
	return &kept, nil
}

func of(pod *corev1.Pod, memory int64) answer {
	options := resourcehelper.PodResourcesOptions{}
	requests, limits := resourcehelper.PodRequests(pod, options), resourcehelper.PodLimits(pod, options)
	a := answer{
		QOSClass: qos.ComputePodQOS(pod), Request: requests.Memory().Value(), Limit: limits.Memory().Value(), Containers: map[string]container{},
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			a.Containers[c.Name] = container{
				Request:     c.Resources.Requests.Memory().Value(),
				OOMScoreAdj: kubeletqos.GetContainerOOMScoreAdjust(pod, c, memory),
			}
		}
	}
	return a
}
