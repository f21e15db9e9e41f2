package kubectl

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
)

// cluster finds daemons and runs their commands.
type cluster struct {
	client  coreclient.CoreV1Interface
	sets    appsclient.DaemonSetsGetter
	daemons place
	timeout time.Duration // of one node
	run     func(ctx context.Context, d *daemon, command []string) (output, error)
}

// nodeOf returns the node of a pod, which has to live unless the command is oom: verdicts outlive the pod. The error says why it has none.
func (c *cluster) nodeOf(ctx context.Context, namespace, name, command string) (string, error) {
	pod, err := c.client.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", commandline.Failed(fmt.Errorf("there is no pod %s in namespace %s", name, namespace))
	case err != nil:
		return "", commandline.Failed(denied(err, "get", "pods", namespace))
	case command != "oom" && (pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed):
		return "", commandline.Failed(fmt.Errorf("pod %s/%s has ended (%s): the daemons know the pods that live", namespace, name, pod.Status.Phase))
	case pod.Spec.NodeName == "":
		return "", commandline.Failed(fmt.Errorf("pod %s/%s is not scheduled to a node yet: %s", namespace, name, scheduling(pod)))
	}
	return pod.Spec.NodeName, nil
}

// scheduling is a pod's condition PodScheduled.
func scheduling(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			said := []string{fmt.Sprintf("PodScheduled is %s", c.Status), c.Reason, c.Message}
			return strings.Join(slices.DeleteFunc(said, func(text string) bool { return text == "" }), ", ")
		}
	}
	return "no scheduler has looked at it (no condition PodScheduled); spec.schedulerName is " + pod.Spec.SchedulerName
}

// daemonOn returns the daemon on a node.
func (c *cluster) daemonOn(ctx context.Context, node string) (*daemon, error) {
	installed, pods, err := c.installed(ctx, fields.OneTermEqualSelector("spec.nodeName", node).String())
	if err != nil {
		return nil, err
	}
	d, err := installed.choose(node, pods)
	if err != nil {
		return nil, commandline.Failed(err)
	}
	return d, nil
}

// installed finds the daemons' DaemonSets, and those of the pods with the daemons' labels that a field selector has: not all of these
// need be daemons.
func (c *cluster) installed(ctx context.Context, selector string) (installation, []corev1.Pod, error) {
	sets, err := c.sets.DaemonSets(c.daemons.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		err = denied(err, "list", "daemonsets", c.daemons.namespace)
		if forbidden(err) && c.daemons.namespace == "" {
			err = fmt.Errorf("%w; with --daemon-namespace, the right to list them in that namespace is enough", err)
		}
		return installation{}, nil, commandline.Failed(err)
	}
	installed, err := c.daemons.among(sets.Items)
	if err != nil || len(installed.sets) == 0 {
		return installed, nil, err
	}
	namespace := installed.sets[0].Namespace
	list, err := c.client.Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: c.daemons.selector, FieldSelector: selector})
	if err != nil {
		return installation{}, nil, commandline.Failed(denied(err, "list", "pods", namespace))
	}
	return installed, list.Items, nil
}

// nodes lists the names of the nodes that daemons run on, those with Linux, in their order.
func (c *cluster) nodes(ctx context.Context) ([]string, error) {
	list, err := c.client.Nodes().List(ctx, metav1.ListOptions{LabelSelector: corev1.LabelOSStable + " notin (windows)"})
	if err != nil {
		return nil, commandline.Failed(denied(err, "list", "nodes", ""))
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	slices.Sort(names)
	return names, nil
}

// parallel is how many daemons are asked at once.
const parallel = 16

// each asks about every node, in the order of their names; err says why there is no daemon to ask.
func each[T any](ctx context.Context, c *cluster, ask func(ctx context.Context, node string, d *daemon, err error) T) ([]T, error) {
	nodes, err := c.nodes(ctx)
	if err != nil {
		return nil, err
	}
	installed, pods, err := c.installed(ctx, "")
	if err != nil {
		return nil, err
	}
	byNode := map[string][]corev1.Pod{}
	for _, pod := range pods {
		byNode[pod.Spec.NodeName] = append(byNode[pod.Spec.NodeName], pod)
	}
	answers := make([]T, len(nodes))
	free := make(chan struct{}, parallel)
	var group sync.WaitGroup
	for i, node := range nodes {
		free <- struct{}{}
		group.Go(func() {
			d, err := installed.choose(node, byNode[node])
			answers[i] = ask(ctx, node, d, err)
			<-free
		})
	}
	group.Wait()
	return answers, ctx.Err()
}

// denied names the right that the user lacks.
func denied(err error, verb, resource, namespace string) error {
	if !forbidden(err) {
		return err
	}
	where := "in namespace " + namespace
	if namespace == "" {
		where = "in the whole cluster"
	}
	return fmt.Errorf("you may not %s %s %s: %w", verb, resource, where, err)
}

// forbidden reports whether the API server refuses a request for lack of a right. Of one that is to be upgraded to a stream, only the
// text of the refusal is left.
func forbidden(err error) bool {
	return apierrors.IsForbidden(err) || err != nil && strings.Contains(err.Error(), "is forbidden: User")
}
