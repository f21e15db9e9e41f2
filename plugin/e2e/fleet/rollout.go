package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// rollout checks that a Deployment gets all of its pods although the scheduler sends one to a node on which no NUMA node has the memory, and
// that no other pod of that node is evicted, nor any when all run.
func (o *options) rollout(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	return o.assemble(ctx, setting{load: load{memory: "50Gi"}, evicts: true}, 2, dir, func(ctx context.Context, f *fleet) error {
		if err := f.rollOut(ctx); err != nil {
			return fmt.Errorf("a rollout past a node of fragments: %w", err)
		}
		logf("a Deployment has all of its pods, past a node that refused one")
		return nil
	})
}

func (f *fleet) rollOut(ctx context.Context) error {
	full, empty := f.nodes[0].name, f.nodes[1].name
	if err := f.follow(ctx, func(outcome) {}); err != nil {
		return err
	}
	// 48Gi are left on each NUMA node: the scheduler sees room for one pod.
	fragments := *f
	fragments.memory = "80Gi"
	for i := range numaNodes {
		pod := fragments.pod(fmt.Sprint("fragment-", i))
		pod.Spec.NodeName = full
		if _, err := f.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if err := f.runs(ctx, "the fragments", numaNodes); err != nil {
		return err
	}
	if err := f.cordon(ctx, empty, true); err != nil {
		return err
	}
	labels := map[string]string{"app": "web"}
	template := f.pod("")
	template.Labels = labels
	deployments := f.client.AppsV1().Deployments(namespace)
	web := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{Replicas: new(int32(1)),
		Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: template.Spec}}}
	if _, err := deployments.Create(ctx, web, metav1.CreateOptions{}); err != nil {
		return err
	}
	var refused *corev1.Pod
	err := await(ctx, "a pod that the node refuses", func() (bool, error) {
		list, err := f.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil || len(list.Items) == 0 {
			return false, err
		}
		refused = &list.Items[0]
		statuses := refused.Status.ContainerStatuses
		return len(statuses) > 0 && statuses[0].State.Waiting != nil && statuses[0].State.Waiting.Reason == "CreateContainerError", nil
	})
	if err != nil {
		return err
	}
	if err := f.cordon(ctx, empty, false); err != nil {
		return err
	}
	if _, err := deployments.Patch(ctx, "web", types.MergePatchType, []byte(`{"spec": {"replicas": 4}}`), metav1.PatchOptions{}); err != nil {
		return err
	}
	if err := f.runs(ctx, "the Deployment's pods and the fragments", 4+numaNodes); err != nil {
		return err
	}
	events, err := f.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=EvictedForMemory"})
	switch {
	case err != nil:
		return err
	case len(events.Items) != 1 || events.Items[0].InvolvedObject.UID != refused.UID || !strings.Contains(events.Items[0].Message, "50Gi needed"):
		return fmt.Errorf("the events of evictions are %v, want one of %s with what is needed", events.Items, refused.Name)
	}
	return nil
}

// runs waits until as many pods run and there are no others.
func (f *fleet) runs(ctx context.Context, what string, count int) error {
	return await(ctx, what+" to run", func() (bool, error) {
		list, err := f.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != count {
			return false, err
		}
		for _, pod := range list.Items {
			if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
				return false, nil
			}
		}
		return true, nil
	})
}

// cordon keeps the scheduler from a node, or lets it.
func (f *fleet) cordon(ctx context.Context, node string, on bool) error {
	_, err := f.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, fmt.Appendf(nil, `{"spec": {"unschedulable": %t}}`, on), metav1.PatchOptions{})
	return err
}
