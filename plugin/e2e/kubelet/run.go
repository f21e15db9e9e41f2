package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// Namespace is where the tests' pods are.
const Namespace = corev1.NamespaceDefault

// Run creates a pod on this node and waits until each container has been started, init containers until their end. The
// error holds the kubelet's reason and message. On an error the pod is left as it is; Remove removes it.
func (k *Kubelet) Run(ctx context.Context, p *Pod) error {
	if err := k.Create(ctx, p); err != nil {
		return err
	}
	return k.WaitStarted(ctx, p)
}

// RunAll runs pods at once.
func (k *Kubelet) RunAll(ctx context.Context, pods ...*Pod) error {
	for _, p := range pods {
		if err := k.Create(ctx, p); err != nil {
			return err
		}
	}
	for _, p := range pods {
		if err := k.WaitStarted(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// Create creates a pod on this node and waits for nothing.
func (k *Kubelet) Create(ctx context.Context, p *Pod) error {
	if err := k.Expect(p); err != nil {
		return err
	}
	object := p.Object()
	if p.Overhead > 0 {
		if err := k.ensureRuntimeClass(ctx, p); err != nil {
			return err
		}
	}
	if p.Priority != 0 {
		if err := k.ensurePriorityClass(ctx, p); err != nil {
			return err
		}
	}
	object.Spec.NodeName = setup.NodeName
	object.Status = corev1.PodStatus{} // the API server keeps a QoS class that it finds here
	created, err := k.Client.CoreV1().Pods(Namespace).Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create pod %s: %w", p.Name, err)
	}
	p.UID, p.class = string(created.UID), created.Status.QOSClass
	return nil
}

// Expect prepares for a pod that Create or another client creates now; RemoveAll removes it.
func (k *Kubelet) Expect(p *Pod) error {
	p.UID, p.IDs, p.class = "", map[string]string{}, ""
	if err := os.MkdirAll(k.Control(p), 0o777); err != nil {
		return fmt.Errorf("prepare for pod %s: %w", p.Name, err)
	}
	k.pods[p.Name] = p
	return nil
}

// ensureRuntimeClass makes the class whose overhead the pod has.
func (k *Kubelet) ensureRuntimeClass(ctx context.Context, p *Pod) error {
	_, err := k.Client.NodeV1().RuntimeClasses().Create(ctx, &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: p.runtimeClass()}, Handler: "runc",
		Overhead: &nodev1.Overhead{PodFixed: corev1.ResourceList{corev1.ResourceMemory: quantity(p.Overhead)}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the runtime class of %s: %w", p.Name, err)
	}
	return nil
}

// ensurePriorityClass makes the class that has the pod's priority.
func (k *Kubelet) ensurePriorityClass(ctx context.Context, p *Pod) error {
	_, err := k.Client.SchedulingV1().PriorityClasses().Create(ctx, &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: p.priorityClass()}, Value: p.Priority,
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the priority class of %s: %w", p.Name, err)
	}
	return nil
}

// Get reads a pod from the API server and notes the ids of its containers.
func (k *Kubelet) Get(ctx context.Context, p *Pod) (*corev1.Pod, error) {
	object, err := k.Client.CoreV1().Pods(Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	p.UID = string(object.UID)
	for _, s := range statuses(object) {
		if _, id, found := strings.Cut(s.ContainerID, "://"); found {
			p.IDs[s.Name] = id
		}
	}
	return object, nil
}

func statuses(object *corev1.Pod) []corev1.ContainerStatus {
	return append(append([]corev1.ContainerStatus{}, object.Status.InitContainerStatuses...), object.Status.ContainerStatuses...)
}

// WaitStarted waits until each container of a pod has been started.
func (k *Kubelet) WaitStarted(ctx context.Context, p *Pod) error {
	return k.wait(ctx, p, "start", func(object *corev1.Pod) (bool, error) {
		if object.Status.Phase == corev1.PodFailed && object.Status.Reason != "" {
			return false, fmt.Errorf("%s: %s", object.Status.Reason, object.Status.Message)
		}
		started := len(object.Status.ContainerStatuses) > 0
		for _, s := range statuses(object) {
			if w := s.State.Waiting; w != nil && strings.HasSuffix(w.Reason, "Error") {
				return false, fmt.Errorf("container %s: %s: %s", s.Name, w.Reason, w.Message)
			}
			started = started && (s.State.Running != nil || s.State.Terminated != nil)
		}
		return started, nil
	})
}

// WaitCrashed waits until a container of a pod has ended and waits for its next start.
func (k *Kubelet) WaitCrashed(ctx context.Context, p *Pod) error {
	return k.wait(ctx, p, "crash", func(object *corev1.Pod) (bool, error) {
		return slices.ContainsFunc(statuses(object), func(s corev1.ContainerStatus) bool { return s.RestartCount > 0 }), nil
	})
}

// wait looks at a pod until done says so or fails.
func (k *Kubelet) wait(ctx context.Context, p *Pod, what string, done func(*corev1.Pod) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, RequestLimit)
	defer cancel()
	for {
		object, err := k.Get(ctx, p)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s pod %s: %w", what, p.Name, err)
		}
		if err == nil {
			ok, err := done(object)
			if err != nil {
				return fmt.Errorf("%s pod %s: %w", what, p.Name, err)
			}
			if ok {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			state := ""
			if object != nil {
				text, _ := json.Marshal(object.Status)
				state = string(text)
			}
			return fmt.Errorf("%s pod %s: %w: %s", what, p.Name, ctx.Err(), state)
		case <-time.After(pollPeriod):
		}
	}
}

// Resize changes a container's request and limit in place and waits until the kubelet has done it; the error is its
// word why it has not. What the pod had before stays asked for then: the API server keeps the new wish.
func (k *Kubelet) Resize(ctx context.Context, p *Pod, name string, request, limit uint64) error {
	if err := k.AskResize(ctx, p, name, request, limit); err != nil {
		return err
	}
	return k.WaitResized(ctx, p, name)
}

// WaitResized waits until the kubelet has resized a container as asked; the error is its word why it has not.
func (k *Kubelet) WaitResized(ctx context.Context, p *Pod, name string) error {
	c := p.Container(name)
	return k.wait(ctx, p, "resize", func(object *corev1.Pod) (bool, error) {
		for _, condition := range object.Status.Conditions {
			pending := condition.Type == corev1.PodResizePending
			if failed := condition.Type == corev1.PodResizeInProgress && condition.Reason == corev1.PodReasonError; pending || failed {
				return false, fmt.Errorf("%s: %s", condition.Reason, condition.Message)
			}
			if condition.Type == corev1.PodResizeInProgress {
				return false, nil
			}
		}
		for _, s := range statuses(object) {
			if s.Name == name {
				return object.Status.ObservedGeneration >= object.Generation && s.Resources != nil &&
					s.Resources.Requests.Memory().Value() == int64(c.Request) && s.Resources.Limits.Memory().Value() == int64(c.Limit), nil
			}
		}
		return false, nil
	})
}

// AskResize asks for another request and limit and waits for nothing.
func (k *Kubelet) AskResize(ctx context.Context, p *Pod, name string, request, limit uint64) error {
	c := p.Container(name)
	c.Request, c.Limit = request, limit
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": name, "resources": c.resources()}}}})
	if err != nil {
		return fmt.Errorf("resize pod %s: %w", p.Name, err)
	}
	if _, err := k.Client.CoreV1().Pods(Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "resize"); err != nil {
		return fmt.Errorf("resize pod %s: %w", p.Name, err)
	}
	return nil
}

// Remove deletes a pod and waits until the kubelet has removed its cgroup. It can be repeated.
func (k *Kubelet) Remove(ctx context.Context, p *Pod) error { return k.remove(ctx, p) }

// RemoveAll removes every pod that is still there.
func (k *Kubelet) RemoveAll(ctx context.Context) error {
	var pods []*Pod
	for _, p := range k.pods {
		pods = append(pods, p)
	}
	return k.remove(ctx, pods...)
}

func (k *Kubelet) remove(ctx context.Context, pods ...*Pod) error {
	ctx, cancel := context.WithTimeout(ctx, RequestLimit)
	defer cancel()
	var errs []error
	grace := int64(1)
	for _, p := range pods {
		err := k.Client.CoreV1().Pods(Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete pod %s: %w", p.Name, err))
		}
	}
	for _, p := range pods {
		if err := k.waitGone(ctx, p); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(k.pods, p.Name)
		_ = os.RemoveAll(k.Control(p))
	}
	return errors.Join(errs...)
}

func (k *Kubelet) waitGone(ctx context.Context, p *Pod) error {
	for {
		_, err := k.Client.CoreV1().Pods(Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		_, left := os.Stat(k.Dir(p))
		if apierrors.IsNotFound(err) && (p.UID == "" || os.IsNotExist(left)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("pod %s does not go: %w (API server: %v, cgroup: %v)", p.Name, ctx.Err(), err, left)
		case <-time.After(pollPeriod):
		}
	}
}
